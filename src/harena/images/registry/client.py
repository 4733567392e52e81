"""Client of the registry HTTP API v2 (the OCI distribution specification), for pulling.

Guarantees: credentials and tokens go only to the registry itself and to the token server that it names, never along a
redirect to another host; https is never left for http; a redirect or token server on loopback or at a link-local
address is refused unless the registry is there too; every answer is bounded in size and time, and retries are counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import json
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, TypeVar, cast

from harena.images.errors import BadImage, ImageCancelled, ImageError, ImageNotFound, RegistryError
from harena.images.manifest import ACCEPT, MAX_MANIFEST, Descriptor
from harena.images.reference import DOCKER_HUB, Digest
from harena.images.registry import credentials
from harena.images.registry.transport import (
    LOOPBACK,
    OTHER,
    AnswerClock,
    Proxy,
    Response,
    Transient,
    TransportPatience,
    Url,
    exchange,
    is_loopback_name,
)
from harena.images.settings import ImageSettings

HUB_HOST = "registry-1.docker.io"
MAX_REDIRECTS = 5
MIRROR_ATTEMPTS = 2
"""Tries at a mirror before the next place is asked."""
MAX_TOKEN = 1 << 20
MAX_ERROR = 16 << 10
TOKEN_S = 60.0
"""Seconds that a token is valid if its server does not say."""
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

T = TypeVar("T")

_PARAMETER = re.compile(r'([a-zA-Z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)', re.ASCII)


class Registry:
    """One registry. Safe to use from several threads."""

    def __init__(
        self,
        host: str,
        settings: ImageSettings,
        *,
        patience: TransportPatience | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self.host = host
        self._patience = patience or TransportPatience()
        self._settings = settings
        self._proxy = Proxy(settings.https_proxy, settings.no_proxy)
        self._cancel = cancel or threading.Event()
        self._is_plain = is_loopback_name(host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host)
        self._is_insecure = host in settings.insecure
        scheme = "http" if self._is_plain or self._is_insecure else "https"
        self._base = Url.parse(f"{scheme}://{HUB_HOST if host == DOCKER_HUB else host}/v2/")
        self._lock = threading.Lock()
        self._credentials: credentials.Credentials | None = None
        self._has_looked = False
        self._tokens: dict[str, tuple[str, float]] = {}
        """Authorization header by repository, and when it expires."""
        self._zone: str | None = None

    def manifest(self, repository: str, target: str, expected: Digest | None = None) -> tuple[bytes, str, Digest]:
        """Return a manifest's bytes, its media type and its digest, which is verified if `expected` is given."""

        def read(response: Response) -> tuple[bytes, str]:
            return response.read_all(MAX_MANIFEST, "manifest"), response.header("Content-Type")

        path = f"{repository}/manifests/{target}"
        data, kind = self._get(path, repository, {"Accept": ACCEPT}, what=target, read=read)
        if expected is not None and not expected.matches(data):
            raise BadImage(f"{self.host} sent a manifest that does not have its digest {expected.short}…")
        return data, kind, expected or Digest.of(data)

    def small_blob(self, repository: str, blob: Descriptor, cap: int) -> bytes:
        """Return a blob such as a config, verified."""

        def read(response: Response) -> bytes:
            return response.read_all(min(cap, blob.size), "config")

        path = f"{repository}/blobs/{blob.digest}"
        data = self._get(path, repository, {}, what=str(blob.digest), read=read)
        if len(data) != blob.size or not blob.digest.matches(data):
            raise BadImage(f"{self.host} sent a config that does not have its digest {blob.digest.short}…")
        return data

    def open_blob(self, repository: str, blob: Descriptor, offset: int, *, total_s: float) -> Response:
        """Ask for a blob from `offset` on. The status is 200 (all of it), 206 (the rest) or 416."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        pace = self._pace(total_s, min_rate=self._patience.min_rate)
        path = f"{repository}/blobs/{blob.digest}"
        return self._get(
            path, repository, headers, what=str(blob.digest), read=lambda response: response, pace=pace, also=(206, 416)
        )

    # ---- requests ----

    def _pace(self, total_s: float, *, min_rate: int = 0) -> AnswerClock:
        return AnswerClock(self._patience, total_s=total_s, min_rate=min_rate, is_cancelled=self._cancel.is_set)

    def _get(
        self,
        path: str,
        repository: str,
        headers: dict[str, str],
        *,
        what: str,
        read: Callable[[Response], T],
        pace: AnswerClock | None = None,
        also: tuple[int, ...] = (),
    ) -> T:
        """Return what `read` makes of a successful answer. Answers a challenge and waits for a busy registry."""
        url = self._base.join(path)
        has_answered = False
        failures = 0
        while True:
            if self._cancel.is_set():
                raise ImageCancelled("cancelled")
            try:
                clock = pace or self._pace(self._patience.small_s)
                response = self._follow(url, repository, headers, clock)
                if response.status == 401 and not has_answered and response.url.origin == self._base.origin:
                    has_answered = True
                    with response:
                        self._answer(response, repository)
                    continue
                if response.status == 200 or response.status in also:
                    return read(response)
                raise self._refusal(response, repository, what)
            except Transient as error:
                failures += 1
                self.wait(failures, error)

    def wait(self, failures: int, error: Transient) -> None:
        """Sleep before another try. Raise the error if there were enough of them."""
        wait_s = error.wait_s
        if wait_s is None:
            wait_s = self._patience.backoff_s * 2 ** min(failures - 1, 6) * random.uniform(0.7, 1.3)
        if wait_s > self._patience.longest_wait_s:
            raise RegistryError(
                f"{error}; it asks to wait {wait_s:.0f} s: try later, log in, or set a mirror"
            ) from None
        if failures >= self._patience.attempts:
            raise RegistryError(f"{error}; gave up after {failures} tries") from None
        if self._cancel.wait(wait_s):
            raise ImageCancelled("cancelled")

    def _follow(self, url: Url, repository: str, headers: dict[str, str], pace: AnswerClock) -> Response:
        is_own = True
        for _ in range(MAX_REDIRECTS + 1):
            sent = dict(headers)
            if is_own and (token := self._authorization(repository)):
                sent["Authorization"] = token
            response = self._exchange(url, sent, pace, is_own=is_own)
            if response.status not in REDIRECTS:
                return response
            with response:
                location = response.header("Location")
            if not location:
                raise RegistryError(f"{url.netloc} sent a redirect without a target")
            target = url.join(location)
            if url.scheme == "https" and target.scheme != "https":
                raise RegistryError(f"{url.netloc} redirects to {target.netloc} without TLS, which is refused")
            is_own = is_own and target.origin == self._base.origin
            url = target
        raise RegistryError(f"{self.host} redirects more than {MAX_REDIRECTS} times")

    def _exchange(self, url: Url, headers: dict[str, str], pace: AnswerClock, *, is_own: bool, **more: Any) -> Response:
        zones: frozenset[str] | None = None
        if not is_own:
            zones = frozenset({OTHER, self._zone or OTHER})
        elif url.scheme == "http" and not self._is_insecure:
            zones = frozenset({LOOPBACK})  # the name was a loopback one, and the address must be
        response = exchange(
            url, headers=headers, pace=pace, patience=self._patience, proxy=self._proxy, zones=zones, **more
        )
        if is_own:
            self._zone = response.zone
        return response

    def _refusal(self, response: Response, repository: str, what: str) -> ImageError:
        """Return the error that an answer means."""
        name = f"{self.host}/{repository}"
        with response:
            status, where = response.status, response.url.netloc
            if status in BUSY:
                return Transient(_busy(where, status), wait_s=_retry_after(response.header("Retry-After")))
            said = _said(response)
        if response.url.origin != self._base.origin:
            return RegistryError(f"{where}, where {self.host} keeps its files, answered with status {status}{said}")
        if status == 404:
            return ImageNotFound(f"{name} has no {what:.100}: check the name and the tag{said}")
        if status in (401, 403):
            return RegistryError(
                f"{self.host} refuses access to {repository}: check the name, or `docker login {self.host}`{said}"
            )
        return RegistryError(f"{self.host} answered with status {status}{said}")

    # ---- tokens ----

    def _authorization(self, repository: str) -> str | None:
        with self._lock:
            token, ends_at = self._tokens.get(repository, ("", 0.0))
            return token if time.monotonic() < ends_at else None

    def _answer(self, response: Response, repository: str) -> None:
        scheme, _, rest = response.header("WWW-Authenticate").strip().partition(" ")
        used = self._authorization(repository)
        with self._lock:
            if not self._has_looked:
                self._credentials = credentials.find(self._settings.docker_config, self.host)
                self._has_looked = True
        match scheme.lower():
            case "basic":
                if self._credentials is None or used == self._credentials.basic:
                    raise RegistryError(
                        f"{self.host} needs a password: run `docker login {self.host}`, or write it to config.json"
                    )
                token, valid_s = self._credentials.basic, 3600.0
            case "bearer":
                token, valid_s = self._fetch_token(parameters(rest), repository)
            case _:
                raise RegistryError(f"{self.host} asks for an unknown kind of login: {scheme!r:.40}")
        with self._lock:
            self._tokens[repository] = token, time.monotonic() + valid_s

    def _fetch_token(self, challenge: dict[str, str], repository: str) -> tuple[str, float]:
        if not challenge.get("realm"):
            raise RegistryError(f"{self.host} asks for a token and does not say where to get it")
        realm = self._base.join(challenge["realm"])
        if realm.scheme != "https" and self._base.scheme == "https":
            raise RegistryError(f"{self.host} names a token server without TLS, which is refused")
        query = {"scope": f"repository:{repository}:pull"}
        if challenge.get("service"):
            query["service"] = challenge["service"]
        mine, headers, more = self._credentials, dict[str, str](), dict[str, Any]()
        if mine is not None and mine.is_identity_token:
            form = {**query, "grant_type": "refresh_token", "refresh_token": mine.password, "client_id": "harena"}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            more = {"method": "POST", "body": urllib.parse.urlencode(form).encode()}
        else:
            mark = "&" if "?" in realm.path else "?"
            realm = dataclasses.replace(realm, path=f"{realm.path}{mark}{urllib.parse.urlencode(query)}")
            if mine is not None:
                headers["Authorization"] = mine.basic
        is_own = realm.origin == self._base.origin
        pace = self._pace(self._patience.small_s)
        response = self._exchange(realm, headers, pace, is_own=is_own, **more)
        with response:
            if response.status in BUSY:
                raise Transient(
                    _busy(realm.netloc, response.status), wait_s=_retry_after(response.header("Retry-After"))
                )
            if response.status != 200:
                fix = f"`docker login {self.host}` again" if mine else f"check the name, or `docker login {self.host}`"
                raise RegistryError(f"{realm.netloc} gave no token for {repository} (status {response.status}): {fix}")
            data = response.read_all(MAX_TOKEN, "token")
        try:
            fields = cast("dict[str, Any]", json.loads(data))
            token, valid_s = fields.get("token") or fields.get("access_token"), fields.get("expires_in")
        except (ValueError, RecursionError, AttributeError):
            token, valid_s = None, None
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
            raise RegistryError(f"{realm.netloc} sent an invalid token")
        if isinstance(valid_s, bool) or not isinstance(valid_s, int | float) or not 0 < valid_s < 1e9:
            valid_s = TOKEN_S
        return f"Bearer {token}", max(10.0, float(valid_s) * 0.9)


class BlobSource:
    """A registry with its mirrors, which are asked first. What a mirror lacks or spoils comes from the registry."""

    def __init__(
        self,
        host: str,
        settings: ImageSettings,
        *,
        patience: TransportPatience | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        patience = patience or TransportPatience()
        quick = dataclasses.replace(patience, attempts=min(MIRROR_ATTEMPTS, patience.attempts))
        mirrors = [Registry(name, settings, patience=quick, cancel=cancel) for name in settings.mirrors.get(host, ())]
        self._registries = (*mirrors, Registry(host, settings, patience=patience, cancel=cancel))
        self._down: set[str] = set()

    @property
    def registries(self) -> tuple[Registry, ...]:
        """Where to ask, in this order. The registry itself is the last."""
        return tuple(one for one in self._registries[:-1] if one.host not in self._down) + self._registries[-1:]

    def give_up(self, mirror: Registry, error: ImageError) -> None:
        """Do not ask a mirror again that cannot be reached. One that lacks something may have the rest."""
        if isinstance(error, RegistryError):
            self._down.add(mirror.host)

    def manifest(self, repository: str, target: str, expected: Digest | None = None) -> tuple[bytes, str, Digest]:
        return self._first(lambda registry: registry.manifest(repository, target, expected))

    def small_blob(self, repository: str, blob: Descriptor, cap: int) -> bytes:
        return self._first(lambda registry: registry.small_blob(repository, blob, cap))

    def _first(self, ask: Callable[[Registry], T]) -> T:
        for registry in self.registries[:-1]:
            try:
                return ask(registry)
            except ImageCancelled:
                raise
            except ImageError as error:
                self.give_up(registry, error)
        return ask(self._registries[-1])


def parameters(text: str) -> dict[str, str]:
    """Read the parameters of a challenge: realm="…",service="…"."""
    if len(text) > 8192:
        raise RegistryError("the registry's challenge is too long")
    found: dict[str, str] = {}
    at = 0
    text = text.strip()
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None:
            break
        value = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        found.setdefault(match[1].lower(), value)
        at = match.end()
        while at < len(text) and text[at] == " ":
            at += 1
    return found


def _busy(where: str, status: int) -> str:
    if status == 429:
        return f"{where} limits how much may be pulled (status 429)"
    return f"{where} is not available (status {status})"


def _retry_after(text: str) -> float | None:
    """Seconds to wait. None: the registry does not say."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _said(response: Response) -> str:
    """Return the registry's own message, in a form that fits into ours."""
    with contextlib.suppress(ImageError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        errors = json.loads(response.read_all(MAX_ERROR, "error"))["errors"]
        words = str(errors[0].get("message") or errors[0].get("code"))
        return f" ({''.join(letter if letter.isprintable() else ' ' for letter in words)[:160]})"
    return ""
