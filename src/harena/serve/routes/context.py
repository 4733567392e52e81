"""What the REST paths share: threads by owner, errors and their statuses, streams of JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from harena.errors import (
    BoxClosed,
    BoxError,
    BoxFileError,
    BoxFileNotFound,
    BudgetExceeded,
    HarenaError,
    IsolationUnavailable,
    JournalError,
    QueueTimeout,
    Retry,
    SpecError,
    Unsupported,
)
from harena.node import messages, verbs
from harena.node.workers import Workers
from harena.sandbox.spec import Limits, Spec
from harena.serve.routes import models
from harena.sessions.errors import Conflict, FileChanged, NotFound, OutOfRange, error_out
from harena.sessions.operations import Feed
from harena.sessions.pools import UNSET, SessionClocks
from harena.sessions.service import Service
from harena.sessions.session import Session

THREADS = 256
"""Requests of one owner that are served at once."""
WAITING = 2048
"""Requests of one owner that wait for a thread; more are refused."""
CONTROL_THREADS = 16
"""The same for requests that end something: they must not wait behind what they end."""
ALIVE_S = 15.0
"""A stream without an event has an empty line this often, by which a client sees that the server is there."""
LINES = "application/x-ndjson"
T = TypeVar("T")

STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (BoxFileNotFound, 404),
    (FileChanged, 412),
    (OutOfRange, 416),
    (Conflict, 409),
    (BoxFileError, 409),
    (BudgetExceeded, 402),
    (JournalError, 507),
    (SpecError, 400),
    (Unsupported, 501),
    (BoxClosed, 410),
    (QueueTimeout, 503),
    (IsolationUnavailable, 503),
    (HarenaError, 502),
)
WHY = {
    400: "The request is wrong, or the server does not allow it.",
    401: "There is no token, or it is wrong.",
    402: "The budget of the owner is used up.",
    403: "The token lacks the scope.",
    404: "There is no such thing, or it belongs to another owner.",
    409: "The name or the id is taken by something else, or the box refuses.",
    410: "The session has ended.",
    412: "The file is no longer the one that If-Match names.",
    413: "The body is too large.",
    416: "The file does not have the bytes that Range names.",
    429: "Requests come too fast; Retry-After says when to try again.",
    501: "The server does not offer this.",
    502: "The box or the server failed.",
    503: "The server has no room now; try again later.",
    507: "The journals of the owner are full, or the disk that they are on.",
}


class Context:
    def __init__(self, service: Service) -> None:
        self.service = service
        self._workers: dict[str, Workers] = {}
        self._control: dict[str, Workers] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, request: Request) -> Context:
        return request.app.state.context

    def session(self, request: Request, session_id: str) -> Session:
        return self.service.session(owner_of(request), session_id)

    def workers(self, owner: str) -> Workers:
        """Threads of an owner, so that nobody waits for the requests of others."""
        with self._lock:
            if owner not in self._workers:
                self._workers[owner] = Workers("harena-rest", threads=THREADS, waiting=WAITING)
            return self._workers[owner]

    def _control_of(self, owner: str) -> Workers:
        with self._lock:
            if owner not in self._control:
                self._control[owner] = Workers("harena-rest-control", threads=CONTROL_THREADS, waiting=WAITING)
            return self._control[owner]

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        return await self.run_for(owner_of(request), work)

    async def end(self, request: Request, work: Callable[[], T]) -> T:
        """Run work that ends something, also while all threads of the owner are busy."""
        return await self._run_in(self._control_of(owner_of(request)), work)

    async def run_for(self, owner: str, work: Callable[[], T]) -> T:
        return await self._run_in(self.workers(owner), work)

    async def _run_in(self, workers: Workers, work: Callable[[], T]) -> T:
        """Run blocking work in a thread. It ends by itself, also when the client has gone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                method(value)

        def job() -> None:
            try:
                ended, value = future.set_result, work()
            except BaseException as error:
                ended, value = future.set_exception, error
            loop.call_soon_threadsafe(settle, ended, value)

        if not workers.run(job):
            raise BoxError("the server has too many requests; try again later", retry=Retry.SAFE)
        return await future


def owner_of(request: Request) -> str:
    return request.scope["harena.owner"]


def path_options(
    operation_id: str,
    model: type[models.Answer] | None,
    status: int = 200,
    *more: int,
    content: dict[str, Any] | None = None,
    lines: type[models.Answer] | None = None,
) -> dict[str, Any]:
    """What a path declares: its stable name, its answer (JSON, `lines` of JSON, or other `content`) and its errors.
    Answers are not validated on their way out; tests compare them with the document."""
    success: dict[str, Any] = {"description": ((model or lines or models.Bytes).__doc__ or "").split("\n")[0]}
    if model is not None:
        success["model"] = model
    if lines is not None:
        content = {LINES: {"schema": {"$ref": f"#/components/schemas/{lines.__name__}"}}}
    if content is not None:
        success["content"] = content
    errors = {code: {"model": models.FailureAnswer, "description": WHY[code]} for code in sorted({*ALWAYS, *more})}
    return {
        "response_class": Response if model is None else AsciiJson,
        "operation_id": operation_id,
        "status_code": status,
        "response_model": None,
        "responses": {status: success, **errors},
    }


ALWAYS = (400, 401, 402, 403, 404, 410, 413, 429, 502, 503, 507)
"""Errors that every path may answer with."""


class AsciiJson(JSONResponse):
    """JSON in ASCII: a command may hold half of a surrogate pair, which UTF-8 does not have."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def answer(value: dict[str, Any], status: int = 200) -> JSONResponse:
    return AsciiJson(value, status)


def status_of(error: Exception) -> int:
    if isinstance(error, BoxError) and error.retry is Retry.SAFE and not isinstance(error, JournalError):
        return 503
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def failure(error: Exception) -> JSONResponse:
    return AsciiJson({"error": error_out(error)}, status_of(error))


def contents(spec: dict[str, Any] | None, limits: dict[str, Any] | None) -> tuple[Spec | None, Limits | None]:
    """Check the fields of a spec and of limits."""
    if spec is not None and not verbs.record(verbs.SPEC)(spec):
        raise SpecError(f"spec: give exactly {', '.join(verbs.SPEC)}, each of its type")
    if limits is not None and not verbs.LIMITS(limits):
        raise SpecError(f"limits: give exactly {', '.join(Limits.__dataclass_fields__)}")
    return None if spec is None else messages.spec_in(spec), None if limits is None else Limits(**limits)


def clocks_of(body: models.NewPool | models.NewSession) -> SessionClocks:
    """Clocks that a body gives. Null is no clock; one that is left out is up to the pool or the server."""
    given = body.model_fields_set
    return SessionClocks(
        idle_s=body.idleSeconds if "idleSeconds" in given else UNSET,
        lifetime_s=body.lifetimeSeconds if "lifetimeSeconds" in given else UNSET,
        allocation_s=body.allocationSeconds,
    )


# ---- streams of JSON lines ----


class Bell:
    """Rung in any thread, heard by one task."""

    def __init__(self) -> None:
        self._loop, self._rung = asyncio.get_running_loop(), asyncio.Event()

    def ring(self) -> None:
        if not self._rung.is_set():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._rung.set)

    async def follow(self, take: Callable[[], tuple[list[T], bool]]) -> AsyncIterator[list[T]]:
        """Yield what `take` finds after each ring, until it says that this was all; an empty list when nothing has
        come for a while."""
        while True:
            self._rung.clear()
            found, ended = take()
            if found:
                yield found
            if ended:
                return
            try:
                async with asyncio.timeout(ALIVE_S):
                    await self._rung.wait()
            except TimeoutError:
                yield []


async def events(feed: Feed, after: int) -> AsyncIterator[list[dict[str, Any]]]:
    """Events after a number, as they come."""
    bell, seen = Bell(), after

    def take() -> tuple[list[dict[str, Any]], bool]:
        nonlocal seen
        found, ended = feed.after(seen)
        seen = found[-1]["number"] if found else seen
        return found, ended

    stop = feed.listen(bell.ring)
    try:
        async for found in bell.follow(take):
            yield found
    finally:
        stop()


def stream_events(feed: Feed, after: int) -> StreamingResponse:
    if after > feed.last:
        raise SpecError(f"after={after}: the operation has {feed.last} events so far")

    async def lines() -> AsyncIterator[bytes]:
        async for found in events(feed, after):
            yield b"".join(map(json_line, found)) or b"\n"

    return StreamingResponse(lines(), media_type=LINES)


def json_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
