"""Plays matches as Jobs. Guarantees: whatever happens to pods, nodes and the API, a match ends with a result or with a
reason; a match that the platform lost is played again, as often as `k8s.retries` says; what was created is deleted, and
where this process ends first, the cluster ends it by its deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

from harena.errors import HarenaError
from harena.kube import config as kube_config
from harena.kube.api import KubeError
from harena.match.executor.config import ServerConfig
from harena.match.executor.jobs import manifest
from harena.match.executor.jobs.cluster import Cluster, LogStream, PodNews
from harena.match.executor.jobs.manifest import JobMatch, PodAgent
from harena.match.executor.jobs.pod_state import PodPhase
from harena.match.orchestrator import wire
from harena.match.result import MatchResult, MatchSpec, MatchStatus, VoidCause
from harena.match.run.agent_log import printable

log = logging.getLogger("harena.executor")

CREATE_S = 30.0
"""How long the API may be away when a match is to be created."""
CHECK_S = 1.0


class MatchLost(HarenaError):
    """The platform lost the match. It may be played again."""


class MatchBroken(HarenaError):
    """The match cannot be played: an image that cannot be pulled, a deadline, a container that cannot start."""


class JobCancelled(HarenaError):
    """The match was cancelled."""


class JobRunner:
    def __init__(self, settings: ServerConfig) -> None:
        k8s = settings.k8s
        self._settings = settings
        self._instance = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        file = str(k8s.kubeconfig) if k8s.kubeconfig else None
        self.clusters = [
            Cluster(
                kube_config.load(file, context), k8s.namespace, self._instance, ttl_s=k8s.ttl_sec, name=context or ""
            )
            for context in k8s.contexts or (None,)
        ]

    def start(self) -> None:
        """Check all clusters. Raises HarenaError if one does not answer, or does not let us do what we need."""
        for cluster in self.clusters:
            cluster.start()

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.close()

    def run(self, match: JobMatch) -> JobRun:
        """Raises SpecError for a match that cannot be a Job."""
        return JobRun(self, match, manifest.secret_data(match))

    def run_one(self, spec: MatchSpec) -> JobRun:
        """A single game of agents that were sent as code, as validation plays it."""
        agents = tuple(PodAgent(code=code) for code in spec.agents)
        games = ((tuple(range(len(agents))), spec.seed),)
        match = job_match(spec, agents, games, timeout_s=spec.clock.match_s, settings=self._settings)
        return self.run(dataclasses.replace(match, match_id=f"validation-{secrets.token_hex(6)}"))

    @contextlib.contextmanager
    def place(self, without: set[str]) -> Generator[Cluster]:
        """The cluster with the fewest matches of this executor, of those that are not in `without`."""
        with self._lock:
            left = [cluster for cluster in self.clusters if cluster.name not in without] or self.clusters
            cluster = min(left, key=lambda one: one.playing)
            cluster.playing += 1
        try:
            yield cluster
        finally:
            with self._lock:
                cluster.playing -= 1

    @property
    def settings(self) -> ServerConfig:
        return self._settings

    @property
    def instance(self) -> str:
        return self._instance


def job_match(
    spec: MatchSpec,
    agents: tuple[PodAgent, ...],
    games: tuple[tuple[tuple[int, ...], int], ...],
    *,
    timeout_s: float,
    settings: ServerConfig,
    caller: str = "",
    watched: bool = False,
) -> JobMatch:
    """`spec`: what holds for all games, but for agents and seeds; `games`: agents by seat, and the seed."""
    bare = tuple(
        dataclasses.replace(agent.code, files={}, image=agent.image, command=agent.code.command or ("python3",))
        for agent in agents
    )
    order = wire.JobOrder(
        nonce=secrets.token_hex(16),
        spec=dataclasses.replace(spec, agents=()),
        agents=bare,
        games=tuple(wire.PlannedGame(seats, seed) for seats, seed in games),
        timeout_s=timeout_s,
        start_s=settings.k8s.start_timeout_sec,
        watched=watched,
    )
    return JobMatch(match_id=spec.match_id, caller=caller, agents=agents, order=order)


class JobRun:
    """One match. `results` is for one thread; `cancel` for any."""

    def __init__(self, runner: JobRunner, match: JobMatch, data: dict[str, str]) -> None:
        self._runner = runner
        self._match = match
        self._data = data
        self._news: PodNews | None = None
        self._cancelled = False
        self._began = False
        self.logs: dict[int, str] = {}
        """By agent, what it printed; there once `results` is exhausted."""
        self.attempts = 0
        self.waited_s = 0.0
        """From the request to the beginning of the first game; not part of the match's time."""

    def cancel(self) -> None:
        self._cancelled = True
        if self._news is not None:
            self._news.wake()

    def results(self, on_step: Callable[[int, dict[str, Any]], None] | None = None) -> Iterator[MatchResult]:
        """The result of each game, as soon as it is over. Ends early after a game without a result, and where the time
        is over. Raises MatchLost, MatchBroken and JobCancelled."""
        done, avoid = 0, set[str]()
        while True:
            try:
                for number, result in self._attempt(on_step, avoid):
                    if number == done:  # a second attempt plays from the beginning again
                        done += 1
                        yield result
                return
            except MatchLost as error:
                self.attempts += 1
                if self.attempts > self._runner.settings.k8s.retries:
                    raise
                log.warning("match %r is played again: %s", self._match.match_id, error)

    def result(self) -> MatchResult:
        """The result of the only game. A match that could not be played is void."""
        try:
            for result in self.results():
                return result
        except JobCancelled:
            return _without_result(self._match, MatchStatus.CANCELLED, "the match was cancelled")
        except HarenaError as error:
            return _without_result(self._match, MatchStatus.VOID, str(error))
        return _without_result(self._match, MatchStatus.VOID, "the Job ended without a result")

    # ---- one Job ----

    def _attempt(
        self, on_step: Callable[[int, dict[str, Any]], None] | None, avoid: set[str]
    ) -> Iterator[tuple[int, MatchResult]]:
        asked = time.monotonic()
        settings, match = self._runner.settings, self._match
        name = manifest.job_name(match.match_id, match.caller, self.attempts)
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(self._runner.place(avoid))
            name, news = self._create(cluster, name, stack, avoid)
            self._news = news
            try:
                self._wait_for_start(news, asked + settings.k8s.start_timeout_sec)
                for report in self._reports(cluster, news):
                    if isinstance(report, wire.Began):
                        self.waited_s, self._began = time.monotonic() - asked, True
                    elif isinstance(report, wire.Stepped):
                        if on_step is not None:
                            on_step(report.game, report.event)
                    elif isinstance(report, wire.GameOver):
                        yield report.game, report.result
                    elif report.error:
                        raise MatchBroken(report.error)
                self._collect_logs(cluster, news)
            finally:
                self._news = None
                if not settings.k8s.keep_jobs or self._cancelled:
                    cluster.delete(name)
                with contextlib.suppress(HarenaError):
                    cluster.sweep()

    def _create(self, cluster: Cluster, name: str, stack: contextlib.ExitStack, avoid: set[str]) -> tuple[str, PodNews]:
        ends_at = time.monotonic() + CREATE_S
        chosen = name
        while True:
            self._check_cancelled()
            following = contextlib.ExitStack()
            news = following.enter_context(cluster.following(chosen))
            try:
                job = manifest.job(chosen, self._match, self._runner.settings, self._runner.instance)
                cluster.create(job, self._data)
                stack.enter_context(following)
                return chosen, news
            except KubeError as error:
                following.close()
                if error.status == 409:  # one of an earlier match with this id, or ours, whose answer got lost
                    chosen = f"{name}-{secrets.token_hex(2)}"
                elif error.status not in (0, 429) and error.status < 500:
                    raise MatchBroken(f"the Job could not be created: {error}") from None
                elif time.monotonic() > ends_at:
                    avoid.add(cluster.name)
                    raise MatchLost(f"the Job could not be created: {error}") from None
                else:
                    time.sleep(0.5)

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise JobCancelled("the match was cancelled")

    def _check_state(self, news: PodNews) -> None:
        self._check_cancelled()
        if news.state.phase is PodPhase.LOST:
            raise MatchLost(f"the platform ended the match: {news.state.text}")
        if news.state.phase is PodPhase.BROKEN:
            raise MatchBroken(news.state.text)

    def _wait_for_start(self, news: PodNews, ends_at: float) -> None:
        while news.state.phase is PodPhase.WAITING:
            self._check_state(news)
            if time.monotonic() > ends_at:
                why = f": {news.state.text}" if news.state.text else ""
                raise MatchBroken(
                    f"the Job did not start within {self._runner.settings.k8s.start_timeout_sec:g} s "
                    f"(k8s.start_timeout_sec){why}"
                )
            news.wait(CHECK_S)
        self._check_state(news)

    def _reports(self, cluster: Cluster, news: PodNews) -> Iterator[wire.JobReport]:
        """All reports of the orchestrator, once each, up to the last one."""
        reader = wire.ReportReader(self._match.order.nonce)
        order = self._match.order
        ends_at = time.monotonic() + order.start_s + order.timeout_s + manifest.SPARE_S
        while True:
            follows = news.state.phase is PodPhase.RUNNING
            stream = cluster.log(news.pod, manifest.ORCHESTRATOR, follow=follows)
            news.listen(stream)
            try:
                self._check_state(news)
                for report in self._read(stream, reader):
                    yield report
                    if isinstance(report, wire.SeriesOver):
                        return
            finally:
                news.listen(None)
            self._check_state(news)
            if not follows:
                raise MatchLost("the orchestrator ended without its last report")
            if time.monotonic() > ends_at:
                raise MatchBroken("the Job took longer than its deadline")
            reader.restart()
            news.wait(CHECK_S)

    def _read(self, stream: LogStream, reader: wire.ReportReader) -> Iterator[wire.JobReport]:
        try:
            for line in stream.lines():
                report = reader.feed(line)
                if report is not None:
                    yield report
        except ValueError as error:
            raise MatchLost(f"the orchestrator's log: {error}") from None
        except KubeError as error:
            if error.status not in (0, 400, 404, 429) and error.status < 500:
                raise MatchBroken(str(error)) from None

    def _collect_logs(self, cluster: Cluster, news: PodNews) -> None:
        most = self._runner.settings.sandbox.log_kb << 10
        for number in range(len(self._match.agents)):
            with contextlib.suppress(HarenaError):
                lines = cluster.log(news.pod, f"agent-{number}", max_bytes=most).lines()
                self.logs[number] = printable("".join(f"{line}\n" for line in lines))[:most]


def _without_result(match: JobMatch, status: MatchStatus, error: str) -> MatchResult:
    return MatchResult(
        match_id=match.match_id,
        environment=match.order.spec.environment,
        seed=match.order.games[0].seed,
        status=status,
        winner=None,
        reason="",
        steps=0,
        wall_s=0.0,
        seats=(),
        error=error,
        cause=VoidCause.WORKER_LOST if status is MatchStatus.VOID else None,
    )
