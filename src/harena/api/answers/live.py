"""Server-sent events: what happened, told while it happens.

Guarantees: an open stream gets every event of its topics that the hub hears of, in order and once, and after a break
all that it missed, or a `reset` when that is too much; a reader that does not keep up gets a `reset` and reads again; a
stream ends with its client and with the server. No stream ever blocks the event loop, and there are never more than the
limits allow. The bodies are those of the events table, which holds nothing secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from harena.api.answers import views
from harena.api.http.errors import ApiError
from harena.api.http.metrics import Metrics
from harena.arena.arena import Arena
from harena.arena.db.events import EventNotice
from harena.arena.events.bus import MAX_FRAMES, RESET, frames_topic
from harena.http.limits import RequestLimits

HEARTBEAT_S = 15.0
MAX_WAITING = 500
MAX_MISSED = 1000
MAX_TOPICS = 50
FIRST = b"retry: 1000\n\n"
HEARTBEAT = b": still here\n\n"
RESET_EVENT = b"event: reset\ndata: {}\n\n"
LOOK_S = 1.0


class ClientStream:
    """What waits to be sent to one client. Filled from any thread, emptied by the loop it was made in."""

    def __init__(self, topics: Collection[str]) -> None:
        self.topics = frozenset(topics)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Any] = deque()
        self._lock = threading.Lock()
        self._more = asyncio.Event()
        self.closed = False

    def put(self, item: Any) -> None:
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.clear()
                self._waiting.append(None)  # a reset
            self._waiting.append(item)
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the stream with it
            self._loop.call_soon_threadsafe(self._more.set)

    async def get(self, timeout_s: float) -> list[Any]:
        """All that waits; None among it stands for a reset. Empty: nothing came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._more.wait()
        except TimeoutError:
            return []
        self._more.clear()
        with self._lock:
            items = list(self._waiting)
            self._waiting.clear()
        return items


class Live:
    """The open streams of one app."""

    def __init__(self, arena: Arena, limits: RequestLimits, metrics: Metrics) -> None:
        self._arena = arena
        self._limits = limits
        self._metrics = metrics
        self._lock = threading.Lock()
        self._streams: dict[str, set[ClientStream]] = {}
        self._open: set[ClientStream] = set()
        self._of_address: Counter[str] = Counter()
        self._watches: dict[str, _LiveMatch] = {}
        self._closed = False
        self._remove = arena.hub.add_listener(self._told)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends all streams: call it when the server begins to stop, which otherwise waits for them."""
        self._remove()
        with self._lock:
            self._closed = True
            streams = list(self._open)
        for stream in streams:
            stream.close()

    @contextlib.contextmanager
    def opened(self, topics: Collection[str], address: str) -> Generator[ClientStream]:
        """A stream for as long as the block lasts. Raises ApiError when there are too many."""
        stream = ClientStream(topics)
        with self._lock:
            self._check(address)
            self._open.add(stream)
            self._of_address[address] += 1
            for topic in stream.topics:
                self._streams.setdefault(topic, set()).add(stream)
        self._metrics.streams.inc()
        try:
            yield stream
        finally:
            self._metrics.streams.dec()
            with self._lock:
                self._open.discard(stream)
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]
                for topic in stream.topics:
                    group = self._streams.get(topic, set())
                    group.discard(stream)
                    if not group:
                        self._streams.pop(topic, None)

    def _check(self, address: str) -> None:
        if self._closed:
            raise ApiError(503, "stopping", "the server is stopping", hint="try again in a few seconds")
        limits = self._limits
        if len(self._open) >= limits.streams or self._of_address[address] >= limits.streams_per_address:
            raise ApiError(
                429,
                "too_many_streams",
                "too many open event streams",
                hint="close some, or poll instead",
                headers={"Retry-After": "10"},
            )

    def _told(self, notice: EventNotice) -> None:
        """Take a notice. Called by the hub's thread."""
        with self._lock:
            streams = list(self._streams.get(notice.topic, ()))
        for stream in streams:
            stream.put(notice)

    # ---- what a client reads ----

    async def events(
        self, topics: Collection[str], address: str, after: int | None, visible: Callable[[], Collection[str]]
    ) -> AsyncGenerator[bytes]:
        """Stream events from now on, or from after the event of that number. `visible` returns the topics that the
        reader may have at that moment."""
        with self.opened(topics, address) as stream:
            yield FIRST
            last = 0
            if after is not None:  # after the stream was opened, so that nothing falls between
                for notice in await run_in_threadpool(lambda: self._missed(visible(), after)):
                    if notice is None:
                        yield RESET_EVENT
                    else:
                        last = notice.number
                        yield encoded(notice)
            while not stream.closed:
                items = await stream.get(HEARTBEAT_S)
                fresh = [item for item in items if item is None or item.number > last]
                if fresh:
                    now = await run_in_threadpool(visible)
                    fresh = [item for item in fresh if item is None or item.topic in now]
                if not items:
                    yield HEARTBEAT if not stream.closed else b""
                for item in fresh:
                    yield RESET_EVENT if item is None else encoded(item)

    def _missed(self, topics: Collection[str], after: int) -> list[EventNotice | None]:
        store = self._arena.store
        if after > store.events.last() or after + 1 < store.events.first():
            return [None]
        missed = store.events.after(after, topics=topics, limit=MAX_MISSED)
        return [None] if len(missed) >= MAX_MISSED else list(missed)

    async def frames(self, match_id: str, address: str) -> AsyncGenerator[bytes]:
        """Stream the frames of a running match: those so far, then each as it is played, then `finished`."""
        with self.opened((), address) as stream:
            yield FIRST
            watch = self._watch(match_id, stream)
            try:
                while not stream.closed:
                    items = await stream.get(HEARTBEAT_S)
                    if not items:
                        yield HEARTBEAT if not stream.closed else b""
                    for item in items:
                        yield RESET_EVENT if item is None else item
                        if item is _FINISHED:
                            return
            finally:
                watch.leave(stream)

    def _watch(self, match_id: str, stream: ClientStream) -> _LiveMatch:
        with self._lock:
            watch = self._watches.get(match_id)
            if watch is None or not watch.join(stream):
                watch = self._watches[match_id] = _LiveMatch(self._arena, match_id, self._unwatch)
                watch.join(stream)
                watch.start()
        return watch

    def _unwatch(self, match_id: str, watch: _LiveMatch) -> None:
        with self._lock:
            if self._watches.get(match_id) is watch:
                del self._watches[match_id]


_FINISHED = b"event: finished\ndata: {}\n\n"


class _LiveMatch:
    """One thread for each running match that somebody watches, however many do."""

    def __init__(self, arena: Arena, match_id: str, ended: Callable[[str, _LiveMatch], None]) -> None:
        self._arena = arena
        self._match_id = match_id
        self._ended = ended
        self._lock = threading.Lock()
        self._frames: deque[bytes] = deque(maxlen=MAX_FRAMES)
        self._viewers: set[ClientStream] = set()
        self._over = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="harena-watch", daemon=True).start()

    def join(self, stream: ClientStream) -> bool:
        """Whether it still runs. The newcomer gets what the others have seen."""
        with self._lock:
            if self._over:
                return False
            self._viewers.add(stream)
            if self._frames:
                stream.put(b"".join(self._frames))
            return True

    def leave(self, stream: ClientStream) -> None:
        with self._lock:
            self._viewers.discard(stream)

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            with self._lock:
                self._over = True
                viewers = list(self._viewers)
            self._ended(self._match_id, self)
            for viewer in viewers:
                viewer.put(_FINISHED)

    def _follow(self) -> None:
        hub = self._arena.hub
        with hub.subscribe([frames_topic(self._match_id), f"match:{self._match_id}"]) as news:
            so_far = hub.frames(self._match_id)
            self._send([frame_event(frame) for frame in so_far])
            running = self._arena.store.matches.get(self._match_id).finished_at is None
            while running and self._wanted():
                fresh: list[bytes] = []
                for notice in news.get(LOOK_S):
                    if notice.kind == RESET:
                        so_far = hub.frames(self._match_id)
                        fresh = [RESET_EVENT, *map(frame_event, so_far)]
                    elif notice.kind == "frame" and not any(notice.body is frame for frame in so_far):
                        fresh.append(frame_event(notice.body))
                    elif notice.kind == "finished":
                        running = False
                self._send(fresh)

    def _wanted(self) -> bool:
        """Once it is not, nobody joins any more."""
        with self._lock:
            self._over = all(viewer.closed for viewer in self._viewers)
            return not self._over

    def _send(self, events: list[bytes]) -> None:
        if not events:
            return
        with self._lock:
            if events[0] is RESET_EVENT:
                self._frames.clear()
            self._frames.extend(events)
            for viewer in self._viewers:
                viewer.put(b"".join(events))


def encoded(notice: EventNotice) -> bytes:
    """The kinds are ours; data is JSON, which has no line breaks."""
    return b"id: %d\ndata: %b\n\n" % (notice.number, msgspec.json.encode(views.notice(notice)))


def frame_event(frame: dict[str, Any]) -> bytes:
    return b"event: frame\ndata: %b\n\n" % msgspec.json.encode(frame)


class EventStream(Response):
    """Sends what a generator yields until it ends or the client is gone, whichever is first."""

    def __init__(self, source: AsyncGenerator[bytes]) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._source = source
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            try:
                await sending
            except asyncio.CancelledError:
                pass
            finally:
                await self._source.aclose()

    async def _send(self, send: Send) -> None:
        first = await anext(self._source)  # one stream too many is refused here, before the answer begins
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for chunk in self._source:
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
