"""TCP proxies on loopback that disturb connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence


class CuttingProxy:
    """Passes connections on. The nth one is cut after the nth number of answered bytes; those beyond are left alone."""

    def __init__(self, url: str, cuts: Sequence[int]) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._target = host, int(port)
        self._cuts = list(cuts)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.connections += 1
                most = self._cuts.pop(0) if self._cuts else None
                threading.Thread(target=self._serve, args=(client, most), daemon=True).start()

    def _serve(self, client: socket.socket, most: int | None) -> None:
        with client, socket.create_connection(self._target) as server:
            threading.Thread(target=_copy, args=(client, server, None), daemon=True).start()
            _copy(server, client, most)
            for sock in (client, server):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def _copy(source: socket.socket, target: socket.socket, most: int | None) -> None:
    with contextlib.suppress(OSError):
        while most is None or most > 0:
            data = source.recv(65536 if most is None else min(most, 65536))
            if not data:
                break
            target.sendall(data)
            most = None if most is None else most - len(data)


@contextlib.contextmanager
def cutting_proxy(url: str, cuts: Sequence[int]) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(url, cuts)
    try:
        yield proxy
    finally:
        proxy.close()
