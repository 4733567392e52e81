"""One owner cannot take a server's threads, memory or places from the others, nor from the server itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena import BoxError, Limits, Sandbox, SandboxSession
from harena.errors import BoxClosed, IsolationUnavailable, Retry, SpecError, StartTimeout, file_error
from harena.node.link import HEAD
from harena.node.node import Node
from harena.node.rules import OwnerQuota, Quotas, Rules
from harena.serve import app as apps
from harena.serve import plane
from harena.serve.app import App
from harena.serve.tokens import Tokens
from harena.sessions import session as sessions
from harena.sessions.operations import without_frames
from harena.sessions.service import MAX_POOLS, Service
from harena.sessions.session import Session
from harena.testing.boxserver import BoxServer, box_server
from support.leaks import settle
from support.wire_client import raw_client

FIRST, SECOND = "a" * 30, "b" * 30
TOKENS = {"first": FIRST, "second": SECOND}


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    """A server with two owners, and room for four clients."""
    folder = tmp_path_factory.mktemp("shares")
    file = folder / "tokens"
    file.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    os.chmod(file, 0o600)
    with box_server(folder, "--max-clients", "4") as server:
        yield server


def post(server: BoxServer, token: str, path: str, body: Any) -> socket.socket:
    """Send a request, and return its connection."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def threads(server: BoxServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


@pytest.mark.thorough
def test_requests_whose_clients_have_gone_leave_threads_to_the_others(owners: BoxServer) -> None:
    """Each waits for an operation that takes an hour. So do those of the owner itself, but it can end the session."""
    where = {"server": owners.url, "token": FIRST}
    with SandboxSession(**where) as session:
        path = f"/v1/sessions/{session.session_id}/execute"
        body = {"steps": [{"command": ["sleep", "3600"], "timeout": 3600}]}
        before = threads(owners)
        for _ in range(8):
            batch = [post(owners, FIRST, path, body) for _ in range(50)]
            for sock in batch:
                sock.close()
        assert settle(lambda: threads(owners) - before > 200, True, within_s=60)
        with SandboxSession(server=owners.url, token=SECOND) as other:
            status = other.execute([{"command": ["echo", "hi"]}])["status"]
            assert status["stdout"] == "hi\n"
        assert threads(owners) - before < 400
        session.delete_sandbox()  # its own owner can still end it
    assert settle(lambda: threads(owners) - before < 50, True, within_s=60)


def test_places_for_clients_are_shared(owners: BoxServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(raw_client(owners))
        with pytest.raises(BoxError, match="no more clients"):
            Sandbox(owners.url, token=FIRST)
        with Sandbox(owners.url, token=SECOND) as box:
            assert box.exec(["echo", "hi"]).stdout == b"hi\n"


def request(method: str, path: str, token: str) -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")]
    return {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("x", 1), "client": ("x", 1)}  # fmt: skip


async def status_of(app: App, scope: dict[str, Any], *pieces: bytes, then: asyncio.Event | None = None) -> int:
    """Send pieces of a body, and wait for the event before the last one."""
    waiting = list(pieces)
    answers: list[int] = []

    async def receive() -> dict[str, Any]:
        if len(waiting) == 1 and then is not None:
            await then.wait()
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    await app(scope, receive, send)
    return answers[0]


def test_slow_bodies_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "MAX_BODIES", 2000)
    monkeypatch.setattr(apps, "SPARE_BODIES", 200)
    app = App(Tokens(TOKENS), Rules(), max_clients=4)

    async def attack() -> None:
        path, end = "/v1/nowhere", asyncio.Event()
        slow = [
            asyncio.create_task(status_of(app, request("PUT", path, FIRST), b"x" * 450, b"x", then=end))
            for _ in range(4)
        ]
        await asyncio.sleep(0.1)
        assert sorted(task.result() for task in slow if task.done()) == [503, 503]
        assert await status_of(app, request("PUT", path, SECOND), b"x" * 900) == 404
        assert await status_of(app, request("PUT", path, SECOND), b"x" * 1100) == 503
        end.set()
        assert sorted(await asyncio.gather(*slow)) == [404, 404, 503, 503]
        assert await status_of(app, request("PUT", path, FIRST), b"x" * 900) == 404

    asyncio.run(attack())
    app.service.close()


def test_json_of_many_small_things_is_refused() -> None:
    app = App(Tokens(TOKENS), Rules(), max_clients=4)
    body = b'{"steps":[' + b"{}," * (apps.MAX_ITEMS // 2) + b"{}]}"
    assert asyncio.run(status_of(app, request("POST", "/v1/sessions/x/execute", FIRST), body)) == 413
    assert asyncio.run(status_of(app, request("POST", "/v1/sessions/x/execute", FIRST), body[:10] + b"]}")) == 404
    app.service.close()


def test_answers_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "MAX_ANSWERS", 1000)
    app = App(Tokens(TOKENS), Rules(), max_clients=4)

    async def attack() -> None:
        read = asyncio.Event()
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            elif message.get("body") == b"":
                await read.wait()

        async def answer(size: int) -> None:
            counted = app._counted("first", send)
            await counted({"type": "http.response.start", "status": 200, "headers": []})
            await counted({"type": "http.response.body", "body": b"x" * size})

        tasks = [asyncio.create_task(answer(600)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert statuses == [200, 503, 503]
        read.set()
        await asyncio.gather(*tasks)
        await answer(5000)
        assert statuses[3:] == [200]

    asyncio.run(attack())
    app.service.close()


def test_unfinished_messages_count_for_their_owner() -> None:
    quota = OwnerQuota(Rules(request_mb=1))
    node = Node(lambda message, data=b"", /: None, rules=Rules(), quota=quota)

    async def read(*pieces: bytes) -> None:
        waiting = [{"type": "websocket.receive", "bytes": piece} for piece in pieces]

        async def receive() -> Any:
            return waiting.pop(0) if waiting else {"type": "websocket.disconnect"}

        await plane._read(receive, node, quota)

    asyncio.run(read(HEAD.pack(100, 3_000_000), b"x" * 600_000))
    assert quota.held("bytes of requests") == 0
    with pytest.raises(BoxError, match="bytes of requests"):
        asyncio.run(read(HEAD.pack(100, 3_000_000), b"x" * 600_000, b"x" * 600_000))
    assert quota.held("bytes of requests") == 0
    node.shut_down()


def test_requests_of_all_connections_count() -> None:
    quota = OwnerQuota(Rules(requests=2))
    answers: list[Any] = []
    nodes = [Node(lambda message, data=b"", /: answers.append(message), rules=Rules(), quota=quota) for _ in range(2)]
    quota.take("requests", 2)  # another connection has them
    for node in nodes:
        node.take({"verb": "capabilities", "request": 1}, b"")
    assert settle(lambda: [one["error"]["retry"] for one in answers], ["safe", "safe"], within_s=60)
    quota.give_back("requests", 2)
    nodes[0].take({"verb": "capabilities", "request": 2}, b"")
    assert settle(lambda: "value" in answers[-1], True, within_s=60)
    assert settle(lambda: quota.held("requests"), 0, within_s=60) == 0
    for node in nodes:
        node.shut_down()


def test_pools_without_boxes_are_counted() -> None:
    service = Service(Quotas(Rules()))
    for number in range(MAX_POOLS):
        service.create_pool("first", f"pool-{number}", replicas=0)
    with pytest.raises(BoxError, match="pools"):
        service.create_pool("first", "one-more", replicas=0)
    service.create_pool("second", "mine", replicas=0)
    service.delete_pool("first", "pool-0")
    service.create_pool("first", "one-more", replicas=0)
    service.close()


def execute(session: Session, steps: list[Any], operation_id: str | None = None) -> dict[str, Any]:
    operation, work = session.prepare(steps, operation_id=operation_id)
    if work is not None:
        work()
    return operation.outcome()


class Text(str):
    """Text that can be watched."""


def test_operation_that_failed_keeps_nothing_of_its_request() -> None:
    box = Sandbox()
    session = Session(box)
    box.close()
    for _ in range(3):  # the second and the third ask for the same operation again
        content = Text("x" * 1000)
        watched = weakref.ref(content)
        with pytest.raises(BoxClosed):
            execute(session, [{"type": "FilePatch", "path": "a", "content": content}], "one")
        del content
        gc.collect()
        assert watched() is None


@pytest.mark.parametrize(
    "error",
    [
        BoxError("text", retry=Retry.SAFE),
        BoxClosed("text"),
        StartTimeout("text"),
        SpecError("text"),
        IsolationUnavailable("this is missing", fix="that"),
        file_error(2, "path"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_of_an_operation_is_raised_again_as_it_was(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        again = without_frames(raised)
    assert type(again) is type(error)
    assert again is not error
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert again.__traceback__ is None


def test_what_sessions_keep_is_bounded_for_each_owner() -> None:
    """Steps without output fill a history too."""
    quota = OwnerQuota(Rules(kept_mb=1))
    with Sandbox() as box:
        session = Session(box, quota=quota)
        patch = {"type": "FilePatch", "path": "a", "content": "x"}
        with pytest.raises(BoxError, match="bytes kept") as caught:
            for _ in range(100):
                execute(session, [patch] * 20)
        assert caught.value.retry is Retry.SAFE
        assert 200 < len(session.history()) < 1000
        with pytest.raises(BoxError, match="bytes kept"):
            box.write("large", os.urandom(900_000))
            session.snapshot()
        session.end()
    assert quota.held("bytes kept") == 0


def test_output_of_many_steps_is_bounded_before_it_comes() -> None:
    """One request may have a thousand steps, and each of them 256 MB of output."""
    quota = OwnerQuota(Rules(kept_mb=1))
    with Sandbox(limits=Limits(output_bytes=200_000)) as box:
        session = Session(box, quota=quota)
        step = {"command": ["head", "-c", "190000", "/dev/zero"]}
        with pytest.raises(BoxError, match="several operations") as caught:
            execute(session, [step] * 10)
        assert caught.value.retry is Retry.NEVER
        assert len(session.history()) == 2
        assert len(execute(session, [step] * 2)["status"]["stdout"]) == 380_000
        assert [one["stdout"] == "" for one in session.history()] == [True, True, False, False]
        kept = quota.held("bytes kept")
        other = Session(box, quota=quota)
        for _ in range(2):
            with pytest.raises(BoxError, match="bytes kept") as caught:
                execute(other, [step], "later")
            assert caught.value.retry is Retry.SAFE
        assert quota.held("bytes kept") == kept
        session.end()
    assert quota.held("bytes kept") == 0


def test_old_output_makes_room_and_is_counted_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_KEPT", 100_000)
    quota = OwnerQuota(Rules(kept_mb=100))
    with Sandbox() as box:
        session = Session(box, quota=quota)
        patch = {"type": "FilePatch", "path": "a/b" * 100, "content": "x"}
        before = quota.held("bytes kept")
        for text in ("a", "é", "\N{SNAKE}"):
            for _ in range(3):
                execute(session, [{"command": ["printf", text + "x" * 20_000]}, patch])
        small = execute(session, [{"command": ["echo", "hi"]}], "small")
        assert execute(session, [{"command": ["echo", "hi"]}], "small") == small
        assert [one["stdout"] for one in session.history() if one.get("forgotten")].count("") >= 12
        records = 10 * sessions.RECORD_BYTES * 3
        assert before < quota.held("bytes kept") < 100_000 + 2 * records
        session.end()
    assert quota.held("bytes kept") == 0


def test_steps_before_a_failure_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_KEPT", 100_000)
    with Sandbox() as box:
        session = Session(box, keep_steps=True)
        monkeypatch.setattr(session, "_remember", lambda name, snapshot: 1 / 0)
        for number in range(6):
            with pytest.raises(ZeroDivisionError):
                execute(session, [{"command": ["head", "-c", "30000", "/dev/zero"]}])
            assert len(session.history()) == number + 1
        assert sum(len(one["stdout"]) for one in session.history()) <= 30_000


def test_file_of_tokens_tells_how_many_owners_there_are(tmp_path: Path) -> None:
    assert Tokens(TOKENS).owners == 2
    assert Tokens({}).owners == 1
