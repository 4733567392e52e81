"""Celery as a bell. A message says "look": it names no job, so it may be lost, doubled or late without harm. The job
table is the truth, and what no message announced is announced again.

Guarantees: a broker that is away never holds up a commit or a request; its messages are sent again when it is back.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from harena.arena.arena import Arena
from harena.arena.queue.kinds import REMOTE
from harena.errors import BackendUnavailable, SpecError

TASK = "harena.look"
QUEUE = "harena"
SWEEP_S = 2.0
"""How soon jobs are announced again that still wait."""
UNASKED_S = 5.0
"""How often a worker looks without having been called."""
MAX_RINGS = 50
RING_S = 10
"""A message that nobody took by then is worth nothing: another one was sent."""
SCHEMES = ("redis://", "rediss://", "amqp://", "amqps://")
_log = logging.getLogger("harena.celery")


def celery_app(broker: str) -> Any:
    """The Celery app of workers and of those who call them."""
    if not broker.startswith(SCHEMES):
        raise SpecError("CELERY_BROKER_URL is of the form redis://… or amqp://…")
    try:
        celery: Any = importlib.import_module("celery")
    except ImportError as error:
        raise BackendUnavailable("CELERY_BROKER_URL needs Celery: pip install 'harena[celery]'") from error
    app = celery.Celery("harena", broker=broker)
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_connection_timeout=4,
        broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 4} if "redis" in broker[:6] else {},
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
    )
    return app


class CeleryBell:
    """Rings for jobs that this process commits, and for those that still wait."""

    def __init__(self, arena: Arena, broker: str) -> None:
        self._arena = arena
        self._app = celery_app(broker)
        self._rung = threading.Event()
        self._ending = False
        self._heard = False
        self._away = False
        self._stop_listening: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="harena-celery-bell", daemon=True)

    def start(self) -> None:
        self._stop_listening = self._arena.store.database.on_commit(self._committed)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._stop_listening()
        self._ending = True
        self._rung.set()
        if self._thread.is_alive():
            self._thread.join(SWEEP_S * 5)
        self._app.close()

    def _committed(self, changes: frozenset[str]) -> None:
        if any(f"jobs:{kind}" in changes for kind in REMOTE):
            self._heard = True
            self._rung.set()

    def _run(self) -> None:
        swept_at = 0.0
        while not self._ending:
            self._rung.wait(SWEEP_S)
            self._rung.clear()
            try:
                sweep = time.monotonic() - swept_at >= SWEEP_S
                waiting = self._arena.queue.waiting_now(REMOTE) if sweep else int(self._heard)
                self._heard = False
                if sweep:
                    swept_at = time.monotonic()
                for _ in range(min(waiting, MAX_RINGS)):
                    self._ring()
                if self._away and waiting:
                    self._away = False
                    _log.warning("the broker is back")
            except Exception as error:  # the next sweep tries again
                if not self._away:
                    _log.warning("the broker cannot be reached; workers are told later: %s", error)
                self._away = True

    def _ring(self) -> None:
        self._app.send_task(TASK, expires=RING_S, retry=False, ignore_result=True)


def serve(arena: Arena, broker: str, *, concurrency: int) -> None:
    """A Celery worker over the arena's job workers, until it is told to stop."""
    app = celery_app(broker)

    @app.task(name=TASK, ignore_result=True)
    def look() -> None:  # pyright: ignore[reportUnusedFunction]
        for lane in arena.workers.lanes:
            arena.workers.run_due(lane)

    over = threading.Event()

    def unasked() -> None:
        """Celery's consumer may not notice that its broker came back: what nobody rings for is found all the same."""
        while not over.wait(UNASKED_S):
            try:
                if arena.queue.waiting_now(REMOTE):
                    look()
            except Exception as error:
                _log.warning("the job table could not be read: %s", error)

    thread = threading.Thread(target=unasked, name="harena-unasked", daemon=True)
    thread.start()
    worker = app.Worker(
        pool="threads",
        concurrency=concurrency,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
        loglevel="ERROR",
    )
    try:
        worker.start()
    finally:
        over.set()
