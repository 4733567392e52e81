"""`snapshot` and `restore`: the workspace as it was, at the cost of what changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from harena import Sandbox
from harena.sandbox.files import Files

LOOK = """
import os, stat
for folder, names, files in sorted(os.walk('.')):
    for name in sorted(names + files):
        path = os.path.join(folder, name)
        info = os.lstat(path)
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISLNK(info.st_mode):
            print(path, 'link', os.readlink(path))
        elif stat.S_ISDIR(info.st_mode):
            print(path, 'dir', oct(mode))
        elif stat.S_ISREG(info.st_mode):
            print(path, 'file', oct(mode), info.st_mtime_ns, open(path, 'rb').read() if mode & 0o400 else '?')
        else:
            print(path, 'other')
"""


def look(box: Sandbox) -> list[str]:
    """Every path with its kind, mode, time and contents, as a command in the box sees them."""
    result = box.exec(["python3", "-c", LOOK])
    assert result.ok, result
    return result.stdout.decode().splitlines()


def shell(box: Sandbox, line: str) -> None:
    result = box.exec(["sh", "-ec", line])
    assert result.ok, result


MAKE = (
    "mkdir -p src/deep empty; echo one > src/a; echo two > src/deep/b; printf x > run.sh; chmod 755 run.sh;"
    "chmod 700 empty; chmod 600 src/a; ln -s src/a link; ln -s nowhere dangling"
)


@pytest.mark.parametrize(
    "change",
    [
        "true",
        "echo more >> src/a",
        "rm -r src; rm link dangling run.sh; rmdir empty",
        "echo new > new; mkdir -p newer/deep; ln -s / root",
        "chmod 777 src/a src run.sh; chmod 000 empty",
        "rm link; ln -s run.sh link",
        "rm -r src; echo now-a-file > src",
        "rm run.sh; mkdir -p run.sh/inside; touch run.sh/inside/f",
        "rm link; echo now-a-file > link",
        "rmdir empty; ln -s src empty",
        "mv src/a src/c; mv src/deep/b src/a",
        "mkfifo pipe src/deep/pipe",
        "rm src/a; mkfifo src/a",
        "touch -d @0 src/a",
        "printf y > run.sh",
    ],
)
def test_restore_undoes_any_change(box: Sandbox, change: str) -> None:
    shell(box, MAKE)
    before = look(box)
    snapshot = box.snapshot()
    shell(box, change)
    box.restore(snapshot)
    assert look(box) == before


def test_restore_copes_with_folders_made_read_only(box: Sandbox) -> None:
    shell(box, "mkdir -p a/b; echo 1 > a/b/f; chmod 500 a/b a")
    before = look(box)
    snapshot = box.snapshot()
    shell(box, "chmod 700 a a/b; echo 2 > a/b/f; touch a/b/g; mkdir later; touch later/f; chmod 500 later a/b a")
    box.restore(snapshot)
    assert look(box) == before


def test_files_their_owner_cannot_read_do_not_stop_a_snapshot(box: Sandbox) -> None:
    shell(box, "echo 1 > a; echo 2 > secret; chmod 000 secret; mkdir shut; touch shut/f; chmod 000 shut")
    snapshot = box.snapshot()
    shell(box, "rm a; chmod 700 shut secret; rm -r secret shut")
    box.restore(snapshot)
    assert box.read("a") == b"1\n"
    shell(box, "chmod 700 secret shut")
    assert box.read("secret") == b"2\n"
    assert [info.path for info in box.list("shut")] == ["f"]


def test_snapshot_does_not_change_with_the_box(box: Sandbox) -> None:
    shell(box, MAKE)
    first = box.snapshot()
    shell(box, "echo later > src/a; rm run.sh")
    second = box.snapshot()
    shell(box, "rm -r ./*")
    for snapshot, text in ((first, b"one\n"), (second, b"later\n"), (first, b"one\n")):
        box.restore(snapshot)
        assert box.read("src/a") == text
        assert any(info.path == "run.sh" for info in box.list()) == (text == b"one\n")


def test_snapshot_outlives_its_box_and_fits_another(make_box: Callable[..., Sandbox]) -> None:
    one, other = make_box(), make_box()
    shell(one, MAKE)
    before, snapshot = look(one), one.snapshot()
    one.close()
    shell(other, "echo in the way > src; mkdir link")
    other.restore(snapshot)
    assert look(other) == before
    assert len(snapshot) == len(before)


def test_snapshot_of_nothing_empties_the_workspace(box: Sandbox) -> None:
    empty = box.snapshot()
    shell(box, MAKE)
    box.restore(empty)
    assert (len(empty), look(box)) == (0, [])


def test_restore_leaves_tmp_and_running_processes_alone(box: Sandbox) -> None:
    snapshot = box.snapshot()
    with box.start(["cat"]) as process:
        shell(box, "echo 1 > /tmp/a")
        box.run("x = 1")
        box.restore(snapshot)
        assert box.read("/tmp/a") == b"1\n"
        assert box.run("print(x)").stdout == b"1\n"
        process.write(b"alive")
        assert process.wait(30).stdout == b"alive"


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """Bytes that went over the wire, both ways, while something was done."""
    counts: list[int] = []
    ask = Files._call  # pyright: ignore[reportPrivateUsage]

    def counted(self: Files, message: Any, blob: bytes = b"", **kwargs: Any) -> Any:
        answer, data = ask(self, message, blob, **kwargs)
        counts.append(len(json.dumps([message, answer])) + len(blob) + len(data))
        return answer, data

    monkeypatch.setattr(Files, "_call", counted)

    def measure(action: Callable[[], Any]) -> int:
        counts.clear()
        action()
        return sum(counts)

    return measure


def test_cost_grows_with_what_changed(box: Sandbox, traffic: Callable[[Callable[[], Any]], int]) -> None:
    shell(box, "for i in $(seq 40); do head -c 200000 /dev/urandom > f$i; done")
    whole = traffic(box.snapshot)
    assert whole > 8_000_000
    # A file written a moment ago is read again, for its times do not show a change within the clock's step.
    end = time.monotonic() + 20
    while (nothing := traffic(box.snapshot)) > whole / 20 and time.monotonic() < end:
        pass
    assert nothing < whole / 20
    old = box.snapshot()
    shell(box, "echo changed >> f7; rm f8; echo new > g")
    assert traffic(box.snapshot) < whole / 10
    assert traffic(lambda: box.restore(old)) < whole / 10
    assert len(box.list()) == 40


def test_holes_of_sparse_files_are_kept(make_box: Callable[..., Sandbox]) -> None:
    """A file may be far larger than the workspace, as long as it is mostly holes."""
    box = make_box(workspace_mb=8)
    write = "import os\nfor at in (0, 1 << 20, 5 << 30):\n    f.seek(at); f.write(b'data%d' % at)\nf.truncate(9 << 30)"
    assert box.run(f"f = open('sparse', 'wb')\n{write}\nf.close(); os.truncate('sparse', 9 << 30)").ok
    assert box.run("import os\nopen('hole', 'wb').close(); os.truncate('hole', 1 << 30)").ok
    before = box.snapshot()
    assert sum(map(len, before.blobs.values())) < 1 << 20
    shell(box, "printf x >> sparse; rm hole; truncate -s 1K sparse")
    box.restore(before)
    look = "[os.stat(n).st_size, os.stat(n).st_blocks < 100] for n in ('hole', 'sparse')"
    found = box.run(f"print([{look}], [os.pread(os.open('sparse', 0), 9, at) for at in (0, 1 << 20, 5 << 30)])")
    whole = [[1 << 30, True], [9 << 30, True]]
    data = [b"data0\0\0\0\0", b"data10485", b"data53687"]
    assert found.stdout.decode().strip() == f"{whole} {data}", found
    assert box.snapshot().entries == before.entries


def test_large_files_are_kept(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(workspace_mb=64)
    shell(box, "mkdir shut; head -c 40000000 /dev/urandom > shut/big; chmod 400 shut/big; chmod 500 shut")
    digest, before = box.sha256("shut/big"), box.snapshot()
    shell(box, "chmod 700 shut; rm -f shut/big; chmod 500 shut")
    box.restore(before)
    assert box.sha256("shut/big") == digest
    assert [(info.path, info.mode) for info in box.list(recursive=True)] == [("shut", 0o500), ("shut/big", 0o400)]


def test_snapshot_shows_its_size_and_not_its_contents(box: Sandbox) -> None:
    box.write("a", b"x" * 1000)
    box.write("d/b", b"y" * 10)
    assert repr(box.snapshot()) == "<Snapshot of 3 entries, 1010 bytes of contents>"
