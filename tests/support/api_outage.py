"""A way to the API server that can be cut: a TCP proxy on loopback, and a kubeconfig that leads through it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml


class CuttableApi:
    """Passes connections on to the API server of KUBECONFIG until it is cut; then it refuses them."""

    def __init__(self, folder: Path) -> None:
        given = yaml.safe_load(Path(os.environ["KUBECONFIG"].split(os.pathsep)[0]).read_text())
        name = given["current-context"]
        context = next(one["context"] for one in given["contexts"] if one["name"] == name)
        cluster = next(one["cluster"] for one in given["clusters"] if one["name"] == context["cluster"])
        parts = urlsplit(cluster["server"])
        if parts.hostname != "127.0.0.1":
            pytest.skip("host: the API server has no certificate for loopback, so no proxy can stand before it")
        self._target = parts.hostname, parts.port or 443
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.connections = 0
        cluster["server"] = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / f"kubeconfig-{self.port}"
        self.kubeconfig.write_text(yaml.safe_dump(given))
        self._accept_soon()

    def cut(self) -> None:
        with self._lock:
            server, self._server = self._server, None
            ended, self._open = self._open, set()
        for sock in (*([server] if server else []), *ended):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def restore(self) -> None:
        self._server = socket.create_server(("127.0.0.1", self.port))
        self._accept_soon()

    def __enter__(self) -> CuttableApi:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cut()

    def _accept_soon(self) -> None:
        assert self._server is not None
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as target:
            with self._lock:
                if self._server is None:
                    return
                self._open |= {client, target}
            back = threading.Thread(target=_copy, args=(target, client), daemon=True)
            back.start()
            _copy(client, target)
            back.join()
            with self._lock:
                self._open -= {client, target}


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
