"""Running matches: one request is one `MatchCall`, a series of games played one after the other. Guarantees: never more
than the limit at once; a cancelled match ends its game and starts no other; a watcher (`watchers`) delays nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from harena.errors import HarenaError
from harena.match import registry
from harena.match.agent import image
from harena.match.agent import load as agents
from harena.match.executor import replays
from harena.match.executor.config import ServerConfig
from harena.match.executor.fetch import Fetcher, FetchFailed, FetchRefused
from harena.match.executor.jobs.manifest import PodAgent
from harena.match.executor.jobs.runner import JobRun, JobRunner, MatchBroken, MatchLost, job_match
from harena.match.executor.orders import CallRefused, Entrant, Order
from harena.match.executor.replays import ReplayStore
from harena.match.executor.turns import Turns
from harena.match.executor.watchers import Watcher
from harena.match.result import AgentCode, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus, VoidCause
from harena.match.run.protocol import MatchHandle, MatchRunner
from harena.match.series import tournament
from harena.match.series.driver import Series, drive
from harena.match.series.schedule import Pairing, Schedule

SLACK_S = 15.0
"""Additional time after a game's own clock before a silent runner counts as lost."""

Event = dict[str, Any]


class _Stopped(Exception):
    """The series ends here, without a result of the game that was next."""

    def __init__(self, status: MatchStatus, error: str, cause: VoidCause | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.cause = status, error, cause


@dataclass(frozen=True, slots=True, kw_only=True)
class GameRecord:
    """A game of the series that is over."""

    number: int
    pairing: Pairing
    result: MatchResult
    """Result without replay and logs, to save memory."""
    urls: tuple[str, str] = ("", "")
    """URLs of the replay as JSON and as HTML."""


class MatchCall:
    def __init__(self, order: Order, settings: ServerConfig, *, caller: str = "") -> None:
        self.order = order
        self.caller = caller
        self.pairings: Sequence[Pairing] = _pairings(order)
        self.games: list[GameRecord] = []
        self.replay = b""
        """JSON replay of the first game, if requested."""
        self.logs: dict[int, str] = {}
        """Logs by entrant: of the first game it forfeited, otherwise of the last game."""
        self.faults: dict[int, SeatResult] = {}
        """First fault by entrant."""
        self.warnings: list[str] = []
        self.status = MatchStatus.FINISHED
        self.error = ""
        self.cause: VoidCause | None = None
        """Why it is void, when a game of it was begun."""
        self.wall_s = 0.0
        self.pulled_s = 0.0
        """Time that images took to be found or pulled. It is not part of `timeout_s`."""
        self._settings = settings
        self._lock = threading.Lock()
        self._handle: MatchHandle | JobRun | None = None
        self._stopped = ""
        self._listening = threading.Lock()
        self._watchers: list[Watcher] = []
        self._last: dict[str, tuple[int, Any]] = {}
        """Events for a new watcher: the start of the current game, and its latest step."""
        self._over = False

    # ---- from other threads ----

    def cancel(self, why: str = "the call was cancelled") -> None:
        with self._lock:
            self._stopped = self._stopped or why
            handle = self._handle
        if handle is not None:
            handle.cancel()

    @property
    def stopped(self) -> bool:
        return bool(self._stopped)

    def watch(self) -> Watcher:
        watcher = Watcher()
        with self._listening:
            for kind, (game, data) in self._last.items():
                watcher.put(kind, game, data)
            if self._over:
                watcher.end()
            self._watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        with self._listening:
            self._watchers.remove(watcher)
        watcher.end()

    def close(self, answer: object | None) -> None:
        """End the stream: watchers get the answer, if there is one, and the end."""
        with self._listening:
            self._over = True
            for watcher in self._watchers:
                if answer is not None:
                    watcher.put("result", 0, answer)
                watcher.end()

    def _tell(self, kind: str, game: int, data: Any) -> None:
        with self._listening:
            if kind == "started":
                self._last.clear()
            self._last[kind] = game, data
            for watcher in self._watchers:
                watcher.put(kind, game, data)

    # ---- the series ----

    def play(self, runner: MatchRunner | JobRunner, fetcher: Fetcher, store: ReplayStore, turns: Turns) -> None:
        """Waits for a place and plays. Never raises for what a client, an agent or a runner can do: `status` and
        `error` say how it went."""
        with turns.turn(self.caller, self.order.priority, lambda: self.stopped) as playing:
            if playing:
                self._play(runner, fetcher, store)
        if self._stopped:
            self._end(MatchStatus.CANCELLED, self._stopped)

    def _play(self, runner: MatchRunner | JobRunner, fetcher: Fetcher, store: ReplayStore) -> None:
        started = time.monotonic()
        try:
            self._series(runner, fetcher, store, started + self.order.timeout_s)
        except _Stopped as stop:
            self._end(stop.status, stop.error, stop.cause)
        except HarenaError as error:
            self._end(MatchStatus.VOID, str(error))
        finally:
            self.wall_s = time.monotonic() - started

    def _series(self, runner: MatchRunner | JobRunner, fetcher: Fetcher, store: ReplayStore, ends_at: float) -> None:
        """Ends with the first game that has no result: its caller decides whether to ask again."""
        codes = self._codes(fetcher)
        ends_at += self.pulled_s
        playable = [code for code in codes if isinstance(code, AgentCode)]
        if isinstance(runner, JobRunner) and len(playable) == len(codes):
            return self._series_as_job(runner, playable, store)

        def play(pairings: Iterator[Pairing]) -> Iterator[MatchResult]:
            for pairing in pairings:
                yield self._play_one(runner, pairing, [codes[agent] for agent in pairing.seats], ends_at)

        series = Series(tournament.Fixed(len(codes), self.pairings), _played)
        with contextlib.closing(drive(series, play)) as games:
            for pairing, result in games:
                self._end_game(pairing, result, store)
        return None

    def _series_as_job(self, runner: JobRunner, codes: Sequence[AgentCode], store: ReplayStore) -> None:
        """One Job for all games."""
        order = self.order
        entrants = zip(order.entrants, codes, strict=True)
        agents = tuple(PodAgent(code=code, image=entrant.image) for entrant, code in entrants)
        games = tuple((pairing.seats, pairing.seed) for pairing in self.pairings)
        spec = self._spec(self.pairings[0], (), order.clock.match_s)
        match = job_match(
            spec,
            agents,
            games,
            timeout_s=order.timeout_s,
            settings=self._settings,
            caller=self.caller,
            watched=order.watchable,
        )
        run = runner.run(match)
        with self._lock:
            if self._stopped:
                raise _Stopped(MatchStatus.CANCELLED, self._stopped)
            self._handle = run
        try:
            self._tell("started", 0, None)
            for result in run.results(lambda game, event: self._tell("step", game, event)):
                self._end_game(self.pairings[len(self.games)], result, store)
                if len(self.games) < len(self.pairings):
                    self._tell("started", len(self.games), None)
        except MatchLost as error:
            raise _Stopped(MatchStatus.VOID, str(error), VoidCause.WORKER_LOST) from None
        except MatchBroken as error:
            raise _Stopped(MatchStatus.VOID, str(error), VoidCause.NO_BOX) from None
        finally:
            self._handle = None
            self.logs |= run.logs
        if len(self.games) < len(self.pairings):
            raise _Stopped(MatchStatus.TIMEOUT, self._too_long())

    def _end_game(self, pairing: Pairing, result: MatchResult, store: ReplayStore) -> None:
        self._keep(pairing, result, store)
        self._tell("finished", pairing.number, self.games[-1])
        if result.status is not MatchStatus.FINISHED:
            raise _Stopped(result.status, result.error or result.reason, result.cause)

    def _keep(self, pairing: Pairing, result: MatchResult, store: ReplayStore) -> None:
        number = pairing.number
        for agent, seat in zip(pairing.seats, result.seats, strict=True):
            if agent not in self.faults:
                self.logs[agent] = seat.log
                if seat.status is not SeatStatus.OK:
                    self.faults[agent] = seat
        urls = ("", "")
        wanted = self.order.record or (self.order.include_replay and number == 0)
        try:
            if wanted and result.replay:
                entrants = [self.order.entrants[agent] for agent in pairing.seats]
                document = replays.as_json(result.replay, self._settings.replay, entrants)
                if self.order.include_replay and number == 0:
                    self.replay = document
                if self.order.record:
                    name = replays.file_name(self.order.match_id, number, caller=self.caller)
                    urls = store.write(name, document, result.replay)
        except (OSError, HarenaError) as error:
            self.warnings.append(f"no replay of game {number}: {error}")
        seats = tuple(dataclasses.replace(seat, log="") for seat in result.seats)
        bare = dataclasses.replace(result, replay=b"", seats=seats)
        self.games.append(GameRecord(number=number, pairing=pairing, result=bare, urls=urls))

    def _codes(self, fetcher: Fetcher) -> list[AgentCode | str]:
        """Code by entrant, or the error. An agent that cannot be read forfeits, and the match continues; if an agent
        cannot be fetched, nobody is to blame."""
        limits = archive_limits(self._settings)
        codes: list[AgentCode | str] = []
        for at, entrant in enumerate(self.order.entrants):
            if entrant.image:
                codes.append(self._image(entrant, f"agents[{at}].docker_image"))
                continue
            data = entrant.code
            if entrant.url and not self._stopped:
                try:
                    data = fetcher.fetch(entrant.url, cancelled=lambda: self.stopped)
                except (FetchFailed, FetchRefused) as error:
                    raise FetchFailed(f"agents[{at}].code_url: {error}") from None
            try:
                codes.append(agents.load(data, name=entrant.agent_id, limits=limits))
            except agents.AgentError as error:
                codes.append(str(error))
        return codes

    def _image(self, entrant: Entrant, field: str) -> AgentCode | str:
        began = time.monotonic()
        try:
            return image.load(
                entrant.image,
                name=entrant.agent_id,
                pulls=self._settings.images.policy,
                cancelled=lambda: self.stopped,
            )
        except (image.ImageMissing, image.PullFailed) as error:
            raise FetchFailed(f"{field}: {error}") from None
        except agents.AgentError as error:
            return str(error)
        finally:
            self.pulled_s += time.monotonic() - began

    def _spec(self, pairing: Pairing, codes: Sequence[AgentCode], left_s: float) -> MatchSpec:
        order, settings = self.order, self._settings
        return MatchSpec(
            environment=order.environment,
            agents=tuple(codes),
            seed=pairing.seed,
            match_id=order.match_id,
            clock=dataclasses.replace(order.clock, match_s=min(order.clock.match_s, left_s)),
            memory_mb=settings.resource_limits.memory_limit,
            processes=settings.resource_limits.processes,
            log_bytes=settings.sandbox.log_kb << 10,
            output_bytes=settings.sandbox.output_mb << 20,
            config=order.config,
            record=order.record or order.include_replay,
        )

    def _play_one(
        self, runner: MatchRunner | JobRunner, pairing: Pairing, seated: Sequence[AgentCode | str], ends_at: float
    ) -> MatchResult:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise _Stopped(MatchStatus.TIMEOUT, self._too_long())
        self._tell("started", pairing.number, None)
        codes = [code for code in seated if isinstance(code, AgentCode)]
        if len(codes) < len(seated):
            return self._forfeit(pairing, seated)
        spec = self._spec(pairing, codes, left_s)

        def on_event(event: Event) -> None:
            if event.get("type") == "step":
                self._tell("step", pairing.number, event)

        with self._lock:
            if self._stopped:
                raise _Stopped(MatchStatus.CANCELLED, self._stopped)
            if isinstance(runner, JobRunner):
                raise _Stopped(MatchStatus.VOID, "a match as a Job is played as a whole")
            handle = self._handle = runner.submit(spec, on_event=on_event if self.order.watchable else None)
        try:
            return handle.result(timeout=spec.clock.match_s + SLACK_S)
        except TimeoutError:
            handle.cancel()
            error = "the runner did not answer in time"
            raise _Stopped(MatchStatus.VOID, error, VoidCause.WORKER_LOST) from None
        finally:
            self._handle = None

    def _forfeit(self, pairing: Pairing, seated: Sequence[AgentCode | str]) -> MatchResult:
        losers = [seat for seat, code in enumerate(seated) if isinstance(code, str)]
        outcome = registry.make(self.order.environment, self.order.config).forfeit(losers)
        names = [self.order.entrants[agent].agent_id for agent in pairing.seats]
        seats = tuple(
            SeatResult(
                agent=names[seat],
                status=SeatStatus.LOAD if isinstance(code, str) else SeatStatus.OK,
                reason=code if isinstance(code, str) else "",
                score=outcome.scores[seat],
                cpu_s=0.0,
                moves=0,
                start_s=0.0,
                log="",
            )
            for seat, code in enumerate(seated)
        )
        return MatchResult(
            match_id=self.order.match_id,
            environment=self.order.environment,
            seed=pairing.seed,
            status=MatchStatus.FINISHED,
            winner=outcome.winner,
            reason=f"{names[losers[0]]}: {seats[losers[0]].reason}",
            steps=0,
            wall_s=0.0,
            seats=seats,
        )

    def _too_long(self) -> str:
        return f"the match took longer than {self.order.timeout_s:g} s (timeout_sec)"

    def _end(self, status: MatchStatus, error: str, cause: VoidCause | None = None) -> None:
        self.status, self.error, self.cause = status, error, cause


def _played(schedule: Schedule, pairing: Pairing, result: MatchResult) -> None:
    """The answer to the call is made of the games themselves: the schedule need not know how they went."""
    schedule.report(pairing)


def archive_limits(settings: ServerConfig) -> agents.ArchiveLimits:
    """An agent is as large as one that can be fetched, however it came."""
    return agents.ArchiveLimits(
        total_bytes=settings.fetch.max_mb << 20, file_bytes=settings.validation.max_file_size_mb << 20
    )


def _pairings(order: Order) -> list[Pairing]:
    agents_count = len(order.entrants)
    if order.games == 1:  # the seed as it was given, so that the same match can be played anywhere
        return [Pairing(seats=tuple(range(agents_count)), seed=order.seed, round=1, number=0)]
    return tournament.series(agents_count, order.games, mirror=True, seed=order.seed)[: order.games]


class RunningMatches:
    """The accepted matches by caller and id, and how many more there may be."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._matches: dict[tuple[str, str], MatchCall] = {}
        self._others = 0
        self._draining = False
        self._condition = threading.Condition()

    def __len__(self) -> int:
        return len(self._matches)

    @property
    def draining(self) -> bool:
        return self._draining

    def get(self, caller: str, match_id: str) -> MatchCall | None:
        with self._condition:
            return self._matches.get((caller, match_id))

    def add(self, match: MatchCall) -> None:
        with self._condition:
            name = (match.caller, match.order.match_id)
            if name in self._matches:
                raise CallRefused(
                    grpc.StatusCode.ALREADY_EXISTS, f"match_id: {match.order.match_id!r} is running; choose another"
                )
            self._check_room()
            self._matches[name] = match

    def remove(self, match: MatchCall) -> None:
        with self._condition:
            del self._matches[match.caller, match.order.match_id]
            self._condition.notify_all()

    def __enter__(self) -> RunningMatches:
        """Room for something else that plays: a validation."""
        with self._condition:
            self._check_room()
            self._others += 1
        return self

    def __exit__(self, *exc: object) -> None:
        with self._condition:
            self._others -= 1
            self._condition.notify_all()

    def _check_room(self) -> None:
        if self._draining:
            raise CallRefused(grpc.StatusCode.UNAVAILABLE, "the executor is shutting down; try another one")
        if len(self._matches) + self._others >= self.limit:
            raise CallRefused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self.limit} matches are running or waiting, the limit (executor.max_matches); try again later",
            )

    def drain(self, grace_s: float) -> None:
        """Accept no new matches. Running ones have `grace_s` to finish and are then cancelled."""
        with self._condition:
            self._draining = True
            if self._condition.wait_for(self._empty, grace_s):
                return
        self.cancel_all()
        with self._condition:  # a validation has no answer to give: it ends with its call
            self._condition.wait_for(lambda: not self._matches, SLACK_S)

    def cancel_all(self) -> None:
        with self._condition:
            running = list(self._matches.values())
        for match in running:
            match.cancel("the executor is shutting down")

    def _empty(self) -> bool:
        return not self._matches and not self._others
