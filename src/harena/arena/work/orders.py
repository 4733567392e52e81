"""What a worker is told to do, and what it answers. Closed schemas, as msgpack between machines.

An order has everything that its job needs and nothing more: the seeds of its own episodes, not the season's secret; no
owner, no key, no database. An answer says what happened. What follows from it is decided by who gave the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from harena.arena.submissions.evaluate import EvaluationRun, HiddenEpisodes
from harena.arena.submissions.script import ScriptCode, ScriptRun
from harena.errors import HarenaError
from harena.match.agent.load import ArchiveLimits
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec

MAX_BYTES = 64 << 20
"""Largest order and largest answer. The code of a submission and the replays of its episodes fit."""
MAX_TEXT = 1 << 20


class BadWorkerAnswer(HarenaError):
    """A worker's answer is not one to its order: update the worker, or revoke its key."""


class EvaluationOrder(msgspec.Struct, tag="evaluate", frozen=True, kw_only=True):
    code: AgentCode
    environment: str
    name: str
    """Match ids begin with it."""
    clock: Clock
    memory_mb: int
    processes: int
    conditions: str
    """Names the rules that it is played by; the answer repeats it."""
    practice_episodes: int = 0
    """On public seeds, first; 0: none."""
    hidden: HiddenEpisodes | None = None
    """None: the result on hidden episodes is known already."""
    hidden_clock: Clock | None = None


class EntryOrder(msgspec.Struct, tag="enter", frozen=True, kw_only=True):
    code: AgentCode
    environment: str
    clock: Clock
    memory_mb: int
    limits: ArchiveLimits


class ScriptOrder(msgspec.Struct, tag="script", frozen=True, kw_only=True):
    code: ScriptCode
    environment: str


class MatchOrder(msgspec.Struct, tag="match", frozen=True, kw_only=True):
    spec: MatchSpec


Order = EvaluationOrder | EntryOrder | ScriptOrder | MatchOrder


class PlayedEvaluation(msgspec.Struct, tag="evaluate", frozen=True, kw_only=True, forbid_unknown_fields=True):
    practice: EvaluationRun | None
    hidden: EvaluationRun | None
    """None: none were asked for, or the practice failed."""
    conditions: str
    wall_s: float


class PlayedEntry(msgspec.Struct, tag="enter", frozen=True, kw_only=True, forbid_unknown_fields=True):
    valid: bool
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    result: MatchResult | None
    """Result of the short game. None if the code was refused before it."""


class PlayedScript(msgspec.Struct, tag="script", frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: ScriptRun


class PlayedMatch(msgspec.Struct, tag="match", frozen=True, kw_only=True, forbid_unknown_fields=True):
    result: MatchResult


Answer = PlayedEvaluation | PlayedEntry | PlayedScript | PlayedMatch

encode = msgspec.msgpack.Encoder().encode
_orders = msgspec.msgpack.Decoder(Order)
_answers = msgspec.msgpack.Decoder(Answer)


def decode_order(data: bytes) -> Order:
    return _orders.decode(data)


def decode_answer(data: bytes) -> Answer:
    """Raises BadWorkerAnswer for what is no answer, or has numbers that are none."""
    if len(data) > MAX_BYTES:
        raise BadWorkerAnswer(f"an answer of {len(data)} bytes; at most {MAX_BYTES} are taken")
    try:
        answer = _answers.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadWorkerAnswer(f"not an answer: {error}") from None
    if not all(map(math.isfinite, _numbers(answer))):
        raise BadWorkerAnswer("an answer with numbers that are not finite")
    return answer


def _numbers(answer: Answer) -> Iterable[float]:
    if isinstance(answer, PlayedScript):
        run = answer.run
        return [run.cpu_s, run.wall_s, run.peak_mb, run.score or 0.0, *run.returns]
    if isinstance(answer, PlayedEvaluation):
        runs = [run for run in (answer.practice, answer.hidden) if run is not None]
        return [answer.wall_s, *(number for run in runs for number in (run.cpu_s, run.wall_s, *run.returns))]
    result = answer.result
    if result is None:
        return []
    return [result.wall_s, *(number for seat in result.seats for number in (seat.cpu_s, seat.start_s))]
