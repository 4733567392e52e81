"""Counters for Prometheus, in a registry of each app's own. The first nine have the names that existing dashboards use.

Labels are closed sets: routes as they are declared, environments that the host added, states; nothing that a stranger
chooses becomes a label. Each process counts what it did itself, so sums over replicas count nothing twice; numbers that
are read from the database (jobs, ages) are the same on every replica: take their maximum.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from harena.arena.arena import Arena
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.models import PRIVATE_LABEL, MatchState
from harena.arena.submissions.service import Evaluated
from harena.match.result import SeatStatus
from harena.match.run.runner import Runner

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVALUATION_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
PLATFORM = "platform"

disable_created_metrics()  # a second series for each, which nobody asked for

Rows = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
"""Values of labels, and the number."""


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.received = Counter("submissions_received", "Submissions taken in.", ["mode"], registry=own)
        self.refused = Counter("submissions_validation_failures", "Submissions refused.", ["reason"], registry=own)
        self.upload_bytes = Counter("submissions_upload_bytes", "Bytes of code that were sent.", registry=own)
        self.started = Counter("evaluation_started", "Evaluations begun.", registry=own)
        self.completed = Counter("evaluation_completed", "Evaluations that gave a score.", ["env_id"], registry=own)
        self.failed = Counter("evaluation_failed", "Evaluations that gave none.", ["reason"], registry=own)
        self.duration = Histogram(
            "evaluation_duration_seconds", "From start to score.", ["env_id"], buckets=EVALUATION_S, registry=own
        )
        self.board_queries = Counter("leaderboard_queries", "Boards asked for.", ["env_id", "sort"], registry=own)
        self.board_duration = Histogram(
            "leaderboard_query_duration_seconds", "Boards that were not in the cache.", buckets=REQUEST_S, registry=own
        )
        self.requests = Counter("http_requests", "Requests answered.", ["method", "route", "status"], registry=own)
        self.request_duration = Histogram(
            "http_request_duration_seconds", "Until the end of the answer.", ["route"], buckets=REQUEST_S, registry=own
        )
        self._of_requests: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.limited = Counter("http_requests_limited", "Requests refused for their number.", registry=own)
        self.streams = Gauge("event_streams_open", "Open server-sent event streams.", registry=own)
        self.matches = Counter("harena_matches", "Matches ended, by state.", ["env_id", "state"], registry=own)
        self.forfeits = Counter("harena_forfeits", "Seats that forfeited, by fault.", ["env_id", "fault"], registry=own)
        self.clock_violations = Counter(
            "harena_clock_violations", "Agents that took too long to start or to move.", ["env_id"], registry=own
        )
        self.platform_faults = Counter(
            "harena_platform_faults", "Matches and evaluations that the platform gave up.", ["what"], registry=own
        )
        self.exceptions = Counter(
            "harena_exceptions", "Errors logged with a traceback, by logger.", ["logger"], registry=own
        )
        _count_exceptions(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def count_request(self, method: str, route: str, status: int, took_s: float) -> None:
        """Methods, routes and statuses are few, and to find a counter by its labels takes longer than to count."""
        key = method, route, status
        found = self._of_requests.get(key)
        if found is None:
            found = self.requests.labels(*key), self.request_duration.labels(route)
            self._of_requests[key] = found
        found[0].inc()
        found[1].observe(took_s)

    # ---- what is watched ----

    def watch(self, arena: Arena) -> None:
        """Count what this process does for the arena, and show what waits in its database."""
        arena.submissions.observers.append(self.evaluated)
        arena.matches.observers.append(lambda match: self.match_ended(match, _label(arena, match.env_id)))
        if arena.runner is not None:
            self.watch_boxes(arena.runner)
        queue = arena.queue
        self._read(
            "jobs",
            "Jobs in the database, by kind and state.",
            ["kind", "state"],
            lambda: (((kind, state.value), number) for (kind, state), number in queue.counts().items()),
        )
        self._read(
            "harena_jobs_oldest_seconds",
            "How long the first job of a kind that is due has waited.",
            ["kind"],
            lambda: (((kind,), age_s) for kind, age_s in queue.oldest_s().items()),
        )
        self._read(
            "harena_leads",
            "1 where this process makes the matches.",
            [],
            lambda: [((), float(arena.matchmaker.leads))],
        )

    def watch_boxes(self, runner: Runner) -> None:
        self._read(
            "harena_boxes",
            "Boxes of this process: busy in a match, warm for the next one; leaked ones of this machine.",
            ["state"],
            lambda: (((state,), number) for state, number in runner.boxes().items()),
        )

    def _read(self, name: str, text: str, labels: list[str], rows: Rows) -> None:
        self.registry.register(_WhenAsked(name, text, labels, rows))

    # ---- observers ----

    def evaluated(self, what: Evaluated) -> None:
        if what.step == "started":
            self.started.inc()
        elif what.step == "ranked":
            self.completed.labels(what.env_id).inc()
            self.duration.labels(what.env_id).observe(what.wall_s)
        else:
            self.failed.labels(what.fault).inc()
            if what.fault == PLATFORM:
                self.platform_faults.labels("evaluation").inc()
            elif what.fault == SeatStatus.TIMEOUT.value:
                self.clock_violations.labels(what.env_id).inc()

    def match_ended(self, match: MatchRecord, env_id: str) -> None:
        """`env_id` is the name of its environment in counters."""
        self.matches.labels(env_id, match.state.value).inc()
        if match.state is MatchState.VOID:
            self.platform_faults.labels("match").inc()
        for seat in match.seats:
            if seat.status and seat.status != SeatStatus.OK.value:
                self.forfeits.labels(env_id, seat.status).inc()
                if seat.status == SeatStatus.TIMEOUT.value:
                    self.clock_violations.labels(env_id).inc()


def _label(arena: Arena, env_id: str) -> str:
    """The name in counters, which more people read than those who may know of a private environment."""
    return PRIVATE_LABEL if env_id in arena.store.guests.private() else env_id


class _WhenAsked(Collector):
    """A gauge that is read when somebody asks."""

    def __init__(self, name: str, text: str, labels: list[str], rows: Rows) -> None:
        self._name, self._text, self._labels, self._rows = name, text, labels, rows

    def describe(self) -> list[GaugeMetricFamily]:
        return [self._family()]

    def collect(self) -> list[GaugeMetricFamily]:
        family = self._family()
        for labels, number in self._rows():
            family.add_metric(labels, number)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._name, self._text, labels=self._labels)


class _ExceptionCounter(logging.Handler):
    """One for the process: metrics come and go with their apps."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: weakref.WeakSet[Metrics] = weakref.WeakSet()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            for metrics in list(self.told):
                metrics.exceptions.labels(record.name).inc()


_exceptions = _ExceptionCounter()


def _count_exceptions(metrics: Metrics) -> None:
    _exceptions.told.add(metrics)
    logger = logging.getLogger("harena")
    if _exceptions not in logger.handlers:
        logger.addHandler(_exceptions)
