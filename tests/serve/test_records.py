"""Journals, usage and budgets of a server: durable, refused before anything runs, and nobody else's business."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena import AsyncSandboxSession, Sandbox, SandboxPool, SandboxSession, SpecError, WarmPoolManager
from harena.errors import BudgetExceeded
from harena.journal import verify
from harena.sessions.errors import NotFound
from harena.testing.boxserver import BoxServer, box_server

FIRST, SECOND, POOR, SPENT, SMALL = (letter * 30 for letter in "abcde")
ECHO = {"name": "hello", "command": ["echo", "hi"]}


def tokens(folder: Path) -> None:
    (folder / "tokens").write_text(f"first {FIRST}\nsecond {SECOND}\npoor {POOR}\nspent {SPENT}\nsmall {SMALL}\n")
    os.chmod(folder / "tokens", 0o600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("records")
    tokens(made)
    (made / "key").write_bytes(os.urandom(32))
    os.chmod(made / "key", 0o600)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[BoxServer]:
    options = ["--journal", str(folder / "journals"), "--journal-key", str(folder / "key")]
    options += ["--usage", str(folder / "usage.db"), "--budget", "poor:boxes=1,per=day"]
    options += ["--budget", "spent:boxes=3", "--budget", "small:bytes=20000"]
    with box_server(folder, *options) as started:
        yield started


def ask(server: BoxServer, token: str, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def usage(server: BoxServer, token: str, query: str = "") -> dict[str, Any]:
    status, text = ask(server, token, "GET", f"/v1/usage{query}")
    assert status == 200
    return json.loads(text)


def total(server: BoxServer, token: str, name: str) -> float:
    return sum(row[name] for row in usage(server, token, "?by=")["usage"])


def test_trajectory_of_a_session_has_actions_rewards_and_labels(server: BoxServer, folder: Path) -> None:
    with SandboxSession(server=server.url, token=FIRST, run="train-1", agent="model/7b", keep_steps=True) as session:
        session.execute([ECHO, {"name": "patch", "type": "FilePatch", "path": "a", "content": "x"}], trace_id="t 1")
        session.reward(0.5)
        session.execute([{"name": "bad", "command": ["false"]}])
        session.reward(-1.0, done=True)
        found = session.trajectory()
        session_id = session.session_id
    assert [one["labels"]["step"] for one in found] == ["hello", "patch", "bad"]
    assert [(one["reward"], one["done"]) for one in found] == [(None, False), (0.5, False), (-1.0, True)]
    assert found[0]["observation"]["stdout"] == "hi\n"
    assert found[0]["labels"] | {"operation": ""} == {
        "owner": "first",
        "session": session_id,
        "run": "train-1",
        "agent": "model/7b",
        "operation": "",
        "trace": "t 1",
        "step": "hello",
    }
    status, text = ask(server, FIRST, "GET", f"/v1/sessions/{session_id}/trajectory")  # it has ended
    assert (status, [json.loads(line) for line in text.splitlines()]) == (200, found)
    path = folder / "journals" / "owner-first" / f"{session_id}.jsonl"
    checked = verify(path, key=(folder / "key").read_bytes())
    assert (checked.ok, checked.closed, checked.signatures_checked) == (True, True, True)


def test_fork_of_a_session_has_a_trajectory_of_its_own(server: BoxServer) -> None:
    with SandboxSession(server=server.url, token=FIRST, keep_steps=True) as session:
        session.execute([{"command": ["sh", "-c", "echo 1 > a"]}])
        for at in (None, "step-0"):
            with session.fork(at) as fork:
                fork.execute([{"name": "cat", "command": ["cat", "a"]}])
                assert [one["labels"]["step"] for one in fork.trajectory() if "step" in one["labels"]] == ["cat"]
                assert fork.trajectory()[-1]["labels"]["session"] == fork.session_id


def test_nobody_reads_the_trajectory_or_the_usage_of_another_owner(server: BoxServer) -> None:
    with SandboxSession(server=server.url, token=FIRST, run="secret-run") as session:
        session.execute([ECHO])
        path = f"/v1/sessions/{session.session_id}"
        for token, expected in ((SECOND, 404), ("x" * 30, 401)):
            assert ask(server, token, "GET", f"{path}/trajectory")[0] == expected
            assert ask(server, token, "POST", f"{path}/reward", {"reward": 1.0})[0] == expected
        for forged in ("..%2Fowner-first%2F" + session.session_id, "..", "%2e%2e", "a" * 24, "*"):
            assert ask(server, SECOND, "GET", f"/v1/sessions/{forged}/trajectory")[0] in (404, 405)
    ended = ask(server, SECOND, "GET", f"{path}/trajectory")
    assert ended[0] == 404
    assert ask(server, FIRST, "GET", f"{path}/trajectory")[0] == 200
    for where in ("/v1/usage", "/v1/usage?by=owner", "/v1/usage?owner=first", "/v1/stats", "/metrics"):
        status, text = ask(server, SECOND, "GET", where)
        assert b"secret-run" not in text
        assert b"first" not in text
        assert status == (400 if where.endswith("by=owner") else 200)


@pytest.mark.parametrize(
    "body",
    [{}, {"reward": "1"}, {"reward": 1.0, "typo": 1}, {"reward": 1.0, "seq": 0}, {"reward": 1.0, "seq": 10**6}, []],
    ids=str,
)
def test_wrong_reward_is_refused(server: BoxServer, body: Any) -> None:
    with SandboxSession(server=server.url, token=FIRST) as session:
        session.execute([ECHO])
        assert ask(server, FIRST, "POST", f"/v1/sessions/{session.session_id}/reward", body)[0] == 400
        assert session.trajectory()[0]["reward"] is None


@pytest.mark.parametrize("label", ["x" * 101, "a b", "\x1b[2J", "(other)", "é"])
def test_wrong_labels_are_refused(server: BoxServer, label: str) -> None:
    for field in ("run", "agent"):
        assert ask(server, FIRST, "POST", "/v1/sessions", {field: label})[0] == 400


def test_usage_is_counted_by_run_and_agent(server: BoxServer) -> None:
    with SandboxSession(server=server.url, token=SECOND, run="r1", agent="a1") as session:
        session.upload("data", b"x" * 1000)
        session.execute([{"command": ["sh", "-c", "head -c 500 data; while [ $((n=n+1)) -lt 50000 ]; do :; done"]}])
    with SandboxSession(server=server.url, token=SECOND) as session:
        session.execute([ECHO], trace_id="trace 9")
    rows = {(row["run"], row["agent"]): row for row in usage(server, SECOND)["usage"]}
    first = rows["r1", "a1"]
    assert (first["boxes"], first["executions"], first["faults"]) == (1, 1, 0)
    assert 1000 <= first["bytes_in"] < 2000
    assert 500 <= first["bytes_out"] < 600
    assert first["cpu_s"] > 0
    assert first["gib_s"] > 0
    assert first["box_s"] > 0
    assert rows["trace_9", ""]["executions"] == 1
    [total] = usage(server, SECOND, "?by=")["usage"]
    assert total["executions"] >= 2
    text = ask(server, SECOND, "GET", "/metrics")[1].decode()
    assert f'harena_usage_executions_total{{owner="second"}} {total["executions"]}\n' in text
    assert 'harena_verdicts_total{owner="second",verdict="ok"}' in text


def test_boxes_of_a_connection_are_counted_too(server: BoxServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_RUN", "run of\nHARENA_RUN")
    before = {name: total(server, FIRST, name) for name in ("executions", "boxes")}
    with Sandbox(server.url, token=FIRST) as box:
        box.exec(["true"])
    with SandboxPool(server.url, token=FIRST, warm=1, max_live=1) as pool:
        pool.map(["print(1)"] * 20)
    assert total(server, FIRST, "executions") - before["executions"] == 21
    assert total(server, FIRST, "boxes") - before["boxes"] == 2
    assert {row["run"]: row["boxes"] for row in usage(server, FIRST)["usage"]}["run_of_HARENA_RUN"] == 2


def test_owner_without_budget_is_refused_before_anything_runs(server: BoxServer) -> None:
    session = SandboxSession(server=server.url, token=POOR)
    session.create_sandbox()  # the one box of the budget
    with pytest.raises(BudgetExceeded, match="boxes: 1 of 1 are used; it begins anew tomorrow"):
        session.execute([{"command": ["touch", "ran"]}])
    body = {"steps": [ECHO]}
    status, text = ask(server, POOR, "POST", f"/v1/sessions/{session.session_id}/execute", body)
    assert (status, json.loads(text)["error"]["kind"]) == (402, "BudgetExceeded")
    for method, path, body in (
        ("POST", "/v1/sessions", {}),
        ("POST", "/v1/pools", {"name": "p", "replicas": 0}),
        ("POST", f"/v1/sessions/{session.session_id}/fork", {"at": None}),
    ):
        assert ask(server, POOR, method, path, body)[0] == 402
    with pytest.raises(BudgetExceeded):
        Sandbox(server.url, token=POOR)
    with pytest.raises(BudgetExceeded):
        SandboxPool(server.url, token=POOR, warm=1)
    refused = next(one for one in session.trajectory() if one["action"]["verb"] == "exec")
    assert (refused["fault"]["kind"], refused["mask"]) == ("BudgetExceeded", True)
    session.delete_sandbox()
    with SandboxSession(server=server.url, token=FIRST) as other:  # others are not affected
        assert other.execute([ECHO])["status"]["state"] == "Succeeded"
    assert usage(server, POOR)["budget"]["boxes"] == 1


def rows_of(server: BoxServer, token: str, run: str) -> list[tuple[Any, ...]]:
    rows = [row for row in usage(server, token)["usage"] if row["run"] == run]
    return [(row["agent"], row["boxes"], row["executions"]) for row in rows]


def test_batches_are_counted_and_leave_the_boxes_of_their_pool_as_they_were(server: BoxServer) -> None:
    manager = WarmPoolManager(server=server.url, token=SECOND)
    manager.create_warmpool("counted", replicas=1)
    manager.wait_for_warmpool_ready("counted")
    cores = os.cpu_count() or 1
    for pool_ref, run in (("counted", "on-pool"), (None, "alone")):
        found = list(manager.run_batch(["print(1)"] * 20, pool_ref=pool_ref, run=run, agent="a"))
        assert len(found) == 20
        [(agent, boxes, executions)] = rows_of(server, SECOND, run)
        assert (agent, executions) == ("a", 20)
        assert 1 <= boxes <= cores
        [row] = [one for one in usage(server, SECOND)["usage"] if one["run"] == run]
        assert min(row["cpu_s"], row["gib_s"], row["box_s"], row["bytes_in"], row["bytes_out"]) > 0
    with SandboxSession("counted", server=server.url, token=SECOND, run="leased") as session:
        session.execute([ECHO])
    assert rows_of(server, SECOND, "leased") == [("", 1, 1)]
    assert rows_of(server, SECOND, "on-pool")[0][2] == 20
    manager.delete_warmpool("counted")
    with pytest.raises(SpecError, match="run"):
        list(manager.run_batch(["print(1)"], run="a b"))


def test_batch_ends_when_the_budget_is_used_up_and_another_does_not_begin(server: BoxServer) -> None:
    manager = WarmPoolManager(server=server.url, token=SMALL)
    found: list[Any] = []
    with pytest.raises(BudgetExceeded, match="bytes"):
        found.extend(manager.run_batch(["print('x' * 999)"] * 500))
    executed = total(server, SMALL, "executions")
    assert executed < 200
    assert ask(server, SMALL, "POST", "/v1/batch", {"programs": ["print(1)"]})[0] == 402
    assert total(server, SMALL, "executions") == executed


def test_pools_and_evaluators_are_counted_and_refused_too(server: BoxServer) -> None:
    manager = WarmPoolManager(server=server.url, token=SPENT)
    manager.create_warmpool("small", replicas=1)
    with SandboxSession(server=server.url, token=SPENT, run="graded", agent="a") as session:
        assert session.evaluate([ECHO], operation_id="op")["status"]["stdout"] == "hi\n"
        assert rows_of(server, SPENT, "graded") == [("a", 2, 1)]
        for _ in range(2):
            with pytest.raises(BudgetExceeded):
                session.evaluate([ECHO])
        assert rows_of(server, SPENT, "graded") == [("a", 3, 1)]
        assert session.evaluate([ECHO], operation_id="op")["status"]["stdout"] == "hi\n"
    with pytest.raises(BudgetExceeded):
        manager.scale_warmpool("small", 2)
    assert manager.scale_warmpool("small", 0)["replicas"] == 0
    assert manager.drain_warmpool("small")["phase"] == "Drained"
    manager.delete_warmpool("small")


def test_fork_at_a_step_is_charged_to_the_run_of_its_parent(server: BoxServer) -> None:
    with SandboxSession(server=server.url, token=SECOND, run="forked", agent="a", keep_steps=True) as session:
        session.execute([ECHO])
        for at in (None, "step-0"):
            with session.fork(at) as fork:
                fork.execute([ECHO])
    assert rows_of(server, SECOND, "forked") == [("a", 3, 3)]


def test_async_session_has_a_trajectory(server: BoxServer, tmp_path: Path) -> None:
    async def run(**where: Any) -> None:
        async with AsyncSandboxSession(run="async", agent="a", **where) as session:
            await session.execute([ECHO])
            await session.reward(1.0, done=True)
            [step] = await session.trajectory()
            assert (step["reward"], step["done"], step["observation"]["stdout"]) == (1.0, True, "hi\n")

    asyncio.run(run(server=server.url, token=SECOND))
    assert rows_of(server, SECOND, "async") == [("a", 1, 1)]
    asyncio.run(run(journal=tmp_path / "a.jsonl"))


def test_usage_survives_a_server_that_is_killed(tmp_path: Path) -> None:
    tokens(tmp_path)
    options = ["--usage", str(tmp_path / "usage.db"), "--budget", "first:boxes=2"]
    with box_server(tmp_path, *options) as server:
        with SandboxSession(server=server.url, token=FIRST, run="before") as session:
            session.execute([ECHO])
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with sqlite3.connect(tmp_path / "usage.db") as db:
                if db.execute("SELECT SUM(executions) FROM usage").fetchone()[0]:
                    break
            time.sleep(0.05)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    assert (tmp_path / "usage.db").stat().st_mode & 0o777 == 0o600
    with box_server(tmp_path, *options) as server:
        rows = usage(server, FIRST)["usage"]
        assert [(row["run"], row["executions"], row["boxes"]) for row in rows] == [("before", 1, 1)]
        with SandboxSession(server=server.url, token=FIRST, run="after"):
            pass
        with pytest.raises(BudgetExceeded):
            SandboxSession(server=server.url, token=FIRST).create_sandbox()


def test_server_without_journals_says_so(tmp_path: Path) -> None:
    tokens(tmp_path)
    with box_server(tmp_path) as server, SandboxSession(server=server.url, token=FIRST) as session:
        session.execute([ECHO])
        with pytest.raises(SpecError, match="--journal"):
            session.trajectory()
        with pytest.raises(SpecError, match="--journal"):
            session.reward(1.0)
        with pytest.raises(SpecError, match="the server keeps it"):
            SandboxSession(server=server.url, token=FIRST, journal="/tmp/x").create_sandbox()


def test_local_session_has_a_trajectory(tmp_path: Path) -> None:
    with SandboxSession(journal=tmp_path / "a.jsonl", run="mine") as session:
        session.execute([ECHO])
        session.reward(1.0, done=True)
        [step] = session.trajectory()
        assert (step["reward"], step["done"], step["observation"]["stdout"]) == (1.0, True, "hi\n")
    with pytest.raises(NotFound):
        session._engine.trajectory("0" * 24)
    with SandboxSession() as session, pytest.raises(SpecError, match="no journal"):
        session.trajectory()
