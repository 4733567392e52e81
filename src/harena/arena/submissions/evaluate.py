"""Verified evaluation: the platform plays an agent through episodes and counts the score itself.

Guarantees: the same agent and the same secret give the same result; all submissions of a season play the same hidden
episodes, each in its own order; every episode starts in a new process on empty files, so an agent cannot carry anything
from one to the next; its own seed follows from its code alone, so nothing that it is given tells one episode from
another. An agent's own fault is a value, an `EvaluationRun` that failed; a fault of the platform or of the game is
raised as `EvaluationVoid`, which says whether to try again. Does not decide who may see what: an evaluation on hidden
seeds holds returns, steps and logs that must not be shown before the season ends.

One file: each of these guarantees depends on the seeds, on the episodes and on what is published of them.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Protocol

from harena import statistics
from harena.errors import BoxError, HarenaError, Retry, SpecError
from harena.match import registry
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus, VoidCause
from harena.match.run.play import Rack, play
from harena.match.run.protocol import wait
from harena.match.run.runner import Runner
from harena.statistics import Interval

EPISODES = 20
MAX_EPISODES = 1000
PRACTICE_EPISODES = 5
FINAL_EPISODES = 100
CLOCK = Clock(start_s=30, move_s=5, match_s=300)
"""The limits of each episode, except match_s, which is for all of them together; as long as a script has."""
MIN_SECRET = 16
"""Bytes; `new_secret` makes twice as many."""
BOOTSTRAP_SEED = 0
"""Public, so that anybody can get the interval from the returns."""
PUBLISHED_DIGITS = 2
"""Digits of the interval's half width that a published score has. The rest says nothing about the agent, and where
rewards are real numbers an agent could write what it saw into them."""
EXACT_DIGITS = 6
"""Significant digits of a published score whose interval has no width."""
LOG_CHARACTERS = 4000

Cancel = Callable[[], bool]


class EvaluationStatus(enum.Enum):
    OK = "ok"
    FAILED = "failed"


class EvaluationCancelled(HarenaError):
    """Somebody called it off. Nothing counts."""


class EvaluationVoid(BoxError):
    """The platform or the game failed: nobody is to blame, nothing counts. Playing again is SAFE, or will NEVER help
    because the game itself is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A replay. It holds its episode's seed: a hidden one is not for anybody before the season has ended."""

    episode: int
    roles: tuple[str, ...] = ()
    """Which of first, best and worst it is."""
    replay: bytes
    score: float
    steps: int
    fault: SeatStatus = SeatStatus.OK
    log: str = ""
    """The end of what the agent printed. Practice episodes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenEpisodes:
    """Episodes of a season as who plays them needs to know them."""

    seeds: tuple[int, ...]
    order: tuple[int, ...]
    """In which they are played."""
    season: str
    """`commitment` to the secret that the seeds came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRun:
    environment: str
    """Id of the environment, including the version that was played."""
    season: str
    """`commitment` to the secret that the seeds came from, or PRACTICE."""
    status: EvaluationStatus
    fault: SeatStatus = SeatStatus.OK
    """What the agent did wrong, when it failed."""
    reason: str = ""
    """Explains the outcome to its owner; empty if nothing went wrong."""
    score: float | None = None
    """The mean return; None when it failed."""
    interval: Interval | None = None
    """95 % around the mean, by bootstrap."""
    iqm: float | None = None
    """Mean of the middle half: neither luck nor accidents."""
    median: float | None = None
    returns: tuple[float, ...] = ()
    """The return of each episode."""
    steps: tuple[int, ...] = ()
    cpu_s: float = 0.0
    """The agent's, of all episodes that count."""
    wall_s: float = 0.0
    """Playing, waiting for a worker excluded."""
    log: str = ""
    """The end of what it printed in its first episode, or in the one that it failed in."""
    replays: tuple[Recording, ...] = ()

    def digest(self) -> str:
        """Hash of what a second evaluation of the same agent with the same secret must reproduce. Times and
        texts are left out."""
        decided = [self.environment, self.season, self.fault.value, [value.hex() for value in self.returns], self.steps]
        return hashlib.sha256(json.dumps(decided).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """All but the log and the replays, which are not for everybody."""
        return {
            "environment": self.environment,
            "season": self.season,
            "status": self.status.value,
            "fault": self.fault.value,
            "reason": self.reason,
            "score": self.score,
            "interval": self.interval.as_json() if self.interval else None,
            "iqm": self.iqm,
            "median": self.median,
            "returns": list(self.returns),
            "steps": list(self.steps),
            "cpu_s": round(self.cpu_s, 6),
            "wall_s": round(self.wall_s, 6),
            "digest": self.digest(),
        }


# Seeds


PRACTICE = "practice"
_PRACTICE_KEY = b"harena practice seeds, which everybody may know"


def new_secret() -> bytes:
    return secrets.token_bytes(2 * MIN_SECRET)


def commitment(secret: bytes) -> str:
    """To be published when a season begins: shows at its end that the secret was not changed."""
    return hashlib.sha256(b"harena season\n" + secret).hexdigest()


def seeds(secret: bytes, environment: str, episodes: int = EPISODES) -> list[int]:
    """The seeds of a season's episodes, by the environment's full id. They have 63 bits: a search for the one that fits
    an observation finds none."""
    if len(secret) < MIN_SECRET:
        raise SpecError(f"a season's secret has at least {MIN_SECRET} bytes; `new_secret` makes one")
    return [_derived(secret, f"episode {number} of {environment}") for number in range(episodes)]


def practice_seeds(environment: str, episodes: int = PRACTICE_EPISODES) -> list[int]:
    """The same for everybody, in every season."""
    return [_derived(_PRACTICE_KEY, f"practice episode {number} of {environment}") for number in range(episodes)]


def fingerprint(code: AgentCode) -> str:
    """Names what is run: its files and how it is started, not whose it is."""
    parts: list[Any] = [code.entry, list(code.command)]
    parts += [code.image] if code.image else []
    parts += [[path, hashlib.sha256(data).hexdigest()] for path, data in sorted(code.files.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def dice_seed(code: AgentCode) -> int:
    """What the agent's own seed follows from, in every episode that it plays: its code and nothing else. A seed that
    differed from episode to episode would name the episode."""
    return int(fingerprint(code)[:15], 16)


def order(secret: bytes, code: AgentCode, episodes: int) -> list[int]:
    """Return the order in which the episodes are played. Each code has its own, so a position says nothing about
    the episode."""
    own = hmac.digest(secret, f"harena order of {fingerprint(code)}".encode(), "sha256")
    return sorted(range(episodes), key=lambda number: hmac.digest(own, str(number).encode(), "sha256"))


def _derived(secret: bytes, what: str) -> int:
    return int.from_bytes(hmac.digest(secret, f"harena {what}".encode(), "sha256")[:8], "little") >> 1


# An evaluation


def evaluate(
    code: AgentCode,
    environment: str,
    *,
    secret: bytes,
    table: Rack | Runner,
    episodes: int = EPISODES,
    clock: Clock = CLOCK,
    memory_mb: int = 512,
    processes: int = 50,
    name: str = "evaluation",
    cancelled: Cancel | None = None,
) -> EvaluationRun:
    """On hidden seeds, in an environment of one seat. `table` is where it is played: a Rack of this thread, or a Runner
    with processes of its own; both give the same. `name` begins the match ids in the replays. Raises SpecError,
    UnknownGame, Cancelled, EvaluationVoid."""
    return evaluate_on(
        code,
        environment,
        hidden_episodes(secret, code, environment, episodes),
        table=table,
        clock=clock,
        memory_mb=memory_mb,
        processes=processes,
        name=name,
        cancelled=cancelled,
    )


def hidden_episodes(secret: bytes, code: AgentCode, environment: str, episodes: int) -> HiddenEpisodes:
    """All that playing them needs to know of the secret."""
    full = _spec(code, environment, episodes, CLOCK, 512, 50, "").environment
    return HiddenEpisodes(
        seeds=tuple(seeds(secret, full, episodes)),
        order=tuple(order(secret, code, episodes)),
        season=commitment(secret),
    )


def evaluate_on(
    code: AgentCode,
    environment: str,
    hidden: HiddenEpisodes,
    *,
    table: Rack | Runner,
    clock: Clock = CLOCK,
    memory_mb: int = 512,
    processes: int = 50,
    name: str = "evaluation",
    cancelled: Cancel | None = None,
) -> EvaluationRun:
    """As `evaluate`, on episodes that `hidden_episodes` made."""
    spec = _spec(code, environment, len(hidden.seeds), clock, memory_mb, processes, name)
    playing = _Playing(spec, hidden.seeds, hidden.order, _places(table, cancelled))
    empty = EvaluationRun(environment=spec.environment, season=hidden.season, status=EvaluationStatus.OK)
    try:
        return _summary(empty, playing, playing.episodes())
    except _Failed as failure:
        return _failure(empty, playing, failure)


def practice(
    code: AgentCode,
    environment: str,
    *,
    table: Rack | Runner,
    episodes: int = PRACTICE_EPISODES,
    clock: Clock = CLOCK,
    memory_mb: int = 512,
    processes: int = 50,
    name: str = "practice",
    cancelled: Cancel | None = None,
) -> EvaluationRun:
    """Evaluate on seeds that everybody may know: every episode is recorded with its log, also those before a
    failure and the one that failed."""
    spec = _spec(code, environment, episodes, clock, memory_mb, processes, name)
    public = practice_seeds(spec.environment, episodes)
    playing = _Playing(spec, public, range(episodes), _places(table, cancelled), "practice episode")
    empty = EvaluationRun(environment=spec.environment, season=PRACTICE, status=EvaluationStatus.OK)
    try:
        done = _summary(empty, playing, playing.episodes())
    except _Failed as failure:
        done = _failure(empty, playing, failure)
    return dataclasses.replace(
        done, replays=tuple(_recording(number, result, log=True) for number, result in sorted(playing.played.items()))
    )


def _spec(
    code: AgentCode, environment: str, episodes: int, clock: Clock, memory_mb: int, processes: int, name: str
) -> MatchSpec:
    if not 1 <= episodes <= MAX_EPISODES:
        raise SpecError(f"episodes={episodes}: from 1 to {MAX_EPISODES}")
    game = registry.make(environment)
    if game.seats != 1:
        raise SpecError(f"{game.id} has {game.seats} seats: agents meet there in matches; evaluations are for one seat")
    return MatchSpec(
        environment=game.id,
        agents=(code,),
        agents_seed=dice_seed(code),
        match_id=name,
        clock=clock,
        memory_mb=memory_mb,
        processes=processes,
    )


class _Failed(Exception):
    """The evaluation failed by the agent's own fault."""

    def __init__(self, fault: SeatStatus, reason: str, log: str) -> None:
        super().__init__(reason)
        self.fault = fault
        self.reason = reason
        self.log = log


class _Playing:
    """Plays the episodes of one evaluation, each in a process of its own. All of them have match_s together."""

    def __init__(
        self, spec: MatchSpec, seeds: Sequence[int], order: Sequence[int], places: _Places, what: str = "episode"
    ) -> None:
        self._what = what
        self._spec = spec
        self._seeds = seeds
        self._order = order
        self._places = places
        self.played: dict[int, MatchResult] = {}
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def episodes(self) -> list[MatchResult]:
        """One result for each, all of them finished without a fault. The first is played alone: an agent that cannot
        play, or never answers, is found out there for the price of one move."""
        self._play(self._order[:1])
        for at in range(1, len(self._order), self._places.at_once):
            self._play(self._order[at : at + self._places.at_once])
        return [self.played[number] for number in range(len(self._seeds))]

    def _play(self, numbers: Sequence[int]) -> None:
        results = self._places.play([self._one(number) for number in numbers])
        for number, result in zip(numbers, results, strict=True):
            self._account(result)
            self.played[number] = result
            if result.status is MatchStatus.TIMEOUT:
                raise self._out_of_time(result)
            if result.seats[0].status is not SeatStatus.OK:
                raise self._failed(number, result.seats[0])

    def _one(self, number: int) -> MatchSpec:
        spec = self._spec
        clock = dataclasses.replace(spec.clock, match_s=max(0.001, spec.clock.match_s - self.wall_s))
        return dataclasses.replace(spec, seed=self._seeds[number], match_id=f"{spec.match_id}-{number}", clock=clock)

    def _account(self, result: MatchResult) -> None:
        if result.status is MatchStatus.CANCELLED:
            raise EvaluationCancelled(result.error)
        if result.status is MatchStatus.VOID:
            # The game would fail on the same seeds again.
            retry = Retry.NEVER if result.cause is VoidCause.GAME else Retry.SAFE
            raise EvaluationVoid(result.error, retry=retry)
        if not all(map(math.isfinite, result.scores)):
            raise EvaluationVoid(f"{result.environment} gave a score of {result.scores[0]}", retry=Retry.NEVER)
        self.wall_s += result.wall_s
        self.cpu_s += result.seats[0].cpu_s

    def _failed(self, number: int, seat: SeatResult) -> _Failed:
        move = f", move {seat.moves + 1}" if seat.moves else ""
        where = "" if seat.status is SeatStatus.LOAD else f" in {self._what} {number + 1} of {len(self._seeds)}{move}"
        return _Failed(seat.status, f"{seat.status.value}{where}: {seat.reason or 'no reason was given'}", seat.log)

    def _out_of_time(self, result: MatchResult) -> _Failed:
        limit = self._spec.clock.match_s
        reason = f"timeout: its {len(self._seeds)} episodes took longer than {limit:g} s together; think less per move"
        return _Failed(SeatStatus.TIMEOUT, reason, result.seats[0].log)


def _failure(empty: EvaluationRun, playing: _Playing, failure: _Failed) -> EvaluationRun:
    return dataclasses.replace(
        empty,
        status=EvaluationStatus.FAILED,
        fault=failure.fault,
        reason=failure.reason,
        cpu_s=playing.cpu_s,
        wall_s=playing.wall_s,
        log=_tail(failure.log),
    )


def published(score: float, interval: Interval | None) -> tuple[float, float | None, float | None]:
    """Score, low and high as everybody may see them: with PUBLISHED_DIGITS digits of the interval's half width."""
    low = interval.low if interval and math.isfinite(interval.low) else None
    high = interval.high if interval and math.isfinite(interval.high) else None
    half = (high - low) / 2 if low is not None and high is not None else 0.0
    if half > 0:
        digits = PUBLISHED_DIGITS - 1 - math.floor(math.log10(half))
    else:
        digits = EXACT_DIGITS - 1 - math.floor(math.log10(abs(score))) if score else 0
    digits = max(-300, min(300, digits))

    def cut(value: float | None) -> float | None:
        return None if value is None else round(value, digits)

    return round(score, digits), cut(low), cut(high)


def checked(run: EvaluationRun, *, environment: str, season: str, episodes: int) -> EvaluationRun:
    """A run that was played elsewhere, with everything that follows from its returns computed here. Raises SpecError
    when it is not a run of these episodes."""
    if run.status is EvaluationStatus.FAILED:
        if run.fault is SeatStatus.OK:
            raise SpecError("a failed evaluation without a fault")
        return dataclasses.replace(
            run, environment=environment, season=season, score=None, interval=None, iqm=None, median=None, returns=()
        )
    if len(run.returns) != episodes or len(run.steps) != episodes or not all(map(math.isfinite, run.returns)):
        raise SpecError(f"an evaluation of {len(run.returns)} episodes where {episodes} were to be played")
    if any(not 0 <= one.episode < episodes or not math.isfinite(one.score) for one in run.replays):
        raise SpecError("a replay of an episode that there is not")
    return dataclasses.replace(run, environment=environment, season=season, **_figures(run.returns))


def _figures(returns: Sequence[float]) -> dict[str, Any]:
    return {
        "score": fmean(returns),
        # Sorted: which return is whose must not show in the interval.
        "interval": statistics.bootstrap(sorted(returns), seed=BOOTSTRAP_SEED),
        "iqm": iqm(returns),
        "median": median(returns),
    }


def picks(returns: Sequence[float]) -> dict[int, tuple[str, ...]]:
    """The episodes worth a replay, and what they are; of equal ones the earliest."""
    roles = {"first": 0, "best": returns.index(max(returns)), "worst": returns.index(min(returns))}
    return {number: tuple(role for role, at in roles.items() if at == number) for number in sorted({*roles.values()})}


def iqm(values: Sequence[float]) -> float:
    """Return the interquartile mean: of n values, the lowest and the highest n // 4 do not count."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def _summary(empty: EvaluationRun, playing: _Playing, results: Sequence[MatchResult]) -> EvaluationRun:
    returns = _returns(results)
    return dataclasses.replace(
        empty,
        **_figures(returns),
        returns=tuple(returns),
        steps=tuple(result.steps for result in results),
        cpu_s=playing.cpu_s,
        wall_s=playing.wall_s,
        log=_tail(results[0].seats[0].log),
        replays=tuple(
            dataclasses.replace(_recording(number, results[number]), roles=roles)
            for number, roles in picks(returns).items()
        ),
    )


def _recording(number: int, result: MatchResult, *, log: bool = False) -> Recording:
    seat = result.seats[0]
    return Recording(
        episode=number,
        replay=result.replay,
        score=seat.score,
        steps=result.steps,
        fault=seat.status,
        log=_tail(seat.log) if log else "",
    )


def _returns(results: Sequence[MatchResult]) -> list[float]:
    return [result.scores[0] for result in results]


def _tail(log: str) -> str:
    return log if len(log) <= LOG_CHARACTERS else f"[…]\n{log[-LOG_CHARACTERS:]}"


# Where it is played


class _Places(Protocol):
    at_once: int
    """Episodes that are played side by side."""

    def play(self, specs: Sequence[MatchSpec]) -> list[MatchResult]: ...


def _places(table: Rack | Runner, cancelled: Cancel | None) -> _Places:
    return _OnRack(table, cancelled) if isinstance(table, Rack) else _OnRunner(table, cancelled)


class _OnRack:
    at_once = 1

    def __init__(self, rack: Rack, cancelled: Cancel | None) -> None:
        self._rack = rack
        self._cancelled = cancelled

    def play(self, specs: Sequence[MatchSpec]) -> list[MatchResult]:
        return [play(spec, rack=self._rack, cancelled=self._cancelled) for spec in specs]


class _OnRunner:
    def __init__(self, runner: Runner, cancelled: Cancel | None) -> None:
        self._runner = runner
        self._cancelled = cancelled
        self.at_once = runner.workers

    def play(self, specs: Sequence[MatchSpec]) -> list[MatchResult]:
        handles = [self._runner.submit(spec) for spec in specs]
        try:
            return [wait(handle, self._cancelled)[0] for handle in handles]
        except (BoxError, SpecError):
            raise
        except HarenaError as error:
            raise EvaluationVoid(str(error), retry=Retry.UNKNOWN) from error
        finally:
            for handle in handles:
                handle.cancel()
