"""Runs the workers of `harena worker` until they are told to stop.

Guarantees: SIGTERM and Ctrl-C let what runs come to its end and take no more; a second one gives it back at once.
Counters are served on loopback, where Prometheus looks for a worker's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

# Before numpy is imported, as in `harena up`.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from prometheus_client import Counter, start_http_server

from harena import telemetry
from harena.api.http.metrics import Metrics
from harena.api.logs import set_up_logs
from harena.api.worker import celery_bell
from harena.arena.arena import Arena, Roles
from harena.arena.settings import AGENT_IMAGES, Settings
from harena.arena.work.perform import Bench
from harena.errors import SpecError
from harena.match.agent.image import PullPolicy
from harena.match.run.runner import Runner

GRACE_S = 3600.0
"""A worker that is told to stop finishes its jobs; their own limits end them."""
LOOPBACK = "127.0.0.1"
log = logging.getLogger("harena.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    data: Path
    server: str = ""
    token: str = ""
    name: str = ""
    slots: int | None = None
    environments: tuple[str, ...] = ()
    celery: bool = False
    """Works when a message of Celery's says so, instead of looking by itself."""
    metrics_port: int | None = 9100
    json_logs: bool = False


def work(options: WorkerOptions) -> int:
    set_up_logs(json_logs=options.json_logs)
    if options.server and options.celery:
        raise SpecError("--celery works on the database: leave out --server")
    end_telemetry = telemetry.start("worker")
    try:
        return _over_http(options) if options.server else _from_database(options)
    finally:
        end_telemetry()


def worker_name(chosen: str) -> str:
    if chosen and not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", chosen, re.ASCII):
        raise SpecError(f"--name {chosen!r:.80}: up to 64 letters, digits, dots, dashes and underscores")
    own = re.sub(r"[^A-Za-z0-9._-]", "-", f"{socket.gethostname()[:40]}-{os.getpid()}")
    return chosen or own


def _over_http(options: WorkerOptions) -> int:
    from harena.api.worker.remote import RemoteWorker

    if not options.token:
        raise SpecError("--server needs a token of a key with the scope worker: --token, or $HARENA_TOKEN")
    metrics = Metrics()
    jobs = Counter("worker_jobs", "Jobs done here.", ["kind", "outcome"], registry=metrics.registry)
    images = PullPolicy(allow=Settings.worker_images(), only_listed=True, setting=AGENT_IMAGES)
    with Runner(options.slots) as runner:
        metrics.watch_boxes(runner)
        worker = RemoteWorker(
            options.server,
            options.token,
            Bench(runner=runner, pulls=images),
            name=worker_name(options.name),
            slots=runner.workers,
            environments=options.environments,
            done=lambda kind, how: jobs.labels(kind, how).inc(),
        )
        served = worker.connect()
        _when_told(worker.stop)
        with _counted(metrics, options.metrics_port):
            _say(
                f"works for {options.server} in {runner.workers} slots; environments: {', '.join(served) or 'none yet'}"
            )
            worker.run()
    return 0


def _from_database(options: WorkerOptions) -> int:
    settings = Settings.from_env(options.data)
    if settings.embedded:
        raise SpecError(
            "an SQLite file serves one process, `harena up`: set DATABASE_URL to a PostgreSQL database, "
            "or pull jobs over HTTP with --server URL --token TOKEN"
        )
    if options.environments:
        raise SpecError("--env chooses jobs over HTTP; a worker on the database does all of them")
    if options.celery and not settings.celery_broker:
        raise SpecError("--celery needs CELERY_BROKER_URL: redis://… or amqp://…")
    settings = dataclasses.replace(settings, workers=options.slots or settings.workers)
    arena = Arena(settings, Roles(matchmaker=False, on_call=options.celery))
    metrics = Metrics()
    metrics.watch(arena)
    stopped = threading.Event()

    def stop() -> None:
        if stopped.is_set():
            arena.workers.hurry()
        stopped.set()

    try:
        arena.start()
        assert arena.runner is not None
        if options.celery:
            with _counted(metrics, options.metrics_port):
                _say(f"does jobs that Celery calls it for, in {arena.runner.workers} slots as {arena.workers.name}")
                celery_bell.serve(arena, settings.celery_broker, concurrency=arena.runner.workers)
            return 0
        _when_told(stop)
        with _counted(metrics, options.metrics_port):
            _say(f"works on the database in {arena.runner.workers} slots as {arena.workers.name}")
            while not stopped.wait(0.5):  # a signal that another thread got is handled when this one wakes up
                pass
            arena.stop(GRACE_S)
    finally:
        arena.stop(0.0)
    return 0


@contextlib.contextmanager
def _counted(metrics: Metrics, port: int | None) -> Generator[None]:
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, LOOPBACK, metrics.registry)
    except OSError as error:
        # Others use this port by default, too.
        log.warning("no metrics on port %d: %s; choose another with --metrics-port", port, error.strerror)
        yield
        return
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _when_told(stop: Callable[[], object]) -> None:
    """For the rest of the process: its end takes a moment, too."""

    def told(number: int, frame: object) -> None:
        print("\nstopping; what runs is finished first, and given back when told again", file=sys.stderr, flush=True)
        threading.Thread(target=stop, daemon=True).start()  # locks are not for signal handlers

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)


def _say(text: str) -> None:
    print(f"harena worker {text}", flush=True)
