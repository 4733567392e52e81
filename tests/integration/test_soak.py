"""Thousands of executions, hostile ones among them: every verdict right, nothing left behind, memory flat."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from harena import Limits, SandboxPool, Verdict
from support.leaks import alive, boxes_of, descendants, descriptors, keepers, leaked, resident_mb, settle, traces

TOTAL = int(os.environ.get("HARENA_SOAK", "20000"))
BATCH = 500
LIMITS = Limits(wall_s=0.25, memory_mb=64, processes=16, output_bytes=10_000)
HOSTILE = {
    Verdict.TIME: (0.05, ["while True: pass", "import time; time.sleep(1000)", "import os; os.read(os.pipe()[0], 1)"]),
    Verdict.MEMORY: (0.02, ["x = 'a' * 10**10", "x = [bytearray(2**20) for _ in range(10**6)]"]),
    Verdict.PROCESSES: (0.02, ["import os\nwhile True: os.fork()"]),
}


def programs(rng: random.Random) -> Iterator[tuple[str, Verdict, bytes]]:
    while True:
        number = rng.randrange(10**4)
        chance = rng.random()
        for verdict, (share, sources) in HOSTILE.items():
            if chance < share:
                yield rng.choice(sources), verdict, b""
                break
            chance -= share
        else:
            yield f"print(sum(range({number})))", Verdict.OK, b"%d\n" % sum(range(number))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    source = programs(random.Random(2))
    before = descriptors()
    counts: Counter[Verdict] = Counter()
    sizes: list[tuple[float, float]] = []
    boxes, below = list[str](), set[tuple[int, str]]()
    slow = 0
    started = time.monotonic()
    with SandboxPool(warm=2) as pool:
        for done in range(0, TOTAL, BATCH):
            batch = [next(source) for _ in range(min(BATCH, TOTAL - done))]
            results = pool.map([program for program, _, _ in batch], limits=LIMITS)
            for (program, verdict, stdout), result in zip(batch, results, strict=True):
                if result.verdict is Verdict.TIME and verdict is not Verdict.TIME:
                    # So short a clock may run out on a busy machine; with time enough the verdict must be right.
                    slow += 1
                    (result,) = pool.map([program], limits=dataclasses.replace(LIMITS, wall_s=20))
                counts[result.verdict] += 1
                assert result.verdict is verdict, (program, result)
                assert result.stdout == stdout
            boxes, below = boxes_of(os.getpid()), descendants(os.getpid())
            sizes.append((resident_mb({(os.getpid(), "")}), resident_mb(below)))
            with capsys.disabled():
                shown = " ".join(f"{verdict.value} {count}" for verdict, count in sorted(counts.items(), key=str))
                rate = (done + len(batch)) / (time.monotonic() - started)
                print(
                    f"\r{done + len(batch)}/{TOTAL} {rate:.0f}/s  {shown}  {sizes[-1][0]:.0f} MiB ", end="", flush=True
                )
            assert len(boxes) <= 2
            assert len(descriptors()) <= len(before) + 20
    assert settle(lambda: alive(below), set()) == set()
    assert settle(lambda: traces(boxes), []) == []
    assert settle(keepers, 0) == 0
    assert leaked(before) == []
    assert slow <= TOTAL / 50
    early = sizes[min(len(sizes) - 1, 2)]
    assert sizes[-1][0] < early[0] * 1.2 + 8, "the host's memory grew"
    assert sizes[-1][1] < early[1] * 1.5 + 32, "the boxes' memory grew"
