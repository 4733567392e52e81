"""The numbers of an iteration, for the journal: pure functions of what was proposed and solved. Nested, by name:

propose.<kind>   count, reward, length, entropy, format_errors, cut_short, valid, repeated, share (of right solves),
                 learnable (share of measured tasks solved sometimes, not always), verdicts.<verdict>,
                 invalid.<reason> (how many were no tasks, and why)
solve.<kind>     count, reward, length, entropy, format_errors, cut_short, right, verdicts.<verdict>
samples.<kind>   the same of the solves that only measure
diversity        unique programs, distance of syntax trees, types (diversity.py), of the valid proposals
buffer.<kind>    tasks held
rollouts         count, tokens

A share or mean of nothing is left out. `right` is what the proposer made of it: it is no measure of progress.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harena.azr.engines.protocol import Completion, Rollout
from harena.azr.tasks import diversity
from harena.azr.tasks.kinds import FormatError, Task, TaskKind

if TYPE_CHECKING:
    from harena.azr.loop import Proposed, Solved
    from harena.azr.tasks.buffer import Buffers

_NUMBER = re.compile(r"\d+")


def measure(
    proposed: Sequence[Proposed],
    solved: Sequence[Solved],
    rollouts: Sequence[Rollout],
    buffers: Buffers,
    *,
    seed: int,
) -> dict[str, Any]:
    """seed: for the pairs of programs whose distance is taken."""
    kinds = list(dict.fromkeys(one.kind for one in proposed))
    tasks = [one.task for one in proposed if one.task is not None]
    items = [(task.program, *_example(task)) for task in tasks]
    return {
        "propose": {str(kind): _proposals([one for one in proposed if one.kind is kind]) for kind in kinds},
        "solve": {str(kind): _solves(one for one in solved if one.kind is kind and one.sample == 0) for kind in kinds},
        "samples": {str(kind): _solves(one for one in solved if one.kind is kind and one.sample) for kind in kinds},
        "diversity": diversity.measure(items, rng=Random(seed)).as_json(),
        "buffer": {str(kind): len(buffers[kind]) for kind in TaskKind},
        "rollouts": {"count": len(rollouts), "tokens": sum(len(one.completion.ids) for one in rollouts)},
    }


def _proposals(proposed: Sequence[Proposed]) -> dict[str, Any]:
    valid = [one for one in proposed if one.task is not None]
    shares = [one.share for one in valid if one.share is not None]
    verdicts = Counter(str(one.validation.verdict) for one in proposed if one.validation is not None)
    return {
        **_common([one.completion for one in proposed], [one.reward for one in proposed]),
        **_mean("format_errors", (isinstance(one.parsed, FormatError) for one in proposed)),
        **_mean("valid", (one.task is not None for one in proposed)),
        **_mean("repeated", (one.seen_before for one in valid)),
        **_mean("share", shares),
        **_mean("learnable", (0 < share < 1 for share in shares)),
        "verdicts": dict(verdicts),
        "invalid": dict(Counter(reason for one in proposed if (reason := why_invalid(one)) is not None)),
    }


def why_invalid(one: Proposed) -> str | None:
    """Why a proposal is no task: the same words for all that fail alike. None where it is one."""
    if one.task is not None:
        return None
    if isinstance(one.parsed, FormatError):
        return f"form: {_NUMBER.sub('n', one.parsed.reason)}"
    if one.validation is None:
        return "not checked"
    return one.validation.detail if one.validation.is_held_out else str(one.validation.verdict)


def _solves(solved: Iterable[Solved]) -> dict[str, Any]:
    members = list(solved)
    verdicts = Counter(str(one.grade.verdict) for one in members if one.grade is not None)
    return {
        **_common([one.completion for one in members], [one.reward for one in members]),
        **_mean("format_errors", (isinstance(one.parsed, FormatError) for one in members)),
        **_mean("right", (one.right for one in members)),
        "verdicts": dict(verdicts),
    }


def _common(completions: Sequence[Completion], rewards: Sequence[float]) -> dict[str, Any]:
    return {
        "count": len(completions),
        **_mean("reward", rewards),
        **_mean("length", (len(one.ids) for one in completions)),
        **_mean("entropy", (one.entropy for one in completions)),
        **_mean("cut_short", (not one.finished for one in completions)),
    }


def _mean(name: str, values: Iterable[float]) -> dict[str, float]:
    found = list(values)
    return {name: fmean(found)} if found else {}


def _example(task: Task) -> tuple[str, str]:
    return task.examples[0]
