"""Games in lockstep are the games one would have got one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from harena import SpecError
from harena.match import lockstep
from harena.match.play import Rack, play
from harena.match.result import AgentCode, Clock, MatchSpec, SeatStatus

PONG = "def act(o): return 0 if o[1] < o[4] else 2\n"
LEFT = "def act(o): return 1 if o[3] > 0 else 2\n"
COUNTING = """
class Agent:
    def __init__(self): self.moves = 0
    def act(self, o):
        self.moves += 1
        return next(c % 7 for c in range(self.moves, self.moves + 7) if o[c % 7] == 0)
"""


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    with Rack() as rack:
        yield rack


def spec(environment: str, *sources: str) -> MatchSpec:
    players = tuple(AgentCode(name=f"a{at}", files={"agent.py": text.encode()}) for at, text in enumerate(sources))
    return MatchSpec(environment=environment, agents=players, clock=Clock(move_s=2, match_s=60))


@pytest.mark.parametrize(("environment", "sources"), [("pong", (PONG, LEFT)), ("connect_four", (COUNTING, COUNTING))])
def test_lockstep_gives_the_same_games_as_one_by_one(rack: Rack, environment: str, sources: tuple[str, str]) -> None:
    what = spec(environment, *sources)
    together = lockstep.evaluate(what, range(5), rack=rack)
    alone = [play(dataclasses.replace(what, seed=seed), rack=rack) for seed in range(5)]
    assert [(one.winner, one.scores, one.steps) for one in together] == [
        (one.winner, one.scores, one.steps) for one in alone
    ]


def test_act_batch_is_asked_once_for_all_games(rack: Rack) -> None:
    source = "class Agent:\n    def act(self, o): raise RuntimeError\n    def act_batch(self, observations):\n        print(len(observations))\n        return [next(c for c in range(7) if o[c] == 0) for o in observations]\n"
    results = lockstep.evaluate(spec("connect_four", source, source), range(10), rack=rack)
    assert {seat.status for result in results for seat in result.seats} == {SeatStatus.OK}
    assert results[0].seats[0].log.startswith("5\n5\n")


def test_illegal_move_loses_that_game_alone(rack: Rack) -> None:
    full = (
        "class Agent:\n    def __init__(self): self.moves = 0\n    def act(self, o): return 3 if o[3] or True else 0\n"
    )
    results = lockstep.evaluate(spec("connect_four", full, COUNTING), range(4), rack=rack)
    assert all(result.winner is not None for result in results)
    assert all(result.seats[1].status is SeatStatus.OK for result in results)


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def act(o): raise ValueError", SeatStatus.CRASH),
        ("def act(o): return 7", SeatStatus.ILLEGAL),
        ("def act(o): return 'x'", SeatStatus.ILLEGAL),
        ("class Agent:\n    def act(self, o): return 0\n    def act_batch(self, o): return [0]", SeatStatus.ILLEGAL),
        ("import os\ndef act(o): os.write(5, b'b' + bytes(8)); return 0", SeatStatus.ILLEGAL),
        ("def act(o): return", SeatStatus.ILLEGAL),
        ("1/0", SeatStatus.LOAD),
    ],
)
def test_who_misbehaves_loses_all_that_still_run(rack: Rack, source: str, status: SeatStatus) -> None:
    results = lockstep.evaluate(spec("connect_four", COUNTING, source), range(6), rack=rack)
    assert {result.seats[1].status for result in results} == {status}, results[0].seats[1]
    assert {result.winner for result in results} == {0}


def test_loop_in_lockstep_is_a_timeout(rack: Rack) -> None:
    what = dataclasses.replace(
        spec("connect_four", "def act(o):\n    while True: pass\n", COUNTING), clock=Clock(move_s=0.05)
    )
    results = lockstep.evaluate(what, range(4), rack=rack)
    assert {result.seats[0].status for result in results} == {SeatStatus.TIMEOUT}


def test_too_many_games_are_refused(rack: Rack) -> None:
    with pytest.raises(SpecError, match="4096"):
        lockstep.evaluate(spec("pong", PONG, PONG), range(5000), rack=rack)
