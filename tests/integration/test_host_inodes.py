"""Locks, leases and watches belong to inodes: a box must not reach those of the host by them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import Mount, Sandbox, SandboxPool, Spec
from harena.backends.local import backend

LOCK = """
import fcntl, struct, sys
files = [open(path, "rb") for path in sys.argv[1:]]
for file in files:
    fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
    fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
WATCH = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(fd, sys.argv[1].encode(), 0xFFF) > 0
print("watching", flush=True)
sys.stdin.read()
try:
    print("heard", len(os.read(fd, 4096)))
except BlockingIOError:
    print("heard nothing")
"""
DATABASE = """
import sqlite3
with sqlite3.connect("/tmp/x.db") as db:
    db.execute("create table if not exists t (x)")
    db.execute("insert into t values (42)")
print(sqlite3.connect("/tmp/x.db").execute("select x from t").fetchone()[0])
"""


@pytest.fixture(params=["native", "bubblewrap"])
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shown: Path) -> Iterator[Sandbox]:
    monkeypatch.setenv("HARENA_LAUNCHER", request.param)
    mounts = (Mount(source=str(shown), target="/shown"), Mount(source=str(shown / "file"), target="/single"))
    with Sandbox(spec=Spec(mounts=mounts)) as box:
        yield box


@pytest.fixture
def shown() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "file").write_text("x")
        yield folder


def test_a_lock_in_a_box_is_not_held_on_the_host(box: Sandbox, shown: Path) -> None:
    theirs = ["/usr/bin/env", "/shown/file", "/single", "/.harena/guest/zygote.py", "/etc/ld.so.cache"]
    process = box.start(["python3", "-c", LOCK, *theirs])
    assert process.stdout.read(100, timeout_s=30) == b"locked\n"
    for path in ("/usr/bin/env", shown / "file", backend.agent_folder() / "zygote.py", "/etc/ld.so.cache"):
        if os.path.exists(path):
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(shown / "file", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    process.close_stdin()
    assert process.wait().ok


@pytest.mark.parametrize("place", ["/usr/bin", "/shown"])
def test_a_watch_in_a_box_does_not_see_what_the_host_does(box: Sandbox, shown: Path, place: str) -> None:
    process = box.start(["python3", "-c", WATCH, place])
    assert process.stdout.read(100, timeout_s=30) == b"watching\n"
    subprocess.run(["/usr/bin/env", "true"], check=True)
    (shown / "file").read_text()
    (shown / "new").write_text("x")
    process.close_stdin()
    assert process.stdout.read(100, timeout_s=30) == b"heard nothing\n"


def test_databases_still_lock_their_files(box: Sandbox) -> None:
    assert box.exec(["python3", "-c", DATABASE]).stdout == b"42\n"
    assert box.run(DATABASE).stdout == b"42\n"
    with SandboxPool(warm=1) as pool:
        assert pool.map([DATABASE])[0].stdout == b"42\n"


def test_a_box_that_shows_inodes_of_the_host_locks_and_watches_nothing() -> None:
    """An overlay cannot show a folder with other mounts inside; the box shows it as it is, and loses the rights."""
    if not any(os.path.ismount(f"/dev/{name}") for name in ("shm", "pts", "mqueue")):
        pytest.skip("host: nothing is mounted below /dev")
    with Sandbox(spec=Spec(mounts=(Mount(source="/dev", target="/shown"),))) as box:
        refused = box.exec(["python3", "-c", LOCK, "/usr/bin/env"])
        assert b"PermissionError" in refused.stderr
        assert b"AssertionError" in box.exec(["python3", "-c", WATCH, "/usr/bin"]).stderr
        assert box.exec(["ls", "/shown/null", "/usr/bin/env"]).ok


def test_the_watch_of_these_tests_would_hear_something(tmp_path: Path) -> None:
    """Without this the ones above would prove nothing."""
    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(fd, os.fsencode(tmp_path), 0xFFF) > 0
    subprocess.run([sys.executable, "-Sc", ""], check=True, cwd=tmp_path)
    (tmp_path / "new").write_text("x")
    assert os.read(fd, 4096)
    os.close(fd)
