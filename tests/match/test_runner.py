"""Many matches at once in worker processes: order, cancel, death of a worker, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from harena import SpecError
from harena.match.result import AgentCode, Clock, MatchSpec, MatchStatus
from harena.match.run.runner import Runner

FIRST = b"def act(o): return next(c for c in range(7) if o[c] == 0)\n"
STUCK = b"import time\ndef act(o): time.sleep(1000)\n"


def spec(one: bytes = FIRST, **options: object) -> MatchSpec:
    players = (AgentCode(name="one", files={"agent.py": one}), AgentCode(name="two", files={"agent.py": FIRST}))
    base = MatchSpec(environment="connect_four", agents=players, clock=Clock(move_s=100, match_s=200))
    return dataclasses.replace(base, **options)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


def test_results_come_in_the_order_of_the_specs(runner: Runner) -> None:
    seen: list[tuple[int, int]] = []
    results = runner.run([spec(seed=seed, match_id=f"m{seed}") for seed in range(12)], lambda *now: seen.append(now))
    assert [result.match_id for result in results] == [f"m{seed}" for seed in range(12)]
    assert {result.status for result in results} == {MatchStatus.FINISHED}
    assert seen == [(done, 12) for done in range(1, 13)]


def test_events_arrive_while_it_runs(runner: Runner) -> None:
    events: list[dict[str, object]] = []
    result = runner.submit(spec(match_id="watched"), events.append).result(60)
    assert [event["type"] for event in events] == ["started", *["step"] * (result.steps + 1), "finished"]


def test_listener_that_fails_does_not_stop_the_match(runner: Runner) -> None:
    def broken(event: dict[str, object]) -> None:
        raise RuntimeError("no")

    assert runner.submit(spec(), broken).result(60).status is MatchStatus.FINISHED


def test_bad_spec_is_raised_where_the_result_is_asked_for(runner: Runner) -> None:
    with pytest.raises(SpecError, match="2 seats"):
        runner.submit(dataclasses.replace(spec(), agents=())).result(60)


def test_running_match_and_waiting_match_can_be_cancelled(runner: Runner) -> None:
    running = [runner.submit(spec(STUCK)) for _ in range(runner.workers)]
    waiting = runner.submit(spec())
    waiting.cancel()
    assert waiting.result(60).status is MatchStatus.CANCELLED
    time.sleep(0.3)
    for handle in running:
        handle.cancel()
    assert {handle.result(60).status for handle in running} == {MatchStatus.CANCELLED}
    assert runner.submit(spec()).result(60).status is MatchStatus.FINISHED


def test_worker_that_dies_voids_its_match_and_is_replaced(runner: Runner) -> None:
    handle = runner.submit(spec(STUCK))
    busy = None
    while busy is None:
        busy = next((one for one in runner._workers if one.handle is handle), None)
    time.sleep(0.5)
    os.kill(busy.process.pid, signal.SIGKILL)
    result = handle.result(60)
    assert result.status is MatchStatus.VOID
    assert "died" in result.error
    assert len(runner.run([spec() for _ in range(4)])) == 4


def test_lockstep_games_are_spread_over_the_workers(runner: Runner) -> None:
    results = runner.evaluate(spec(), range(21))
    assert [result.seed for result in results] == [*range(21)]
    assert {result.status for result in results} == {MatchStatus.FINISHED}


def test_close_cancels_what_runs() -> None:
    runner = Runner(workers=1)
    handle = runner.submit(spec(STUCK))
    pids = [one.process.pid for one in runner._workers]
    time.sleep(0.5)
    runner.close()
    assert handle.result(1).status is MatchStatus.CANCELLED
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_killed_runner_leaves_no_worker_behind() -> None:
    source = (
        "import sys, time\nfrom harena.match.run.runner import Runner\n"
        "runner = Runner(workers=1)\nprint(runner._workers[0].process.pid, flush=True)\ntime.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        worker = int(host.stdout.readline())
        host.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker outlived its runner")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("agent.py", "a match is a MatchSpec, not str"),
        (MatchSpec, "a match is a MatchSpec, not the class MatchSpec"),
        (MatchSpec(environment="pong", agents=("a.py", "b.py")), r"agents\[0\] is str 'a.py': load it"),  # pyright: ignore[reportArgumentType]
        (MatchSpec(environment=AgentCode, agents=()), "cannot be sent to a worker"),  # pyright: ignore[reportArgumentType]
        (MatchSpec(environment="pong", agents=(), seed="1"), "cannot be sent to a worker"),  # pyright: ignore[reportArgumentType]
        (MatchSpec(environment="pong", agents=(), config={"seats": object()}), "cannot be sent to a worker"),
    ],
)
def test_what_is_no_spec_is_an_error_of_the_caller(runner: Runner, wrong: MatchSpec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        runner.run([wrong])


def test_seeds_that_are_no_numbers_are_an_error_of_the_caller(runner: Runner) -> None:
    with pytest.raises(SpecError, match="cannot be sent"):
        runner.submit(MatchSpec(environment="pong", agents=()), seeds=["1"])  # pyright: ignore[reportArgumentType]
