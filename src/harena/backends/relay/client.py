"""Starts the process that holds the boxes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

from harena.node import client
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.node.link import Link, SocketStream
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import Limits, Spec


class RelayBox(NodeBox):
    backend = "relay"


class RelayBackend:
    """Starts a node on this machine with the first box. The node ends with its last user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def capabilities(self) -> Capabilities:
        return client.capabilities(self._node())

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> RelayBox:
        client.refuse_network(spec, "relay")
        node = self._node()
        return RelayBox(node, *client.create(node, spec, limits, start_s))

    def _node(self) -> Connection:
        with self._lock:
            if self._connection is None or not self._connection.usable:
                self._connection = _start()
            return self._connection


def _start() -> Connection:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "harena.backends.relay.node", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return Connection(Link.to_node(SocketStream(ours)), process.wait)
