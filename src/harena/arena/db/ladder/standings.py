"""Lines of boards that are kept as a whole: of ladders, and of seasons that have ended. Also what they are made from:
who met whom, and how ratings went.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database
from harena.arena.db.models import (
    BoardKind,
    MatchKind,
    MatchState,
    SubmissionKind,
    benches,
    board,
    matches,
    named,
    owners,
    ratings,
    seats,
    standings,
    submissions,
)
from harena.arena.db.records import Filter, Sort, page


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardStanding:
    """A line of a board."""

    season_id: int
    board: BoardKind
    submission_id: str
    env_id: str
    owner: str
    algorithm: str
    version: int
    rank: int
    """Shared where nobody can tell who is better."""
    place: int
    """The order on the page, from 1."""
    score: float
    low: float | None
    high: float | None
    games: int
    wins: int
    draws: int
    losses: int
    component: int
    """On a ladder, agents that are connected by games share a component. Strengths can only be compared within one."""
    at: float
    """When it was submitted."""
    anonymous: bool = False
    benched: bool = False
    provisional: bool = False
    """So few games that its place is not to be trusted yet."""
    final: bool = False
    """The score is that of the finals."""
    public_score: float | None = None
    """The finalist's score on the public board."""


class StandingRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def where(
        self, env_id: str, which: BoardKind, season_id: int, where: Filter, *, sort: Sort, limit: int, offset: int
    ) -> list[BoardStanding]:
        """Return the standings in board order or in order of submission. Whether they are provisional is not
        known here."""
        order = {
            Sort.SCORE_DESC: standings.c.place,
            Sort.DATE_DESC: standings.c.at.desc(),
            Sort.DATE_ASC: standings.c.at,
        }[Sort(sort)]
        query = _chosen(_STANDINGS, env_id, which, season_id, where)
        query = query.order_by(order, standings.c.place).limit(page(limit)).offset(offset)
        return [BoardStanding(**row) for row in self._database.rows(query)]

    def count(self, env_id: str, which: BoardKind, season_id: int, where: Filter) -> int:
        counted = sa.select(sa.func.count().label("n")).select_from(standings)
        row = self._database.row(_chosen(counted, env_id, which, season_id, where))
        return row["n"] if row else 0

    def latest(self, submission_id: str) -> BoardStanding | None:
        """On the latest board that has it."""
        query = _STANDINGS.where(standings.c.submission_id == submission_id).order_by(standings.c.season_id.desc())
        row = self._database.row(query.limit(1))
        return BoardStanding(**row) if row else None

    def ratings(self, submission_ids: Collection[str], most: int) -> list[tuple[str, float, float]]:
        """Submission, mu and sigma: at most this many points of each agent's history, the latest last."""
        agent = ratings.c.submission_id
        number = sa.func.row_number().over(partition_by=agent, order_by=ratings.c.match_number).label("at")
        size = sa.func.count().over(partition_by=agent).label("size")
        every = sa.select(agent, ratings.c.match_number, number, size).where(agent.in_(list(submission_ids))).subquery()
        # Counted from the end, so that the latest is always one of them.
        step = (every.c.size + most - 1) // most
        same = (agent == every.c.submission_id) & (ratings.c.match_number == every.c.match_number)
        picked = sa.select(agent, ratings.c.mu, ratings.c.sigma).join(every, same)
        picked = picked.where((every.c.size - every.c.at) % step == 0).order_by(agent, ratings.c.match_number)
        return [(row["submission_id"], row["mu"], row["sigma"]) for row in self._database.rows(picked)]

    def met(self, submission_id: str) -> list[sa.RowMapping]:
        """Return submission_id, winner, and the seats and scores of both, for each opponent of each finished
        ladder match."""
        mine, other = seats.alias(), seats.alias()
        query = (
            sa.select(
                other.c.submission_id,
                matches.c.winner,
                mine.c.seat.label("mine"),
                other.c.seat.label("other"),
                mine.c.score.label("my_score"),
                other.c.score.label("other_score"),
            )
            .join(matches, matches.c.number == mine.c.match_number)
            .join(other, (other.c.match_number == mine.c.match_number) & (other.c.seat != mine.c.seat))
            .where(mine.c.submission_id == submission_id, matches.c.state == MatchState.FINISHED)
            .where(matches.c.kind == MatchKind.LADDER)
        )
        return list(self._database.rows(query))

    def replace(self, season_id: int, which: BoardKind, lines: Sequence[BoardStanding]) -> None:
        with self._database.begin() as connection:
            of = (standings.c.season_id == season_id) & (standings.c.board == which)
            connection.execute(standings.delete().where(of))
            if lines:
                rows = [{name: getattr(line, name) for name in _FIELDS} for line in lines]
                connection.execute(standings.insert(), rows)

    def archive(self, env_id: str, season_id: int, kind: SubmissionKind, first: Sequence[BoardStanding]) -> None:
        """Keeps the live board of scores as the season's, below the lines that come first, and empties it."""
        which = BoardKind(kind.value)
        ahead = (board.c.score.desc(), board.c.at, board.c.submission_id)
        zero, above = sa.literal(0), sa.literal(len(first))
        lines = sa.select(
            sa.literal(season_id),
            sa.literal(which, standings.c.board.type),
            board.c.submission_id,
            board.c.env_id,
            owners.c.name,
            board.c.algorithm,
            submissions.c.version,
            sa.func.rank().over(order_by=board.c.score.desc()) + above,
            sa.func.row_number().over(order_by=ahead) + above,
            board.c.score,
            board.c.low,
            board.c.high,
            zero,
            zero,
            zero,
            zero,
            zero,
            board.c.at,
            sa.false(),
        ).join(owners, owners.c.id == board.c.owner_id)
        lines = lines.join(submissions, submissions.c.id == board.c.submission_id)
        of = (board.c.env_id == env_id) & (board.c.kind == kind)
        in_finals = sa.exists().where(
            standings.c.season_id == season_id,
            standings.c.board == which,
            standings.c.submission_id == board.c.submission_id,
        )
        with self._database.begin() as connection:
            self.replace(season_id, which, first)
            connection.execute(standings.insert().from_select(list(_FIELDS), lines.where(of, ~in_finals)))
            connection.execute(board.delete().where(of))


def _chosen(query: sa.Select[Any], env_id: str, which: BoardKind, season_id: int, where: Filter) -> sa.Select[Any]:
    query = query.where(standings.c.season_id == season_id, standings.c.board == BoardKind(which))
    query = query.where(standings.c.env_id == env_id)
    if where.user is not None:
        query = query.where(named(standings.c.owner, where.user))
    if where.algorithm is not None:
        query = query.where(standings.c.algorithm == where.algorithm)
    for column, (low, high) in ((standings.c.score, where.scores), (standings.c.at, where.dates)):
        if low is not None:
            query = query.where(column >= low)
        if high is not None:
            query = query.where(column <= high)
    return query


_FIELDS = (
    "season_id",
    "board",
    "submission_id",
    "env_id",
    "owner",
    "algorithm",
    "version",
    "rank",
    "place",
    "score",
    "low",
    "high",
    "games",
    "wins",
    "draws",
    "losses",
    "component",
    "at",
    "final",
)
_BENCHED = sa.exists().where(benches.c.submission_id == standings.c.submission_id, benches.c.lifted_at.is_(None))
_STANDINGS = sa.select(
    *(standings.c[name] for name in _FIELDS),
    submissions.c.anonymous,
    _BENCHED.label("benched"),
    sa.case((standings.c.final, submissions.c.score)).label("public_score"),
).join(submissions, submissions.c.id == standings.c.submission_id)
