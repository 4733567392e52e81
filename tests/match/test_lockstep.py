"""Games in lockstep are the games one would have got one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from harena import SpecError
from harena.match import registry
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus
from harena.match.run import lockstep
from harena.match.run.play import Rack, agent_seed, play

DICE = """
import random
import numpy as np
from random import choice

TABLE = [random.random() for _ in range(3)]
np.random.rand()

class Agent:
    def __init__(self, seed, action_space, **offered):
        self.own = random.Random(seed)
        self.space = action_space
        self.first = random.random(), np.random.rand(), offered["player_id"]
        self.asked = 0
    def reset(self):
        self.again = choice(range(1000))
    def act(self, observation):
        self.asked += 1
        dice = (self.own.random(), random.random(), random.gauss(0, 1), np.random.randn(), choice(range(100)), TABLE[0])
        number = int(sum(abs(value) for value in (*dice, *self.first, self.again)) * 1000)
        try:
            mask = [column for column in range(7) if observation[column] == 0] if len(observation) == 42 else None
            if len(observation) == 9:
                mask = [cell for cell in range(9) if observation[cell] == 0]
            if "chips" in observation:
                return 1
        except (TypeError, KeyError):
            mask = None
        return mask[number % len(mask)] if mask else number % self.space.n
"""
"""Throws every kind of dice that an agent has."""
SET = (
    ("pong", {}),
    ("connect_four", {}),
    ("tictactoe", {}),
    ("rps", {"rounds": 20}),
    ("tron", {"seats": 4}),
    ("tron", {"seats": 2}),
    ("leduc", {"hands": 5}),
)


def moves_of(result: MatchResult) -> tuple[object, ...]:
    """All that must not depend on how the game was played."""
    seats = [(seat.status, seat.reason, seat.score, seat.moves) for seat in result.seats]
    game = Replay.load(result.replay).game_part()
    return result.seed, result.status, result.winner, result.reason, result.steps, seats, result.fingerprint, game


def compare_lockstep(environment: str, config: dict[str, int], games: int, rack: Rack) -> list[MatchResult]:
    seats = registry.make(environment, config).seats
    what = dataclasses.replace(spec(environment, *[DICE] * seats), config=config, clock=Clock(move_s=5, match_s=3000))
    seeds = range(1, games + 1)
    together = [one for at in range(0, games, 256) for one in lockstep.evaluate(what, seeds[at : at + 256], rack=rack)]
    kept = dataclasses.replace(what, keep=True)
    for seed, one in zip(seeds, together, strict=True):
        alone = play(dataclasses.replace(kept, seed=seed), rack=rack)
        assert moves_of(one) == moves_of(alone), (environment, seed)
        assert {seat.status for seat in one.seats} == {SeatStatus.OK}, one.seats
    return together


@pytest.mark.parametrize(("environment", "config"), SET)
def test_lockstep_gives_the_same_replays_and_moves_as_one_by_one(
    rack: Rack, environment: str, config: dict[str, int]
) -> None:
    together = compare_lockstep(environment, config, 6, rack)
    assert len({one.fingerprint for one in together}) > 1, "each game has dice of its own"
    assert Replay.load(together[-1].replay).verify().ok


@pytest.mark.soak
@pytest.mark.parametrize(("environment", "config"), SET)
def test_a_thousand_games_in_lockstep_are_the_games_one_by_one(
    rack: Rack, environment: str, config: dict[str, int]
) -> None:
    compare_lockstep(environment, config, 1000, rack)


def test_each_game_in_lockstep_has_its_own_agent_seed(rack: Rack) -> None:
    source = "import random\nclass Agent:\n    def __init__(self, seed): self.dice = random.Random(seed)\n    def act(self, o): return self.dice.choice([c for c in range(7) if o[c] == 0])\n"
    results = lockstep.evaluate(spec("connect_four", source, source), range(40), rack=rack)
    assert len({result.steps for result in results}) > 5
    assert len({result.fingerprint for result in results}) == 40


def test_a_seat_in_lockstep_is_charged_its_own_moves(rack: Rack) -> None:
    results = lockstep.evaluate(spec("connect_four", COUNTING, COUNTING), range(40), rack=rack)
    for result in results:
        assert sum(seat.moves for seat in result.seats) == result.steps
    assert all(sum(result.seats[number].cpu_s for result in results) > 0 for number in (0, 1))


def test_an_agent_seed_of_its_own_is_the_same_in_every_game(rack: Rack) -> None:
    source = "class Agent:\n    def __init__(self, seed): print(seed)\n    def act(self, o): return next(c for c in range(7) if o[c] == 0)\n"
    what = dataclasses.replace(spec("connect_four", source, COUNTING), agents_seed=5)
    logs = lockstep.evaluate(what, range(3), rack=rack)[0].seats[0].log.split()
    assert len(logs) == 3
    assert set(logs) == {str(agent_seed(5, 0))}


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


def test_who_stalls_a_batch_until_time_runs_out_loses_what_still_runs(rack: Rack) -> None:
    sleeps = "import time\ndef act(o):\n    time.sleep(0.05)\n    return next(c for c in range(7) if o[c] == 0)\n"
    what = dataclasses.replace(spec("connect_four", sleeps, COUNTING), clock=Clock(move_s=5, match_s=0.6))
    results = lockstep.evaluate(what, range(8), rack=rack)
    assert {(result.status, result.winner) for result in results} == {(MatchStatus.FINISHED, 1)}
    assert "waiting for it" in results[0].seats[0].reason


def test_who_crashes_in_a_game_for_four_leaves_the_others_playing(rack: Rack) -> None:
    crash = "class Agent:\n    def __init__(self): self.n = 0\n    def act(self, o):\n        self.n += 1\n        assert self.n < 3\n        return self.n % 4\n"
    what = dataclasses.replace(spec("tron", DICE, crash, DICE, DICE), config={"seats": 4})
    for result in lockstep.evaluate(what, range(1, 5), rack=rack):
        assert result.seats[1].status is SeatStatus.CRASH
        assert result.seats[1].score == -1
        assert max(seat.moves for seat in result.seats) >= 3
        assert Replay.load(result.replay).verify().ok


def test_too_many_games_are_refused(rack: Rack) -> None:
    with pytest.raises(SpecError, match="4096"):
        lockstep.evaluate(spec("pong", PONG, PONG), range(5000), rack=rack)
