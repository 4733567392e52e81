"""A warm box of the Docker backend beside Docker's own ways to run a command in a container, in the same run. All take
turns, so that whatever else the machine does hits each of them.

    python benchmarks/docker.py [--json FILE] [--rounds N]

Uses the daemon of DOCKER_HOST, else starts one without a network (as root). Must: `exec true` in a warm box at least
20 times as fast as `docker exec`, p50 (aim: 40 times).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

from programs import programs

from harena import Sandbox, SandboxPool, Spec

MUST, AIM = 20.0, 40.0
TIERS = ("full", "restricted")


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def summary(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {"p50_ms": round(statistics.median(times), 3), "p95_ms": round(times[int(len(times) * 0.95)], 3)}


@contextlib.contextmanager
def daemon() -> Generator[None]:
    if os.environ.get("DOCKER_HOST"):
        yield
        return
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        sys.exit("set DOCKER_HOST, or run this as root where dockerd is installed")
    with tempfile.TemporaryDirectory(prefix="harena-bench-docker-", ignore_cleanup_errors=True) as folder:
        address = f"unix://{folder}/socket"
        options = ["--iptables=false", "--ip6tables=false", "--bridge=none", "-H", address]
        places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(["dockerd", *options, *places], stdout=log, stderr=log)
        try:
            os.environ["DOCKER_HOST"] = address
            end = time.monotonic() + 60
            while subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"dockerd does not start: {Path(folder, 'log').read_text()[-500:]}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(30)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def measure(rounds: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {}

    def note(what: str, action: Callable[[], object]) -> None:
        times.setdefault(what, []).append(timed(action))

    sources = programs(rounds)
    with contextlib.ExitStack() as stack:
        boxes = {tier: stack.enter_context(Sandbox(Spec(isolation=tier), backend="docker")) for tier in TIERS}
        pool = stack.enter_context(SandboxPool(backend="docker", warm=1, max_live=1))
        image = docker("ps", "--format", "{{.Image}}").splitlines()[0]
        options = ["--rm", "--network=none", "-v", "/usr:/usr:ro"]
        peer = docker("run", "-d", *options, image, "sleep", "100000")
        stack.callback(docker, "kill", peer)
        for box in boxes.values():
            box.exec(["true"])
        pool.map(sources[:2])
        for number, source in enumerate(sources):
            for tier, box in boxes.items():
                note(f"exec true, warm box, {tier}", lambda box=box: box.exec(["true"]))
            note("fresh program, warm pool", lambda source=source: pool.map([source]))
            if number % 4 == 0:
                note("docker exec true", lambda: docker("exec", peer, "true"))
            if number % 16 == 0:
                note("docker run --rm true", lambda: docker("run", *options, image, "true"))
        for _ in range(max(5, rounds // 40)):
            made: list[Sandbox] = []
            note("new box", lambda made=made: made.append(Sandbox(backend="docker")))
            note("close a box", made[0].close)
    return {what: {**summary(found), "samples": len(found)} for what, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    with daemon():
        found = measure(args.rounds)
    for what, numbers in found.items():
        print(f"{what:<34} p50 {numbers['p50_ms']:9.3f} ms   p95 {numbers['p95_ms']:9.3f} ms")
    ratio = found["docker exec true"]["p50_ms"] / found["exec true, warm box, full"]["p50_ms"]
    print(f"docker exec ÷ warm box: {ratio:.1f}; must >= {MUST:g}, aim {AIM:g}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if ratio < MUST:
        sys.exit(1)


if __name__ == "__main__":
    main()
