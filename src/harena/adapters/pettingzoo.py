"""PettingZoo environments that nobody trusts, stepped in a box.

    env = boxed("pettingzoo.classic.tictactoe_v3:env", packages=("pygame",))  # of an installed package
    env = boxed("their_env.py:parallel_env")                                  # of a stranger: it runs in the box only

The result is an AECEnv or a ParallelEnv, as the factory makes it. Its agents are those of `possible_agents`, named by
text. Numbers go through shared memory as in `harena.adapters.gym`, which has spaces and errors; infos are JSON data.
There is no `state` and no rendering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv  # pyright: ignore[reportMissingTypeStubs]

from harena.adapters.gym import BoxedEnvError, Remote, guest, source_of, space_of
from harena.errors import SpecError
from harena.sandbox.spec import Limits, Spec

__all__ = ["BoxedAEC", "BoxedEnvError", "BoxedParallel", "boxed"]

MAX_AGENTS = 1000
MAX_NAME = 200
_AEC: Any = AECEnv
_Parallel: Any = ParallelEnv


def boxed(
    env: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    packages: Sequence[str] = (),
    requirements: Sequence[str] = (),
    limits: Limits | None = None,
    step_s: float = 30.0,
    start_s: float = 60.0,
    backend: str = "local",
) -> BoxedAEC | BoxedParallel:
    """env: "MODULE:FACTORY", imported in the box, or "FILE.py:FACTORY". arguments: of the factory, as JSON data.
    packages: installed packages that it needs besides PettingZoo."""
    source = source_of(env)
    module, _, factory = env.rpartition(":")
    if not source["source"] and not (factory.isidentifier() and module.replace(".", "_").isidentifier()):
        raise SpecError(f"{env!r:.80}: give MODULE:FACTORY or FILE.py:FACTORY")
    remote = _RemoteTable(
        {"id": env, "table": True, "arguments": dict(arguments or {}), **source},
        Spec(
            packages=("gymnasium", "numpy", "pettingzoo", *packages),
            requirements=tuple(requirements),
            preload=("numpy", "gymnasium"),
        ),
        limits or Limits(memory_mb=1024, wall_s=7 * 86400),
        step_s=step_s,
        start_s=start_s,
        backend=backend,
    )
    return BoxedAEC(remote) if remote.described.get("in_turn") is True else BoxedParallel(remote)


class _RemoteTable(Remote):
    def prepare(self, order: dict[str, Any]) -> None:
        names: Any = self.described.get("agents")
        pairs: Any = self.described.get("spaces")
        if not isinstance(names, list) or not 0 < len(cast("list[Any]", names)) <= MAX_AGENTS:
            self.fail(f"it must have 1 to {MAX_AGENTS} possible agents")
        agents = [str(name) for name in cast("list[Any]", names)]
        if len(set(agents)) < len(agents) or any(len(agent) > MAX_NAME for agent in agents):
            self.fail("its agents need short names of their own")
        if not isinstance(pairs, list) or len(cast("list[Any]", pairs)) != len(agents):
            self.fail("it does not describe the spaces of its agents")
        self.agents = agents
        self.spaces = [_pair(pair) for pair in cast("list[Any]", pairs)]
        self.table = guest.Table(self.share(guest.table_layout(self.spaces)), agents, self.spaces)

    def living(self) -> list[str]:
        """The agents that are left, from the memory, which the box may have written anything into."""
        found = [int(at) for at in self.table.order.copy() if at >= 0]
        if len(set(found)) < len(found) or any(at >= len(self.agents) for at in found):
            self.fail("it has agents that do not exist")
        return [self.agents[at] for at in found]

    def acting(self, living: Sequence[str]) -> str | None:
        at = int(self.table.acting)
        if not living:
            return None
        if not 0 <= at < len(self.agents) or self.agents[at] not in living:
            self.fail("an agent is to move that is not there")
        return self.agents[at]

    def infos(self, answer: Mapping[str, Any], agents: Sequence[str]) -> dict[str, dict[str, Any]]:
        told: Any = answer.get("infos")
        found = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        infos = {agent: found.get(agent) for agent in agents}
        return {agent: cast("dict[str, Any]", one) if isinstance(one, dict) else {} for agent, one in infos.items()}

    def heard(self, answer: Mapping[str, Any]) -> list[str]:
        """The agents that got something in this step."""
        told: Any = answer.get("agents")
        names = cast("list[Any]", told) if isinstance(told, list) else []
        return [agent for agent in self.agents if agent in names]


def _pair(data: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
    if not isinstance(data, list) or len(cast("list[Any]", data)) != 2:
        raise BoxedEnvError("the environment describes spaces that cannot be used")
    observation, action = cast("list[Any]", data)
    return space_of(observation), space_of(action)


class _Spaces:
    """Parts that both forms share."""

    metadata: dict[str, Any] = {"render_modes": [], "name": "boxed", "is_parallelizable": False}  # noqa: RUF012
    render_mode = None

    def __init__(self, remote: _RemoteTable) -> None:
        self._remote = remote
        self.possible_agents = list(remote.agents)
        self.agents = list[str]()
        self.observation_spaces = {agent: pair[0] for agent, pair in remote.table.spaces.items()}
        self.action_spaces = {agent: pair[1] for agent, pair in remote.table.spaces.items()}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self.action_spaces[agent]

    def close(self) -> None:
        self._remote.close()


class BoxedParallel(_Spaces, _Parallel):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        answer = self._remote.ask_reset(seed, options)
        self.agents = self._remote.living()
        return self._observations(self.agents), self._remote.infos(answer, self.agents)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        remote, table = self._remote, self._remote.table
        acting = [agent for agent in self.agents if agent in actions]
        for agent in acting:
            table.put_action(agent, actions[agent])
        table.order[...] = -1
        table.order[: len(acting)] = [remote.agents.index(agent) for agent in acting]
        answer = remote.ask(b"s")
        agents, self.agents = remote.heard(answer), remote.living()
        rows = {agent: table.rows[agent] for agent in agents}
        return (
            self._observations(agents),
            {agent: float(row[0][0]) for agent, row in rows.items()},
            {agent: bool(row[1][0]) for agent, row in rows.items()},
            {agent: bool(row[1][1]) for agent, row in rows.items()},
            remote.infos(answer, agents),
        )

    def _observations(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: self._remote.table.observation(agent) for agent in agents}


class BoxedAEC(_Spaces, _AEC):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._read(self._remote.ask_reset(seed, options))

    def observe(self, agent: str) -> Any:
        return self._remote.table.observation(agent)

    def step(self, action: Any) -> None:
        table, agent = self._remote.table, self.agent_selection
        if action is not None:
            table.put_action(agent, action)
        table.acting[...] = -1 if action is None else 0
        self._read(self._remote.ask(b"s"))

    def _read(self, answer: Mapping[str, Any]) -> None:
        remote, rows = self._remote, self._remote.table.rows
        self.agents = remote.living()
        acting = remote.acting(self.agents)
        if acting is not None:
            self.agent_selection = acting
        scores = {agent: np.array(rows[agent][0]) for agent in self.agents}
        self.rewards = {agent: float(row[0]) for agent, row in scores.items()}
        self._cumulative_rewards = {agent: float(row[1]) for agent, row in scores.items()}
        self.terminations = {agent: bool(rows[agent][1][0]) for agent in self.agents}
        self.truncations = {agent: bool(rows[agent][1][1]) for agent in self.agents}
        self.infos = remote.infos(answer, self.agents)
