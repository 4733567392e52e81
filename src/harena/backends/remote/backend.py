"""Connects to a server and creates boxes there."""

from __future__ import annotations

import threading

from harena.node import client, variables
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.node.place import Address
from harena.node.websocket import connect_to
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import Limits, Spec


class RemoteBox(NodeBox):
    backend = "remote"


class RemoteBackend:
    """One server. Connects with the first box, and again when the connection was lost."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._place = Address.parse(url)
        self._token = token
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def capabilities(self) -> Capabilities:
        return client.capabilities(self._node(), network=True)

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> RemoteBox:
        node = self._node()
        return RemoteBox(node, *client.create(node, spec, limits, start_s))

    def _node(self) -> Connection:
        with self._lock:
            if self._connection is None or not self._connection.usable:
                self._connection = open_connection(self._place, self._token)
            return self._connection


def open_connection(place: Address, token: str | None) -> Connection:
    """Connect to a server. Raises HarenaError."""
    return connect_to(place, token or variables.token())
