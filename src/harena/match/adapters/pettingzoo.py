"""Any PettingZoo environment as a game; agents take seats in the order of `possible_agents`. Parallel where it has that
form (all seats move at once), else AEC (one at a time).

Agents that die leave the table; their last observation stays. Action masks stay in the observation, and an action that
the mask forbids is an IllegalAction. Scores are the summed rewards; the winner is the only agent with the highest
score. PettingZoo does not say what spectators may see, so `hidden` is True.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harena.match import registry
from harena.match.game import GameError, IllegalAction, Outcome, forfeited

try:
    import numpy as np
    import pettingzoo  # pyright: ignore[reportMissingTypeStubs]

    from harena.match.adapters import convert, options
except ModuleNotFoundError as error:
    raise registry.MissingExtra("a PettingZoo environment", error.name or "pettingzoo", "gym") from error

MAX_STEPS = 10_000
FAMILIES = ("atari", "butterfly", "classic", "mpe", "sisl")
_ID = re.compile(rf"(?P<family>{'|'.join(FAMILIES)})/(?P<name>[a-z][a-z0-9_]*)[_-]v(?P<version>\d+)", re.ASCII)


def resolve(name: str) -> str:
    match = _ID.fullmatch(name)
    if match is None:
        raise registry.UnknownGame(
            f"no PettingZoo environment {name!r:.80}: expected one like classic/connect_four_v3, "
            f"from {', '.join(FAMILIES)}"
        )
    return f"pettingzoo/{match['family']}/{match['name']}_v{match['version']}"


def make(name: str, config: Mapping[str, Any]) -> PettingZooGame:
    game_id = resolve(name)
    parallel, creator = _creator(game_id)
    chosen = options.checked(game_id, config, _numbers(creator))
    env = creator(**chosen)
    return ParallelGame(game_id, env) if parallel else AECGame(game_id, env)


def _creator(game_id: str) -> tuple[bool, Callable[..., Any]]:
    """Return whether it is the parallel form, and the function that creates the environment."""
    _, family, name = game_id.split("/")
    try:
        module = _module(family, name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "pettingzoo":
            raise registry.UnknownGame(f"PettingZoo {pettingzoo.__version__} has no {family}/{name}") from error
        raise registry.UnknownGame(
            f"{game_id} needs {package}, which is not installed: pip install 'pettingzoo[{family}]'"
        ) from error
    except ImportError as error:
        raise registry.UnknownGame(f"{game_id} cannot be imported: {error}") from error
    parallel = getattr(module, "parallel_env", None)
    return (True, parallel) if parallel is not None else (False, module.env)


def _module(family: str, name: str) -> Any:
    """Module of an environment. Since 1.27, PettingZoo has its own registry and its old module names warn."""
    specs = getattr(pettingzoo, "aec_registry", None)
    if specs is None:
        return importlib.import_module(f"pettingzoo.{family}.{name}")
    spec = specs.get(f"{family}/{name.replace('_v', '-v')}")
    if spec is None:
        raise ModuleNotFoundError(name=f"pettingzoo.{family}.{name}")
    return importlib.import_module(spec.entry_point.partition(":")[0])


def _numbers(creator: Callable[..., Any]) -> dict[str, bool | int | float]:
    """`env(**kwargs)` wraps `raw_env`, which may wrap `parallel_env`: the options are where they have names."""
    module = importlib.import_module(creator.__module__)
    found = options.numbers(creator)
    for name in ("raw_env", "parallel_env"):
        found |= options.numbers(getattr(module, name, creator))
    return found


def names() -> list[str]:
    """Names such as classic/connect_four_v3, as far as PettingZoo lists them."""
    specs: Any = getattr(pettingzoo, "aec_registry", None) or {}
    return sorted(name for name in (str(key).replace("-v", "_v") for key in specs) if _ID.fullmatch(name))


def wrap(game_id: str, env: Any) -> PettingZooGame | None:
    """A game of an environment that somebody else made; None if it is none."""
    if isinstance(env, pettingzoo.ParallelEnv):
        return ParallelGame(game_id, env)
    return AECGame(game_id, env) if isinstance(env, pettingzoo.AECEnv) else None


class PettingZooGame:
    """Base class of both forms."""

    hidden = True
    simultaneous: bool
    _steps: int

    def __init__(self, game_id: str, env: Any, *, max_steps: int = MAX_STEPS) -> None:
        self.id = game_id
        self.max_steps = max_steps
        self.summary = f"PettingZoo's {game_id.removeprefix('pettingzoo/')}"
        self._env = env
        self._agents: list[Any] = list(env.possible_agents)
        self.seats = len(self._agents)
        self._seat_of = {agent: seat for seat, agent in enumerate(self._agents)}
        self._observations = [
            convert.from_gym(env.observation_space(agent), f"{game_id}, what {agent} sees") for agent in self._agents
        ]
        self._actions = [
            convert.from_gym(env.action_space(agent), f"{game_id}, what {agent} does") for agent in self._agents
        ]
        self._steps = 0
        self._scores = [0.0] * self.seats
        self._left: dict[Any, Any] = {}
        self.reset(0)

    def observation_space(self, seat: int) -> Any:
        return self._observations[seat].space

    def action_space(self, seat: int) -> Any:
        return self._actions[seat].space

    def reset(self, seed: int) -> None:
        self._steps = 0
        self._scores = [0.0] * self.seats
        self._left = {}
        self._start(seed)

    def _start(self, seed: int) -> None:
        raise NotImplementedError

    def to_move(self) -> Sequence[int]:
        raise NotImplementedError

    def _raw(self, agent: Any) -> Any:
        """Observation of the environment; the last one if the agent is gone."""
        raise NotImplementedError

    def observe(self, seat: int) -> Any:
        return self._observations[seat].pack(self._raw(self._agents[seat]))

    def _unpacked(self, seat: int, action: Any) -> Any:
        agent = self._agents[seat]
        unpacked = self._actions[seat].unpack(action)
        if not self._env.action_space(agent).contains(unpacked):
            raise IllegalAction(seat, f"{action!r:.80} is not in {self._env.action_space(agent)}")
        mask = self._mask(agent) if np.ndim(unpacked) == 0 else None
        if mask is not None and not mask[int(unpacked)]:
            raise IllegalAction(seat, f"the action mask forbids {int(unpacked)}")
        return unpacked

    def _mask(self, agent: Any) -> Any:
        observation = self._raw(agent)
        if isinstance(observation, dict) and "action_mask" in observation:
            return observation["action_mask"]  # pyright: ignore[reportUnknownVariableType]
        return self._info(agent).get("action_mask")

    def _info(self, agent: Any) -> Mapping[str, Any]:
        raise NotImplementedError

    def _reward(self, rewards: Mapping[Any, Any]) -> Mapping[int, float]:
        found = {self._seat_of[agent]: float(reward) for agent, reward in rewards.items() if reward}
        for seat, reward in found.items():
            if not math.isfinite(reward):
                raise GameError(f"{self.id}: a reward of {reward} for {self._agents[seat]}")
            self._scores[seat] += reward
        return found

    def outcome(self) -> Outcome:
        best = max(self._scores)
        leaders = [seat for seat, score in enumerate(self._scores) if score == best]
        winner = leaders[0] if len(leaders) == 1 and self.seats > 1 else None
        reason = f"{self._steps} steps" if self._steps >= self.max_steps else "the environment ended"
        return Outcome(tuple(self._scores), winner, reason)

    def forfeit(self, losers: Sequence[int]) -> Outcome:
        return forfeited(self.seats, losers)

    def view(self) -> dict[str, Any]:
        return {
            "agents": [str(agent) for agent in self._agents],
            "observations": [
                convert.shown(self._observations[seat].space, self.observe(seat)) for seat in range(self.seats)
            ],
            "to_move": list(self.to_move()),
            "scores": list(self._scores),
            "step": self._steps,
        }

    def text(self) -> str:
        scores = "\n".join(f"{agent}  {score:g}" for agent, score in zip(self._agents, self._scores, strict=True))
        return f"step {self._steps}\n{scores}"


class AECGame(PettingZooGame):
    """A PettingZoo environment in which one agent moves at a time."""

    simultaneous = False

    def _start(self, seed: int) -> None:
        self._env.reset(seed=seed)
        self._retire()

    def to_move(self) -> Sequence[int]:
        if not self._env.agents or self._steps >= self.max_steps:
            return ()
        return (self._seat_of[self._env.agent_selection],)

    def _raw(self, agent: Any) -> Any:
        return self._left[agent] if agent in self._left else self._env.observe(agent)

    def _info(self, agent: Any) -> Mapping[str, Any]:
        return self._env.infos.get(agent, {})

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        seat = self._seat_of[self._env.agent_selection]
        self._env.step(self._unpacked(seat, actions[seat]))
        self._steps += 1
        rewards = self._reward(self._env.rewards)
        self._retire()
        return rewards

    def _retire(self) -> None:
        """Agents that are done must be stepped with None before the next one moves."""
        env = self._env
        while env.agents:
            agent = env.agent_selection
            if not (env.terminations[agent] or env.truncations[agent]):
                return
            self._left[agent] = env.observe(agent)
            env.step(None)


class ParallelGame(PettingZooGame):
    """A PettingZoo environment in which all agents move at once."""

    simultaneous = True

    def _start(self, seed: int) -> None:
        self._last, self._infos = self._env.reset(seed=seed)

    def to_move(self) -> Sequence[int]:
        if self._steps >= self.max_steps:
            return ()
        return [self._seat_of[agent] for agent in self._env.agents]

    def _raw(self, agent: Any) -> Any:
        return self._last[agent] if agent in self._last else self._left[agent]

    def _info(self, agent: Any) -> Mapping[str, Any]:
        return self._infos.get(agent, {})

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        chosen = {self._agents[seat]: self._unpacked(seat, actions[seat]) for seat in self.to_move()}
        self._left |= self._last
        self._last, rewards, _, _, self._infos = self._env.step(chosen)
        self._steps += 1
        return self._reward(rewards)
