"""The arena's door for gRPC: the keys, scopes and rates of the REST API.

Guarantees: whoever may not submit by REST cannot run code by gRPC either; a key that is refused is never treated as if
it had not been sent. Where submitting needs no key (on loopback, unless the host says otherwise) there is no door.
"""

from __future__ import annotations

import contextlib
import hmac
import time
import urllib.parse
from collections.abc import Callable

import grpc

from harena.access import Buckets, Rate
from harena.arena.db.accounts.keys import KeyRecord
from harena.arena.db.models import KeyRefused, Scope
from harena.arena.db.store import Store
from harena.arena.settings import Settings
from harena.http.limits import RequestLimits, address_of
from harena.match.executor import server
from harena.match.executor.orders import CallRefused

RUNS = frozenset({"RunMatch", "WatchMatch", "ValidateAgent"})
"""Calls that may start a box."""
CHANGES = frozenset({"CancelMatch"})
HOST = "host"
"""The caller's name with executor.auth_token, which is the host's to give."""
NEEDS_KEY = "this needs an arena's key with the scope {!r}: send the metadata `authorization: Bearer hrn_…`"


class KeyDoor:
    """An `Authenticator` of harena.match.executor.server."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        limits: RequestLimits,
        *,
        token: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`token`: executor.auth_token, taken as well where the host has set one."""
        self._store = store
        self._settings = settings
        self._token = token.encode()
        self._spare_loopback = limits.spare_loopback
        rates: dict[str, Rate] = {"runs": limits.upload, "changes": limits.write, "reads": limits.read}
        self._buckets = {name: Buckets(rate, clock) for name, rate in rates.items()}

    def admit(self, method: str, metadata: dict[str, str]) -> str:
        shown = metadata.get("x-api-key", "").strip() or server.bearer(metadata)
        scope = Scope.SUBMIT if _kind(method) != "reads" else Scope.READ
        if self._token and hmac.compare_digest(shown.encode(errors="replace"), self._token):
            return HOST
        if not shown:
            if scope is Scope.READ and self._settings.anonymous_read:
                return ""
            raise CallRefused(grpc.StatusCode.UNAUTHENTICATED, NEEDS_KEY.format(scope.value))
        return self._key(shown, scope).owner

    def _key(self, shown: str, scope: Scope) -> KeyRecord:
        try:
            return self._store.keys.authenticate(shown, scope)
        except KeyRefused as error:
            live = False
            for other in Scope:
                with contextlib.suppress(KeyRefused):
                    self._store.keys.authenticate(shown, other)
                    live = True
            code = grpc.StatusCode.PERMISSION_DENIED if live else grpc.StatusCode.UNAUTHENTICATED
            raise CallRefused(code, str(error)) from None

    def charge(self, method: str, caller: str, peer: str) -> None:
        address, loopback = address_of(_client(peer))
        if loopback and self._spare_loopback:
            return
        wait_s = self._buckets[_kind(method)].take(address)
        if wait_s:
            raise CallRefused(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"this address asks too often: try again in {wait_s:.0f} s"
            )


def _kind(method: str) -> str:
    name = method.rpartition("/")[2]
    return "runs" if name in RUNS else "changes" if name in CHANGES else "reads"


def _client(peer: str) -> tuple[str, int] | None:
    """Parse gRPC's "ipv4:192.0.2.1:5678", "ipv6:[::1]:5678" (its brackets may be escaped) or "unix:…"."""
    family, _, rest = urllib.parse.unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    host, _, port = rest.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
