"""Any Gymnasium environment as a game of one seat. The score is the return; nobody wins.

An environment without its own time limit ends after MAX_STEPS. The action is checked against Gymnasium's space:
one outside it is an IllegalAction. An agent that forfeits scores the return it had, at most 0. Rankings must still
place forfeits below every finished game: if rewards are negative, ending early would otherwise be an advantage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harena.errors import SpecError
from harena.match import registry
from harena.match.game import GameError, IllegalAction, Outcome

try:
    import gymnasium as gym
    from gymnasium.envs import registration

    from harena.match.adapters import convert, options
except ModuleNotFoundError as error:
    raise registry.MissingExtra("a Gymnasium environment", error.name or "gymnasium", "gym") from error

MAX_STEPS = 10_000
_ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+", re.ASCII)  # no colon: Gymnasium would import what stands before it
_NO_REWARDS: Mapping[int, float] = {}


def ids() -> list[str]:
    return sorted(registration.registry)


def find(name: str) -> str | None:
    """Return the id as Gymnasium spells it, with its version; case is ignored. None if there is no such environment."""
    if not _ID.fullmatch(name):
        return None
    if name in registration.registry:
        return name
    versions = [spec for spec in registration.registry.values() if name.lower() in _spellings(spec)]
    return max(versions, key=lambda spec: spec.version or 0).id if versions else None


def _spellings(spec: registration.EnvSpec) -> tuple[str, str]:
    bare = f"{spec.namespace}/{spec.name}" if spec.namespace else spec.name
    return spec.id.lower(), bare.lower()


def resolve(name: str) -> str:
    found = find(name)
    if found is None:
        raise registry.unknown(name, ids())
    return found


def make(name: str, config: Mapping[str, Any]) -> GymnasiumGame:
    spec = registration.registry[resolve(name)]
    try:
        creator = (
            spec.entry_point if callable(spec.entry_point) else registration.load_env_creator(str(spec.entry_point))
        )
        allowed = {**options.numbers(creator), "max_episode_steps": spec.max_episode_steps or MAX_STEPS}
        chosen = options.checked(spec.id, config, allowed)
        limit = int(chosen.pop("max_episode_steps", allowed["max_episode_steps"]))
        if limit < 1:
            raise SpecError(f"{spec.id}: config max_episode_steps={limit} must be at least 1")
        modes: Any = getattr(creator, "metadata", {}).get("render_modes", ())
        kwargs: dict[str, Any] = {"render_mode": "ansi"} if "ansi" in modes else {}
        env = gym.make(spec.id, limit, disable_env_checker=True, **kwargs, **chosen)
    except (ImportError, gym.error.Error) as error:
        raise registry.UnknownGame(f"{spec.id} cannot be made here: {error}") from error
    return GymnasiumGame(spec.id, env, limit)


def wrap(game_id: str, env: Any) -> GymnasiumGame | None:
    """A game of an environment that somebody else made; None if it is none."""
    if not isinstance(env, gym.Env):
        return None
    found: Any = cast("gym.Env[Any, Any]", env)
    limit = found.spec.max_episode_steps if found.spec is not None else None
    return GymnasiumGame(game_id, found, limit or MAX_STEPS)


class GymnasiumGame:
    """A Gymnasium environment; the score is the return."""

    seats = 1
    simultaneous = False
    hidden = False

    def __init__(self, game_id: str, env: gym.Env[Any, Any], max_steps: int) -> None:
        self.id = game_id
        self.max_steps = max_steps
        self.summary = f"Gymnasium's {game_id}; the score is the return"
        self._env = env
        self._observations = convert.from_gym(env.observation_space, f"{game_id}, observations")
        self._actions = convert.from_gym(env.action_space, f"{game_id}, actions")
        self.reset(0)

    def observation_space(self, seat: int) -> Any:
        return self._observations.space

    def action_space(self, seat: int) -> Any:
        return self._actions.space

    def reset(self, seed: int) -> None:
        observation, _ = self._env.reset(seed=seed)
        self._seen = self._observations.pack(observation)
        self._return = 0.0
        self._steps = 0
        self._over = False
        self._reason = ""
        self._last: tuple[Any, float] | None = None

    def to_move(self) -> Sequence[int]:
        return () if self._over else (0,)

    def observe(self, seat: int) -> Any:
        return self._seen

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        action = self._actions.unpack(actions[0])
        if not self._env.action_space.contains(action):
            raise IllegalAction(0, f"{action!r:.80} is not in {self._env.action_space}")
        observation, reward, terminated, truncated, _ = self._env.step(action)
        reward = float(reward)
        if not math.isfinite(reward):
            raise GameError(f"{self.id}: a reward of {reward}")
        self._seen = self._observations.pack(observation)
        self._return += reward
        self._steps += 1
        self._last = (actions[0], reward)
        if terminated or truncated or self._steps >= self.max_steps:
            self._over = True
            self._reason = "terminated" if terminated else f"{self._steps} steps"
        return {0: reward} if reward else _NO_REWARDS

    def outcome(self) -> Outcome:
        return Outcome((self._return,), None, self._reason)

    def forfeit(self, losers: Sequence[int]) -> Outcome:
        return Outcome((min(self._return, 0.0),), None, "forfeited")

    def view(self) -> dict[str, Any]:
        return {
            "observation": convert.shown(self._observations.space, self._seen),
            "action": None if self._last is None else self._actions.space.to_json(self._last[0]),
            "reward": None if self._last is None else self._last[1],
            "return": self._return,
            "step": self._steps,
        }

    def text(self) -> str:
        picture = self._env.render() if self._env.render_mode == "ansi" else None
        numbers = f"step {self._steps}  return {self._return:g}"
        if isinstance(picture, str):
            return f"{picture.rstrip()}\n{numbers}"
        view = self.view()
        return f"{numbers}\naction {view['action']}\nobservation {view['observation']!s:.200}"
