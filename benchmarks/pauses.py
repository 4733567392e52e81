"""What a pause costs: a command in a box, and the entry of a process into a cgroup, in a row and after a rest.

    python benchmarks/pauses.py [--rounds N]

The second needs root and cgroup v1: it makes a cgroup beside those of boxes and removes it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from harena import Sandbox

REST_S = 0.15
GROUPS = Path("/sys/fs/cgroup/memory")


def median_ms(action: Callable[[], float], rounds: int) -> float:
    return statistics.median(action() for _ in range(rounds)) * 1e3


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def command_ms(rest_s: float, rounds: int) -> float:
    with Sandbox() as box:
        box.exec(["/bin/true"])

        def one() -> float:
            time.sleep(rest_s)
            return timed(lambda: box.exec(["/bin/true"]))

        return median_ms(one, rounds)


def entry_ms(rest_s: float, rounds: int) -> float:
    group = GROUPS / f"harena-pauses-{os.getpid()}"
    group.mkdir()

    def one() -> float:
        with subprocess.Popen(["sleep", "60"]) as process:
            try:
                time.sleep(rest_s)
                return timed(lambda: (group / "cgroup.procs").write_text(str(process.pid)))
            finally:
                process.kill()

    try:
        return median_ms(one, rounds)
    finally:
        group.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    for rest_s in (0.001, REST_S):
        print(f"command in a box, {rest_s:g} s after the last: {command_ms(rest_s, rounds):.2f} ms")
        if os.access(GROUPS, os.W_OK) and (GROUPS / "cgroup.procs").exists():
            print(f"entry into a cgroup, {rest_s:g} s after the last: {entry_ms(rest_s, rounds):.2f} ms")


if __name__ == "__main__":
    main()
