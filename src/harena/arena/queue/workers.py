"""Threads that do the jobs of the queue: claim, work, commit.

Guarantees: what a job decides is written in one transaction with its end, so it counts once, whenever the process dies;
a job that was cancelled is told within a second; one that the platform failed at is tried again after a wait, and given
up with a reason after its last attempt; a clean stop gives back what it could not finish. Kinds that share the slots of
a lane each have one while they have work; a job that holds a slot for long yields it to a share or a kind that has
none, and is done again later, with twice the time before it must yield once more. A suspect, which several workers
were lost with, runs while nothing else does in this process. Does not know what the jobs are: handlers do. One
file: slots, turns and leases share one lock, and are read together.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harena import trace
from harena.arena.db.database import Changes, log_failure, touches
from harena.arena.db.files import FilesUnavailable
from harena.arena.db.jobs import LEASE_S, Queue, QueuedJob, Swept
from harena.arena.db.models import LeaseLost, ReadOnly, StorageFull, StoreError
from harena.arena.db.store import Store
from harena.errors import BoxError, HarenaError, Retry

LOOK_S = 0.5
"""How often the database is asked for what others did: jobs added, jobs cancelled, waits that are over."""
HEARTBEAT_S = LEASE_S / 3
SWEEP_S = 1.0
"""How soon after the end of its lease a lost worker's job is given out again."""
JUMP_S = 10.0
"""A wall clock that moves so much more or less than time passes was set. Whoever lives renews its lease within
LEASE_S; those who do not are swept after that."""
SUSPECT_PATIENCE_S = 10.0
"""A suspect waits so long for a moment without other work; then this process makes one."""
PRUNE_S = 600.0
KEEP_S = 7 * 86400.0
KEEP_JOBS = KEEP_EVENTS = 100_000
"""What is over is forgotten after a week, or when so many came after it."""
ERROR_WAIT_S = 1.0
AWAY_WAIT_S = 5.0
"""A job waits so long before it asks again for a store of files that was away; that is nobody's attempt."""
QUANTUM_S = 4.0
"""A job has so long before it may have to yield; twice as long each time that it did, so that it ends."""
PATIENCE_S = 1.5
"""A job waits so long before another must yield to it: most slots are free again by then."""
_log = logging.getLogger("harena.arena")

Commit = Callable[[], object]
"""Writes what a job decided. Run inside one transaction with the job's end."""


class Handler(Protocol):
    def __call__(self, job: QueuedJob, cancelled: Callable[[], bool], /) -> Commit:
        """Does the work outside of any transaction. What is raised is the platform's fault: a BoxError says whether to
        try again, any other HarenaError but a StoreError will not get better. When `cancelled` turns true it should
        raise soon, whatever it likes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLane:
    """Kinds of jobs that share slots."""

    kinds: tuple[str, ...]
    slots: int
    first: str = ""
    """A kind that the first free slot goes to while none of it runs; with a single slot, every second one."""
    firm: frozenset[str] = frozenset()
    """Kinds that never yield: they have all slots but one at most."""

    def most(self, kind: str) -> int:
        return max(1, self.slots - 1) if kind in self.firm else self.slots


class TryAgain(HarenaError):
    """Raised by a handler to have its job tried again later."""


@dataclass(slots=True, eq=False)
class _HeldJob:
    job: QueuedJob
    beaten_at: float
    lost: threading.Event = field(default_factory=threading.Event)
    """Cancelled, or somebody else's by now: the result will be dropped."""
    yields: threading.Event = field(default_factory=threading.Event)
    """To be given back, for others."""
    began_at: float = field(default_factory=time.monotonic)

    @property
    def must_yield(self) -> bool:
        """Whether it has had its time, if others wait."""
        return time.monotonic() - self.began_at >= QUANTUM_S * 2.0 ** min(self.job.yielded, 20)


class JobWorkers:
    def __init__(
        self,
        store: Store,
        queue: Queue,
        *,
        handlers: Mapping[str, Handler],
        slots: Mapping[str, int] | None = None,
        lanes: Sequence[WorkerLane] = (),
        on_dead: Callable[[QueuedJob], object],
        on_requeued: Callable[[QueuedJob], object] = lambda job: None,
        alone: bool = False,
        on_call: bool = False,
    ) -> None:
        """`slots`: jobs of a kind at a time, of kinds that are in none of the `lanes`. `on_dead` and `on_requeued` are
        called inside the transaction that gives a job up, or back to the queue. `alone`: no other process works here,
        so what is running at the start has lost its worker and need not wait for its lease. `on_call`: jobs are done
        only by who calls `run_due`."""
        self._store = store
        self._queue = queue
        self._handlers = handlers
        self._on_call = on_call
        self.lanes = [*lanes, *(WorkerLane(kinds=(kind,), slots=count) for kind, count in (slots or {}).items())]
        self._busy: Counter[str] = Counter()
        """Slots that jobs of a kind have, or are looked for for."""
        self._last: dict[WorkerLane, str] = {}
        """The kind that a slot of the lane went to last."""
        self._wanted: dict[WorkerLane, str] = {}
        """The kind that a job yields to."""
        for lane in self.lanes:
            self._queue.slots |= {kind: lane.most(kind) for kind in lane.kinds}
        self._on_dead = on_dead
        self._on_requeued = on_requeued
        self._alone = alone
        self._suspects: set[str] = set()
        """Kinds that have a suspect to be run."""
        self._suspected_at = 0.0
        self._quarantined: _HeldJob | None = None
        """The suspect that runs now, alone."""
        self.name = f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._changed = threading.Condition()
        self._due: set[str] = set()
        """Kinds that may have work."""
        self._held: set[_HeldJob] = set()
        self._stopping = self._hurry = False
        self._bell = threading.Event()
        self._offset_s = float("inf")  # at the start it is as if the clock had just been set back: it may have been
        self._patient_until = 0.0
        self._threads: list[threading.Thread] = []
        self._keeper: threading.Thread | None = None
        self._stop_listening: Callable[[], None] = lambda: None

    # ---- start and stop ----

    def start(self) -> None:
        if self._alone:
            with self._store.begin():
                self.follow(self._queue.release_all())
        self._stop_listening = self._store.database.on_commit(self._committed)
        for lane in self.lanes:
            for number in range(0 if self._on_call else lane.slots):
                name = f"harena-{lane.kinds[0]}-{number}"
                self._threads.append(threading.Thread(target=self._work, args=(lane,), name=name, daemon=True))
        self._keeper = threading.Thread(target=self._keep, name="harena-jobs", daemon=True)
        for thread in (*self._threads, self._keeper):
            thread.start()
        self.wake()

    def stop(self, grace_s: float = 10.0) -> None:
        """Claims nothing more, waits for what runs, then calls the rest off and gives it back. Again does nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held or self._hurry, grace_s)
            self._hurry = True
        for thread in self._threads:
            thread.join()
        self._stop_listening()
        self._bell.set()
        if self._keeper is not None:
            self._keeper.join()

    def hurry(self) -> None:
        """What runs is called off and given back, also during `stop`."""
        with self._changed:
            self._stopping = self._hurry = True
            self._changed.notify_all()

    def wake(self) -> None:
        """There may be work of any kind."""
        self._wake(self._handlers)

    @property
    def running(self) -> list[QueuedJob]:
        with self._changed:
            return [held.job for held in self._held]

    def _committed(self, changes: Changes) -> None:
        kinds = [kind for kind in self._handlers if touches(changes, f"jobs:{kind}")]
        if kinds:
            self._wake(kinds)
            self._bell.set()  # one of ours may have been cancelled

    def _wake(self, kinds: Mapping[str, object] | list[str]) -> None:
        with self._changed:
            self._due.update(kinds)
            self._changed.notify_all()

    # ---- a thread for each slot ----

    def _work(self, lane: WorkerLane) -> None:
        while (held := self._next(lane)) is not None:
            try:
                self._do(held)
            except Exception as error:
                log_failure(_log, f"job {held.job.id} could not be ended; its lease will run out", error)
                time.sleep(ERROR_WAIT_S)
            finally:
                self._drop(held)

    def _drop(self, held: _HeldJob) -> None:
        with self._changed:
            self._held.discard(held)
            self._busy[held.job.kind] -= 1
            if self._quarantined is held:
                self._quarantined = None
            self._changed.notify_all()

    def _next(self, lane: WorkerLane) -> _HeldJob | None:
        """Waits for a job. None: no more, we stop."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._turn(lane)[0])
                if self._stopping:
                    return None
                kind, suspect = self._take_turn(lane)
            held = self._claim(lane, kind, suspect)
            if held is not None:
                return held

    def _take_turn(self, lane: WorkerLane) -> tuple[str, bool]:
        kind, suspect = self._turn(lane)
        (self._suspects if suspect else self._due).discard(kind)  # before the look: what comes after it sets it again
        if kind:
            self._busy[kind] += 1
        return kind, suspect

    def _claim(self, lane: WorkerLane, kind: str, suspect: bool) -> _HeldJob | None:
        job: QueuedJob | None = None
        try:
            job = self._queue.claim(kind, self.name, suspect=suspect)
        except Exception as error:
            log_failure(_log, "no job could be claimed; will try again", error)
            time.sleep(ERROR_WAIT_S)
        with self._changed:
            if self._wanted.get(lane) == kind:
                del self._wanted[lane]
            if job is None:
                self._busy[kind] -= 1
                self._changed.notify_all()
                return None
            self._last[lane] = kind
            held = _HeldJob(job, time.monotonic())
            self._held.add(held)
            if suspect:
                self._quarantined = held
                _log.warning("job %s (%s) runs alone: %d workers were lost with it", job.id, kind, job.deaths)
            self._due.add(kind)  # where one was, others may be
            self._changed.notify_all()
            return held

    def run_due(self, lane: WorkerLane) -> int:
        """Do jobs of the lane in the calling thread until none is due; returns how many. For who is called when there
        may be work, instead of waiting for it: then `start` is told of no slots."""
        done = 0
        self._wake(list(lane.kinds))
        while True:
            with self._changed:
                kind, suspect = self._take_turn(lane) if not self._stopping else ("", False)
            if not kind:
                return done
            held = self._claim(lane, kind, suspect)
            if held is None:
                continue
            try:
                self._do(held)
                done += 1
            finally:
                self._drop(held)

    def _turn(self, lane: WorkerLane) -> tuple[str, bool]:
        """The kind that a free slot is for, and whether it is for a suspect; empty: there is nothing to do."""
        if self._quarantined is not None:
            return "", False
        waited_s = time.monotonic() - self._suspected_at if self._suspects else 0.0
        able = [kind for kind in lane.kinds if kind in self._due and self._busy[kind] < lane.most(kind)]
        if not able or waited_s > SUSPECT_PATIENCE_S:
            return self._suspect_turn(lane), True
        last, wanted = self._last.get(lane, ""), self._wanted.get(lane, "")
        if wanted in able:
            return wanted, False
        if lane.first in able and not self._busy[lane.first] and (lane.slots > 1 or last != lane.first):
            return lane.first, False
        others = [kind for kind in able if kind != lane.first]
        # None of theirs runs first, then the one whose last turn is longest ago.
        return min(others, key=lambda kind: (self._busy[kind] > 0, kind == last), default=lane.first), False

    def _suspect_turn(self, lane: WorkerLane) -> str:
        idle = not self._held and not any(self._busy.values())
        return next((kind for kind in lane.kinds if kind in self._suspects), "") if idle else ""

    def _do(self, held: _HeldJob) -> None:
        job = held.job
        what = {"job": job.id, "kind": job.kind, "attempt": job.attempts}
        with trace.span(f"job {job.kind}", parent=trace.parse(job.trace), **what) as span:
            self._do_traced(held, span, what)

    def _do_traced(self, held: _HeldJob, span: trace.Span, what: dict[str, int | str]) -> None:
        job, started = held.job, time.monotonic()
        _log.info("job %s (%s) started", job.id, job.kind, extra=what)
        try:
            commit = self._handlers[job.kind](job, lambda: held.lost.is_set() or held.yields.is_set() or self._hurry)
            self._write(held, lambda: self._finish(job, commit))
            _log.info("job %s (%s) done in %.3f s", job.id, job.kind, time.monotonic() - started, extra=what)
        except LeaseLost:
            _log.info("job %s (%s) was cancelled or taken over", job.id, job.kind, extra=what)
        except Exception as error:
            span.error = type(error).__name__
            self._failed(held, error)

    def _finish(self, job: QueuedJob, commit: Commit) -> None:
        self._queue.finish(job)
        commit()

    def _write(self, held: _HeldJob, write: Callable[[], object]) -> None:
        """Run it in a transaction; while the database takes none, keep the job and try again, so that what was worked
        out is not lost."""
        while True:
            try:
                with self._store.begin():
                    write()
                return
            except StoreError as error:
                if type(error) not in (StoreError, ReadOnly, StorageFull) or held.lost.is_set() or self._stopping:
                    raise
                log_failure(_log, f"job {held.job.id} could not be ended; will try again", error)
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, ERROR_WAIT_S)

    def _failed(self, held: _HeldJob, error: Exception) -> None:
        job = held.job
        if held.lost.is_set():
            return
        try:
            self._write(held, lambda: self._give_back(held, error))
        except LeaseLost:
            _log.info("job %s (%s) was cancelled or taken over", job.id, job.kind)

    def _give_back(self, held: _HeldJob, error: Exception) -> None:
        """Inside a transaction."""
        job = held.job
        if self._hurry or held.yields.is_set():
            self._queue.release(job, yielded=not self._hurry)
            self._tell(self._on_requeued, job)
            return
        if isinstance(error, FilesUnavailable | ReadOnly | StorageFull):
            _log.warning("job %s (%s) waits: %s", job.id, job.kind, error)
            self.follow(Swept.of([self._queue.postpone(job, str(error), wait_s=AWAY_WAIT_S)]))
            return
        again = may_try_again(error)
        level = logging.WARNING if isinstance(error, HarenaError) else logging.ERROR
        trace = None if isinstance(error, StoreError) else error
        _log.log(level, "job %s (%s) failed: %s", job.id, job.kind, error, exc_info=trace)
        self.follow(Swept.of([self._queue.fail(job, _in_words(error), retry=again)]))

    # ---- what follows for those the jobs were about ----

    def follow(self, swept: Swept) -> None:
        """Inside the transaction that ended or requeued them."""
        for job in swept.requeued:
            self._tell(self._on_requeued, job)
        for job in swept.dead:
            self._tell(self._on_dead, job)

    def _tell(self, what: Callable[[QueuedJob], object], job: QueuedJob) -> None:
        try:
            what(job)
        except HarenaError:  # it has written nothing, and the job's own end must be kept
            _log.exception("what follows from the end of job %s could not be written", job.id)

    # ---- the thread that looks after them ----

    def _keep(self) -> None:
        swept_at = pruned_at = -PRUNE_S
        while not (self._stopping and not self._held):
            self._bell.wait(LOOK_S)
            self._bell.clear()
            try:
                seen_at = self._watch_clock()
                self._look()
                now = time.monotonic()
                if now - swept_at > SWEEP_S and now >= self._patient_until:
                    swept_at = now
                    self._sweep(seen_at)
                if now - pruned_at > PRUNE_S:
                    pruned_at = now
                    self._prune()
            except Exception as error:
                log_failure(_log, "jobs could not be looked after; will try again", error)
                time.sleep(ERROR_WAIT_S)

    def _watch_clock(self) -> float:
        """Return what it shows."""
        now, shown = time.monotonic(), self._store.clock()
        offset_s = shown - now
        ahead_s = offset_s - self._offset_s
        if ahead_s > JUMP_S:
            _log.warning(
                "the clock went forward by %.0f s: other workers have %.0f s to renew leases", ahead_s, LEASE_S
            )
            self._patient_until = now + LEASE_S
        elif ahead_s < -JUMP_S and (mended := self._queue.mend_times()):
            _log.warning("the clock was set back: the leases and waits of %d jobs were shortened", mended)
        self._offset_s = offset_s
        return shown

    def _look(self) -> None:
        with self._changed:
            held = list(self._held)
        if held:
            current = self._queue.holders([one.job.id for one in held])
            for one in held:
                if current.get(one.job.id) != one.job.fence:
                    one.lost.set()
                elif time.monotonic() - one.beaten_at > HEARTBEAT_S:
                    self._beat(one)
        self._look_for_suspects()
        if due := self._queue.due(self.name):
            self._wake([kind for kind in due if kind in self._handlers])
            for lane in self.lanes:
                self._make_room(lane, set(due))

    def _look_for_suspects(self) -> None:
        found = {kind for kind in self._queue.due(self.name, suspects=True) if kind in self._handlers}
        with self._changed:
            if found and not self._suspects:
                self._suspected_at = time.monotonic()
            self._suspects = found
            if found:
                self._changed.notify_all()

    def _make_room(self, lane: WorkerLane, due: set[str]) -> None:
        """Has a job yield where one that waits has waited enough, and its kind or its share has no slot."""
        with self._changed:
            held = [one for one in self._held if one.job.kind in lane.kinds]
        # Not asked whether a slot is free: short jobs free one again and again, and take it at once.
        if any(one.yields.is_set() or one.lost.is_set() for one in held):
            return
        now = self._store.clock()
        for kind in lane.kinds:
            head = self._queue.head(kind) if kind in due else None
            if head is None or now - head.run_at < PATIENCE_S:
                continue
            victims = [one for one in held if one.must_yield and _yields_to(one.job, head, held, lane)]
            if victims:
                shares = Counter(one.job.share for one in held)
                # Of whoever has most slots; the job that loses least.
                victim = max(victims, key=lambda one: (shares[one.job.share], one.began_at))
                _log.info("job %s (%s) yields to job %s (%s)", victim.job.id, victim.job.kind, head.id, head.kind)
                with self._changed:
                    self._wanted[lane] = kind
                victim.yields.set()
                return

    def _beat(self, held: _HeldJob) -> None:
        try:
            self._queue.heartbeat(held.job)
            held.beaten_at = time.monotonic()
        except LeaseLost:
            held.lost.set()

    def _sweep(self, now: float) -> None:
        """`now` is from before the look at what is ours: a job that comes after it has a later lease."""
        if not self._queue.late(now):
            return
        with self._changed:
            held = list(self._held)
        for one in held:
            self._beat(one)  # a machine that slept has let its own leases run out
        with self._store.begin():
            self.follow(self._queue.sweep(now=now))

    def _prune(self) -> None:
        jobs = self._queue.prune(older_than_s=KEEP_S, keep=KEEP_JOBS)
        events = self._store.events.prune(older_than_s=KEEP_S, keep=KEEP_EVENTS)
        if jobs or events:
            _log.info("pruned %d old jobs and %d old events", jobs, events)


def _yields_to(one: QueuedJob, head: QueuedJob, held: Sequence[_HeldJob], lane: WorkerLane) -> bool:
    running = Counter(other.job.kind for other in held)
    if one.kind in lane.firm:
        return False
    if one.kind != head.kind:
        alone = one.kind == lane.first and running[lane.first] == 1 and lane.slots > 1
        return not running[head.kind] and not alone
    # Of the same kind: to a share that has nothing, and has had no more.
    shares = {other.job.share for other in held if other.job.kind == head.kind}
    return head.share not in shares and head.turn <= one.turn


def may_try_again(error: Exception) -> bool:
    """A BoxError says so itself. What was refused with reason stays refused; a database or disk that fails, or a bug,
    may not be there the next time."""
    if isinstance(error, BoxError):
        return error.retry is not Retry.NEVER
    return not isinstance(error, HarenaError) or isinstance(error, StoreError | TryAgain)


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, HarenaError) else f"{type(error).__name__}: {error}"
