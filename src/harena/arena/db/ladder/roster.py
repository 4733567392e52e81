"""Agents on a ladder, and its bench. Guarantees: of each lineage the newest ranked version plays, the older ones have
retired; a bench is lifted by name and leaves its record; what was played before a lift no longer counts against an
agent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from harena.arena.db.database import Database, columns
from harena.arena.db.events import EventRepository
from harena.arena.db.models import (
    ACTIVE,
    Conflict,
    MatchState,
    State,
    SubmissionKind,
    benches,
    matches,
    owners,
    reason_text,
    seats,
    submissions,
)
from harena.arena.db.results.submissions import SubmissionRepository
from harena.match.result import SeatStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterAgent:
    """A version that stands, or stood, on a ladder."""

    submission_id: str
    owner_id: str
    owner: str
    algorithm: str
    version: int
    lineage: str
    """The same for all versions of one agent."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    id: int
    submission_id: str
    reason: str
    """Explains the state to the agent's owner and to the host."""
    after_match: int
    benched_at: float
    lifted_at: float | None


class RosterRepository:
    def __init__(self, database: Database, submissions: SubmissionRepository, events: EventRepository) -> None:
        self._database = database
        self._submissions = submissions
        self._events = events

    def agents(self, submission_ids: Collection[str]) -> dict[str, RosterAgent]:
        """Return agents by id, whatever has become of them."""
        rows = self._database.rows(_AGENTS.where(submissions.c.id.in_(list(submission_ids))))
        return {row["submission_id"]: _agent(row) for row in rows}

    def live(self, season_id: int) -> list[RosterAgent]:
        """The newest ranked version of each lineage, by id."""
        query = _AGENTS.where(
            submissions.c.season_id == season_id,
            submissions.c.state == State.RANKED,
            submissions.c.kind == SubmissionKind.VERIFIED,
            submissions.c.deleted_at.is_(None),
        ).order_by(submissions.c.version)
        newest = {agent.lineage: agent for agent in map(_agent, self._database.rows(query))}
        return sorted(newest.values(), key=lambda agent: agent.submission_id)

    def bench(self, submission_id: str, reason: str) -> BenchRecord:
        """Raises Conflict when it is benched already."""
        with self._database.begin() as connection:
            env_id = self._submissions.get(submission_id).env_id
            if self.benched(submission_id) is not None:
                raise Conflict("the agent is benched already")
            last = sa.select(sa.func.max(seats.c.match_number).label("n")).where(seats.c.submission_id == submission_id)
            row = self._database.row(last)
            connection.execute(
                benches.insert().values(
                    submission_id=submission_id,
                    reason=reason_text(reason),
                    benched_at=self._database.clock(),
                    after_match=(row["n"] or 0) if row else 0,
                )
            )
            self._tell(submission_id, env_id, benched=True)
            made = self.benched(submission_id)
        assert made is not None
        return made

    def unbench(self, submission_id: str) -> None:
        """Matches that were made before now do not count against it again. Raises Conflict when it is not benched."""
        with self._database.begin() as connection:
            env_id = self._submissions.get(submission_id).env_id
            row = self._database.row(
                sa.select(sa.func.max(seats.c.match_number).label("n")).where(seats.c.submission_id == submission_id)
            )
            values = {"lifted_at": self._database.clock(), "after_match": (row["n"] or 0) if row else 0}
            there = (benches.c.submission_id == submission_id) & benches.c.lifted_at.is_(None)
            if connection.execute(benches.update().where(there).values(values)).rowcount == 0:
                raise Conflict("the agent is not benched")
            self._tell(submission_id, env_id, benched=False)

    def benched(self, submission_id: str) -> BenchRecord | None:
        row = self._database.row(
            _BENCHES.where(benches.c.submission_id == submission_id, benches.c.lifted_at.is_(None))
        )
        return BenchRecord(**row) if row else None

    def all_benched(self, *, env_id: str | None = None) -> list[BenchRecord]:
        """Those who sit there now, the latest first."""
        query = _BENCHES.where(benches.c.lifted_at.is_(None)).order_by(benches.c.id.desc())
        if env_id is not None:
            query = query.join(submissions, submissions.c.id == benches.c.submission_id)
            query = query.where(submissions.c.env_id == env_id)
        return [BenchRecord(**row) for row in self._database.rows(query)]

    def behaviour(self, submission_id: str, most: int) -> list[SeatStatus]:
        """Return how it ended its last `most` rated matches since it last left the bench, the latest one last."""
        lifted = sa.select(sa.func.max(benches.c.after_match)).where(benches.c.submission_id == submission_id)
        query = (
            sa.select(seats.c.status)
            .join(matches, matches.c.number == seats.c.match_number)
            .where(seats.c.submission_id == submission_id, matches.c.rated.is_(True))
            .where(matches.c.state == MatchState.FINISHED)
            .where(seats.c.match_number > sa.func.coalesce(lifted.scalar_subquery(), 0))
            .order_by(seats.c.match_number.desc())
            .limit(most)
        )
        return [SeatStatus(row["status"]) for row in self._database.rows(query)][::-1]

    def _tell(self, submission_id: str, env_id: str, *, benched: bool) -> None:
        self._events.publish(f"board:{env_id}", "bench", {"submission_id": submission_id, "benched": benched})
        self._events.publish(
            f"submission:{submission_id}", "bench", {"id": submission_id, "env_id": env_id, "benched": benched}
        )

    def algorithms(self, owner_id: str, season_id: int) -> set[str]:
        """Return the algorithm names of an owner's agents that are on the ladder or about to enter it."""
        on_it = submissions.c.state.in_(sorted({*ACTIVE, State.RANKED})) & submissions.c.deleted_at.is_(None)
        query = sa.select(submissions.c.algorithm).where(
            submissions.c.owner_id == owner_id, submissions.c.season_id == season_id, on_it
        )
        return {row["algorithm"] for row in self._database.rows(query.distinct())}


def _agent(row: sa.RowMapping) -> RosterAgent:
    fields = {name: row[name] for name in ("submission_id", "owner_id", "owner", "algorithm", "version", "created_at")}
    # Names are apart by a character that none can hold.
    sender = f"\0{row['client_id'] or ''}" if row["anonymous"] else ""
    return RosterAgent(**fields, lineage=f"{row['owner_id']}\0{row['algorithm']}{sender}")


_AGENTS = sa.select(
    submissions.c.id.label("submission_id"),
    submissions.c.owner_id,
    owners.c.name.label("owner"),
    submissions.c.algorithm,
    submissions.c.version,
    submissions.c.created_at,
    submissions.c.client_id,
    submissions.c.anonymous,
).join(owners, owners.c.id == submissions.c.owner_id)
_BENCHES = sa.select(*columns(benches, BenchRecord))
