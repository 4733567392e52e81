"""Results on hidden episodes, one for each code and season, and reports of practice evaluations.

Guarantees: code that was drawn in a season keeps that result, whoever sends it and however often, also a failure: the
first draw is the only one. Deleting a submission does not take back a try.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.models import SubmissionKind, draws, practices, submissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    season_id: int
    code: str
    """The digest of what was sent."""
    conditions: str
    fault: str | None
    """How it failed, by its own fault; None: it has a score."""
    score: float | None
    low: float | None
    high: float | None
    episodes: int
    metrics: dict[str, Any]
    """Returns, steps, times and reason. Nobody sees them before the season ends."""


class DrawRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, season_id: int, code: str, conditions: str) -> Draw | None:
        row = self._database.row(
            _DRAWS.where(draws.c.season_id == season_id, draws.c.code == code, draws.c.conditions == conditions)
        )
        return Draw(**row) if row else None

    def keep(self, draw: Draw) -> Draw:
        """The one that is kept: this one, or the one that was there before it."""
        values = {field: getattr(draw, field) for field in Draw.__dataclass_fields__}
        with self._database.begin() as connection:
            insert = self._database.insert(draws).values(values | {"created_at": self._database.clock()})
            connection.execute(insert.on_conflict_do_nothing(index_elements=["season_id", "code", "conditions"]))
            return self.find(draw.season_id, draw.code, draw.conditions) or draw

    def tries(self, season_id: int, owners: Collection[str]) -> dict[str, int]:
        """How many different programs of each owner (by id) were drawn in the season. A score is the best of them."""
        drawn = sa.exists().where(draws.c.season_id == season_id, draws.c.code == submissions.c.digest)
        query = (
            sa.select(submissions.c.owner_id, sa.func.count(submissions.c.digest.distinct()).label("n"))
            .where(submissions.c.owner_id.in_(list(owners)), submissions.c.season_id == season_id)
            .where(submissions.c.kind == SubmissionKind.VERIFIED, sa.or_(submissions.c.score.is_not(None), drawn))
            .group_by(submissions.c.owner_id)
        )
        return {row["owner_id"]: row["n"] for row in self._database.rows(query)}

    def keep_practice(self, submission_id: str, report: dict[str, Any]) -> None:
        values = {"report": report, "created_at": self._database.clock()}
        with self._database.begin() as connection:
            insert = self._database.insert(practices).values(submission_id=submission_id, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=["submission_id"], set_=values))

    def practice(self, submission_id: str) -> dict[str, Any] | None:
        row = self._database.row(sa.select(practices.c.report).where(practices.c.submission_id == submission_id))
        return row["report"] if row else None


_DRAWS = sa.select(*columns(draws, Draw))
