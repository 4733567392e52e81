"""What every request passes before a route sees it, and every answer on its way out. One pure ASGI middleware.

Guarantees: a Host that is not ours, a write that another site's page sent, a body that is too large or too slow, and an
address that asks too much are refused here, in the one error shape; every answer has its request id and the security
headers; no exception gets past, and none is told in detail. Does not know who the caller is: `auth` does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harena import trace
from harena.access import Buckets, Rate
from harena.api.http import errors
from harena.api.http.errors import ApiError
from harena.api.http.metrics import Metrics
from harena.http.limits import RequestLimits, SharedLimits, address_of

ACCESS = logging.getLogger("harena.api.access")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost"})
UPLOADS = frozenset({"/api/submit", "/api/submit/", "/submissions", "/submissions/", "/v1/submissions"})
WORKER = "/v1/worker"
ANSWER = re.compile(r"/v1/worker/jobs/[0-9]{1,19}/result", re.ASCII)
LOGIN = "/v1/login"
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})
CLIENT_GONE = 499
"""Status in logs and metrics when the client had left before the answer."""
HEAD_BYTES = 2000
DRAIN_S = 2.0
DRAIN_BYTES = 64 << 20

API_CSP = "default-src 'none'; frame-ancestors 'none'"
PAGE_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
EMBEDDABLE = b"frame-ancestors *"
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
UNLESS_SET = (
    (b"content-security-policy", API_CSP.encode()),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{8,64}", re.ASCII)


STOPPING = ApiError(
    503, "stopping", "the server is stopping", hint="try again in a minute", headers={"Retry-After": "60"}
)


class Hosts:
    """The names we answer to. A number is always one: no name of an attacker's can be made to point to a number."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._seen: dict[str, bool] = {}

    def allows(self, header: str) -> bool:
        known = self._seen.get(header)
        if known is None:
            known = self._decide(header)
            if len(self._seen) < 1000:
                self._seen[header] = known
        return known

    def _decide(self, header: str) -> bool:
        try:
            name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if not header or re.search(r"[\s/@?#\\]", header):
            return False
        return "*" in self._names or name in self._names or _is_number(name)


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Gate:
    """Wraps an app: `Gate(app, …)` is the app that is served."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        limits: RequestLimits,
        max_upload_bytes: int,
        metrics: Metrics,
        audit: Callable[..., None] = lambda *_, **__: None,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedLimits | None = None,
        kept: Callable[[Scope, Mapping[bytes, bytes]], tuple[str, Response] | None] = lambda scope, headers: None,
    ) -> None:
        """`audit(who, what, **more)` is told of every request by which a host changes something. `kept` may know the
        answer to a GET already, and its route."""
        self.app = app
        self.audit = audit
        self.hosts = Hosts(hosts)
        self.limits = limits
        self.max_upload_bytes = max_upload_bytes + limits.upload_slack_bytes
        self.metrics = metrics
        rates: dict[str, Rate] = {
            name: getattr(limits, name) for name in ("read", "write", "upload", "worker", "login")
        }
        self._buckets = {name: Buckets(rate, clock) for name, rate in rates.items()}
        self._shared = shared
        self._kept = kept
        self._addresses: dict[str, tuple[str, bool]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        with trace.span("request", parent=trace.parse(exchange.header(b"traceparent"))) as span:
            try:
                await self._answer(scope, receive, exchange)
            finally:
                self._record(scope, exchange, span)

    async def _answer(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        try:
            await self._admit(scope, exchange)
            known = self._kept(scope, exchange.headers) if exchange.method == "GET" else None
            if known is not None:
                exchange.route, answer = known
                await answer(scope, receive, exchange.send)
                return
            if exchange.method not in SAFE:
                receive = await self._body(scope, exchange, receive)
            await self.app(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = exchange.status or CLIENT_GONE
        except asyncio.CancelledError:
            # The server stops and has waited long enough. Nothing but this request is to be cancelled, and whoever
            # still sends it is told.
            if not exchange.status:
                await errors.response(STOPPING, exchange.request_id)(scope, receive, exchange.send)
        except Exception as error:
            if exchange.status:
                exchange.failed = True
                raise
            await errors.response(error, exchange.request_id)(scope, receive, exchange.send)

    async def _admit(self, scope: Scope, exchange: _Exchange) -> None:
        headers, unsafe = exchange.headers, exchange.method not in SAFE
        if not self.hosts.allows(headers.get(b"host", b"").decode("latin-1")):
            raise ApiError(
                421,
                "unknown_host",
                "this server does not answer to that host name",
                hint="use localhost or the address, or let the host add the name with --allow-host",
            )
        if unsafe:
            _check_site(headers)
        await self._check_rate(scope, exchange)

    async def _check_rate(self, scope: Scope, exchange: _Exchange) -> None:
        address, loopback = self._address(scope, exchange.headers)
        kind = _kind(exchange.method, scope["path"])
        if loopback and self.limits.spare_loopback and kind != "login":
            return
        bucket = self._buckets[kind]
        wait_s = bucket.take(address)
        if not wait_s and self._shared is not None:
            wait_s = await self._shared.take(kind, address, per_s=bucket.rate.per_s, burst=bucket.rate.burst)
        if wait_s:
            self.metrics.limited.inc()
            seconds = str(max(1, math.ceil(wait_s)))
            raise ApiError(
                429,
                "too_many_requests",
                "this address asks too often",
                hint=f"try again in {seconds} s",
                headers={"Retry-After": seconds},
            )

    def _address(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[str, bool]:
        client = scope.get("client")
        name = client[0] if client else ""
        known = self._addresses.get(name)
        if known is None:
            known = address_of(client)
            if len(self._addresses) < 10_000:
                self._addresses[name] = known
        address, loopback = known
        if loopback and not FORWARDED.isdisjoint(headers):
            loopback = False  # a proxy on this machine speaks for somebody else
        scope["state"]["address"], scope["state"]["loopback"] = address, loopback
        return address, loopback

    async def _body(self, scope: Scope, exchange: _Exchange, receive: Receive) -> Receive:
        path: str = scope["path"]
        most = self.max_upload_bytes if path in UPLOADS else self.limits.body_bytes
        if ANSWER.fullmatch(path):
            most = self.limits.answer_bytes
        body = exchange.body = _Body(receive, most, self.limits)
        declared = exchange.headers.get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18:
            raise ApiError(400, "bad_request", "Content-Length is not a number")
        if int(declared) > most:
            if b"expect" not in exchange.headers:
                await body.drain()
            raise body.too_large()
        return body.receive

    def _record(self, scope: Scope, exchange: _Exchange, span: trace.Span) -> None:
        took_s = time.perf_counter() - exchange.began
        route = exchange.route or getattr(scope.get("route"), "path", "other")
        method = exchange.method if exchange.method in _METHODS else "OTHER"
        span.name = f"{method} {route}"
        span.attributes |= {
            "request_id": exchange.request_id,
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": exchange.status,
        }
        if exchange.status >= 500:
            span.error = f"status {exchange.status}"
        self.metrics.count_request(method, route, exchange.status, took_s)
        host = scope["state"].get("host")
        if host and exchange.method not in SAFE:
            self._audited(scope, exchange, host)
        if ACCESS.isEnabledFor(logging.INFO):
            line = {
                "request_id": exchange.request_id,
                "method": exchange.method,
                "path": scope["path"][:500],
                "status": exchange.status,
                "ms": round(took_s * 1000, 3),
                "client": scope["state"].get("address", ""),
                "owner": scope["state"].get("owner"),
            }
            ACCESS.info("request", extra=line | ({"cut": True} if exchange.failed else {}))

    def _audited(self, scope: Scope, exchange: _Exchange, host: str) -> None:
        body = exchange.body.head.decode("utf-8", "replace") if exchange.body else ""
        self.audit(
            host,
            f"{exchange.method} {scope['path'][:500]}",
            body=body,
            address=scope["state"].get("address", ""),
            request_id=exchange.request_id,
            status=exchange.status,
        )


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


def _kind(method: str, path: str) -> str:
    if path.startswith(WORKER):
        return "worker"
    if method in SAFE:
        return "read"
    return "login" if path == LOGIN else "upload" if path in UPLOADS else "write"


def _check_site(headers: dict[bytes, bytes]) -> None:
    """A page of another site, open in the visitor's browser, must not act here: not with the visitor's session, and not
    without one either, because it would reach a server that only the visitor's machine can see."""
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    foreign = site is not None and site not in (b"same-origin", b"none")
    if origin is not None:
        parts = urlsplit(origin.decode("latin-1"))
        host = headers.get(b"host", b"").decode("latin-1")
        foreign = foreign or parts.scheme not in ("http", "https") or parts.netloc.lower() != host.lower()
    if foreign:
        raise ApiError(
            403, "cross_site", "another site's page may not do this", hint="open this server's own page and do it there"
        )


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.began = time.perf_counter()
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        self.status = 0
        self.route = ""
        """Where the answer was known before the request was routed; else empty."""
        self.failed = False
        self.body: _Body | None = None
        self._send = send
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = self.request_id

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            if any(name == b"content-security-policy" and value.endswith(EMBEDDABLE) for name, value in headers):
                names.add(b"x-frame-options")  # it could only say no
            headers += [pair for pair in UNLESS_SET if pair[0] not in names]
            headers += ALWAYS
            headers.append((b"x-request-id", self.request_id.encode()))
            if self.body is not None and not self.body.complete and b"connection" not in names:
                headers.append((b"connection", b"close"))  # nobody reads the rest
            message = {**message, "headers": headers}
        await self._send(message)


class _Body:
    """A request's body, counted and timed as it comes."""

    def __init__(self, receive: Receive, max_bytes: int, limits: RequestLimits) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._limits = limits
        self._began = time.monotonic()
        self._received = 0
        self.complete = False
        self.head = b""
        """The beginning, for the audit log."""

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        limits = self._limits
        allowed_s = min(limits.body_max_s, limits.body_grace_s + self._received / limits.body_rate)
        try:
            async with asyncio.timeout(self._began + allowed_s - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408,
                "too_slow",
                "the request's body came too slowly",
                hint="try again on a better connection",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            self.head += message.get("body", b"")[: HEAD_BYTES - len(self.head)] if len(self.head) < HEAD_BYTES else b""
            self.complete = not message.get("more_body", False)
            if self._received > self._max_bytes:
                await self.drain()
                raise self.too_large()
        return message

    async def drain(self) -> None:
        """What is under way is read and thrown away, for a moment: a client that still sends would miss the answer."""
        drained = 0
        try:
            async with asyncio.timeout(DRAIN_S):
                while not self.complete and drained < DRAIN_BYTES:
                    message = await self._receive()
                    drained += len(message.get("body", b""))
                    self.complete = message["type"] != "http.request" or not message.get("more_body", False)
        except TimeoutError:
            pass

    def too_large(self) -> ApiError:
        return ApiError(
            413,
            "too_large",
            f"the request has more than {self._max_bytes} bytes",
            hint="send less",
            headers={"Connection": "close"},
        )
