"""Measures how much memory an attack takes beyond its limit where no cgroup holds it.

Each attack memory_bomb_* of harena.testing runs in a new box that uses no cgroup, with a limit of 64 MB. The box is
inside a memory cgroup of this script (version 1, needs root) that only counts: its high-water mark has every page and
nearly all kernel memory, and nothing of other processes. Its own limit is far above and ends an attack that would take
the machine. The kernel charges file locks to no cgroup, so the growth of the machine's own kernel memory is sampled
every 10 ms beside it; an idle box tells how much of that is noise. Left out is memory_bomb_tmpfs: files are bounded by
`workspace_mb`, not by the memory limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

from harena import Limits, Sandbox, SandboxPool

ATTACKS = Path(__file__).parents[1] / "src" / "harena" / "testing" / "attacks"
OBSERVER = Path("/sys/fs/cgroup/memory") / f"harena-beyond-{os.getpid()}"
LIMIT_MB = 64
NET_MB = 768
"""What the observing cgroup allows: a bomb that is not held ends here."""
OVER = "import time\nkept = [bytearray(1 << 20) for _ in range(96)]\ntime.sleep(2)\nprint('not held')\n"
IDLE = "import time\ntime.sleep(1)\n"


def child(name: str, door: str) -> None:
    """Runs one attack in the observing cgroup; says ready, waits for a line, answers with the verdict."""
    folder = ATTACKS / name
    expect: dict[str, Any] = tomllib.loads((folder / "expect.toml").read_text()) if folder.is_dir() else {}
    bounds = {"wall_s": 10, "processes": 32} | expect.get("limits", {}) | {"memory_mb": LIMIT_MB}
    limits = Limits(**bounds)
    sources = {"idle": IDLE, "over": OVER}
    source = sources[name] if name in sources else (folder / "attack.py").read_text()
    toolkit = (ATTACKS / "attacker.py").read_text()
    target = {"mark": "beyond"}
    inline = (
        "import sys, types\ntoolkit = sys.modules['attacker'] = types.ModuleType('attacker')\n"
        f"toolkit.TARGET = {target!r}\nexec({toolkit!r}, vars(toolkit))\n{source}"
    )
    with SandboxPool(warm=1, limits=limits) as pool, Sandbox(limits=limits) as box:
        box.write("attacker.py", toolkit.encode())
        box.write("attack.py", source.encode())
        if not (box.exec(["python3", "-c", "1"]).ok and pool.map(["1"])[0].ok):
            raise RuntimeError("the box does not work")
        print("ready", flush=True)
        sys.stdin.readline()
        if door == "program":
            result = pool.map([inline])[0]
        else:
            result = box.exec(["python3", "/workspace/attack.py"], stdin=json.dumps(target).encode())
        print(result.verdict.value, flush=True)
        sys.stdin.readline()


def kernel_kb() -> int:
    """What the whole machine's kernel holds for itself."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("SUnreclaim", "PageTables", "KernelStack"))


class Sampler(threading.Thread):
    """Samples the machine's kernel memory every 10 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.base = self.most = kernel_kb()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.01):
            self.most = max(self.most, kernel_kb())

    def grown_mb(self) -> float:
        self.done.set()
        self.join()
        return (self.most - self.base) / 1024


def measure(name: str, door: str) -> tuple[str, float, float]:
    """The verdict, the peak in MB that the observer saw above the idle box, and the growth of the machine's kernel."""
    environment = os.environ | {"HARENA_CGROUPS": "off"}
    argv = [sys.executable, __file__, "--child", name, door]
    join = f'echo $$ > {OBSERVER}/cgroup.procs && exec "$@"'
    with subprocess.Popen(
        ["sh", "-c", join, "sh", *argv], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name}: the box did not start")
        time.sleep(0.3)  # for what it makes ahead
        (OBSERVER / "memory.max_usage_in_bytes").write_text("0")
        before = int((OBSERVER / "memory.usage_in_bytes").read_text())
        sampler = Sampler()
        sampler.start()
        process.stdin.write("go\n")
        process.stdin.flush()
        verdict = process.stdout.readline().strip()
        most = int((OBSERVER / "memory.max_usage_in_bytes").read_text())
        grown = sampler.grown_mb()
        process.stdin.write("end\n")
        process.stdin.close()
        process.wait()
    return verdict, (most - before) / (1 << 20), grown


def prepare() -> None:
    OBSERVER.mkdir()
    (OBSERVER / "memory.limit_in_bytes").write_text(str(NET_MB << 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--door", choices=("exec", "program"), action="append")
    parser.add_argument("--only", default="")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    prepare()
    try:
        for door in options.door or ("exec", "program"):
            verdict, taken, _ = measure("over", door)
            if verdict != "memory":
                raise SystemExit(f"{door}: the limit does not hold ({verdict}, {taken:.0f} MB): no bomb goes off here")
            print(f"{door:8} {'attack':28} {'verdict':12} beyond {LIMIT_MB} MB: median, most   kernel of the machine")
            names = sorted(path.name for path in ATTACKS.glob("memory_bomb_*"))
            for name in ["idle", "over", *names]:
                if options.only not in name or name == "memory_bomb_tmpfs":
                    continue
                if name.startswith("memory") and door not in (ATTACKS / name / "expect.toml").read_text():
                    continue
                runs = [measure(name, door) for _ in range(options.times)]
                verdicts = ",".join(sorted({verdict or "lost" for verdict, _, _ in runs}))
                taken = [taken - LIMIT_MB for _, taken, _ in runs]
                grown = [grown for _, _, grown in runs]
                print(
                    f"{door:8} {name:28} {verdicts:12} {statistics.median(taken):20.1f} {max(taken):6.1f}"
                    f" {statistics.median(grown):12.1f} {max(grown):6.1f}",
                    flush=True,
                )
    finally:
        for _ in range(50):
            try:
                OBSERVER.rmdir()
                break
            except OSError:
                time.sleep(0.1)


if __name__ == "__main__":
    main()
