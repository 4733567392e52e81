"""Benchmark of the sandbox on this machine: `harena bench sandbox`. It uses real boxes, reports medians, and warms up
only what a user would have warm. benchmarks/run.py compares the results with other tools."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from harena.sandbox.backend import Programs, Task
from harena.sandbox.box import Sandbox
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Limits, Result

SMALL = Limits(wall_s=5, memory_mb=256, processes=16)


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    must: float | None
    aim: float | None
    """Target value; None if there is no target."""
    more_is_better: bool = False

    def reached(self) -> str:
        for goal, name in ((self.aim, "aim"), (self.must, "must")):
            if goal is not None and (self.value >= goal if self.more_is_better else self.value <= goal):
                return name
        return "" if self.must is None else "missed"


def median(action: Callable[[], object], times: int, pause_s: float = 0.0) -> float:
    """Median in seconds. The pause lets the box prepare its next forks, as it does between a user's calls."""
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
        if pause_s:
            time.sleep(pause_s)
    return statistics.median(taken)


def program(number: int) -> str:
    """A small program like those that reward functions run: a function, a loop, a sorted result, its repr."""
    return (
        "def f(items, factor):\n"
        "    seen = {}\n"
        "    for position, item in enumerate(items):\n"
        "        seen[item] = seen.get(item, 0) + position * factor\n"
        "    return sorted((value, key) for key, value in seen.items() if value % 2 == factor % 2)\n"
        f"print(repr(f(list('harena{number}') * 3, {number % 7 + 1})))\n"
    )


def latency(quick: bool) -> list[Row]:
    times = 60 if quick else 400
    rows: list[Row] = []
    with Sandbox(limits=SMALL) as box:
        box.warm_up()
        lane = box.programs()

        def fresh() -> None:
            result = one_program(lane, "print(1)", more=2)
            if result.stdout != b"1\n":
                raise RuntimeError(f"a wrong answer: {result}")

        fresh()
        rows.append(
            Row("fresh Python execution in a warm box, p50", median(fresh, times, 0.004) * 1e3, "ms", 1.5, 0.45)
        )
        rows.append(Row("… back to back, nothing ready ahead, p50", median(fresh, times) * 1e3, "ms", None, None))

        def echo() -> None:
            box.exec(["/bin/echo", "hi"])

        rows.append(Row("exec /bin/echo in a warm box, p50", median(echo, times, 0.004) * 1e3, "ms", 2.0, 1.0))
        rows.append(Row("… back to back, p50", median(echo, times) * 1e3, "ms", None, None))
        rows.append(Row("round trip to the in-box agent, p50", median(box.ping, times * 5) * 1e6, "µs", 60, 30))
    return rows


def cold(quick: bool) -> list[Row]:
    def run(argv: list[str]) -> None:
        with Sandbox(limits=SMALL) as box:
            if not box.exec(argv).ok:
                raise RuntimeError(f"{argv} failed")

    times = 10 if quick else 60
    python = "python3"
    return [
        Row("cold box: /bin/true", median(lambda: run(["/bin/true"]), times) * 1e3, "ms", None, 3.0),
        Row(
            "cold box: python3 -c 'print(1)'",
            median(lambda: run([python, "-c", "print(1)"]), times) * 1e3,
            "ms",
            None,
            None,
        ),
    ]


def bare_python(times: int) -> float:
    """Seconds for the interpreter that boxes use, without a box, as the baseline for a cold box."""
    executable = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    argv = [str(executable), "-c", "print(1)"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return median(lambda: subprocess.run(argv, check=True, capture_output=True, env=env), times)


def pools(quick: bool) -> list[Row]:
    rows: list[Row] = []
    count = 300 if quick else 2000
    programs = [program(number) for number in range(count)]
    with SandboxPool(warm=4) as pool:
        pool.map(programs[:50])
        boxes: list[Sandbox] = []

        def lease() -> None:
            boxes.append(pool.lease())

        taken: list[float] = []
        for _ in range(10 if quick else 40):
            while len(pool.ready) < 2:
                time.sleep(0.02)
            taken.append(median(lease, 1))
            boxes.pop().close()
        rows.append(Row("lease from a warm pool, p50", statistics.median(taken) * 1e6, "µs", 200, 50))
        rows.append(Row("pool.map fresh", rate(pool, programs, None), "programs/s", 600, 1000, more_is_better=True))
        rows.append(
            Row("pool.map group=20", rate(pool, programs * 3, 20), "programs/s", 4000, 7500, more_is_better=True)
        )
        mixed = [program(number) for number in range(512)]
        for index in range(26):
            mixed[index * 19 + 5] = "while True: pass"
        started = time.perf_counter()
        results = pool.map(mixed, limits=Limits(wall_s=1, memory_mb=256, processes=16))
        took = time.perf_counter() - started
        if sum(result.ok for result in results) != 512 - 26:
            raise RuntimeError("a wrong verdict among the loops")
        rows.append(Row("26 infinite loops among 512 programs, wall_s=1", took, "s", 6.5, 3.25))
    return rows


def rate(pool: SandboxPool, programs: list[str], group: int | None) -> float:
    """Programs per second, the better of two rounds, because the first may still wait for boxes."""
    best = 0.0
    for _ in range(2):
        started = time.perf_counter()
        results = pool.map(programs, group=group, limits=SMALL)
        best = max(best, len(programs) / (time.perf_counter() - started))
        if not all(result.ok for result in results):
            raise RuntimeError("a wrong verdict")
    return best


def forks(quick: bool) -> list[Row]:
    with Sandbox(limits=Limits(memory_mb=1024)) as box:
        box.run("heap = bytearray(64 << 20)\nfor i in range(0, len(heap), 4096): heap[i] = 1")
        taken: list[float] = []
        for _ in range(10 if quick else 40):
            started = time.perf_counter()
            (fork,) = box.fork(1)
            taken.append(time.perf_counter() - started)
            fork.close()
    return [Row("fork of a live box with a 64 MiB heap, p50", statistics.median(taken) * 1e3, "ms", 10, 4)]


def private_mib(pid: int) -> float:
    """Memory that would be freed if this process ended."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def one_program(lane: Programs, source: str, *, more: int) -> Result:
    lane.give(1, Task(sources=[source], limits=SMALL, more=more))
    while not (ended := lane.collect()):
        pass
    return ended[0].results[0]


def descendants(pid: int) -> list[int]:
    return [pid, *(inner for child in children(pid) for inner in descendants(child))]


def memory(quick: bool) -> list[Row]:
    """Memory that one of many boxes adds, without the pages that boxes share."""
    before = set(children(os.getpid()))
    with Sandbox(limits=SMALL) as one, Sandbox(limits=SMALL) as other:
        one.warm_up()
        other.warm_up()
        time.sleep(0.2)
        (keeper, *_) = sorted(set(children(os.getpid())) - before)
        box = descendants(keeper)
        own = sum(private_mib(pid) for pid in box)
        one_program(one.programs(), "print(1)", more=1)
        time.sleep(0.3)
        ahead = [pid for pid in descendants(keeper) if pid not in box]
        # Of the two new processes the first is the job's init, whose memory is the zygote's own.
        own_ahead = min(private_mib(pid) for pid in ahead)
    return [
        Row("idle warm box, memory of its own", own, "MiB", 25, 14),
        Row("an execution forked ahead, memory of its own", own_ahead, "MiB", 2, 1),
    ]


def many(quick: bool) -> list[Row]:
    """Number of live warm boxes at once, up to the target or as many as memory allows."""
    boxes: list[Sandbox] = []
    wanted = int(os.environ.get("HARENA_BENCH_BOXES", "60" if quick else "1000"))
    try:
        while len(boxes) < wanted and available_mib() > 1500:
            box = Sandbox(limits=SMALL)
            boxes.append(box)
            box.warm_up()
        for box in boxes:
            box.ping()
        return [Row("warm boxes live at once", len(boxes), "boxes", 300, 1000, more_is_better=True)]
    finally:
        for box in boxes:
            box.close()


def available_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) // 1024
    return 0


PARTS: dict[str, Callable[[bool], list[Row]]] = {
    "latency": latency,
    "cold": cold,
    "pools": pools,
    "forks": forks,
    "memory": memory,
    "many": many,
}


def measure(*, quick: bool, say: Callable[[str], object] = lambda _: None) -> list[Row]:
    rows: list[Row] = []
    for name, part in PARTS.items():
        say(f"measuring {name} …")
        rows += part(quick)
    return rows


def table(rows: list[Row]) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{'what':<{width}}  {'measured':>18}  {'must':>8}  {'aim':>8}  reached"]
    for row in rows:
        measured = f"{row.value:.2f} {row.unit}" if row.value < 100 else f"{row.value:.0f} {row.unit}"
        goals = "  ".join(f"{'' if goal is None else f'{goal:g}':>8}" for goal in (row.must, row.aim))
        lines.append(f"{row.name:<{width}}  {measured:>18}  {goals}  {row.reached()}")
    return "\n".join(lines)


def main(*, quick: bool = False, json_file: str | None = None) -> int:
    rows = measure(quick=quick, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows))
    if json_file:
        Path(json_file).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0
