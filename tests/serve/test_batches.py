"""Pools that are scaled and drained, and batches of programs with verdicts as they come."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harena import AsyncWarmPoolManager, BoxError, Limits, SandboxSession, SpecError, WarmPoolManager
from harena.sessions.errors import Conflict, NotFound
from harena.testing.boxserver import BoxServer, box_server
from support.leaks import settle
from support.proxies import cutting_proxy

Keywords = dict[str, Any]
FIRST, SECOND = "a" * 30, "b" * 30


def in_time(read: Callable[[], Any], wanted: Any) -> None:
    assert settle(read, wanted, within_s=60) == wanted


def test_pool_is_scaled_up_and_down(where: Keywords) -> None:
    manager = WarmPoolManager(**where)
    manager.create_warmpool("scaled", replicas=1)
    manager.wait_for_warmpool_ready("scaled")
    assert manager.scale_warmpool("scaled", 3)["replicas"] == 3
    in_time(lambda: manager.get_pool_status("scaled")["ready_idle"], 3)
    manager.scale_warmpool("scaled", 1)
    in_time(lambda: manager.get_pool_status("scaled")["ready_idle"], 1)
    with pytest.raises(SpecError):
        manager.scale_warmpool("scaled", -1)
    with pytest.raises(NotFound):
        manager.scale_warmpool("other", 1)
    manager.delete_warmpool("scaled")


def test_drained_pool_lends_no_more_and_its_sessions_continue(where: Keywords) -> None:
    manager = WarmPoolManager(**where)
    manager.create_warmpool("drained", replicas=1)
    manager.wait_for_warmpool_ready("drained")
    with SandboxSession(pool_ref="drained", **where) as session:
        assert manager.drain_warmpool("drained")["phase"] == "Draining"
        with pytest.raises(Conflict, match="drained"):
            SandboxSession(pool_ref="drained", **where).create_sandbox()
        with pytest.raises(Conflict, match="drained"):
            list(manager.run_batch(["print(1)"], pool_ref="drained"))
        assert session.execute([{"command": ["echo", "hi"]}])["status"]["stdout"] == "hi\n"
    in_time(lambda: manager.get_warmpool("drained")["phase"], "Drained")
    manager.scale_warmpool("drained", 1)
    with SandboxSession(pool_ref="drained", **where) as session:
        assert session.execute([{"command": ["echo", "hi"]}])["status"]["stdout"] == "hi\n"
    manager.delete_warmpool("drained")


def test_pool_gives_its_clocks_to_sessions_that_have_none(where: Keywords) -> None:
    manager = WarmPoolManager(**where)
    manager.create_warmpool("clocked", replicas=0, idle_s=0.5, lifetime_s=50.0)
    session = SandboxSession(pool_ref="clocked", **where)
    found = session.create_sandbox()
    assert (found["idleSeconds"], found["lifetimeSeconds"]) == (0.5, 50.0)
    own = SandboxSession(pool_ref="clocked", idle_s=40.0, **where)
    assert own.create_sandbox()["idleSeconds"] == 40.0
    own.delete_sandbox()
    in_time(lambda: manager.get_pool_status("clocked")["allocated"], 0)
    manager.delete_warmpool("clocked")


def test_batch_yields_every_verdict(where: Keywords) -> None:
    programs = [f"print({number})" for number in range(200)]
    programs[7], programs[8], programs[9] = "1/0", "while True: pass", "print(input())"
    manager = WarmPoolManager(**where)
    found = list(manager.run_batch(programs, limits=Limits(wall_s=1.0), stdin=[b"\xffin"] * 200))
    assert sorted(record["index"] for record in found) == list(range(200))
    by_index = {record["index"]: record for record in found}
    assert [by_index[index]["verdict"] for index in (6, 7, 8)] == ["ok", "exit", "time"]
    assert by_index[199]["stdout"] == "199\n"
    assert found.index(by_index[8]) > 8  # programs behind the slow one did not wait for it


def test_batch_runs_on_a_pool(where: Keywords) -> None:
    manager = WarmPoolManager(**where)
    manager.create_warmpool("batched", replicas=1, limits=Limits(wall_s=0.5))
    found = list(manager.run_batch(["print(1)", "while True: pass"], pool_ref="batched"))
    assert [record["verdict"] for record in sorted(found, key=lambda one: one["index"])] == ["ok", "time"]
    manager.delete_warmpool("batched")


def test_first_verdict_comes_before_the_last_program_ends(where: Keywords) -> None:
    results = WarmPoolManager(**where).run_batch(["print(1)", "import time; time.sleep(50)"], limits=Limits(wall_s=60))
    begun = time.monotonic()
    assert next(results)["stdout"] == "1\n"
    results.close()
    assert time.monotonic() - begun < 45


def test_batch_for_asyncio(where: Keywords) -> None:
    async def run() -> None:
        manager = AsyncWarmPoolManager(**where)
        found = [record["stdout"] async for record in manager.run_batch([f"print({n})" for n in range(20)])]
        assert sorted(found, key=int) == [f"{n}\n" for n in range(20)]

    asyncio.run(run())


def test_batch_over_cut_connections_has_each_result_once(owners: BoxServer) -> None:
    with cutting_proxy(owners.url, [5000] * 8) as proxy:
        manager = WarmPoolManager(server=proxy.url, token=FIRST)
        found = list(manager.run_batch([f"print({n})" for n in range(100)]))
    assert sorted(record["index"] for record in found) == list(range(100))
    assert all(record["stdout"] == f"{record['index']}\n" for record in found)


# ---- the server alone ----


def post(server: BoxServer, body: Any, token: str = FIRST) -> tuple[int, list[dict[str, Any]]]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/batch", json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.status, [json.loads(line) for line in response.read().splitlines() if line]
    connection.close()
    return answer


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"programs": []},
        {"programs": "print(1)"},
        {"programs": [1]},
        {"programs": ["\ud800"]},
        {"programs": ["x"], "stdin": []},
        {"programs": ["x"], "stdin": ["***"]},
        {"programs": ["x"], "limits": {"wall_s": 1}},
        {"programs": ["x"], "spec": {}},
        {"programs": ["x"], "image": "python:3.12"},
        {"programs": ["x"], "typo": 1},
    ],
    ids=str,
)
def test_wrong_batch_is_refused(owners: BoxServer, body: Any) -> None:
    assert post(owners, body)[0] == 400
    assert post(owners, {"programs": ["print(1)"]})[1][-1] == {"event": "end", "count": 1}


def test_batch_reaches_no_pool_of_another_owner(owners: BoxServer) -> None:
    manager = WarmPoolManager(server=owners.url, token=FIRST)
    manager.create_warmpool("private", replicas=0)
    assert post(owners, {"programs": ["print(1)"], "poolRef": "private"}, SECOND)[0] == 404
    assert post(owners, {"programs": ["print(1)"], "poolRef": "private"}, "x" * 30)[0] == 401
    manager.delete_warmpool("private")


def test_batches_take_boxes_of_their_owner_and_give_them_back(tmp_path: Path) -> None:
    with box_server(tmp_path, "--max-boxes", "2") as server:
        manager = WarmPoolManager(server=server.url, token=server.token)
        with SandboxSession(server=server.url, token=server.token), pytest.raises(BoxError, match="at once"):
            list(manager.run_batch(["print(1)"]))
        for _ in range(3):
            assert len(list(manager.run_batch(["print(1)"]))) == 1


def test_reader_of_a_batch_that_stops_reading_disturbs_nobody(owners: BoxServer) -> None:
    """200 results of 1 MB each are more than what waits in memory. The batch pauses; others run theirs."""
    body = json.dumps({"programs": ["print('x' * 1_000_000)"] * 200}).encode()
    host, port = owners.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(
            f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {FIRST}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        done: list[int] = []
        other = WarmPoolManager(server=owners.url, token=SECOND)
        thread = threading.Thread(target=lambda: done.append(len(list(other.run_batch(["print(1)"] * 50)))))
        thread.start()
        thread.join(60)
        assert done == [50]
        mine = WarmPoolManager(server=owners.url, token=FIRST)
        assert len(list(mine.run_batch(["print(1)"] * 50))) == 50
