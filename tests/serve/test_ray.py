"""Boxes on a real Ray cluster of two nodes on this machine (tests/support/ray_script.py), one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harena import BackendUnavailable, Sandbox, SpecError

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]  # a cluster takes its time to start

EXPECTED = {
    "nodes of the pool": 2,
    "boxes of the pool": 2,
    "outputs": True,
    "verdicts": ["exit", "time"],
    "file": 5 << 20,
    "stream": "echoed",
    "fork": 5 << 20,
    "after the death": True,
    "lost call": [[True, "unknown"]],
    "later call": "safe",
    "kept box": "kept\n",
    "left behind": True,
    "joined": True,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'harena[ray]'")
    script = Path(__file__).parents[1] / "support" / "ray_script.py"
    env = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    file = tmp_path_factory.mktemp("ray") / "seen.json"
    command = [sys.executable, str(script), str(file)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=360)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(file.read_text())


@pytest.mark.parametrize("claim", EXPECTED)
def test_boxes_on_a_ray_cluster(seen: dict[str, Any], claim: str) -> None:
    assert seen[claim] == EXPECTED[claim]


def test_ray_takes_no_token() -> None:
    with pytest.raises(SpecError, match="no token"):
        Sandbox("ray://auto", token="x" * 30)


def test_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailable, match=r"harena\[ray\]"):
        Sandbox("ray://nowhere:1")
