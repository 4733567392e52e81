"""What a game is. It lives on the trusted side with the clock and the score; agents only see what `observe` gives.

A game is an object with the methods of `Game`. Register one in the entry-point group "harena.games", or name it as
"module:factory"; `harena.match.check` says what is wrong with one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from harena.errors import HarenaError
from harena.match import spaces


class GameError(HarenaError):
    """A game broke its own contract: the match is void, no agent is to blame."""


class IllegalAction(Exception):
    """Raised by `Game.step` for an action that is in the space but against the rules; names the seat."""

    def __init__(self, seat: int, reason: str) -> None:
        super().__init__(reason)
        self.seat = seat
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a game ended. The same whoever looks: derived from the rules alone."""

    scores: tuple[float, ...]
    """One per seat, in the game's own points; more is better."""
    winner: int | None
    """The seat that won; None for a draw, or where the game names none."""
    reason: str = ""
    """One line a spectator understands: "four in a row", "11 points"."""


class Game(Protocol):
    """One game at a time: reset, then step until nobody is to move. Deterministic: the same seed and actions give the
    same game on every machine; all randomness comes from the seed."""

    id: ClassVar[str] | str
    """With its version: "pong-v1". A change of the rules is a new version."""
    seats: int
    simultaneous: bool
    """All seats that are to move move at once; else exactly one is to move."""
    max_steps: int
    """The game has ended by itself after at most so many steps."""

    def observation_space(self, seat: int) -> spaces.Space: ...
    def action_space(self, seat: int) -> spaces.Space: ...

    def reset(self, seed: int) -> None: ...

    def to_move(self) -> Sequence[int]:
        """The seats whose action the next step needs; empty when the game is over."""
        ...

    def observe(self, seat: int) -> Any:
        """What this seat may know now, in its observation space. Never the seed, never another's secret."""
        ...

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        """Takes one action for each seat of `to_move`; returns the rewards of this step (missing: 0). Raises
        IllegalAction, and then changes nothing."""
        ...

    def outcome(self) -> Outcome:
        """When nobody is to move."""
        ...

    def forfeit(self, losers: Sequence[int]) -> Outcome:
        """These seats broke the rules, crashed or ran out of time: what the others get. See `forfeited`."""
        ...

    def view(self) -> dict[str, Any]:
        """The whole state as JSON data, for spectators and replays, secrets included: the runner shows it to nobody
        before the end where `hidden` is True."""
        ...

    hidden: bool
    """Some seats must not see all that `view` shows."""

    def text(self) -> str:
        """The position for a terminal, a few lines."""
        ...


class CanWithdraw(Protocol):
    """A game of more than two seats may have this method too."""

    def withdraw(self, seats: Sequence[int]) -> bool:
        """These seats broke the rules, crashed or ran out of time: takes them out, so that `to_move` names them no more
        and the others play on, or the game is over. False, and nothing changes, where it cannot: then it ends for
        all by `forfeit`."""
        ...


def withdraw(game: Game, seats: Sequence[int]) -> bool:
    """Whether the game goes on without these seats."""
    method: Callable[[Sequence[int]], bool] | None = getattr(game, "withdraw", None)
    return method is not None and bool(method(seats))


class BaseGame:
    """The parts that most games share. A game need not inherit from it."""

    id: ClassVar[str] = ""
    seats = 2
    simultaneous = False
    max_steps = 10_000
    hidden = False

    def forfeit(self, losers: Sequence[int]) -> Outcome:
        return forfeited(self.seats, losers)

    def text(self) -> str:
        return str(self.view())

    def view(self) -> dict[str, Any]:
        return {}


def forfeited(seats: int, losers: Sequence[int]) -> Outcome:
    """The usual rule: who misbehaved loses with -1, the others share the win; one left over is the winner."""
    left = [seat for seat in range(seats) if seat not in losers]
    scores = tuple(-1.0 if seat in losers else 1.0 for seat in range(seats))
    if seats == 1:
        return Outcome((0.0,), None, "forfeited")
    if not left:
        return Outcome(tuple(0.0 for _ in range(seats)), None, "all forfeited")
    return Outcome(scores, left[0] if len(left) == 1 else None, "forfeited")


@dataclass(frozen=True, slots=True)
class GameInfo:
    """One line of `harena envs`."""

    id: str
    seats: int
    simultaneous: bool
    hidden: bool
    summary: str
    observation: Mapping[str, Any]
    action: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
