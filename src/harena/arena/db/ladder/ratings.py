"""Ratings that follow from the match log. Guarantees: a rated match that finished moves each rating once, and a void,
cancelled or unrated one none. Does not compute ratings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.ladder.matches import MatchRecord, MatchRepository, within
from harena.arena.db.models import Conflict, MatchState, matches, ratings
from harena.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRating:
    match_number: int
    submission_id: str
    mu: float
    sigma: float
    created_at: float


class RatingRepository:
    def __init__(self, database: Database, matches: MatchRepository) -> None:
        self._database = database
        self._matches = matches

    def record(self, after: Mapping[int, Mapping[str, tuple[float, float]]]) -> None:
        """mu and sigma by submission, after each of these matches. Once: when one of them has moved its ratings
        already, it raises Conflict and changes nothing."""
        if not all(math.isfinite(part) for of in after.values() for pair in of.values() for part in pair):
            raise SpecError("a rating is a pair of finite numbers")
        now, numbers = self._database.clock(), list(after)
        rows = [
            {"match_number": number, "submission_id": submission_id, "mu": mu, "sigma": sigma, "created_at": now}
            for number, of in after.items()
            for submission_id, (mu, sigma) in of.items()
        ]
        with self._database.begin() as connection:
            found = {match.number: match for match in self._matches.select(matches.c.number.in_(numbers))}
            for number, of in after.items():
                _check_moves(number, found.get(number), of)
            done = sa.select(ratings.c.match_number).where(ratings.c.match_number.in_(numbers)).limit(1)
            if (row := self._database.row(done)) is not None:
                raise Conflict(f"match {row['match_number']} has moved its ratings already")
            if rows:
                connection.execute(ratings.insert(), rows)

    def history(self, submission_id: str) -> list[StoredRating]:
        query = sa.select(*columns(ratings, StoredRating)).where(ratings.c.submission_id == submission_id)
        return [StoredRating(**row) for row in self._database.rows(query.order_by(ratings.c.match_number))]

    def latest(self, env_id: str, *, season_id: int | None = None) -> dict[str, StoredRating]:
        """The latest of each submission that has one; with a season, the latest of that season."""
        newest = (
            sa.select(ratings.c.submission_id, sa.func.max(ratings.c.match_number).label("number"))
            .join(matches, matches.c.number == ratings.c.match_number)
            .where(*within(env_id, season_id))
            .group_by(ratings.c.submission_id)
            .subquery()
        )
        same = (ratings.c.submission_id == newest.c.submission_id) & (ratings.c.match_number == newest.c.number)
        rows = self._database.rows(sa.select(*columns(ratings, StoredRating)).join(newest, same))
        return {row["submission_id"]: StoredRating(**row) for row in rows}

    def rated_up_to(self, env_id: str, *, season_id: int | None = None) -> int:
        """The number of the last match that moved ratings here; 0: none has."""
        moved = sa.exists().where(ratings.c.match_number == matches.c.number)
        newest = sa.select(matches.c.number).where(
            *within(env_id, season_id), matches.c.state == MatchState.FINISHED, moved
        )
        row = self._database.row(newest.order_by(matches.c.number.desc()).limit(1))
        return row["number"] if row else 0

    def all(self, env_id: str, *, season_id: int) -> list[StoredRating]:
        """Return all ratings in the order of the matches and then of the submission ids."""
        query = sa.select(*columns(ratings, StoredRating)).join(matches, matches.c.number == ratings.c.match_number)
        order = ratings.c.match_number, ratings.c.submission_id
        return [
            StoredRating(**row) for row in self._database.rows(query.where(*within(env_id, season_id)).order_by(*order))
        ]

    def replace(self, env_id: str, history: Sequence[StoredRating], *, season_id: int) -> None:
        """All of a season, as they were made again from its log."""
        of = sa.select(matches.c.number).where(*within(env_id, season_id))
        rows = [
            {column.name: getattr(one, column.name) for column in columns(ratings, StoredRating)} for one in history
        ]
        with self._database.begin() as connection:
            connection.execute(ratings.delete().where(ratings.c.match_number.in_(of)))
            if rows:
                connection.execute(ratings.insert(), rows)


def _check_moves(number: int, match: MatchRecord | None, after: Mapping[str, object]) -> None:
    if match is None or not match.rated or match.state is not MatchState.FINISHED:
        raise Conflict(f"match {number} moves no rating")
    if not after or not set(after) <= {seat.submission_id for seat in match.seats}:
        raise SpecError(f"ratings after match {number} are of those who played it")
