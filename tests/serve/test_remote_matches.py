"""Matches whose agents run on a server: the same games as with local boxes, the agents' faults are their own, and a lost
server is the platform's fault."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena.errors import SpecError
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus, VoidCause
from harena.match.run import lockstep
from harena.match.run.play import Rack, play
from harena.match.run.runner import Runner
from harena.node import held
from harena.node.client import NodeConversation
from harena.sandbox.backend import Turn
from harena.testing.boxserver import BoxServer, box_server

pytestmark = pytest.mark.timeout(180)

CLOCK = Clock(start_s=60, move_s=60, match_s=170)
DICE = """
import random
import numpy

class Agent:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        print("seed", seed)

    def act(self, observation):
        return self.dice.choice([int(column) for column in numpy.flatnonzero(numpy.asarray(observation[:7]) == 0)])
"""
FIRST = "def act(o): return next(c for c in range(7) if o[c] == 0)\n"
SLEEPER = "import time\ndef act(o): time.sleep(600)\n"


@pytest.fixture(scope="module")
def numpy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    with box_server(tmp_path_factory.mktemp("server"), "--allow-package", "numpy") as started:
        yield started


@pytest.fixture(scope="module")
def far(numpy_server: BoxServer) -> Iterator[Rack]:
    with Rack(backend=numpy_server.url, token=numpy_server.token) as rack:
        yield rack


def spec(*sources: str, clock: Clock = CLOCK, **options: Any) -> MatchSpec:
    agents = tuple(
        AgentCode(name=f"agent{number}", files={"agent.py": source.encode()}) for number, source in enumerate(sources)
    )
    return MatchSpec(environment="connect_four", agents=agents, clock=clock, match_id="same", **options)


def moves(result: MatchResult) -> list[Any]:
    return [frame.text for frame in Replay.load(result.replay).frames()]


def told(result: MatchResult) -> tuple[Any, ...]:
    """Everything of a result that is not a time."""
    seats = [(seat.agent, seat.status, seat.reason, seat.score, seat.moves, seat.log) for seat in result.seats]
    return result.status, result.winner, result.reason, result.steps, result.error, result.fingerprint, seats


def test_a_match_on_a_server_is_the_local_one_move_for_move(far: Rack) -> None:
    with Rack() as near:
        for seed in (1, 2):
            for keep in (False, True):
                wanted = spec(DICE, DICE, seed=seed, keep=keep)
                here, there = play(wanted, rack=near), play(wanted, rack=far)
                assert here.status is MatchStatus.FINISHED
                assert told(there) == told(here)
                assert moves(there) == moves(here)
                assert Replay.load(there.replay).verify().ok
                assert all(seat.cpu_s > 0 for seat in there.seats)


def test_lockstep_on_a_server_plays_the_local_games(far: Rack) -> None:
    with Rack() as near:
        here, there = (lockstep.evaluate(spec(DICE, DICE), range(40), rack=rack) for rack in (near, far))
    assert [told(one) for one in there] == [told(one) for one in here]
    assert {one.status for one in there} == {MatchStatus.FINISHED}


SPINNER = "def act(o):\n    while True: pass\n"
FAULTS = {
    "timeout by processor time": (SPINNER, SeatStatus.TIMEOUT, "a move took"),
    "timeout asleep": (SLEEPER, SeatStatus.TIMEOUT, "a move took"),
    "exception": ("def act(o): return 1 // 0\n", SeatStatus.CRASH, "ZeroDivisionError"),
    "exit": ("import os\ndef act(o): os._exit(3)\n", SeatStatus.CRASH, "exit code 3"),
    "signal": ("import os\ndef act(o): os.kill(os.getpid(), 9)\n", SeatStatus.CRASH, "signal 9"),
    "memory": ("def act(o): return len(bytearray(1 << 40))\n", SeatStatus.MEMORY, ""),
    "load": ("import nothing_of_that_name\n", SeatStatus.LOAD, "nothing_of_that_name"),
    "illegal": ("def act(o): return 99\n", SeatStatus.ILLEGAL, ""),
    "output": ("def act(o):\n    while True: print('x' * 1000)\n", SeatStatus.OUTPUT, "printed more"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_agents_fault_on_a_server_is_its_own(far: Rack, name: str) -> None:
    source, status, reason = FAULTS[name]
    move_s = 0.3 if status is SeatStatus.TIMEOUT else 60
    wanted = spec(source, FIRST, clock=dataclasses.replace(CLOCK, move_s=move_s), output_bytes=1 << 20)
    result = play(wanted, rack=far)
    assert result.status is MatchStatus.FINISHED, result.error
    assert (result.seats[0].status, result.seats[1].status) == (status, SeatStatus.OK), result.reason
    assert reason in result.seats[0].reason
    assert result.winner == 1


DEAF = """
import os, socket
def act(o):
    for fd in range(3, 64):
        try:
            socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    return 0
"""


def test_an_agent_that_ends_with_questions_unread_loses_and_voids_nothing(far: Rack) -> None:
    """Its end leaves ECONNRESET on the socket of the node: that must not look like a lost box."""
    gone = f"import os, threading\nthreading.Timer(0.05, os._exit, [0]).start()\n{FIRST}"
    for source in (DEAF, gone):
        results = lockstep.evaluate(spec(source, FIRST), range(30), rack=far)
        for result in results:
            assert result.status is MatchStatus.FINISHED, result.error
            assert result.seats[1].status is SeatStatus.OK
        if source is DEAF:
            assert {result.seats[0].status for result in results} == {SeatStatus.CRASH}


def test_the_node_says_that_a_process_is_gone_for_every_error_of_its_socket() -> None:
    for error in (ConnectionResetError(104, "reset"), OSError(105, "no buffers"), BrokenPipeError(32, "pipe")):
        with pytest.raises(BrokenPipeError), held.told():
            raise error


def test_what_the_network_takes_is_not_on_the_clock_of_an_agent(far: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word that nothing has come yet is on its way for longer than a move may take."""
    turn, delayed = NodeConversation.turn, list[float]()

    def late(self: NodeConversation, wait_s: float, cpu_ns: int | None) -> Turn:
        taken = turn(self, wait_s, cpu_ns)
        if taken.packet is None and wait_s > 0.1 and cpu_ns is not None:
            delayed.append(wait_s)
            time.sleep(1.5)
        return taken

    monkeypatch.setattr(NodeConversation, "turn", late)
    slow = f"import time\n{FIRST.replace('return', 'time.sleep(0.6); return')}"
    clock = Clock(start_s=60, move_s=0.5, match_s=170)
    result = play(spec(slow, "def act(o): return 99\n", clock=clock), rack=far)
    assert delayed
    assert [seat.status for seat in result.seats] == [SeatStatus.OK, SeatStatus.ILLEGAL], result.reason


def test_a_server_killed_amid_a_match_voids_it(tmp_path: Path) -> None:
    with box_server(tmp_path, "--allow-package", "numpy") as server:
        with Rack(backend=server.url, token=server.token) as rack:
            started = threading.Event()
            results: list[MatchResult] = []

            def work() -> None:
                results.append(play(spec(SLEEPER, FIRST), rack=rack, on_event=lambda _: started.set()))
                results.append(play(spec(FIRST, FIRST), rack=rack))

            thread = threading.Thread(target=work)
            thread.start()
            assert started.wait(60)
            server.process.kill()
            thread.join(120)
            assert not thread.is_alive()
        lost, next_one = results
        assert (lost.status, lost.cause) == (MatchStatus.VOID, VoidCause.BOX_LOST)
        assert {seat.status for seat in lost.seats} == {SeatStatus.OK}
        assert lost.winner is None
        assert (next_one.status, next_one.cause) == (MatchStatus.VOID, VoidCause.NO_BOX)


def test_workers_play_on_a_server_and_survive_one_that_is_not_there(numpy_server: BoxServer) -> None:
    with Runner(workers=1, backend=numpy_server.url, token=numpy_server.token) as runner:
        here = [spec(DICE, DICE, seed=seed) for seed in range(3)]
        assert {result.status for result in runner.run(here)} == {MatchStatus.FINISHED}
    with Runner(workers=1, backend="http://127.0.0.1:9", token="x" * 30) as runner:
        result = runner.submit(spec(FIRST, FIRST)).result(120)
        assert (result.status, result.cause) == (MatchStatus.VOID, VoidCause.NO_BOX)


def test_a_server_without_the_packages_of_agents_names_the_option(server: BoxServer) -> None:
    with Rack(backend=server.url, token=server.token) as rack, pytest.raises(SpecError, match="--allow-package"):
        play(spec(FIRST, FIRST), rack=rack)


def test_an_image_that_the_server_does_not_allow_names_the_option(far: Rack) -> None:
    wanted = spec(FIRST, FIRST)
    image = dataclasses.replace(wanted.agents[0], image="example.org/a@sha256:" + "0" * 64)
    with pytest.raises(SpecError, match="--allow-image"):
        play(dataclasses.replace(wanted, agents=(image, wanted.agents[1])), rack=far)


def test_the_command_plays_on_a_server(numpy_server: BoxServer, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(FIRST)
    command = [sys.executable, "-m", "harena", "match", "connect_four", str(agent), str(agent), "--json"]
    done = subprocess.run(
        [*command, "--backend", numpy_server.url],
        env={**os.environ, "HARENA_TOKEN": numpy_server.token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in json.dumps(json.loads(done.stdout))
