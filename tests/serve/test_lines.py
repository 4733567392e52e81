"""Slow, lossy and dead lines between a client and its server, in a network namespace of the test's own.

A line that is cut tells nobody: packets vanish, and no connection is closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harena import BoxError, BoxLost, Limits, Retry, Sandbox, SandboxPool, SandboxSession
from harena.testing.boxserver import BoxServer, box_server
from harena.testing.contract.conftest import processes_with
from support.leaks import settle
from support.lines import Line

pytestmark = [pytest.mark.root, pytest.mark.thorough]

SLOW = ("tbf", "rate", "2mbit", "burst", "4kb", "limit", "64kb")
"""A frame of 250 kB takes a second, and a full queue a quarter of one."""
LOSSY = ("netem", "delay", "60ms", "30ms", "loss", "4%", "duplicate", "2%", "reorder", "20%")
MARK = Limits(wall_s=100)


@pytest.fixture(scope="module")
def only_line() -> Iterator[Line]:
    with contextlib.closing(Line()) as line:
        yield line


@pytest.fixture
def line(only_line: Line) -> Iterator[Line]:
    yield only_line
    only_line.restore()


@pytest.fixture(scope="module")
def server(only_line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    with contextlib.ExitStack() as stack:
        yield only_line.run(lambda: stack.enter_context(box_server(tmp_path_factory.mktemp("server"))))


def marker() -> str:
    return f"{40000 + int.from_bytes(os.urandom(3))}.{os.getpid()}"


def append_slowly(mark: str) -> list[dict[str, object]]:
    return [{"name": "once", "command": ["sh", "-c", f"echo ran >> /workspace/log; sleep {mark}"]}]


class During:
    """Work that goes on in the namespace while the test does something to the line."""

    def __init__(self, line: Line, work: Callable[[], object]) -> None:
        self._result: list[object] = []
        self._thread = threading.Thread(
            target=lambda: self._result.append(line.run(lambda: _outcome(work))), daemon=True
        )
        self._thread.start()

    def result(self, within_s: float) -> object:
        self._thread.join(within_s)
        assert self._result, "it still waits"
        return self._result[0]


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except Exception as error:
        return error


def works_as_usual(server: BoxServer) -> None:
    """Every kind of traffic. Clocks run on the server, so no verdict changes."""
    data = os.urandom(150_000)
    with Sandbox(server.url, token=server.token) as box:
        big = box.exec(["head", "-c", "150000", "/dev/zero"], limits=Limits(wall_s=30))
        assert (big.ok, len(big.stdout)) == (True, 150_000)
        assert box.exec(["sleep", "0.05"]).usage.wall_s < 5
        box.write("data", data)
        assert box.read("data") == data
    with SandboxPool(server.url, token=server.token, warm=1) as pool:
        assert [int(one.stdout) for one in pool.map([f"print({n})" for n in range(30)])] == list(range(30))
    with SandboxSession(server=server.url, token=server.token) as session:
        session.upload("data", data)
        out = session.execute([{"name": "sum", "command": ["sha256sum", "data"]}])["status"]["stdout"]
        assert out.split()[0] == hashlib.sha256(data).hexdigest()
        assert session.download("data") == data


def test_slow_line_costs_time_and_nothing_else(line: Line, server: BoxServer) -> None:
    line.shape(*SLOW)
    line.run(lambda: works_as_usual(server))


def test_line_that_loses_packets_costs_time_and_nothing_else(line: Line, server: BoxServer) -> None:
    line.drop(4)
    line.run(lambda: works_as_usual(server))


def test_line_that_loses_delays_and_repeats_packets_costs_time_and_nothing_else(line: Line, server: BoxServer) -> None:
    line.shape(*LOSSY)
    line.run(lambda: works_as_usual(server))


def test_short_outage_is_not_noticed(line: Line, server: BoxServer) -> None:
    session = line.run(lambda: SandboxSession(server=server.url, token=server.token, keep_alive=True).__enter__())
    work = During(line, lambda: session.execute(append_slowly("1"), operation_id="once")["status"]["state"])
    line.drop(100)
    time.sleep(2)
    line.drop(0)
    assert work.result(60) == "Succeeded"
    found = line.run(lambda: session.execute([{"name": "log", "command": ["cat", "/workspace/log"]}]))
    assert found["status"]["stdout"] == "ran\n"
    line.run(session.delete_sandbox)


def connections_to(line: Line, server: BoxServer) -> int:
    """Connections that the client takes for open."""
    port = f"{int(server.url.rpartition(':')[2]):04X}"
    rows = line.run(lambda: Path("/proc/thread-self/net/tcp").read_text()).splitlines()[1:]
    return sum(row.split()[2].endswith(f":{port}") and row.split()[3] == "01" for row in rows)


def begin_amid_a_dead_line(line: Line, server: BoxServer) -> tuple[SandboxSession, During]:
    session = line.run(lambda: SandboxSession(server=server.url, token=server.token, keep_alive=True).__enter__())
    work = During(line, lambda: session.execute(append_slowly("5"), operation_id="once")["status"]["state"])
    time.sleep(2)
    line.drop(100)
    return session, work


@pytest.mark.thorough
def test_operation_amid_a_dead_line_has_run_once(line: Line, server: BoxServer) -> None:
    """The client gives its connection up, and sends the request again."""
    session, work = begin_amid_a_dead_line(line, server)
    assert settle(lambda: connections_to(line, server), 0, within_s=80) == 0
    line.drop(0)
    assert work.result(60) == "Succeeded"
    found = line.run(lambda: session.execute([{"name": "log", "command": ["cat", "/workspace/log"]}]))
    assert found["status"]["stdout"] == "ran\n"
    line.run(session.delete_sandbox)


@pytest.mark.thorough
def test_operation_of_a_server_that_died_behind_a_dead_line_may_have_run(line: Line, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = line.run(lambda: stack.enter_context(box_server(tmp_path)))
        _, work = begin_amid_a_dead_line(line, server)
        server.process.kill()
        assert settle(lambda: connections_to(line, server), 0, within_s=80) == 0
        line.drop(0)
        lost = work.result(60)
        assert isinstance(lost, BoxError)
        assert lost.retry is Retry.UNKNOWN


@pytest.mark.thorough
def test_dead_line_ends_the_boxes_of_its_connection_on_both_sides(line: Line, server: BoxServer) -> None:
    mark = marker()
    box = line.run(lambda: Sandbox(server.url, token=server.token))
    work = During(line, lambda: box.exec(["sleep", mark], limits=MARK))
    assert settle(lambda: bool(processes_with(mark)), True, within_s=60)
    line.drop(100)
    lost = work.result(60)
    assert isinstance(lost, BoxLost)
    assert lost.retry is Retry.UNKNOWN
    assert settle(lambda: processes_with(mark), [], within_s=60) == []
    line.drop(0)
    line.run(lambda: works_as_usual(server))
