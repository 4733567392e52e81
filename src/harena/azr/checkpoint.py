"""Where a run stood: a folder that holds all that is needed to go on as if nothing had happened. Promises: a checkpoint
is there as a whole or not at all, however the process ends; the same bits come back, and a damaged file is noticed;
nothing in it is ever executed.

    DIR/step-000010/state.json      step, random states, baselines, buffers, configuration
                    learner.json    what the learner gave, if that is plain data, else
                    learner.pt      the same with tensors, by torch.save, read with weights_only
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harena.azr.errors import TrainingError

FORMAT = 1
_NAME = re.compile(r"step-(\d{6,12})")


class BadCheckpoint(TrainingError):
    """A folder is no checkpoint, or one that this version does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    step: int
    state: dict[str, Any]
    """JSON data of the loop."""
    learner: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Writes it, and then removes all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"step-{checkpoint.step:06d}"
    for left in folder.glob(".new-*"):  # of a process that was killed while it saved: a run is one process's at a time
        shutil.rmtree(left, ignore_errors=True)
    new = folder / f".new-{os.getpid()}"
    new.mkdir()
    try:
        head = {"format": FORMAT, "step": checkpoint.step, "state": checkpoint.state}
        _write(new / "state.json", json.dumps(head, allow_nan=False).encode())
        _write_learner(new, checkpoint.learner)
        _replace(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for old in listed(folder)[: -max(1, keep)]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def listed(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(name[1]), path) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def latest(folder: Path) -> Path | None:
    found = listed(folder)
    return found[-1] if found else None


def load(place: Path) -> Checkpoint:
    try:
        head: Any = json.loads((place / "state.json").read_bytes())
        form, step, state = head["format"], head["step"], head["state"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCheckpoint(f"{place}: no checkpoint: {error}") from None
    if form != FORMAT:
        raise BadCheckpoint(f"{place}: format {form!r}; this version reads {FORMAT}")
    if type(step) is not int or not isinstance(state, dict):
        raise BadCheckpoint(f"{place}: state.json is not as it should be")
    return Checkpoint(step=step, state=cast("dict[str, Any]", state), learner=_read_learner(place))


def _write_learner(folder: Path, state: Mapping[str, Any]) -> None:
    if is_json(state):
        return _write(folder / "learner.json", json.dumps(state, allow_nan=False).encode())
    import torch

    with (folder / "learner.pt").open("wb") as file:
        try:
            cast("Any", torch).save(dict(state), file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch's own error hides what the disk said
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return None


def _read_learner(place: Path) -> dict[str, Any]:
    plain = place / "learner.json"
    try:
        if plain.exists():
            state: Any = json.loads(plain.read_bytes())
        else:
            state = _tensors(place / "learner.pt")
    except Exception as error:  # whatever torch makes of a damaged file
        why = str(error).partition(". ")[0] or type(error).__name__
        raise BadCheckpoint(f"{place}: the learner's state cannot be read: {why}") from None
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{place}: the learner's state is not as it should be")
    return cast("dict[str, Any]", state)


def _tensors(path: Path) -> object:
    import torch

    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()  # torch compares no checksums
    if damaged is not None:
        raise BadCheckpoint(f"{damaged} is damaged")
    return cast("Any", torch).load(path, map_location="cpu", weights_only=True)


def is_json(value: object) -> bool:
    """Whether JSON gives back exactly this."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(item) for key, item in cast("dict[Any, Any]", value).items())
    if isinstance(value, list):
        return all(map(is_json, cast("list[Any]", value)))
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(new: Path, place: Path) -> None:
    if place.exists():  # the same step once more: the old one goes first, and is missing for a moment
        shutil.rmtree(place)
    os.rename(new, place)
    parent = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
