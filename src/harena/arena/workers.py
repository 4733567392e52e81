"""Threads that do the jobs of the queue: claim, work, commit.

Guarantees: what a job decides is written in one transaction with its end, so it counts once, whenever the process dies;
a job that was cancelled is told within a second; one that the platform failed at is tried again after a wait, and given
up with a reason after its last attempt; a clean stop gives back what it could not finish. Does not know what the jobs
are: handlers do.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harena.arena.database import Changes, log_failure
from harena.arena.jobs import LEASE_S, Job, Queue, Swept
from harena.arena.models import LeaseLost, StoreError
from harena.arena.store import Store
from harena.errors import BoxError, HarenaError, Retry

LOOK_S = 0.5
"""How often the database is asked for what others did: jobs added, jobs cancelled, waits that are over."""
HEARTBEAT_S = LEASE_S / 3
SWEEP_S = LEASE_S / 2
PRUNE_S = 600.0
KEEP_S = 7 * 86400.0
KEEP_JOBS = KEEP_EVENTS = 100_000
"""What is over is forgotten after a week, or when so many came after it."""
ERROR_WAIT_S = 1.0
_log = logging.getLogger("harena.arena")

Commit = Callable[[], object]
"""Writes what a job decided. Run inside one transaction with the job's end."""


class Handler(Protocol):
    def __call__(self, job: Job, cancelled: Callable[[], bool], /) -> Commit:
        """Does the work outside of any transaction. What is raised is the platform's fault: a BoxError says whether to
        try again, any other HarenaError but a StoreError will not get better. When `cancelled` turns true it should
        raise soon, whatever it likes."""
        ...


class TryAgain(HarenaError):
    """From a handler: not now, but later."""


@dataclass(slots=True, eq=False)
class _Held:
    job: Job
    beaten_at: float
    lost: threading.Event = field(default_factory=threading.Event)
    """Cancelled, or somebody else's by now: the result will be dropped."""


class Workers:
    def __init__(
        self,
        store: Store,
        queue: Queue,
        *,
        handlers: Mapping[str, Handler],
        slots: Mapping[str, int],
        on_dead: Callable[[Job], object],
        on_requeued: Callable[[Job], object] = lambda job: None,
        alone: bool = False,
    ) -> None:
        """`slots`: jobs of a kind at a time. `on_dead` and `on_requeued` are called inside the transaction that gives a
        job up, or back to the queue. `alone`: no other process works here, so what is running at the start has lost
        its worker and need not wait for its lease."""
        self._store = store
        self._queue = queue
        self._handlers = handlers
        self._slots = {kind: slots.get(kind, 0) for kind in handlers}
        self._on_dead = on_dead
        self._on_requeued = on_requeued
        self._alone = alone
        self.name = f"{socket.gethostname()[:100]}-{os.getpid()}"
        self._changed = threading.Condition()
        self._due: set[str] = set()
        """Kinds that may have work."""
        self._held: set[_Held] = set()
        self._stopping = self._hurry = False
        self._bell = threading.Event()
        self._threads: list[threading.Thread] = []
        self._keeper: threading.Thread | None = None
        self._stop_listening: Callable[[], None] = lambda: None

    # ---- start and stop ----

    def start(self) -> None:
        if self._alone:
            with self._store.begin():
                self._follow(self._queue.release_all())
        self._stop_listening = self._store.on_commit(self._committed)
        for kind, count in self._slots.items():
            for number in range(count):
                name = f"harena-{kind}-{number}"
                self._threads.append(threading.Thread(target=self._work, args=(kind,), name=name, daemon=True))
        self._keeper = threading.Thread(target=self._keep, name="harena-jobs", daemon=True)
        for thread in (*self._threads, self._keeper):
            thread.start()
        self.wake()

    def stop(self, grace_s: float = 10.0) -> None:
        """Claims nothing more, waits for what runs, then calls the rest off and gives it back. Again does nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held, grace_s)
            self._hurry = True
        for thread in self._threads:
            thread.join()
        self._stop_listening()
        self._bell.set()
        if self._keeper is not None:
            self._keeper.join()

    def wake(self) -> None:
        """There may be work of any kind."""
        self._wake(self._handlers)

    @property
    def running(self) -> list[Job]:
        with self._changed:
            return [held.job for held in self._held]

    def _committed(self, changes: Changes) -> None:
        kinds = [kind for kind in self._handlers if f"jobs:{kind}" in changes]
        if kinds:
            self._wake(kinds)
            self._bell.set()  # one of ours may have been cancelled

    def _wake(self, kinds: Mapping[str, object] | list[str]) -> None:
        with self._changed:
            self._due.update(kinds)
            self._changed.notify_all()

    # ---- a thread for each slot ----

    def _work(self, kind: str) -> None:
        while (held := self._next(kind)) is not None:
            try:
                self._do(held)
            except Exception:
                _log.exception("job %s could not be ended; its lease will run out", held.job.id)
                time.sleep(ERROR_WAIT_S)
            finally:
                with self._changed:
                    self._held.discard(held)
                    self._changed.notify_all()

    def _next(self, kind: str) -> _Held | None:
        """Waits for a job. None: no more, we stop."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or kind in self._due)
                if self._stopping:
                    return None
            try:
                job = self._claim(kind)
            except Exception as error:
                log_failure(_log, "no job could be claimed; will try again", error)
                time.sleep(ERROR_WAIT_S)
                continue
            if job is not None:
                held = _Held(job, time.monotonic())
                with self._changed:
                    self._held.add(held)
                return held

    def _claim(self, kind: str) -> Job | None:
        with self._changed:
            self._due.discard(kind)  # before the look: what comes after it sets it again
        job = self._queue.claim(kind, self.name)
        if job is not None:
            self._wake([kind])  # where one was, others may be
        return job

    def _do(self, held: _Held) -> None:
        job, started = held.job, time.monotonic()
        what = {"job": job.id, "kind": job.kind, "attempt": job.attempts}
        _log.info("job %s (%s) started", job.id, job.kind, extra=what)
        try:
            commit = self._handlers[job.kind](job, lambda: held.lost.is_set() or self._hurry)
            with self._store.begin():
                self._queue.finish(job)
                commit()
            _log.info("job %s (%s) done in %.3f s", job.id, job.kind, time.monotonic() - started, extra=what)
        except LeaseLost:
            _log.info("job %s (%s) was cancelled or taken over", job.id, job.kind, extra=what)
        except Exception as error:
            self._failed(held, error)

    def _failed(self, held: _Held, error: Exception) -> None:
        job = held.job
        if held.lost.is_set():
            return
        try:
            with self._store.begin():
                if self._hurry:
                    self._queue.release(job)
                    self._tell(self._on_requeued, job)
                    return
                again = may_try_again(error)
                level = logging.WARNING if isinstance(error, HarenaError) else logging.ERROR
                _log.log(level, "job %s (%s) failed: %s", job.id, job.kind, error, exc_info=error)
                after = self._queue.fail(job, _in_words(error), retry=again)
                self._follow(Swept.of([after]))
        except LeaseLost:
            _log.info("job %s (%s) was cancelled or taken over", job.id, job.kind)

    # ---- what follows for those the jobs were about ----

    def _follow(self, swept: Swept) -> None:
        """Inside the transaction that ended or requeued them."""
        for job in swept.requeued:
            self._tell(self._on_requeued, job)
        for job in swept.dead:
            self._tell(self._on_dead, job)

    def _tell(self, what: Callable[[Job], object], job: Job) -> None:
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
                self._look()
                now = time.monotonic()
                if now - swept_at > SWEEP_S:
                    swept_at = now
                    self._sweep()
                if now - pruned_at > PRUNE_S:
                    pruned_at = now
                    self._prune()
            except Exception as error:
                log_failure(_log, "jobs could not be looked after; will try again", error)
                time.sleep(ERROR_WAIT_S)

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
        if due := self._queue.due():
            self._wake([kind for kind in due if kind in self._handlers])

    def _beat(self, held: _Held) -> None:
        try:
            self._queue.heartbeat(held.job)
            held.beaten_at = time.monotonic()
        except LeaseLost:
            held.lost.set()

    def _sweep(self) -> None:
        now = self._store.clock()  # before the look at what is ours: a job that comes after it has a later lease
        with self._changed:
            held = list(self._held)
        for one in held:
            self._beat(one)  # a machine that slept has let its own leases run out
        with self._store.begin():
            self._follow(self._queue.sweep(now=now))

    def _prune(self) -> None:
        jobs = self._queue.prune(older_than_s=KEEP_S, keep=KEEP_JOBS)
        events = self._store.prune_events(older_than_s=KEEP_S, keep=KEEP_EVENTS)
        if jobs or events:
            _log.info("pruned %d old jobs and %d old events", jobs, events)


def may_try_again(error: Exception) -> bool:
    """A BoxError says so itself. What was refused with reason stays refused; a database or disk that fails, or a bug,
    may not be there the next time."""
    if isinstance(error, BoxError):
        return error.retry is not Retry.NEVER
    return not isinstance(error, HarenaError) or isinstance(error, StoreError | TryAgain)


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, HarenaError) else f"{type(error).__name__}: {error}"
