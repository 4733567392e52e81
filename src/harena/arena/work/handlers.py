"""Handlers of jobs that this process does itself: order, perform, settle."""

from __future__ import annotations

from collections.abc import Callable

from harena.arena.db.jobs import QueuedJob
from harena.arena.queue.kinds import JobKind, Services
from harena.arena.queue.workers import Commit, Handler
from harena.arena.work.perform import perform
from harena.errors import BackendUnavailable


def handler(arena: Services, kind: JobKind) -> Handler:
    """Does jobs of this kind here."""
    if kind.own_handler is not None:
        return kind.own_handler(arena)
    assert kind.order is not None
    assert kind.settle is not None
    order_of, settle, bench = kind.order(arena), kind.settle(arena), arena.bench
    if bench is None:
        raise BackendUnavailable("this process has no workers")

    def handle(job: QueuedJob, cancelled: Callable[[], bool], /) -> Commit:
        order = order_of(job)
        if callable(order):
            return order
        on_frame = arena.matches.on_frame(job) if kind.watched else None
        return settle(job, perform(order, bench, cancelled, on_frame))

    return handle
