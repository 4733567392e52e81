"""Which files rows refer to, and rows that forget their files under the rules of retention.

Guarantees: every column that can name a file counts, in every table, those of later versions too: columns of digests,
and whatever looks like a digest in a JSON column. Forgetting clears the reference and keeps the row. It spares what a
board, a final or a season's standings show, what runs, and what proves a verified score.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db import models
from harena.arena.db.database import Database
from harena.arena.db.models import (
    ACTIVE,
    Json,
    MatchState,
    board,
    finalists,
    matches,
    practices,
    seats,
    standings,
    submissions,
    tournaments,
)

PAGE = 2000
_DIGESTS = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", re.ASCII)
_SHORT = 15


def short(digest: str) -> int:
    """60 bits of a digest: a million take 60 MB instead of 120. Two that share them are both kept."""
    return int(digest[:_SHORT], 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    matches: int = 0
    submissions: int = 0

    def __bool__(self) -> bool:
        return bool(self.matches or self.submissions)


class RetentionRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def references(self) -> set[int]:
        """All digests in the database, by `short`."""
        return {short(digest) for digest in self._digests()}

    def _digests(self) -> Iterator[str]:
        for table in models.metadata.sorted_tables:
            for column in table.columns:
                if isinstance(column.type, Json):
                    for text in self._values(table, sa.type_coerce(column, sa.Text)):
                        yield from _DIGESTS.findall(text)
                elif isinstance(column.type, sa.String) and column.type.length == 64:
                    for text in self._values(table, column):
                        yield from _DIGESTS.findall(text)

    def _values(self, table: sa.Table, column: sa.ColumnElement[Any]) -> Iterator[str]:
        """In pages by the primary key: no transaction stays open, and no table is in memory as a whole."""
        key = list(table.primary_key.columns)
        after: tuple[Any, ...] | None = None
        while True:
            query = sa.select(*(one.label(f"key_{n}") for n, one in enumerate(key)), column.label("value"))
            query = query.where(column.is_not(None)).order_by(*key).limit(PAGE)
            if after is not None:
                query = query.where(sa.tuple_(*key) > after)
            rows = self._database.rows(query)
            for row in rows:
                yield row["value"]
            if len(rows) < PAGE:
                return
            after = tuple(rows[-1][f"key_{n}"] for n in range(len(key)))

    # ---- rules ----

    def forget(self, *, before: float | None, keep_matches: int | None) -> Forgotten:
        """Clear replays and logs of what ended before that time, or is not among the latest matches of its
        environment."""
        if before is None and keep_matches is None:
            return Forgotten()
        counted = 0
        for env_id in [row["env_id"] for row in self._database.rows(sa.select(models.environments.c.env_id))]:
            counted += self._forget_matches(env_id, before, keep_matches)
        return Forgotten(matches=counted, submissions=0 if before is None else self._forget_submissions(before))

    def _forget_matches(self, env_id: str, before: float | None, keep: int | None) -> int:
        ended = (matches.c.env_id == env_id) & (matches.c.state != MatchState.SCHEDULED)
        old: list[sa.ColumnElement[bool]] = []
        if before is not None:
            old.append(matches.c.finished_at < before)
        if keep is not None:
            oldest = self._database.row(
                sa.select(matches.c.number).where(ended).order_by(matches.c.number.desc()).offset(keep).limit(1)
            )
            if oldest is not None:
                old.append(matches.c.number <= oldest["number"])
        if not old:
            return 0
        final = matches.c.tournament_id.in_(sa.select(tournaments.c.id).where(tournaments.c.finals))
        logged = sa.exists().where(seats.c.match_number == matches.c.number, seats.c.log_digest.is_not(None))
        which = ended & sa.or_(*old) & (matches.c.tournament_id.is_(None) | ~final)
        which &= matches.c.replay_digest.is_not(None) | logged
        counted = 0
        while True:
            found = self._database.rows(sa.select(matches.c.number).where(which).order_by(matches.c.number).limit(PAGE))
            numbers = [row["number"] for row in found]
            if not numbers:
                return counted
            with self._database.begin() as connection:
                connection.execute(matches.update().where(matches.c.number.in_(numbers)).values(replay_digest=None))
                connection.execute(seats.update().where(seats.c.match_number.in_(numbers)).values(log_digest=None))
            counted += len(numbers)

    def _forget_submissions(self, before: float) -> int:
        shown = sa.or_(
            submissions.c.id.in_(sa.select(board.c.submission_id)),
            submissions.c.id.in_(sa.select(standings.c.submission_id)),
            submissions.c.id.in_(sa.select(finalists.c.submission_id)),
        )
        practised = sa.exists().where(practices.c.submission_id == submissions.c.id)
        which = (submissions.c.updated_at < before) & submissions.c.state.not_in(sorted(ACTIVE)) & ~shown
        which &= submissions.c.log_digest.is_not(None) | practised
        counted = 0
        while True:
            ids = [row["id"] for row in self._database.rows(sa.select(submissions.c.id).where(which).limit(PAGE))]
            if not ids:
                return counted
            with self._database.begin() as connection:
                connection.execute(submissions.update().where(submissions.c.id.in_(ids)).values(log_digest=None))
                connection.execute(practices.delete().where(practices.c.submission_id.in_(ids)))
            counted += len(ids)
