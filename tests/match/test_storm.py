"""Hundreds of matches, agents killed from within and without, calls cancelled at any moment: nothing stays behind."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from harena.match.result import AgentCode, Clock, MatchSpec, MatchStatus, SeatStatus
from harena.match.run.runner import Runner
from support.leaks import alive, boxes_of, descendants, descriptors, keepers, leaked, settle, traces

HONEST = "def act(o): return next(c for c in range(7) if o[c] == 0)\n"
AGENTS = {
    "honest": HONEST,
    "killed": "import os, signal\ndef act(o): os.kill(os.getpid(), signal.SIGKILL)\n",
    "crash": "def act(o): raise ValueError('no')\n",
    "import": "import nothing_there\n",
    "exit": "import os\ndef act(o): os._exit(0)\n",
    "orphan": "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '1000'])\n" + HONEST,
    "asleep": "import time\ndef act(o): time.sleep(1000)\n",
}
ENDS = {
    "honest": {SeatStatus.OK},
    "killed": {SeatStatus.CRASH},
    "crash": {SeatStatus.CRASH},
    "import": {SeatStatus.LOAD},
    "exit": {SeatStatus.CRASH},
    "orphan": {SeatStatus.OK, SeatStatus.CRASH},
    "asleep": {SeatStatus.TIMEOUT},
}


def spec(name: str, seed: int) -> MatchSpec:
    players = (
        AgentCode(name=name, files={"agent.py": AGENTS[name].encode()}),
        AgentCode(name="honest", files={"agent.py": HONEST.encode()}),
    )
    clock = Clock(start_s=30, move_s=30, match_s=120)
    return MatchSpec(environment="connect_four", agents=players, seed=seed, clock=clock, record=False)


@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize("matches", [250, pytest.param(1000, marks=pytest.mark.soak)])
def test_storm_of_killed_agents_and_cancelled_calls_leaves_nothing_behind(matches: int) -> None:
    dice = random.Random(5)
    before, others, kept = descriptors(), descendants(os.getpid()), keepers()  # other tests' may be there still
    other_boxes = set(boxes_of(os.getpid()))
    counts: Counter[MatchStatus] = Counter()
    with Runner() as runner:
        for start in range(0, matches, 50):
            names = [dice.choice([*AGENTS]) for _ in range(50)]
            handles = [runner.submit(spec(name, start + at)) for at, name in enumerate(names)]
            for handle, name in zip(handles, names, strict=True):
                if name == "asleep" or dice.random() < 0.1:
                    handle.cancel()
            for handle, name in zip(handles, names, strict=True):
                result = handle.result(120)
                counts[result.status] += 1
                assert result.status in (MatchStatus.FINISHED, MatchStatus.CANCELLED), result
                if result.status is MatchStatus.FINISHED:
                    assert result.seats[0].status in ENDS[name], result
                    assert result.seats[1].status is SeatStatus.OK
        assert counts[MatchStatus.FINISHED] > matches / 2
        assert counts[MatchStatus.CANCELLED] > matches / 20
        boxes = [box for box in boxes_of(os.getpid()) if box not in other_boxes]
        below = descendants(os.getpid()) - others
        workers = {one.process.pid for one in runner._workers}
        strays = [pid for pid, _ in below if b"sleep" in _command(pid)]
        assert settle(lambda: [pid for pid in strays if _command(pid)], []) == []
    assert settle(lambda: alive(below), set()) == set()
    assert settle(lambda: traces(boxes), []) == []
    assert settle(keepers, kept) == kept
    assert leaked(before) == []
    assert all(not Path(f"/proc/{pid}").exists() for pid in workers)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.serial
def test_agent_killed_from_outside_is_a_crash_and_the_match_has_a_winner() -> None:
    others = descendants(os.getpid())
    with Runner(workers=1) as runner:
        handle = runner.submit(dataclasses.replace(spec("asleep", 1)))
        found: set[int] = set()
        while not found:
            found = {pid for pid, _ in descendants(os.getpid()) - others if _is_agent(pid)}
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        result = handle.result(60)
    assert result.status is MatchStatus.FINISHED
    assert result.seats[0].status is SeatStatus.CRASH
    assert result.winner == 1


def _is_agent(pid: int) -> bool:
    """The one that sleeps in its move: in nanosleep, and a guest's user."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == "hrtimer_nanosleep"
    except OSError:
        return False
