"""Finalists of verified seasons, and what they scored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.models import ACTIVE, FinalState, SubmissionKind, board, finalists, submissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    season_id: int
    submission_id: str
    owner_id: str
    chosen: bool
    """True if its owner chose it; else it is one of the owner's best on the public board."""
    state: FinalState
    job_id: int | None
    score: float | None
    low: float | None
    high: float | None
    episodes: int
    metrics: dict[str, Any] | None


class FinalistRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    def of_owner(self, season_id: int, owner_id: str) -> list[str]:
        """The submissions that the owner has chosen and could still be finalists."""
        query = (
            sa.select(finalists.c.submission_id)
            .join(submissions, submissions.c.id == finalists.c.submission_id)
            .where(finalists.c.season_id == season_id, finalists.c.owner_id == owner_id, finalists.c.chosen, *_ENTERED)
        )
        return [row["submission_id"] for row in self._database.rows(query.order_by(finalists.c.created_at))]

    def find(self, submission_id: str) -> Finalist | None:
        row = self._database.row(_FINALISTS.where(finalists.c.submission_id == submission_id))
        return Finalist(**row) if row else None

    def every(self, season_id: int) -> list[Finalist]:
        return [Finalist(**row) for row in self._database.rows(_FINALISTS.where(finalists.c.season_id == season_id))]

    def progress(self, season_id: int) -> tuple[int, int] | None:
        """How many are through, and how many there are. None: the finals have not begun."""
        counted = sa.select(finalists.c.state, sa.func.count().label("n")).where(finalists.c.season_id == season_id)
        counts = {row["state"]: row["n"] for row in self._database.rows(counted.group_by(finalists.c.state))}
        if not counts.keys() - {FinalState.CHOSEN}:
            return None
        return counts.get(FinalState.DONE, 0) + counts.get(FinalState.FAILED, 0), sum(counts.values())

    def keep(
        self,
        season_id: int,
        submission_id: str,
        *,
        job_id: int,
        score: float | None,
        low: float | None,
        high: float | None,
        episodes: int,
        metrics: dict[str, Any],
    ) -> None:
        """Store a finalist's result. If the score is None, it failed by its own fault."""
        state = FinalState.FAILED if score is None else FinalState.DONE
        self._change(
            season_id,
            submission_id,
            job_id,
            state=state,
            score=score,
            low=low,
            high=high,
            episodes=episodes,
            metrics=metrics,
        )

    def give_up(self, season_id: int, submission_id: str, job_id: int) -> None:
        self._change(season_id, submission_id, job_id, state=FinalState.VOID)

    def begun(self, season_id: int) -> bool:
        """Whether finalists were queued: then none can be chosen."""
        query = sa.select(finalists.c.submission_id).where(finalists.c.season_id == season_id)
        return self._database.row(query.where(finalists.c.state != FinalState.CHOSEN).limit(1)) is not None

    def _change(self, season_id: int, submission_id: str, job_id: int, **values: Any) -> None:
        here = (finalists.c.season_id == season_id) & (finalists.c.submission_id == submission_id)
        with self._database.begin() as connection:
            connection.execute(finalists.update().where(here, finalists.c.job_id == job_id).values(values))

    def choose(self, season_id: int, submission_ids: Collection[str], owner_id: str, *, chosen: bool = True) -> None:
        """Makes them finalists, by their owner's choice or without it. Idempotent."""
        for submission_id in submission_ids:
            insert = self._database.insert(finalists).values(
                season_id=season_id,
                submission_id=submission_id,
                owner_id=owner_id,
                chosen=chosen,
                state=FinalState.CHOSEN,
                episodes=0,
                created_at=self._database.clock(),
            )
            with self._database.begin() as connection:
                connection.execute(insert.on_conflict_do_nothing(index_elements=["season_id", "submission_id"]))

    def drop(self, season_id: int, submission_id: str | None = None) -> None:
        """One of them, or all that were chosen and not queued."""
        which = finalists.c.state == FinalState.CHOSEN
        if submission_id is not None:
            which = finalists.c.submission_id == submission_id
        with self._database.begin() as connection:
            connection.execute(finalists.delete().where(finalists.c.season_id == season_id, which))

    def queue(self, season_id: int, submission_id: str, job_id: int) -> None:
        here = (finalists.c.season_id == season_id) & (finalists.c.submission_id == submission_id)
        with self._database.begin() as connection:
            connection.execute(finalists.update().where(here).values(state=FinalState.QUEUED, job_id=job_id))

    def waiting(self, season_id: int) -> int:
        """Submissions of the season that are still to be evaluated."""
        active = (submissions.c.season_id == season_id) & submissions.c.state.in_(sorted(ACTIVE))
        row = self._database.row(sa.select(sa.func.count().label("n")).select_from(submissions).where(active))
        return row["n"] if row else 0

    def owners(self, env_id: str, top: int | None = None) -> list[str]:
        """Ids of the owners on the public board, the best first."""
        best = sa.func.max(board.c.score).label("best")
        query = sa.select(board.c.owner_id, best).where(
            board.c.env_id == env_id, board.c.kind == SubmissionKind.VERIFIED
        )
        query = query.group_by(board.c.owner_id).order_by(best.desc(), sa.func.min(board.c.at), board.c.owner_id)
        return [row["owner_id"] for row in self._database.rows(query if top is None else query.limit(top))]

    def best(self, season_id: int, owner_id: str, most: int) -> list[str]:
        """Return an owner's best submissions. Of identical programs only the one that was sent first counts."""
        query = (
            sa.select(submissions.c.id, submissions.c.digest)
            .where(submissions.c.season_id == season_id, submissions.c.owner_id == owner_id, *_ENTERED)
            .order_by(submissions.c.score.desc(), submissions.c.created_at, submissions.c.id)
        )
        first: dict[str, str] = {}
        for row in self._database.rows(query):
            if len(first) < most:
                first.setdefault(row["digest"], row["id"])
        return [*first.values()]


_ENTERED = (
    submissions.c.kind == SubmissionKind.VERIFIED,
    submissions.c.score.is_not(None),
    submissions.c.deleted_at.is_(None),
)
_FINALISTS = sa.select(*columns(finalists, Finalist))
