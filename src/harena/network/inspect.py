"""Reads what a guest sends: to whom does this connection speak? Pure parsers with caps; nothing here connects.

A connection to a name is checked against that name: the server name of TLS (`tls`), and the Host of every plain HTTP
request. A server that answers for many names must not be asked for another one. What TLS carries inside cannot be seen,
and is not checked.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from harena.network import policy
from harena.network.policy import Refused
from harena.network.tls import TlsNames
from harena.sandbox.network import Address

MAX_HEAD = 1 << 15
"""Bytes of an HTTP request line with its headers."""
MAX_LINE = 1024
"""Bytes of the line before a chunk, or of a trailer."""
TLS_PORT, HTTP_PORT = 443, 80
METHODS = (
    *("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "PRI"),
    *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "MERGE", "CHECKOUT", "MKACTIVITY"),
)
"""By which HTTP is recognised. Requests with other methods are refused, except on port 80."""


class Inspector(Protocol):
    """Sees every byte that the guest sends, and says what may go on."""

    def feed(self, data: bytes) -> bytes:
        """Return what may be sent now. Raises Refused."""
        ...

    @property
    def settled(self) -> bool:
        """False as long as nothing may be sent because too little has come."""
        ...


class Anything:
    """The address itself is allowed: all bytes are."""

    settled = True

    def feed(self, data: bytes) -> bytes:
        return data


# ---- HTTP ----


class Head(NamedTuple):
    """Head of a request: its first line in parts, and its headers with names in lower case."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_BEGINNING = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}( |\Z)")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
"""Each byte can match in one way only, so that no header takes long. White space is stripped afterwards."""


def split_head(data: bytes) -> tuple[Head, int] | None:
    """Return the first head and where it ends, or None if more must come. Stricter than most servers: two readers of
    the same bytes must not see different requests."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        if len(data) >= MAX_HEAD:
            raise Refused("an HTTP head of more than 32 KiB")
        if not _BEGINNING.match(data):
            raise Refused("not a request line of HTTP/1")
        return None
    first, *lines = data[:end].split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise Refused("not a request line of HTTP/1")
    headers: list[tuple[str, str]] = []
    for text in lines:
        header = _HEADER.fullmatch(text)
        if header is None:
            raise Refused("a malformed HTTP header")
        headers.append((header[1].decode("ascii").lower(), header[2].strip(b" \t").decode("latin-1")))
    method, target = line[1].decode("ascii"), line[2].decode("ascii")
    return Head(method, target, f"1.{line[3].decode()}", tuple(headers)), end + 4


def split_authority(text: str, default: int | None) -> tuple[Address | str, int]:
    """Split host:port. Raises Refused."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, port = text, "" if default is None else str(default)
    where = policy.parse_host(host)
    if where is None or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise Refused("not a host and a port")
    return where, int(port)


def body_length(head: Head) -> int | None:
    """Return the length of the body in bytes; None if it comes in chunks. Raises Refused where readers may differ."""
    lengths, codings = head.all("content-length"), head.all("transfer-encoding")
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != "chunked" or head.version != "1.1":
            raise Refused("an HTTP request whose length can be read in two ways")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
        raise Refused("an HTTP request whose length can be read in two ways")
    return int(lengths[0])


class _HttpBody:
    """Follows the body of a request."""

    def __init__(self, length: int | None) -> None:
        self._chunked = length is None
        self._left = length or 0
        self._line = b""
        self._state = "size" if self._chunked else "data"

    @property
    def ended(self) -> bool:
        return self._state == "end" or (not self._chunked and self._left == 0)

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body."""
        at = 0
        while at < len(data) and not self.ended:
            if self._state == "data":
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                if self._chunked and not self._left:
                    self._state = "gap"
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            at = end or len(data)
            if len(self._line) > MAX_LINE or (end and not self._line.endswith(b"\r\n")):
                raise Refused("a malformed HTTP chunk")
            if end:
                self._end_line()
        return at

    def _end_line(self) -> None:
        line, self._line = self._line[:-2], b""
        if self._state == "gap":
            if line:
                raise Refused("a malformed HTTP chunk")
            self._state = "size"
        elif self._state == "size":
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", line):
                raise Refused("a malformed HTTP chunk")
            self._left = int(line, 16)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self._state = "end"
        elif not _HEADER.fullmatch(line):
            raise Refused("a malformed HTTP trailer")


class Http:
    """Plain HTTP/1 to one name: every request must be for it."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._port = port
        self._held = b""
        self._body: _HttpBody | None = None
        self.settled = False

    def feed(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        out = bytearray()
        while data:
            if self._body is None:
                found = split_head(data)
                if found is None:
                    self._held = data
                    break
                head, end = found
                self._check(head)
                self._body = _HttpBody(body_length(head))
                self.settled = True
                out += data[:end]
                data = data[end:]
            else:
                end = self._body.take(data)
                out += data[:end]
                data = data[end:]
            if self._body.ended:
                self._body = None
        return bytes(out)

    def _check(self, head: Head) -> None:
        hosts = head.all("host")
        if head.method in ("CONNECT", "PRI"):
            raise Refused(f"the method {head.method} over plain HTTP")
        if head.all("upgrade"):
            raise Refused("an upgrade of plain HTTP to another protocol")
        if len(hosts) != 1:
            raise Refused("an HTTP request without exactly one Host")
        if split_authority(hosts[0], self._port) != (self._name, self._port):
            raise Refused("an HTTP request for another host")
        if not head.target.startswith("/") and head.target != "*":
            authority = _absolute(head.target)
            if authority is None or split_authority(authority[0], self._port) != (self._name, self._port):
                raise Refused("an HTTP request for another host")


def _absolute(target: str) -> tuple[str, str] | None:
    """Split http://authority/path."""
    found = re.fullmatch(r"http://([^/?#@\\]+)(/[^#]*|\?[^#]*|)", target, re.IGNORECASE)
    return None if found is None else (found[1], found[2])


# ---- connections to a name ----

_STARTS = tuple(f"{method} ".encode() for method in METHODS)
_RECORDS = (b"\x16", *(bytes([kind, 3]) for kind in range(20, 25)))
"""How TLS begins. Some servers ignore an alert in front of a ClientHello, which `TlsNames` refuses."""


class Named:
    """A connection to a name: TLS, plain HTTP, or (on other ports than theirs) a protocol that is not known here."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._port = port
        self._held = b""
        self._then: Inspector | None = None

    @property
    def settled(self) -> bool:
        return self._then is not None and self._then.settled

    def feed(self, data: bytes) -> bytes:
        if self._then is None:
            data, self._held = self._held + data, b""
            self._then = self._recognise(data)
            if self._then is None:
                self._held = data
                return b""
        return self._then.feed(data)

    def _recognise(self, data: bytes) -> Inspector | None:
        """Return what inspects this protocol, or None if more must come."""
        if data.startswith(_RECORDS) or self._port == TLS_PORT:
            return TlsNames(self._name)
        if data.startswith(_STARTS) or self._port == HTTP_PORT:
            return Http(self._name, self._port)
        if any(start.startswith(data) for start in (*_STARTS, *_RECORDS)):
            return None
        return _Unknown()


class _Unknown:
    """A protocol that is not known here. It must not be HTTP in disguise: servers accept empty lines in front of a
    request, and methods that are not in METHODS."""

    settled = True

    def __init__(self) -> None:
        self._line = b""
        self._empty = self._first = True

    def feed(self, data: bytes) -> bytes:
        at = 0
        while self._first and at < len(data):
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            at = end or len(data)
            if b"HTTP/" in self._line.upper():
                raise Refused("an HTTP request in an unusual form")
            self._empty = self._empty and not self._line.strip()
            self._first = not end or self._empty
            self._line = b"" if end else self._line[-4:]
        return data


def waits_for_guest(port: int) -> bool:
    """Whether the guest speaks first on this port, so that nothing is connected before it has said to whom."""
    return port in (TLS_PORT, HTTP_PORT)


# ---- requests to the proxy ----


class ProxyRequest(NamedTuple):
    where: Address | str
    port: int
    tunnel: bool
    """CONNECT; otherwise a request in absolute form."""
    rest: bytes
    """What the guest sent behind it, or the request as the server shall see it."""


_HOP = {"proxy-connection", "proxy-authorization", "connection", "keep-alive", "te", "upgrade"}


def proxy_request(data: bytes) -> ProxyRequest | None:
    """Parse the head of a request to the proxy. None if more must come. Raises Refused."""
    found = split_head(data)
    if found is None:
        return None
    head, end = found
    if head.method == "CONNECT":
        where, port = split_authority(head.target, None)
        return ProxyRequest(where, port, True, data[end:])
    absolute = _absolute(head.target)
    if absolute is None:
        raise Refused("a request to the proxy without an absolute http:// address")
    where, port = split_authority(absolute[0], HTTP_PORT)
    hosts = head.all("host")
    if len(hosts) > 1 or (hosts and split_authority(hosts[0], HTTP_PORT) != (where, port)):
        raise Refused("an HTTP request for another host")
    path = absolute[1] if absolute[1].startswith("/") else f"/{absolute[1]}"
    named = {name.strip().lower() for value in head.all("connection") for name in value.split(",")}
    dropped = (_HOP | named | {"host"}) - {"content-length", "transfer-encoding"}
    lines = [f"{head.method} {path} HTTP/{head.version}", f"Host: {absolute[0]}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in head.headers if name not in dropped]
    return ProxyRequest(where, port, False, "\r\n".join([*lines, "", ""]).encode("latin-1") + data[end:])


class OneRequest:
    """A single request through the proxy: what follows its body goes nowhere, for it may be for another host."""

    settled = True

    def __init__(self, head: bytes) -> None:
        found = split_head(head)
        if found is None:
            raise Refused("not a request line of HTTP/1")
        self._head = found[1]
        self._body = _HttpBody(body_length(found[0]))

    def feed(self, data: bytes) -> bytes:
        out, data = data[: self._head], data[self._head :]
        self._head -= len(out)
        return out + data[: self._body.take(data)]
