"""The journal: every record is on disk at once, survives a crash, and is read back as it counts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from harena.azr.report import journal
from harena.azr.report.journal import RunJournal


class Kept:
    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def numbers(self, iteration: int, numbers: Mapping[str, float]) -> None:
        self.seen.append((iteration, dict(numbers)))

    def close(self) -> None:
        self.closed = True


def test_a_record_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    with RunJournal(tmp_path / "new" / "run") as log:
        log.write("step", iteration=1, reward={"solve/deduction": 0.5})
        (line,) = log.path.read_text().splitlines()
        assert json.loads(line)["reward"] == {"solve/deduction": 0.5}


def test_numbers_that_json_has_not_become_null(tmp_path: Path) -> None:
    with RunJournal(tmp_path) as log:
        log.write("step", iteration=1, a=math.nan, b=math.inf, c=np.float32(0.5), d=np.int64(3), e=(1, {2}))
    (record,) = journal.read(tmp_path)
    assert (record["a"], record["b"], record["c"], record["d"], record["e"]) == (None, None, 0.5, 3, [1, [2]])


def test_text_of_models_stays_one_ascii_line(tmp_path: Path) -> None:
    text = "def f(a):\n\treturn '\u2028\x1b[2J\ud800'\r\n"
    with RunJournal(tmp_path) as log:
        log.write("sample", iteration=1, program=text)
    (line,) = log.path.read_bytes().splitlines()
    assert line.isascii()
    assert journal.read(tmp_path)[0]["program"] == text


def test_a_resumed_run_forgets_what_lay_beyond_its_checkpoint(tmp_path: Path) -> None:
    with RunJournal(tmp_path) as log:
        for iteration in (1, 2, 3):
            log.write("step", iteration=iteration, first=True)
    with RunJournal(tmp_path) as log:
        log.write("resume", iteration=1)
        log.write("step", iteration=2, first=False)
    steps = [(record["iteration"], record["first"]) for record in journal.read(tmp_path) if record["kind"] == "step"]
    assert steps == [(1, True), (2, False)]
    assert len(log.path.read_text().splitlines()) == 5


def test_a_line_cut_short_by_a_crash_costs_that_line_alone(tmp_path: Path) -> None:
    with RunJournal(tmp_path) as log:
        log.write("step", iteration=1)
    with open(log.path, "a") as file:
        file.write('{"kind": "step", "iter')
    assert [record["iteration"] for record in journal.read(tmp_path)] == [1]
    with RunJournal(tmp_path) as log:
        log.write("step", iteration=2)
    assert [record["iteration"] for record in journal.read(tmp_path)] == [1, 2]


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(journal.RunJournalError, match="--out folder"):
        journal.read(tmp_path)
    (tmp_path / journal.NAME).write_text("[" * 100_000 + "\n7\n")
    with pytest.raises(journal.RunJournalError, match="not a journal"):
        journal.read(tmp_path)


def test_sinks_get_the_flat_numbers_of_steps_and_evaluations(tmp_path: Path) -> None:
    kept = Kept()
    with RunJournal(tmp_path, sinks=[kept]) as log:
        log.write("run", config={"seed": 7})
        log.write("step", iteration=3, reward={"solve": {"deduction": 0.5}}, bad=math.nan, text="x", ok=True)
        log.write("sample", iteration=3, program="p")
    assert kept.seen == [(3, {"step/reward/solve/deduction": 0.5, "step/ok": 1.0})]
    assert kept.closed


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with RunJournal(tmp_path, sinks=[journal.TensorBoard(tmp_path)]) as log:
        log.write("step", iteration=1, reward=0.5)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"step/reward" in events.read_bytes()


def test_a_missing_sink_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(journal.importlib, "import_module", missing)
    with pytest.raises(journal.RunJournalError, match="pip install tensorboard"):
        journal.TensorBoard(tmp_path)
    with pytest.raises(journal.RunJournalError, match=r"pip install 'harena\[wandb\]'"):
        journal.Wandb(tmp_path, project="p", config={})


def in_a_process(program: str, folder: Path, **environment: str) -> str:
    """What a program with wandb prints: wandb keeps the first environment it sees, and a server beside the process."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'harena[wandb]'")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=kept | {"HOME": str(folder)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wandb_gets_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    program = """if True:
        import socket, sys
        from harena.azr.report import journal
        socket.gethostname = lambda: "machine-of-mine"
        sink = journal.Wandb(sys.argv[1] + "/run", project="p", config={"seed": 7})
        with journal.RunJournal(sys.argv[1] + "/run", sinks=[sink]) as log:
            log.write("step", iteration=1, reward=0.5)
            log.write("sample", iteration=1, program="def f(secret): ...")
            print("def f(printed): ...")
    """
    in_a_process(program, tmp_path, WANDB_MODE="offline")
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    data = kept.read_bytes()
    assert b"step/reward" in data
    assert b"seed" in data
    assert not [word for word in (b"secret", b"printed", b"machine-of-mine") if word in data]
    assert not list(kept.parent.glob("files/*"))


def test_a_server_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    program = """if True:
        import sys
        from harena.azr.report import journal
        try:
            journal.Wandb(sys.argv[1] + "/run", project="p", config={})
        except journal.RunJournalError as error:
            print(error)
    """
    said = in_a_process(program, tmp_path, WANDB_BASE_URL="http://127.0.0.1:9")
    assert "No API key" in said
    assert said.endswith("(WANDB_MODE=offline needs no server)\n")
