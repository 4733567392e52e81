"""A client of a box server that sends whatever a test wants."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from harena import Limits, Spec
from harena.node import link, messages
from harena.testing.boxserver import BoxServer


class Raw:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._decoder = link.RequestDecoder(link.MAX_ANSWER)
        self._numbers = itertools.count(1)

    def send(self, message: Any, data: bytes = b"") -> None:
        self.connection.send(link.encode(message, data, link.MAX_ANSWER))

    def receive(self, timeout_s: float = 20) -> list[tuple[dict[str, Any], bytes]]:
        found: list[tuple[dict[str, Any], bytes]] = []
        while not found:
            data = self.connection.recv(timeout_s)
            assert isinstance(data, bytes)
            found = self._decoder.feed(data)
        return found

    def ask(self, verb: Any, data: bytes = b"", **fields: Any) -> dict[str, Any]:
        self.send({"request": next(self._numbers), "verb": verb, **fields}, data)
        return self.receive()[0][0]

    def create(self, **spec: Any) -> dict[str, Any]:
        fields = {**messages.spec_out(Spec()), **spec}
        return self.ask("create", spec=fields, limits=messages.limits_out(Limits()), start_s=30)

    def box(self) -> int:
        return self.create()["value"]["handle"]

    def ends(self, timeout_s: float = 20) -> str:
        """Wait until the server disconnects, and return its reason."""
        try:
            while True:
                self.connection.recv(timeout_s)
        except ConnectionClosed as closed:
            return closed.rcvd.reason if closed.rcvd else ""


@contextlib.contextmanager
def raw_client(server: BoxServer) -> Iterator[Raw]:
    url = server.url.replace("http", "ws", 1) + "/v1/boxes"
    headers = {"Authorization": f"Bearer {server.token}"}
    with connect(url, additional_headers=headers, compression=None, proxy=None, close_timeout=1) as connection:
        yield Raw(connection)
