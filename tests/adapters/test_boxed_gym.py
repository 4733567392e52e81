"""Gymnasium environments in boxes: the same numbers as outside, and nothing that a hostile one does reaches the host."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
import pytest

from harena import Limits, SpecError
from harena.adapters import gym as boxed_gym
from harena.adapters.gym import BoxedEnvError, boxed

pytestmark = pytest.mark.thorough
SPACES = """
import gymnasium as gym, numpy as np
class Env(gym.Env):
    observation_space = gym.spaces.Dict({
        "picture": gym.spaces.Box(0, 255, (3, 4), np.uint8),
        "parts": gym.spaces.Tuple([gym.spaces.Discrete(5, start=2), gym.spaces.MultiBinary(3)]),
        "wide": gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 9.0], np.float32)),
    })
    action_space = gym.spaces.MultiDiscrete([3, 4])
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {"options": options, "seed": seed}
    def step(self, action):
        seen = {"picture": np.full((3, 4), action[1]), "parts": (4, [1, 0, 1]), "wide": [0.5, 7]}
        return seen, float(action[0]), False, True, {"array": np.arange(3), "odd": object}
def make(): return Env()
"""
HOSTILE = """
import gymnasium as gym, numpy as np, os, socket
class Env(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None): return np.zeros(2, np.float32), {}
    def step(self, action):
        ATTACK
        return np.zeros(2, np.float32), 0.0, False, False, {}
def make(): return Env()
"""
SHRINK = """
        for name in os.listdir("/proc/self/fd"):
            try: os.ftruncate(int(name), 0)
            except OSError: pass"""


def made(tmp_path, text, **options):
    (tmp_path / "their_env.py").write_text(text)
    return boxed(f"{tmp_path}/their_env.py:make", **options)


def test_a_boxed_environment_gives_the_same_numbers_as_outside():
    inside, outside = boxed("CartPole-v1"), gym.make("CartPole-v1")
    try:
        assert inside.observation_space == outside.observation_space
        assert inside.action_space == outside.action_space
        for one, other in zip(inside.reset(seed=3), outside.reset(seed=3), strict=True):
            np.testing.assert_equal(one, other)
        for action in (0, 1, 1, 0):
            for one, other in zip(inside.step(action), outside.step(action), strict=True):
                np.testing.assert_equal(one, other)
    finally:
        inside.close()


def test_a_boxed_vector_gives_the_same_numbers_as_outside():
    inside = boxed("CartPole-v1", num_envs=5)
    outside = gym.make_vec("CartPole-v1", num_envs=5, vectorization_mode="sync")
    try:
        np.testing.assert_equal(inside.reset(seed=[1, 2, 3, 4, 5])[0], outside.reset(seed=[1, 2, 3, 4, 5])[0])
        for _ in range(60):
            actions = np.array([0, 1, 0, 1, 1])
            for one, other in zip(inside.step(actions)[:4], outside.step(actions)[:4], strict=True):
                np.testing.assert_equal(one, other)
    finally:
        inside.close()


def test_nested_spaces_and_infos_cross_the_border(tmp_path):
    env = made(tmp_path, SPACES)
    try:
        seen, info = env.reset(seed=7, options={"level": 2})
        assert seen in env.observation_space
        assert info == {"options": {"level": 2}, "seed": 7}
        seen, reward, terminated, truncated, info = env.step(np.array([2, 3]))
        assert (seen["picture"] == 3).all()
        assert seen["parts"][0] == 4
        assert list(seen["parts"][1]) == [1, 0, 1]
        assert (reward, terminated, truncated) == (2.0, False, True)
        assert info["array"] == [0, 1, 2]
        assert "object" in info["odd"]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("os._exit(0)", "its process ended"),
        ("while True: pass", "did not answer within"),
        ("socket.socket(fileno=os.dup(5)).send(b'k' + b'[' * 9000)", "not JSON"),
        ("socket.create_connection(('127.0.0.1', 9), 1)", "Error"),
        ("open('/etc/shadow').read()", "Error"),
    ],
)
def test_what_a_hostile_environment_does_is_one_error(tmp_path, attack, reason):
    env = made(tmp_path, HOSTILE.replace("ATTACK", attack), step_s=3)
    try:
        env.reset()
        with pytest.raises(BoxedEnvError, match=reason):
            env.step(0)
        with pytest.raises(BoxedEnvError, match="closed"):
            env.step(0)
    finally:
        env.close()


def test_shared_memory_cannot_be_taken_away_from_the_host(tmp_path):
    env = made(tmp_path, HOSTILE.replace("ATTACK", SHRINK.strip()))
    try:
        env.reset()
        assert (env.step(0)[0] == 0).all()
    finally:
        env.close()


def test_memory_of_an_environment_is_limited(tmp_path):
    env = made(
        tmp_path,
        HOSTILE.replace("ATTACK", "x = [bytearray(1 << 20) for _ in range(2000)]"),
        limits=Limits(memory_mb=200, wall_s=600),
    )
    try:
        env.reset()
        with pytest.raises(BoxedEnvError):
            env.step(0)
    finally:
        env.close()


@pytest.mark.parametrize(
    "description",
    [
        None,
        {"kind": "Graph"},
        {"kind": "Discrete", "n": -1, "start": 0},
        {"kind": "MultiBinary", "shape": [1 << 40]},
        {"kind": "Box", "dtype": "O", "low": {}, "high": {}},
        {
            "kind": "Box",
            "dtype": "float32",
            "low": {"dtype": "float32", "shape": [9], "same": False, "data": "AAAA"},
            "high": {},
        },
    ],
)
def test_a_forged_description_of_a_space_is_refused(description):
    with pytest.raises(BoxedEnvError):
        boxed_gym.space_of(description)


def test_a_file_that_does_not_exist_is_named():
    with pytest.raises(SpecError, match=r"nosuch\.py"):
        boxed("nosuch.py:make")


@pytest.mark.serial
def test_a_boxed_vector_is_at_least_two_fifths_as_fast_as_outside():
    inside, outside = (
        boxed("CartPole-v1", num_envs=64),
        gym.make_vec("CartPole-v1", num_envs=64, vectorization_mode="sync"),
    )
    actions = np.arange(64) % 2

    def seconds(env) -> float:
        began = time.perf_counter()
        for _ in range(100):
            env.step(actions)
        return time.perf_counter() - began

    try:
        for env in (inside, outside):
            env.reset(seed=0)
            seconds(env)
        ratios = sorted(seconds(outside) / seconds(inside) for _ in range(7))
        assert ratios[-3] >= 0.4, ratios
    finally:
        inside.close()
