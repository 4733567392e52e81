"""Harena games as Gymnasium environments, to train one seat, with gradients, in this process.

    env = GymEnv("connect_four", opponents=["their_agent.py"])  # isolated: in a box, behind a clock
    env = GymEnv("connect_four", opponents=[my_function])       # trusted: called in this process

A step lasts until the trained seat is to move again; its reward is the sum of that seat's rewards in between. Where
actions are numbers, info["action_mask"] says which are legal. An illegal action ends the episode by the game's rule of
forfeits, with the reason in info["illegal"]; so does a fault of an isolated opponent, with info["fault"]. Without
opponents the others play at random.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harena.errors import SpecError
from harena.match import check, registry, spaces
from harena.match.game import GameError, IllegalAction
from harena.match.result import AgentCode, Clock
from harena.sandbox.spec import Limits

try:
    import gymnasium as gym
    import numpy as np

    from harena.match.adapters import convert
    from harena.match.adapters.opponents import Fault, IsolatedOpponents
except ModuleNotFoundError as error:
    raise registry.MissingExtra("GymEnv", error.name or "gymnasium", "gym") from error

Opponent = Callable[[Any], Any] | str | os.PathLike[str] | bytes | AgentCode
"""A function of the observation, or an agent that plays in a box: a file, folder, zip or image:NAME."""
_TRIES = 1000


class _OpponentFault(Exception):
    def __init__(self, seat: int, status: str, reason: str) -> None:
        super().__init__(reason)
        self.seat, self.status, self.reason = seat, status, reason


class GymEnv(gym.Env[Any, Any]):
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 10}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        game_id: str,
        opponents: Sequence[Opponent] | None = None,
        *,
        seat: int = 0,
        config: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._game = registry.make(game_id, config)
        others = [other for other in range(self._game.seats) if other != seat]
        if seat not in range(self._game.seats):
            raise SpecError(f"{game_id} has no seat {seat}: seats are 0 to {self._game.seats - 1}")
        if opponents is not None and len(opponents) != len(others):
            raise SpecError(f"{game_id} needs {len(others)} opponents, not {len(opponents)}")
        if render_mode not in (None, "ansi"):
            raise SpecError(f"render_mode={render_mode!r}: None or 'ansi'")
        self._seat = seat
        chosen = None if opponents is None else dict(zip(others, opponents, strict=True))
        self._random = chosen is None
        self._functions = {seat: one for seat, one in (chosen or {}).items() if callable(one)}
        self._isolated = IsolatedOpponents(
            self._game,
            {seat: one for seat, one in (chosen or {}).items() if not callable(one)},
            config=config or {},
            clock=clock or Clock(match_s=86400),
            limits=limits or Limits(),
        )
        self.render_mode = render_mode
        self.observation_space = convert.to_gym(self._game.observation_space(seat))
        self.action_space = convert.to_gym(self._game.action_space(seat))
        self._rng = random.Random(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.reset(int(self.np_random.integers(2**63)))
        self._rng = random.Random(int(self.np_random.integers(2**63)))
        try:
            self._isolated.reset(int(self.np_random.integers(2**63)))
            self._until_our_turn()
        except Fault as fault:
            raise SpecError(f"an opponent cannot play: {fault.status.value}: {fault.reason}") from fault
        return self._see(self._seat), self._info()

    def close(self) -> None:
        self._isolated.close()

    def _info(self) -> dict[str, Any]:
        mask = check.action_mask(self._game, self._seat)
        return {} if mask is None else {"action_mask": np.array(mask, np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seat not in self._game.to_move():
            raise gym.error.ResetNeeded("the game is over: call reset()")
        try:
            space = self._game.action_space(self._seat)
            reward = self._advance({self._seat: space.decode_all(space.encode(action))})
            reward += self._until_our_turn()
        except spaces.SpaceError as error:
            return self._ended(self._seat, str(error))
        except IllegalAction as error:
            return self._ended(error.seat, error.reason)
        except _OpponentFault as error:
            seen, score, *_ = self._ended(error.seat, "")
            return seen, score, True, False, {"fault": f"{error.status}: {error.reason}", "seat": error.seat}
        return self._see(self._seat), reward, self._seat not in self._game.to_move(), False, self._info()

    def render(self) -> Any:
        return self._game.text() if self.render_mode == "ansi" else None

    def _see(self, seat: int) -> Any:
        return convert.seen(self._game.observation_space(seat), self._game.observe(seat))

    def _ended(self, loser: int, reason: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        outcome = self._game.forfeit([loser])
        return self._see(self._seat), outcome.scores[self._seat], True, False, {"illegal": reason, "seat": loser}

    def _until_our_turn(self) -> float:
        reward = 0.0
        while (moving := self._game.to_move()) and self._seat not in moving:
            reward += self._advance({})
        return reward

    def _advance(self, ours: dict[int, Any]) -> float:
        """Advance the game by one step. A random opponent tries again until its action is legal."""
        others = [seat for seat in self._game.to_move() if seat != self._seat]
        actions = {**ours, **{seat: self._choose(seat) for seat in others}}
        for _ in range(_TRIES):
            try:
                return float(self._game.step(actions).get(self._seat, 0.0))
            except IllegalAction as error:
                if not self._random or error.seat == self._seat:
                    raise
                actions[error.seat] = self._choose(error.seat)
        raise GameError(f"{self._game.id}: no legal action found at random in {_TRIES} tries")

    def _choose(self, seat: int) -> Any:
        space = self._game.action_space(seat)
        if self._random:
            return check.sample_action(self._game, seat, self._rng)
        try:
            if seat in self._isolated:
                return self._isolated.act(seat)
            return space.decode_all(space.encode(self._functions[seat](self._see(seat))))
        except Fault as fault:
            raise _OpponentFault(seat, fault.status.value, fault.reason) from fault
        except spaces.SpaceError as error:
            raise IllegalAction(seat, str(error)) from error
