"""Receives every request of the server: identifies the owner, bounds the body, and passes it to the part that answers.

/v1/boxes is the connection of clients (`plane`), /v1/sessions/ID/shell a terminal, the other /v1 paths REST.
/healthz and /readyz need no token; everything else does.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harena import __version__
from harena.access import Buckets, Rate
from harena.errors import HarenaError
from harena.ledger.ledger import Ledger
from harena.node.rules import Quotas, Rules
from harena.serve import plane, terminal
from harena.serve.rest import create_rest
from harena.serve.routes.context import Context, status_of
from harena.serve.routes.records import accounted, usage_metrics
from harena.serve.tokens import Tokens, TokenScope
from harena.sessions.errors import error_out
from harena.sessions.pools import SessionClocks
from harena.sessions.records import Records
from harena.sessions.service import Service

BOXES = "/v1/boxes"
SHELL = re.compile(r"/v1/sessions/([0-9a-f]{1,64})/shell")
TOO_FAST = "requests come too fast: wait as long as Retry-After says"
READ_ONLY = "the token may only read: its line in the token file ends with the scope read"
MAX_RATE = 1000.0
"""Requests of one owner in a second; twice as many may come at once."""
MAX_BODY = 64 << 20
"""Largest body of a request."""
MAX_BODIES = 256 << 20
"""Most bytes of bodies that are in memory at once; more requests with a body are refused. Each of several owners may
have half of it."""
SPARE_BODIES = 4 << 20
"""Bytes of bodies that an owner may have in any case."""
MAX_ANSWERS = 256 << 20
"""Most bytes of answers that one owner's clients have not read yet. A single one may have more."""
MAX_ITEMS = 300_000
"""Commas and brackets of a JSON body: a few bytes of JSON take a hundred in memory."""
CREATING = ("/sessions", "/pools", "/fork", "/evaluate", "/batch")
"""Paths that create boxes. A server that is stopping refuses them, and serves the others for what it still has."""
BODY_S = 60.0
"""Time for a whole body."""


class App:
    """An ASGI application."""

    def __init__(
        self,
        tokens: Tokens,
        rules: Rules,
        *,
        max_clients: int,
        max_rate: float = MAX_RATE,
        backend: str = "local",
        records: Records | None = None,
    ) -> None:
        """`backend`: makes the boxes. `records`: journals and accounts of owners."""
        self._rates = Buckets(Rate(per_s=max_rate, burst=max(1.0, 2 * max_rate)), time.monotonic)
        self._backend = backend
        self._tokens = tokens
        self._rules = rules
        self._max_clients = max_clients
        self._share = 1 if tokens.owners == 1 else 2
        """One owner may have this part of the places for clients and bodies: none keeps the others out."""
        self._clients: Counter[str] = Counter()
        self._bodies: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._quotas = Quotas(rules)
        self._records = records or Records(Ledger())
        clocks = SessionClocks(idle_s=3600.0, lifetime_s=86400.0)
        self.service = Service(self._quotas, clocks, backend=backend, records=self._records)
        self._context = Context(self.service)
        self._rest: ASGIApp = create_rest(self._context)
        self.ready = True
        self.used = False
        self._posts = 0
        """Requests under way that change something: a session that is being created counts as use."""
        """Whether a client has come, however short its visit was."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = dict(scope["headers"])
        owner = self._tokens.owner(headers.get(b"authorization"))
        if owner is None:
            await _refuse(send, 401, "give a token: Authorization: Bearer TOKEN")
        elif b"origin" in headers:
            await _refuse(send, 403, "pages of browsers may not use this server")
        elif not self._tokens.allows(owner, TokenScope.RUN):
            await _refuse(send, 403, READ_ONLY)
        elif wait_s := self._rates.take(owner):
            await _refuse(send, 429, TOO_FAST, wait_s)
        elif found := SHELL.fullmatch(scope["path"]):
            await self._terminal(owner, found[1], scope, receive, send)
        elif scope["path"] != BOXES:
            await _refuse(send, 404, f"there is {BOXES}")
        elif not self.ready or not self._has_room_for_client(owner):
            await _refuse(send, 503, "the server takes no more clients now; try again later")
        else:
            self._clients[owner] += 1
            self.used = True
            try:
                await send({"type": "websocket.accept"})
                quota = self._quotas.of(owner)
                served = accounted(self._records, owner, headers, self._backend)
                await plane.serve_client(receive, send, self._rules, quota, self._status, served)
            finally:
                self._clients[owner] -= 1

    def _has_room_for_client(self, owner: str) -> bool:
        most = max(1, self._max_clients // self._share)
        return self._clients.total() < self._max_clients and self._clients[owner] < most

    async def _terminal(self, owner: str, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The terminal takes one of the owner's processes, until its connection ends."""
        quota = self._quotas.of(owner)

        async def run(work: Callable[[], Any]) -> Any:
            return await self._context.run_for(owner, work)

        try:
            session = self.service.session(owner, session_id)
            options = terminal.options_of(scope["query_string"])
            quota.take("processes")
        except HarenaError as error:
            return await _refuse_for(send, error)
        process = None
        try:
            process = await run(lambda: session.start_terminal(options.pop("command"), **options))
            await send({"type": "websocket.accept"})
            await terminal.serve_terminal(receive, send, process, run)
        except HarenaError as error:
            await _refuse_for(send, error)
        finally:
            quota.give_back("processes")
            if process is not None:
                await asyncio.shield(asyncio.to_thread(process.close))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if scope["path"] in ("/healthz", "/readyz"):
            return await self._health(scope, send)
        owner = self._tokens.owner(headers.get(b"authorization"))
        if owner is None:
            return await _answer(send, 401, "give a token: Authorization: Bearer TOKEN")
        if b"origin" in headers:
            return await _answer(send, 403, "pages of browsers may not use this server")
        if scope["method"] not in ("GET", "HEAD") and not self._tokens.allows(owner, TokenScope.RUN):
            return await _answer(send, 403, READ_ONLY)
        if wait_s := self._rates.take(owner):
            return await _answer(send, 429, TOO_FAST, wait_s)
        if scope["path"] == "/metrics":
            return await self._metrics(send, owner)
        if not self.ready and scope["method"] == "POST" and scope["path"].endswith(CREATING):
            return await _answer(send, 503, "the server is stopping")
        is_post = scope["method"] == "POST"
        self.used = self.used or is_post
        self._posts += is_post
        scope["harena.owner"] = owner
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                status, why = await self._read_body(owner, headers, receive, body)
            if is_post and not status and _items(body) > MAX_ITEMS:
                status, why = 413, f"a JSON body has at most {MAX_ITEMS} items"
            if status:
                return await _answer(send, status, why)
            return await self._rest(scope, _replay(bytes(body), receive), self._counted(owner, send))
        except TimeoutError:
            return await _answer(send, 408, f"the body did not come within {BODY_S:g} s")
        finally:
            self._posts -= is_post
            self._bodies[owner] -= len(body)

    async def _read_body(
        self, owner: str, headers: dict[bytes, bytes], receive: Receive, body: bytearray
    ) -> tuple[int, str]:
        """Read the body before anything else looks at it. Returns a status if it is refused."""
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > MAX_BODY:
            return 413, f"a body has at most {MAX_BODY} bytes"
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return 400, "the client has gone"
            piece: bytes = event.get("body", b"")
            if len(body) + len(piece) > MAX_BODY:
                return 413, f"a body has at most {MAX_BODY} bytes"
            mine = self._bodies[owner] + len(piece)
            total = self._bodies.total() + len(piece)
            if mine > SPARE_BODIES and (mine > MAX_BODIES // self._share or total > MAX_BODIES):
                return 503, "the server has too many bodies in memory; try again later"
            body += piece
            self._bodies[owner] += len(piece)
            if not event.get("more_body", False):
                return 0, ""

    def _counted(self, owner: str, send: Send) -> Send:
        """Count the bytes of an answer until the client has read them, and refuse it if its owner has too many."""
        start: list[Message] = []
        is_refused = False

        async def sending(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start":
                start.append(message)
            if message["type"] != "http.response.body" or is_refused:
                return
            size = len(message.get("body", b""))
            if start and self._answers[owner] and self._answers[owner] + size > MAX_ANSWERS:
                is_refused = True
                return await _answer(send, 503, "your clients do not read their answers; try again later")
            self._answers[owner] += size
            try:
                if start:
                    await send(start.pop())
                await send({**message, "more_body": True})
                if not message.get("more_body", False):
                    await send({"type": "http.response.body", "body": b""})  # waits until the client has read
            finally:
                self._answers[owner] -= size

        return sending

    def _status(self) -> tuple[int, bool]:
        return self._quotas.total("boxes"), not self.ready

    @property
    def busy(self) -> bool:
        """Whether anybody uses a box."""
        return self._clients.total() > 0 or self.service.session_count > 0 or self._posts > 0

    async def _metrics(self, send: Send, owner: str) -> None:
        """Numbers of the whole server, and the usage of this owner, in the text format of Prometheus."""
        gauges = {
            "harena_serve_clients": ("Open connections of clients.", self._clients.total()),
            "harena_serve_sessions": ("Sessions that have not ended.", self.service.session_count),
            "harena_serve_boxes": ("Boxes held by all owners, warm ones included.", self._quotas.total("boxes")),
            "harena_serve_degraded": (
                "1 while journals or usage cannot be written.",
                int(bool(self._records.problems())),
            ),
            "harena_serve_ready": ("1 unless the server is stopping.", int(self.ready)),
        }
        lines = [
            f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for name, (text, value) in gauges.items()
        ]
        lines += await asyncio.to_thread(usage_metrics, self._records, owner)
        body = "".join(lines).encode()
        headers = [(b"content-type", b"text/plain; version=0.0.4"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _health(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, "method not allowed")
        elif scope["path"] == "/healthz":
            await _send_json(send, 200, self._condition())
        elif self.ready:
            await _send_json(send, 200, {"status": "ready"})
        else:
            await _send_json(send, 503, {"status": "stopping"})

    def _condition(self) -> dict[str, Any]:
        """A degraded server is alive: to start it again would only end its boxes."""
        problems = self._records.problems()
        status = "degraded" if problems else "healthy"
        return {"status": status, "version": __version__, **({"problems": problems} if problems else {})}


def _items(body: bytearray) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand out a body that was read already, and then what follows it."""
    events: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return events.pop() if events else await receive()

    return replayed


async def _send_json(
    send: Send, status: int, body: dict[str, Any], kind: str = "http.response", wait_s: float = 0.0
) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if wait_s:
        headers.append((b"retry-after", str(math.ceil(wait_s)).encode()))
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": text})


async def _answer(send: Send, status: int, why: str, wait_s: float = 0.0, kind: str = "http.response") -> None:
    retry = "safe" if status in (429, 503) else "never"
    await _send_json(send, status, {"error": {"kind": "BoxError", "text": why, "retry": retry}}, kind, wait_s)


async def _refuse(send: Send, status: int, why: str, wait_s: float = 0.0) -> None:
    await _answer(send, status, why, wait_s, "websocket.http.response")


async def _refuse_for(send: Send, error: HarenaError) -> None:
    await _send_json(send, status_of(error), {"error": error_out(error)}, "websocket.http.response")
