"""What the repository ships beside the package: the example, the exported requirements, the targets of make."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_exported_requirements_are_those_of_pyproject() -> None:
    made = runpy.run_path(str(ROOT / "deploy" / "requirements.py"))["text"](ROOT / "pyproject.toml")
    assert (ROOT / "requirements.txt").read_text() == made + "\n"


def test_the_sample_match_is_played(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "run_sample_match.py"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "winner: tracker-1" in done.stdout
    assert list(tmp_path.glob("harena/replays/*.html"))


def test_make_offers_what_its_users_type() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("build-all", "run", "k8s-setup", "logs", "proto", "test"):
        assert f"make {target}\t" in said
