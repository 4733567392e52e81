"""Tasks that were found valid, by kind. Promises: no two of the same program (names, comments and layout aside); never
more than `capacity`, and never full for good: a new task always enters, for one of the older half that leaves; the same
generator gives the same samples. On disk it is JSON lines that a person can read; a file is never half replaced, and a
line that was cut short when the power went is dropped.

Induction tasks are about programs that are known already, so there the inputs count too.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from harena.azr.config import BufferConfig
from harena.azr.errors import TrainingError
from harena.azr.tasks import kinds as tasks
from harena.azr.tasks.forms import PAPER
from harena.azr.tasks.kinds import Task, TaskKind, Triplet
from harena.azr.tasks.task_kinds import TASK_KINDS
from harena.errors import SpecError

CAPACITY = BufferConfig().capacity
MEMORY = 8
"""Programs that a buffer remembers as seen, for each that it holds: what left is not new again at once."""
MAX_LINE = 1 << 20


class BadBuffer(TrainingError):
    """A buffer's file holds something that is no task; says which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferEntry:
    task: Task
    step: int
    """The iteration that proposed it; 0 is the seeding."""
    id: str
    """The address of its content."""
    share: float | None = None
    """Share of sampled solves that were right when it was proposed."""


class Buffer:
    """One kind's tasks."""

    def __init__(self, kind: TaskKind, *, capacity: int = CAPACITY) -> None:
        if capacity < 2:
            raise SpecError(f"capacity={capacity}: a buffer holds at least 2 tasks")
        self.kind = kind
        self.capacity = capacity
        self._entries: dict[str, BufferEntry] = {}  # by what makes it unique, the oldest first
        self._seen: dict[str, None] = {}
        self._file: Path | None = None
        self._lines = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[BufferEntry]:
        return iter(self._entries.values())

    def has_seen(self, task: Task) -> bool:
        """Whether its program was ever here, within memory."""
        return key_of(task) in self._seen

    def add(self, task: Task, *, step: int, rng: np.random.Generator, share: float | None = None) -> bool:
        """False when it is here already. `rng` chooses which of the older half leaves a full buffer."""
        key = key_of(task)
        if key in self._entries:
            return False
        if len(self._entries) >= self.capacity:
            older = list(self._entries)[: self.capacity // 2]
            del self._entries[older[int(rng.integers(len(older)))]]
        entry = BufferEntry(task=task, step=step, id=address(task), share=share)
        self._entries[key] = entry
        self._remember(key)
        if self._file is not None:
            self._append(entry)
        return True

    def sample(self, count: int, *, rng: np.random.Generator) -> list[BufferEntry]:
        """Uniformly, no one twice; all there are when they are fewer."""
        entries = list(self._entries.values())
        chosen = rng.choice(len(entries), size=min(count, len(entries)), replace=False) if entries else ()
        return [entries[int(index)] for index in chosen]

    def fill(self, count: int, *, rng: np.random.Generator) -> list[BufferEntry]:
        """Exactly `count`: uniformly, and with repeats when there are fewer."""
        if not self._entries:
            raise SpecError(f"the {self.kind} buffer is empty: seed it first")
        chosen = self.sample(count, rng=rng)
        entries = list(self._entries.values())
        while len(chosen) < count:
            chosen.append(entries[int(rng.integers(len(entries)))])
        return chosen

    def _remember(self, key: str) -> None:
        self._seen.pop(key, None)
        self._seen[key] = None
        while len(self._seen) > MEMORY * self.capacity:
            del self._seen[next(iter(self._seen))]

    # ---- on disk ----

    def keep_in(self, path: Path) -> None:
        """Writes the file anew, and from now on a line for each task that is added."""
        self._file = path
        self._compact()

    def _append(self, entry: BufferEntry) -> None:
        if self._file is None:
            return
        if self._lines >= 2 * self.capacity:
            return self._compact()  # what has left is still in the file: write it anew
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record_of(entry)) + "\n")
        self._lines += 1

    def _compact(self) -> None:
        if self._file is not None:
            write_lines(self._file, map(record_of, self))
            self._lines = len(self._entries)

    def state(self) -> dict[str, Any]:
        """JSON data that `load` makes the same buffer of."""
        return {"entries": [record_of(entry) for entry in self], "seen": list(self._seen)}

    def load(self, state: Mapping[str, Any]) -> None:
        entries = [entry_of(record, f"{self.kind} buffer") for record in state["entries"]]
        if not all(isinstance(entry.task, TASK_KINDS[self.kind].task_type) for entry in entries):
            raise BadBuffer(f"{self.kind} buffer: holds a task of another kind")
        if not all(isinstance(key, str) for key in state["seen"]):
            raise BadBuffer(f"{self.kind} buffer: what was seen is not as it should be")
        self._entries = {key_of(entry.task): entry for entry in entries}
        self._seen = dict.fromkeys(state["seen"])
        self._compact()


class Buffers:
    """A buffer for each kind, seeded with the identity function."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self.kinds = {kind: Buffer(kind, capacity=capacity) for kind in TaskKind}

    def __getitem__(self, kind: TaskKind) -> Buffer:
        return self.kinds[kind]

    def start(self, *, inputs: int = PAPER.inputs, rng: np.random.Generator) -> None:
        """inputs: how many a task that has several starts with."""
        for kind, buffer in self.kinds.items():
            buffer.add(TASK_KINDS[kind].identity(inputs), step=0, rng=rng)

    def references(self, kind: TaskKind, count: int, *, rng: np.random.Generator) -> list[Triplet]:
        """What a proposer is shown: `count` tasks of its kind, or one program of any for induction."""
        lenders = TASK_KINDS[kind].references_from
        if not lenders:
            return _triplets(self.kinds[kind].sample(count, rng=rng))
        union = [entry for one in lenders for entry in self.kinds[one]]
        if not union:
            raise SpecError("no program to write inputs for: seed the buffers first")
        return _triplets([union[int(rng.integers(len(union)))]])

    def keep_in(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, buffer in self.kinds.items():
            buffer.keep_in(folder / f"{kind}.jsonl")

    def state(self) -> dict[str, Any]:
        return {str(kind): buffer.state() for kind, buffer in self.kinds.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        for kind, buffer in self.kinds.items():
            buffer.load(state[str(kind)])


def read(path: Path) -> list[BufferEntry]:
    """The entries of a file, the oldest first; of the same task the last one counts."""
    entries: dict[str, BufferEntry] = {}
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise BadBuffer(f"{path.name}: not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if number == len(lines):
            break  # what follows the last newline was cut short, or is nothing
        where = f"{path.name} line {number}"
        if len(line) > MAX_LINE:
            raise BadBuffer(f"{where}: longer than {MAX_LINE} characters")
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError):
            raise BadBuffer(f"{where}: not JSON") from None
        entry = entry_of(record, where)
        entries.pop(entry.id, None)
        entries[entry.id] = entry
    return list(entries.values())


def key_of(task: Task) -> str:
    """What no two tasks of a buffer share."""
    return tasks.digest(*task.unique_by)[:32]


def address(task: Task) -> str:
    return tasks.digest(*task.content)[:32]


def record_of(entry: BufferEntry) -> dict[str, Any]:
    return {"id": entry.id, "step": entry.step, "share": entry.share, **entry.task.record()}


def entry_of(record: object, where: str) -> BufferEntry:
    """BadBuffer for anything that is not exactly a record: files are data, and not believed."""
    fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    try:
        task = tasks.task_from_record(fields)
        step, share = fields["step"], fields["share"]
        if type(step) is not int or step < 0 or not (share is None or _is_share(share)):
            raise TypeError("step or share")
    except (KeyError, TypeError, ValueError) as error:
        raise BadBuffer(f"{where}: not a task ({error})") from None
    return BufferEntry(task=task, step=step, id=address(task), share=share)


def _is_share(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast("float", value) <= 1


def _triplets(entries: Sequence[BufferEntry]) -> list[Triplet]:
    return [entry.task for entry in entries if isinstance(entry.task, Triplet)]


def write_lines(path: Path, records: Iterator[dict[str, Any]] | map[dict[str, Any]]) -> None:
    """Replaces a file in one step."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
