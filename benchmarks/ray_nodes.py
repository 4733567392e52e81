"""A batch on a Ray cluster of two nodes on this machine beside the same batch by a local pool, in turns.

    python benchmarks/ray_nodes.py [--programs N] [--rounds N] [--json FILE]

Must: at least 70 % of the local pool's programs per second on both cores (aim: 90 %). Needs harena[ray].
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from harena import SandboxPool
from harena.sandbox.bench import program
from harena.serve.bench import ratio

MUST, AIM = 70.0, 90.0
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


def measure(count: int, rounds: int) -> float:
    """The rate on Ray in percent of the local one, the median of all rounds."""
    cluster = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
    )
    cluster.add_node(**NODE)
    programs = [program(number) for number in range(count)]
    with SandboxPool(f"ray://{cluster.address}") as on_ray, SandboxPool(warm=2) as local:
        return ratio(on_ray, local, programs, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    percent = measure(args.programs, args.rounds)
    print(f"Ray, two nodes, against local pool.map: {percent:.0f} %; must >= {MUST:g}, aim {AIM:g}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if args.json:
        args.json.write_text(json.dumps({"percent": percent, "load": os.getloadavg()[0]}) + "\n")
    return 0 if percent >= MUST else 1


if __name__ == "__main__":
    sys.exit(main())
