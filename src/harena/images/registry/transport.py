"""One HTTP exchange with a checked address.

Guarantees: names are resolved once, and the address that was checked is the one that is connected to; a peer that sends
slowly, endlessly or not at all is given up on after a bounded time; certificates are always verified.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import io
import ipaddress
import select
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harena.images.errors import ImageCancelled, RegistryError

LOOPBACK, LINK_LOCAL, OTHER = "loopback", "link-local", "other"
NOTICE_S = 0.25
"""Longest time until a waiting thread notices that its pull was cancelled."""
MAX_URL = 16 << 10
MAX_PROXY_ANSWER = 16 << 10
USER_AGENT = "harena"


@dataclass(frozen=True, slots=True)
class TransportPatience:
    """How long to wait for a registry."""

    connect_s: float = 15.0
    idle_s: float = 30.0
    """Longest silence within an answer."""
    small_s: float = 60.0
    """Longest time for a whole manifest, config or token."""
    window_s: float = 30.0
    min_rate: int = 16 << 10
    """Bytes per second that a layer must come at, on average over `window_s`. A slower answer is cut and resumed."""
    attempts: int = 5
    """Tries in a row without progress."""
    backoff_s: float = 0.5
    longest_wait_s: float = 60.0
    """Longest Retry-After that is honoured; a longer one ends the pull with a message."""


class Transient(RegistryError):
    """The same request may succeed later."""

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str
    host: str
    port: int
    path: str
    """Path of the request, with the query."""

    @classmethod
    def parse(cls, text: str) -> Url:
        if len(text) > MAX_URL or any(not 32 < ord(letter) < 127 for letter in text):
            raise RegistryError("the registry named a URL that is too long or has unprintable characters")
        try:
            parts = urllib.parse.urlsplit(text)
            port = parts.port
        except ValueError:
            raise RegistryError(f"the registry named an invalid URL: {text!r:.120}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise RegistryError(f"the registry named a URL that cannot be used: {text!r:.120}")
        path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)

    def join(self, location: str) -> Url:
        return Url.parse(urllib.parse.urljoin(str(self), location))

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"


@dataclass(frozen=True, slots=True)
class Proxy:
    url: str = ""
    exceptions: str = ""

    def for_url(self, url: Url) -> urllib.parse.SplitResult | None:
        if not self.url or url.scheme != "https" or is_loopback_name(url.host):
            return None
        if any(_is_below(url, name) for name in self.exceptions.replace(",", " ").split()):
            return None
        text = self.url if "://" in self.url else f"http://{self.url}"
        try:
            parts = urllib.parse.urlsplit(text)
            if parts.scheme == "http" and parts.hostname:
                _ = parts.port
                return parts
        except ValueError:
            pass
        raise RegistryError("HTTPS_PROXY is not a URL such as http://proxy.example:3128: correct it or unset it")


def _is_below(url: Url, name: str) -> bool:
    """Whether NO_PROXY means a URL by this name: a host, a domain with all below it, or * for everything."""
    host, _, port = name.lower().removeprefix("*").removeprefix(".").partition(":")
    if name == "*":
        return True
    return bool(host) and (url.host == host or url.host.endswith(f".{host}")) and port in ("", str(url.port))


class AnswerClock:
    """Clock of one answer: an end, and a minimum rate while waiting for the peer."""

    def __init__(
        self,
        patience: TransportPatience,
        *,
        total_s: float,
        min_rate: int = 0,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._patience, self._min_rate, self._is_cancelled = patience, min_rate, is_cancelled
        self._ends_at = time.monotonic() + total_s
        self._waited_s, self._received = 0.0, 0

    def timeout_s(self) -> float:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise Transient("the registry takes too long to answer")
        return min(left, self._patience.idle_s)

    def wait_readable(self, sock: socket.socket) -> None:
        """Wait for bytes, and notice a cancellation meanwhile. Raise TimeoutError after too long a silence."""
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return
        ends_at = time.monotonic() + self.timeout_s()
        while True:
            if self._is_cancelled():
                raise ImageCancelled("cancelled")
            left = ends_at - time.monotonic()
            if left <= 0:
                raise TimeoutError
            poll = select.poll()  # not select, which fails for descriptors above 1023
            poll.register(sock, select.POLLIN)
            if poll.poll(min(left, NOTICE_S) * 1000):
                return

    def received(self, count: int, waited_s: float) -> None:
        self._waited_s += waited_s
        self._received += count
        if self._waited_s < self._patience.window_s:
            return
        if self._received < self._min_rate * self._waited_s:
            raise Transient(f"the registry sends fewer than {self._min_rate} bytes a second")
        self._waited_s, self._received = 0.0, 0


class _Raw(io.RawIOBase):
    def __init__(self, sock: socket.socket, pace: AnswerClock) -> None:
        super().__init__()
        self._sock, self._pace = sock, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        started = time.monotonic()
        self._pace.wait_readable(self._sock)
        self._sock.settimeout(self._pace.timeout_s())
        count = self._sock.recv_into(buffer)
        self._pace.received(count, time.monotonic() - started)
        return count

    def close(self) -> None:
        if not self.closed:
            self._sock.close()
        super().close()


class _PacedSocket:
    """The part of a socket that http.client uses. The answer's reader closes it."""

    def __init__(self, sock: socket.socket, pace: AnswerClock) -> None:
        self._sock, self._pace, self._is_lent = sock, pace, False

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._pace.timeout_s())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        self._is_lent = True
        return io.BufferedReader(_Raw(self._sock, self._pace), 256 << 10)

    def close(self) -> None:
        if not self._is_lent:
            self._sock.close()


class Response:
    def __init__(self, url: Url, answer: http.client.HTTPResponse, zone: str) -> None:
        self.url, self.status, self.zone = url, answer.status, zone
        """`zone` says where the peer is: loopback, link-local or other."""
        self._answer = answer

    def header(self, name: str) -> str:
        return self._answer.getheader(name) or ""

    @property
    def length(self) -> int | None:
        """What the peer announced. None: nothing valid."""
        text = self.header("Content-Length").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    def read(self, count: int) -> bytes:
        with _explained(self.url):
            return self._answer.read(count)

    def read_some(self, count: int) -> bytes:
        """Return what has arrived, so that a cut loses nothing; b"" at the end."""
        with _explained(self.url):
            return self._answer.read1(count)

    def read_all(self, cap: int, what: str) -> bytes:
        """Return the whole body. Raise RegistryError if it is larger than `cap`."""
        with self:
            if self.header("Content-Encoding").lower() not in ("", "identity"):
                raise RegistryError(f"{self.url.netloc} sent an encoded {what}, which was not asked for")
            if (self.length or 0) > cap:
                raise RegistryError(
                    f"{self.url.netloc} announced a {what} of {self.length} bytes: at most {cap} are read"
                )
            body = self.read(cap + 1)
            while 0 < len(body) <= cap and (more := self.read(cap + 1 - len(body))):
                body += more
            if len(body) > cap:
                raise RegistryError(f"{self.url.netloc} sent a {what} of more than {cap} bytes")
            if self.length is not None and len(body) != self.length:
                raise Transient(f"{self.url.netloc} closed the connection within the {what}")
            return body

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._answer.close()

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def is_loopback_name(host: str) -> bool:
    """Whether a host is on this machine by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def zone_of(address: str) -> str:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback or found.is_unspecified:  # the kernel takes 0.0.0.0 for this machine
        return LOOPBACK
    return LINK_LOCAL if found.is_link_local or found.is_multicast else OTHER


def exchange(
    url: Url,
    *,
    headers: Mapping[str, str],
    pace: AnswerClock,
    patience: TransportPatience,
    proxy: Proxy,
    zones: frozenset[str] | None,
    method: str = "GET",
    body: bytes | None = None,
) -> Response:
    """Send one request and return the answer, whatever its status. No redirect is followed.

    `zones` says where the peer may be; None: anywhere."""
    with _explained(url):
        sock, zone = _connect(url, patience, proxy, zones, pace)
        try:
            connection = http.client.HTTPConnection(url.host, url.port)
            paced: Any = _PacedSocket(sock, pace)
            connection.sock = paced
            connection.putrequest(method, url.path, skip_host=True, skip_accept_encoding=True)
            usual = {"Host": url.netloc, "User-Agent": USER_AGENT, "Accept-Encoding": "identity", "Connection": "close"}
            if body is not None:
                usual["Content-Length"] = str(len(body))
            for name, value in {**usual, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
        except BaseException:
            sock.close()
            raise
    return Response(url, answer, zone)


@contextlib.contextmanager
def _explained(url: Url) -> Any:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise RegistryError(
            f"the certificate of {url.netloc} is not trusted ({error.verify_message}): set SSL_CERT_FILE to its CA"
        ) from None
    except ssl.SSLError as error:
        raise Transient(f"no TLS connection to {url.netloc}: {error.reason or error}") from None
    except TimeoutError:
        raise Transient(f"{url.netloc} does not answer") from None
    except http.client.HTTPException as error:
        raise Transient(f"{url.netloc} broke off or did not speak HTTP ({type(error).__name__})") from None
    except OSError as error:
        raise Transient(f"{url.netloc} cannot be reached: {error.strerror or error}") from None
    except ValueError:
        raise Transient(f"{url.netloc} did not speak HTTP") from None


def _connect(
    url: Url, patience: TransportPatience, proxy: Proxy, zones: frozenset[str] | None, pace: AnswerClock
) -> tuple[socket.socket, str]:
    through = proxy.for_url(url)
    if through is not None:
        # The proxy resolves the name; literal addresses can be checked here.
        with contextlib.suppress(ValueError):
            _check_zone(url, [zone_of(url.host)], zones)
        assert through.hostname is not None
        sock = _dial(_resolve(through.hostname, through.port or 3128), patience)[0]
        zone = OTHER
    else:
        addresses = _resolve(url.host, url.port)
        found = [zone_of(address) for _, (address, *_) in addresses]
        _check_zone(url, found, zones)
        good = [item for item, where in zip(addresses, found, strict=True) if zones is None or where in zones]
        sock, address = _dial(good, patience)
        zone = zone_of(address)
    try:
        if through is not None:
            _tunnel(sock, url, through, pace)
        if url.scheme == "https":
            sock.settimeout(patience.connect_s)
            sock = _tls().wrap_socket(sock, server_hostname=url.host)
    except BaseException:
        sock.close()
        raise
    return sock, zone


def _check_zone(url: Url, found: list[str], zones: frozenset[str] | None) -> None:
    if zones is not None and not zones.intersection(found):
        raise RegistryError(
            f"refused to go to {url.netloc}, which is a {found[0]} address that the image's registry is not at"
        )


def _resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Transient(f"the name {host} cannot be resolved: check the name, the network and HTTPS_PROXY") from None
    return [(family, address) for family, _, _, _, address in found]  # pyright: ignore[reportReturnType]


def _dial(addresses: list[tuple[int, tuple[str, int]]], patience: TransportPatience) -> tuple[socket.socket, str]:
    error: OSError = OSError("no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(patience.connect_s)
            sock.connect(address)
            return sock, address[0]
        except OSError as caught:
            sock.close()
            error = caught
        except BaseException:
            sock.close()
            raise
    raise error


def _tunnel(sock: socket.socket, url: Url, through: urllib.parse.SplitResult, pace: AnswerClock) -> None:
    lines = [f"CONNECT {url.host}:{url.port} HTTP/1.1", f"Host: {url.host}:{url.port}"]
    if through.username is not None:
        words = (urllib.parse.unquote(through.username), urllib.parse.unquote(through.password or ""))
        lines.append("Proxy-Authorization: Basic " + base64.b64encode(":".join(words).encode()).decode())
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        sock.settimeout(pace.timeout_s())
        byte = sock.recv(1)  # not one byte more: what follows belongs to TLS
        answer += byte
        if not byte or len(answer) > MAX_PROXY_ANSWER:
            raise Transient(f"the proxy {through.hostname} broke off")
    status = answer.split(None, 2)[1:2]
    if status != [b"200"]:
        said = status[0].decode("ascii", "replace") if status else "nothing"
        raise RegistryError(f"the proxy {through.hostname} refused a connection to {url.netloc} ({said:.20})")


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
