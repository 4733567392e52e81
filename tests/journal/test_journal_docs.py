"""docs/journal.md: its programs run as they stand, and its commands are understood."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harena import cli
from harena.journal import verify

TEXT = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (PROGRAMS[0], "['python3', '-c', 'print(6 * 7)'] 42\n 1.0 True\n"),
        (PROGRAMS[1], "[(['echo', '4'], '4\\n', 1.0), (['echo', '5'], '5\\n', 0.0)]\n"),
    ],
    ids=["steps", "episode"],
)
def test_programs_run(program: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "episodes").mkdir()
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    assert all(verify(path).ok for path in tmp_path.rglob("*.jsonl"))


def test_lost_box_leaves_the_rest_of_an_episode_out() -> None:
    """The function of the document, on what a lost box leaves behind."""
    found: dict[str, object] = {}
    source = PROGRAMS[1]
    exec(compile(source[source.index("def usable") : source.index("print(episode")], "journal.md", "exec"), found)
    good = {"mask": False, "action": {"argv": ["a"]}, "observation": {"stdout": "x"}, "reward": 1.0}
    lost = {"mask": True, "action": {"argv": ["b"]}, "observation": None, "reward": None}
    assert found["usable"]([good, lost, good]) == [(["a"], "x", 1.0)]


@pytest.mark.parametrize("name", ["journal", "usage", "top"])
def test_examples_of_the_help_are_understood(name: str) -> None:
    parser = cli._parser([name])
    command = parser._subparsers._group_actions[0].choices[name]
    for line in re.findall(r"^  harena (\S.*?)(?:   .*|>.*)?$", command.epilog or "", re.M):
        assert callable(parser.parse_args(line.split()).action)
