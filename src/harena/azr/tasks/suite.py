"""Our own held-out suite: small tasks of each kind, graded by how many operations their programs have.

Guarantees: the same tasks for the same seed and size, and the first tasks of a larger suite are those of a smaller one;
every program is on the held-out side of the generator's split, so that pretraining never reads one; `digests` names the
programs, so that self-play can refuse to train on them. Costs nothing to carry: the tasks are drawn when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from harena.azr.tasks import programs, prompts
from harena.azr.tasks.kinds import Task, TaskKind, program_digest
from harena.azr.tasks.task_kinds import TASK_KINDS
from harena.errors import SpecError

SEED = 20_250_506
PER_CELL = 40
"""Tasks of each kind and grade: 160 a kind, where a 95 % interval is about 15 points wide."""
GRADES = tuple(range(1, programs.MAX_OPS + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One task of a suite whose answers are checked as in training."""

    id: str
    kind: TaskKind
    task: Task
    groups: tuple[str, ...] = ()
    """What it is counted under besides its kind."""


def tiny(*, per_cell: int = PER_CELL, seed: int = SEED, inputs: int = prompts.COMPACT.inputs) -> list[Item]:
    """`per_cell` tasks for each kind and each number of operations from 1 to 4."""
    if per_cell < 1:
        raise SpecError(f"per_cell={per_cell}: a suite needs at least one task of each kind and grade")
    return [item for kind in TaskKind for grade in GRADES for item in _cell(kind, grade, per_cell, seed, inputs)]


def _cell(kind: TaskKind, grade: int, count: int, seed: int, inputs: int) -> list[Item]:
    rng = Random(f"{seed} {kind} {grade}")
    found: dict[tuple[str, tuple[str, ...]], Item] = {}
    while len(found) < count:
        example = programs.draw(rng, ops=grade, inputs=TASK_KINDS[kind].inputs(inputs), held_out=True)
        drawn = (example.key, example.inputs)
        if drawn not in found:
            pairs = tuple(zip(example.inputs, example.outputs, strict=True))
            task = TASK_KINDS[kind].make(program=example.program, message=example.message, pairs=pairs)
            name = f"{kind}-{grade}-{len(found)}"
            found[drawn] = Item(id=name, kind=kind, task=task, groups=(f"{kind} {grade} op",))
    return list(found.values())


def digests(items: Iterable[Item]) -> frozenset[str]:
    """Return digests of the normalised programs."""
    return frozenset(program_digest(item.task.program) for item in items)


def thinned(items: Sequence[Any], count: int | None, *, by: Callable[[Any], Hashable] = lambda item: None) -> list[Any]:
    """At most `count` of them, always the same ones, evenly spread: over what `by` tells apart, and within it."""
    if count is None or count >= len(items):
        return list(items)
    parts: dict[Hashable, list[int]] = {}
    for place, item in enumerate(items):
        parts.setdefault(by(item), []).append(place)
    places = [place for part in parts.values() for place in part]
    chosen = sorted(places[index * len(items) // count] for index in range(count))
    return [items[place] for place in chosen]
