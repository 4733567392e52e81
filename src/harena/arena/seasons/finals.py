"""Finals of a verified season: finalists are evaluated again, on seeds from the season's second secret.

Guarantees: nobody gets feedback from the finals before the season ends, and each finalist plays them once; so whatever
the public board taught an owner about its own episodes counts for nothing here. Every finalist is a line of the final
board: none is picked by its final score. Does not play: `submissions.final` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena.arena.db.database import columns
from harena.arena.db.jobs import Queue
from harena.arena.db.models import ACTIVE, Conflict, FinalState, Kind, board, finalists, submissions
from harena.arena.db.records import Submission
from harena.arena.db.seasons import Season
from harena.arena.db.store import Store
from harena.arena.queue import kinds
from harena.arena.settings import EnvironmentSettings

JOB = kinds.FINAL.name
STARTED = "the season's finals have begun: finalists can no longer be chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    season_id: int
    submission_id: str
    owner_id: str
    chosen: bool
    """By its owner; else it is one of the owner's best on the public board."""
    state: FinalState
    job_id: int | None
    score: float | None
    low: float | None
    high: float | None
    episodes: int
    metrics: dict[str, Any] | None


# ---- the owner's choice ----


def choose(store: Store, submission: Submission, *, chosen: bool = True) -> None:
    """Raises Conflict when it cannot be a finalist, when enough were chosen, or when it is too late."""
    with store.begin() as connection:
        season_id = _live_season(store, submission)
        if _begun(store, season_id):
            raise Conflict(STARTED)
        here = (finalists.c.season_id == season_id) & (finalists.c.submission_id == submission.id)
        if not chosen:
            connection.execute(finalists.delete().where(here))
            return
        if submission.kind is not Kind.VERIFIED or submission.score is None:
            raise Conflict("only a submission with a verified score can be a finalist")
        most = _settings(store, submission.env_id).finalists
        others = [one for one in of_owner(store, season_id, submission.owner_id) if one != submission.id]
        if len(others) >= most:
            raise Conflict(f"{most} finalists are chosen already: take one back first")
        insert = store.database.insert(finalists).values(
            season_id=season_id,
            submission_id=submission.id,
            owner_id=submission.owner_id,
            chosen=True,
            state=FinalState.CHOSEN,
            episodes=0,
            created_at=store.clock(),
        )
        connection.execute(insert.on_conflict_do_nothing(index_elements=["season_id", "submission_id"]))


def of_owner(store: Store, season_id: int, owner_id: str) -> list[str]:
    """The submissions that the owner has chosen and could still be finalists."""
    query = (
        sa.select(finalists.c.submission_id)
        .join(submissions, submissions.c.id == finalists.c.submission_id)
        .where(finalists.c.season_id == season_id, finalists.c.owner_id == owner_id, finalists.c.chosen, *_ENTERED)
    )
    return [row["submission_id"] for row in store.database.rows(query.order_by(finalists.c.created_at))]


def find(store: Store, submission_id: str) -> Finalist | None:
    row = store.database.row(_FINALISTS.where(finalists.c.submission_id == submission_id))
    return Finalist(**row) if row else None


# ---- the finals ----


def start(store: Store, queue: Queue, season: Season, *, top: int | None = None) -> list[Finalist]:
    """Queues the finalists: of every owner, or of the `top` owners of the public board. Again only for those that the
    platform failed at."""
    with store.begin() as connection:
        if _begun(store, season.id):
            again = [one.submission_id for one in every(store, season.id) if one.state is FinalState.VOID]
            if not again:
                raise Conflict("the season has its finals already")
        else:
            if waiting := _waiting(store, season.id):
                raise Conflict(f"{waiting} submissions of the season are still to be evaluated: wait for them")
            again = _selected(store, season, top)
            if not again:
                raise Conflict("nobody has a verified score: there is nothing to play finals for")
        for submission_id in again:
            job_id = queue.enqueue(JOB, {"submission_id": submission_id, "season_id": season.id})
            here = (finalists.c.season_id == season.id) & (finalists.c.submission_id == submission_id)
            connection.execute(finalists.update().where(here).values(state=FinalState.QUEUED, job_id=job_id))
        left_out = (finalists.c.season_id == season.id) & (finalists.c.state == FinalState.CHOSEN)
        connection.execute(finalists.delete().where(left_out))
        return every(store, season.id)


def every(store: Store, season_id: int) -> list[Finalist]:
    return [Finalist(**row) for row in store.database.rows(_FINALISTS.where(finalists.c.season_id == season_id))]


def progress(store: Store, season_id: int) -> tuple[int, int] | None:
    """How many are through, and how many there are. None: the finals have not begun."""
    counted = sa.select(finalists.c.state, sa.func.count().label("n")).where(finalists.c.season_id == season_id)
    counts = {row["state"]: row["n"] for row in store.database.rows(counted.group_by(finalists.c.state))}
    if not counts.keys() - {FinalState.CHOSEN}:
        return None
    return counts.get(FinalState.DONE, 0) + counts.get(FinalState.FAILED, 0), sum(counts.values())


def keep(
    store: Store,
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
    """Without a score it failed, by its own fault."""
    state = FinalState.FAILED if score is None else FinalState.DONE
    _change(
        store,
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


def give_up(store: Store, season_id: int, submission_id: str, job_id: int) -> None:
    _change(store, season_id, submission_id, job_id, state=FinalState.VOID)


def cancel(store: Store, queue: Queue, season_id: int) -> None:
    """For a season that ends without them."""
    with store.begin():
        for one in every(store, season_id):
            if one.state is FinalState.QUEUED and one.job_id is not None:
                queue.cancel(one.job_id, reason="the season has ended")
                give_up(store, season_id, one.submission_id, one.job_id)


# ---- parts ----


def _live_season(store: Store, submission: Submission) -> int:
    season = store.seasons.live(submission.env_id)
    if season is None or season.id != submission.season_id:
        raise Conflict("its season has ended")
    return season.id


def _settings(store: Store, env_id: str) -> EnvironmentSettings:
    return EnvironmentSettings.parse(store.environments.get(env_id).settings)


def _begun(store: Store, season_id: int) -> bool:
    query = sa.select(finalists.c.submission_id).where(finalists.c.season_id == season_id)
    return store.database.row(query.where(finalists.c.state != FinalState.CHOSEN).limit(1)) is not None


def _waiting(store: Store, season_id: int) -> int:
    active = (submissions.c.season_id == season_id) & submissions.c.state.in_(sorted(ACTIVE))
    row = store.database.row(sa.select(sa.func.count().label("n")).select_from(submissions).where(active))
    return row["n"] if row else 0


def _selected(store: Store, season: Season, top: int | None) -> list[str]:
    """What the owners chose, and of those who chose nothing their best on the public board."""
    most = _settings(store, season.env_id).finalists
    best = sa.func.max(board.c.score).label("best")
    owners = sa.select(board.c.owner_id, best).where(board.c.env_id == season.env_id, board.c.kind == Kind.VERIFIED)
    owners = owners.group_by(board.c.owner_id).order_by(best.desc(), sa.func.min(board.c.at), board.c.owner_id)
    selected: list[str] = []
    for row in store.database.rows(owners if top is None else owners.limit(top)):
        chosen = of_owner(store, season.id, row["owner_id"])[:most]
        selected += chosen or _best(store, season, row["owner_id"], most)
    return selected


def _best(store: Store, season: Season, owner_id: str, most: int) -> list[str]:
    """Different programs, and those of them that were sent first."""
    query = (
        sa.select(submissions.c.id, submissions.c.digest)
        .where(submissions.c.season_id == season.id, submissions.c.owner_id == owner_id, *_ENTERED)
        .order_by(submissions.c.score.desc(), submissions.c.created_at, submissions.c.id)
    )
    first: dict[str, str] = {}
    for row in store.database.rows(query):
        if len(first) < most:
            first.setdefault(row["digest"], row["id"])
    values = [
        {
            "season_id": season.id,
            "submission_id": one,
            "owner_id": owner_id,
            "chosen": False,
            "state": FinalState.CHOSEN,
            "episodes": 0,
            "created_at": store.clock(),
        }
        for one in first.values()
    ]
    with store.begin() as connection:
        connection.execute(finalists.insert(), values)
    return [*first.values()]


def _change(store: Store, season_id: int, submission_id: str, job_id: int, **values: Any) -> None:
    here = (finalists.c.season_id == season_id) & (finalists.c.submission_id == submission_id)
    with store.begin() as connection:
        connection.execute(finalists.update().where(here, finalists.c.job_id == job_id).values(values))


_ENTERED = (
    submissions.c.kind == Kind.VERIFIED,
    submissions.c.score.is_not(None),
    submissions.c.deleted_at.is_(None),
)
_FINALISTS = sa.select(*columns(finalists, Finalist))
