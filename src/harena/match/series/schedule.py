"""Base class of schedules: returns pairings, accepts results, computes standings. Guarantees: every game is reported
once; a void game is repeated with the same seed, at most three times, and has no result after that.

A schedule is asked for a round (`next_round`), told how each of its games went (`report`), and asked for the next one,
until that is empty.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from harena.errors import SpecError

VOID_REPLAYS = 3
"""Maximum number of repetitions of a void game."""
MAX_PAIRINGS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """One game to be played."""

    seats: tuple[int, ...]
    """Index of the agent in each seat."""
    seed: int
    round: int
    """Number of the round, from 1."""
    number: int
    """Number of the game, from 0, unique in its schedule."""
    tie: int = 0
    """The tie that it belongs to, if several games decide one."""
    attempt: int = 0
    """How often it was void before."""


@dataclass(frozen=True, slots=True)
class Played:
    pairing: Pairing
    scores: tuple[float, ...]
    points: tuple[float, ...]
    """Points by seat: a win is one point, a draw is shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    agent: int
    rank: int = 0
    """Rank from 1; equal agents share one."""
    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    no_result: int = 0
    byes: int = 0
    points: float = 0.0
    score: float = 0.0
    """The sum of the game's own scores."""
    tie_break: float = 0.0
    """Swiss: Buchholz, the points of all opponents. Elimination: the level in which it went out."""


def derive(seed: int, index: int) -> int:
    """Derive the seed of a game. It has 32 bits, because some environments accept no more."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=4).digest(), "big")


def points(scores: Sequence[float], winner: int | None) -> tuple[float, ...]:
    """Points by seat. If there is no winner, the seats with the highest score share the point."""
    if winner is not None:
        return tuple(float(seat == winner) for seat in range(len(scores)))
    best = max(scores)
    share = 1.0 / sum(score == best for score in scores)
    return tuple(share if score == best else 0.0 for score in scores)


class Schedule:
    """Returns rounds and accepts results. Subclasses define the next round and the ranking."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.expected = 0
        """Approximate total number of games, for a progress bar."""
        self.played: list[Played] = []
        self.no_result: list[Pairing] = []
        self.notes: list[str] = []
        """What a reader of the table must know, in sentences. Agents are named as {0}, {1}, for `str.format`."""
        self._open: dict[int, Pairing] = {}
        self._again: list[Pairing] = []

    def next_round(self) -> list[Pairing]:
        """Return the games to play now; empty if everything is decided."""
        check(not self._open, f"{len(self._open)} games of this round are not reported yet")
        pairings, self._again = self._again, []
        pairings = pairings or self._advance()
        self._open = {pairing.number: pairing for pairing in pairings}
        return pairings

    def report(
        self, pairing: Pairing, *, scores: Sequence[float] | None = None, winner: int | None = None, void: bool = False
    ) -> None:
        """Report a game: scores and winner by seat, or that it was void."""
        check(self._open.get(pairing.number) == pairing, f"game {pairing.number} is not one of this round")
        seats = len(pairing.seats)
        scores = tuple(float(score) for score in scores) if scores is not None else (0.0,) * seats
        check(len(scores) == seats and all(map(math.isfinite, scores)), f"scores {scores}: a number for each seat")
        check(winner is None or 0 <= winner < seats, f"winner {winner}: a seat from 0 to {seats - 1}, or None")
        del self._open[pairing.number]
        if not void:
            self.played.append(Played(pairing, scores, points(scores, winner)))
        elif pairing.attempt < VOID_REPLAYS:
            self._again.append(replace(pairing, attempt=pairing.attempt + 1))
        else:
            self.no_result.append(pairing)

    def standings(self) -> list[Standing]:
        """Standings from first to last."""
        return ranked(self._tally().values(), self._rank_key)

    def _advance(self) -> list[Pairing]:
        raise NotImplementedError

    def _rank_key(self, row: Standing) -> tuple[float, ...]:
        games = row.games or 1
        return row.points / games, row.score / games

    def _tally(self) -> dict[int, Standing]:
        rows = {agent: Standing(agent=agent) for agent in range(self.n)}
        for game in self.played:
            for agent, score, point in zip(game.pairing.seats, game.scores, game.points, strict=True):
                row = rows[agent]
                rows[agent] = replace(
                    row,
                    games=row.games + 1,
                    wins=row.wins + (point == 1),
                    draws=row.draws + (0 < point < 1),
                    losses=row.losses + (point == 0),
                    points=row.points + point,
                    score=row.score + score,
                )
        for pairing in self.no_result:
            for agent in pairing.seats:
                rows[agent] = replace(rows[agent], no_result=rows[agent].no_result + 1)
        return rows


def ranked(rows: Iterable[Standing], key: Callable[[Standing], tuple[float, ...]]) -> list[Standing]:
    ordered = sorted(rows, key=lambda row: (*(-part for part in key(row)), row.agent))
    placed: list[Standing] = []
    for place, row in enumerate(ordered, 1):
        equal = bool(placed) and key(row) == key(placed[-1])
        placed.append(replace(row, rank=placed[-1].rank if equal else place))
    return placed


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SpecError(otherwise)


def check_size(pairings: int) -> None:
    check(pairings <= MAX_PAIRINGS, f"{pairings} games: more than {MAX_PAIRINGS}; take fewer agents or games")
