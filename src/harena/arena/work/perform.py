"""Does what an order says, on this machine. Knows no database and no network.

Guarantees: an agent's or a script's own fault is part of the answer; what the platform failed at is raised, as job
handlers do. Results on hidden episodes are held back until one of a few moments after the start, so that the time they
take says nothing about the episodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harena import trace
from harena.arena.queue.workers import TryAgain
from harena.arena.submissions import evaluate, script
from harena.arena.submissions.evaluate import EvaluationRun, EvaluationStatus
from harena.arena.work.orders import (
    Answer,
    EntryOrder,
    EvaluationOrder,
    MatchOrder,
    Order,
    PlayedEntry,
    PlayedEvaluation,
    PlayedMatch,
    PlayedScript,
    ScriptOrder,
)
from harena.match.agent import image, validate
from harena.match.agent.image import NO_PULLS, PullPolicy
from harena.match.result import AgentCode, MatchResult, MatchSpec
from harena.match.run.protocol import wait
from harena.match.run.runner import Runner
from harena.sandbox.box import Sandbox

POLL_S = 0.05
MATCH_POLL_S = 0.2
RELEASE_S, RELEASE_FACTOR = 0.25, math.sqrt(2)
"""Results on hidden episodes are published so long after the start of their job, or a power of the factor later."""

Cancelled = Callable[[], bool]
OnFrame = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a worker has to work with."""

    runner: Runner
    lease: Callable[[], Sandbox] = script.new_box
    """Gives a box of `script.box_spec` for a script."""
    pulls: PullPolicy = NO_PULLS


def perform(order: Order, bench: Bench, cancelled: Cancelled, on_frame: OnFrame | None = None) -> Answer:
    match order:
        case EvaluationOrder():
            return _evaluate(order, bench, cancelled)
        case EntryOrder():
            return _enter(order, bench, cancelled)
        case ScriptOrder():
            with trace.span("box script") as span:
                run = script.run(order.code, order.environment, lease=bench.lease, cancelled=cancelled)
                span.note(cpu_s=run.cpu_s, wall_s=run.wall_s, peak_mb=run.peak_mb)
            return PlayedScript(run=run)
        case MatchOrder():
            _have(bench, *order.spec.agents)
            handle = bench.runner.submit(order.spec, on_frame)
            return PlayedMatch(result=wait(handle, cancelled, MATCH_POLL_S)[0])


def _evaluate(order: EvaluationOrder, bench: Bench, cancelled: Cancelled) -> PlayedEvaluation:
    """Practice first, for the owner's eyes; an agent that cannot get through it plays no hidden episodes."""
    began = time.monotonic()
    _have(bench, order.code)
    practice: EvaluationRun | None = None
    options: dict[str, Any] = {"table": bench.runner, "memory_mb": order.memory_mb, "processes": order.processes}
    options |= {"name": order.name, "cancelled": cancelled}
    if order.practice_episodes:
        practice = evaluate.practice(
            order.code, order.environment, episodes=order.practice_episodes, clock=order.clock, **options
        )
        if practice.status is EvaluationStatus.FAILED:
            return PlayedEvaluation(practice=practice, hidden=None, conditions=order.conditions, wall_s=practice.wall_s)
    hidden: EvaluationRun | None = None
    if order.hidden is not None:
        clock = order.hidden_clock or order.clock
        hidden = evaluate.evaluate_on(order.code, order.environment, order.hidden, clock=clock, **options)
    wall_s = _hold(began, cancelled) if practice is not None else time.monotonic() - began
    return PlayedEvaluation(practice=practice, hidden=hidden, conditions=order.conditions, wall_s=wall_s)


def _enter(order: EntryOrder, bench: Bench, cancelled: Cancelled) -> PlayedEntry:
    _have(bench, order.code)
    played: list[MatchResult] = []

    def play(spec: MatchSpec) -> MatchResult:
        played.append(wait(bench.runner.submit(spec), cancelled)[0])
        return played[0]

    seen = validate.validate(
        order.code,
        order.environment,
        play=play,
        clock=order.clock,
        limits=order.limits,
        memory_mb=order.memory_mb,
    )
    return PlayedEntry(
        valid=seen.valid, errors=seen.errors, warnings=seen.warnings, result=played[0] if played else None
    )


def _have(bench: Bench, *agents: AgentCode) -> None:
    """An image that was removed is pulled again, before anything is played."""
    for code in agents:
        try:
            image.ensure(code, bench.pulls)
        except (image.ImageMissing, image.PullFailed) as error:
            raise TryAgain(f"the image is missing: {error}") from error


def release_s(elapsed_s: float) -> float:
    """When a result is published that was known after `elapsed_s`: at one of a few moments. An agent that thinks longer
    where it sees something would tell its owner by the time that it takes."""
    steps = math.ceil(math.log(max(elapsed_s, RELEASE_S) / RELEASE_S, RELEASE_FACTOR) - 1e-9)
    return RELEASE_S * RELEASE_FACTOR**steps


def _hold(began: float, cancelled: Cancelled) -> float:
    """Waits for that moment; the seconds from the beginning to it."""
    total_s = release_s(time.monotonic() - began)
    while (left_s := began + total_s - time.monotonic()) > 0 and not cancelled():
        time.sleep(min(left_s, POLL_S))
    return total_s
