"""Server-sent events out of bytes as they come. Guarantees: never keeps more than MAX_EVENT bytes, however long a line
or an event is made; a line may be cut anywhere between two pieces. Does not read from anywhere: it is fed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harena.client.errors import BadAnswer

MAX_EVENT = 4 << 20
"""Bytes of one event, with its names. A frame of a large game is below a tenth of it."""
MAX_ID = 64


@dataclass(frozen=True, slots=True)
class ServerEvent:
    event: str
    data: str
    id: str


class Parser:
    def __init__(self) -> None:
        self._rest = bytearray()
        self._seen = 0
        """Bytes of the rest in which no line ends."""
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        self.last_id = ""
        """To go on after it: the Last-Event-ID of the next request."""

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        self._rest += piece
        while (at := self._rest.find(b"\n", self._seen)) >= 0:
            line = bytes(self._rest[:at])
            del self._rest[: at + 1]
            self._seen = 0
            if (found := self._line(line.removesuffix(b"\r"))) is not None:
                yield found
        self._seen = len(self._rest)
        self._check(self._seen)

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._end()
        self._check(len(line))
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        match name:
            case b"data":
                self._data.append(text)
                self._size += len(line) + 1
            case b"event":
                self._event = text
            case b"id" if len(text) <= MAX_ID and text.isascii() and text.isprintable():
                self.last_id = text  # it goes into a header
            case _:
                pass  # a comment keeps the connection alive; other fields are not for us
        return None

    def _end(self) -> ServerEvent | None:
        data, event = self._data, self._event or "message"
        self._data, self._event, self._size = [], "", 0
        return ServerEvent(event, "\n".join(data), self.last_id) if data else None

    def _check(self, more: int) -> None:
        if self._size + more > MAX_EVENT:
            raise BadAnswer(f"an event of more than {MAX_EVENT} bytes")
