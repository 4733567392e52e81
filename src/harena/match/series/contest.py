"""A schedule, played on a runner, and the table of its results.

Guarantees: those of `driver`; what was finished stays when it is interrupted. Does not say who is better: statistics.py
does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harena import statistics
from harena.match.result import MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.match.run.protocol import MatchHandle, MatchRunner, wait
from harena.match.series.driver import Series, drive, report_result
from harena.match.series.schedule import Pairing, Schedule, Standing
from harena.statistics import Comparison, Interval

ALL_PAIRS = 32
"""Up to this many agents every pair is compared, above it only neighbours in the table."""


Play = Callable[[Iterator[MatchSpec]], Iterator[MatchResult]]
"""Results in the order of the specs."""


@dataclass(frozen=True, slots=True)
class Finished:
    pairing: Pairing
    result: MatchResult

    @property
    def winner(self) -> int | None:
        """Index of the agent that won."""
        return None if self.result.winner is None else self.pairing.seats[self.result.winner]

    def as_json(self) -> dict[str, Any]:
        """Return the result's JSON by agent: seats and scores in the order of the agents, the winner by index."""
        data = self.result.as_json()
        order = sorted(range(len(self.pairing.seats)), key=lambda seat: self.pairing.seats[seat])
        data["winner"] = self.winner
        scores = [score if math.isfinite(score) else None for score in self.result.scores]
        data["scores"] = [scores[seat] for seat in order]
        data["seats"] = [
            {
                **data["seats"][seat],
                "index": self.pairing.seats[seat],
                "seat": seat,
                "score": scores[seat],
                "start_s": round(self.result.seats[seat].start_s, 6),
            }
            for seat in order
        ]
        return {**data, "round": self.pairing.round, "attempt": self.pairing.attempt}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One agent in the table."""

    standing: Standing
    rate: Interval
    """Share of the points."""
    score: Interval
    """The mean."""
    faults: int
    """Games in which the agent had a fault."""
    cpu_s: float
    moves: int

    def as_json(self, names: Sequence[str]) -> dict[str, Any]:
        row = self.standing
        return {
            "agent": names[row.agent],
            "index": row.agent,
            "rank": row.rank,
            "games": row.games,
            "wins": row.wins,
            "draws": row.draws,
            "losses": row.losses,
            "no_result": row.no_result,
            "byes": row.byes,
            "points": row.points,
            "tie_break": row.tie_break,
            "win_rate": self.rate.as_json(),
            "score": self.score.as_json(),
            "faults": self.faults,
            "cpu_s": round(self.cpu_s, 6),
            "moves": self.moves,
        }


class Contest:
    def __init__(self, schedule: Schedule, spec_of: Callable[[Pairing], MatchSpec]) -> None:
        self.schedule = schedule
        self.games: list[Finished] = []
        """Void ones too; those were played again. Without logs and replays, which are for `finished`."""
        self._spec_of = spec_of

    def run(
        self,
        play: Play,
        *,
        progress: Callable[[int, int], object] = lambda done, total: None,
        finished: Callable[[Finished], object] = lambda game: None,
    ) -> None:
        """Play to the end or to the first exception; finished games are kept."""
        total = self.schedule.expected
        series = Series(self.schedule, report_result)
        with contextlib.closing(drive(series, lambda pairings: play(map(self._spec_of, pairings)))) as played:
            for pairing, result in played:
                game = Finished(pairing, result)
                finished(game)
                self.games.append(_lean(game))
                progress(len(self.games), max(total, len(self.games)))

    # ---- what came out ----

    def rows(self) -> list[TableRow]:
        points: dict[int, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        scores: dict[int, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        blocks = self._blocks()
        for played in self.schedule.played:
            block = blocks[played.pairing]
            for seat, agent in enumerate(played.pairing.seats):
                points[agent][block].append(played.points[seat])
                scores[agent][block].append(played.scores[seat])
        return [
            TableRow(
                standing=standing,
                rate=statistics.win_rate(points[standing.agent]),
                score=statistics.score_mean(scores[standing.agent]),
                faults=sum(seat.status is not SeatStatus.OK for seat in self._seats_of(standing.agent)),
                cpu_s=sum(seat.cpu_s for seat in self._seats_of(standing.agent)),
                moves=sum(seat.moves for seat in self._seats_of(standing.agent)),
            )
            for standing in self.schedule.standings()
        ]

    def _seats_of(self, agent: int) -> Iterator[SeatResult]:
        for game in self.games:
            if agent in game.pairing.seats:
                yield game.result.seats[game.pairing.seats.index(agent)]

    def distinct_games(self) -> int:
        """Number of games that do not repeat another one, in which the same agents in the same seats saw and did the
        same."""
        return len({_identity(game) for game in self.games if _counts(game)})

    def counted_games(self) -> int:
        return sum(map(_counts, self.games))

    def _blocks(self) -> dict[Pairing, int]:
        """The number of each game's block: games with one seed at one table, and with every seed that gave the same
        games again. Games with one seat have separate tables, so there only the seed counts."""
        groups: defaultdict[tuple[int, int], list[Finished]] = defaultdict(list)
        for game in self.games:
            if _counts(game):
                pairing = game.pairing
                groups[pairing.seed, pairing.tie if len(pairing.seats) > 1 else -1].append(game)
        numbers: dict[object, int] = {}
        blocks: dict[Pairing, int] = {}
        for group in groups.values():
            number = numbers.setdefault(tuple(sorted(map(_identity, group))), len(numbers))
            blocks |= {game.pairing: number for game in group}
        return blocks

    def comparisons(self, *, seed: int = 0) -> list[Comparison]:
        """Better ranked first."""
        blocks = self._blocks()
        games = [
            statistics.ScoredGame(blocks[played.pairing], played.pairing.seats, played.scores, _winner(played.points))
            for played in self.schedule.played
        ]
        order = [row.agent for row in self.schedule.standings()]
        pairs = itertools.combinations(order, 2) if len(order) <= ALL_PAIRS else itertools.pairwise(order)
        return [statistics.compare(games, a, b, seed=seed) for a, b in pairs]


def _counts(game: Finished) -> bool:
    return game.result.status in (MatchStatus.FINISHED, MatchStatus.TIMEOUT)


def _identity(game: Finished) -> tuple[tuple[int, ...], str]:
    """Key that is equal for identical games; a game without a fingerprint equals no other."""
    return game.pairing.seats, game.result.fingerprint or f"game {game.pairing.number} {game.pairing.attempt}"


def _lean(game: Finished) -> Finished:
    seats = tuple(replace(seat, log="") for seat in game.result.seats)
    return Finished(game.pairing, replace(game.result, seats=seats, replay=b""))


def _winner(points: Sequence[float]) -> int | None:
    return points.index(1.0) if len(points) > 1 and 1.0 in points else None


def ahead(runner: MatchRunner, window: int) -> Play:
    """Plays on a runner with `window` matches handed over, so that none of its workers waits and not all is held at
    once. What is under way is called off when the results are not read to the end."""

    def play(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
        under_way: deque[MatchHandle] = deque()
        try:
            for spec in specs:
                under_way.append(runner.submit(spec))
                if len(under_way) >= window:
                    yield wait(under_way[0])[0]
                    under_way.popleft()
            while under_way:
                yield wait(under_way[0])[0]
                under_way.popleft()
        finally:
            for handle in under_way:
                handle.cancel()

    return play


def lockstep(runner: MatchRunner, batch: int) -> Play:
    """Plays up to `batch` games of the same agents in the same seats at once."""

    def play(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
        every = list(specs)
        same: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, spec in enumerate(every):
            same[tuple(code.name for code in spec.agents)].append(number)
        batches = [numbers[at : at + batch] for numbers in same.values() for at in range(0, len(numbers), batch)]
        handles: dict[int, tuple[MatchHandle, int]] = {}
        try:
            for numbers in sorted(batches):
                handle = runner.submit(every[numbers[0]], seeds=[every[number].seed for number in numbers])
                handles |= {number: (handle, at) for at, number in enumerate(numbers)}
            for number in range(len(every)):
                handle, at = handles[number]
                yield wait(handle)[at]
        finally:
            for handle, _ in handles.values():
                handle.cancel()  # nothing happens to those that have ended

    return play
