"""Work that has to be done, in a table. Guarantees: a job has one holder at a time; its finish counts once; a job whose
worker died is given out again when its lease is over, and the dead worker's late answer is refused; a job that keeps
failing ends as dead, with the reason; shares take turns by the time that their jobs take, so nobody waits for all that
somebody else has queued. Does not promise that a job *runs* once: its effects must be written in the same `begin()`
block as its `finish`, and then they happen once.

Whose fault it is when a worker dies cannot be told, so no job is charged for it: the attempt does not count. A job that
was lost with SUSPECT workers is a suspect: it is claimed only by a worker that does nothing else meanwhile, so it takes
no other job with it. One that was lost with MAX_DEATHS workers is given up.

Turns are start-time fair queueing (Goyal, Vin, Cheng 1996). A kind of job has a virtual time, the turn of the job that
was started last. A share's next job has its turn when the share's last one ends in virtual time, and not before now. A
share that was away starts at the virtual time: it neither saved up nor owes anything.

    with database.begin():          # all of it or nothing
        queue.finish(job)           # raises LeaseLost when somebody else has it
        store.submissions.rank(...)

One file, however long: these guarantees hold because every statement that changes the table is here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from harena import trace
from harena.arena.db.database import Database, columns
from harena.arena.db.models import JobState, LeaseLost, NotFound, jobs, name_text, reason_text

LEASE_S = 60.0
"""Three missed heartbeats of 20 s: a busy machine is not a dead one."""
MAX_ATTEMPTS = 3
BACKOFF_S = 2.0
"""Before the second attempt; doubles with each."""
MAX_BACKOFF_S = 300.0
SUSPECT = 2
"""Lost workers after which a job runs alone."""
MAX_DEATHS = 20
"""An arena that is killed again and again from outside loses the same job many times."""
MAX_DEATH_WAIT_S = 60.0
REMOTE = "remote:"
"""What the names of workers begin with that claim over HTTP. They live longer than this database's processes."""
RECENT = 50
"""Finished jobs that an ETA is estimated from."""
RECENT_OF_SHARE = 5
UNKNOWN_COST_S = 1.0
"""Assumed length of a job while none of its kind has ended."""
MIN_COST_S = 0.05
FAR_S = 2 * MAX_BACKOFF_S
"""No lease and no wait reaches further ahead. One that does was written before the clock was set back."""
MEASURED = 10_000
"""Claims whose beginning is remembered: more than any process holds."""
WORTH_S = 0.25
"""A job that took so much more or less than expected moves its share's other jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    id: int
    kind: str
    payload: dict[str, Any]
    key: str | None
    state: JobState
    priority: int
    attempts: int
    """Begun so far."""
    max_attempts: int
    fence: int
    """Counts claims and never goes back: who holds an older one has lost the job."""
    worker: str | None
    reason: str
    share: str
    part: str
    turn: float
    cost_s: float
    yielded: int
    place: str
    """The only process that may claim it; empty: any."""
    env_id: str
    """The environment that its worker needs; empty: none, or not known."""
    deaths: int
    """Workers that were lost while they had it."""
    trace: str
    """The traceparent of the request that it follows from; empty: of none."""
    run_at: float
    lease_until: float | None
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def suspect(self) -> bool:
        return self.deaths >= SUSPECT


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    position: int
    """Jobs that will be started before this one; 0: it is next, running or over."""
    eta_s: float | None
    """Until it is finished, by what jobs of the same shares took; None: not enough is known. Whoever comes later and
    has had less may still go before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    requeued: tuple[QueuedJob, ...]
    dead: tuple[QueuedJob, ...]

    @classmethod
    def of(cls, jobs: Sequence[QueuedJob]) -> Swept:
        """Sort jobs by the state they are in now."""
        dead = tuple(job for job in jobs if job.state is JobState.DEAD)
        return cls(requeued=tuple(job for job in jobs if job.state is JobState.QUEUED), dead=dead)


def backoff_s(attempts: int) -> float:
    """The wait after so many attempts."""
    return min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** min(attempts - 1, 30))


def death_wait_s(deaths: int) -> float:
    """The wait after so many lost workers: none before the job is a suspect."""
    return min(MAX_DEATH_WAIT_S, 2.0 ** (deaths - SUSPECT)) if deaths > SUSPECT else 0.0


class Queue:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.slots: dict[str, int] = {}
        """Jobs of a kind that run at once; for kinds that are not here, as many as do now."""
        self._begun: dict[tuple[int, int], float] = {}
        """When this process claimed a job, by its id and fence, on a clock that does not jump."""
        self._add = database.insert(jobs).on_conflict_do_nothing(index_elements=["key"]).returning(jobs.c.id)

    # ---- giving work ----

    def enqueue(
        self,
        kind: str,
        payload: dict[str, Any],
        *,
        key: str | None = None,
        priority: int = 0,
        delay_s: float = 0.0,
        max_attempts: int = MAX_ATTEMPTS,
        share: str = "",
        part: str = "",
        place: str = "",
        env_id: str = "",
    ) -> int:
        """The job's id. Of jobs with one key there is only ever one: a second call returns the first's id. `share` is
        whose time it takes: shares of one kind take turns. `part` is who of those that use the share: they take turns
        within it, and all of them together have no more than another share. `place` names the only worker that may
        claim it, `env_id` the environment that a worker must have for it."""
        now = self.database.clock()
        row = _new(kind, payload, key, priority, now, delay_s, max_attempts) | {"place": place, "env_id": env_id}
        with self.database.begin() as connection:
            if share:
                row |= self._turn(kind, share, part, now)
            made = connection.execute(self._add, row).scalar()
            if made is not None:
                self.database.note(f"jobs:{kind}")
                return made
            return connection.execute(sa.select(jobs.c.id).where(jobs.c.key == key)).scalar_one()

    def enqueue_many(self, kind: str, payloads: Sequence[dict[str, Any]], *, priority: int = 0) -> None:
        now = self.database.clock()
        rows = [_new(kind, payload, None, priority, now, 0.0, MAX_ATTEMPTS) for payload in payloads]
        if rows:
            with self.database.begin() as connection:
                connection.execute(jobs.insert(), rows)
                self.database.note(f"jobs:{kind}")

    def cancel(self, job_id: int, *, reason: str = "cancelled") -> bool:
        """Whether it was still to be done. A worker that holds it learns at its next heartbeat."""
        values = {"state": JobState.CANCELLED, "reason": reason_text(reason), "finished_at": self.database.clock()}
        return self._change(_open(job_id), values)

    def revive(self, job_id: int) -> bool:
        """A dead job gets all its attempts again."""
        dead = (jobs.c.id == job_id) & (jobs.c.state == JobState.DEAD)
        now = self.database.clock()
        values = {"state": JobState.QUEUED, "attempts": 0, "deaths": 0, "run_at": now, "finished_at": None}
        return self._change(dead, values)

    # ---- doing it ----

    def claim(
        self,
        kind: str,
        worker: str,
        *,
        lease_s: float = LEASE_S,
        suspect: bool = False,
        environments: Sequence[str] | None = None,
    ) -> QueuedJob | None:
        """The next job of that kind, for this worker alone until the lease is over; None: nothing to do now. Suspects
        are claimed only by who asks for one, and then does nothing else. `environments`: those that the worker has;
        None: all."""
        now = self.database.clock()
        values: dict[str, Any] = {"job_kind": kind, "now": now, "holder": worker, "until": now + lease_s}
        statement = CLAIM if not suspect and environments is None else _claim(suspect, environments is not None)
        if environments is not None:
            values["environments"] = ["", *environments]
        began = self.database.steady()
        row = self.database.change_one(statement, values)
        if not row:
            return None
        job = QueuedJob(**row)
        while len(self._begun) >= MEASURED:
            self._begun.pop(next(iter(self._begun)), None)
        self._begun[job.id, job.fence] = began
        return job

    def heartbeat(self, job: QueuedJob, *, lease_s: float = LEASE_S) -> None:
        """Keeps the lease; raises LeaseLost when there is none to keep."""
        self._held(job, lease_until=self.database.clock() + lease_s)

    def check(self, job: QueuedJob) -> None:
        """Inside a transaction: raises LeaseLost when the job is no longer this holder's."""
        if self.holders([job.id]).get(job.id) != job.fence:
            raise LeaseLost(f"job {job.id} is no longer {job.worker}'s: drop its result")

    def finish(self, job: QueuedJob) -> None:
        """Done, once: raises LeaseLost when the job is no longer this holder's."""
        with self.database.begin() if job.share else contextlib.nullcontext():
            took_s, now = self._took_s(job), self.database.clock()
            # What others make of the two times is how long it took, also when the clock was set meanwhile.
            self._held(job, state=JobState.DONE, started_at=now - took_s, finished_at=now, lease_until=None)
            if job.share:
                self._move_turns(job, took_s - job.cost_s)
        self._begun.pop((job.id, job.fence), None)

    def fail(self, job: QueuedJob, reason: str, *, retry: bool = True) -> QueuedJob:
        """Queued again after a wait, or dead when the attempts are used up or a retry is no use."""
        with self.database.begin():
            self._held(job, **_after_failure(job, reason_text(reason), self.database.clock(), retry=retry))
            return self.get(job.id)

    def release(self, job: QueuedJob, *, yielded: bool = False) -> QueuedJob:
        """Given back at once by a worker that stops, or to make room for others (`yielded`): then it has had its time,
        and comes after them. The attempt does not count."""
        with self.database.begin():
            more: dict[str, Any] = {}
            if yielded:
                took_s = self._took_s(job)
                more = {"turn": job.turn + took_s, "yielded": job.yielded + 1, "run_at": self.database.clock()}
                self._move_turns(job, took_s)
            self._held(job, state=JobState.QUEUED, attempts=job.attempts - 1, lease_until=None, worker=None, **more)
            self.database.note(f"jobs:{job.kind}")
            return self.get(job.id)

    def postpone(self, job: QueuedJob, reason: str, *, wait_s: float) -> QueuedJob:
        """Queued again after a wait, for want of something that this arena needs. The attempt does not count."""
        with self.database.begin():
            after = {"run_at": self.database.clock() + wait_s, "reason": reason_text(reason), "worker": None}
            self._held(job, state=JobState.QUEUED, attempts=job.attempts - 1, lease_until=None, **after)
            return self.get(job.id)

    def sweep(self, *, now: float | None = None) -> Swept:
        """Takes jobs from workers whose lease is over, or was at the time given. Write what follows from it in the same
        `begin()` block."""
        now = self.database.clock() if now is None else now
        return self._take_back(_late(now), "stopped answering")

    def late(self, now: float) -> bool:
        """Whether there is anything to sweep."""
        return self.database.row(sa.select(jobs.c.id).where(_late(now)).limit(1)) is not None

    def mend_times(self) -> int:
        """After the clock was set back: bring leases and waits that would last until it is where it was into reach.
        Returns how many. Whoever has such a lease keeps it by its next heartbeat."""
        now = self.database.clock()
        running = (jobs.c.state == JobState.RUNNING) & (jobs.c.lease_until > now + FAR_S)
        queued = (jobs.c.state == JobState.QUEUED) & (jobs.c.run_at > now + FAR_S)
        with self.database.begin() as connection:
            held = connection.execute(jobs.update().where(running).values(lease_until=now + LEASE_S)).rowcount
            kinds = connection.execute(jobs.update().where(queued).values(run_at=now).returning(jobs.c.kind)).scalars()
            waiting = list(kinds)
            for kind in set(waiting):
                self.database.note(f"jobs:{kind}")
            return held + len(waiting)

    def release_all(self) -> Swept:
        """Queue all running jobs of processes on this database again. Call it only when all of those processes are
        gone. Jobs that only one of them could do are given up. Workers over HTTP keep theirs."""
        ours = jobs.c.worker.is_(None) | ~jobs.c.worker.startswith(REMOTE)
        swept = self._take_back((jobs.c.state == JobState.RUNNING) & ours, "is gone")
        stray = (jobs.c.state == JobState.QUEUED) & (jobs.c.place != "")
        given_up = {"state": JobState.DEAD, "reason": "its process is gone", "finished_at": self.database.clock()}
        with self.database.begin() as connection:
            ids = list(connection.execute(jobs.update().where(stray).values(given_up).returning(jobs.c.id)).scalars())
            dead = tuple(self.get(job_id) for job_id in ids)
        return Swept(requeued=swept.requeued, dead=swept.dead + dead)

    def _take_back(self, which: sa.ColumnElement[bool], what: str) -> Swept:
        now = self.database.clock()
        taken: list[QueuedJob] = []
        with self.database.begin():
            for row in self.database.rows(_JOBS.where(which).order_by(jobs.c.id).with_for_update(skip_locked=True)):
                job = QueuedJob(**row)
                self._held(job, **_after_death(job, f"worker {job.worker} {what}", now))
                self.database.note(f"jobs:{job.kind}")
                taken.append(self.get(job.id))
        return Swept.of(taken)

    # ---- looking ----

    def due(self, worker: str = "", *, suspects: bool = False) -> list[str]:
        """Kinds that have a job for this worker now."""
        query = sa.select(jobs.c.kind).where(jobs.c.state == JobState.QUEUED, jobs.c.run_at <= self.database.clock())
        query = query.where(_calm(not suspects), jobs.c.place.in_(["", worker]))
        return [row["kind"] for row in self.database.rows(query.distinct())]

    def holders(self, job_ids: Sequence[int]) -> dict[int, int]:
        """The current fence of those jobs that run."""
        query = sa.select(jobs.c.id, jobs.c.fence).where(jobs.c.id.in_(list(job_ids)))
        rows = self.database.rows(query.where(jobs.c.state == JobState.RUNNING))
        return {row["id"]: row["fence"] for row in rows}

    def waiting(self, kinds: Sequence[str], *, share: str | None = None) -> int:
        which = (jobs.c.state == JobState.QUEUED) & jobs.c.kind.in_(list(kinds))
        return self._count(which if share is None else which & (jobs.c.share == share))

    def waiting_now(self, kinds: Sequence[str]) -> int:
        """How many could be claimed at this moment."""
        due = (jobs.c.state == JobState.QUEUED) & (jobs.c.run_at <= self.database.clock())
        return self._count(due & jobs.c.kind.in_(list(kinds)))

    def at_work(self, kind: str) -> int:
        """How many of that kind run now, anywhere."""
        return self._count(_running(kind, self.database.clock()))

    def head(self, kind: str) -> QueuedJob | None:
        """The job that would be claimed next."""
        row = self.database.row(_HEAD, {"job_kind": kind, "now": self.database.clock(), "holder": ""})
        return QueuedJob(**row) if row else None

    def running(self, *, limit: int = 100) -> list[QueuedJob]:
        query = _JOBS.where(jobs.c.state == JobState.RUNNING).order_by(jobs.c.id).limit(limit)
        return [QueuedJob(**row) for row in self.database.rows(query)]

    def held_by(self, worker: str) -> list[QueuedJob]:
        query = _JOBS.where(jobs.c.state == JobState.RUNNING, jobs.c.worker == worker)
        return [QueuedJob(**row) for row in self.database.rows(query)]

    def get(self, job_id: int) -> QueuedJob:
        row = self.database.row(_JOBS.where(jobs.c.id == job_id))
        if row is None:
            raise NotFound(f"no job {job_id}")
        return QueuedJob(**row)

    def find(self, key: str) -> QueuedJob | None:
        row = self.database.row(_JOBS.where(jobs.c.key == key))
        return QueuedJob(**row) if row else None

    def dead(self, *, limit: int = 100) -> list[QueuedJob]:
        """The dead letters, newest first."""
        query = _JOBS.where(jobs.c.state == JobState.DEAD).order_by(jobs.c.id.desc()).limit(limit)
        return [QueuedJob(**row) for row in self.database.rows(query)]

    def oldest_s(self) -> dict[str, float]:
        """How long the first job of each kind that is due has waited."""
        now = self.database.clock()
        query = sa.select(jobs.c.kind, sa.func.min(jobs.c.run_at).label("since"))
        query = query.where(jobs.c.state == JobState.QUEUED, jobs.c.run_at <= now).group_by(jobs.c.kind)
        return {row["kind"]: now - row["since"] for row in self.database.rows(query)}

    def counts(self) -> dict[tuple[str, JobState], int]:
        query = sa.select(jobs.c.kind, jobs.c.state, sa.func.count().label("n")).group_by(jobs.c.state, jobs.c.kind)
        return {(row["kind"], row["state"]): row["n"] for row in self.database.rows(query)}

    def place(self, job_id: int) -> QueuePlace:
        job, now = self.get(job_id), self.database.clock()
        if job.state not in (JobState.QUEUED, JobState.RUNNING):
            return QueuePlace(position=0, eta_s=0.0)
        pace_s = self._pace_s(job.kind)
        if job.state is JobState.RUNNING:
            left = None if pace_s is None else _left_s(job.cost_s or pace_s, now - (job.started_at or now))
            return QueuePlace(position=0, eta_s=left)
        row = self.database.row(_LINE.where(_ahead(job)))
        ahead, known_s, unknown = (row["n"], row["cost_s"] or 0.0, row["unknown"] or 0) if row else (0, 0.0, 0)
        if pace_s is None:
            return QueuePlace(position=ahead, eta_s=None)
        at_work = self.database.rows(sa.select(jobs.c.cost_s, jobs.c.started_at).where(_running(job.kind, now)))
        left_s = sum(_left_s(one["cost_s"] or pace_s, now - one["started_at"]) for one in at_work)
        slots = self.slots.get(job.kind) or max(1, len(at_work))
        free = max(0, slots - len(at_work))
        wait_s = 0.0 if ahead < free else (left_s + known_s + unknown * pace_s) / slots
        return QueuePlace(position=ahead, eta_s=max(job.run_at - now, wait_s) + (job.cost_s or pace_s))

    def prune(self, *, older_than_s: float, keep: int | None = None) -> int:
        """Deletes jobs that were done or cancelled so long ago, or lie further back than the last `keep`; dead ones
        stay. A pruned key may be used again."""
        over = jobs.c.state.in_([JobState.DONE, JobState.CANCELLED])
        old = jobs.c.finished_at < self.database.clock() - older_than_s
        if keep is not None:
            old |= jobs.c.id <= sa.select(sa.func.max(jobs.c.id) - keep).scalar_subquery()
        with self.database.begin() as connection:
            return connection.execute(jobs.delete().where(over & old)).rowcount

    def _held(self, job: QueuedJob, **values: Any) -> None:
        values |= {"held_id": job.id, "held_fence": job.fence}
        with self.database.single() as connection:
            if connection.execute(_HELD, values).rowcount != 1:
                raise LeaseLost(f"job {job.id} is no longer {job.worker}'s: drop its result")

    def _change(self, which: sa.ColumnElement[bool], values: dict[str, Any]) -> bool:
        """Change one job. Returns False if there is no such job."""
        with self.database.begin() as connection:
            kind = connection.execute(jobs.update().where(which).values(values).returning(jobs.c.kind)).scalar()
            if kind is not None:
                self.database.note(f"jobs:{kind}")
            return kind is not None

    # ---- turns ----

    def _turn(self, kind: str, share: str, part: str, now: float) -> dict[str, Any]:
        """Inside a transaction. The columns of a new job that say when it is its turn."""
        cost_s = max(MIN_COST_S, self._pace_of(kind, share) or self._pace_s(kind) or UNKNOWN_COST_S)
        mine = (jobs.c.kind == kind) & (jobs.c.share == share)
        active = self.database.rows(
            sa.select(jobs.c.part, jobs.c.turn, jobs.c.cost_s, jobs.c.state, jobs.c.started_at).where(
                mine, jobs.c.state.in_([JobState.QUEUED, JobState.RUNNING])
            )
        )
        others = len({row["part"] for row in active} - {part})
        # Each of the share's users pays for all of them: together they have one share's pace.
        turn = self._virtual_time(kind) + others * cost_s
        for row in active:
            if row["part"] == part:
                began = row["started_at"] if row["state"] is JobState.RUNNING else None
                took_s = max(row["cost_s"], 0.0 if began is None else now - began)
                turn = max(turn, row["turn"] + took_s * (others + 1))
        took = (jobs.c.turn + jobs.c.finished_at - jobs.c.started_at).label("end")
        over = sa.select(took).where(mine, jobs.c.part == part, jobs.c.state == JobState.DONE)
        last = self.database.row(over.order_by(jobs.c.turn.desc()).limit(1))
        if last is not None:
            turn = max(turn, last["end"])
        return {"share": share, "part": part, "turn": turn, "cost_s": cost_s}

    def _virtual_time(self, kind: str) -> float:
        """The latest turn that has begun; the next one when none runs; the end of all when nobody waits either."""
        begun = sa.select(sa.func.max(jobs.c.turn).label("turn"))
        row = self.database.row(begun.where(jobs.c.state == JobState.RUNNING, jobs.c.kind == kind))
        if row is None or row["turn"] is None:
            queued = sa.select(sa.func.min(jobs.c.turn).label("turn"))
            row = self.database.row(queued.where(jobs.c.state == JobState.QUEUED, jobs.c.kind == kind))
        if row is None or row["turn"] is None:
            recent = _ended(kind, (jobs.c.turn + jobs.c.finished_at - jobs.c.started_at).label("turn"))
            row = self.database.row(sa.select(sa.func.max(recent.c.turn).label("turn")))
        return (row["turn"] if row else None) or 0.0

    def _move_turns(self, job: QueuedJob, by_s: float) -> None:
        """Inside a transaction: the share has had so much more, or less, than it was booked for."""
        if not job.share or abs(by_s) < WORTH_S:
            return
        moved = jobs.c.turn + by_s
        values = {"turn": sa.case((moved < job.turn, job.turn), else_=moved)}
        queued = (jobs.c.state == JobState.QUEUED) & (jobs.c.kind == job.kind)
        with self.database.begin() as connection:
            of = queued & (jobs.c.share == job.share) & (jobs.c.part == job.part)
            connection.execute(jobs.update().where(of).values(values))

    def _took_s(self, job: QueuedJob) -> float:
        began = self._begun.get((job.id, job.fence))
        if began is not None:
            return self.database.steady() - began
        now = self.database.clock()  # another process gave it out
        return max(0.0, now - (job.started_at or now))

    def _pace_of(self, kind: str, share: str) -> float | None:
        """What the share's latest jobs took, on average."""
        recent = sa.select((jobs.c.finished_at - jobs.c.started_at).label("took_s"))
        recent = recent.where(jobs.c.share == share, jobs.c.kind == kind, jobs.c.state == JobState.DONE)
        recent = recent.order_by(jobs.c.turn.desc()).limit(RECENT_OF_SHARE).subquery()
        row = self.database.row(sa.select(sa.func.avg(recent.c.took_s).label("pace_s")))
        return row["pace_s"] if row else None

    def _pace_s(self, kind: str) -> float | None:
        took = (jobs.c.finished_at - jobs.c.started_at).label("took_s")
        recent = _ended(kind, took)
        row = self.database.row(sa.select(sa.func.avg(recent.c.took_s).label("pace_s")))
        return row["pace_s"] if row else None

    def _count(self, which: sa.ColumnElement[bool]) -> int:
        row = self.database.row(sa.select(sa.func.count().label("n")).select_from(jobs).where(which))
        return row["n"] if row else 0


_JOBS = sa.select(*columns(jobs, QueuedJob))

_HELD = jobs.update().where(
    jobs.c.id == sa.bindparam("held_id"),
    jobs.c.fence == sa.bindparam("held_fence"),
    jobs.c.state == sa.literal(JobState.RUNNING, jobs.c.state.type),
)
"""Sets what it is executed with, if the claim is still the current one."""


def _late(now: float) -> sa.ColumnElement[bool]:
    return (jobs.c.state == JobState.RUNNING) & (jobs.c.lease_until < now)


def _calm(calm: bool) -> sa.ColumnElement[bool]:
    return jobs.c.deaths < sa.literal_column(str(SUSPECT)) if calm else jobs.c.deaths >= sa.literal_column(str(SUSPECT))


def _first(*what: sa.ColumnElement[Any], suspect: bool = False, filtered: bool = False) -> sa.Select[Any]:
    found = (
        sa.select(*what)
        .where(jobs.c.state == JobState.QUEUED, jobs.c.kind == sa.bindparam("job_kind"))
        .where(jobs.c.run_at <= sa.bindparam("now"), _calm(not suspect))
        .where((jobs.c.place == "") | (jobs.c.place == sa.bindparam("holder")))
        .order_by(jobs.c.priority.desc(), jobs.c.turn, jobs.c.id)
        .limit(1)
    )
    return found.where(jobs.c.env_id.in_(sa.bindparam("environments", expanding=True))) if filtered else found


_HEAD = _first(*columns(jobs, QueuedJob))
_LINE = sa.select(
    sa.func.count().label("n"),
    sa.func.sum(jobs.c.cost_s).label("cost_s"),
    sa.func.sum(sa.case((jobs.c.cost_s == 0, 1), else_=0)).label("unknown"),
)


@functools.cache
def _claim(suspect: bool, filtered: bool) -> sa.Executable:
    """One statement, so that nobody comes between the look and the claim."""
    first = _first(jobs.c.id, suspect=suspect, filtered=filtered)
    return (
        jobs.update()
        .where(jobs.c.id == first.with_for_update(skip_locked=True).scalar_subquery())
        .values(
            state=JobState.RUNNING,
            worker=sa.bindparam("holder"),
            lease_until=sa.bindparam("until"),
            started_at=sa.bindparam("now"),
            attempts=jobs.c.attempts + 1,
            fence=jobs.c.fence + 1,
        )
        .returning(*columns(jobs, QueuedJob))
    )


CLAIM = _claim(False, False)


def _new(
    kind: str, payload: dict[str, Any], key: str | None, priority: int, now: float, delay_s: float, max_attempts: int
) -> dict[str, Any]:
    return {
        "kind": name_text(kind, "a job's kind", max_chars=32),
        "payload": payload,
        "priority": priority,
        "key": None if key is None else name_text(key, "a job's key"),
        "state": JobState.QUEUED,
        "attempts": 0,
        "max_attempts": max_attempts,
        "fence": 0,
        "reason": "",
        "trace": trace.traceparent(),
        "run_at": now + delay_s,
        "created_at": now,
    }


def _after_failure(job: QueuedJob, reason: str, now: float, *, retry: bool) -> dict[str, Any]:
    if retry and job.attempts < job.max_attempts:
        wait_s = backoff_s(job.attempts)
        return {"state": JobState.QUEUED, "reason": reason, "run_at": now + wait_s, "lease_until": None}
    return {"state": JobState.DEAD, "reason": reason, "finished_at": now, "lease_until": None}


def _after_death(job: QueuedJob, reason: str, now: float) -> dict[str, Any]:
    deaths = job.deaths + 1
    values: dict[str, Any] = {"deaths": deaths, "lease_until": None, "attempts": max(0, job.attempts - 1)}
    if job.place or deaths >= MAX_DEATHS:
        return values | {"state": JobState.DEAD, "reason": f"{reason} (lost {deaths} times)", "finished_at": now}
    return values | {"state": JobState.QUEUED, "reason": reason, "run_at": now + death_wait_s(deaths)}


def _open(job_id: int) -> sa.ColumnElement[bool]:
    return (jobs.c.id == job_id) & jobs.c.state.in_([JobState.QUEUED, JobState.RUNNING])


def _ahead(job: QueuedJob) -> sa.ColumnElement[bool]:
    sooner = (jobs.c.turn < job.turn) | ((jobs.c.turn == job.turn) & (jobs.c.id < job.id))
    sooner = (jobs.c.priority > job.priority) | ((jobs.c.priority == job.priority) & sooner)
    return (jobs.c.state == JobState.QUEUED) & (jobs.c.kind == job.kind) & sooner


def _ended(kind: str, what: sa.Label[Any]) -> sa.Subquery:
    """Select one column of the latest finished jobs of that kind."""
    recent = sa.select(what).where(jobs.c.kind == kind, jobs.c.finished_at.is_not(None), jobs.c.state == JobState.DONE)
    return recent.order_by(jobs.c.finished_at.desc()).limit(RECENT).subquery()


def _left_s(cost_s: float, took_s: float) -> float:
    """What takes longer than expected will take about as long again."""
    return cost_s - took_s if took_s < cost_s else took_s


def share_of(owner: str, *, address: str | None = None, client_id: str | None = None) -> tuple[str, str]:
    """The share and the part of it that a submission's jobs are. With a key (`address` is None): the owner's. Without:
    an address is one share, whatever names are typed there, and the client's ids are its parts. Both are kept as
    hashes: the queue needs to tell them apart, not to know them."""
    if address is None:
        return f"owner:{_hash(owner)}", ""
    return f"address:{_hash(address)}", _hash(client_id) if client_id else ""


def _hash(text: str) -> str:
    return hashlib.sha256(f"harena share {text}".encode("utf-8", "replace")).hexdigest()[:32]


def _running(kind: str, now: float) -> sa.ColumnElement[bool]:
    return (jobs.c.state == JobState.RUNNING) & (jobs.c.kind == kind) & (jobs.c.lease_until >= now)
