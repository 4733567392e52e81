"""An evaluation counts what the platform saw, on episodes that nobody can know, and gives the same every time."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from harena.arena.submissions import evaluate as module
from harena.arena.submissions.evaluate import (
    EvaluationCancelled,
    EvaluationRun,
    EvaluationStatus,
    EvaluationVoid,
    commitment,
    dice_seed,
    evaluate,
    iqm,
    new_secret,
    picks,
    practice,
    practice_seeds,
    published,
    seeds,
)
from harena.errors import Retry, SpecError
from harena.match import registry
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus, VoidCause
from harena.match.run.play import Rack, agent_seed
from harena.match.run.runner import Runner
from harena.statistics import Interval

ENV = "CartPole-v1"
SECRET = bytes(range(32))
LEFT = "def act(observation): return 0\n"
LEAN = "def act(observation): return int(observation[2] > 0)\n"
DICE = """
import random
class Agent:
    def __init__(self, seed): self.dice = random.Random(seed)
    def act(self, observation): return self.dice.randrange(2)
"""
QUICK = Clock(start_s=10, move_s=1, match_s=30)


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    with Rack() as rack:
        yield rack


def agent(source: str, **files: str) -> AgentCode:
    return AgentCode(
        name="a", files={"agent.py": source.encode()} | {f"{name}.py": text.encode() for name, text in files.items()}
    )


def judged(source: str, table: Rack | Runner, **options: Any) -> EvaluationRun:
    return evaluate(agent(source), ENV, **{"secret": SECRET, "table": table, "clock": QUICK, "episodes": 6} | options)


def seen(game: Any) -> Any:
    """As the agent gets it."""
    space = game.observation_space(0)
    return space.decode_all(bytearray(space.encode(game.observe(0))))


def by_hand(source: str, numbers: list[int]) -> list[float]:
    """The same episodes with the agent's function called here."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    returns: list[float] = []
    for seed in numbers:
        game = registry.make(ENV)
        game.reset(seed)
        while game.to_move():
            game.step({0: scope["act"](seen(game))})
        returns.append(game.outcome().scores[0])
    return returns


class Counting:
    """Counts the games that are played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.games: list[MatchSpec] = []
        play = module.play

        def counted(spec: MatchSpec, **options: Any) -> MatchResult:
            self.games.append(spec)
            return play(spec, **options)

        monkeypatch.setattr(module, "play", counted)


# The score


def test_the_score_is_the_mean_return_of_the_seasons_episodes(rack: Rack) -> None:
    done = judged(LEAN, rack)
    assert done.status is EvaluationStatus.OK
    assert list(done.returns) == by_hand(LEAN, seeds(SECRET, ENV, 6))
    assert done.score == pytest.approx(sum(done.returns) / 6)
    assert done.steps == tuple(int(value) for value in done.returns)
    assert done.interval is not None
    assert done.interval.low <= done.score <= done.interval.high
    assert min(done.returns) <= done.iqm <= max(done.returns)
    assert done.cpu_s > 0


def test_the_same_submission_and_secret_give_the_same_result(rack: Rack) -> None:
    one, two = judged(LEAN, rack), judged(LEAN, rack)
    assert one.digest() == two.digest()
    same = ("score", "interval", "iqm", "median", "returns", "steps", "season", "environment")
    assert [getattr(one, name) for name in same] == [getattr(two, name) for name in same]
    parts = [[Replay.load(record.replay).game_part() for record in done.replays] for done in (one, two)]
    assert parts[0] == parts[1]


def test_a_runner_gives_the_same_as_a_rack(rack: Rack) -> None:
    with Runner() as runner:
        for source in (LEAN, DICE):
            assert judged(source, runner).digest() == judged(source, rack).digest()
        failed = judged("def act(observation): return 1 / 0\n", runner)
        assert failed.reason == judged("def act(observation): return 1 / 0\n", rack).reason


def test_other_names_of_an_environment_have_the_same_episodes(rack: Rack) -> None:
    named = evaluate(agent(LEFT), "gymnasium/CartPole-v1", secret=SECRET, table=rack, episodes=3)
    assert named.digest() == evaluate(agent(LEFT), "cartpole", secret=SECRET, table=rack, episodes=3).digest()


def test_twenty_episodes_unless_told_otherwise(rack: Rack) -> None:
    assert len(evaluate(agent(LEFT), ENV, secret=SECRET, table=rack).returns) == 20


# Replays


def test_the_first_the_best_and_the_worst_episode_are_recorded(rack: Rack) -> None:
    done = judged(LEAN, rack)
    numbers = seeds(SECRET, ENV, 6)
    roles = {role: record for record in done.replays for role in record.roles}
    assert set(roles) == {"first", "best", "worst"}
    assert roles["first"].episode == 0
    for role, value in (("first", done.returns[0]), ("best", max(done.returns)), ("worst", min(done.returns))):
        replay = Replay.load(roles[role].replay)
        assert replay.scores == (value,)
        assert replay.seed == numbers[roles[role].episode]
        assert replay.verify().ok


def test_one_replay_serves_where_all_episodes_are_equal() -> None:
    assert picks([5.0, 5.0]) == {0: ("first", "best", "worst")}
    assert picks([2.0, 3.0, 1.0, 3.0]) == {0: ("first",), 1: ("best",), 2: ("worst",)}


def test_commands_are_evaluated_too(rack: Rack) -> None:
    source = "echo '{\"ready\": true}'\nwhile read -r line; do case $line in *'\"act\"'*) echo '{\"action\": 0}';; esac; done\n"
    code = AgentCode(name="sh", files={"a.sh": source.encode()}, entry="", command=("sh", "a.sh"))
    done = evaluate(code, ENV, secret=SECRET, table=rack, episodes=2)
    assert (done.status, list(done.returns)) == (EvaluationStatus.OK, by_hand(LEFT, seeds(SECRET, ENV, 2)))


# The seeds


def test_seeds_depend_on_secret_environment_and_episode() -> None:
    numbers = seeds(SECRET, ENV, 100)
    assert numbers == seeds(SECRET, ENV, 100)
    assert numbers[:20] == seeds(SECRET, ENV)
    assert len({*numbers, *seeds(SECRET, "Acrobot-v1", 100), *seeds(new_secret(), ENV, 100)}) == 300
    assert all(0 <= number < 1 << 63 for number in numbers)
    assert max(numbers) > 1 << 60


def test_a_short_secret_is_refused(rack: Rack) -> None:
    with pytest.raises(SpecError, match="16 bytes"):
        judged(LEFT, rack, secret=b"hunter2")


def test_the_commitment_shows_neither_the_secret_nor_a_seed() -> None:
    shown = commitment(SECRET)
    assert shown == commitment(SECRET) != commitment(new_secret())
    assert shown != hashlib.sha256(SECRET).hexdigest()
    assert not any(f"{number:x}" in shown for number in seeds(SECRET, ENV))


SPY = """
import gc, os, sys, glob

class Agent:
    def __init__(self, player_id, seats, environment, env, env_id, seed, config, observation_space, action_space):
        print("SEED", seed)
        print("ENV", dict(os.environ), sys.argv, config)
        for path in ["/proc/self/cmdline", "/proc/self/environ", *glob.glob("/workspace/**", recursive=True)]:
            try:
                print(path, open(path, "rb").read()[:3000])
            except OSError:
                pass
        frame, seen = sys._getframe(), set()
        while frame is not None:
            for scope in (frame.f_locals, frame.f_globals):
                for value in [*scope.values(), *gc.get_objects()]:
                    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else [value]
                    seen.update(one for one in list(inside) if type(one) is int and one > 1 << 31)
            frame = frame.f_back
        print("WHOLE NUMBERS", sorted(seen)[:5000])

    def act(self, observation):
        return 0
"""


def test_nothing_in_an_agents_process_carries_a_seed(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_CHARACTERS", 1 << 20)
    done = judged(SPY, rack)
    assert done.status is EvaluationStatus.OK, done.reason
    assert "WHOLE NUMBERS" in done.log
    hidden = seeds(SECRET, ENV, 6)
    for secret in [*map(str, hidden), *(f"{number:x}" for number in hidden), SECRET.hex(), commitment(SECRET)]:
        assert secret not in done.log
    own = int(done.log.split("SEED ")[1].split()[0])
    assert own == agent_seed(dice_seed(agent(SPY)), 0)
    assert not any(own in (agent_seed(number, 0), number % 2**32) for number in hidden)


def test_an_agent_has_one_seed_in_all_its_episodes_and_other_code_has_another(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    judged(LEFT, rack)
    practice(agent(LEFT), ENV, table=rack, episodes=2)
    assert {spec.agents_seed for spec in counting.games} == {dice_seed(agent(LEFT))}
    judged(LEFT + "#", rack, episodes=1)
    assert counting.games[-1].agents_seed == dice_seed(agent(LEFT + "#")) != dice_seed(agent(LEFT))
    other_name = dataclasses.replace(agent(LEFT), name="somebody else's")
    assert dice_seed(other_name) == dice_seed(agent(LEFT))


def test_each_code_plays_the_same_episodes_in_an_order_of_its_own(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    orders = set[tuple[int, ...]]()
    for source in (LEFT, LEFT + "#", LEFT + "# "):
        before = len(counting.games)
        done = judged(source, rack)
        orders.add(tuple(spec.seed for spec in counting.games[before:]))
        assert done.digest() == judged(LEFT, rack).digest()
    assert len(orders) == 3
    assert {tuple(sorted(one)) for one in orders} == {tuple(sorted(seeds(SECRET, ENV, 6)))}


REMEMBERS = """
import os
turn = 0
def act(observation):
    global turn
    turn += 1
    for place in ("/workspace", "/tmp", "/dev/shm"):
        try:
            with open(place + "/seen", "a") as file: file.write("x")
            with open(place + "/seen") as file: seen = len(file.read())
        except OSError:
            continue
        if seen > turn: raise RuntimeError("an earlier episode left this")
    return 0
"""


def test_nothing_is_carried_from_one_episode_to_the_next(rack: Rack) -> None:
    done = judged(REMEMBERS, rack)
    assert done.status is EvaluationStatus.OK, done.reason
    assert done.digest() == judged(LEFT, rack).digest()


def test_practice_is_on_seeds_that_everybody_can_compute_and_keeps_every_log_and_replay(rack: Rack) -> None:
    done = practice(agent("print('hello')\n" + LEFT), ENV, table=rack, episodes=3)
    assert [record.score for record in done.replays] == by_hand(LEFT, practice_seeds(ENV, 3)) == list(done.returns)
    for record in done.replays:
        replay = Replay.load(record.replay)
        assert (replay.seed, replay.verify().ok) == (practice_seeds(ENV, 3)[record.episode], True)
        assert record.log == "hello\n"
    assert not {*practice_seeds(ENV, 3)} & {*seeds(SECRET, ENV)}


def test_a_practice_that_fails_says_where_and_keeps_what_came_before(rack: Rack) -> None:
    game = registry.make(ENV)
    game.reset(practice_seeds(ENV, 3)[1])
    there = float(seen(game)[0])
    source = f"def act(o):\n    if o[0] == {there!r}: raise RuntimeError('seen it')\n    return 0\n"
    done = practice(agent(source), ENV, table=rack, episodes=3)
    assert (done.status, done.fault) == (EvaluationStatus.FAILED, SeatStatus.CRASH)
    assert done.reason.startswith("crash in practice episode 2 of 3")
    assert "seen it" in done.reason
    assert [(record.episode, record.fault) for record in done.replays] == [(0, SeatStatus.OK), (1, SeatStatus.CRASH)]
    assert "RuntimeError: seen it" in done.replays[1].log


def test_a_published_score_has_two_digits_of_its_uncertainty() -> None:
    assert published(464.15, Interval(464.15, 440.0, 480.3)) == (464.0, 440.0, 480.0)
    assert published(0.35, Interval(0.35, 0.15, 0.55)) == (0.35, 0.15, 0.55)
    assert published(-150.123456789, Interval(-150.1, -150.2, -150.1)) == (-150.123, -150.2, -150.1)
    assert published(500.0, Interval(500.0, 500.0, 500.0)) == (500.0, 500.0, 500.0)
    assert published(1 / 3, None) == (0.333333, None, None)
    assert published(0.0, Interval(0.0, -math.inf, math.inf)) == (0.0, None, None)


# Faults


def test_printing_a_score_gains_nothing(rack: Rack) -> None:
    boast = 'import json\nprint(json.dumps({"score": 1e9}))\ndef act(o):\n    print(json.dumps({"score": 1e9, "metrics": {"return": 1e9}}))\n    return 0\n'
    assert judged(boast, rack).digest() == judged(LEFT, rack).digest()


@pytest.mark.parametrize(
    ("source", "fault", "words"),
    [
        ("def act(observation): raise ValueError('no idea')\n", SeatStatus.CRASH, "no idea"),
        ("import sys\ndef act(observation): sys.exit(0)\n", SeatStatus.CRASH, "ended itself"),
        ("1/0\ndef act(observation): return 0\n", SeatStatus.LOAD, "ZeroDivisionError"),
        ("def act(observation): return 7\n", SeatStatus.ILLEGAL, "7"),
        ("def act(observation): return float('nan')\n", SeatStatus.ILLEGAL, ""),
        ("def act(observation): return bytearray(1 << 30)\n", SeatStatus.MEMORY, "MemoryError"),
        ("def act(observation):\n    while True: pass\n", SeatStatus.TIMEOUT, "0.2 s"),
        ("import os\ndef act(o): os.write(5, b'a' + b'9' * 99); return 0\n", SeatStatus.ILLEGAL, ""),
    ],
)
def test_an_agents_own_fault_fails_it_with_the_reason(
    rack: Rack, source: str, fault: SeatStatus, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    done = judged(source, rack, clock=Clock(start_s=10, move_s=0.2, match_s=20))
    assert (done.status, done.fault) == (EvaluationStatus.FAILED, fault), done.reason
    assert words in done.reason
    assert done.reason.startswith(fault.value)
    assert (done.score, done.returns, done.replays) == (None, (), ())
    assert len(counting.games) == 1


def test_a_crash_in_a_late_episode_fails_too_and_its_log_is_kept(rack: Rack) -> None:
    numbers = seeds(SECRET, ENV, 6)
    game = registry.make(ENV)
    game.reset(numbers[4])
    there = float(seen(game)[0])
    source = (
        f"def act(o):\n    print('at', o[0])\n    if o[0] == {there!r}: raise RuntimeError('seen it')\n    return 0\n"
    )
    done = judged(source, rack)
    assert done.fault is SeatStatus.CRASH
    assert "in episode 5 of 6" in done.reason
    assert "seen it" in done.reason
    assert "RuntimeError: seen it" in done.log


def test_the_episodes_share_one_time_limit(rack: Rack) -> None:
    source = "import time\ndef act(o):\n    time.sleep(0.05)\n    return 0\n"
    done = judged(source, rack, clock=Clock(start_s=10, move_s=1, match_s=0.8))
    assert (done.status, done.fault) == (EvaluationStatus.FAILED, SeatStatus.TIMEOUT)
    assert "0.8 s together" in done.reason


def test_a_long_log_is_cut_to_its_end(rack: Rack) -> None:
    done = judged("print('x' * 9999 + 'end')\ndef act(o): return 0\n", rack, episodes=1)
    assert len(done.log) < module.LOG_CHARACTERS + 10
    assert done.log.rstrip().endswith("end")


# What is not the agent's fault


def fake(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    play = module.play
    monkeypatch.setattr(module, "play", lambda *args, **options: dataclasses.replace(play(*args, **options), **changes))


def test_a_void_game_is_raised_and_may_be_tried_again(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, status=MatchStatus.VOID, error="the worker died", cause=VoidCause.WORKER_LOST)
    with pytest.raises(EvaluationVoid, match="died") as raised:
        judged(LEFT, rack)
    assert raised.value.retry is Retry.SAFE


def test_a_broken_environment_is_raised_and_not_tried_again(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, status=MatchStatus.VOID, error="it failed at step 3: ValueError", cause=VoidCause.GAME)
    with pytest.raises(EvaluationVoid) as raised:
        judged(LEFT, rack)
    assert raised.value.retry is Retry.NEVER


def test_a_lost_box_is_not_the_agents_crash(rack: Rack) -> None:
    code = agent("import time\ndef act(o):\n    print('here', flush=True)\n    time.sleep(0.3)\n    return 0\n")
    looks = iter(range(1000))

    def cancelled() -> bool:
        if next(looks) == 3:
            for seat in lost:
                seat.box.close()
        return False

    with Rack() as other:
        other.warm_up(1)
        lost = [*other._ahead]
        with pytest.raises(EvaluationVoid) as raised:
            evaluate(code, ENV, secret=SECRET, table=other, episodes=2, cancelled=cancelled)
    assert raised.value.retry is Retry.SAFE


def test_a_score_that_is_no_number_is_the_environments_fault(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    play = module.play

    def nan(*args: Any, **options: Any) -> MatchResult:
        result = play(*args, **options)
        return dataclasses.replace(result, seats=(dataclasses.replace(result.seats[0], score=math.nan),))

    monkeypatch.setattr(module, "play", nan)
    with pytest.raises(EvaluationVoid, match="nan"):
        judged(LEFT, rack)


def test_it_can_be_called_off(rack: Rack) -> None:
    slow = "import time\ndef act(o):\n    time.sleep(0.2)\n    return 0\n"
    looks = iter(range(1000))
    with pytest.raises(EvaluationCancelled):
        judged(slow, rack, cancelled=lambda: next(looks) > 2)
    with Runner(1) as runner, pytest.raises(EvaluationCancelled):
        judged(slow, runner, cancelled=lambda: True)


def test_games_with_opponents_are_not_evaluated(rack: Rack) -> None:
    with pytest.raises(SpecError, match="2 seats"):
        evaluate(agent(LEFT), "connect_four", secret=SECRET, table=rack)
    with pytest.raises(registry.UnknownGame):
        evaluate(agent(LEFT), "os:system", secret=SECRET, table=rack)
    with pytest.raises(SpecError, match="episodes"):
        judged(LEFT, rack, episodes=0)


# Numbers


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    assert iqm([1e9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1e9]) == pytest.approx(3.5)
    assert iqm([2.0]) == 2.0
    assert iqm([1.0, 2.0, 9.0]) == pytest.approx(4.0)


def test_json_has_the_numbers_and_nothing_that_is_not_for_everybody(rack: Rack) -> None:
    done = judged("print('my secret plan')\n" + LEFT, rack)
    text = str(done.as_json())
    assert "secret plan" not in text
    assert not any(str(number) in text for number in seeds(SECRET, ENV, 6))
    assert done.as_json()["returns"] == list(done.returns)
