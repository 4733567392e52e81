"""A run in its folder: ended in every way and resumed, refused where it would harm another, never trained on what is held
out. An engine without a model, real boxes, real files."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harena.azr import checkpoint, config, run
from harena.azr.checkpoint import BadCheckpoint
from harena.azr.config import TrainConfig
from harena.azr.engines.protocol import Rollout, Update
from harena.azr.learn import metrics
from harena.azr.report import journal, show
from harena.azr.tasks import buffer, suite
from harena.azr.tasks.kinds import TaskKind
from harena.errors import HarenaError, SpecError
from support.scripted import ScriptedEngine


def settings(**changes: Any) -> TrainConfig:
    small = {"batch": 4, "rollouts": 2, "seed_factor": 1, "seed_rounds": 1, "checkpoint_every": 1, "evaluate_tasks": 0}
    return config.read(None, **{"iterations": 3, **small, **changes})


class EndsIn(ScriptedEngine):
    """Does something in its n-th update."""

    def __init__(self, number: int, end: Any) -> None:
        super().__init__()
        self._number, self._end = number, end

    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        if self.steps + 1 == self._number:
            self._end()
        return super().step(rollouts, update)


def train(
    folder: Path, engine: ScriptedEngine | None = None, *, resume: bool = False, **changes: Any
) -> run.RunOutcome:
    return run.train(folder, settings(**changes), lambda _: engine or ScriptedEngine(), resume=resume)


def left_by(folder: Path) -> tuple[Any, ...]:
    place = checkpoint.latest(folder / run.CHECKPOINTS)
    assert place is not None
    files = [(folder / run.BUFFERS / f"{kind}.jsonl").read_text() for kind in TaskKind]
    return checkpoint.load(place), files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(folder)
    return folder


# ---- ended and resumed ----


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_lets_the_iteration_end_and_saves_it(tmp_path: Path, whole: Path, sent: signal.Signals) -> None:
    said: list[str] = []
    engine = EndsIn(2, lambda: signal.raise_signal(sent))
    with pytest.raises(KeyboardInterrupt):
        run.train(tmp_path / "run", settings(checkpoint_every=10), lambda _: engine, say=said.append)
    assert run.where(tmp_path / "run") == "after iteration 2"
    assert any("Ctrl-C once more" in text for text in said)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (tmp_path / "run" / "report.html").exists()
    train(tmp_path / "run", resume=True)
    assert left_by(tmp_path / "run") == left_by(whole)


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", EndsIn(2, twice))
    assert run.where(tmp_path / "run") == "after iteration 1"


def test_an_interrupt_that_the_process_ignores_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train(tmp_path / "run", EndsIn(1, lambda: signal.raise_signal(signal.SIGINT))).iterations == 3
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_may_be_driven_by_another_thread(tmp_path: Path) -> None:
    done: list[run.RunOutcome] = []
    thread = threading.Thread(target=lambda: done.append(train(tmp_path / "run")))
    thread.start()
    thread.join(60)
    assert done[0].iterations == 3


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(run.Run, "save", killed)
        with pytest.raises(MemoryError):
            train(tmp_path / "run")
    assert run.where(tmp_path / "run") == "from its beginning"
    train(tmp_path / "run", resume=True)
    assert left_by(tmp_path / "run") == left_by(whole)


def test_a_full_disk_stops_the_run_with_words_and_loses_nothing(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(buffer.Buffer, "_append", full)
        with pytest.raises(run.RunStopped, match=r"No space left on device; .* --resume"):
            train(tmp_path / "run", seed_rounds=0)
    monkeypatch.undo()
    train(tmp_path / "run", resume=True, seed_rounds=0)
    assert [record["kind"] for record in journal.read(tmp_path / "run")].count("step") == 3


def test_of_a_damaged_checkpoint_the_one_before_is_named(tmp_path: Path) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-000003" / "state.json").write_text("{")
    with pytest.raises(BadCheckpoint, match=r"step-000003: .*; remove it to go on from step-000002"):
        train(tmp_path / "run", resume=True, iterations=4)
    with pytest.raises(BadCheckpoint, match="there is no other"):
        (tmp_path / "run" / "checkpoints" / "step-000002").rename(tmp_path / "elsewhere")
        train(tmp_path / "run", resume=True, iterations=4)


# ---- one folder, one run, one process ----


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=1)
    with run.working_in(tmp_path / "run"), pytest.raises(SpecError, match="another process works on this run"):
        train(tmp_path / "run", resume=True)
    assert train(tmp_path / "run", resume=True, iterations=2).iterations == 2


def test_of_two_that_start_in_one_folder_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start(tmp_path / "run", settings(seed=1))
    monkeypatch.setattr(run, "check_free", lambda folder: None)  # as it was for both a moment ago
    with pytest.raises(FileExistsError):
        run.start(tmp_path / "run", settings(seed=2))
    assert run.settings_of(tmp_path / "run").seed == 1


@pytest.mark.parametrize(("changes", "said"), [({"wall_s": 0.0}, "wall_s"), ({"backend": "remote"}, "no backend")])
def test_settings_that_cannot_be_leave_no_folder(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(HarenaError, match=said):
        train(tmp_path / "run", executor=changes)
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_folder_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(SpecError, match="is a file"):
        train(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_tasks_that_were_collected_are_not_trained_over(tmp_path: Path) -> None:
    found = run.propose(tmp_path / "tasks", settings(), ScriptedEngine())
    assert found.tasks[TaskKind.DEDUCTION] > 1
    before = (tmp_path / "tasks" / "buffers" / "deduction.jsonl").read_text()
    with pytest.raises(SpecError, match="tasks that were collected"):
        train(tmp_path / "tasks", resume=True)
    assert (tmp_path / "tasks" / "buffers" / "deduction.jsonl").read_text() == before


# ---- held out ----


@pytest.mark.parametrize("changes", [{}, {"evaluate_tasks": 1}, {"prompt": {"inputs": 10}}])
def test_what_eval_asks_is_never_trained_on_however_a_run_measures_itself(changes: dict[str, Any]) -> None:
    assert suite.digests(suite.tiny()) <= run.held_out_programs(settings(**changes))


def test_a_run_is_measured_on_the_same_tasks_when_resumed(tmp_path: Path) -> None:
    run.start(tmp_path / "run", settings(evaluate_tasks=1))
    kept = run.settings_of(tmp_path / "run")
    assert len(run.held_out_suite(kept)) == 12


# ---- why proposals are no tasks ----


def test_reasons_are_counted_by_kind_in_journal_and_tables(tmp_path: Path) -> None:
    engine = ScriptedEngine(bad=1.0)
    found = run.propose(tmp_path / "tasks", settings(batch=12, kinds=["deduction", "induction"]), engine)
    reasons = found.seeding.invalid
    assert set(reasons["deduction"]) <= {
        "error",
        "input",
        "forbidden",
        "nondeterministic",
        "form: the last line is not f(…)",
    }
    assert reasons["induction"] == {"form: n inputs in n blocks; n were asked for": 12}
    assert sum(reasons["deduction"].values()) == found.seeding.proposals["deduction"] == 12
    assert found.seeding.mostly() == "; 12 of 24 proposals: form: n inputs in n blocks; n were asked for"
    seed = next(record for record in journal.read(tmp_path / "tasks") if record["kind"] == "seed")
    assert seed["invalid"] == reasons
    lines = show.invalid(reasons).splitlines()
    assert lines[0].split() == ["no", "task", "because", "deduction", "induction"]
    assert "were asked for" in lines[1]


def test_an_iteration_says_why_its_proposals_were_no_tasks(tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", ScriptedEngine(bad=1.0), iterations=1)
    assert outcome.last is not None
    for of_kind in outcome.last.metrics["propose"].values():
        assert sum(of_kind["invalid"].values()) == of_kind["count"] == 4
    assert "no task because" in show.training(None, None, outcome.last)
    step = next(record for record in journal.read(tmp_path / "run") if record["kind"] == "step")
    assert step["propose"] == journal.plain(outcome.last.metrics["propose"])
    assert all(metrics.why_invalid(one) for one in outcome.last.proposed)


# ---- models by name ----


def test_a_name_that_is_no_path_is_looked_up_and_what_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def found(name: str, **_: object) -> str:
        asked.append(name)
        if name.startswith("no/"):
            raise ValueError("404")
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=found))
    weights = pytest.importorskip("harena.azr.model.weights")
    with pytest.raises(SpecError, match=r"no config.json in"):
        weights.load("some/model")
    with pytest.raises(SpecError, match=r"'no/model' is neither a path nor to be had from the hub: 404"):
        weights.load("no/model")
    assert asked == ["some/model", "no/model"]
