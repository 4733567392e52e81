"""Validates an agent: inspects it, then loads it and plays a short game against itself in boxes.

The answer is written for the agent's author. Problems of the agent are in the answer; other problems are raised: an
unknown environment, a host that cannot isolate, a void match.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harena.errors import BackendUnavailable, BoxError, Retry
from harena.match.agent import image
from harena.match.agent import load as agents
from harena.match.agent.load import AgentError, ArchiveLimits
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.terminal import safe

SMOKE_CLOCK = Clock(start_s=30, move_s=5, bank_s=0, match_s=60)
"""The clock of real matches, but with less time for the whole game."""
FORBIDDEN = ("os.system", "subprocess", "eval", "exec", "__import__")
"""What the executor's configuration forbids by default. It is advice to authors; the box is the wall."""
LOG_LINES = 15
LOG_CHARACTERS = 1500
MAX_BROKEN = 50

Play = Callable[[MatchSpec], MatchResult]


@dataclass(frozen=True, slots=True)
class AgentValidation:
    valid: bool
    errors: tuple[str, ...] = ()
    """Problems that must be fixed, written for the author."""
    warnings: tuple[str, ...] = ()
    """Possible problems. An agent with warnings only is valid."""

    def as_json(self) -> dict[str, Any]:
        return {"valid": self.valid, "errors": list(self.errors), "warnings": list(self.warnings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseRules:
    """What a host refuses in agents, beyond what cannot work. None of it is protection: the box is."""

    forbidden: tuple[str, ...] = ()
    """Modules and functions that may neither be imported nor called."""
    extensions: tuple[str, ...] | None = None
    """Allowed endings of file names, with the dot; None allows all."""
    max_lines: int | None = None
    """Most lines of each Python file."""


def _broken_rules(code: AgentCode, seen: agents.Inspection, rules: HouseRules) -> tuple[str, ...]:
    broken = [str(advice) for advice in seen.refusals]
    for path, data in sorted(code.files.items()):
        shown = code.shown if path == code.entry and code.shown else path
        if rules.extensions is not None and not path.lower().endswith(rules.extensions):
            broken.append(f"{shown}: this kind of file is not allowed here; allowed are {', '.join(rules.extensions)}")
        lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        if rules.max_lines is not None and path.endswith(".py") and lines > rules.max_lines:
            broken.append(f"{shown}: {lines} lines; at most {rules.max_lines} are allowed here")
    return tuple(broken[:MAX_BROKEN])


def validate(
    agent: AgentCode | str | os.PathLike[str] | bytes,
    environment: str,
    *,
    play: Play | None = None,
    seed: int = 0,
    clock: Clock = SMOKE_CLOCK,
    limits: ArchiveLimits = agents.DEFAULT_LIMITS,
    forbidden_imports: Sequence[str] = agents.FORBIDDEN_IMPORTS,
    rules: HouseRules | None = None,
    memory_mb: int = 512,
) -> AgentValidation:
    """Raises HarenaError where it cannot say: see the top of this file."""
    game: Any = _matches("registry").make(environment)
    try:
        code = agent if isinstance(agent, AgentCode) else image.load_any(agent, limits=limits)
    except AgentError as error:
        return AgentValidation(False, (str(error),))
    seen = agents.inspect(code, forbidden_imports, refused=rules.forbidden if rules else ())
    if seen.error:
        return AgentValidation(False, (seen.error,), seen.warnings)
    broken = _broken_rules(code, seen, rules) if rules else ()
    if broken:
        return AgentValidation(False, broken, seen.warnings)
    spec = MatchSpec(
        environment=environment,
        agents=tuple(dataclasses.replace(code, name=f"{code.name} in seat {seat}") for seat in range(game.seats)),
        seed=seed,
        match_id="validation",
        clock=clock,
        memory_mb=memory_mb,
        record=False,
    )
    result = (play or _matches("run.play").play)(spec)
    if result.status in (MatchStatus.VOID, MatchStatus.CANCELLED):
        text = result.error or result.reason or result.status.value
        raise BoxError(f"the smoke game in {environment} could not be played: {text}", retry=Retry.SAFE)
    errors = _errors(result, game, spec)
    return AgentValidation(not errors, errors, (*seen.warnings, *_warnings(result, clock)))


def _matches(module: str) -> Any:
    try:
        return importlib.import_module(f"harena.match.{module}")
    except ImportError as error:
        if error.name and error.name.startswith("harena"):
            raise
        raise BackendUnavailable(f"matches need {error.name}: pip install 'harena[match]'") from None


def _errors(result: MatchResult, game: Any, spec: MatchSpec) -> tuple[str, ...]:
    errors: dict[str, str] = {}  # the same agent sits in every seat: each fault once
    for number, seat in enumerate(result.seats):
        if seat.status is not SeatStatus.OK:
            errors.setdefault(_what_happened(seat, number, game, spec), _printed(seat))
    return tuple(text + printed for text, printed in errors.items())


def _what_happened(seat: SeatResult, number: int, game: Any, spec: MatchSpec) -> str:
    reason = seat.reason.rstrip(".") or "no reason was given"
    clock = spec.clock
    match seat.status:
        case SeatStatus.LOAD:
            return f"the agent could not be loaded: {reason}"
        case SeatStatus.TIMEOUT if not seat.moves:
            return (
                f"the agent took too long: {reason}. It has {clock.start_s:g} s to start and {clock.move_s:g} s a move"
            )
        case SeatStatus.TIMEOUT:
            return f"the agent took too long in its move {seat.moves + 1}: {reason}. A move has {clock.move_s:g} s"
        case SeatStatus.CRASH:
            return f"the agent failed in its move {seat.moves + 1}: {reason}"
        case SeatStatus.ILLEGAL:
            wanted = in_words(game.action_space(number).describe())
            return f"the agent's action is not allowed in {game.id}: {reason}. An action is {wanted}"
        case SeatStatus.MEMORY:
            return f"the agent used more than {spec.memory_mb} MB of memory: {reason}"
        case SeatStatus.OUTPUT:
            return f"the agent printed more than {spec.output_bytes >> 20} MB: {reason}. Print less"
        case _:
            return f"the agent did not speak the protocol of docs/agents.md: {reason}"


def _printed(seat: SeatResult) -> str:
    lines = seat.log[-LOG_CHARACTERS:].rstrip().splitlines()[-LOG_LINES:]
    if not lines:
        return ""
    # It goes to terminals and web pages, and a stranger wrote it.
    return "\nIt printed:\n" + "\n".join(f"  {safe(line)}" for line in lines)


def _warnings(result: MatchResult, clock: Clock) -> list[str]:
    if result.status is MatchStatus.TIMEOUT:
        return [
            f"the smoke game was stopped after {clock.match_s:g} s and {result.steps} steps; nothing was wrong so far"
        ]
    warnings: list[str] = []
    slow_start = max((seat.start_s for seat in result.seats), default=0.0)
    slow_move = max((seat.cpu_s / seat.moves for seat in result.seats if seat.moves), default=0.0)
    if slow_start > clock.start_s / 2:
        warnings.append(f"it took {slow_start:.1f} s to start; {clock.start_s:g} s are allowed")
    if slow_move > clock.move_s / 2:
        warnings.append(f"its moves took {slow_move:.1f} s on average; {clock.move_s:g} s are allowed")
    return warnings


def in_words(space: dict[str, Any]) -> str:
    """Describe a space in words."""
    match space:
        case {"kind": "discrete", "n": n, "start": start}:
            return f"a whole number from {start} to {start + n - 1}"
        case {"kind": "multi_discrete", "nvec": bounds}:
            return f"{len(bounds)} whole numbers, from 0 to {', '.join(str(bound - 1) for bound in bounds)} each"
        case {"kind": "box", "shape": shape, "low": low, "high": high}:
            bounds = "" if low is None and high is None else f" from {low} to {high}"
            return f"an array of shape {tuple(shape)} of numbers{bounds}"
        case {"kind": "text", "max_length": most}:
            return f"a text of at most {most} characters"
        case {"kind": "dict", "spaces": parts}:
            return "a dict with " + ", ".join(f"{key!r}: {in_words(part)}" for key, part in parts.items())
        case {"kind": "tuple", "spaces": parts}:
            return "a tuple of " + ", ".join(in_words(part) for part in parts)
        case _:
            return str(space)
