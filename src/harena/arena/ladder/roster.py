"""Who plays on a ladder, and who sits on its bench. Guarantees: of each lineage the newest ranked version plays, the
older ones have retired; a bench is lifted by name and leaves its record; what was played before a lift no longer counts
against an agent. Does not decide whom to bench: `pairing.bench_rule` does, or a host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from harena.arena.db.database import columns
from harena.arena.db.models import (
    ACTIVE,
    Conflict,
    Kind,
    MatchState,
    QuotaExceeded,
    State,
    benches,
    matches,
    owners,
    reason_text,
    seats,
    submissions,
)
from harena.arena.db.store import Store
from harena.arena.ladder.pairing import FAULT_WINDOW
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
    """For the agent's owner and the host."""
    after_match: int
    benched_at: float
    lifted_at: float | None


def agents(store: Store, submission_ids: Collection[str]) -> dict[str, RosterAgent]:
    """By id, whatever has become of them."""
    rows = store.database.rows(_AGENTS.where(submissions.c.id.in_(list(submission_ids))))
    return {row["submission_id"]: _agent(row) for row in rows}


def live(store: Store, season_id: int) -> list[RosterAgent]:
    """The newest ranked version of each lineage, by id."""
    query = _AGENTS.where(
        submissions.c.season_id == season_id,
        submissions.c.state == State.RANKED,
        submissions.c.kind == Kind.VERIFIED,
        submissions.c.deleted_at.is_(None),
    ).order_by(submissions.c.version)
    newest = {agent.lineage: agent for agent in map(_agent, store.database.rows(query))}
    return sorted(newest.values(), key=lambda agent: agent.submission_id)


def playing(agents: Sequence[RosterAgent], per_owner: int) -> list[RosterAgent]:
    """The latest agents of each owner, as many as may play; 0: all. The others keep their place on the board."""
    if not per_owner:
        return list(agents)
    left: Counter[str] = Counter()
    chosen: set[str] = set()
    for agent in sorted(agents, key=lambda one: (one.created_at, one.submission_id), reverse=True):
        if left[agent.owner_id] < per_owner:
            left[agent.owner_id] += 1
            chosen.add(agent.submission_id)
    return [agent for agent in agents if agent.submission_id in chosen]


def check_room(store: Store, owner: str, env_id: str, algorithm: str, per_owner: int) -> None:
    """Raises QuotaExceeded where one more agent would be more than an owner may have on the ladder. A new version of
    one that is there takes its place. Counts those that are still to enter."""
    season, who = store.seasons.live(env_id), store.owners.find(owner)
    if not per_owner or season is None or who is None:
        return
    on_it = submissions.c.state.in_(sorted({*ACTIVE, State.RANKED})) & submissions.c.deleted_at.is_(None)
    query = sa.select(submissions.c.algorithm).where(
        submissions.c.owner_id == who.id, submissions.c.season_id == season.id, on_it
    )
    known = {row["algorithm"] for row in store.database.rows(query.distinct())}
    if algorithm not in known and len(known) >= per_owner:
        raise QuotaExceeded(
            f"{per_owner} agents of one owner may play in {env_id}: send a new version of one (the same algorithm), "
            "or delete one first"
        )


def bench(store: Store, submission_id: str, reason: str) -> BenchRecord:
    """Raises Conflict when it is benched already."""
    with store.begin() as connection:
        env_id = store.submissions.get(submission_id).env_id
        if benched(store, submission_id) is not None:
            raise Conflict("the agent is benched already")
        last = sa.select(sa.func.max(seats.c.match_number).label("n")).where(seats.c.submission_id == submission_id)
        row = store.database.row(last)
        connection.execute(
            benches.insert().values(
                submission_id=submission_id,
                reason=reason_text(reason),
                benched_at=store.clock(),
                after_match=(row["n"] or 0) if row else 0,
            )
        )
        _tell(store, submission_id, env_id, benched=True)
        made = benched(store, submission_id)
    assert made is not None
    return made


def unbench(store: Store, submission_id: str) -> None:
    """Matches that were made before now do not count against it again. Raises Conflict when it is not benched."""
    with store.begin() as connection:
        env_id = store.submissions.get(submission_id).env_id
        row = store.database.row(
            sa.select(sa.func.max(seats.c.match_number).label("n")).where(seats.c.submission_id == submission_id)
        )
        values = {"lifted_at": store.clock(), "after_match": (row["n"] or 0) if row else 0}
        there = (benches.c.submission_id == submission_id) & benches.c.lifted_at.is_(None)
        if connection.execute(benches.update().where(there).values(values)).rowcount == 0:
            raise Conflict("the agent is not benched")
        _tell(store, submission_id, env_id, benched=False)


def benched(store: Store, submission_id: str) -> BenchRecord | None:
    row = store.database.row(_BENCHES.where(benches.c.submission_id == submission_id, benches.c.lifted_at.is_(None)))
    return BenchRecord(**row) if row else None


def all_benched(store: Store, *, env_id: str | None = None) -> list[BenchRecord]:
    """Those who sit there now, the latest first."""
    query = _BENCHES.where(benches.c.lifted_at.is_(None)).order_by(benches.c.id.desc())
    if env_id is not None:
        query = query.join(submissions, submissions.c.id == benches.c.submission_id)
        query = query.where(submissions.c.env_id == env_id)
    return [BenchRecord(**row) for row in store.database.rows(query)]


def behaviour(store: Store, submission_id: str) -> list[SeatStatus]:
    """In its last rated matches, the latest last, since it was last taken off the bench."""
    lifted = sa.select(sa.func.max(benches.c.after_match)).where(benches.c.submission_id == submission_id)
    query = (
        sa.select(seats.c.status)
        .join(matches, matches.c.number == seats.c.match_number)
        .where(seats.c.submission_id == submission_id, matches.c.rated.is_(True))
        .where(matches.c.state == MatchState.FINISHED)
        .where(seats.c.match_number > sa.func.coalesce(lifted.scalar_subquery(), 0))
        .order_by(seats.c.match_number.desc())
        .limit(FAULT_WINDOW)
    )
    return [SeatStatus(row["status"]) for row in store.database.rows(query)][::-1]


def _tell(store: Store, submission_id: str, env_id: str, *, benched: bool) -> None:
    store.events.publish(f"board:{env_id}", "bench", {"submission_id": submission_id, "benched": benched})
    store.events.publish(
        f"submission:{submission_id}", "bench", {"id": submission_id, "env_id": env_id, "benched": benched}
    )


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
