"""Counters for Prometheus, in a registry of each app's own. The first nine have the names that existing dashboards use.

Labels are closed sets: routes as they are declared, environments that the host added, states; nothing that a stranger
chooses becomes a label.
"""

from __future__ import annotations

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

from harena.arena.submissions.service import Evaluated

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVALUATION_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

disable_created_metrics()  # a second series for each, which nobody asked for

JobCounts = Callable[[], Iterable[tuple[str, str, int]]]


class Metrics:
    def __init__(self, job_counts: JobCounts | None = None) -> None:
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
        self.limited = Counter("http_requests_limited", "Requests refused for their number.", registry=own)
        self.streams = Gauge("event_streams_open", "Open server-sent event streams.", registry=own)
        if job_counts is not None:
            self.registry.register(_Jobs(job_counts))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def evaluated(self, what: Evaluated) -> None:
        """An observer of the arena's submissions."""
        if what.step == "started":
            self.started.inc()
        elif what.step == "ranked":
            self.completed.labels(what.env_id).inc()
            self.duration.labels(what.env_id).observe(what.wall_s)
        else:
            self.failed.labels(what.fault).inc()


class _Jobs(Collector):
    """Read when somebody asks."""

    def __init__(self, counts: JobCounts) -> None:
        self._counts = counts

    def describe(self) -> list[GaugeMetricFamily]:
        return [self._family()]

    def collect(self) -> list[GaugeMetricFamily]:
        family = self._family()
        for kind, state, number in self._counts():
            family.add_metric([kind, state], number)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily("jobs", "Jobs in the database, by kind and state.", labels=["kind", "state"])
