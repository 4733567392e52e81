"""What a training run writes down: journal.jsonl, and the same numbers to TensorBoard and Weights & Biases on request.

Guarantees: one JSON object a line, flushed when written, so that a run that dies leaves everything up to its last step;
numbers that are not finite are null; after a resume, what was written beyond the checkpoint no longer counts, and
nothing is erased. Reading passes over lines that were cut short, and refuses a file that has no record at all.

A record has `kind`, `at` (seconds since 1970) and what else belongs to it:

run      once at the start: the configuration, versions, the model
resume   `iteration`: the run goes on after this one
step     `iteration`, and nested numbers: per task-role rewards, lengths, verdicts, diversity, time per phase
update   `iteration`, and the numbers of one optimiser step, where the engine learns outside of the loop (trl)
eval     `iteration`, `suites`: held-out accuracy with intervals; `right`: the tasks that were solved, by name
seed     what became of the proposals before the first iteration, by kind: counts, and reasons why they were no tasks
sample   `iteration`, a proposal as text, for a person to read
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from harena.azr import environment
from harena.azr.errors import TrainingError

NAME = "journal.jsonl"
MAX_LINE = 16 << 20
"""Characters of a line that is read back; ours are a few thousand."""


class RunJournalError(TrainingError):
    """A journal cannot be read or written; the message names the file and the line."""


class Sink(Protocol):
    """Takes flat numbers of one iteration."""

    def numbers(self, iteration: int, numbers: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class RunJournal:
    def __init__(self, folder: str | Path, *, sinks: Sequence[Sink] = ()) -> None:
        self.path = Path(folder, NAME)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut = self.path.exists() and not _ends_with_newline(self.path)
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise RunJournalError(f"{self.path}: {error.strerror}") from error
        if cut:
            self._file.write("\n")
        self._sinks = tuple(sinks)

    def write(self, kind: str, /, **data: object) -> None:
        """One record. Its numbers go to the sinks when it has an iteration."""
        record = cast("dict[str, Any]", plain({"kind": kind, "at": round(time.time(), 3), **data}))
        self._file.write(json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n")
        self._file.flush()
        iteration = data.get("iteration")
        if self._sinks and isinstance(iteration, int) and kind in ("step", "update", "eval"):
            numbers = dict(flat({key: value for key, value in data.items() if key != "iteration"}, prefix=kind))
            for sink in self._sinks:
                sink.numbers(iteration, numbers)

    def close(self) -> None:
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> RunJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read(folder: str | Path) -> list[dict[str, Any]]:
    """The records that count, in the order they were written."""
    path = Path(folder, NAME)
    records: list[dict[str, Any]] = []
    broken = 0
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                record = _record(line)
                if record is None:
                    broken += bool(line.strip())
                    continue
                if record["kind"] == "resume":
                    records = [old for old in records if not _is_beyond(old, record.get("iteration"))]
                records.append(record)
    except OSError as error:
        raise RunJournalError(f"{path}: {error.strerror}: give the --out folder of a run") from error
    if broken and not records:
        raise RunJournalError(f"{path}: not a journal, none of its lines is a record")
    return records


def _record(line: str) -> dict[str, Any] | None:
    try:
        data: Any = json.loads(line) if len(line) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None
    record = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return record if isinstance(record.get("kind"), str) else None


def _is_beyond(record: Mapping[str, Any], iteration: object) -> bool:
    own = record.get("iteration")
    return isinstance(own, int) and isinstance(iteration, int) and record["kind"] != "resume" and own > iteration


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def plain(value: object) -> object:
    """JSON data: numbers that are not finite become None, keys text, tuples lists, others their text."""
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in cast("Sequence[object]", value)]
    if hasattr(value, "item") and not getattr(value, "shape", True):  # a number of numpy or torch
        return plain(cast("Any", value).item())
    return str(value)


def flat(data: Mapping[str, object], *, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every finite number of nested mappings with its path, `a/b/c`."""
    for key, value in cast("Mapping[str, Any]", plain(data)).items():
        name = f"{prefix}/{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from flat(cast("Mapping[str, object]", value), prefix=name)
        elif isinstance(value, int | float):
            yield name, float(value)


class TensorBoard:
    """Event files under `folder`/tensorboard."""

    def __init__(self, folder: str | Path) -> None:
        try:
            writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise RunJournalError(f"TensorBoard is not installed ({error.name}): pip install tensorboard") from error
        self._writer: Any = writer(str(Path(folder, "tensorboard")))

    def numbers(self, iteration: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, iteration)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, named after the folder; a resumed run is another one of the same group. It talks to
    its server, unless WANDB_MODE=offline: nothing but an explicit choice starts it. It gets the settings and the
    numbers: no text of models, and nothing about the machine or its code."""

    def __init__(self, folder: str | Path, *, project: str, config: Mapping[str, Any]) -> None:
        environment.silence_wandb()
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise RunJournalError("wandb is not installed: pip install 'harena[wandb]'") from error
        name = Path(folder).resolve().name
        Path(folder).mkdir(parents=True, exist_ok=True)  # else wandb takes another place
        known = {key: value for key, value in _QUIET.items() if key in wandb.Settings.model_fields}
        try:
            self._run: Any = wandb.init(
                project=project,
                dir=str(folder),
                name=name,
                group=name,
                config=dict(config),
                settings=wandb.Settings(**known),
            )
        except wandb.Error as error:
            why = " ".join(str(error).split())
            raise RunJournalError(f"Weights & Biases: {why} (WANDB_MODE=offline needs no server)") from error

    def numbers(self, iteration: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=iteration)

    def close(self) -> None:
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))  # closed by a failure, it has failed


_QUIET = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "-",
    "quiet": True,
    "x_save_requirements": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
}
"""What keeps wandb from sending more than it is given; those with x_ are its own to change."""
