"""The server name of TLS connections. Pure parsers with caps.

Only the handshake's beginning is in the clear: the ClientHello, and a second one if the server asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

from harena.network import policy
from harena.network.policy import Refused

MAX_HELLO, MAX_RECORDS = 1 << 14, 16
"""Bytes of a ClientHello with its records, and how many records. Those of browsers have 2 KiB in one."""
_HEAD = 5
"""Bytes of the head of a record: its type, version and length."""
_HANDSHAKE, _DATA = 22, 23


class _Cursor:
    """Reads a message from left to right. Raises Refused at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise Refused("a ClientHello that is cut short")
        self._at += count
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Cursor:
        return _Cursor(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    @property
    def left(self) -> bool:
        return self._at < len(self._data)


_EXT_SERVER_NAME, _EXT_EARLY_DATA, _EXT_ECH, _EXT_ESNI = 0, 42, 0xFE0D, 0xFFCE


class Hello(NamedTuple):
    name: str | None
    """The server name, or None if there is none."""
    early: bool
    """Whether data may follow before the server has answered."""


def split_hello(data: bytes) -> tuple[bytes, int] | None:
    """Return the body of a ClientHello and where the records that carry it end, or None if more must come."""
    message = bytearray()
    at = 0
    for _ in range(MAX_RECORDS):
        head = data[at : at + _HEAD]
        if head[:1] not in (b"", b"\x16") or head[1:2] not in (b"", b"\x03"):
            raise Refused("the first bytes are not TLS")
        if len(head) < _HEAD:
            return None
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= MAX_HELLO or at + _HEAD + length > MAX_HELLO:
            raise Refused("a TLS record of an impossible size, or a ClientHello of more than 16 KiB")
        part = data[at + _HEAD : at + _HEAD + length]
        message += part
        at += _HEAD + length
        if message and message[0] != 1:
            raise Refused("TLS that does not begin with a ClientHello")
        if len(message) >= 4:
            missing = 4 + int.from_bytes(message[1:4], "big") - len(message)
            if missing > MAX_HELLO:
                raise Refused("a ClientHello of more than 16 KiB")
            if missing < length - len(part):
                raise Refused("more than a ClientHello before the server's answer")
            if missing == 0:
                return bytes(message[4:]), at
        if len(part) < length:
            return None
    raise Refused("a ClientHello in more than 16 records")


def parse_hello(hello: bytes) -> Hello:
    """Read the body of a ClientHello. Raises Refused for what hides or doubles its server name."""
    cursor = _Cursor(hello)
    cursor.take(2 + 32)  # version, random
    cursor.vector(1)  # session
    cursor.vector(2)  # cipher suites
    cursor.vector(1)  # compression
    if not cursor.left:
        return Hello(None, early=False)
    extensions = cursor.vector(2)
    if cursor.left:
        raise Refused("a ClientHello with bytes behind its extensions")
    found: str | None = None
    seen: set[int] = set()
    while extensions.left:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind in seen:
            raise Refused("a ClientHello with an extension twice")
        seen.add(kind)
        if kind in (_EXT_ECH, _EXT_ESNI):
            raise Refused("a ClientHello that hides its server name (ECH)")
        if kind == _EXT_SERVER_NAME:
            found = _host_name(body)
    return Hello(found, early=_EXT_EARLY_DATA in seen)


def _host_name(body: _Cursor) -> str:
    names = body.vector(2)
    if body.left or names.number(1) != 0:
        raise Refused("a server name in an unknown form")
    raw = names.vector(2).rest()
    if names.left:
        raise Refused("more than one server name")
    name = policy.parse_host(raw.decode("ascii", "replace"))
    if not isinstance(name, str):
        raise Refused("a server name that is not a host name")
    return name


class TlsNames:
    """TLS to one name. The server may ask for a second ClientHello (RFC 8446, section 4.1.4), and some servers then
    answer for the name in that one: it is checked too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = b""
        self._early = False
        self._skip = 0
        """Bytes of the current record that are not looked at."""
        self._secret = False
        """Whether everything that follows is encrypted."""
        self.settled = False

    def feed(self, data: bytes) -> bytes:
        if self._secret:
            return data
        data, self._held = self._held + data, b""
        at = 0
        while at < len(data) and not self._secret:
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
            elif not self.settled or self._is_hello(data[at : at + _HEAD + 2]):
                found = split_hello(data[at : at + MAX_HELLO])
                if found is None:
                    break
                self._check(parse_hello(found[0]))
                at += found[1]
            elif not self._pass_record(data[at : at + _HEAD + 2]):
                break
        self._held = b"" if self._secret else data[at:]
        return data[: len(data) - len(self._held)]

    def _check(self, hello: Hello) -> None:
        if hello.name is None:
            raise Refused("TLS without a server name")
        if hello.name != self._name:
            raise Refused(f"TLS for another server name ({hello.name})")
        self._early = self._early or hello.early
        self.settled = True

    @staticmethod
    def _is_hello(start: bytes) -> bool:
        """Whether a record begins with a ClientHello. The encrypted end of a resumed TLS 1.2 handshake looks like one
        once in 65,000 times, and is then refused."""
        length = int.from_bytes(start[3:_HEAD], "big")
        known = start[_HEAD : _HEAD + length]
        return start[0] == _HANDSHAKE and known == b"\1\0"[:length] and bool(known)

    def _pass_record(self, start: bytes) -> bool:
        """Let a record through that does not begin a ClientHello. False if more must come."""
        kind, length = start[0], int.from_bytes(start[3:5], "big")
        if len(start) < _HEAD + (min(length, 2) if kind == _HANDSHAKE else 0):
            return False
        if length and (kind == _HANDSHAKE or (kind == _DATA and not self._early)):
            self._secret = True
        else:  # servers ignore empty records, and early data that they do not want
            self._skip = _HEAD + length
        return True
