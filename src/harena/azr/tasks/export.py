"""Buffers of a run as a data set: JSON lines that `datasets` and trainers read. What reward_function.py grades."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from harena.azr.tasks import buffer, prompts
from harena.azr.tasks.kinds import TaskKind
from harena.azr.tasks.prompts import PromptProfile
from harena.azr.tasks.task_kinds import TASK_KINDS
from harena.errors import SpecError


def rows(buffers: Path, kinds: Iterable[TaskKind], profile: PromptProfile) -> Iterator[dict[str, object]]:
    """One row for each task: the prompt, the answer that the task knows, and the task for the reward function. In the
    compact form without examples also the completion that is right word for word, for supervised training."""
    has_completion = profile.name == "compact" and not profile.shots
    for kind in kinds:
        path = buffers / f"{kind}.jsonl"
        for entry in buffer.read(path) if path.exists() else ():
            written = prompts.completion_for_solve(kind, entry.task)
            yield {
                "prompt": prompts.render_solve(kind, entry.task, profile=profile),
                **({"completion": written} if has_completion else {}),
                "answer": TASK_KINDS[kind].gold(entry.task),
                "kind": str(kind),
                "solve_rate": entry.share,
                "iteration": entry.step,
                "task": json.dumps(entry.task.record()),
            }


def write(out: Path, found: Iterable[dict[str, object]]) -> int:
    """Write rows to a new file; return how many."""
    count = 0
    try:
        with open(out, "x", encoding="utf-8") as file:
            for row in found:
                file.write(json.dumps(row) + "\n")
                count += 1
    except FileExistsError:
        raise SpecError(f"{out} is there already: give another --output") from None
    return count
