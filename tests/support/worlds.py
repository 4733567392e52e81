"""What tests of boxes with a network are made of: servers, names, and code that runs in a box."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from harena import Network, Result, Sandbox, Spec

Serve = Callable[[socket.socket], object]


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


class Server:
    """Listens on an address, and keeps what it was sent."""

    def __init__(self, serve: Serve = echo, address: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sock = socket.create_server((address, port), family=family, backlog=256)
        self.port: int = self._sock.getsockname()[1]
        self.accepted = 0
        self.peers: list[socket.socket] = []
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._sock.accept()
                self.accepted += 1
                self.peers.append(peer)
                threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            self._serve(peer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class Names:
    """Stands in for the host's resolver: names of the test, and how often each was asked for."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.wait: threading.Event | None = None
        self._whole = socket.getaddrinfo

    def getaddrinfo(self, name: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return self._whole(name, port, *rest, **more)
        self.asked.append(name)
        if self.wait is not None:
            self.wait.wait(30)
        if name not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in self.addresses[name]
        ]


@contextlib.contextmanager
def online(*allow: str, **more: Any) -> Iterator[Sandbox]:
    with Sandbox(Spec(network=Network(allow=allow, **more))) as box:
        yield box


TOOLS = """
import socket, sys, os, time
def dial(host, port, data=b"", wait=5.0):
    "What comes back, or the name of the error."
    try:
        with socket.create_connection((host, port), timeout=wait) as s:
            s.settimeout(wait)
            if data: s.sendall(data)
            got = s.recv(65536)
            return got
    except socket.gaierror as e: return "no such name"
    except OSError as e: return type(e).__name__
def proxied(authority, data=b"", wait=5.0):
    "The proxy's status, and what comes back through the tunnel."
    with socket.create_connection(("127.0.0.1", 3128), timeout=wait) as s:
        s.sendall(f"CONNECT {authority} HTTP/1.1\\r\\n\\r\\n".encode())
        head = b""
        try:
            while b"\\r\\n\\r\\n" not in head:
                part = s.recv(4096)
                if not part: return head
                head += part
        except OSError as e: return type(e).__name__
        code = int(head.split()[1])
        if code != 200 or not data: return code
        try:
            s.sendall(data)
            return s.recv(65536)
        except OSError as e: return type(e).__name__
"""


def inside(box: Sandbox, source: str) -> Result:
    """Run code in the box that must not fail by itself; it prints what it found."""
    result = box.run(TOOLS + source)
    assert result.ok, result.stderr.decode()
    return result


def value(box: Sandbox, expression: str) -> Any:
    return eval(inside(box, f"print(repr({expression}))").stdout.decode(), {})  # noqa: S307 - of a box of the test's own
