"""Actor that holds the boxes of one client on one node of a Ray cluster. It ends with the client, and so do its boxes.

Its methods carry bytes: pieces of the stream of `harena.node.link`, whose messages both sides check. No object that a
guest made is given to Ray.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from harena.errors import WireError
from harena.node import link
from harena.node.link import Message, RequestDecoder
from harena.node.node import Node

PIECE = 1 << 20
"""Most bytes that the actor sends at once."""
OUT_BYTES = 8 << 20
"""Answers that wait for the client; whoever has more waits."""


class BoxActor:
    def __init__(self, cores: int) -> None:
        self._node = Node(self._send, cores=cores)
        self._decoder = RequestDecoder(link.MAX_REQUEST)
        self._changed = threading.Condition()
        self._frames: list[bytes] = []
        self._size = 0
        self._next = 0

    def feed(self, number: int, data: bytes) -> None:
        """Take the next piece of the client's stream."""
        if number != self._next:
            raise WireError(f"piece {number} of the stream came in place of {self._next}")
        self._next += 1
        for message, body in self._decoder.feed(data):
            self._node.take(message, body)

    def answers(self) -> Iterator[bytes]:
        """Yield the pieces of the node's stream, each as soon as there is something to send."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frames)
                data = memoryview(b"".join(self._frames))
                self._frames.clear()
                self._size = 0
                self._changed.notify_all()
            for start in range(0, len(data), PIECE):
                yield bytes(data[start : start + PIECE])

    def _send(self, message: Message, data: bytes = b"", /) -> None:
        frame = link.encode(message, data, link.MAX_ANSWER)
        with self._changed:
            self._changed.wait_for(lambda: self._size < OUT_BYTES)
            self._frames.append(frame)
            self._size += len(frame)
            self._changed.notify_all()
