"""Matches that a caller waits for, played in the arena's turn: what gRPC clients ask for.

Guarantees: a match takes a slot of the arena's workers like any other job, and its caller's share of them; it is played
once, or its caller hears why not. A match lives in this process alone: after a restart nobody waits for it any more,
and its job does nothing. Looks like a Runner to the executor.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from harena.arena.db.jobs import Queue, QueuedJob
from harena.arena.queue import kinds
from harena.arena.queue.workers import Commit
from harena.errors import HarenaError
from harena.match.result import MatchResult, MatchSpec, MatchStatus
from harena.match.run.protocol import MatchHandle, wait
from harena.match.run.runner import Runner, without_result

JOB = kinds.DESK.name

Event = dict[str, Any]


class Ticket:
    """A match that waits or is played. Safe to use from any thread."""

    def __init__(
        self,
        spec: MatchSpec,
        seeds: Sequence[int] | None,
        on_event: Callable[[Event], object] | None,
        withdraw: Callable[[Ticket], None],
    ) -> None:
        self.id = uuid.uuid4().hex
        self.job_id = 0
        self.spec = spec
        self.seeds = seeds
        self.on_event = on_event
        self.handle: MatchHandle | None = None
        self._withdraw = withdraw
        self._began = threading.Event()
        self._ended = threading.Event()
        self._results: list[MatchResult] = []
        self._error: HarenaError | None = None

    def result(self, timeout: float | None = None) -> MatchResult:
        return self.results(timeout)[0]

    def results(self, timeout: float | None = None) -> list[MatchResult]:
        """The timeout is that of the game: waiting for a slot does not count."""
        self._began.wait()
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the match has not ended within {timeout:g} s")
        if not self._results:
            raise self._error or HarenaError("the match was not played")
        return self._results

    def cancel(self) -> None:
        self._withdraw(self)

    def begin(self, handle: MatchHandle) -> None:
        self.handle = handle
        self._began.set()

    def end(self, results: list[MatchResult], error: HarenaError | None = None) -> None:
        self._results, self._error = results, error
        self._ended.set()
        self._began.set()


class Desk:
    def __init__(self, queue: Queue, runner: Runner, *, caller: Callable[[], str] = lambda: "") -> None:
        """`caller` names whose call this is; each has a share of its own."""
        self.place = ""
        """The worker of this process, which alone has the tickets."""
        self._queue = queue
        self._runner = runner
        self.caller = caller
        self._open: dict[str, Ticket] = {}
        self._lock = threading.Lock()

    @property
    def workers(self) -> int:
        return self._runner.workers

    def submit(
        self,
        spec: MatchSpec,
        on_event: Callable[[Event], object] | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Ticket:
        ticket = Ticket(spec, seeds, on_event, self._cancel)
        with self._lock:
            self._open[ticket.id] = ticket
        try:
            share = f"caller:{self.caller()}"[:80]
            ticket.job_id = self._queue.enqueue(
                JOB, {"ticket": ticket.id}, share=share, max_attempts=1, place=self.place
            )
        except BaseException:
            self._close(ticket.id)
            raise
        return ticket

    def play(self, job: QueuedJob, cancelled: Callable[[], bool]) -> Commit:
        """The handler of its job."""
        with self._lock:
            ticket = self._open.get(job.payload["ticket"])
            if ticket is not None and ticket.handle is None:
                ticket.begin(self._runner.submit(ticket.spec, ticket.on_event, seeds=ticket.seeds))
        if ticket is None or ticket.handle is None:
            return _nothing
        try:
            ticket.end(wait(ticket.handle, cancelled))
        except HarenaError as error:
            ticket.end([], error)
        finally:
            self._close(ticket.id)
        return _nothing

    def give_up(self, job: QueuedJob) -> None:
        """The platform gave its job up."""
        ticket = self._close(job.payload["ticket"])
        if ticket is not None:
            ticket.end([], HarenaError(f"the match could not be played: {job.reason}"))

    def _cancel(self, ticket: Ticket) -> None:
        with self._lock:
            handle = ticket.handle
            if handle is None:
                self._open.pop(ticket.id, None)
        if handle is not None:
            handle.cancel()
            return
        self._queue.cancel(ticket.job_id)
        error = "the match was cancelled before it began"
        ticket.end(without_result(ticket.spec, ticket.seeds, MatchStatus.CANCELLED, error))

    def _close(self, ticket_id: str) -> Ticket | None:
        with self._lock:
            return self._open.pop(ticket_id, None)


def _nothing() -> None:
    """The caller has the result."""
