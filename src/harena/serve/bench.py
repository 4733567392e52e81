"""Benchmark of the service on this machine: `harena bench service`. It starts real servers on loopback. What is
compared takes turns, so that whatever else the machine does hits both sides.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harena.errors import BackendUnavailable
from harena.sandbox.bench import SMALL, Row, program, table
from harena.sandbox.box import Sandbox
from harena.sandbox.pool import SandboxPool
from harena.sessions.sdk import SandboxSession, WarmPoolManager

ACTIONS = 150_000_000
"""A million trajectories of 150 actions."""
STEP = [{"name": "one", "type": "Command", "command": ["/bin/true"]}]
BAR = 40


@dataclass(frozen=True, slots=True)
class BenchServer:
    url: str
    token: str


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Percentiles of one stage in the life of a box, in milliseconds."""

    name: str
    place: str
    p50: float
    p95: float
    p99: float


@contextlib.contextmanager
def server(*options: str, cores: set[int] | None = None) -> Generator[BenchServer]:
    """Start `harena serve`, bound to these processors. All servers of this process have one token."""
    with tempfile.TemporaryDirectory(prefix="harena-bench-") as folder:
        tokens = Path(folder, "tokens")
        tokens.touch(0o600)
        tokens.write_text(f"bench {TOKEN}\n")
        command = [sys.executable, "-m", "harena", "serve", "--listen", "127.0.0.1:0", "--token-file", str(tokens)]
        if cores is not None:
            command = ["taskset", "-c", ",".join(map(str, sorted(cores))), *command]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            lines = iter(process.stdout or ())
            found = next((match for line in lines if (match := re.search(r"boxes +(\S+)", line))), None)
            if found is None:
                raise BackendUnavailable("the server did not start: run `harena serve --token-file FILE` to see why")
            yield BenchServer(found[1], TOKEN)
        finally:
            process.terminate()
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


TOKEN = os.urandom(24).hex()


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that an action takes."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def percentile(taken: list[float], share: float) -> float:
    return sorted(taken)[min(len(taken) - 1, int(len(taken) * share))]


def stages(quick: bool) -> list[StageTimes]:
    """Local and remote in turns. queue: from the end of the only box of a pool until a waiting
    lease has a new one; claim: a lease of a warm
    box; start: a new box; first byte: of a started command; exec: /bin/true; teardown: closing a box."""
    rounds = 15 if quick else 200
    taken: dict[tuple[str, str], list[float]] = {}
    with server("--max-boxes", "64") as served, contextlib.ExitStack() as stack:
        places: dict[str, tuple[str, str | None]] = {"local": ("local", None), "remote": (served.url, served.token)}
        pools: dict[str, tuple[SandboxPool, SandboxPool]] = {}
        for place, (backend, token) in places.items():
            make: dict[str, Any] = {"backend": backend, "token": token, "limits": SMALL}
            pools[place] = (
                stack.enter_context(SandboxPool(warm=2, **make)),
                stack.enter_context(SandboxPool(warm=0, max_live=1, **make)),
            )
        for _ in range(rounds):
            for place, (backend, token) in places.items():
                for stage, value in one_life(backend, token, *pools[place]).items():
                    taken.setdefault((stage, place), []).append(value)
    return [
        StageTimes(stage, place, statistics.median(found), percentile(found, 0.95), percentile(found, 0.99))
        for (stage, place), found in sorted(taken.items(), key=lambda item: ORDER.index(item[0][0]))
    ]


ORDER = ["queue", "claim", "start", "first byte", "exec", "teardown"]


def one_life(backend: str, token: str | None, warm: SandboxPool, narrow: SandboxPool) -> dict[str, float]:
    found: dict[str, float] = {}
    boxes: list[Sandbox] = []
    found["start"] = timed(lambda: boxes.append(Sandbox(backend=backend, token=token, limits=SMALL)))
    box = boxes.pop()
    box.exec(["/bin/true"])
    found["exec"] = timed(lambda: box.exec(["/bin/true"]))

    def first_byte() -> None:
        process = box.start(["/bin/echo", "x"])
        if process.stdout.read(timeout_s=60) != b"x\n":
            raise RuntimeError("a wrong first byte")
        process.close()

    found["first byte"] = timed(first_byte)
    found["teardown"] = timed(box.close)
    while not warm.ready:
        time.sleep(0.005)
    found["claim"] = timed(lambda: boxes.append(warm.lease()))
    boxes.pop().close()
    held = narrow.lease()
    given_back = threading.Timer(0.02, held.close)
    given_back.start()
    found["queue"] = max(0.0, timed(lambda: boxes.append(narrow.lease())) - 20)
    boxes.pop().close()
    given_back.join()
    return found


def calls(quick: bool) -> list[Row]:
    times = 40 if quick else 600
    rest: list[float] = []
    kept: list[float] = []
    first: list[float] = []
    with server("--max-boxes", "64") as served:
        where: dict[str, Any] = {"server": served.url, "token": served.token}
        manager = WarmPoolManager(**where)
        manager.create_warmpool("bench", replicas=4, limits=SMALL)
        manager.wait_for_warmpool_ready("bench")
        with SandboxSession(limits=SMALL, **where) as session, Sandbox(served.url, token=served.token) as box:
            for _ in range(times):
                rest.append(timed(lambda: session.execute(STEP)))
                kept.append(timed(lambda: box.exec(["/bin/true"])))
        for _ in range(max(10, times // 10)):
            manager.wait_for_warmpool_ready("bench")
            opened: list[SandboxSession] = []

            def open_one(opened: list[SandboxSession] = opened) -> None:
                opened.append(SandboxSession("bench", **where).__enter__())
                opened[0].execute(STEP)

            first.append(timed(open_one))
            opened[0].__exit__(None, None, None)
    return [
        Row("exec over REST on loopback, p50", statistics.median(rest), "ms", 5, 3),
        Row("exec over the kept connection, p50", statistics.median(kept), "ms", 3, 1.8),
        Row("session from a warm pool to its first result, p50", statistics.median(first), "ms", 10, 4),
    ]


def ratio(one: SandboxPool, other: SandboxPool, programs: list[str], rounds: int) -> float:
    """Programs per second of one pool in percent of another's, in turns."""
    found: list[float] = []
    for pool in (one, other):
        pool.map(programs[:100], limits=SMALL)
    for _ in range(rounds):
        mine, theirs = (timed(lambda pool=pool: pool.map(programs, limits=SMALL)) for pool in (one, other))
        found.append(theirs / mine * 100)
    return statistics.median(found)


def batches(quick: bool) -> list[Row]:
    count, rounds = (400, 2) if quick else (5000, 3)
    programs = [program(number) for number in range(count)]
    rows: list[Row] = []
    with server() as served, SandboxPool(served.url, token=TOKEN) as remote, SandboxPool() as local:
        percent = ratio(remote, local, programs, rounds)
    rows.append(Row(f"remote batch of {count} programs against local pool.map", percent, "%", 70, 92, True))
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= 2 and shutil.which("taskset"):
        with server(cores={cores[0]}) as a, server(cores={cores[1]}) as b:
            both = f"harena://{a.url},{b.url}"
            with SandboxPool(both, token=TOKEN) as two, SandboxPool(a.url, token=TOKEN) as one:
                times = ratio(two, one, programs, rounds) / 100
        rows.append(Row("two nodes of one core each against one", times, "×", 1.7, 1.95, True))
    return rows


def lockstep_games(quick: bool) -> list[Row]:
    """Moves per second of lockstep games whose agents are on a server, in percent of local ones, in turns. Nothing
    where Harena is installed without matches."""
    if any(importlib.util.find_spec(name) is None for name in ("msgspec", "numpy", "zstandard")):
        return []
    from harena.match.bench import CONNECT_FOUR, spec_of
    from harena.match.result import MatchResult
    from harena.match.run import lockstep
    from harena.match.run.play import Rack

    games, rounds = (128, 2) if quick else (1024, 5)
    spec = spec_of("connect_four", CONNECT_FOUR, CONNECT_FOUR, record=False)
    found: list[float] = []
    with (
        server("--allow-package", "numpy") as served,
        Rack(backend=served.url, token=served.token) as remote,
        Rack() as local,
    ):

        def rate(rack: Rack, count: int) -> float:
            results: list[MatchResult] = []
            took = timed(lambda: results.extend(lockstep.evaluate(spec, range(count), rack=rack)))
            if failed := next((one.error for one in results if one.error), None):
                raise RuntimeError(f"a game was not played: {failed}")
            return sum(one.steps for one in results) / took

        for rack in (remote, local):
            rate(rack, 8)
        for _ in range(rounds):
            there, here = rate(remote, games), rate(local, games)
            found.append(there / here * 100)
    name = f"lockstep of {games} games, agents on a server against local"
    return [Row(name, statistics.median(found), "%", 50, 80, more_is_better=True)]


def many_sessions(quick: bool) -> list[Row]:
    """Sessions that are open at once, each with its first command; created by sixteen threads."""
    count, threads = (40, 8) if quick else (1000, 16)
    with server("--max-boxes", str(count + 8), "--max-clients", str(count + 8)) as served:
        opened: list[SandboxSession] = []
        failures: list[Exception] = []

        def work() -> None:
            try:
                for _ in range(count // threads):
                    session = SandboxSession(limits=SMALL, server=served.url, token=served.token).__enter__()
                    session.execute(STEP)
                    opened.append(session)
            except Exception as error:
                failures.append(error)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - started
        if failures:
            raise failures[0]
        for session in opened:
            session.__exit__(None, None, None)
    goals = (None, None) if quick else (30, 10)
    return [Row(f"{len(opened)} sessions open at once, first command each", took, "s", *goals)]


def trajectories(quick: bool, exec_ms: float) -> list[Row]:
    """Worker-hours of a million trajectories of 150 actions, each as long as an exec; beside `docker exec`."""
    rows = [Row("a million trajectories of 150 actions, kept connection", exec_ms * ACTIONS / 3.6e6, "h", None, None)]
    beside = docker_exec_ms(5 if quick else 40)
    if beside is not None:
        rows.append(Row("… by docker exec", beside * ACTIONS / 3.6e6, "h", None, None))
    return rows


def docker_exec_ms(times: int) -> float | None:
    """Median of `docker exec` in a running container; None where no daemon, or no container, runs."""
    if shutil.which("docker") is None:
        return None
    found = subprocess.run(["docker", "ps", "-q"], capture_output=True, text=True, check=False)
    running = found.stdout.split()
    if found.returncode or not running:
        return None
    command = ["docker", "exec", running[0], "true"]
    return statistics.median(
        timed(lambda: subprocess.run(command, capture_output=True, check=True)) for _ in range(times)
    )


def stage_table(found: list[StageTimes]) -> str:
    lines = ["| stage | where | p50, ms | p95, ms | p99, ms |", "|---|---|---|---|---|"]
    lines += [f"| {one.name} | {one.place} | {one.p50:.2f} | {one.p95:.2f} | {one.p99:.2f} |" for one in found]
    return "\n".join(lines)


def plot(found: list[StageTimes]) -> str:
    """Bars on a logarithmic scale: to p50 (█), p95 (▒) and p99 (·)."""
    low = math.log10(max(0.001, min(one.p50 for one in found)) / 2)
    high = math.log10(max(max(one.p99 for one in found), 0.01))

    def width(value: float) -> int:
        return max(0, min(BAR, round((math.log10(max(value, 0.001)) - low) / (high - low) * BAR)))

    lines: list[str] = []
    for one in found:
        ends = width(one.p50), width(one.p95), width(one.p99)
        bar = "█" * ends[0] + "▒" * (ends[1] - ends[0]) + "·" * (ends[2] - ends[1])
        lines.append(f"{one.name:<10} {one.place:<6} {bar:<{BAR}} {one.p50:.2f} / {one.p95:.2f} / {one.p99:.2f} ms")
    return "\n".join(lines)


def measure(quick: bool, say: Callable[[str], object] = lambda _: None) -> tuple[list[Row], list[StageTimes]]:
    say("measuring stages …")
    found = stages(quick)
    rows: list[Row] = []
    for name, part in {
        "calls": calls,
        "batches": batches,
        "matches": lockstep_games,
        "sessions": many_sessions,
    }.items():
        say(f"measuring {name} …")
        rows += part(quick)
    kept = next(row.value for row in rows if "kept connection" in row.name)
    return rows + trajectories(quick, kept), found


def main(*, quick: bool = False, json_file: str | None = None) -> int:
    rows, found = measure(quick, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{table(rows)}\n\n{stage_table(found)}\n\n{plot(found)}")
    if json_file:
        both = {"rows": [asdict(row) for row in rows], "stages": [asdict(one) for one in found]}
        Path(json_file).write_text(json.dumps(both, indent=1) + "\n")
    return 0
