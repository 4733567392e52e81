"""Makes a port of a box reachable on the host's loopback interface, as long as it is open.

For people at a terminal: a connection has two threads, and there are at most MAX_OPEN. Programs use `Sandbox.connect`.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from harena.errors import HarenaError, SpecError
from harena.sandbox.box import Sandbox

MAX_OPEN = 64


class Forward:
    def __init__(self, box: Sandbox, port: int, local: int | None = None) -> None:
        """`local`: the port of the host, the same one unless given; 0 takes a free one."""
        self._box = box
        self._port = port
        self._places = threading.BoundedSemaphore(MAX_OPEN)
        wanted = port if local is None else local
        try:
            self._server = socket.create_server(("127.0.0.1", wanted), backlog=16)
        except OSError as error:
            raise SpecError(f"forward {wanted}:{port}: cannot listen on 127.0.0.1:{wanted}: {error.strerror}") from None
        self.local: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="harena-forward", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError, HarenaError), self._box.connect(self._port) as inside:
                inside.settimeout(None)
                back = threading.Thread(target=_copy, args=(inside, client), daemon=True)
                back.start()
                _copy(client, inside)
                back.join()
        finally:
            self._places.release()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
