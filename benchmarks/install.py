"""From a wheel to the first boxed result, and the time of `import harena`. Each install has a fresh venv, and no index
and no compiler; the files are in the page cache.

python deploy/release/packages.py dist && python benchmarks/install.py dist [--rounds 5]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(*command: str | Path, env: dict[str, str] | None = None) -> float:
    started = time.perf_counter()
    subprocess.run([str(part) for part in command], check=True, env=env, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def install(wheels: Path) -> dict[str, float]:
    """Seconds of one install into a fresh venv, of its first result, and of imports in it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "venv")
        seconds(sys.executable, "-m", "venv", home)
        env = {"PATH": str(home / "bin"), "CC": "/bin/false", "HOME": folder}
        python = home / "bin" / "python"
        options = ["--quiet", "--disable-pip-version-check", "--no-index", "--find-links", wheels]
        installed = seconds(python, "-m", "pip", "install", *options, "harena", env=env)
        first = seconds(home / "bin" / "harena", "run", "-c", "print(6 * 7)", env=env)
        turns = [(seconds(python, "-c", "import harena"), seconds(python, "-c", "pass")) for _ in range(21)]
        core = [(seconds(python, "-c", "from harena import Sandbox"), seconds(python, "-c", "pass")) for _ in range(21)]
    return {
        "pip install": installed,
        "the first result": first,
        "both": installed + first,
        "import harena": statistics.median(with_it - without for with_it, without in turns),
        "from harena import Sandbox": statistics.median(with_it - without for with_it, without in core),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    (wheel,) = args.wheels.glob(f"harena-*_{platform.machine()}.whl")
    install(args.wheels)  # warms the page cache
    rounds = [install(args.wheels) for _ in range(args.rounds)]
    print(f"wheel: {wheel.stat().st_size:,} bytes")
    for name in rounds[0]:
        found = sorted(turn[name] for turn in rounds)
        unit, factor = ("ms", 1000) if "import" in name else ("s", 1)
        print(f"{name}: median {statistics.median(found) * factor:.2f} {unit}, worst {found[-1] * factor:.2f} {unit}")


if __name__ == "__main__":
    main()
