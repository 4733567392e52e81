"""Interface of games. A game runs on the trusted side with the clock and the score; agents see only what `observe`
returns.

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
    """How a game ended, derived from the rules alone."""

    scores: tuple[float, ...]
    """One per seat, in the game's own points; more is better."""
    winner: int | None
    """The seat that won; None for a draw, or if the game names no winner."""
    reason: str = ""
    """One line a spectator understands: "four in a row", "11 points"."""


class Game(Protocol):
    """One game at a time: reset, then step until nobody is to move. Deterministic: the same seed and actions give the
    same game on every machine; all randomness comes from the seed."""

    id: ClassVar[str] | str
    """The id with its version: "pong-v1". A change of the rules is a new version."""
    seats: int
    simultaneous: bool
    """True if all seats that are to move act at once; otherwise exactly one seat is to move."""
    max_steps: int
    """Maximum number of steps, after which the game has ended by itself."""

    def observation_space(self, seat: int) -> spaces.Space: ...
    def action_space(self, seat: int) -> spaces.Space: ...

    def reset(self, seed: int) -> None: ...

    def to_move(self) -> Sequence[int]:
        """Seats whose action the next step needs; empty if the game is over."""
        ...

    def observe(self, seat: int) -> Any:
        """What this seat may know now, in its observation space. Never the seed, never another's secret."""
        ...

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        """Apply one action for each seat of `to_move`. Returns the rewards of this step (missing: 0). Raises
        IllegalAction, and then changes nothing."""
        ...

    def outcome(self) -> Outcome:
        """Return the outcome. Called when the game is over."""
        ...

    def forfeit(self, losers: Sequence[int]) -> Outcome:
        """Return the outcome if these seats broke the rules, crashed or ran out of time. See `forfeited`."""
        ...

    def view(self) -> dict[str, Any]:
        """The whole state as JSON data, including secrets, for spectators and replays. If `hidden` is True, the runner
        shows it to nobody before the end."""
        ...

    hidden: bool
    """True if some seats must not see everything that `view` shows."""

    def text(self) -> str:
        """The position as a few lines for a terminal."""
        ...


class CanWithdraw(Protocol):
    """Optional method of games with more than two seats."""

    def withdraw(self, seats: Sequence[int]) -> bool:
        """Remove seats that broke the rules, crashed or ran out of time, so that `to_move` no longer names them. Then
        the others play on, or the game is over. Returns False and changes nothing if that is not possible; then the
        game ends for everybody by `forfeit`."""
        ...


class CanMask(Protocol):
    """Optional method of games whose actions are numbers and not always all legal."""

    def action_mask(self, seat: int) -> Sequence[int]:
        """1 for each action that is legal for the seat now, 0 for the others, in the order of the space."""
        ...


def withdraw(game: Game, seats: Sequence[int]) -> bool:
    """Withdraw seats if the game supports it. Returns whether the game continues without them."""
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
    """The usual rule: seats at fault lose with -1, and the others share the win; if one is left, it is the winner."""
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
