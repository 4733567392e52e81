"""Gives jobs to workers on other machines, and takes their answers.

Guarantees: a worker sees and ends only jobs that it holds, by its own name and the number of its claim; whatever else
it names is answered as a job that is not its own. An answer is settled in one transaction with the end of its job, and
once: the late answer of a worker that lost its lease is refused. What cannot be ordered is failed here, as a worker of
this process would. A suspect is given to a worker that holds nothing, which then gets nothing else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harena.arena.db.files import FilesUnavailable
from harena.arena.db.jobs import REMOTE, QueuedJob, Swept
from harena.arena.db.models import JobState, LeaseLost, NotFound, ReadOnly, StorageFull
from harena.arena.queue import kinds
from harena.arena.queue.workers import AWAY_WAIT_S, may_try_again
from harena.arena.work import orders
from harena.errors import HarenaError

if TYPE_CHECKING:
    from harena.arena.arena import Arena

LEASE_S = 30.0
"""Three heartbeats of 10 s."""
MAX_HELD = 256
"""Jobs that one worker may hold."""
FRAMES = frozenset({"started", "step"})
"""That it has finished is told by its result."""
_log = logging.getLogger("harena.arena")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    job: QueuedJob
    order: bytes


class Dispatch:
    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._store = arena.store
        self._queue = arena.queue
        self._turn = 0

    @staticmethod
    def holder(key_id: str, name: str) -> str:
        return f"{REMOTE}{key_id}/{name}"

    def claim(self, holder: str, wanted: Sequence[str], environments: Sequence[str] | None) -> Given | None:
        """The next job for this worker, of these kinds and environments; None: nothing to do now."""
        held = self._queue.held_by(holder)
        if len(held) >= MAX_HELD or any(job.suspect for job in held):
            return None
        self._turn += 1
        at = self._turn % max(1, len(wanted))
        for suspect in (False, True) if not held else (False,):
            for kind in [*wanted[at:], *wanted[:at]]:
                given = self._claim(holder, kind, environments, suspect=suspect)
                if given is not None:
                    return given
        return None

    def _claim(self, holder: str, kind: str, environments: Sequence[str] | None, *, suspect: bool) -> Given | None:
        while True:
            job = self._queue.claim(kind, holder, lease_s=LEASE_S, suspect=suspect, environments=environments)
            if job is None:
                return None
            what = {"job": job.id, "kind": job.kind, "worker": holder}
            try:
                order_of = kinds.BY_NAME[kind].order
                assert order_of is not None
                order = order_of(self._arena)(job)
                if not callable(order):
                    _log.info("job %s (%s) given out", job.id, job.kind, extra=what)
                    return Given(job=job, order=orders.encode(order))
                with self._store.begin():
                    self._queue.finish(job)
                    order()
            except LeaseLost:
                continue
            except FilesUnavailable:
                self._postpone(job)
                raise
            except Exception as error:
                self._failed(job, error)

    def heartbeat(self, holder: str, job_id: int, fence: int) -> None:
        """Keeps the lease. Raises LeaseLost, also for a job that was cancelled."""
        self._queue.heartbeat(self._held(holder, job_id, fence), lease_s=LEASE_S)

    def frames(self, holder: str, job_id: int, fence: int, frames: Sequence[dict[str, Any]]) -> None:
        """What a running match told."""
        job = self._held(holder, job_id, fence)
        if kinds.BY_NAME[job.kind].watched:
            for frame in frames:
                if frame.get("type") in FRAMES:
                    self._arena.hub.frame(job.payload["match_id"], frame)

    def finish(self, holder: str, job_id: int, fence: int, answer: bytes) -> None:
        """Raises LeaseLost, and BadWorkerAnswer for what is no answer to that job: then it is tried again."""
        job = self._held(holder, job_id, fence)
        settle = kinds.BY_NAME[job.kind].settle
        assert settle is not None
        try:
            commit = settle(self._arena)(job, orders.decode_answer(answer))
            with self._store.begin():
                self._queue.finish(job)
                commit()
        except (
            LeaseLost,
            FilesUnavailable,
            ReadOnly,
            StorageFull,
        ):  # the worker keeps its lease and sends the answer again
            raise
        except Exception as error:
            self._failed(job, error)
            raise

    def fail(self, holder: str, job_id: int, fence: int, reason: str, *, retry: bool) -> None:
        """The worker could not do it."""
        job = self._held(holder, job_id, fence)
        _log.warning("job %s (%s) failed at %s: %s", job.id, job.kind, holder, reason)
        with self._store.begin():
            self._arena.workers.follow(Swept.of([self._queue.fail(job, reason, retry=retry)]))

    def release(self, holder: str, job_id: int, fence: int) -> None:
        """The worker stops, and gives it back."""
        with self._store.begin():
            given_back = self._queue.release(self._held(holder, job_id, fence))
            self._arena.workers.follow(Swept.of([given_back]))

    def _held(self, holder: str, job_id: int, fence: int) -> QueuedJob:
        """One error for all that is not the caller's: nobody learns which jobs there are."""
        lost = LeaseLost(f"job {job_id} is not yours: drop it")
        try:
            job = self._queue.get(job_id)
        except NotFound:
            raise lost from None
        if job.worker != holder or job.fence != fence or job.state is not JobState.RUNNING:
            raise lost
        return job

    def _postpone(self, job: QueuedJob) -> None:
        with contextlib.suppress(LeaseLost), self._store.begin():
            after = self._queue.postpone(job, "the file storage is away", wait_s=AWAY_WAIT_S)
            self._arena.workers.follow(Swept.of([after]))

    def _failed(self, job: QueuedJob, error: Exception) -> None:
        level = logging.WARNING if isinstance(error, HarenaError) else logging.ERROR
        _log.log(level, "job %s (%s) failed: %s", job.id, job.kind, error, exc_info=error)
        again = may_try_again(error) or isinstance(error, orders.BadWorkerAnswer)
        try:
            with self._store.begin():
                self._arena.workers.follow(Swept.of([self._queue.fail(job, str(error), retry=again)]))
        except LeaseLost:
            _log.info("job %s (%s) was cancelled or taken over", job.id, job.kind)
