"""Sessions and warm pools: the same claims on pools of this process and on a server."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harena import (
    BoxClosed,
    BoxError,
    BoxFileNotFound,
    Limits,
    Sandbox,
    SandboxSession,
    Spec,
    SpecError,
    WarmPoolManager,
)
from harena.sessions.errors import Conflict, NotFound
from harena.testing.boxserver import BoxServer, box_server

FIRST, SECOND = "a" * 30, "b" * 30
Keywords = dict[str, Any]


def command(*words: str, **more: Any) -> dict[str, Any]:
    return {"name": words[0], "type": "Command", "command": list(words), **more}


def test_snippet_of_the_contract(where: Keywords, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its users have it, but for the image and for pip, which would need a network."""
    if where:
        monkeypatch.setenv("HARENA_SERVER", where["server"])
        monkeypatch.setenv("HARENA_TOKEN", where["token"])

    warmpool_mgr = WarmPoolManager(namespace="default")
    warmpool_mgr.create_warmpool(name="my-python-pool", replicas=2)
    warmpool_mgr.wait_for_warmpool_ready("my-python-pool")
    assert warmpool_mgr.get_pool_status("my-python-pool") == {
        "total": 2,
        "ready_idle": 2,
        "allocated": 0,
        "available": 2,
    }
    with SandboxSession(pool_ref="my-python-pool", namespace="default") as session:
        result = session.execute(
            [
                {"name": "hello", "type": "Command", "command": ["echo", "Hello, World!"]},
                {"name": "list", "type": "Command", "command": ["ls", "/"], "container": "executor"},
            ]
        )
        assert result["status"]["stdout"].startswith("Hello, World!\n")
        assert result["status"]["state"] == "Succeeded"
        assert warmpool_mgr.get_pool_status("my-python-pool")["allocated"] == 1
    assert warmpool_mgr.get_warmpool("my-python-pool")["allocated"] == 0
    warmpool_mgr.delete_warmpool("my-python-pool")
    with pytest.raises(NotFound):
        warmpool_mgr.get_warmpool("my-python-pool")


def test_steps_stop_at_the_first_failure_unless_asked_otherwise(where: Keywords) -> None:
    steps = [command("echo", "one"), command("sh", "-c", "echo bad >&2; exit 3"), command("echo", "three")]
    with SandboxSession(**where) as session:
        status = session.execute(steps)["status"]
        assert (status["state"], status["exitCode"], status["stdout"], status["stderr"]) == (
            "Failed",
            3,
            "one\n",
            "bad\n",
        )
        assert [step["state"] for step in status["steps"]] == ["Succeeded", "Failed"]
        status = session.execute(steps, keep_going=True)["status"]
        assert (status["state"], status["stdout"]) == ("Failed", "one\nthree\n")
        assert [(one["index"], one["name"]) for one in session.history()][:2] == [(0, "echo"), (1, "sh")]
        assert len(session.history()) == 5


def test_step_has_folder_environment_timeout_and_verdict(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        status = session.execute(
            [
                {"type": "FilePatch", "name": "patch", "path": "src/a.txt", "content": "héllo"},
                command("sh", "-c", "cat a.txt; echo $WHO", workDir="src", env={"WHO": "me"}),
                command("sleep", "30", timeout="500ms"),
            ],
            trace_id="trace-1",
        )["status"]
        assert status["stdout"] == "héllome\n"
        assert (status["steps"][2]["verdict"], status["exitCode"]) == ("time", 124)
        assert {one["traceId"] for one in session.history()} == {"trace-1"}
        failed = session.execute([{"type": "FilePatch", "path": "/usr/x", "content": ""}])["status"]
        assert (failed["state"], failed["exitCode"]) == ("Failed", 1)


WRONG = [
    "echo",
    [],
    [1],
    [{}],
    [{"command": "echo hi"}],
    [{"command": []}],
    [{"command": [1]}],
    [{"command": ["a\0b"]}],
    [{"command": ["true"], "typo": 1}],
    [{"command": ["true"], "env": {"A": 1}}],
    [{"command": ["true"], "env": {"A=": "1"}}],
    [{"command": ["true"], "timeout": -1}],
    [{"command": ["true"], "timeout": "soon"}],
    [{"command": ["true"], "container": "host"}],
    [{"command": ["true"], "type": "Reboot"}],
    [{"type": "FilePatch", "path": "a"}],
    [{"type": "FilePatch", "path": "a\0", "content": ""}],
    [{"command": ["touch", "ran"]}, {"command": 1}],
]


@pytest.mark.parametrize("steps", WRONG, ids=str)
def test_wrong_step_is_refused_before_anything_runs(owners: BoxServer, steps: Any) -> None:
    with SandboxSession() as local, pytest.raises(SpecError):
        local.execute(steps)
    with SandboxSession(server=owners.url, token=FIRST) as session:
        status, answer = ask(owners, FIRST, "POST", f"/v1/sessions/{session.session_id}/execute", {"steps": steps})
        assert (status, answer["error"]["kind"]) == (400, "SpecError")
        assert session.history() == []


def test_operation_id_never_runs_twice(where: Keywords) -> None:
    steps = [command("sh", "-c", "echo x >> runs; sleep 0.5; wc -l < runs")]
    with SandboxSession(**where) as session:
        results: list[dict[str, Any]] = []
        threads = [
            threading.Thread(target=lambda: results.append(session.execute(steps, operation_id="op-1")))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [one["status"]["stdout"] for one in results] == ["1\n"] * 8
        assert len(session.history()) == 1
        assert session.execute(steps, operation_id="op-2")["status"]["stdout"] == "2\n"
        with pytest.raises(Conflict):
            session.execute([command("true")], operation_id="op-1")


def test_lost_connection_is_picked_up_where_it_was(owners: BoxServer) -> None:
    """A client that hangs up in the middle of an execution gets its result by asking again."""
    with SandboxSession(server=owners.url, token=FIRST) as session:
        steps = [command("sh", "-c", "echo x >> runs; sleep 1; wc -l < runs")]
        path = f"/v1/sessions/{session.session_id}/execute"
        connection = http.client.HTTPConnection(owners.url.removeprefix("http://"))
        body = json.dumps({"steps": steps, "operationId": "op"})
        headers = {"Authorization": f"Bearer {FIRST}", "Content-Type": "application/json"}
        connection.request("POST", path, body, headers)
        time.sleep(0.4)
        connection.close()
        assert session.execute(steps, operation_id="op")["status"]["stdout"] == "1\n"
        assert len(session.history()) == 1


def test_callbacks_see_each_step(where: Keywords) -> None:
    seen: list[str] = []
    also: list[str] = []

    def callback(record: dict[str, Any]) -> None:
        seen.append(record["stdout"])

    with SandboxSession(**where) as session:
        session.register_callback(callback)
        session.execute_with_callback(
            [command("echo", "1"), command("echo", "2")], lambda one: also.append(one["name"])
        )
        session.unregister_callback(callback)
        session.execute([command("echo", "3")])
    assert seen == ["1\n", "2\n"]
    assert also == ["echo", "echo"]


def test_files_carry_their_digest(where: Keywords, owners: BoxServer) -> None:
    data = os.urandom(3_000_000)
    with SandboxSession(**where) as session:
        assert session.upload("a/b.bin", data) == hashlib.sha256(data).hexdigest()
        assert session.download("a/b.bin") == data
        status = session.execute([command("sha256sum", "a/b.bin")])["status"]
        assert status["stdout"].startswith(hashlib.sha256(data).hexdigest())
        with pytest.raises(BoxFileNotFound):
            session.download("nothing")


def test_damaged_upload_changes_nothing(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        session.upload("file", b"right")
        path = f"/v1/sessions/{session.session_id}/files?path=file"
        status, answer = ask(owners, FIRST, "PUT", path, data=b"wrong", headers={"X-Content-SHA256": "0" * 64})
        assert (status, answer["error"]["kind"]) == (400, "SpecError")
        assert session.download("file") == b"right"


def test_snapshot_restore_and_fork_at_a_step(where: Keywords) -> None:
    with SandboxSession(keep_steps=True, **where) as session:
        session.execute([command("sh", "-c", f"echo {number} > file; touch f{number}") for number in range(3)])
        name = session.snapshot()
        with session.fork(at="step-1") as fork:
            assert fork.execute([command("sh", "-c", "cat file; ls")])["status"]["stdout"] == "1\nf0\nf1\nfile\n"
            fork.execute([command("rm", "file")])
        with session.fork() as fork:
            assert fork.execute([command("cat", "file")])["status"]["stdout"] == "2\n"
        session.restore("step-0")
        assert session.execute([command("sh", "-c", "cat file; ls")])["status"]["stdout"] == "0\nf0\nfile\n"
        session.restore(name)
        assert session.execute([command("cat", "file")])["status"]["stdout"] == "2\n"
        with pytest.raises(NotFound):
            session.restore("step-99")


def test_idle_and_lifetime_end_a_session(where: Keywords) -> None:
    for clocks in ({"idle_s": 0.5}, {"lifetime_s": 0.5}):
        session = SandboxSession(**clocks, **where)
        session.create_sandbox()
        assert session.execute([command("echo", "hi")])["status"]["stdout"] == "hi\n"
        time.sleep(1.5)
        with pytest.raises((NotFound, BoxClosed)):
            session.execute([command("true")])
        session.delete_sandbox()


def test_idle_clock_stands_while_something_runs(where: Keywords) -> None:
    with SandboxSession(idle_s=0.5, **where) as session:
        assert session.execute([command("sh", "-c", "sleep 1.5; echo hi")])["status"]["stdout"] == "hi\n"


def test_keep_alive_outlives_the_block(where: Keywords) -> None:
    with SandboxSession(keep_alive=True, **where) as session:
        session.execute([command("touch", "kept")])
    assert session.execute([command("ls")])["status"]["stdout"] == "kept\n"
    session.delete_sandbox()
    with pytest.raises(BoxClosed):
        session.execute([command("ls")])


def test_session_of_a_spec_has_its_limits(where: Keywords) -> None:
    with SandboxSession(spec=Spec(hostname="mine"), limits=Limits(wall_s=1), **where) as session:
        status = session.execute([command("hostname"), command("sleep", "30")])["status"]
        assert (status["stdout"], status["steps"][1]["verdict"]) == ("mine\n", "time")


# ---- the server alone ----


def ask(
    server: BoxServer,
    token: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
    if body is not None:
        data = json.dumps(body).encode()
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_nobody_sees_what_belongs_to_another_owner(owners: BoxServer) -> None:
    manager = WarmPoolManager(server=owners.url, token=FIRST)
    manager.create_warmpool("mine", replicas=0)
    with SandboxSession(server=owners.url, token=FIRST) as session:
        path = f"/v1/sessions/{session.session_id}"
        steps = {"steps": [command("true")]}
        calls: list[tuple[str, str, Any]] = [
            ("GET", path, None),
            ("DELETE", path, None),
            ("POST", f"{path}/execute", steps),
            ("GET", f"{path}/history", None),
            ("GET", f"{path}/files?path=a", None),
            ("PUT", f"{path}/files?path=a", None),
            ("POST", f"{path}/snapshots", None),
            ("POST", f"{path}/restore", {"name": "a"}),
            ("POST", f"{path}/fork", {"at": None}),
            ("GET", "/v1/pools/default/mine", None),
            ("GET", "/v1/pools/default/mine/status", None),
            ("DELETE", "/v1/pools/default/mine", None),
            ("POST", "/v1/sessions", {"poolRef": "mine"}),
        ]
        for method, where, body in calls:
            assert ask(owners, SECOND, method, where, body)[0] == 404
            assert ask(owners, "x" * 30, method, where, body)[0] == 401
        assert ask(owners, SECOND, "GET", "/v1/sessions")[1] == {"sessions": []}
        assert ask(owners, SECOND, "GET", "/v1/pools")[1] == {"pools": []}
        assert [one["id"] for one in ask(owners, FIRST, "GET", "/v1/sessions")[1]["sessions"]] == [session.session_id]
        assert session.history() == []
    manager.delete_warmpool("mine")


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"typo": 1},
        {"idleSeconds": "1"},
        {"idleSeconds": -1},
        {"lifetimeSeconds": 1e12},
        {"keepSteps": 1},
        {"image": "python:3.12-slim"},
        {"spec": {}},
        {"spec": {"mounts": []}},
        {"limits": {"wall_s": 1}},
        {"poolRef": "x", "image": "y"},
        {"namespace": ["default"]},
    ],
    ids=str,
)
def test_wrong_session_is_refused(owners: BoxServer, body: Any) -> None:
    """`test_right_session_is_created` is the control."""
    status, answer = ask(owners, FIRST, "POST", "/v1/sessions", body)
    assert (status, answer["error"]["kind"]) == (400, "SpecError")


def test_right_session_is_created(owners: BoxServer) -> None:
    status, answer = ask(owners, FIRST, "POST", "/v1/sessions", {"idleSeconds": 60.0, "namespace": "default"})
    assert status == 201
    path = f"/v1/sessions/{answer['id']}"
    status, answer = ask(owners, FIRST, "POST", f"{path}/execute", {"steps": [{"command": ["echo", "hi"]}]})
    assert (status, answer["status"]["stdout"]) == (200, "hi\n")
    assert ask(owners, FIRST, "DELETE", path) == (200, {})


def test_owner_has_only_so_many_boxes(owners: BoxServer) -> None:
    manager = WarmPoolManager(server=owners.url, token=SECOND)
    manager.create_warmpool("warm", replicas=2)
    manager.wait_for_warmpool_ready("warm")
    with pytest.raises(BoxError, match="at once"):
        manager.create_warmpool("more", replicas=5)
    sessions = [SandboxSession(server=owners.url, token=SECOND) for _ in range(5)]
    try:
        for session in sessions[:4]:
            session.create_sandbox()
        with pytest.raises(BoxError, match="at once"):
            sessions[4].create_sandbox()
        with SandboxSession(server=owners.url, token=FIRST) as other:
            assert other.execute([command("echo", "hi")])["status"]["stdout"] == "hi\n"
    finally:
        for session in sessions:
            session.delete_sandbox()
        manager.delete_warmpool("warm")


def test_large_and_broken_bodies_are_refused(owners: BoxServer) -> None:
    connection = http.client.HTTPConnection(owners.url.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/v1/sessions")
    connection.putheader("Authorization", f"Bearer {FIRST}")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    for data in (b"{", b"\xff", b"[" * 100_000, b"null", b""):
        assert ask(owners, FIRST, "POST", "/v1/sessions", data=data)[0] in (400, 422)


def test_metrics_count_boxes(owners: BoxServer) -> None:
    def metrics() -> dict[str, float]:
        connection = http.client.HTTPConnection(owners.url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {FIRST}"})
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}

    before = metrics()
    with SandboxSession(server=owners.url, token=SECOND):
        assert metrics()["harena_serve_sessions"] == before["harena_serve_sessions"] + 1
        assert metrics()["harena_serve_boxes"] == before["harena_serve_boxes"] + 1
    assert metrics() == before
    assert ask(owners, "x" * 30, "GET", "/metrics")[0] == 401


def test_drain_waits_for_what_is_there_and_takes_nothing_new(tmp_path: Path) -> None:
    with box_server(tmp_path, "--drain", "60") as server:
        session = SandboxSession(server=server.url, token=server.token)
        session.create_sandbox()
        server.process.terminate()
        end = time.monotonic() + 60
        while ask(server, server.token, "GET", "/readyz")[0] != 503:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert server.process.poll() is None
        with pytest.raises(BoxError, match="stopping"):
            SandboxSession(server=server.url, token=server.token).create_sandbox()
        with pytest.raises(BoxError, match="no more clients"):
            Sandbox(server.url, token=server.token)
        assert session.execute([command("echo", "still here")])["status"]["stdout"] == "still here\n"
        session.delete_sandbox()
        assert server.process.wait(60) == 0


def test_openapi_names_every_path(owners: BoxServer) -> None:
    status, document = ask(owners, FIRST, "GET", "/openapi.json")
    assert status == 200
    assert {"/v1/sessions", "/v1/sessions/{session_id}/execute", "/v1/pools"} <= set(document["paths"])


def test_server_that_ends_takes_its_sessions_along(tmp_path: Path, marker: Callable[[], str]) -> None:
    from harena.testing.contract.conftest import processes_with
    from support.leaks import settle

    mark = marker()
    with box_server(tmp_path) as server:
        session = SandboxSession(server=server.url, token=server.token)
        session.create_sandbox()
        failed: list[Exception] = []

        def run() -> None:
            try:
                session.execute([command("sleep", mark, timeout=60)])
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert settle(lambda: bool(processes_with(mark)), True, within_s=60)
    thread.join(30)
    assert failed
    assert settle(lambda: processes_with(mark), [], within_s=60) == []


@pytest.fixture
def marker() -> Callable[[], str]:
    return lambda: f"{40000 + int.from_bytes(os.urandom(3))}.{os.getpid()}"
