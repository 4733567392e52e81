"""What a researcher tries first: evaluation with intervals, leagues, arrays, training against isolated opponents,
environments of other libraries by a factory, ids with parameters, agents from Kaggle, and errors in expected words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import harena
from harena import SpecError
from harena.match import registry
from harena.match.adapters.as_gymnasium import GymEnv
from harena.match.agent.load import load
from harena.match.cli.match import headline
from harena.match.evaluate import AgentEvaluation
from harena.match.replay.replay import Replay
from harena.match.result import Clock, MatchSpec, MatchStatus, SeatStatus
from harena.match.run.play import play

FIRST_FREE = "def act(o):\n    return [c for c in range(7) if o[c] == 0][0]\n"
LAST_FREE = "def act(o):\n    return [c for c in range(7) if o[c] == 0][-1]\n"
AT_RANDOM = "import random\ndef act(o):\n    return random.choice([c for c in range(7) if o[c] == 0])\n"


@pytest.fixture
def agents(tmp_path) -> list[str]:
    paths = []
    for name, text in (("first", FIRST_FREE), ("last", LAST_FREE), ("dice", AT_RANDOM)):
        (tmp_path / f"{name}.py").write_text(text)
        paths.append(str(tmp_path / f"{name}.py"))
    return paths


# ---- evaluate, league ----


def test_evaluate_says_who_is_better_with_an_interval(agents):
    result = harena.evaluate(agents[0], agents[2], env="connect_four", games=20, seed=1, together=True)
    assert isinstance(result, AgentEvaluation)
    assert result.games == 20
    assert 0 <= result.win_rate.low < result.win_rate.value < result.win_rate.high <= 1
    again = harena.evaluate(agents[0], agents[2], env="connect_four", games=20, seed=1, together=True)
    assert again.win_rate == result.win_rate
    assert "first  points" in repr(result) or "first" in repr(result)
    assert "<table>" in result._repr_html_()


def test_evaluate_of_one_seat_gives_a_score(tmp_path):
    (tmp_path / "left.py").write_text("def act(o): return 0\n")
    result = harena.evaluate(tmp_path / "left.py", env="CartPole-v1", games=5, seed=1)
    assert 5 < result.score.low <= result.score.value <= result.score.high < 20


def test_a_league_is_a_data_frame(agents):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    table = harena.league([*agents, agents[2]], env="connect_four", games=2, seed=3, together=True)
    frame = table.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 4
    assert set(frame.agent) == {"first", "last", "dice #1", "dice #2"}
    assert len(table.to_frame("games")) == 2 * 2 * 6
    assert frame.wins.sum() + frame.draws.sum() / 2 == 12


def test_a_wrong_number_of_agents_names_the_other_function(agents):
    with pytest.raises(SpecError, match="`league` plays more"):
        harena.evaluate(*agents, env="connect_four")


# ---- arrays ----


def test_a_replay_gives_the_trajectory_of_each_seat_as_arrays(agents):
    result = play(MatchSpec(environment="connect_four", agents=(load(agents[0]), load(agents[2])), seed=4))
    first, second = Replay.load(result.replay).arrays()
    assert first.observations.shape == (len(first), 42)
    assert first.observations.dtype == np.int8
    assert len(first) + len(second) == result.steps
    assert first.rewards.sum() == -second.rewards.sum() == result.scores[0]
    assert list(first.steps[:2]) == [1, 3]
    assert (first.observations[0] == 0).all()
    assert (np.abs(second.last_observation).sum()) == result.steps


def test_observations_that_are_dicts_become_dicts_of_arrays():
    result = play(
        MatchSpec(environment="rps", agents=(load(b"def act(o): return 1"),) * 2, seed=4, config={"rounds": 5})
    )
    one, _ = Replay.load(result.replay).arrays()
    assert list(one.observations["round"]) == [0, 1, 2, 3, 4]
    assert list(one.actions) == [1] * 5


# ---- training against isolated opponents ----


def test_a_policy_trains_against_isolated_opponents_with_action_masks(agents):
    env = GymEnv("connect_four", opponents=[agents[1]])
    try:
        for seed in range(3):
            observation, info = env.reset(seed=seed)
            done = False
            while not done:
                assert list(info["action_mask"]) == [int(observation[column] == 0) for column in range(7)]
                column = int(np.flatnonzero(info["action_mask"])[0])
                observation, reward, done, _, info = env.step(column)
            assert reward in (-1.0, 0.0, 1.0)
    finally:
        env.close()


def test_an_isolated_opponent_that_crashes_forfeits(tmp_path):
    (tmp_path / "bad.py").write_text("def act(o): raise ValueError('boom')\n")
    env = GymEnv("connect_four", opponents=[tmp_path / "bad.py"])
    try:
        env.reset(seed=0)
        _, reward, done, _, info = env.step(3)
        assert (reward, done) == (1.0, True)
        assert "boom" in info["fault"]
        env.reset(seed=1)
    finally:
        env.close()


def test_an_opponent_cannot_see_the_host(tmp_path):
    (tmp_path / "spy.py").write_text(f"import os\nassert not os.path.exists({str(tmp_path)!r})\ndef act(o): return 0\n")
    env = GymEnv("connect_four", opponents=[tmp_path / "spy.py"])
    try:
        env.reset(seed=0)
        env.step(3)
    finally:
        env.close()


# ---- games of others ----

FACTORIES = """
def cart():
    import gymnasium
    return gymnasium.make("CartPole-v1")
def rounds():
    from pettingzoo.test.example_envs import generated_agents_parallel_v0
    return generated_agents_parallel_v0.env()
def kuhn(players=2):
    import pyspiel
    return pyspiel.load_game("kuhn_poker", {"players": players})
def number():
    return 3
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "their_games.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HARENA_GAMES", "")
    return "their_games"


def test_a_factory_may_return_an_object_of_gymnasium_or_openspiel(factories):
    for name, seats in (("cart", 1), ("kuhn", 2), ("kuhn(players=3)", 3)):
        registry.trust(f"{factories}:{name}")
        game = registry.make(f"{factories}:{name}")
        assert (game.id, game.seats) == (f"{factories}:{name}", seats)
        game.reset(1)
        assert game.to_move()


def test_a_factory_that_returns_something_else_is_told_what_it_may_return(factories):
    registry.trust(f"{factories}:number")
    with pytest.raises(harena.HarenaError, match="Gymnasium, PettingZoo or OpenSpiel"):
        registry.make(f"{factories}:number")


def test_a_pettingzoo_object_is_wrapped():
    pettingzoo = pytest.importorskip("pettingzoo")
    gymnasium = pytest.importorskip("gymnasium")

    class Both(pettingzoo.ParallelEnv):
        metadata = {"name": "both"}  # noqa: RUF012 - as PettingZoo declares it
        possible_agents = ["a", "b"]  # noqa: RUF012

        def observation_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        action_space = observation_space

        def reset(self, seed=None, options=None):
            self.agents = ["a", "b"]
            return {"a": 0, "b": 1}, {"a": {}, "b": {}}

        def step(self, actions):
            self.agents = []
            every = dict.fromkeys("ab")
            return {"a": 0, "b": 1}, {"a": 1.0, "b": 0.0}, every, every, {"a": {}, "b": {}}

    game = registry.adapted("x:both", Both())
    assert (game.seats, game.simultaneous) == (2, True)


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("go(board_size=9)", "openspiel/go(board_size=9)"),
        ("go( komi=6.5 , board_size=9 )", "openspiel/go(board_size=9,komi=6.5)"),
        ("rps(rounds=7)", "rps-v1(rounds=7)"),
        ("CartPole(sutton_barto_reward=true)", "CartPole-v1(sutton_barto_reward=true)"),
        ("kuhn_poker", "openspiel/kuhn_poker"),
    ],
)
def test_parameters_are_part_of_the_id(given, full):
    game = registry.make(given)
    assert game.id == registry.resolve(given) == registry.resolve(full) == full
    assert registry.make(full).id == full


def test_parameters_reach_the_game():
    assert registry.make("rps(rounds=7)").max_steps == 7
    result = play(MatchSpec(environment="rps(rounds=7)", agents=(load(b"def act(o): return 1"),) * 2))
    assert result.steps == 7
    assert Replay.load(result.replay).verify().ok


@pytest.mark.parametrize(
    "bad",
    ["rps(", "rps(rounds)", "rps(rounds=7", "rps(a=1,a=2)", "rps(__class__=x.y)", "rps(rounds=[])", "rps(nosuch=1)"],
)
def test_wrong_parameters_are_refused(bad):
    with pytest.raises(harena.HarenaError):
        registry.make(bad)


def test_everything_that_can_be_played_is_listed():
    others = registry.others()
    assert "CartPole-v1" in others["gymnasium"]
    assert "openspiel/go" in others["openspiel"]
    assert "pettingzoo/classic/connect_four_v3" in others["pettingzoo"]


# ---- agents from Kaggle ----

KAGGLE = """
import random
def is_free(board, column, configuration):
    return board[column] == 0
def my_agent(observation, configuration):
    assert observation["mark"] == observation.mark == MARK
    assert len(observation.board) == configuration.rows * configuration.columns == 42
    assert observation.step == sum(map(bool, observation.board))
    return random.choice([c for c in range(configuration.columns) if is_free(observation.board, c, configuration)])
"""


def test_kaggle_agents_run_unchanged(tmp_path):
    first = load(KAGGLE.replace("MARK", "1").encode(), name="first")
    second = load(KAGGLE.replace("my_agent", "agent").replace("MARK", "2").encode(), name="second")
    result = play(MatchSpec(environment="connect_four", agents=(first, second), seed=3))
    assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2, [seat.reason for seat in result.seats]


def test_kaggle_agents_of_rock_paper_scissors_see_the_last_action():
    copy = b"def copy_opponent(observation, configuration):\n    return observation.lastOpponentAction if observation.step > 0 else 0\n"
    paper = b"def act(o): return 1"
    result = play(MatchSpec(environment="rps(rounds=10)", agents=(load(copy), load(paper)), seed=3))
    assert result.scores == (0.0, 1.0), result


# ---- words of errors ----


def reason_of(agent, **clock) -> tuple[SeatStatus, str]:
    other = load(b"def act(o): return 1")
    result = play(MatchSpec(environment="rps(rounds=3)", agents=(agent, other), clock=Clock(**clock)))
    return result.seats[0].status, result.seats[0].reason


def command(tmp_path: Path, argv: list[str], files: dict[str, str]) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "agent.json").write_text(json.dumps({"command": argv}))
    return folder


def test_a_missing_package_names_the_variable_that_offers_it():
    status, reason = reason_of(load(b"import torch.nn\ndef act(o): return 1"))
    assert status is SeatStatus.LOAD
    assert reason.endswith("offer it with HARENA_AGENT_PACKAGES=torch"), reason


def test_a_command_that_does_not_exist_is_named(tmp_path):
    assert reason_of(load(command(tmp_path, ["nosuch"], {}))) == (SeatStatus.LOAD, "nosuch could not be started")


def test_a_silent_command_is_asked_if_it_flushes(tmp_path):
    silent = command(tmp_path, ["python3", "a.py"], {"a.py": "import time; time.sleep(100)"})
    expected = "no line arrived within 1 s; does the agent flush its output?"
    assert reason_of(load(silent), start_s=1) == (SeatStatus.TIMEOUT, expected)


def test_one_step_is_singular():
    result = play(MatchSpec(environment="rps(rounds=1)", agents=(load(b"def act(o): return 1"),) * 2))
    assert result.status is MatchStatus.FINISHED
    assert "after 1 step," in headline(result)
