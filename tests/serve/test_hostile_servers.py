"""Servers that attack their clients: whatever they answer is a lost box, and never a result."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from harena import BoxError, BoxLost, Limits, Spec, WireError
from harena.backends.remote import RemoteBackend
from harena.node import client, connection, link
from harena.node.connection import Connection
from harena.sandbox.backend import Task

Answer = tuple[Any, bytes]
RIGHT = {
    "verdict": "ok",
    "exit_code": 0,
    "signal": None,
    "usage": {"cpu_s": 0.0, "wall_s": 0.0, "peak_mb": 0.0, "bytes": 0},
    "detail": "",
    "value": None,
    "started": True,
    "ids": "",
    "isolation": "full",
    "out": 2,
    "err": 0,
}


def connected(answer: Callable[[dict[str, Any]], list[Answer]], *, is_server: bool = False) -> Connection:
    """A connection to a server that sends whatever `answer` returns for a request."""
    ours, theirs = socket.socketpair()
    server = link.Link.to_client(link.SocketStream(theirs))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while (received := server.receive()) is not None:
                for value, data in answer(received[0]):
                    server.send(value, data)
        server.close()

    threading.Thread(target=serve, daemon=True).start()
    return Connection(link.Link.to_node(link.SocketStream(ours)), is_server=is_server)


def box_of(of_exec: Callable[[int], list[Answer]]) -> client.NodeBox:
    def answer(message: dict[str, Any]) -> list[Answer]:
        number = message["request"]
        if message["verb"] == "create":
            return [({"answer": number, "value": {"handle": 1, "id": "b", "isolation": "full"}}, b"")]
        if message["verb"] == "programs":
            return [({"answer": number, "value": {"handle": 2}}, b"")]
        return of_exec(number) if message["verb"] in ("exec", "give", "fork", "read", "cpu_ns") else []

    node = connected(answer)
    return client.NodeBox(node, *client.create(node, Spec(), Limits(), 30))


def execute(box: client.NodeBox, **limits: Any) -> Any:
    return box.exec(["true"], stdin=b"", env={}, cwd="", limits=Limits(**limits), stop=None)


def test_right_answer_is_taken() -> None:
    assert execute(box_of(lambda number: [({"answer": number, "value": RIGHT}, b"hi")])).stdout == b"hi"


WRONG = [None, True, -1, 1.5, "x", [], {}, [1]]


@pytest.mark.parametrize("name", sorted(set(RIGHT) - {"value"}))
def test_wrong_field_of_a_result_is_a_lost_box(name: str) -> None:
    for value in WRONG:
        if type(value) is type(RIGHT[name]) and value not in ("x", {}, -1):
            continue
        if (name, value) in (("detail", "x"), ("ids", "x"), ("isolation", "x"), ("exit_code", -1), ("signal", -1)):
            continue
        if name in ("exit_code", "signal") and value is None:
            continue
        with pytest.raises(BoxLost):
            execute(box_of(lambda number, value=value: [({"answer": number, "value": {**RIGHT, name: value}}, b"hi")]))


@pytest.mark.parametrize("value", WRONG)
def test_answer_that_is_none_is_a_lost_box(value: Any) -> None:
    with pytest.raises(BoxLost):
        execute(box_of(lambda number: [({"answer": number, "value": value}, b"")]))
    with pytest.raises((BoxError, WireError)):
        execute(box_of(lambda number: [({"answer": number, "error": value}, b"")]))
    with pytest.raises(BoxLost):
        execute(box_of(lambda number: [({"answer": value}, b""), ({"answer": [number]}, b"")]))


def test_more_output_than_the_limit_is_a_lost_box() -> None:
    right = {**RIGHT, "out": 1000}
    with pytest.raises(BoxLost, match="more bytes than were asked for"):
        execute(box_of(lambda number: [({"answer": number, "value": right}, b"x" * 1000)]), output_bytes=999)


def test_output_that_does_not_add_up_is_a_lost_box() -> None:
    with pytest.raises(BoxLost, match="more or less output than it announced"):
        execute(box_of(lambda number: [({"answer": number, "value": RIGHT}, b"hi there")]))


@pytest.mark.parametrize(
    "message",
    [
        {"lane": 2, "key": 99, "results": [RIGHT], "failure": ""},
        {"lane": 2, "key": 7, "results": [RIGHT, RIGHT], "failure": ""},
        {"lane": 2, "key": 7, "results": [], "failure": ""},
        {"lane": 2, "key": 7, "results": [None], "failure": ""},
        {"lane": 2, "key": 7, "results": None, "failure": ""},
        {"lane": [], "key": 7},
        {"lane": 2},
        {"lane": 2, "lost": True},
    ],
    ids=str,
)
def test_results_of_a_batch_that_nobody_waits_for_lose_it(message: dict[str, Any]) -> None:
    lane = box_of(lambda number: [(message, b"hihi")]).programs()
    lane.give(7, Task(sources=["print(1)"], limits=Limits()))
    with pytest.raises(WireError):
        lane.collect()


def test_server_that_does_not_answer_is_a_lost_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GRACE_S", 0.1)
    with pytest.raises(BoxLost, match="did not answer"):
        execute(box_of(lambda number: []), wall_s=0.1)


def test_late_answer_of_a_server_loses_its_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GRACE_S", 0.2)
    monkeypatch.setattr(connection, "SERVER_S", 0.1)
    asked: list[int] = []

    def answer(message: dict[str, Any]) -> list[Answer]:
        """The first request is answered together with the second."""
        asked.append(message["request"])
        now = {1: [], 2: asked[:2]}.get(len(asked), asked[-1:])
        return [({"answer": number, "value": RIGHT}, b"hi") for number in now]

    node = connected(answer, is_server=True)
    box = client.NodeBox(node, 1, "b", "full")
    with pytest.raises(BoxLost, match="did not answer"):
        execute(box, wall_s=0.1)
    assert [execute(box).stdout for _ in range(3)] == [b"hi"] * 3
    assert node.usable


@pytest.mark.thorough
def test_server_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from websockets.sync.server import ServerConnection, serve

    monkeypatch.setattr(link, "SEND_S", 0.3)
    monkeypatch.setattr(link, "SEND_BYTES_S", 1 << 30)
    over = threading.Event()

    def hang(connection: ServerConnection) -> None:
        over.wait(20)

    with serve(hang, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        backend = RemoteBackend(f"http://127.0.0.1:{server.socket.getsockname()[1]}", "x" * 30)
        box = client.NodeBox(backend._node(), 1, "b", "full")  # pyright: ignore[reportPrivateUsage]
        start = time.monotonic()
        try:
            with pytest.raises(BoxLost, match="does not read"):
                box.exec(["cat"], stdin=bytes(60 << 20), env={}, cwd="", limits=Limits(), stop=None)
            assert time.monotonic() - start < 8
        finally:
            over.set()
            server.shutdown()


def test_wrong_forks_are_a_lost_box() -> None:
    for forks in (None, [], [1], [{"handle": 1}], [{}] * 2):
        box = box_of(lambda number, forks=forks: [({"answer": number, "value": {"forks": forks}}, b"")])
        with pytest.raises((BoxLost, WireError)):
            box.fork(1)
