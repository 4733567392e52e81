from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from support.worlds import Names, Serve, Server, echo


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    return found


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(serve: Serve = echo, address: str = "127.0.0.1", port: int = 0) -> Server:
        made.append(Server(serve, address, port))
        return made[-1]

    yield make
    for server in made:
        server.close()
