"""The network of one box: listens inside its namespace, checks, and connects onwards from the host.

Guarantees: what the policy refuses is never connected to; a name is resolved once for each connection, and the
connection goes to an address that was checked; caps are exact; every refusal is counted; after `close` or `set(None)`
no connection is left. It does not see into TLS, and trusts the host's resolver for the addresses of allowed names.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import os
import resource
import socket
import struct
import threading
import weakref
from collections.abc import Callable

from harena.errors import BoxError, Retry
from harena.network import dns, loop
from harena.network.connection import GuestConnection
from harena.network.policy import Names, Policy, parse_host
from harena.sandbox import owner
from harena.sandbox.network import DNS_PORT, PROXY_PORT, Address, Denied, Network, NetworkReport
from harena.terminal import safe

BACKLOG = 64
QUERIES = 16
"""DNS queries of one box that are answered before others are served."""
MAX_DENIED = 100
MAX_TARGET = 300
QUERIES_PER_S, QUERIES_AT_ONCE = 200, 400

MakeSocket = Callable[[int, int], socket.socket]
"""Creates a socket inside the box, of a family and a type."""

_IP_PKTINFO = 8
_PKTINFO = struct.Struct("=I4s4s")


def is_own(address: Address) -> bool:
    """Whether an address belongs to this host: only such ones can be bound to."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
    return True


def most_open() -> int:
    """Connections of all boxes together: each takes two descriptors, and half of all are for other things."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(8, soft // 4)


class GatewayWatch:
    """Part of a report: what is done while it is kept."""

    def __init__(self, numbers: tuple[int, int, int, int]) -> None:
        self._before = numbers
        self._denied: dict[tuple[str, str], int] = {}

    def deny(self, target: str, reason: str) -> None:
        key = target, reason
        if key in self._denied or len(self._denied) < MAX_DENIED:
            self._denied[key] = self._denied.get(key, 0) + 1

    def report(self, numbers: tuple[int, int, int, int]) -> NetworkReport:
        connections, out, into, refused = (now - then for now, then in zip(numbers, self._before, strict=True))
        denied = tuple(Denied(target, reason, count) for (target, reason), count in self._denied.items())
        return NetworkReport(connections=connections, bytes_out=out, bytes_in=into, refused=refused, denied=denied)


class Gateway:
    def __init__(self, network: Network | None, make_socket: MakeSocket, what: str) -> None:
        """`what`: the box, for messages."""
        self.what = what
        self._make_socket = make_socket
        self._loop = loop.shared()
        self._lock = threading.Lock()
        self._closed = False
        self.policy: Policy | None = None
        self._listeners: dict[int, socket.socket] = {}
        """Listening TCP sockets by descriptor."""
        self._dns: socket.socket | None = None
        self._connections: dict[GuestConnection, None] = {}
        self._paused = False
        self._names = Names()
        self._queries = float(QUERIES_AT_ONCE)
        self._whole = GatewayWatch((0, 0, 0, 0))
        self._watches: weakref.WeakSet[GatewayWatch] = weakref.WeakSet([self._whole])
        self._allowed = self._refused = self.bytes_out = self.bytes_in = 0
        self._used_connections = 0
        self.bytes_left = 0
        self.lookups = 0
        self.resolved: dict[str, tuple[float, list[Address]]] = {}
        owner.register(self)
        self.set(network)

    # ---- from any thread ----

    def set(self, network: Network | None) -> None:
        """Replace the rules and caps, counted from now on; None closes everything. Connections that the new rules do
        not allow are cut before this returns. If it fails, everything is closed."""
        with self._lock:
            policy = None if network is None or self._closed else Policy(network, is_own)
            listeners: list[socket.socket] = []
            queries: socket.socket | None = None
            self._loop.call(self._stop_listening)
            try:
                if policy is not None:
                    for port in sorted({*policy.ports, PROXY_PORT, DNS_PORT}):
                        listeners.append(self._listen(port))
                    queries = self._listen_for_queries()
            except BaseException as error:
                for sock in listeners:
                    sock.close()
                self._loop.call(lambda: self._change(None, [], None))
                if isinstance(error, OSError):
                    raise BoxError(
                        f"{self.what}: its network could not be opened: {error}", retry=Retry.SAFE
                    ) from error
                raise
            self._loop.call(lambda: self._change(policy, listeners, queries))

    def watch(self) -> GatewayWatch:
        """Begin a report of what is done from now on."""
        return self._loop.call(self._start_watch)

    def report(self, watch: GatewayWatch | None = None) -> NetworkReport:
        """Return what was done since the watch began, or ever, up to this moment."""
        return self._loop.call(lambda: self._report_of(watch or self._whole))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(RuntimeError):
            self._loop.call(lambda: self._change(None, [], None))

    def abandon(self) -> None:
        """Close the copies that a forked child has, without notifying anybody."""
        self._closed = True
        socks = [*self._listeners.values(), *([self._dns] if self._dns else [])]
        for connection in self._connections:
            socks += connection.sockets()
        for sock in socks:
            fd = sock.detach()
            if fd >= 0:
                os.close(fd)
        self._listeners, self._dns, self._connections = {}, None, {}

    def _listen(self, port: int) -> socket.socket:
        try:
            sock = self._make_socket(socket.AF_INET6, socket.SOCK_STREAM)
        except OSError:  # a kernel without IPv6
            sock = self._make_socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # connections that ended hold the port for a while
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::" if sock.family == socket.AF_INET6 else "0.0.0.0", port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise BoxError(
                    f"{self.what}: a program in the box listens on port {port}, which the network needs: end it first",
                    retry=Retry.SAFE,
                ) from None
            raise
        return sock

    def _listen_for_queries(self) -> socket.socket:
        sock = self._make_socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)  # the answer comes from the address that was asked
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.bind(("0.0.0.0", DNS_PORT))
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise BoxError(
                    f"{self.what}: a program in the box uses UDP port {DNS_PORT}, which the network needs",
                    retry=Retry.SAFE,
                ) from None
            raise
        return sock

    # ---- in the thread of the loop ----

    def _stop_listening(self) -> None:
        for fd, sock in self._listeners.items():
            self._loop.forget(fd)
            sock.close()
        self._listeners = {}
        if self._dns is not None:
            self._loop.forget(self._dns.fileno())
            self._dns.close()
            self._dns = None

    def _change(self, policy: Policy | None, listeners: list[socket.socket], queries: socket.socket | None) -> None:
        self._stop_listening()
        self.policy = policy
        self.resolved = {}
        self._used_connections = 0
        self.bytes_left = 0 if policy is None else policy.network.max_bytes
        self._listeners = {sock.fileno(): sock for sock in listeners}
        self._dns = queries
        self._paused = True
        for connection in list(self._connections):
            if not connection.still_allowed():
                connection.cut()
        self._used_connections = len(self._connections)
        if queries is not None:
            self._loop.watch(queries.fileno(), loop.READ, self)
        self._resume()
        self._set_clock()

    def _settle(self) -> None:
        """Serve what the box has done by now: what has ended must be in its report."""
        for listener in list(self._listeners.values()):
            for _ in range(BACKLOG + 1):
                if not self._accept(listener):
                    break
        self._loop.poll_now()

    def _start_watch(self) -> GatewayWatch:
        self._settle()
        watch = GatewayWatch(self._numbers())
        self._watches.add(watch)
        return watch

    def _report_of(self, watch: GatewayWatch) -> NetworkReport:
        self._settle()
        return watch.report(self._numbers())

    def _numbers(self) -> tuple[int, int, int, int]:
        return self._allowed, self.bytes_out, self.bytes_in, self._refused

    def deny(self, target: str, reason: str) -> None:
        self._refused += 1
        target = safe(target)[:MAX_TARGET]
        for watch in list(self._watches):
            watch.deny(target, reason)

    def allowed(self) -> None:
        self._allowed += 1

    def out_of_bytes(self) -> None:
        """Cut every connection: the cap on bytes is reached."""
        for connection in list(self._connections):
            connection.end_at_cap("max_bytes is used up")

    def ready(self, fd: int, events: int) -> None:
        if self._dns is not None and fd == self._dns.fileno():
            self._serve_queries(self._dns)
        elif (listener := self._listeners.get(fd)) is not None:
            self._accept(listener)

    def failed(self) -> None:
        self._change(None, [], None)

    def _set_clock(self) -> None:
        """Ask for ticks only while something waits for one."""
        self._loop.tick(self, bool(self._connections) or self._paused or self._queries < QUERIES_AT_ONCE)

    def tick(self, now: float) -> None:
        for connection in list(self._connections):
            if not self._loop.guarded(functools.partial(connection.tick, now)):
                connection.cut()
        self._queries = min(QUERIES_AT_ONCE, self._queries + QUERIES_PER_S * loop.TICK_S)
        if self._dns is not None:
            self._loop.watch(self._dns.fileno(), loop.READ, self)
        self._resume()
        self._set_clock()

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection; if there are more, the loop comes back after it has served others. Returns False if
        there was none."""
        if self.policy is None or listener.fileno() < 0:
            return False
        network = self.policy.network
        if len(self._connections) >= network.max_open or self._loop.open >= most_open():
            self._pause()
            return False
        try:
            client, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause()
            return False
        self._used_connections += 1
        connection = GuestConnection(self, self._loop, client)
        self._connections[connection] = None
        self._set_clock()
        if self._used_connections > network.max_connections:
            self._stop_listening()
            connection.deny("max_connections is used up")
        elif not self._loop.guarded(connection.begin):
            connection.cut()
        return True

    def _pause(self) -> None:
        """Accept nothing until a connection ends or the clock ticks. What is dialled meanwhile waits in the kernel."""
        self._paused = True
        self._set_clock()
        for fd in self._listeners:
            self._loop.forget(fd)

    def _resume(self) -> None:
        if not self._paused or (self.policy and len(self._connections) >= self.policy.network.max_open):
            return
        self._paused = False
        for fd in self._listeners:
            self._loop.watch(fd, loop.READ, self)

    def drop(self, connection: GuestConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._resume()

    # ---- names ----

    def name_of(self, address: Address) -> str | None:
        return self._names.name(address)

    def _serve_queries(self, sock: socket.socket) -> None:
        for _ in range(QUERIES):
            if self._queries < 1:
                return self._loop.forget(sock.fileno())  # until the clock ticks: the kernel drops what is too much
            try:
                data, ancillary, _, peer = sock.recvmsg(dns.MAX_QUERY + 1, 64)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error of an earlier answer
            self._queries -= 1
            self._set_clock()
            answer = self.answer(data)
            if answer is None:
                continue
            source = [
                (level, kind, _PKTINFO.pack(0, _PKTINFO.unpack(info[: _PKTINFO.size])[2], b"\0\0\0\0"))
                for level, kind, info in ancillary
                if level == socket.IPPROTO_IP and kind == _IP_PKTINFO and len(info) >= _PKTINFO.size
            ]
            with contextlib.suppress(OSError):
                sock.sendmsg([answer], source, 0, peer)

    def answer(self, data: bytes) -> bytes | None:
        found = dns.answer(data, self._address_of)
        if found is None:
            return None
        if found.denied is not None:
            known = self.policy is not None and self.policy.knows_name(found.denied)
            self.deny(found.denied, "the box has asked for too many names" if known else "no rule allows this name")
        return found.data

    def _address_of(self, name: str) -> ipaddress.IPv4Address | int:
        if self.policy is None or not self.policy.knows_name(name) or parse_host(name) != name:
            return dns.NO_SUCH_NAME
        return self._names.address(name) or dns.SERVER_FAILURE
