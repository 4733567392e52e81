"""Boards of ladders, and all boards of seasons that have ended. Guarantees: a board is replaced as a whole, with the
event that tells of it, so nobody reads half of one; it follows from the match log alone. The live boards of verified
and self-reported scores are not here: `store.boards.top` has them until their season ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harena.arena.db.ladder.roster import RosterAgent
from harena.arena.db.ladder.standings import BoardStanding
from harena.arena.db.models import (
    BoardKind,
    SubmissionKind,
)
from harena.arena.db.records import Filter, Sort
from harena.arena.db.results.finalists import Finalist
from harena.arena.db.store import Store
from harena.arena.ladder import ratings
from harena.arena.ladder.fold import Fold
from harena.arena.settings import EnvironmentSettings

SPARK_POINTS = 32
MAX_OPPONENTS = 200
DIGITS = 6
"""Digits of strengths after the point. The last bits of a fit depend on how many processors the linear algebra found; a
board must not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpponentRecord:
    """Whom an agent has met on the ladder, and how it went for the agent."""

    submission_id: str
    owner: str
    algorithm: str
    version: int
    games: int
    wins: int
    draws: int
    losses: int


class Standings:
    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- reading ----

    def standings(
        self,
        env_id: str,
        *,
        board: BoardKind = BoardKind.LADDER,
        season_id: int | None = None,
        user: str | None = None,
        algorithm: str | None = None,
        where: Filter | None = None,
        sort: Sort = Sort.SCORE_DESC,
        limit: int = 50,
        offset: int = 0,
    ) -> list[BoardStanding]:
        """Return the standings of the current season, or of the named one, in board order or in order of submission."""
        asked = self._asked(env_id, season_id, user, algorithm, where)
        if asked is None:
            return []
        return self._provisional(
            self._store.standings.where(env_id, board, *asked, sort=sort, limit=limit, offset=offset)
        )

    def count(
        self,
        env_id: str,
        *,
        board: BoardKind = BoardKind.LADDER,
        season_id: int | None = None,
        user: str | None = None,
        algorithm: str | None = None,
        where: Filter | None = None,
    ) -> int:
        asked = self._asked(env_id, season_id, user, algorithm, where)
        return 0 if asked is None else self._store.standings.count(env_id, board, *asked)

    def standing(self, submission_id: str) -> BoardStanding | None:
        """On the latest board that has it."""
        found = self._store.standings.latest(submission_id)
        return None if found is None else self._provisional([found])[0]

    def spark(self, submission_ids: Collection[str]) -> dict[str, list[float]]:
        """How their ratings went, on the board's scale, in up to SPARK_POINTS points, the latest last."""
        if not submission_ids:
            return {}
        sparks: dict[str, list[float]] = {submission_id: [] for submission_id in submission_ids}
        for submission_id, mu, sigma in self._store.standings.ratings(submission_ids, SPARK_POINTS):
            sparks[submission_id].append(ratings.points(mu, sigma)[0])
        return sparks

    def opponents(self, submission_id: str) -> list[OpponentRecord]:
        """Those it has met most often first."""
        results: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for row in self._store.standings.met(submission_id):
            results[row["submission_id"]][_came_out(row)] += 1
        most = sorted(results, key=lambda key: (-sum(results[key]), key))[:MAX_OPPONENTS]
        known = self._store.roster.agents(most)
        return [
            OpponentRecord(
                submission_id=key,
                owner=known[key].owner,
                algorithm=known[key].algorithm,
                version=known[key].version,
                games=sum(results[key]),
                wins=results[key][0],
                draws=results[key][1],
                losses=results[key][2],
            )
            for key in most
        ]

    # ---- writing ----

    def refit(self, fold: Fold) -> list[BoardStanding]:
        """The board of a ladder by all results so far: of the agents that play on it and have played."""
        lines = ladder_lines(fold, self._store.roster.live(fold.season_id))
        self.replace(fold.env_id, fold.season_id, BoardKind.LADDER, lines)
        return lines

    def replace(self, env_id: str, season_id: int, which: BoardKind, lines: Sequence[BoardStanding]) -> None:
        with self._store.begin():
            self._store.standings.replace(season_id, which, lines)
            body = {"board": which.value, "season_id": season_id, "entries": len(lines)}
            self._store.events.publish(f"board:{env_id}", "board", body)

    def archive(self, env_id: str, season_id: int, kind: SubmissionKind, finalists: Sequence[Finalist] = ()) -> None:
        """Keeps the live board of scores as the season's, and empties it. Finalists come first, as their finals were;
        then the others, as they stand on the public board."""
        self._store.standings.archive(env_id, season_id, kind, self._final_lines(env_id, season_id, finalists))

    def _final_lines(self, env_id: str, season_id: int, finalists: Sequence[Finalist]) -> list[BoardStanding]:
        scored = [(one.score, one) for one in finalists if one.score is not None]
        lines: list[BoardStanding] = []
        rank, last = 0, None
        for score, one in sorted(scored, key=lambda pair: (-pair[0], pair[1].submission_id)):
            of = self._store.submissions.get(one.submission_id)
            if of.deleted_at is not None:
                continue
            place = len(lines) + 1
            rank, last = (rank if score == last else place), score
            lines.append(
                BoardStanding(
                    season_id=season_id,
                    board=BoardKind.VERIFIED,
                    submission_id=of.id,
                    env_id=env_id,
                    owner=of.owner,
                    algorithm=of.algorithm,
                    version=of.version,
                    rank=rank,
                    place=place,
                    score=score,
                    low=one.low,
                    high=one.high,
                    games=0,
                    wins=0,
                    draws=0,
                    losses=0,
                    component=0,
                    at=of.created_at,
                    final=True,
                )
            )
        return lines

    # ---- parts ----

    def _asked(
        self, env_id: str, season_id: int | None, user: str | None, algorithm: str | None, where: Filter | None
    ) -> tuple[int, Filter] | None:
        """The season, which is the one that runs where none is named, and the filter. None: no season runs."""
        if season_id is None:
            season = self._store.seasons.live(env_id)
            if season is None:
                return None
            season_id = season.id
        where = where or Filter()
        user = where.user if user is None else user
        return season_id, replace(where, user=user, algorithm=where.algorithm if algorithm is None else algorithm)

    def _provisional(self, lines: Sequence[BoardStanding]) -> list[BoardStanding]:
        """Marks those of a ladder that have played too few games."""
        few: dict[str, int] = {}
        for env_id in {line.env_id for line in lines}:
            few[env_id] = EnvironmentSettings.parse(self._store.environments.get(env_id).settings).provisional_games
        return [
            replace(line, provisional=line.board is BoardKind.LADDER and line.games < few[line.env_id])
            for line in lines
        ]


def ladder_lines(fold: Fold, agents: Sequence[RosterAgent]) -> list[BoardStanding]:
    """Rank agents by all results of the fold. Agents that have not played yet are on no board."""
    known = {agent.submission_id: agent for agent in agents if agent.submission_id in fold.tallies}
    fitted = ratings.refit(fold.log, listed=known).entries
    lines: list[BoardStanding] = []
    ordered = sorted(fitted, key=lambda entry: (-round(entry.strength, DIGITS), entry.agent))
    for place, entry in enumerate(ordered, 1):
        agent, tally = known[entry.agent], fold.tallies[entry.agent]
        score, low, high = (round(value, DIGITS) for value in (entry.strength, entry.low, entry.high))
        lines.append(
            BoardStanding(
                season_id=fold.season_id,
                board=BoardKind.LADDER,
                submission_id=entry.agent,
                env_id=fold.env_id,
                owner=agent.owner,
                algorithm=agent.algorithm,
                version=agent.version,
                rank=entry.rank,
                place=place,
                score=score,
                low=low,
                high=high,
                games=entry.games,
                wins=tally.wins,
                draws=tally.draws,
                losses=tally.losses,
                component=entry.component,
                at=agent.created_at,
            )
        )
    return lines


def _came_out(row: Mapping[Any, Any]) -> int:
    """0 for a win, 1 for a draw, 2 for a loss, between two seats of one match; a named winner is above all scores."""
    keys = [(row["winner"] != row[seat], -(row[score] or 0.0)) for seat, score in _SIDES]
    return 1 if keys[0] == keys[1] else (0 if keys[0] < keys[1] else 2)


_SIDES = (("mine", "my_score"), ("other", "other_score"))
