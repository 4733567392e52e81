"""Verified evaluation: the platform plays an agent through episodes on hidden seeds and counts the score itself.

Promises: the same agent and the same secret give the same result; all submissions of a season play the same episodes;
an agent cannot learn their seeds, and nothing that it prints counts. An agent's own fault is a value, an `Evaluation`
that failed; a fault of the platform or of the game is raised as `EvaluationVoid`, which says whether to try again.

An episode is a game that starts from nothing: that defines the score. Games in lockstep are three times as quick, and
are the same games unless the agent throws dice, remembers across games, or needs room for all of them at once. So the
episodes are played in lockstep, and those that are recorded (the first, the best, the worst) also alone, where an agent
that differs, or that fails, shows itself; then only what it does alone counts.
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
from harena.match import lockstep, registry
from harena.match.play import Rack, on_one_processor, play
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.match.runner import Handle, Runner
from harena.statistics import Interval

EPISODES = 20
MAX_EPISODES = 1000
CLOCK = Clock(start_s=30, move_s=5, match_s=300)
"""Of each episode, but for match_s: that is for all of them, in lockstep or alone; as long as a script has."""
MIN_SECRET = 16
"""Bytes; `new_secret` makes twice as many."""
BOOTSTRAP_SEED = 0
"""Public, so that anybody can get the interval from the returns."""
LOG_CHARACTERS = 4000
POLL_S = 0.05
LOST = "its box was lost"
"""A seat's word for a crash that was not the agent's."""

Cancel = Callable[[], bool]


class Status(enum.Enum):
    OK = "ok"
    FAILED = "failed"


class Cancelled(HarenaError):
    """Somebody called it off. Nothing counts."""


class EvaluationVoid(BoxError):
    """The platform or the game failed: nobody is to blame, nothing counts. Playing again is SAFE, or will NEVER help
    because the game itself is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A replay. It holds its episode's seed: not for anybody before the season has ended."""

    episode: int
    roles: tuple[str, ...]
    """Of first, best and worst, all that it is."""
    replay: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    environment: str
    """With the version that was played."""
    season: str
    """`commitment` to the secret that the seeds came from."""
    status: Status
    fault: SeatStatus = SeatStatus.OK
    """What the agent did wrong, when it failed."""
    reason: str = ""
    """In words for its owner; empty when all went well."""
    score: float | None = None
    """The mean return; None when it failed."""
    interval: Interval | None = None
    """95 % around the mean, by bootstrap."""
    iqm: float | None = None
    """Mean of the middle half: neither luck nor accidents."""
    median: float | None = None
    returns: tuple[float, ...] = ()
    """By episode."""
    steps: tuple[int, ...] = ()
    cpu_s: float = 0.0
    """The agent's, of all episodes that count."""
    wall_s: float = 0.0
    """Playing, waiting for a worker excluded."""
    log: str = ""
    """The end of what it printed in its first episode, or in the one that it failed in. For its owner only."""
    replays: tuple[Recording, ...] = ()

    def digest(self) -> str:
        """Of what an evaluation of the same agent with the same secret must give again; times and words are not."""
        decided = [self.environment, self.season, self.fault.value, [value.hex() for value in self.returns], self.steps]
        return hashlib.sha256(json.dumps(decided).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """All but the log and the replays, which are not for everybody."""
        return {
            "environment": self.environment, "season": self.season, "status": self.status.value,
            "fault": self.fault.value, "reason": self.reason, "score": self.score,
            "interval": self.interval.as_json() if self.interval else None, "iqm": self.iqm, "median": self.median,
            "returns": list(self.returns), "steps": list(self.steps), "cpu_s": round(self.cpu_s, 6),
            "wall_s": round(self.wall_s, 6), "digest": self.digest(),
        }  # fmt: skip


# The seeds of a season


def new_secret() -> bytes:
    return secrets.token_bytes(2 * MIN_SECRET)


def commitment(secret: bytes) -> str:
    """To be published when a season begins: shows at its end that the secret was not changed."""
    return hashlib.sha256(b"harena season\n" + secret).hexdigest()


def seeds(secret: bytes, environment: str, episodes: int = EPISODES) -> list[int]:
    """Of the episodes of a season, by the environment's full id. 63 bits: a search through all of them for the one
    that fits an observation, or the agent's own seed, finds none."""
    if len(secret) < MIN_SECRET:
        raise SpecError(f"a season's secret has at least {MIN_SECRET} bytes; `new_secret` makes one")
    return [_derived(secret, f"episode {number} of {environment}") for number in range(episodes)]


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
) -> Evaluation:
    """In an environment of one seat. `table` is where it is played: a Rack of this thread, or a Runner with processes
    of its own; both give the same. `name` begins the match ids in the replays. Raises SpecError, UnknownGame,
    Cancelled, EvaluationVoid."""
    if not 1 <= episodes <= MAX_EPISODES:
        raise SpecError(f"episodes={episodes}: from 1 to {MAX_EPISODES}")
    game = registry.make(environment)
    if game.seats != 1:
        raise SpecError(f"{game.id} has {game.seats} seats: agents meet there in matches; evaluations are for one seat")
    hidden = seeds(secret, game.id, episodes)
    spec = MatchSpec(
        environment=game.id, agents=(code,), seed=_derived(secret, f"dice in {game.id}"), match_id=name, clock=clock,
        memory_mb=memory_mb, processes=processes,
    )  # fmt: skip
    places = _OnRack(table, cancelled) if isinstance(table, Rack) else _OnRunner(table, cancelled)
    playing = _Playing(spec, hidden, places)
    empty = Evaluation(environment=game.id, season=commitment(secret), status=Status.OK)
    try:
        return _summary(empty, playing, playing.episodes())
    except _Failed as failure:
        return dataclasses.replace(
            empty, status=Status.FAILED, fault=failure.fault, reason=failure.reason, cpu_s=playing.cpu_s,
            wall_s=playing.wall_s, log=_tail(failure.log),
        )  # fmt: skip


class _Failed(Exception):
    """By the agent's own fault."""

    def __init__(self, fault: SeatStatus, reason: str, log: str) -> None:
        super().__init__(reason)
        self.fault = fault
        self.reason = reason
        self.log = log


class _Playing:
    """Plays the episodes of one evaluation, each alone at most once. What is played alone has match_s in all, and so
    has lockstep: whoever must be played in both ways pays for one."""

    def __init__(self, spec: MatchSpec, seeds: Sequence[int], places: _Places) -> None:
        self._spec = spec
        self._seeds = seeds
        self._places = places
        self.alone: dict[int, MatchResult] = {}
        self._alone_s = 0.0
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def episodes(self) -> list[MatchResult]:
        """One result for each, all of them finished without a fault. The first goes alone: whoever cannot play, or
        thinks for ever, is found out there for the price of one move."""
        self._play_alone([0])
        together = self._play_together()
        if together is not None and self._same_alone(together):
            return together
        self._play_alone(range(len(self._seeds)))
        return [self.alone[number] for number in range(len(self._seeds))]

    def _play_together(self) -> list[MatchResult] | None:
        if self._spec.agents[0].command or len(self._seeds) == 1:
            return None
        results = self._places.together(self._spec, self._seeds)
        self._account(results)
        if any(result.status is MatchStatus.TIMEOUT for result in results):
            raise self._out_of_time(results[0])
        return None if any(_faulty(result) for result in results) else results

    def _same_alone(self, together: list[MatchResult]) -> bool:
        numbers = [*picks(_returns(together))]
        for at in range(0, len(numbers), self._places.at_once):
            part = numbers[at : at + self._places.at_once]
            self._play_alone(part)
            if any(_differ(together[number], self.alone[number]) for number in part):
                return False
        return True

    def _play_alone(self, numbers: Sequence[int]) -> None:
        todo = [number for number in numbers if number not in self.alone]
        while todo:
            part, todo = todo[: self._places.at_once], todo[self._places.at_once :]
            results = self._places.alone([self._one(number) for number in part])
            for number, result in zip(part, results, strict=True):
                self._account([result])
                self._alone_s += result.wall_s
                if result.status is MatchStatus.TIMEOUT:
                    raise self._out_of_time(result)
                if result.seats[0].reason == LOST:
                    raise EvaluationVoid("the agent's box was lost", retry=Retry.SAFE)
                if _faulty(result):
                    raise self._failed(number, result.seats[0])
                self.alone[number] = result

    def _one(self, number: int) -> MatchSpec:
        spec = self._spec
        clock = dataclasses.replace(spec.clock, match_s=max(0.001, spec.clock.match_s - self._alone_s))
        return dataclasses.replace(spec, seed=self._seeds[number], match_id=f"{spec.match_id}-{number}", clock=clock)

    def _account(self, results: Sequence[MatchResult]) -> None:
        for result in results:
            if result.status is MatchStatus.CANCELLED:
                raise Cancelled(result.error)
            if result.status is MatchStatus.VOID:
                # A game names itself; it will fail on the same seeds again.
                retry = Retry.NEVER if result.error.startswith(result.environment) else Retry.SAFE
                raise EvaluationVoid(result.error, retry=retry)
            if not all(map(math.isfinite, result.scores)):
                raise EvaluationVoid(f"{result.environment} gave a score of {result.scores[0]}", retry=Retry.NEVER)
            self.wall_s += result.wall_s
            self.cpu_s += result.seats[0].cpu_s

    def _failed(self, number: int, seat: SeatResult) -> _Failed:
        move = f", move {seat.moves + 1}" if seat.moves else ""
        where = "" if seat.status is SeatStatus.LOAD else f" in episode {number + 1} of {len(self._seeds)}{move}"
        return _Failed(seat.status, f"{seat.status.value}{where}: {seat.reason or 'no reason was given'}", seat.log)

    def _out_of_time(self, result: MatchResult) -> _Failed:
        limit = self._spec.clock.match_s
        reason = f"timeout: its {len(self._seeds)} episodes took longer than {limit:g} s together; think less per move"
        return _Failed(SeatStatus.TIMEOUT, reason, result.seats[0].log)


def picks(returns: Sequence[float]) -> dict[int, tuple[str, ...]]:
    """The episodes worth a replay, and what they are; of equal ones the earliest."""
    roles = {"first": 0, "best": returns.index(max(returns)), "worst": returns.index(min(returns))}
    return {number: tuple(role for role, at in roles.items() if at == number) for number in sorted({*roles.values()})}


def iqm(values: Sequence[float]) -> float:
    """Of n values, the lowest and the highest n // 4 do not count."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def _summary(empty: Evaluation, playing: _Playing, results: Sequence[MatchResult]) -> Evaluation:
    returns = _returns(results)
    alone = playing.alone
    return dataclasses.replace(
        empty,
        score=fmean(returns),
        interval=statistics.bootstrap(returns, seed=BOOTSTRAP_SEED),
        iqm=iqm(returns),
        median=median(returns),
        returns=tuple(returns),
        steps=tuple(result.steps for result in results),
        cpu_s=sum(result.seats[0].cpu_s for result in results),
        wall_s=playing.wall_s,
        log=_tail(alone[0].seats[0].log),
        replays=tuple(
            Recording(episode=number, roles=roles, replay=alone[number].replay)
            for number, roles in picks(returns).items()
        ),
    )


def _returns(results: Sequence[MatchResult]) -> list[float]:
    return [result.scores[0] for result in results]


def _differ(one: MatchResult, other: MatchResult) -> bool:
    return (one.scores, one.steps) != (other.scores, other.steps)


def _faulty(result: MatchResult) -> bool:
    return result.seats[0].status is not SeatStatus.OK


def _tail(log: str) -> str:
    return log if len(log) <= LOG_CHARACTERS else f"[…]\n{log[-LOG_CHARACTERS:]}"


# Where it is played


class _Places(Protocol):
    at_once: int
    """Games that go side by side when each is played alone."""

    def together(self, spec: MatchSpec, seeds: Sequence[int]) -> list[MatchResult]: ...
    def alone(self, specs: Sequence[MatchSpec]) -> list[MatchResult]: ...


class _OnRack:
    at_once = 1

    def __init__(self, rack: Rack, cancelled: Cancel | None) -> None:
        self._rack = rack
        self._cancelled = cancelled

    def together(self, spec: MatchSpec, seeds: Sequence[int]) -> list[MatchResult]:
        with on_one_processor():  # as a runner's workers are
            return lockstep.evaluate(spec, seeds, rack=self._rack, cancelled=self._cancelled)

    def alone(self, specs: Sequence[MatchSpec]) -> list[MatchResult]:
        return [play(spec, rack=self._rack, cancelled=self._cancelled) for spec in specs]


class _OnRunner:
    def __init__(self, runner: Runner, cancelled: Cancel | None) -> None:
        self._runner = runner
        self._cancelled = cancelled
        self.at_once = runner.workers

    def together(self, spec: MatchSpec, seeds: Sequence[int]) -> list[MatchResult]:
        """By one worker: which games share a process must not depend on how many processors there are."""
        return self._results(self._runner.submit(spec, seeds=seeds))

    def alone(self, specs: Sequence[MatchSpec]) -> list[MatchResult]:
        handles = [self._runner.submit(spec) for spec in specs]
        try:
            return [self._results(handle)[0] for handle in handles]
        finally:
            for handle in handles:
                handle.cancel()

    def _results(self, handle: Handle) -> list[MatchResult]:
        while True:
            try:
                return handle.results(POLL_S if self._cancelled else None)
            except TimeoutError:
                if self._cancelled and self._cancelled():
                    handle.cancel()
            except (BoxError, SpecError):
                raise
            except HarenaError as error:
                raise EvaluationVoid(str(error), retry=Retry.UNKNOWN) from error
