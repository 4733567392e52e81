"""The stream between a client and a node: it carries messages, each a JSON object and bytes. `messages` says what they
carry.

Neither side trusts the other: the size of a message is bounded before memory is allocated, that of an answer by what
was asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from harena.errors import WireError
from harena.sandbox.spec import MB
from harena.sandbox.strict_json import MAX_ANSWER_ITEMS, parse_json

HEAD = struct.Struct("<II")
MAX_TEXT = 20 * MB
"""Largest JSON object of a request."""
MAX_ANSWER_TEXT = 64 * MB
"""The same for an answer, which may have a value as large as the output of its execution."""
SMALL_TEXT = 64 * 1024
"""Maximum size of the JSON of an answer without lists or values."""
FILES_TEXT = 16 * MB + SMALL_TEXT
"""The same for an answer about files."""
MAX_ITEMS = 3_000_000
"""Commas and brackets of one JSON object of a request: a few bytes of JSON take a hundred in memory."""
MAX_REQUEST = 64 * MB
"""Most bytes beside the object of a request, the same as for a message to a box."""
MAX_ANSWER = 600 * MB
"""Most bytes beside the object of an answer: the output of a group of programs."""
AHEAD = 64 * 1024
"""Bytes to receive at once, so that a usual message takes one call."""
SEND_S = 30.0
SEND_BYTES_S = MB
"""The other side must take what is sent within SEND_S, and one second more for each SEND_BYTES_S bytes."""
Message = dict[str, Any]


class ByteStream(Protocol):
    """A connected stream of bytes. Raises OSError once it is lost."""

    def send(self, data: bytes, deadline: float | None) -> None:
        """Send all of it. Raises TimeoutError if the other side has not taken it at that monotonic time; then a part of
        it may be missing, and the stream is of no use any more."""
        ...

    def receive(self) -> bytes:
        """Return some bytes; b"" at the end of the stream."""
        ...

    def hang_up(self) -> None:
        """End the stream for both sides; whoever receives sees its end."""
        ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Close the copy in a forked child without ending the connection."""
        ...


class SocketStream:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, data: bytes, deadline: float | None) -> None:
        if deadline is None:
            self._sock.sendall(data)
            return
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._sock, select.POLLOUT)
                left = deadline - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    raise TimeoutError("the other side does not read") from None

    def receive(self) -> bytes:
        return self._sock.recv(AHEAD)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def abandon(self) -> None:
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)


class RequestDecoder:
    """Cuts the stream of a client into requests. Raises WireError for what is none."""

    def __init__(self, max_data: int) -> None:
        self._max_data = max_data
        self._parts: list[bytes] = []
        self._have = 0
        self._need = HEAD.size
        self._head: tuple[int, int] | None = None

    @property
    def waiting(self) -> bool:
        """True in the middle of a message."""
        return self._have > 0 or self._head is not None

    @property
    def held(self) -> int:
        """Bytes of an unfinished message that are in memory."""
        return self._have

    def feed(self, data: bytes) -> list[tuple[Message, bytes]]:
        found: list[tuple[Message, bytes]] = []
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return found
        buffer = memoryview(b"".join(self._parts))
        while len(buffer) >= self._need:
            body, buffer = buffer[: self._need], buffer[self._need :]
            if self._head is None:
                length, size = HEAD.unpack(body)
                if length > MAX_TEXT or size > self._max_data:
                    raise WireError("the other side announced a message that is too long")
                self._head, self._need = (length, size), length + size
            else:
                length, size = self._head
                found.append((parse(bytes(body[:length])), bytes(body[length:])))
                self._head, self._need = None, HEAD.size
        self._parts, self._have = [bytes(buffer)] if buffer else [], len(buffer)
        return found


def parse(text: bytes) -> Message:
    """Parse the JSON object of a request, of bounded size; NaN and infinities are refused."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_ITEMS:
        raise WireError("the other side sent a message with too many items")
    try:
        message = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the other side sent something else than JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise WireError("the other side sent something else than a message")
    return cast("Message", message)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def encode(message: Mapping[str, Any], data: bytes, max_data: int, max_text: int = MAX_ANSWER_TEXT) -> bytes:
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(text) > max_text or len(data) > max_data:
        raise WireError(f"a message of {len(text) + len(data)} bytes is too long")
    return b"".join((HEAD.pack(len(text), len(data)), text, data))


class Link:
    """One end of the stream. Any thread may send; one receives, either requests or answers."""

    def __init__(self, stream: ByteStream, *, max_sent: int, max_text: int, max_received: int) -> None:
        self._stream = stream
        self._max_text = max_text
        self._sending = threading.Lock()
        self._max_sent = max_sent
        self._max_received = max_received
        self._decoder = RequestDecoder(max_received)
        self._requests: deque[tuple[Message, bytes]] = deque()
        self._early = b""
        """What was received beyond the part of an answer that was asked for."""

    @classmethod
    def to_node(cls, stream: ByteStream) -> Link:
        """The end of a client."""
        return cls(stream, max_sent=MAX_REQUEST, max_text=MAX_TEXT, max_received=MAX_ANSWER)

    @classmethod
    def to_client(cls, stream: ByteStream) -> Link:
        """The end of a node."""
        return cls(stream, max_sent=MAX_ANSWER, max_text=MAX_ANSWER_TEXT, max_received=MAX_REQUEST)

    def send(self, message: Mapping[str, Any], data: bytes = b"", *, within_s: float | None = None) -> None:
        """Send a message. Raises OSError if the other side is gone, or has not taken it in time; then the rest of a
        message may be missing, and the link is of no use any more."""
        frame = encode(message, data, self._max_sent, self._max_text)
        if within_s is None:
            with self._sending:
                self._stream.send(frame, None)
            return
        within_s += len(frame) / SEND_BYTES_S
        deadline = time.monotonic() + within_s
        if not self._sending.acquire(timeout=within_s):
            raise TimeoutError("the other side does not read")
        try:
            self._stream.send(frame, deadline)
        finally:
            self._sending.release()

    def receive(self) -> tuple[Message, bytes] | None:
        """Receive a request of a client; None at the end of the stream."""
        while not self._requests:
            data = self._some()
            if not data:
                return None
            self._requests.extend(self._decoder.feed(data))
        return self._requests.popleft()

    def receive_answer(
        self, max_text: Callable[[], int], room: Callable[[Message], int]
    ) -> tuple[Message, bytes] | None:
        """Receive a message of a node; None at the end of the stream. `max_text` says how long its JSON may be, and
        `room` how many bytes may follow this message; it raises WireError for a message that nobody waits for."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        length, size = HEAD.unpack(head)
        if length > min(max_text(), MAX_ANSWER_TEXT) or size > self._max_received:
            raise WireError("the other side announced a message that is too long")
        text = self._exactly(length)
        if text is None:
            return None
        message = parse_json(text, MAX_ANSWER_ITEMS)
        if not isinstance(message, dict):
            raise WireError("the other side sent something else than a message")
        message = cast("Message", message)
        if size > room(message):
            raise WireError("the other side announced more bytes than were asked for")
        data = self._exactly(size)
        return None if data is None else (message, data)

    def _exactly(self, size: int) -> bytes | None:
        part, self._early = self._early, b""
        parts: list[bytes] = []
        while len(part) < size:
            parts.append(part)
            size -= len(part)
            part = self._some()
            if not part:
                return None
        parts.append(part[:size])
        self._early = part[size:]
        return b"".join(parts)

    def _some(self) -> bytes:
        try:
            return self._stream.receive()
        except OSError:
            return b""

    def hang_up(self) -> None:
        """End the conversation; whoever receives sees its end."""
        self._stream.hang_up()

    def close(self) -> None:
        self._stream.close()

    def abandon(self) -> None:
        """Close the copy in a forked child without ending the connection."""
        self._stream.abandon()
