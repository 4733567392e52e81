"""PettingZoo environments in boxes: the same numbers as outside, PettingZoo's own checks, and hostile environments."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.test import api_test, parallel_api_test, seed_test

from harena import SpecError
from harena.adapters.pettingzoo import BoxedEnvError, boxed

pytestmark = pytest.mark.thorough
THEIRS = """
import gymnasium as gym, numpy as np
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import AgentSelector, wrappers

class Sumo(ParallelEnv):
    metadata = {"name": "sumo"}
    def __init__(self, size=5):
        self.possible_agents = ["red", "blue", "green"]
        self.size = size
        self.spaces = {a: gym.spaces.Box(-9, 9, (n + 1,), np.float32) for n, a in enumerate(self.possible_agents)}
    def observation_space(self, agent): return self.spaces[agent]
    def action_space(self, agent): return self.moves[agent]
    moves = {a: gym.spaces.Discrete(3) for a in ("red", "blue", "green")}
    def seen(self, agents): return {a: np.full(self.spaces[a].shape, self.at[a], np.float32) for a in agents}
    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        rng = np.random.default_rng(seed)
        self.at = {a: int(rng.integers(0, 3)) for a in self.agents}
        return self.seen(self.agents), {a: {"options": options} for a in self.agents}
    def step(self, actions):
        before = list(self.agents)
        for a, move in actions.items(): self.at[a] += int(move) - 1
        out = {a: abs(self.at[a]) >= self.size for a in before}
        self.agents = [a for a in before if not out[a]]
        infos = {a: {"at": np.int64(self.at[a])} for a in before}
        return self.seen(before), {a: float(self.at[a]) for a in before}, out, {a: False for a in before}, infos

class Race(AECEnv):
    metadata = {"name": "race", "is_parallelizable": False}
    def __init__(self):
        super().__init__()
        self.possible_agents = ["a", "b"]
        mask = gym.spaces.Box(0, 1, (3,), np.int8)
        self.observation_spaces = {n: gym.spaces.Dict({"observation": gym.spaces.Box(0, 99, (2,), np.int32), "action_mask": mask}) for n in "ab"}
        self.action_spaces = {n: gym.spaces.Discrete(3) for n in "ab"}
    def observation_space(self, agent): return self.observation_spaces[agent]
    def action_space(self, agent): return self.action_spaces[agent]
    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.at = dict.fromkeys(self.agents, 0)
        self.at["b"] = 0 if seed is None else seed % 2
        for name, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("terminations", False), ("truncations", False)):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.infos = {a: {} for a in self.agents}
        self.turns = AgentSelector(self.agents)
        self.agent_selection = self.turns.next()
    def observe(self, agent):
        return {"observation": np.array([self.at["a"], self.at["b"]], np.int32), "action_mask": np.ones(3, np.int8)}
    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        agent = self.agent_selection
        self._cumulative_rewards[agent] = 0.0
        self.at[agent] += int(action)
        self._clear_rewards()
        if self.at[agent] >= 10:
            self.rewards = {a: 1.0 if a == agent else -1.0 for a in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self.infos[agent] = {"went": int(action)}
        self.agent_selection = self.turns.next()
        self._accumulate_rewards()

def sumo(**options): return Sumo(**options)
def race(): return wrappers.OrderEnforcingWrapper(Race())
"""


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "their_env.py"
    path.write_text(THEIRS)
    spec = importlib.util.spec_from_file_location("their_env", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


def made(tmp_path, factory, text=THEIRS, **options):
    path = tmp_path / "their_env.py"
    path.write_text(text)
    return boxed(f"{path}:{factory}", **options)


def test_agents_at_once_get_the_same_as_outside_until_the_last_has_left(theirs):
    path, module = theirs
    inside, outside = boxed(f"{path}:sumo", arguments={"size": 3}), module.sumo(size=3)
    try:
        assert isinstance(inside, ParallelEnv)
        assert inside.possible_agents == outside.possible_agents
        for agent in outside.possible_agents:
            assert inside.observation_space(agent) == outside.observation_space(agent)
            assert inside.action_space(agent) == outside.action_space(agent)
        for seed in (1, 2):
            np.testing.assert_equal(
                inside.reset(seed=seed, options={"x": 1}), outside.reset(seed=seed, options={"x": 1})
            )
            while outside.agents:
                actions = {agent: 2 if agent == "red" else 0 for agent in outside.agents}
                np.testing.assert_equal(inside.step(actions), outside.step(actions))
                assert inside.agents == outside.agents
    finally:
        inside.close()


def test_agents_in_turn_get_the_same_as_outside_until_the_last_has_left(theirs):
    path, module = theirs
    inside, outside = boxed(f"{path}:race"), module.race()
    try:
        assert isinstance(inside, AECEnv)
        for env in (inside, outside):
            env.reset(seed=3)
        steps = 0
        while outside.agents:
            assert inside.agents == outside.agents
            assert inside.agent_selection == outside.agent_selection
            np.testing.assert_equal(inside.last(), outside.last())
            assert inside.rewards == outside.rewards
            over = outside.terminations[outside.agent_selection]
            for env in (inside, outside):
                env.step(None if over else steps % 3)
            steps += 1
        assert inside.agents == []
        assert steps > 8
    finally:
        inside.close()


@pytest.mark.filterwarnings("ignore")  # its checks warn about what they cannot see, such as a name for rendering
def test_pettingzoos_own_checks_pass_on_boxed_environments(tmp_path):
    at_once = made(tmp_path, "sumo")
    try:
        parallel_api_test(at_once, num_cycles=30)
    finally:
        at_once.close()
    in_turn = made(tmp_path, "race")
    try:
        api_test(in_turn, num_cycles=30)
    finally:
        in_turn.close()
    opened = []

    def another():
        opened.append(made(tmp_path, "race"))
        return opened[-1]

    try:
        seed_test(another, num_cycles=10)
    finally:
        for env in opened:
            env.close()


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("import os; os._exit(0)", "its process ended"),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("while True: pass", "did not answer within"),
        ("self.agents = ['red', 'red']; return self.seen(['red']), {}, {}, {}, {}", "agents that do not exist"),
        ("import socket; socket.socket(fileno=5).send(b'k' + b'[' * 9000)", "not JSON"),
        ("open('/etc/shadow')", "Error"),
    ],
)
def test_what_a_hostile_environment_does_is_one_error(tmp_path, attack, reason):
    text = THEIRS.replace("        before = list(self.agents)", f"        {attack}\n        before = list(self.agents)")
    env = made(tmp_path, "sumo", text, step_s=3)
    try:
        env.reset()
        with pytest.raises(BoxedEnvError, match=reason):
            env.step(dict.fromkeys(env.agents, 1))
        with pytest.raises(BoxedEnvError, match="closed"):
            env.step({})
        with pytest.raises(BoxedEnvError, match="closed"):
            env.reset()
    finally:
        env.close()


@pytest.mark.parametrize(
    ("order", "acting", "reason"),
    [([77, -1], 0, "do not exist"), ([1, 1], 1, "do not exist"), ([0, 1], 9, "not there"), ([0, -1], 1, "not there")],
)
def test_memory_that_a_box_forged_is_refused(tmp_path, order, acting, reason):
    env = made(tmp_path, "race")
    try:
        env.reset()
        env._remote.table.order[...], env._remote.table.acting[...] = order, acting
        with pytest.raises(BoxedEnvError, match=reason):
            env._read({"infos": "not a dict"})
    finally:
        env.close()


@pytest.mark.parametrize(
    ("agents", "reason"),
    [("[]", "possible agents"), ("['a', 'a']", "names of their own"), ("['a' * 999]", "names of their own")],
)
def test_an_environment_with_strange_agents_is_refused(tmp_path, agents, reason):
    text = THEIRS.replace('self.possible_agents = ["a", "b"]', f"self.possible_agents = {agents}")
    text = text.replace("return self.observation_spaces[agent]", "return self.observation_spaces['a']")
    text = text.replace("return self.action_spaces[agent]", "return self.action_spaces['a']")
    with pytest.raises(BoxedEnvError, match=reason):
        made(tmp_path, "race", text)


@pytest.mark.parametrize("name", ["nosuch.py:make", "os.path", "a b:c", "x:y z", ":env"])
def test_a_wrong_name_is_refused_before_a_box_is_made(name):
    with pytest.raises(SpecError):
        boxed(name)
