"""Tokens, scopes and rates: what the arena and the box server share to decide who may ask for what, and how often.

Guarantees: only digests of tokens need to be kept, and comparing one takes the same time for every token; buckets take
a bounded amount of memory. Where tokens are kept and who owns what is up to each server.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from harena.errors import SpecError

MAX_ADDRESSES = 20_000

S = TypeVar("S", bound=enum.StrEnum)


# ---- tokens ----


def new_token() -> str:
    """A secret of 256 bits."""
    return secrets.token_urlsafe(32)


def token_digest(token: str | bytes) -> str:
    """What is kept of a token. It needs no salt, because tokens are random."""
    data = token.encode("utf-8", "replace") if isinstance(token, str) else token
    return hashlib.sha256(data).hexdigest()


def find_token(token: str | bytes, digests: Mapping[str, str]) -> str | None:
    """The name under which the digest of this token is known. Takes the same time for every token."""
    given, found = token_digest(token), None
    for name, digest in digests.items():
        if hmac.compare_digest(given, digest):
            found = name
    return found


def bearer_token(authorization: str) -> str | None:
    """The token of an Authorization header; None if it is not of the form `Bearer TOKEN`."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


# ---- scopes ----


def parse_scopes(text: str, kind: type[S]) -> frozenset[S]:
    """Read the names of scopes, with commas between them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [scope.value for scope in kind]
    if not names or not set(names) <= set(known):
        raise SpecError(f"scopes {text!r:.80}: some of {', '.join(known)}, with commas between them")
    return frozenset(map(kind, names))


def allows(held: Set[S], wanted: S, *, everything: S) -> bool:
    """Whether scopes include the wanted one. `everything`: the scope that implies the others."""
    return wanted in held or everything in held


# ---- rates ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    per_s: float
    burst: float


class Buckets:
    """Token buckets of one rate for many addresses or owners. The one that was seen longest ago is forgotten beyond
    `MAX_ADDRESSES`, and starts with a full bucket. Thread-safe."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, address: str) -> float:
        """0.0: go on. Otherwise the seconds until the next request of this address is taken."""
        now, rate = self._clock(), self.rate
        with self._lock:
            left, at = self._left.pop(address, (rate.burst, now))
            left = min(rate.burst, left + (now - at) * rate.per_s)
            taken = left >= 1.0
            self._left[address] = (left - 1.0 if taken else left, now)
            if len(self._left) > MAX_ADDRESSES:
                self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / rate.per_s
