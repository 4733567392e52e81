"""The connection of one client: a WebSocket whose bytes are requests to a node and its answers.

Guarantees: a client that sends nonsense, floods or stops reading is disconnected; what a client holds ends with its
connection; at most OUT_BYTES of answers wait in memory, besides those of the requests that are being served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Send

from harena.errors import BoxError, WireError
from harena.node import link
from harena.node.link import Message, RequestDecoder
from harena.node.node import Node
from harena.node.rules import OwnerQuota, Rules
from harena.sandbox.backend import Backend

PIECE = 1 << 18
"""Bytes of one WebSocket message that we send."""
MAX_PIECE = 1 << 20
"""Largest WebSocket message that we accept."""
OUT_BYTES = 8 << 20
STALLED_S = 30.0
"""A client that does not read a piece, or does not finish a message that it began, within this time is gone."""
REFUSED = 1008
"""WebSocket's code for a client that broke the rules."""

log = logging.getLogger("harena.serve")


class Gone(OSError):
    """The client is disconnected."""


class Outbox:
    """Answers on their way to the client. Threads put them in; a task of the event loop sends them."""

    def __init__(self, *, stalled_s: float = STALLED_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._changed = threading.Condition()
        self._frames: list[bytes] = []
        self._size = 0
        self._woken = False
        self._closed = False
        self._stalled_s = stalled_s

    def send(self, message: Message, data: bytes = b"", /) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._size < OUT_BYTES)
            if self._closed:
                raise Gone("the client has gone")
            self._size += len(data)
        try:
            frame = link.encode(message, data, link.MAX_ANSWER)
        except BaseException:
            with self._changed:
                self._size -= len(data)
            raise
        with self._changed:
            self._frames.append(frame)
            self._size += len(frame) - len(data)
            wake, self._woken = not self._woken, True
        if wake:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._filled.set)

    async def drain(self, send: Send) -> None:
        """Send until the client is gone or does not read."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            with self._changed:
                frames, self._frames, self._woken = self._frames, [], False
            data = memoryview(b"".join(frames))
            del frames
            for start in range(0, len(data), PIECE):
                piece = bytes(data[start : start + PIECE])
                async with asyncio.timeout(self._stalled_s):
                    await send({"type": "websocket.send", "bytes": piece})
                with self._changed:
                    self._size -= len(piece)
                    self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._frames.clear()
            self._changed.notify_all()


async def serve_client(
    receive: Receive,
    send: Send,
    rules: Rules,
    quota: OwnerQuota,
    status: Callable[[], tuple[int, bool]],
    served: Backend,
) -> None:
    """Serve an accepted connection until its end. `status`: the boxes of the server, and whether it is stopping.
    `served`: the backend that makes the boxes."""
    out = Outbox()
    node = Node(out.send, served, rules=rules, quota=quota, status=status)
    sending, reading = asyncio.create_task(out.drain(send)), asyncio.create_task(_read(receive, node, quota))
    why = ""
    try:
        done, _ = await asyncio.wait({sending, reading}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            why = _reason(task.exception())
    finally:
        out.close()
        for task in (sending, reading):
            task.cancel()
        await asyncio.gather(sending, reading, return_exceptions=True)
        await asyncio.shield(asyncio.to_thread(node.shut_down))
    if why:
        log.warning("a client was disconnected: %s", why)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await send({"type": "websocket.close", "code": REFUSED, "reason": why[:100]})


def _reason(error: BaseException | None) -> str:
    if isinstance(error, WireError | BoxError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it stopped reading, or did not finish a message"
    if error is not None and type(error).__name__ != "ClientDisconnected":
        log.error("the connection of a client failed", exc_info=error)
    return ""


async def _read(receive: Receive, node: Node, quota: OwnerQuota) -> None:
    decoder = RequestDecoder(link.MAX_REQUEST)
    held = 0
    try:
        while True:
            async with asyncio.timeout(STALLED_S if decoder.waiting else None):
                event: Any = await receive()
            if event["type"] == "websocket.disconnect":
                return
            data = event.get("bytes")
            if not data:
                raise WireError("a message without bytes")
            for message, body in decoder.feed(data):
                node.take(message, body)
            more, held = decoder.held - held, decoder.held
            if more < 0:
                quota.give_back("bytes of requests", -more)
            elif more:
                held -= more
                quota.take("bytes of requests", more)
                held += more
    finally:
        quota.give_back("bytes of requests", held)
