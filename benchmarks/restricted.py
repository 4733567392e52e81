"""The restricted isolation tier beside the full one, in the same run: a fresh Python program (`pool.map` of one), a
command, and a new box. The tiers take turns, so that whatever else the machine does hits both.

    python benchmarks/restricted.py [--json FILE] [--rounds N]

Must: a fresh program in the restricted tier, p50 at most 3 ms (aim: 1 ms).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from programs import programs

from harena import Sandbox, SandboxPool, Spec
from harena.errors import IsolationUnavailable

TIERS = ("full", "restricted")
MUST_MS, AIM_MS = 3.0, 1.0


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def summary(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {"p50_ms": round(statistics.median(times), 3), "p95_ms": round(times[int(len(times) * 0.95)], 3)}


def possible_tiers() -> list[str]:
    found: list[str] = []
    for tier in TIERS:
        try:
            Sandbox(Spec(isolation=tier)).close()
            found.append(tier)
        except IsolationUnavailable as error:
            print(f"{tier}: not here: {error}")
    return found


def measure(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    tiers = possible_tiers()
    times: dict[str, dict[str, list[float]]] = {tier: {} for tier in tiers}
    sources = programs(rounds)
    pools = {tier: SandboxPool(Spec(isolation=tier), warm=1, max_live=1) for tier in tiers}
    boxes = {tier: Sandbox(Spec(isolation=tier)) for tier in tiers}
    try:
        for tier in tiers:
            pools[tier].map(sources[:4])
            boxes[tier].exec(["true"])
        for number, source in enumerate(sources):
            for tier in tiers if number % 2 else reversed(tiers):
                note = times[tier].setdefault
                note("program", []).append(timed(lambda tier=tier, source=source: pools[tier].map([source])))
                note("exec true", []).append(timed(lambda tier=tier: boxes[tier].exec(["true"])))
        for _ in range(max(5, rounds // 20)):
            for tier in tiers:
                made: list[Sandbox] = []
                times[tier].setdefault("new box", []).append(
                    timed(lambda tier=tier, made=made: made.append(Sandbox(Spec(isolation=tier))))
                )
                made[0].close()
        for tier in tiers:  # one after the other, as a caller does who waits for each answer
            note = times[tier].setdefault("program, back to back", [])
            note += [timed(lambda tier=tier, source=source: pools[tier].map([source])) for source in sources]
    finally:
        for one in (*pools.values(), *boxes.values()):
            one.close()
    return {tier: {what: summary(found) for what, found in kinds.items()} for tier, kinds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    found = measure(args.rounds)
    for tier, kinds in found.items():
        for what, numbers in kinds.items():
            print(f"{tier:<11} {what:<22} p50 {numbers['p50_ms']:8.3f} ms   p95 {numbers['p95_ms']:8.3f} ms")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; must p50 <= {MUST_MS} ms, aim {AIM_MS} ms")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
