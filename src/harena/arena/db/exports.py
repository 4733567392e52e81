"""Whole tables, read page by page: an export of any size needs little memory and holds no connection meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import sqlalchemy as sa

from harena.arena.db.database import Database
from harena.arena.db.models import BoardKind, SubmissionKind, board, matches, owners, ratings, standings, submissions

PAGE = 1000

Row = dict[str, Any]


class ExportRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def scores(self, env_id: str, kind: SubmissionKind) -> Iterator[Row]:
        """The live board, the best first."""
        names = (board.c.submission_id, board.c.algorithm, board.c.score, board.c.low, board.c.high, board.c.at)
        query = sa.select(*names, owners.c.name.label("owner"), submissions.c.version)
        query = query.join(owners, owners.c.id == board.c.owner_id)
        query = query.join(submissions, submissions.c.id == board.c.submission_id)
        query = query.where(board.c.env_id == env_id, board.c.kind == kind)
        query = query.order_by(board.c.score.desc(), board.c.at, board.c.submission_id)

        def after(last: Row) -> sa.ColumnElement[bool]:
            later = sa.tuple_(board.c.at, board.c.submission_id) > sa.tuple_(last["at"], last["submission_id"])
            return (board.c.score <= last["score"]) & ((board.c.score < last["score"]) | later)

        return self._pages(query, after)

    def standings(self, season_id: int, which: BoardKind, names: Iterable[str]) -> Iterator[Row]:
        query = sa.select(*(standings.c[name] for name in (*names, "place")))
        query = query.where(standings.c.season_id == season_id, standings.c.board == which).order_by(standings.c.place)
        return self._pages(query, lambda last: standings.c.place > last["place"])

    def ratings(self, env_id: str) -> Iterator[Row]:
        """Yield the ratings of all agents after each of their matches."""
        query = sa.select(
            ratings.c.match_number, ratings.c.submission_id, ratings.c.mu, ratings.c.sigma, ratings.c.created_at
        )
        query = query.join(matches, matches.c.number == ratings.c.match_number).where(matches.c.env_id == env_id)
        key = sa.tuple_(ratings.c.match_number, ratings.c.submission_id)
        query = query.order_by(ratings.c.match_number, ratings.c.submission_id)
        return self._pages(query, lambda last: key > sa.tuple_(last["match_number"], last["submission_id"]))

    def _pages(
        self, query: sa.Select[*tuple[Any, ...]], after: Callable[[Row], sa.ColumnElement[bool]]
    ) -> Iterator[Row]:
        page = query
        while rows := [dict(row) for row in self._database.rows(page.limit(PAGE))]:
            yield from cast("list[Row]", rows)
            page = query.where(after(cast("Row", rows[-1])))
