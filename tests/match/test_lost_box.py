"""A box that is lost in the middle of a match is the platform's fault: the match is void, and no agent forfeits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus, VoidCause
from harena.match.run import lockstep
from harena.match.run.play import Rack, play
from harena.match.run.runner import Runner
from support.executor_client import Client, pb, request, serving
from support.leaks import descendants

FAST = "def act(o): return next(c for c in range(7) if o[c] == 0)\n"
SLOW = "import time\ndef act(o):\n    time.sleep(2)\n    return next(c for c in range(7) if o[c] == 0)\n"
COMMAND = """
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "init":
        print(json.dumps({"ready": True}), flush=True)
    elif message["type"] == "act":
        time.sleep(2)
        print(json.dumps({"action": 3}), flush=True)
"""
CLOCK = Clock(start_s=30, move_s=30, match_s=120)

pytestmark = [pytest.mark.serial, pytest.mark.timeout(120)]


def agent(source: str, **options: Any) -> AgentCode:
    return AgentCode(name="slow" if source != FAST else "fast", files={"agent.py": source.encode()}, **options)


def spec(slow: AgentCode | None = None) -> MatchSpec:
    return MatchSpec(environment="connect_four", agents=(slow or agent(SLOW), agent(FAST)), clock=CLOCK)


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def asleep(pid: int) -> bool:
    """Whether it sleeps in its move."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() in ("hrtimer_nanosleep", "common_nsleep")
    except OSError:
        return False


def kill_the_box_of_a_sleeper(above: int, others: set[Any]) -> None:
    """The process of the box that is the nearest to `above`, or to the worker below it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        below = {pid for pid, _ in descendants(above) - others}
        if sleepers := [pid for pid in below if asleep(pid) and is_guest(pid)]:
            chain = sleepers[:1]
            while not is_host(chain[-1]):
                chain.append(parent(chain[-1]))
            os.kill(chain[-2], signal.SIGKILL)
            return
        time.sleep(0.01)
    raise AssertionError("no agent sleeps in its move")


def is_guest(pid: int) -> bool:
    """In a pid namespace of its own."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def is_host(pid: int) -> bool:
    """This process, a worker, or the `harena` command."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return pid == os.getpid() or b"harena.match.run.worker" in command or b"connect_four" in command


@pytest.fixture
def killer() -> Iterator[Callable[[], None]]:
    """Starts to wait for an agent of this process that sleeps, and kills its box."""
    others = descendants(os.getpid())
    threads: list[threading.Thread] = []

    def start() -> None:
        threads.append(threading.Thread(target=kill_the_box_of_a_sleeper, args=(os.getpid(), others)))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


def is_void(result: MatchResult) -> bool:
    assert result.status is MatchStatus.VOID, result
    assert result.cause is VoidCause.BOX_LOST
    assert "the box of slow was lost" in result.error
    assert result.winner is None
    assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2
    return True


def test_play(killer: Callable[[], None]) -> None:
    with Rack() as rack:
        killer()
        assert is_void(play(spec(), rack=rack))
        assert play(spec(agent(FAST)), rack=rack).status is MatchStatus.FINISHED


def test_play_with_a_command(killer: Callable[[], None]) -> None:
    killer()
    assert is_void(play(spec(agent(COMMAND, entry="", command=("python3", "agent.py")))))


def test_lockstep(killer: Callable[[], None]) -> None:
    killer()
    results = lockstep.evaluate(spec(), [1, 2, 3])
    assert [result.seed for result in results] == [1, 2, 3]
    assert all(map(is_void, results))


def test_runner(killer: Callable[[], None]) -> None:
    with Runner(workers=1) as runner:
        killer()
        assert is_void(runner.submit(spec()).result(60))
        assert runner.submit(spec(agent(FAST))).result(60).status is MatchStatus.FINISHED


def test_the_command_plays_the_game_again(tmp_path: Path) -> None:
    once = f"import os, time\nfirst = True\n{FAST.replace('return', 'return slowly() or')}"
    once += "def slowly():\n    global first\n    if first: time.sleep(2)\n    first = False\n"
    for name, source in (("slow", once), ("fast", FAST)):
        (tmp_path / f"{name}.py").write_text(source)
    command = [sys.executable, "-m", "harena", "match", "connect_four", "slow.py", "fast.py", "--games", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        kill_the_box_of_a_sleeper(process.pid, set())
        output, _ = process.communicate()
    assert process.returncode == 0
    told = json.loads(output)
    void = [game for game in told["games"] if game["status"] == "void"]
    assert [(game["cause"], game["winner"]) for game in void] == [("box_lost", None)]
    assert [game["status"] for game in told["games"]].count("finished") == 2
    assert [row["faults"] for row in told["table"]] == [0, 0]


def test_the_executor(killer: Callable[[], None], tmp_path: Path) -> None:
    order = request(SLOW.encode(), FAST.encode(), environment="connect_four")
    with Runner(workers=1) as runner, serving(runner, tmp_path) as server, Client(server.port) as client:
        killer()
        answer = client.run(order)
    assert answer.status == pb.STATUS_ERROR
    assert answer.void_cause == answer.games[0].void_cause == "box_lost"
    assert "the box of agent-0 was lost" in answer.error_message
    assert answer.winner_agent_id == ""
    assert [(one.status, one.errors) for one in answer.agent_results] == [("ok", 0)] * 2
