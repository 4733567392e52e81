"""Rented GPU pods: the script that prepares one, and the tier of boxes that works there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harena.azr.check.verify import Attempt, TaskVerifier
from harena.azr.tasks.kinds import SolverAnswer, TaskKind, Triplet
from harena.errors import IsolationUnavailable

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "deploy" / "runpod" / "setup.sh"


def setup(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "WORKSPACE": str(tmp_path / "work"), "VOLUME": str(tmp_path / "volume"), "SKIP_INSTALL": "1"}
    return subprocess.run([SETUP], env=env, capture_output=True, text=True, check=False)


def test_without_a_volume_folders_are_made_and_that_is_said(tmp_path: Path) -> None:
    done = setup(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs end with the pod" in done.stderr
    assert (tmp_path / "work" / "runs").is_dir()
    assert "HARENA_ISOLATION" in (tmp_path / "work" / "harena.env").read_text()


def test_with_a_volume_runs_are_kept_there_and_nothing_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "work" / "runs").mkdir(parents=True)
    for _ in range(2):
        assert setup(tmp_path).returncode == 0
    assert (tmp_path / "work" / "runs").resolve() == tmp_path / "volume" / "harena" / "runs"
    (tmp_path / "work" / "models").unlink()
    (tmp_path / "work" / "models").mkdir()
    (tmp_path / "work" / "models" / "mine").write_text("x")
    done = setup(tmp_path)
    assert done.returncode == 1
    assert "holds files" in done.stderr
    assert (tmp_path / "work" / "models" / "mine").read_text() == "x"


def test_tasks_are_checked_in_the_restricted_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_ISOLATION", "restricted")
    task = Triplet(program="def f(x):\n    return x + 1", input="3", output="4")
    try:
        with TaskVerifier() as verifier:
            grades = verifier.grade(
                [Attempt(task=task, answer=SolverAnswer(kind=TaskKind.DEDUCTION, text=text)) for text in ("4", "5")]
            )
    except IsolationUnavailable as error:
        pytest.skip(f"no restricted tier here: {error}")
    assert [grade.right for grade in grades] == [True, False]
