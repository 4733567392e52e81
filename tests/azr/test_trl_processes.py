"""Two processes of one run on TRL, on CPU: they are one run, and what ends one of them ends both."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harena.azr.engines import trl_engine
from harena.azr.learn import advantages
from harena.azr.report import journal
from support import trl_worker

pytest.importorskip("trl", reason="trl is not installed: pip install 'harena[trl]'")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("default"),  # TRL and what it imports warn about themselves
    pytest.mark.slow,
    pytest.mark.timeout(300),  # most of it is imports, which crawl on a busy machine
]

WORKER = Path(trl_worker.__file__)
LIMIT_S = 250


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What two processes saw. No launcher: nobody kills one that hangs."""
    out = tmp_path_factory.mktemp("processes")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, str(WORKER), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | common,
        start_new_session=True,
    )
    try:
        said = started.communicate(timeout=LIMIT_S)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    assert started.returncode == 0, said
    return out, [json.loads((out / f"seen-{rank}.json").read_text()) for rank in "01"]


def test_two_processes_are_one_run(both: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    import torch

    out, (first, second) = both
    names = [number // 4 for number in range(24)]
    for number, found in enumerate(first["advantages"]):
        assert found == pytest.approx(advantages.trr(trl_worker.uneven(number), names), abs=1e-4)
    assert first["advantages"] == second["advantages"]
    assert len(first["advantages"]) == 2
    assert first["wrote"] == second["wrote"] == [6] * 8  # half of 12 rows: seeding, three evaluations, two iterations
    assert (first["iterations"], second["iterations"]) == (2, None)

    weights = [torch.load(out / f"weights-{rank}.pt", weights_only=True) for rank in "01"]
    alone = trl_worker.model()
    untouched = {name: value.clone() for name, value in alone.state_dict().items()}
    trl_worker.learn(alone, trl_worker.tokenizer(), tmp_path)
    for name, value in alone.state_dict().items():
        assert torch.equal(weights[0][name], weights[1][name])
        assert torch.allclose(weights[0][name], value, atol=1e-6)
    assert any(not torch.equal(value, untouched[name]) for name, value in weights[0].items())


def test_the_first_process_alone_writes_the_journal(both: tuple[Path, list[dict[str, Any]]]) -> None:
    out, _ = both
    records = journal.read(out / "run")
    kinds = [(record["kind"], record.get("iteration")) for record in records if record["kind"] != "sample"]
    assert kinds == [
        ("run", None),
        ("seed", None),
        ("eval", 0),
        ("step", 1),
        ("update", 1),
        ("eval", 1),
        ("step", 2),
        ("update", 2),
        ("eval", 2),
    ]
    assert (out / "run" / "report.html").exists()
    assert (out / "run" / trl_engine.MODEL / "model.safetensors").exists()


def test_what_ends_one_process_ends_both_with_its_words(both: tuple[Path, list[dict[str, Any]]]) -> None:
    _, seen = both
    first, second = (one["failures"] for one in seen)
    assert second["second"] == "MemoryError: no room left to write"
    assert first["second"] == "RankFailed: process 1 of the run failed: MemoryError: no room left to write"
    assert first["first"] == "OSError: the boxes are gone"
    assert second["first"] == "RankFailed: process 0 of the run failed: OSError: the boxes are gone"
    assert "holds a run already" in first["taken"]
    assert "holds a run already" in second["taken"]
