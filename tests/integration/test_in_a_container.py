"""Where namespaces are refused, as in a default container: the full tier says so and names the other one, which works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
NOBODY = 65534

REPORT = """
import json, os, sys
from harena import IsolationUnavailable, Sandbox, SandboxPool, Spec
from harena.sandbox import backend
found = {}
try:
    Sandbox().close()
    found["full"] = "made"
except IsolationUnavailable as error:
    found["full"] = str(error)
for tier in ("restricted", "best"):
    with Sandbox(Spec(isolation=tier)) as box, SandboxPool(Spec(isolation=tier), warm=1, max_live=1) as pool:
        box.write("note", b"hello\\n")
        result = box.exec(["sh", "-c", "cat note; id -u"])
        [program] = pool.map(["import os\\nprint(sorted(os.listdir('.')), os.getuid())"])
        ids = {int(result.stdout.split()[1]), int(program.stdout.split()[-1])}
        found[tier] = [result.isolation, program.isolation, result.stdout.split()[0].decode(), sorted(ids)]
        assert box.run("6 * 7").ok
os.environ["HARENA_ISOLATION"] = "best"
found["notes"] = backend.load("local").capabilities().notes
print(json.dumps(found))
"""


def in_container(command: list[str], *, python: str, src: Path, user: int | None = None) -> str:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(src)}
    if user is not None:
        env["HOME"] = "/"
    done = subprocess.run(
        [python, str(src.parent / "container.py"), python, *command],
        env=env,
        capture_output=True,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        timeout=120,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def src() -> Iterator[Path]:
    """A copy that any user may read."""
    with tempfile.TemporaryDirectory(prefix="harena-container-") as name:
        Path(name).chmod(0o755)
        shutil.copytree(PROJECT / "src", Path(name, "src"))
        shutil.copy(HERE / "container.py", name)
        for path in Path(name).rglob("*"):
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        yield Path(name, "src")


def judge(found: dict[str, object]) -> None:
    assert "namespace" in str(found["full"])
    assert 'isolation="restricted"' in str(found["full"])
    for tier in ("restricted", "best"):
        *said, _ids = found[tier]  # pyright: ignore
        assert said == ["restricted", "restricted", "hello"]
    assert "full tier is not possible" in found["notes"][0]  # pyright: ignore


def test_boxes_in_a_container(src: Path) -> None:
    found = json.loads(in_container(["-c", REPORT], python=sys.executable, src=src))
    judge(found)
    if os.geteuid() == 0:
        assert len(found["restricted"][3]) == 2, "each box has a user of its own"
        assert 0 not in found["restricted"][3]


@pytest.mark.root
def test_boxes_of_an_ordinary_user_in_a_container(src: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = f"/usr/bin/python{version}"
    if not os.access(python, os.X_OK):
        pytest.skip(f"host: no {python} that an ordinary user may run")
    found = json.loads(in_container(["-c", REPORT], python=python, src=src, user=NOBODY))
    judge(found)
    assert found["restricted"][3] == [NOBODY]


def test_the_doctor_holds_in_a_container(src: Path) -> None:
    source = "import sys\nfrom harena.cli import main\nsys.exit(main(['doctor', '--isolation', 'restricted']))"
    text = in_container(["-c", source], python=sys.executable, src=src)
    assert "isolation  restricted; it does not cover: " in text
    assert "FAILED" not in text


SHARED_USER = r"""
import json, os, tempfile
from harena import Limits, Sandbox, Spec
from harena.errors import BoxFileError
folder = tempfile.mkdtemp(dir="/var/tmp")
own = os.path.join(folder, "own")
open(own, "w").close()
os.chmod(own, 0o640)
before = os.stat(own)
attack = f"own, host, parent = {own!r}, {os.getpid()}, {os.getppid()}" + '''
import os
for action, *args in (
    (os.chmod, own, 0o777), (os.utime, own, (1, 1)), (os.chown, own, -1, -1), (os.truncate, own, 0),
    (os.setxattr, own, "user.x", b"x"), (os.unlink, own), (os.link, own, "linked"), (open, own),
    (os.rename, own, "moved"), (os.kill, host, 0), (os.kill, parent, 0),
):
    try:
        action(*args)
        print("not refused", action, args)
    except OSError:
        pass
print("done")
'''
found = []
with Sandbox(Spec(isolation="restricted")) as box:
    for result in (box.exec(["python3", "-c", attack]), box.run(attack)):
        found.append(result.stdout.decode())
    # The API may change modes in the box, and nowhere else.
    box.write("a/b", b"x", mode=0o755)
    found.append(oct(box.list("a")[0].mode))
    box.exec(["sh", "-c", f"rm -r a; ln -s {folder} a"])
    try:
        box.write("a/own", b"x", mode=0o777)
        found.append("written")
    except BoxFileError:
        found.append("refused")
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    found.append(box.exec(["python3", "-c", bomb], limits=Limits(wall_s=3, processes=20)).verdict.value)
    found.append(box.exec(["echo", "ok"]).stdout.decode())
after = os.stat(own)
found.append((before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime) and os.listdir(folder) == ["own"])
os.unlink(own)
os.rmdir(folder)
print(json.dumps(found))
"""


@pytest.mark.root
def test_a_guest_with_the_users_own_id_changes_nothing_of_the_users(src: Path) -> None:
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not os.access(python, os.X_OK):
        pytest.skip(f"host: no {python} that an ordinary user may run")
    found = json.loads(in_container(["-c", SHARED_USER], python=python, src=src, user=NOBODY))
    assert found == ["done\n", "done\n", "0o755", "refused", "processes", "ok\n", True]
