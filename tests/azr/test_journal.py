"""The journal: every record is on disk at once, survives a crash, and is read back as it counts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from harena.azr import journal
from harena.azr.journal import Journal


class Kept:
    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def numbers(self, iteration: int, numbers: Mapping[str, float]) -> None:
        self.seen.append((iteration, dict(numbers)))

    def close(self) -> None:
        self.closed = True


def test_a_record_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "run") as log:
        log.write("step", iteration=1, reward={"solve/deduction": 0.5})
        (line,) = log.path.read_text().splitlines()
        assert json.loads(line)["reward"] == {"solve/deduction": 0.5}


def test_numbers_that_json_has_not_become_null(tmp_path: Path) -> None:
    with Journal(tmp_path) as log:
        log.write("step", iteration=1, a=math.nan, b=math.inf, c=np.float32(0.5), d=np.int64(3), e=(1, {2}))
    (record,) = journal.read(tmp_path)
    assert (record["a"], record["b"], record["c"], record["d"], record["e"]) == (None, None, 0.5, 3, [1, [2]])


def test_text_of_models_stays_one_ascii_line(tmp_path: Path) -> None:
    text = "def f(a):\n\treturn '\u2028\x1b[2J\ud800'\r\n"
    with Journal(tmp_path) as log:
        log.write("sample", iteration=1, program=text)
    (line,) = log.path.read_bytes().splitlines()
    assert line.isascii()
    assert journal.read(tmp_path)[0]["program"] == text


def test_a_resumed_run_forgets_what_lay_beyond_its_checkpoint(tmp_path: Path) -> None:
    with Journal(tmp_path) as log:
        for iteration in (1, 2, 3):
            log.write("step", iteration=iteration, first=True)
    with Journal(tmp_path) as log:
        log.write("resume", iteration=1)
        log.write("step", iteration=2, first=False)
    steps = [(record["iteration"], record["first"]) for record in journal.read(tmp_path) if record["kind"] == "step"]
    assert steps == [(1, True), (2, False)]
    assert len(log.path.read_text().splitlines()) == 5


def test_a_line_cut_short_by_a_crash_costs_that_line_alone(tmp_path: Path) -> None:
    with Journal(tmp_path) as log:
        log.write("step", iteration=1)
    with open(log.path, "a") as file:
        file.write('{"kind": "step", "iter')
    assert [record["iteration"] for record in journal.read(tmp_path)] == [1]
    with Journal(tmp_path) as log:
        log.write("step", iteration=2)
    assert [record["iteration"] for record in journal.read(tmp_path)] == [1, 2]


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(journal.JournalError, match="--out folder"):
        journal.read(tmp_path)
    (tmp_path / journal.NAME).write_text("[" * 100_000 + "\n7\n")
    with pytest.raises(journal.JournalError, match="not a journal"):
        journal.read(tmp_path)


def test_sinks_get_the_flat_numbers_of_steps_and_evaluations(tmp_path: Path) -> None:
    kept = Kept()
    with Journal(tmp_path, sinks=[kept]) as log:
        log.write("run", config={"seed": 7})
        log.write("step", iteration=3, reward={"solve": {"deduction": 0.5}}, bad=math.nan, text="x", ok=True)
        log.write("sample", iteration=3, program="p")
    assert kept.seen == [(3, {"step/reward/solve/deduction": 0.5, "step/ok": 1.0})]
    assert kept.closed


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with Journal(tmp_path, sinks=[journal.TensorBoard(tmp_path)]) as log:
        log.write("step", iteration=1, reward=0.5)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"step/reward" in events.read_bytes()


def test_a_missing_sink_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(journal.importlib, "import_module", missing)
    with pytest.raises(journal.JournalError, match="pip install tensorboard"):
        journal.TensorBoard(tmp_path)
    with pytest.raises(journal.JournalError, match="pip install wandb"):
        journal.Wandb(tmp_path, project="p", config={})
