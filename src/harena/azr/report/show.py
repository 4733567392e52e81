"""Words for a terminal. Guarantees: nothing that a model wrote moves the cursor or hides what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harena.azr.loop import Iteration
from harena.azr.report.evaluate import ModelEvaluation
from harena.azr.tasks.buffer import BufferEntry
from harena.azr.tasks.kinds import InductionTask, TaskKind
from harena.terminal import safe, safe_lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    cells = [list(head), *([safe(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines: list[str] = []
    for row in cells:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *padded[1:]]).rstrip())
    return "\n".join(lines)


def evaluation(found: ModelEvaluation) -> str:
    what = f"pass@{found.k} of {found.samples}" if found.samples > 1 else "accuracy"
    rows = [
        (name, str(score.n), f"{score.value:.3f}", f"{score.low:.3f} – {score.high:.3f}")
        for name, score in found.scores.items()
    ]
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in found.verdicts.items())
    head = (safe(found.suite), "tasks", what, "95 % interval")
    return f"{table(head, rows)}\n\nanswers: {verdicts}; {found.seconds:.1f} s"


def training(before: ModelEvaluation | None, after: ModelEvaluation | None, last: Iteration | None) -> str:
    """What a run ends with: of self-play the last iteration, of the held-out suite before and after."""
    rows: list[list[str]] = []
    for kind in [*map(str, TaskKind), "all"]:
        now = _proposals(last).get(kind, {})
        held_out = [_score(found, kind) for found in (before, after)]
        if now or any(held_out):
            rows.append([kind, _share(now.get("valid")), _share(now.get("share")), *held_out])
    head = ("", "valid", "solved in self-play", "held out before", "held out after")
    whys = invalid({kind: of_kind.get("invalid", {}) for kind, of_kind in _proposals(last).items()})
    return "\n\n".join(part for part in (table(head, rows) if rows else "", whys) if part)


def _proposals(last: Iteration | None) -> Mapping[str, Mapping[str, Any]]:
    return last.metrics["propose"] if last else {}


def invalid(reasons: Mapping[str, Mapping[str, int]]) -> str:
    """Why proposals were no tasks, by kind; the most frequent reason first. Empty when all were."""
    kinds = list(reasons)
    totals = Counter({reason: 0 for of_kind in reasons.values() for reason in of_kind})
    for of_kind in reasons.values():
        totals.update(of_kind)
    rows = [[reason, *(str(reasons[kind].get(reason, "")) for kind in kinds)] for reason, _ in totals.most_common()]
    return table(("no task because", *kinds), rows) if rows else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _score(found: ModelEvaluation | None, name: str) -> str:
    if found is None or name not in found.scores:
        return ""
    score = found.scores[name]
    return f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"


def entry(kind: TaskKind, one: BufferEntry) -> str:
    """A task of a buffer, as text."""
    solved = "" if one.share is None else f", solved {one.share:.0%}"
    head = f"# {kind} {one.id[:12]}, proposed in iteration {one.step}{solved}"
    task = one.task
    lines = [f"# {line}" for line in task.message.splitlines()] if isinstance(task, InductionTask) else []
    lines += [f"f({given}) == {output}" for given, output in task.examples]
    return safe_lines("\n".join([head, task.program, *lines]).expandtabs(4))
