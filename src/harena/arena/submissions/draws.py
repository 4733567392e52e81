"""Results on hidden episodes, one for each code and season, and reports of practice evaluations.

Guarantees: code that was drawn in a season keeps that result, whoever sends it and however often, also a failure: the
first draw is the only one. Deleting a submission does not take back a try.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import columns
from harena.arena.db.models import Kind, draws, practices, submissions
from harena.arena.db.store import Store
from harena.arena.settings import EnvironmentSettings

Z95 = NormalDist().inv_cdf(0.975)


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


def conditions(settings: EnvironmentSettings) -> str:
    """What a result depends on besides code and secret. A host who changes it has everything drawn again."""
    parts = [settings.episodes, *dataclasses.astuple(settings.clock), settings.memory_mb, settings.processes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def find(store: Store, season_id: int, code: str, conditions: str) -> Draw | None:
    row = store.database.row(
        _DRAWS.where(draws.c.season_id == season_id, draws.c.code == code, draws.c.conditions == conditions)
    )
    return Draw(**row) if row else None


def keep(store: Store, draw: Draw) -> Draw:
    """The one that is kept: this one, or the one that was there before it."""
    values = {field: getattr(draw, field) for field in Draw.__dataclass_fields__}
    with store.begin() as connection:
        insert = store.database.insert(draws).values(values | {"created_at": store.clock()})
        connection.execute(insert.on_conflict_do_nothing(index_elements=["season_id", "code", "conditions"]))
        return find(store, draw.season_id, draw.code, draw.conditions) or draw


def tries(store: Store, season_id: int, owners: Collection[str]) -> dict[str, int]:
    """How many different programs of each owner (by id) were drawn in the season. A score is the best of them."""
    drawn = sa.exists().where(draws.c.season_id == season_id, draws.c.code == submissions.c.digest)
    query = (
        sa.select(submissions.c.owner_id, sa.func.count(submissions.c.digest.distinct()).label("n"))
        .where(submissions.c.owner_id.in_(list(owners)), submissions.c.season_id == season_id)
        .where(submissions.c.kind == Kind.VERIFIED, sa.or_(submissions.c.score.is_not(None), drawn))
        .group_by(submissions.c.owner_id)
    )
    return {row["owner_id"]: row["n"] for row in store.database.rows(query)}


def discounted(score: float, low: float | None, high: float | None, tries: int) -> float | None:
    """The score less what the best of so many equal tries exceeds their mean by, on average. None: no interval."""
    if low is None or high is None:
        return None
    luck = NormalDist().inv_cdf((tries - 0.375) / (tries + 0.25)) if tries > 1 else 0.0  # Blom's approximation
    return score - luck * (high - low) / (2 * Z95)


# ---- practice ----


def keep_practice(store: Store, submission_id: str, report: dict[str, Any]) -> None:
    values = {"report": report, "created_at": store.clock()}
    with store.begin() as connection:
        insert = store.database.insert(practices).values(submission_id=submission_id, **values)
        connection.execute(insert.on_conflict_do_update(index_elements=["submission_id"], set_=values))


def practice(store: Store, submission_id: str) -> dict[str, Any] | None:
    row = store.database.row(sa.select(practices.c.report).where(practices.c.submission_id == submission_id))
    return row["report"] if row else None


_DRAWS = sa.select(*columns(draws, Draw))
