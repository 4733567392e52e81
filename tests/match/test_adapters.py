"""Environments of others as our games, and our games as theirs, by their own checkers."""

from __future__ import annotations

import random
import sys
import warnings

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.utils import env_checker
from pettingzoo.test import api_test, parallel_api_test
from pettingzoo.utils import AgentSelector

from harena.errors import SpecError
from harena.match import registry
from harena.match.adapters import as_pettingzoo, convert
from harena.match.adapters.as_gymnasium import GymEnv
from harena.match.adapters.gymnasium import GymnasiumGame
from harena.match.adapters.pettingzoo import AECGame, ParallelGame
from harena.match.check import check_game
from harena.match.game import IllegalAction

# --- Gymnasium environments


@pytest.mark.parametrize("name", ["CartPole-v1", "gymnasium/CartPole-v1", "CartPole", "cartpole"])
def test_a_gymnasium_id_is_found_as_gymnasium_spells_it(name):
    assert registry.resolve(name) == "CartPole-v1"


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_gymnasium_environments_keep_the_contract(name):
    assert check_game(lambda: registry.make(name), games=3) == []


def test_cartpole_plays_as_it_does_in_gymnasium_and_its_return_is_the_score():
    game = registry.make("CartPole-v1")
    env = gym.make("CartPole-v1")
    game.reset(11)
    seen, _ = env.reset(seed=11)
    actions = random.Random(0)
    total = 0.0
    while game.to_move():
        assert game.observe(0) == seen.tobytes()
        action = actions.randrange(2)
        seen, reward, terminated, truncated, _ = env.step(action)
        assert game.step({0: action}).get(0, 0.0) == reward
        assert (game.to_move() == ()) == (terminated or truncated)
        total += reward
    assert game.outcome().scores == (total,)
    assert game.outcome().winner is None
    assert game.seats == 1


def test_truncation_ends_the_game():
    game = registry.make("Pendulum-v1", {"max_episode_steps": 7})
    steps = 0
    while game.to_move():
        game.step({0: np.zeros(1, "float32")})
        steps += 1
    assert steps == 7 == game.max_steps
    assert game.outcome().reason == "7 steps"


def test_a_forfeit_keeps_no_positive_return():
    game = registry.make("CartPole-v1")
    game.step({0: 1})
    assert game.forfeit([0]).scores == (0.0,)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"render_mode": "human"}, "no config 'render_mode'"),
        ({"entry_point": "os:system"}, "no config 'entry_point'"),
        ({"sutton_barto_reward": "yes"}, "true or false"),
        ({"max_episode_steps": 10**9}, "at most 10000"),
        ({"max_episode_steps": -1}, "at least 1"),
        ({"max_episode_steps": float("nan")}, "whole number"),
    ],
)
def test_a_stranger_s_config_reaches_only_numbers_and_switches(config, message):
    with pytest.raises(SpecError, match=message):
        registry.make("CartPole-v1", config)


def test_a_text_option_cannot_be_set_because_texts_name_files():
    with pytest.raises(SpecError, match="no config 'map_name'"):
        registry.make("FrozenLake-v1", {"map_name": "8x8"})


def test_gymnasium_is_not_made_to_import_a_module():
    for name in ("gymnasium/antigravity:X-v0", "antigravity:X-v0"):
        with pytest.raises(registry.UnknownGame):
            registry.make(name)
    assert "antigravity" not in sys.modules


class Everything(gym.Env):
    """Sees what it was told last, with every kind of space that has a counterpart."""

    kinds = gym_spaces.Dict(
        {
            "which": gym_spaces.Discrete(3, start=-1),
            "several": gym_spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 0]]),
            "bits": gym_spaces.MultiBinary([2, 2]),
            "limits": gym_spaces.Box(np.array([0, -5], "float32"), np.array([1, 5], "float32")),
            "picture": gym_spaces.Box(0, 255, (2, 2, 3), "uint8"),
            "half": gym_spaces.Box(-1, 1, (2,), "float16"),
            "switch": gym_spaces.Box(0, 1, (2,), "bool"),
            "words": gym_spaces.Text(5, min_length=0),
            "pair": gym_spaces.Tuple([gym_spaces.Discrete(2), gym_spaces.Box(-np.inf, np.inf, (1,), "float64")]),
        }
    )
    observation_space = action_space = kinds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kinds.seed(seed)
        self.steps = 0
        return self.kinds.sample(), {}

    def step(self, action):
        assert self.kinds.contains(action)
        self.steps += 1
        return action, 0.5, self.steps == 5, False, {}


def test_every_kind_of_space_survives_the_way_there_and_back():
    game = GymnasiumGame("everything-v0", Everything(), 100)
    space = game.action_space(0)
    Everything.kinds.seed(3)
    to_ours = convert.from_gym(Everything.kinds, "test").pack
    for _ in range(5):
        action = Everything.kinds.sample()
        game.step({0: space.decode_all(space.encode(to_ours(action)))})
        back = convert.from_gym(Everything.kinds, "test").unpack(
            game.observation_space(0).decode_all(space.encode(game.observe(0)))
        )
        assert Everything.kinds.contains(back)
        for key, value in action.items():
            if key != "pair":
                assert np.array_equal(back[key], value), key
        assert back["pair"][0] == action["pair"][0]
    assert game.to_move() == ()
    assert game.outcome().scores == (2.5,)


def test_an_action_outside_one_number_s_own_bounds_is_illegal():
    game = GymnasiumGame("everything-v0", Everything(), 100)
    Everything.kinds.seed(3)
    action = convert.from_gym(Everything.kinds, "test").pack(Everything.kinds.sample())
    space = game.action_space(0)
    action["limits"] = np.array([3, 0], "float32")  # fits the second number's bounds, not the first's
    with pytest.raises(IllegalAction):
        game.step({0: space.decode_all(space.encode(action))})


@pytest.mark.parametrize("kind", [gym_spaces.Sequence(gym_spaces.Discrete(2)), gym_spaces.Box(0, 1, (2,), "uint64")])
def test_spaces_without_a_counterpart_are_refused_by_name(kind):
    with pytest.raises(SpecError, match=r"my-env, observations: .*not supported"):
        convert.from_gym(kind, "my-env, observations")


# --- PettingZoo environments


class Countdown(pettingzoo.AECEnv):
    """In turns, take one to three from a heap; who takes the last is out, the others go on with a new heap."""

    metadata = {"name": "countdown_v0"}  # noqa: RUF012
    possible_agents = ["ann_0", "bob_0", "cid_0"]  # noqa: RUF012

    def __init__(self):
        seen = {"observation": gym_spaces.Box(0, 9, (1,), "int8"), "action_mask": gym_spaces.Box(0, 1, (3,), "int8")}
        self.observation_spaces = {agent: gym_spaces.Dict(seen) for agent in self.possible_agents}
        self.action_spaces = {agent: gym_spaces.Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.heap = int(self.rng.integers(4, 10))
        self.turns = AgentSelector(self.agents)
        self.agent_selection = self.turns.next()

    def observe(self, agent):
        mask = np.array([take <= self.heap for take in (1, 2, 3)], "int8")
        return {"observation": np.array([self.heap], "int8"), "action_mask": mask}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            if self.agents:
                self.turns.reinit(self.agents)
                self.agent_selection = self.turns.next()
            return
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0
        self.heap -= int(action) + 1
        assert self.heap >= 0
        if self.heap == 0:
            self.heap = int(self.rng.integers(4, 10))
            self.terminations[agent] = True
            for other in self.agents:
                self.rewards[other] = -1 if other == agent else 1
            alive = [other for other in self.agents if not self.terminations[other]]
            if len(alive) == 1:
                self.terminations[alive[0]] = True
            self.agent_selection = agent
        else:
            self.agent_selection = self.turns.next()
        self._accumulate_rewards()


class Sumo(pettingzoo.ParallelEnv):
    """Everybody pushes at once; the weakest push of a round is out."""

    metadata = {"name": "sumo_v0"}  # noqa: RUF012
    possible_agents = ["wrestler_0", "wrestler_1", "wrestler_2"]  # noqa: RUF012

    def __init__(self):
        self.observation_spaces = {agent: gym_spaces.Box(0, 1, (2,), "float32") for agent in self.possible_agents}
        self.action_spaces = {agent: gym_spaces.Discrete(5) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self):
        return {agent: self.rng.random(2).astype("float32") for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        weakest = min(self.agents, key=lambda agent: actions[agent])
        over = len(self.agents) == 2
        seen = self.seen()
        rewards = {agent: float(agent != weakest) for agent in self.agents}
        ended = {agent: over or agent == weakest for agent in self.agents}
        result = seen, rewards, ended, dict.fromkeys(self.agents, False), {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return result


def test_the_environments_of_this_test_are_sound():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(Countdown(), num_cycles=50)
        parallel_api_test(Sumo(), num_cycles=50)


@pytest.mark.parametrize(
    "game", [lambda: AECGame("countdown-v0", Countdown()), lambda: ParallelGame("sumo-v0", Sumo())]
)
def test_pettingzoo_environments_keep_the_contract(game):
    assert check_game(game, games=10) == []


def test_aec_agents_take_seats_in_order_and_leave_when_they_are_out():
    game = AECGame("countdown-v0", Countdown())
    game.reset(5)
    movers = []
    rewards = {}
    while moving := game.to_move():
        movers.append(moving[0])
        rewards = game.step({moving[0]: 0})
        if rewards:
            out = moving[0]
            assert rewards == {seat: -1.0 if seat == out else 1.0 for seat in rewards}
    assert movers[:3] == [0, 1, 2]
    outcome = game.outcome()
    assert sorted(outcome.scores) == [-1.0, 0.0, 2.0]
    assert outcome.scores[outcome.winner] == 2.0


def test_an_action_the_mask_forbids_is_illegal_and_the_mask_is_seen():
    game = AECGame("countdown-v0", Countdown())
    game._env.heap = 1
    seen = game.observation_space(0).decode_all(game.observation_space(0).encode(game.observe(0)))
    assert seen["action_mask"].tolist() == [1, 0, 0]
    with pytest.raises(IllegalAction, match="mask forbids 2") as caught:
        game.step({0: 2})
    assert caught.value.seat == 0
    assert game._env.heap == 1


def test_parallel_agents_move_at_once_and_leave_when_they_are_out():
    game = ParallelGame("sumo-v0", Sumo())
    game.reset(1)
    assert list(game.to_move()) == [0, 1, 2]
    assert game.step({0: 3, 1: 0, 2: 4}) == {0: 1.0, 2: 1.0}
    assert list(game.to_move()) == [0, 2]
    last = game.observe(1)
    assert game.step({0: 3, 2: 4}) == {2: 1.0}
    assert game.observe(1) == last, "who is out keeps its last observation"
    assert list(game.to_move()) == []
    assert game.outcome().scores == (1.0, 0.0, 2.0)
    assert game.outcome().winner == 2


@pytest.mark.parametrize(
    "name",
    ["os", "classic/../os_v1", "classic/os", "test/api_test_v1", "classic/x_v1/y", "utils/env_v1", "classic/X_v1"],
)
def test_pettingzoo_ids_name_environments_only(name):
    with pytest.raises(registry.UnknownGame):
        registry.make(f"pettingzoo/{name}")


def test_a_missing_environment_or_package_is_named(monkeypatch):
    with pytest.raises(registry.UnknownGame, match="has no classic/no_such_game_v1"):
        registry.make("pettingzoo/classic/no_such_game_v1")
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.delitem(sys.modules, "pettingzoo.classic.connect_four.connect_four", raising=False)
    with pytest.raises(registry.UnknownGame, match=r"needs pygame.*pip install 'pettingzoo\[classic\]'"):
        registry.make("pettingzoo/classic/connect_four_v3")


# --- OpenSpiel


def test_openspiel_games_keep_the_contract():
    try:
        import pyspiel  # noqa: F401
    except ImportError:
        pytest.skip("host: open_spiel is not installed")
    for name in ("kuhn_poker", "tic_tac_toe", "goofspiel", "leduc_poker", "matrix_rps"):
        assert check_game(lambda name=name: registry.make(f"openspiel/{name}"), games=5) == []
    assert registry.make("openspiel/kuhn_poker", {"players": 3}).seats == 3
    assert registry.make("openspiel/kuhn_poker").hidden
    with pytest.raises(SpecError, match="mean field"):
        registry.make("openspiel/mfg_crowd_modelling")
    with pytest.raises(registry.UnknownGame, match="kuhn_poker"):
        registry.make("openspiel/kuhn_pokr")


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    monkeypatch.delitem(sys.modules, "harena.match.adapters.openspiel", raising=False)
    with pytest.raises(registry.MissingExtra, match=r"pip install 'harena\[openspiel\]'"):
        registry.make("openspiel/kuhn_poker")


# --- our games as theirs

OURS = ["tictactoe", "connect_four", "pong", "rps", "leduc", "tron"]
AT_ONCE = ["pong", "rps", "tron"]


@pytest.mark.parametrize("name", OURS)
def test_gymnasium_s_checker_passes_over_our_games(name):
    env_id = f"HarenaTest{name.title().replace('_', '')}-v0"
    gym.register(env_id, entry_point=GymEnv, kwargs={"game_id": name, "seat": 1})
    try:
        env_checker.check_env(gym.make(env_id).unwrapped)
    finally:
        del gym.registry[env_id]


@pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros")
@pytest.mark.filterwarnings("ignore:Observation space for each agent probably should be")
@pytest.mark.filterwarnings("ignore:Observation is not a NumPy array")
@pytest.mark.parametrize("name", OURS)
def test_pettingzoo_s_checker_passes_over_our_games(name):
    api_test(as_pettingzoo.env(name), num_cycles=200)


@pytest.mark.parametrize("name", AT_ONCE)
def test_pettingzoo_s_parallel_checker_passes_over_our_games(name):
    parallel_api_test(as_pettingzoo.parallel_env(name), num_cycles=200)


def test_games_in_turns_have_no_parallel_form():
    with pytest.raises(SpecError, match=r"use env\(\)"):
        as_pettingzoo.parallel_env("connect_four")


def test_a_trained_seat_meets_the_opponents_it_was_given():
    env = GymEnv("tictactoe", opponents=[lambda board: int(np.argmin(np.abs(board)))], seat=0)
    env.reset(seed=1)
    board, reward, over, _, _ = env.step(4)
    assert board.tolist() == [-1, 0, 0, 0, 1, 0, 0, 0, 0]
    env.step(3)
    board, reward, over, _, _ = env.step(5)
    assert (reward, over) == (1.0, True)


def test_an_opponent_may_move_first_and_win():
    env = GymEnv("tictactoe", opponents=[lambda board: int(np.argmin(np.abs(board)))], seat=1)
    board, _ = env.reset(seed=1)
    assert board.tolist()[0] == -1
    env.step(8)
    _, reward, over, _, _ = env.step(7)
    assert (reward, over) == (-1.0, True)


def test_an_illegal_action_of_the_trained_seat_ends_the_episode():
    env = GymEnv("tictactoe", opponents=[lambda board: 0])
    env.reset(seed=1)
    env.step(4)
    for action in (4, 99):
        env.reset(seed=1)
        env.step(4)
        _, reward, over, _, info = env.step(action)
        assert (reward, over, info["seat"]) == (-1.0, True, 0)


def test_an_illegal_opponent_forfeits():
    env = GymEnv("tictactoe", opponents=[lambda board: 4])
    env.reset(seed=1)
    _, reward, over, _, info = env.step(4)
    assert (reward, over, info["seat"]) == (1.0, True, 1)


def test_the_same_seed_gives_the_same_game_to_match_and_pettingzoo():
    env = as_pettingzoo.parallel_env("pong")
    seen, _ = env.reset(seed=77)
    game = registry.make("pong")
    game.reset(77)
    assert seen["player_0"].tobytes() == game.observe(0)


def test_choices_of_a_simultaneous_game_stay_unseen_in_turns():
    env = as_pettingzoo.env("rps")
    env.reset(seed=1)
    before = env.observe("player_1")
    env.step(2)
    assert env.agent_selection == "player_1"
    assert env.observe("player_1") == before
    env.step(0)
    assert env.observe("player_1")["theirs"] == 2
    assert env.rewards == {"player_0": -1.0, "player_1": 1.0}


def test_opponents_and_seats_are_counted():
    with pytest.raises(SpecError, match="needs 1 opponents"):
        GymEnv("pong", opponents=[])
    with pytest.raises(SpecError, match="no seat 2"):
        GymEnv("pong", seat=2)
    with pytest.raises(SpecError, match="render_mode"):
        as_pettingzoo.env("pong", render_mode="human")
