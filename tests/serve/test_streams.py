"""Output and results of steps as they come, locally and from a server, and what disturbs such streams."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harena import Limits, SandboxSession
from harena.sessions import operations
from harena.sessions.errors import NotFound
from harena.sessions.operations import Feed
from harena.testing.boxserver import BoxServer
from support.proxies import cutting_proxy

Keywords = dict[str, Any]
WAITS = "while [ ! -e go ]; do sleep 0.02; done"


def command(*words: str, **more: Any) -> dict[str, Any]:
    return {"name": words[0], "type": "Command", "command": list(words), **more}


def test_callback_is_called_when_its_step_ends_and_not_later(where: Keywords) -> None:
    """The second step waits for a file that the callback of the first one writes."""
    with SandboxSession(**where) as session:

        def callback(record: dict[str, Any]) -> None:
            if record["name"] == "echo":
                session.upload("go", b"")

        steps = [command("echo", "1"), command("sh", "-c", f"{WAITS}; echo 2", timeout=60)]
        result = session.execute_with_callback(steps, callback)
        assert result["status"]["stdout"] == "1\n2\n"
        assert result == session.execute(steps, operation_id=result["operationId"])


def test_output_comes_while_the_step_runs(where: Keywords) -> None:
    pieces: list[dict[str, Any]] = []
    with SandboxSession(**where) as session:

        def on_output(piece: dict[str, Any]) -> None:
            pieces.append(piece)
            if piece["data"] == "é\n":
                session.upload("go", b"")

        steps = [command("true"), command("sh", "-c", f"printf 'é\\n'; {WAITS}; echo b >&2; exit 3", timeout=60)]
        result = session.execute(steps, on_output=on_output)
        assert pieces == [
            {"step": 1, "stream": "stdout", "data": "é\n"},
            {"step": 1, "stream": "stderr", "data": "b\n"},
        ]
        assert (result["status"]["exitCode"], result["status"]["stdout"], result["status"]["stderr"]) == (
            3,
            "é\n",
            "b\n",
        )
        assert session.history() == result["status"]["steps"]


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (["sh", "-c", "exit 7"], {}),
        (["sleep", "60"], {"wall_s": 0.5}),
        (["yes"], {"output_bytes": 5000}),
        (["/nothing"], {}),
        (["sh", "-c", "kill -9 $$"], {}),
        (["cat"], {}),
    ],
    ids=str,
)
def test_streamed_step_ends_like_any_other(words: list[str], limits: dict[str, Any]) -> None:
    with SandboxSession(limits=Limits(**limits)) as session:
        plain = session.execute([command(*words)])["status"]
        pieces: list[str] = []
        streamed = session.execute([command(*words)], on_output=lambda piece: pieces.append(piece["data"]))["status"]
        for name in ("state", "exitCode", "stdout"):
            assert plain[name] == streamed[name]
        assert plain["steps"][0]["verdict"] == streamed["steps"][0]["verdict"]
        assert "".join(pieces) == streamed["stdout"] + streamed["stderr"]


def test_cut_connections_lose_no_event_and_run_nothing_twice(owners: BoxServer) -> None:
    """Every connection through the proxy is cut after some bytes."""
    steps = [command("sh", "-c", f"echo x >> runs; echo {number}; wc -l < runs") for number in range(8)]
    seen: list[str] = []
    pieces: list[tuple[int, str]] = []
    with SandboxSession(server=owners.url, token=FIRST) as session, cutting_proxy(owners.url, [700] * 40) as proxy:
        cut = SandboxSession(server=proxy.url, token=FIRST)
        cut.sandbox = session.sandbox
        result = cut.execute_with_callback(
            steps,
            lambda record: seen.append(record["stdout"]),
            on_output=lambda piece: pieces.append((piece["step"], piece["data"])),
        )
        expected = [f"{number}\n{number + 1}\n" for number in range(8)]
        assert seen == expected
        assert result["status"]["stdout"] == "".join(expected)
        for number in range(8):
            assert "".join(data for step, data in pieces if step == number) == expected[number]
        assert len(session.history()) == 8
        assert proxy.connections > 3


def test_callback_that_fails_leaves_the_operation_running(where: Keywords) -> None:
    with SandboxSession(**where) as session:

        def fail(record: dict[str, Any]) -> None:
            raise ZeroDivisionError

        steps = [command("echo", "1"), command("echo", "2")]
        with pytest.raises(ZeroDivisionError):
            session.execute_with_callback(steps, fail, operation_id="op")
        assert session.execute(steps, operation_id="op")["status"]["stdout"] == "1\n2\n"
        assert len(session.history()) == 2


# ---- the server alone ----

FIRST, SECOND = "a" * 30, "b" * 30


def lines(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline():
        if line.strip():
            yield json.loads(line)


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    """Close what `open_stream` opened."""
    yield
    while OPENED:
        OPENED.pop().close()


OPENED: list[Any] = []


def open_stream(
    server: BoxServer, path: str, body: Any = None, token: str = FIRST
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    OPENED.append(connection)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    OPENED.append(connection.getresponse())
    return connection, OPENED[-1]


def test_operation_is_followed_from_any_event(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        path = f"/v1/sessions/{session.session_id}"
        steps = [command("echo", "1"), command("sh", "-c", f"{WAITS}; echo 2", timeout=60)]
        connection, response = open_stream(
            owners, f"{path}/execute", {"steps": steps, "operationId": "a/b ?", "stream": "output"}
        )
        first = [next(lines(response)) for _ in range(2)]
        assert [event["event"] for event in first] == ["output", "step"]
        connection.close()
        session.upload("go", b"")
        _, response = open_stream(owners, f"{path}/operations/a%2Fb%20%3F/events?after=2")
        rest = list(lines(response))
        assert [(event["number"], event["event"]) for event in rest] == [(3, "output"), (4, "step"), (5, "end")]
        assert rest[-1]["result"]["status"]["exitCode"] == 0
        _, response = open_stream(owners, f"{path}/operations/a%2Fb%20%3F/events")
        assert list(lines(response)) == first + rest


def test_events_of_others_and_from_the_future_are_refused(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        path = f"/v1/sessions/{session.session_id}/operations"
        session.execute([command("true")], operation_id="op")
        cases = [
            (f"{path}/op/events", SECOND, 404),
            (f"{path}/op/events", "x" * 30, 401),
            (f"{path}/other/events", FIRST, 404),
            (f"{path}/op/events?after=99", FIRST, 400),
            (f"{path}/op/events?after={1 << 70}", FIRST, 400),
            (f"{path}/op/events?after=-1", FIRST, 400),
            (f"{path}/op/events?after=x", FIRST, 400),
            (f"{path}/op/events?after=2", FIRST, 200),
        ]
        for where, token, status in cases:
            connection, response = open_stream(owners, where, token=token)
            assert (where, response.status) == (where, status)
            connection.close()
        body = {"steps": [command("true")], "operationId": "op", "stream": "steps", "after": 1 << 52}
        assert open_stream(owners, f"/v1/sessions/{session.session_id}/execute", body)[1].status == 400


def test_reader_that_stops_reading_disturbs_nobody(owners: BoxServer) -> None:
    """It does not read 30 MB of output. The step ends all the same, and the session serves others meanwhile."""
    with SandboxSession(server=owners.url, token=FIRST, limits=Limits(output_bytes=40_000_000)) as session:
        steps = [command("sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' x; echo done > ended")]
        host, port = owners.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps({"steps": steps, "operationId": "op", "stream": "output"}).encode()
            slow.sendall(
                f"POST /v1/sessions/{session.session_id}/execute HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {FIRST}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            result = session.execute(steps, operation_id="op")
            assert len(result["status"]["stdout"]) == 30_000_000
            assert session.execute([command("cat", "ended")])["status"]["stdout"] == "done\n"
            assert len(session.history()) == 2


def test_feed_forgets_the_oldest_pieces_and_keeps_the_rest() -> None:
    feed = Feed()
    piece = "x" * 100_000
    for number in range(100):
        feed.append({"event": "output", "step": 0, "stream": "stdout", "data": piece}, len(piece))
        feed.append({"event": "step", "step": number, "result": {}})
    assert feed.size <= operations.MAX_PIECES
    events, ended = feed.after(0)
    assert not ended
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(100))
    assert 30 < sum(event["event"] == "output" for event in events) < 60
    feed.append({"event": "end", "result": {}})
    assert feed.after(200) == ([{"number": 201, "event": "end", "result": {}}], True)


def test_session_that_ends_ends_its_streams(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        body = {"steps": [command("sh", "-c", "echo here; sleep 100", timeout=100)], "stream": "output"}
        _, response = open_stream(owners, f"/v1/sessions/{session.session_id}/execute", body)
        assert next(lines(response))["data"] == "here\n"
        threading.Timer(0.1, session.delete_sandbox).start()
        begun = time.monotonic()
        assert [event["event"] for event in lines(response)][-1] == "error"
        assert time.monotonic() - begun < 60
    with pytest.raises(NotFound):
        SandboxSession.history(_dead(session))


def _dead(session: SandboxSession) -> SandboxSession:
    session.sandbox = {"id": "0" * 24}
    return session


def test_half_of_a_surrogate_pair_is_answered(owners: BoxServer) -> None:
    """In a command, which the history repeats."""
    with SandboxSession(server=owners.url, token=FIRST) as session:
        path = f"/v1/sessions/{session.session_id}"
        _, response = open_stream(owners, f"{path}/execute", {"steps": [command("echo", "\ud800")]})
        assert response.status == 400
        _, response = open_stream(owners, f"{path}/history")
        assert response.status == 200
