"""Trajectories of the seats of a game as numpy arrays: what a seat saw, did and got, move by move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harena.match import spaces
from harena.match.game import Game


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The moves of one seat, in order. Arrays have one row for each move."""

    seat: int
    observations: Any
    """What it saw before the move; a dict or tuple of arrays where the space is one."""
    actions: Any
    rewards: Any
    """float64: what it got from its move up to its next one, or to the end."""
    steps: Any
    """int64: the number of the game's step in which it moved, from 1."""
    last_observation: Any
    """What it saw at the end."""

    def __len__(self) -> int:
        return len(self.rewards)


def trajectories(moments: Iterable[tuple[Game, Mapping[int, Any], Mapping[int, float]]]) -> list[Trajectory]:
    """From the game after each step, with the step's actions and rewards. The first moment is before any step."""
    import numpy as np

    seen: list[list[Any]] = []
    acted: list[list[Any]] = []
    got: list[list[float]] = []
    when: list[list[int]] = []
    now: list[Any] = []
    game: Game | None = None
    for number, (game, actions, rewards) in enumerate(moments):
        seats = range(game.seats)
        if number == 0:
            seen, acted = [[] for _ in seats], [[] for _ in seats]
            got, when = [[] for _ in seats], [[] for _ in seats]
        for seat, action in actions.items():
            seen[seat].append(now[seat])
            acted[seat].append(action)
            got[seat].append(0.0)
            when[seat].append(number)
        for seat, reward in rewards.items():
            if got[seat]:
                got[seat][-1] += float(reward)
        now = [_decoded(game.observation_space(seat), game.observe(seat)) for seat in seats]
    assert game is not None
    return [
        Trajectory(
            seat=seat,
            observations=_stacked(game.observation_space(seat), seen[seat]),
            actions=_stacked(game.action_space(seat), acted[seat]),
            rewards=np.array(got[seat], np.float64),
            steps=np.array(when[seat], np.int64),
            last_observation=now[seat],
        )
        for seat in range(game.seats)
    ]


def _decoded(space: spaces.Space, observation: Any) -> Any:
    return space.decode_all(space.encode(observation))


def _stacked(space: spaces.Space, values: list[Any]) -> Any:
    import numpy as np

    if isinstance(space, spaces.Dict):
        return {key: _stacked(part, [value[key] for value in values]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stacked(part, [value[at] for value in values]) for at, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        return np.array(values, space.dtype).reshape(len(values), *space.shape)
    if isinstance(space, spaces.Text):
        return np.array(values, object)
    width = (len(space.nvec),) if isinstance(space, spaces.MultiDiscrete) else ()
    return np.array(values, np.int64).reshape(len(values), *width)
