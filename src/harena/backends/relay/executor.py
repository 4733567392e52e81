"""Boxes in another container of the same pod, which has the image that users asked for.

The server listens on a Unix socket in a volume that both containers have. The node of the other container
(`backends/docker/inside.py`, run by its own Python) connects once, before anything else runs there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading

from harena.errors import BoxLost, Retry, SpecError, StartTimeout
from harena.node import client
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.node.link import Link, SocketStream
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import Limits, Spec

START_S = 120.0
IMAGE = "container"
"""Stands for the root of the other container, in which the box is made."""


class ExecutorBox(NodeBox):
    backend = "executor"


class ExecutorBackend:
    def __init__(self, url: str, token: str | None = None) -> None:
        self._path = url.removeprefix("executor:")
        if not os.path.isabs(self._path) or token is not None:
            raise SpecError(f"--executor {self._path}: give the absolute path of a socket")
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def capabilities(self) -> Capabilities:
        return client.capabilities(self._node())

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> ExecutorBox:
        client.refuse_network(spec, "executor")
        node = self._node()
        return ExecutorBox(node, *client.create(node, dataclasses.replace(spec, image=IMAGE), limits, start_s))

    def _node(self) -> Connection:
        with self._lock:
            if self._connection is None:
                self._connection = self._accept()
            elif not self._connection.usable:
                raise BoxLost("the executor container has ended; the pod is replaced", retry=Retry.SAFE)
            return self._connection

    def _accept(self) -> Connection:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            listener.listen(1)
            listener.settimeout(START_S)
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                raise StartTimeout(
                    f"the executor container did not connect within {START_S:g} s: it needs Python 3.11 as python3"
                ) from None
            finally:
                os.unlink(self._path)  # nobody else connects
        accepted.setblocking(True)
        return Connection(Link.to_node(SocketStream(accepted)))
