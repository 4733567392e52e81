"""Harena games as PettingZoo environments: `env(game_id)` is AEC and supports every game, `parallel_env(game_id)`
supports games in which all move at once. Agents are player_0, player_1 ... in the order of the seats.

In the AEC form of a simultaneous game the agents choose one after the other and see nothing of each other's choice. An
illegal action ends the game by its rule of forfeits, with the reason in infos. Without a seed no two resets are alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from harena.errors import SpecError
from harena.match import registry, spaces
from harena.match.game import Game, IllegalAction

try:
    from pettingzoo import AECEnv, ParallelEnv  # pyright: ignore[reportMissingTypeStubs]

    from harena.match.adapters import convert
except ModuleNotFoundError as error:
    raise registry.MissingExtra("a PettingZoo environment", error.name or "pettingzoo", "gym") from error

_AEC: Any = AECEnv
_Parallel: Any = ParallelEnv


def env(game_id: str, *, config: Mapping[str, Any] | None = None, render_mode: str | None = None) -> AEC:
    return AEC(registry.make(game_id, config), render_mode)


def parallel_env(game_id: str, *, config: Mapping[str, Any] | None = None, render_mode: str | None = None) -> Parallel:
    return Parallel(registry.make(game_id, config), render_mode)


class _Table:
    """Parts of a game that both forms share: names, spaces, seeds, steps."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.agents = [f"player_{seat}" for seat in range(game.seats)]
        self.seat_of = {agent: seat for seat, agent in enumerate(self.agents)}
        seats = self.seat_of.items()
        self.observation_spaces = {agent: convert.to_gym(game.observation_space(seat)) for agent, seat in seats}
        self.action_spaces = {agent: convert.to_gym(game.action_space(seat)) for agent, seat in seats}
        self._rng = random.Random()

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._rng = random.Random(seed)
        self.game.reset(self._rng.getrandbits(63) if seed is None else seed)

    def observe(self, agent: str) -> Any:
        seat = self.seat_of[agent]
        return convert.seen(self.game.observation_space(seat), self.game.observe(seat))

    def step(self, actions: Mapping[int, Any]) -> tuple[dict[str, float], bool, dict[str, dict[str, Any]]]:
        """Rewards and infos by agent, and whether the game is over."""
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        try:
            checked = {seat: self._checked(seat, action) for seat, action in actions.items()}
            rewards = self.game.step(checked)
        except IllegalAction as error:
            infos[self.agents[error.seat]]["illegal"] = error.reason
            scores = self.game.forfeit([error.seat]).scores
            return dict(zip(self.agents, scores, strict=True)), True, infos
        by_agent = {agent: float(rewards.get(seat, 0.0)) for agent, seat in self.seat_of.items()}
        return by_agent, not self.game.to_move(), infos

    def _checked(self, seat: int, action: Any) -> Any:
        space = self.game.action_space(seat)
        try:
            return space.decode_all(space.encode(action))
        except spaces.SpaceError as error:
            raise IllegalAction(seat, str(error)) from error


def _metadata(game: Game) -> dict[str, Any]:
    return {"name": game.id, "render_modes": ["ansi"], "is_parallelizable": game.simultaneous}


def _checked_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "ansi"):
        raise SpecError(f"render_mode={render_mode!r}: None or 'ansi'")
    return render_mode


class AEC(_AEC):
    def __init__(self, game: Game, render_mode: str | None = None) -> None:
        self._table = _Table(game)
        self.metadata = _metadata(game)
        self.render_mode = _checked_mode(render_mode)
        self.possible_agents = list(self._table.agents)
        self.observation_spaces = self._table.observation_spaces
        self.action_spaces = self._table.action_spaces

    def __str__(self) -> str:
        return str(self._table.game.id)

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._table.reset(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._chosen: dict[int, Any] = {}
        self._select()

    def observe(self, agent: str) -> Any:
        return self._table.observe(agent)

    def step(self, action: Any) -> None:
        agent: str = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._chosen[self._table.seat_of[agent]] = action
        if len(self._chosen) == len(self._table.game.to_move()):
            self.rewards, over, self.infos = self._table.step(self._chosen)
            self._chosen = {}
            if over:
                self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        if not self.terminations[agent]:
            self._select()

    def _select(self) -> None:
        waiting = [seat for seat in self._table.game.to_move() if seat not in self._chosen]
        self.agent_selection = self._table.agents[waiting[0]]

    def render(self) -> str | None:
        return self._table.game.text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        pass


class Parallel(_Parallel):
    def __init__(self, game: Game, render_mode: str | None = None) -> None:
        if not game.simultaneous:
            raise SpecError(f"in {game.id} one seat moves at a time: use env(), the AEC form")
        self._table = _Table(game)
        self.metadata = _metadata(game)
        self.render_mode = _checked_mode(render_mode)
        self.possible_agents = list(self._table.agents)
        self.agents: list[str] = []
        self.observation_spaces = self._table.observation_spaces
        self.action_spaces = self._table.action_spaces

    def __str__(self) -> str:
        return str(self._table.game.id)

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._table.reset(seed)
        self.agents = list(self.possible_agents)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        return self._seen(), infos

    def _seen(self) -> dict[str, Any]:
        return {agent: self._table.observe(agent) for agent in self.possible_agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Advance the game. An agent that is out of the game stays until the end; its actions are ignored."""
        moving = {seat: actions[self._table.agents[seat]] for seat in self._table.game.to_move()}
        rewards, over, infos = self._table.step(moving)
        ended = dict.fromkeys(self.possible_agents, over)
        if over:
            self.agents = []
        return self._seen(), rewards, ended, dict.fromkeys(self.possible_agents, False), infos

    def render(self) -> str | None:
        return self._table.game.text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        pass
