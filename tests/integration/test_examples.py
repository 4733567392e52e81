"""What a user writes runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"

EXAMPLE = """
from harena import Limits, Sandbox, SandboxPool, Verdict

with Sandbox() as box:                                   # local backend, no network
    r = box.exec(["python3", "-c", "print(6 * 7)"])
    assert r.verdict is Verdict.OK and r.stdout == b"42\\n"
    box.write("notes/a.txt", b"hi")
    assert box.read("notes/a.txt") == b"hi"
    box.run("x = 40")                                    # a persistent interpreter in the box
    left, right = box.fork(2)                            # the interpreter's memory and the files go along, copy on write
    assert left.run("x += 1; print(x)").stdout == b"41\\n"
    assert right.run("print(x)").stdout == b"40\\n"

with SandboxPool(warm=4) as pool:
    results = pool.map(
        ["print(1)", "while True: pass", "x = 'a' * 10**10", "import os\\nwhile True: os.fork()"],
        limits=Limits(wall_s=1, memory_mb=256, processes=16),
    )
    assert [r.verdict for r in results] == [Verdict.OK, Verdict.TIME, Verdict.MEMORY, Verdict.PROCESSES]
"""


def run(source: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_example_of_the_design_runs_as_it_stands(tmp_path: Path) -> None:
    run(EXAMPLE, tmp_path)


def test_python_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    if not README.exists():
        pytest.skip("there is no README.md yet")
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        run(block, tmp_path)
