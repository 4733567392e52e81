"""Hundreds of iterations of self-play with the model that comes with Harena: memory, descriptors, threads and processes
stay where they were after the first ones. `HARENA_SOAK_ITERATIONS` changes how many."""

from __future__ import annotations

import os
import statistics
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.leaks import alive, boxes_of, descendants, descriptors, keepers, leaked, resident_mb, settle, traces

pytest.importorskip("torch")

from harena.azr import config as configs
from harena.azr import run
from harena.azr.engines import torch_driver
from harena.azr.model import weights

ITERATIONS = int(os.environ.get("HARENA_SOAK_ITERATIONS", "200"))
WARM = ITERATIONS // 5
"""Iterations until every buffer, cache and allocator has seen what it will see."""
WINDOW = max(1, ITERATIONS // 10)
NOISE_MB = 24
"""Of the allocators: the longest completion of a batch, and so the size of its tensors, differs each time."""


@dataclass(slots=True)
class Seen:
    """What one process and those below it hold, iteration by iteration."""

    host_mb: list[float] = field(default_factory=list[float])
    below_mb: list[float] = field(default_factory=list[float])
    open_files: list[int] = field(default_factory=list[int])
    threads: list[int] = field(default_factory=list[int])
    processes: list[int] = field(default_factory=list[int])

    def look(self) -> None:
        below = descendants(os.getpid())
        self.host_mb.append(resident_mb({(os.getpid(), "")}))
        self.below_mb.append(resident_mb(below))
        self.open_files.append(len(descriptors()))
        self.threads.append(threading.active_count())
        self.processes.append(len(below))


def ends(values: list[float] | list[int]) -> tuple[float, float]:
    """Early, after the warm-up, and at the end: medians, so that one iteration that is unlike the others is none."""
    return statistics.median(values[WARM : WARM + WINDOW]), statistics.median(values[-WINDOW:])


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not weights.SMALL.is_file(), reason="the small model is not here")
def test_iterations_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = descriptors()
    config = configs.read(
        profile="laptop",
        batch=4,
        rollouts=2,
        iterations=ITERATIONS,
        evaluate_every=WINDOW,
        evaluate_tasks=1,
        buffer={"capacity": 64},
    )
    seen = Seen()
    boxes, below = list[str](), set[tuple[int, str]]()

    def say(text: str) -> None:
        nonlocal boxes, below
        if not text.startswith("iteration"):
            return
        seen.look()
        boxes, below = boxes_of(os.getpid()), descendants(os.getpid())
        with capsys.disabled():
            now = f"{len(seen.host_mb)}/{ITERATIONS}  {seen.host_mb[-1]:.0f} MiB, boxes {seen.below_mb[-1]:.0f} MiB, "
            print(f"\r{now}{seen.open_files[-1]} files, {seen.threads[-1]} threads ", end="", flush=True)

    run.train(tmp_path / "run", config, torch_driver.engine_of, say=say)
    with capsys.disabled():
        print("\nearly and late:", {name: ends(getattr(seen, name)) for name in Seen.__slots__})
    assert len(seen.host_mb) == ITERATIONS
    for name, room in (("host_mb", NOISE_MB), ("below_mb", NOISE_MB), ("open_files", 8), ("processes", 8)):
        early, late = ends(getattr(seen, name))
        assert late <= early + room, f"{name} grew from {early:.0f} to {late:.0f}"
    assert ends(seen.threads)[1] <= max(seen.threads[:WARM])
    assert settle(lambda: alive(below), set()) == set()
    assert settle(lambda: traces(boxes), []) == []
    assert settle(keepers, 0) == 0
    assert leaked(before) == []
