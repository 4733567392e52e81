"""What the store hands out and takes: submissions, evaluations, lines of a board, quotas. Plain frozen data."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

from harena.arena.db.models import State, SubmissionKind, json_text
from harena.errors import SpecError

MAX_PAGE = 1000
"""Rows that one question is answered with."""


def page(limit: int) -> int:
    return max(1, min(limit, MAX_PAGE))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    id: str
    owner_id: str
    owner: str
    env_id: str
    season_id: int | None
    algorithm: str
    client_id: str | None
    anonymous: bool
    """Sent without a key: who shows the client's id is its owner."""
    main_file: str
    digest: str
    """Digest of the code in the file store."""
    version: int
    """Counts from 1 for each owner, environment and algorithm."""
    kind: SubmissionKind
    state: State
    reason: str
    """Why it was rejected or failed, for its owner."""
    warnings: str
    """Warnings for its owner, one per line."""
    log_digest: str | None
    """Digest of the log in the file store. Only the owner may read the log."""
    job_id: int | None
    score: float | None
    """What stands on the board. A platform fault in a later evaluation does not take it away."""
    low: float | None
    high: float | None
    created_at: float
    updated_at: float
    deleted_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOutcome:
    """What an evaluation found. An end of the interval is None where too little is known."""

    score: float
    low: float | None = None
    high: float | None = None
    episodes: int = 0
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.score, self.low, self.high) if value is not None):
            raise SpecError("a score and its interval are finite numbers")
        json_text(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    id: int
    submission_id: str
    kind: SubmissionKind
    score: float
    low: float | None
    high: float | None
    episodes: int
    metrics: dict[str, Any]
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRecord:
    """A line of a board: the best of an owner's submissions of one algorithm."""

    env_id: str
    kind: SubmissionKind
    owner: str
    algorithm: str
    submission_id: str
    score: float
    low: float | None
    high: float | None
    at: float
    """When it was submitted."""


class Sort(enum.StrEnum):
    SCORE_DESC = "score_desc"
    DATE_DESC = "date_desc"
    DATE_ASC = "date_asc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    user: str | None = None
    algorithm: str | None = None
    score_min: float | None = None
    score_max: float | None = None
    date_from: float | None = None
    date_to: float | None = None

    @property
    def scores(self) -> tuple[float | None, float | None]:
        return self.score_min, self.score_max

    @property
    def dates(self) -> tuple[float | None, float | None]:
        return self.date_from, self.date_to


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultQuota:
    """What the host allows an owner who has no numbers of their own. None: no limit."""

    per_day: int | None = 100
    """The limit for each UTC day."""
    at_once: int | None = 10
    """Received, checked, queued or running."""
