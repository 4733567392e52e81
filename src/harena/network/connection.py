"""A connection of a guest: finds out where it goes, has that checked, connects and copies bytes.

Everything runs in the thread of the loop and never blocks; only names are resolved in threads of their own.

One file: a connection is one state machine, which every event of its two sockets drives.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Protocol

from harena.network import dns, inspect, loop
from harena.network.inspect import Anything, Inspector, Named, OneRequest, Refused
from harena.network.policy import Policy, normal
from harena.sandbox.network import DNS_PORT, NAMES, PROXY_PORT, Address
from harena.terminal import safe

CHUNK = 1 << 16
INSPECTED = 1 << 14
"""Bytes that are read at once while they are parsed: others wait meanwhile."""
MAX_LOOKUPS = 4
"""Names that one box may have resolved at once. An attacker's name server may never answer."""
LOOKUPS = threading.BoundedSemaphore(64)
CACHE_S, MAX_CACHED = 5.0, 256
"""How long the addresses of a name are kept, and of how many names. They are checked for each connection."""
MAX_ADDRESSES = 4
"""Addresses of a name that are tried."""
QUERIES_PER_CONNECTION = 64
_RESET = struct.pack("ii", 1, 0)


class ByteGate(Protocol):
    """What a connection needs of the network that it belongs to."""

    policy: Policy | None
    bytes_left: int
    bytes_out: int
    bytes_in: int
    lookups: int
    resolved: dict[str, tuple[float, list[Address]]]
    """Until when the addresses of a name may be used, and the addresses."""

    def deny(self, target: str, reason: str) -> None: ...
    def allowed(self) -> None: ...
    def out_of_bytes(self) -> None: ...
    def name_of(self, address: Address) -> str | None: ...
    def answer(self, data: bytes) -> bytes | None: ...
    def drop(self, connection: GuestConnection) -> None: ...


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """Parse an address that the kernel wrote."""
    return normal(ipaddress.ip_address(text.partition("%")[0]))


def show(where: Address | str, port: int) -> str:
    return f"[{where}]:{port}" if isinstance(where, ipaddress.IPv6Address) else f"{where}:{port}"


class GuestConnection:
    """A connection of a guest, from its first byte to its end."""

    def __init__(self, gateway: ByteGate, loop_: loop.NetworkLoop, client: socket.socket) -> None:
        self._gateway = gateway
        self._loop = loop_
        self._client = client
        self._server: socket.socket | None = None
        self._state = "start"
        """start, proxy, dns: more must come from the guest; resolve, connect; relay; say: the last words; closed"""
        self._inspector: Inspector = Anything()
        self._name: str | None = None
        self._address: Address | None = None
        """What the guest dialled, then what it is connected to."""
        self._port = 0
        self._proxied = self._tunnel = False
        self._pending: list[Address] = []
        self._held = b""
        """What the guest has sent before there was a server."""
        self._to_server = b""
        self._to_client = b""
        self._client_ended = self._server_ended = False
        self._queries = 0
        self._watched: dict[int, int] = {}
        self._active_at = 0.0
        self._deadline = 0.0
        loop_.open += 1
        client.setblocking(False)
        with contextlib.suppress(OSError, ValueError):  # the guest may have gone
            host, self._port = client.getsockname()[:2]
            self._address = parse_address(host)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def sockets(self) -> list[socket.socket]:
        return [self._client, *([self._server] if self._server is not None else [])]

    @property
    def _policy(self) -> Policy:
        policy = self._gateway.policy
        if policy is None:
            raise Refused("the network is closed")
        return policy

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Refused as refused:
            self.deny(str(refused), refused.shown)
        except OSError:
            self.cut()
        if self._state != "closed":
            self._update()

    # ---- where it goes ----

    def begin(self) -> None:
        self._guarded(self._begin)
        if self._state != "closed" and self._reads_client():
            self.ready(self._client.fileno(), loop.READ)  # most guests have sent something by now

    def _begin(self) -> None:
        if self._address is None:
            return self.cut()
        self._deadline = time.monotonic() + self._policy.network.connect_s
        if self._gateway.bytes_left == 0:
            raise Refused("max_bytes is used up")
        if self._address.is_loopback and self._port == PROXY_PORT:
            self._state = "proxy"
        elif self._port == DNS_PORT and self._policy.refuses_address(self._address, self._port):
            self._state = "dns"
        else:
            self._head_for(self._address, self._port, None)

    def _head_for(self, where: Address | str, port: int, inspector: Inspector | None) -> None:
        """Check a destination; then resolve it and connect, or wait for the guest to say more."""
        self._port = port
        if isinstance(where, ipaddress.IPv4Address) and where in NAMES:
            self._address = where
            name = self._gateway.name_of(where)
            if name is None:
                raise Refused("no name has this address")
            where = name
        if isinstance(where, str):
            self._name, self._address = where, None
            reason = self._policy.refuses_name(where, port)
        else:
            self._name, self._address = None, where
            reason = self._policy.refuses_address(where, port)
        if reason is not None:
            raise Refused(reason)
        if inspector is None and self._name is not None:
            inspector = Named(self._name, port)
        self._inspector = inspector or Anything()
        if self._name is None or self._proxied or not inspect.waits_for_guest(port):
            self._resolve()

    def _resolve(self) -> None:
        if self._name is None:
            self._pending = [] if self._address is None else [self._address]
            return self._connect()
        until, known = self._gateway.resolved.get(self._name, (0.0, []))
        if known and time.monotonic() < until:
            return self._choose(known)
        if self._gateway.lookups >= MAX_LOOKUPS or not LOOKUPS.acquire(blocking=False):
            raise Refused("too many names are being resolved")
        self._gateway.lookups += 1
        self._state = "resolve"
        name, port = self._name, self._port

        def look_up() -> None:
            addresses: list[Address] = []
            try:
                addresses = resolve(name, port)
            finally:
                LOOKUPS.release()
                self._loop.post(lambda: self._resolved(addresses))

        try:
            threading.Thread(target=look_up, name="harena-lookup", daemon=True).start()
        except RuntimeError:  # no thread can be started
            LOOKUPS.release()
            self._gateway.lookups -= 1
            raise Refused("too many names are being resolved") from None

    def _resolved(self, addresses: list[Address]) -> None:
        self._gateway.lookups -= 1
        if self._name is not None and addresses:
            if len(self._gateway.resolved) >= MAX_CACHED:
                self._gateway.resolved.clear()
            self._gateway.resolved[self._name] = time.monotonic() + CACHE_S, addresses
        if self._state == "resolve":
            self._guarded(lambda: self._choose(addresses))

    def _choose(self, addresses: list[Address]) -> None:
        reasons = [self._policy.refuses_resolved(address, self._port) for address in addresses]
        self._pending = [one for one, reason in zip(addresses, reasons, strict=True) if reason is None]
        del self._pending[MAX_ADDRESSES:]
        if addresses and not self._pending:
            raise Refused(reasons[0] or "", shown="the name resolves to an address that is not allowed")
        self._connect()

    def _connect(self) -> None:
        """Connect to the next address, by the rules of this moment. No name is looked up again."""
        while self._pending:
            address = self._pending.pop(0)
            self._drop_server()
            if not self._may_reach(address):
                continue
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            try:
                server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError:
                continue
            self._server, self._address = server, address
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            where = str(address), self._port
            number = server.connect_ex(where)
            if number == errno.EINPROGRESS:
                number = server.connect_ex(where)  # on this machine it is done by now
            if number in (0, errno.EISCONN):
                return self._connected()
            if number in (errno.EINPROGRESS, errno.EALREADY):
                self._state = "connect"
                return
        self._fail(502, "the server cannot be reached")

    def _connected(self) -> None:
        self._state = "relay"
        self._gateway.allowed()
        self._active_at = time.monotonic()
        if self._tunnel:
            self._to_client = b"HTTP/1.1 200 Connection established\r\n\r\n"
            self._write_client()
        held, self._held = self._held, b""
        if held and self._state == "relay":
            self._from_client(held)

    def still_allowed(self) -> bool:
        policy = self._gateway.policy
        if policy is None:
            return False
        if self._state in ("proxy", "dns", "say"):
            return True
        if self._address is not None:
            return self._may_reach(self._address)
        return self._name is not None and policy.refuses_name(self._name, self._port) is None

    def _may_reach(self, address: Address) -> bool:
        if self._name is None:
            return self._policy.refuses_address(address, self._port) is None
        if self._policy.refuses_name(self._name, self._port) is not None:
            return False
        return self._policy.refuses_resolved(address, self._port) is None

    # ---- events ----

    def ready(self, fd: int, events: int) -> None:
        if self._state == "closed":
            return
        if fd == self._client.fileno():
            self._guarded(lambda: self._client_ready(events))
        elif self._server is not None and fd == self._server.fileno():
            self._guarded(lambda: self._server_ready(events))

    def failed(self) -> None:
        self.cut()

    def tick(self, now: float) -> None:
        policy = self._gateway.policy
        if policy is None:
            self.cut()
        elif self._state == "relay":
            if now - self._active_at > policy.network.idle_s:
                self.cut()
        elif now > self._deadline:
            if self._state in ("start", "proxy"):
                self.deny("the first bytes took too long")
            elif self._state in ("resolve", "connect"):
                self._guarded(lambda: self._fail(504, "the server took too long"))
            else:
                self.cut()

    def _client_ready(self, events: int) -> None:
        if self._to_client:
            self._write_client()
        if self._state == "closed" or not self._reads_client():
            return
        relaying = self._state == "relay"
        room = CHUNK if relaying and isinstance(self._inspector, Anything) else INSPECTED
        data = self._receive(self._client, room, counted=relaying)
        if data is None:
            return
        if not data:
            self._client_ended = True
            if not relaying:
                return self.cut()
            return self._write_server()
        if relaying:
            return self._from_client(data)
        self._held += data
        if self._state == "start":
            self._settle()
        elif self._state == "proxy":
            self._read_proxy_request()
        else:
            self._read_queries()

    def _receive(self, sock: socket.socket, room: int, *, counted: bool) -> bytes | None:
        """Read within the cap on bytes. None: there is nothing, or the cap has ended the connection."""
        if counted:
            room = min(room, self._gateway.bytes_left)
        try:
            if room:
                return sock.recv(room)
            if sock.recv(1, socket.MSG_PEEK):
                self._gateway.out_of_bytes()
                return None
            return b""
        except (BlockingIOError, InterruptedError):
            return None

    def _from_client(self, data: bytes) -> None:
        """Count what the guest sent, and send on what may go on."""
        if len(data) > self._gateway.bytes_left:
            return self._gateway.out_of_bytes()
        self._gateway.bytes_left -= len(data)
        self._gateway.bytes_out += len(data)
        self._active_at = time.monotonic()
        self._to_server += self._inspector.feed(data)
        self._write_server()

    def _settle(self) -> None:
        """Connect once the guest has said to whom it speaks. What it said is checked again when it is sent."""
        if self._name is None:
            raise Refused("no name has this address")
        trial = Named(self._name, self._port)
        trial.feed(self._held)
        if trial.settled:
            self._resolve()

    def _read_proxy_request(self) -> None:
        self._proxied = True
        request = inspect.proxy_request(self._held)
        if request is None:
            return
        self._held, self._tunnel = request.rest, request.tunnel
        self._head_for(request.where, request.port, None if request.tunnel else OneRequest(request.rest))

    def _read_queries(self) -> None:
        while len(self._held) >= 2 and self._state == "dns":
            length = int.from_bytes(self._held[:2], "big")
            if length > dns.MAX_QUERY or self._queries >= QUERIES_PER_CONNECTION:
                return self.cut()
            if len(self._held) < 2 + length:
                return
            query, self._held = self._held[2 : 2 + length], self._held[2 + length :]
            self._queries += 1
            answer = self._gateway.answer(query)
            if answer is None:
                return self.cut()
            self._to_client += len(answer).to_bytes(2, "big") + answer
            self._write_client()

    def _server_ready(self, events: int) -> None:
        if self._server is None:
            return
        if self._state == "connect":
            if self._server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return self._connect()
            return self._connected() if events & loop.WRITE else None
        if self._to_server:
            self._write_server()
        if self._state != "relay" or self._to_client or self._server_ended:
            return
        data = self._receive(self._server, CHUNK, counted=True)
        if data is None:
            return
        if data:
            self._active_at = time.monotonic()
            self._gateway.bytes_left -= len(data)
            self._gateway.bytes_in += len(data)
            self._to_client = data
        else:
            self._server_ended = True
        self._write_client()

    # ---- writing, and ends ----

    def _write_client(self) -> None:
        if self._to_client:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                self._to_client = self._to_client[self._client.send(self._to_client) :]
        if self._to_client:
            return
        if self._state == "say":
            self._close(reset=False)
        elif self._server_ended:
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_WR)
            if self._client_ended or (self._proxied and not self._tunnel):
                self._close(reset=False)

    def _write_server(self) -> None:
        if self._server is None:
            return
        if self._to_server:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                self._to_server = self._to_server[self._server.send(self._to_server) :]
        if not self._to_server and self._client_ended:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)
            if self._server_ended and not self._to_client:
                self._close(reset=False)

    def _reads_client(self) -> bool:
        if self._client_ended or self._to_server:
            return False
        return self._state in ("start", "proxy", "dns", "relay") and not (self._state == "dns" and self._to_client)

    def _update(self) -> None:
        """Wait for what can be dealt with now, and for nothing else: a socket that has an error is always ready."""
        events = (loop.READ if self._reads_client() else 0) | (loop.WRITE if self._to_client else 0)
        self._watch(self._client, events)
        if self._server is not None:
            events = loop.WRITE if self._state == "connect" or self._to_server else 0
            if self._state == "relay" and not self._to_client and not self._server_ended:
                events |= loop.READ
            self._watch(self._server, events)

    def _watch(self, sock: socket.socket, events: int) -> None:
        fd = sock.fileno()
        if self._watched.get(fd, 0) == events:
            return
        if events:
            self._watched[fd] = events
            self._loop.watch(fd, events, self)
        else:
            self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        if self._watched.pop(sock.fileno(), 0):
            self._loop.forget(sock.fileno())

    def deny(self, reason: str, shown: str | None = None) -> None:
        """Refuse the connection, and report it. `shown`: what the guest is told instead of the reason."""
        if self._state in ("closed", "say"):
            return self.cut()
        where = self._name or self._address
        proxy_itself = self._proxied and self._port == PROXY_PORT and self._name is None
        target = "the proxy" if proxy_itself or where is None else show(where, self._port)
        self._gateway.deny(target, reason)
        if self._proxied and self._state != "relay":
            self._guarded(lambda: self._say(403, shown or reason))
        else:
            self.cut()

    def end_at_cap(self, reason: str) -> None:
        """Refuse further bytes. What the server was sent before arrives: it was counted."""
        self._drop_server()
        self.deny(reason)

    def _fail(self, code: int, reason: str) -> None:
        """The connection was allowed, and the server did not take it."""
        if self._proxied:
            self._say(code, reason)
        else:
            self.cut()

    def _say(self, code: int, reason: str) -> None:
        """Answer a request to the proxy, and close."""
        self._drop_server()
        phrase = {403: "Forbidden", 502: "Bad Gateway", 504: "Gateway Timeout"}[code]
        body = f"harena: {safe(reason)}\n".encode()
        head = f"HTTP/1.1 {code} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        self._to_client = f"{head}Connection: close\r\n\r\n".encode() + body
        self._state = "say"
        self._deadline = time.monotonic() + 1.0
        self._write_client()

    def _drop_server(self) -> None:
        if self._server is not None:
            self._forget(self._server)
            self._server.close()
            self._server = None

    def cut(self) -> None:
        self._close(reset=True)

    def _close(self, *, reset: bool) -> None:
        if self._state == "closed":
            return
        self._state = "closed"
        for sock in self.sockets():
            if reset:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._forget(sock)
            sock.close()
        self._server = None
        self._loop.open -= 1
        self._gateway.drop(self)


def resolve(name: str, port: int) -> list[Address]:
    """Ask the host's resolver for the addresses of a name."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses: list[Address] = []
    for _, _, _, _, where in found:
        with contextlib.suppress(ValueError):
            address = parse_address(str(where[0]))
            if address not in addresses:
                addresses.append(address)
    return addresses
