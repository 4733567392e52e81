"""A layer is there whole or not at all, whatever is killed and however full the disk is."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harena.images.errors import ImageError
from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import STAGING, remove_layer, sweep, unpack_layer
from support.unpack_tools import Layer, ids, store

pytestmark = pytest.mark.thorough

__all__ = ["ids", "store"]

FULL_DISK = """
import io, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.unpack_tools import Layer
from harena.images.errors import ImageError
from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import unpack_layer
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755," + sys.argv[3], "tmpfs", folder], check=True)
for ids in {Ids.of_host(), Ids.single()}:
    large = Layer()
    for number in range(100):
        large.add(f"folder/file{number}", os.urandom(40_000))
    try:
        unpack_layer(io.BytesIO(large.bytes()), folder / "one", ids=ids)
        print("unpacked")
    except ImageError as error:
        print(error)
    print(os.listdir(folder))
    unpack_layer(io.BytesIO(Layer().add("small", b"1").bytes()), folder / "one", ids=ids)
    os.rename(folder / "one", folder / "gone")
    from harena.images.unpack.unpack import remove_layer
    remove_layer(folder / "gone", ids=ids)
"""

UNPACK_SLOWLY = """
import io, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import unpack_layer
from support.unpack_tools import Layer
layer = Layer()
for number in range(300):
    layer.add(f"folder{number % 7}/file{number}", b"x" * 3000)
data = layer.bytes()
class Slow(io.BytesIO):
    def read(self, count=-1):
        time.sleep(0.002)
        return super().read(min(count, 20_000))
print("begin", flush=True)
unpack_layer(Slow(data), Path(sys.argv[1]), ids=Ids.full() if sys.argv[3] == "full" else Ids.single())
print("done", flush=True)
"""

TESTS = str(Path(__file__).parents[1])


@pytest.mark.parametrize("option", ["size=2m", "nr_inodes=40"])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, option: str) -> None:
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    done = subprocess.run(
        [*command, sys.executable, "-c", FULL_DISK, str(tmp_path), TESTS, option],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 2
    for report, listing in zip(lines[::2], lines[1::2], strict=True):
        assert report.startswith("layer refused: folder/file")
        assert report.endswith(": No space left on device")
        assert listing == "[]"


@pytest.mark.slow
def test_killing_the_caller_leaves_only_what_sweep_removes(store: Path, ids: Ids) -> None:
    finished = 0
    for turn in range(16):
        process = subprocess.Popen(
            [sys.executable, "-c", UNPACK_SLOWLY, str(store / "one"), TESTS, ids.kind], stdout=subprocess.PIPE
        )
        assert process.stdout
        with process.stdout as output:
            assert output.readline() == b"begin\n"
            time.sleep(0.04 * turn)
            process.kill()
            process.wait()
            finished += output.read() == b"done\n"
        if (store / "one").exists():
            assert sum(len(files) for _, _, files in os.walk(store / "one/tree")) == 300
            remove_layer(store / "one", ids=ids)
        assert all(path.name.startswith(STAGING) for path in store.iterdir())
        deadline = time.monotonic() + 30
        while list(store.iterdir()):  # the processes inside may still be dying, and hold the lock until then
            sweep(store, ids=ids)
            assert time.monotonic() < deadline
    assert finished < 16


@pytest.mark.parametrize("after", [0, 100_000, 1_000_000])
@pytest.mark.parametrize("inner", [False, True])
def test_killing_the_unpacker_is_reported_and_leaves_nothing(store: Path, ids: Ids, after: int, inner: bool) -> None:
    before = children(os.getpid())

    class Killer(io.BytesIO):
        killed = 0

        def read(self, count: int | None = -1) -> bytes:
            if not self.killed and self.tell() >= after:
                (outer,) = children(os.getpid()) - before
                while not (within := children(outer)):
                    time.sleep(0.001)
                self.killed = within.pop() if inner else outer
                os.kill(self.killed, signal.SIGKILL)
            return super().read(50_000)

    stream = Killer(Layer().add("a", bytes(3 << 20)).bytes())
    with pytest.raises(ImageError, match=r"ended early .*(SIGKILL|-9)"):
        unpack_layer(stream, store / "one", ids=ids)
    assert stream.killed
    assert list(store.iterdir()) == []


def test_sweep_leaves_running_unpackers_alone(store: Path, ids: Ids) -> None:
    class Sweeper(io.BytesIO):
        swept = -1

        def read(self, count: int | None = -1) -> bytes:
            self.swept = sweep(store, ids=ids)
            return super().read(count)

    stream = Sweeper(Layer().add("a", b"1").bytes())
    unpack_layer(stream, store / "one", ids=ids)
    assert stream.swept == 0
    assert (store / "one/tree/a").read_bytes() == b"1"


def children(pid: int) -> set[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return {int(child) for task in tasks for child in (task / "children").read_text().split()}
    except FileNotFoundError:
        return set()
