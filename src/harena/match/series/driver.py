"""Drives a schedule: games go out, results come in. For series, tournaments, gRPC calls and the arena.

Guarantees: results are reported to the schedule in its own order, whoever finished first, so that the same results give
the same tournament; a void game goes out again as the schedule says. Does not play: a `Play`, or the caller, does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from harena.match.result import MatchResult, MatchStatus
from harena.match.series.schedule import Pairing, Schedule

R = TypeVar("R")
Report = Callable[[Schedule, Pairing, R], object]
"""Tells the schedule how a game went."""


class Series(Generic[R]):
    """A schedule while it is played. Ask for games (`todo`), say when they have begun and ended."""

    def __init__(self, schedule: Schedule, report: Report[R]) -> None:
        self.schedule = schedule
        self.over = False
        self._report = report
        self._round: list[Pairing] = []
        self._reported = 0
        """Games of the round that were reported: the first ones of it."""
        self._begun = 0
        self._results: dict[Pairing, R] = {}

    @property
    def unreported(self) -> list[Pairing]:
        """Return the games of the current round that the schedule has not been told of yet."""
        return self._round[self._reported :]

    def todo(self, most: int | None = None) -> list[Pairing]:
        """The games to begin now, of one round. Takes the next round when all of the last one is reported; sets `over`
        when there is none."""
        if self._reported == len(self._round):
            self._round, self._reported, self._begun = self.schedule.next_round(), 0, 0
            self.over = not self._round
        return self._round[self._begun : None if most is None else self._begun + most]

    def begun(self, pairing: Pairing) -> None:
        """Called when a game begins, in the order of `todo`."""
        if self._round[self._begun] != pairing:
            raise ValueError(f"game {pairing.number} is not the next one to begin")
        self._begun += 1

    def ended(self, pairing: Pairing, result: R) -> None:
        """Called when a game ends, in any order."""
        self._results[pairing] = result
        while self._reported < self._begun and (first := self._round[self._reported]) in self._results:
            self._reported += 1
            self._report(self.schedule, first, self._results.pop(first))


def drive(series: Series[R], play: Callable[[Iterator[Pairing]], Iterator[R]]) -> Generator[tuple[Pairing, R]]:
    """Plays a series to its end, round by round. `play` gives results in the order of the games; it may take games
    ahead. A game is reported when the next one is asked for. To stop early, close the generator: that closes what
    `play` returned, which cancels the games under way."""
    while games := series.todo():
        for pairing in games:
            series.begun(pairing)
        results = play(iter(games))
        try:
            for pairing, result in zip(games, results, strict=True):
                yield pairing, result
                series.ended(pairing, result)
        finally:
            if isinstance(results, Generator):
                results.close()


def report_result(schedule: Schedule, pairing: Pairing, result: MatchResult) -> None:
    """The usual `Report`: a match that ran out of time is a draw; scores that are no numbers make a game void."""
    if result.status is MatchStatus.FINISHED and all(map(math.isfinite, result.scores)):
        schedule.report(pairing, scores=result.scores, winner=result.winner)
    elif result.status is MatchStatus.TIMEOUT:
        schedule.report(pairing)  # nobody was to blame alone: a draw
    else:
        schedule.report(pairing, void=True)
