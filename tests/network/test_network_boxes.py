"""Boxes with a network, attacked: runs offline_*.py in a network namespace without a route out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(path.name, marks=[] if path.stem == "offline_reach" else [pytest.mark.thorough])
        for path in sorted(HERE.glob("offline_*.py"))
    ],
)
def test_boxes_hold(file: str) -> None:
    """As an ordinary user: tests/integration/test_ordinary_user.py"""
    command = [sys.executable, str(HERE / "offline.py"), str(HERE / file)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
