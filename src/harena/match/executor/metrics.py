"""Metrics of the executor in Prometheus' text format, on a port that is off by default.

Labels are closed sets (statuses, and installed environments that have played): nothing that a client chooses freely
becomes one. The port has no authentication and shows counts only.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from harena.match.executor.matches import MatchCall, RunningMatches
from harena.match.executor.readers import ConfigError
from harena.match.executor.turns import Turns
from harena.match.result import SeatStatus

MATCH_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ExecutorMetrics:
    def __init__(self, board: RunningMatches, turns: Turns) -> None:
        self.registry = own = CollectorRegistry()
        self._matches = Counter("executor_matches", "Matches answered.", ["environment", "status"], registry=own)
        self._games = Counter("executor_games", "Games played.", ["environment"], registry=own)
        self._forfeits = Counter("executor_forfeits", "Games that a seat forfeited.", ["status"], registry=own)
        self._duration = Histogram(
            "executor_match_duration_seconds", "From its turn to its answer.", buckets=MATCH_S, registry=own
        )
        Gauge("executor_matches_active", "Accepted matches.", registry=own).set_function(lambda: len(board))
        Gauge("executor_matches_waiting", "Of these, waiting ones.", registry=own).set_function(lambda: turns.waiting)
        Gauge("executor_matches_at_once", "Matches that can be played at once.", registry=own).set(turns.limit)

    def played(self, match: MatchCall) -> None:
        environment = match.order.environment
        self._matches.labels(environment, match.status.value).inc()
        self._games.labels(environment).inc(len(match.games))
        self._duration.observe(match.wall_s)
        for game in match.games:
            for seat in game.result.seats:
                if seat.status is not SeatStatus.OK:
                    self._forfeits.labels(seat.status.value).inc()

    def serve(self, host: str, port: int | None) -> tuple[Callable[[], None], int | None]:
        """Serve the metrics; with port 0, on any free port. Returns how to stop, and the port."""
        if port is None:
            return (lambda: None), None
        try:
            server, thread = start_http_server(port, "127.0.0.1" if host == "localhost" else host, self.registry)
        except OSError as error:
            raise ConfigError(f"executor.metrics_port: cannot listen on {host}:{port}: {error.strerror}") from None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end, server.server_port
