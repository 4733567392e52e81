"""Servers that are no arenas: each connection gets exactly the bytes a test says, and what was asked is kept."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Request = bytes
Answer = bytes | Iterator[bytes]


class Server:
    """Answers the n-th request with the n-th answer; the last one again and again. Close it."""

    def __init__(self, answer: Callable[[Request, int], Answer]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.02)
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def close(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(10)
        self._socket.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = self._socket.accept()
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                self.requests.append(request := _read(connection))
                answer = self._answer(request, len(self.requests) - 1)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    if self._ending.is_set():
                        return
                    connection.sendall(piece)


def _read(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answer(body: bytes = b"{}", *, status: str = "200 OK", headers: tuple[str, ...] = (), kind: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind or 'application/json'}", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def endless(piece: bytes, *, kind: str = "application/json") -> Iterator[bytes]:
    yield f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()
    while True:
        yield piece


def stream(*events: str) -> bytes:
    """A stream of events that breaks after the last one."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return (head + "".join(events)).encode()
