"""`fork`: the interpreter's memory and the workspace go along; from then on they are apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from harena import BoxClosed, Limits, Sandbox, Verdict

Fork = Callable[[Sandbox, int], list[Sandbox]]


@pytest.fixture
def fork() -> Iterator[Fork]:
    """Forks that are closed at the end."""
    with contextlib.ExitStack() as forks:
        yield lambda box, count: [forks.enter_context(one) for one in box.fork(count)]


def test_memory_goes_along_and_is_apart_from_then_on(box: Sandbox, fork: Fork) -> None:
    box.run("x = 40\nbig = bytearray(20_000_000)")
    left, right = fork(box, 2)
    assert left.run("x += 1; big[0] = 1; print(x)").stdout == b"41\n"
    assert right.run("print(x, big[0])").stdout == b"40 0\n"
    assert box.run("print(x, big[0])").stdout == b"40 0\n"


def test_files_go_along_and_are_apart_from_then_on(box: Sandbox, fork: Fork) -> None:
    box.exec(["sh", "-c", "echo one > a; mkdir d; chmod 700 d; ln -s a l"])
    left, right = fork(box, 2)
    left.exec(["sh", "-c", "echo left > a; rm l"])
    right.write("a", b"right\n")
    right.write("new", b"")
    assert [other.exec(["cat", "a"]).stdout for other in (box, left, right)] == [b"one\n", b"left\n", b"right\n"]
    assert [info.path for info in box.list()] == ["a", "d", "l"]
    assert [info.path for info in left.list()] == ["a", "d"]
    assert [info.path for info in right.list()] == ["a", "d", "l", "new"]


def test_every_door_of_a_fork_sees_its_own_files(box: Sandbox, fork: Fork) -> None:
    box.write("a", b"one")
    (child,) = fork(box, 1)
    child.run("open('a', 'w').write('two')")
    assert child.read("a") == b"two"
    assert child.exec(["cat", "a"]).stdout == b"two"
    assert child.call("def f():\n    return open('a').read()", "f").value == "two"
    assert box.read("a") == b"one"


def test_other_processes_stay_behind_and_the_result_says_so(box: Sandbox, fork: Fork) -> None:
    box.run("x = 1")
    with box.start(["cat"]) as process:
        (child,) = fork(box, 1)
        assert child.left_behind >= 1
        process.write(b"still here")
        assert process.wait(30).stdout == b"still here"
    assert child.run("print(x)").stdout == b"1\n"


def test_fork_of_a_box_that_never_ran_python(box: Sandbox, fork: Fork) -> None:
    box.write("a", b"1")
    (child,) = fork(box, 1)
    assert child.run("print(open('a').read())").stdout == b"1\n"


def test_lineage_tells_where_a_box_comes_from(box: Sandbox, fork: Fork) -> None:
    box.run("generation = 0")
    (child,) = fork(box, 1)
    child.run("generation += 1")
    (grandchild,) = fork(child, 1)
    assert (box.lineage, child.lineage, grandchild.lineage) == ((), (box.id,), (box.id, child.id))
    assert len({box.id, child.id, grandchild.id}) == 3
    assert grandchild.run("print(generation)").stdout == b"1\n"


def test_forks_outlive_the_box_they_came_from(box: Sandbox, fork: Fork) -> None:
    box.run("x = 1")
    (child,) = fork(box, 1)
    box.close()
    assert child.run("print(x)").stdout == b"1\n"
    assert child.exec(["echo", "hi"]).stdout == b"hi\n"
    child.write("a", b"1")
    assert child.read("a") == b"1"


def test_box_outlives_its_forks(box: Sandbox, fork: Fork) -> None:
    box.run("x = 1")
    left, right = fork(box, 2)
    left.close()
    with pytest.raises(BoxClosed):
        left.run("pass")
    assert right.run("print(x)").stdout == b"1\n"
    right.close()
    assert box.run("print(x)").stdout == b"1\n"


def test_timeout_of_one_hurts_no_other(box: Sandbox, fork: Fork) -> None:
    box.run("x = 1")
    left, right = fork(box, 2)
    assert left.run("while True: pass", limits=Limits(wall_s=0.3)).verdict is Verdict.TIME
    assert right.run("print(x)").stdout == box.run("print(x)").stdout == b"1\n"
    assert left.run("print('x' in globals())").stdout == b"False\n"
    assert box.run("while True: pass", limits=Limits(wall_s=0.3)).verdict is Verdict.TIME
    assert right.run("print(x)").stdout == b"1\n"


def test_crash_of_one_hurts_no_other(box: Sandbox, fork: Fork) -> None:
    box.run("x = 1")
    left, right = fork(box, 2)
    assert left.run("import os; os.kill(os.getpid(), 9)").verdict is Verdict.SIGNAL
    assert left.run("import os; os.kill(-1, 9)").verdict in (Verdict.SIGNAL, Verdict.EXIT, Verdict.OK)
    assert right.run("print(x)").stdout == box.run("print(x)").stdout == b"1\n"


def test_snapshot_of_a_box_fits_its_forks(box: Sandbox, fork: Fork) -> None:
    box.write("a", b"1")
    snapshot = box.snapshot()
    (child,) = fork(box, 1)
    child.exec(["sh", "-c", "rm a; touch b"])
    child.restore(snapshot)
    assert child.read("a") == b"1"
    assert [info.path for info in child.list()] == ["a"]


def test_everything_of_a_lineage_ends_with_its_last_box(
    fork: Fork,
    make_box: Callable[..., Sandbox],
    marker: str,
    runs_on_host: Callable[[str], None],
    ends_on_host: Callable[[str], None],
) -> None:
    box = make_box()
    box.run("x = 1")
    (child,) = fork(box, 1)
    child.start(["sleep", marker])
    runs_on_host(marker)
    box.close()
    runs_on_host(marker)
    child.close()
    ends_on_host(marker)


def test_many_forks_at_once(box: Sandbox, fork: Fork) -> None:
    box.run("x = 1")
    forks = fork(box, 12)
    for number, child in enumerate(forks):
        child.run(f"x += {number}")
    assert [int(child.run("print(x)").stdout) for child in forks] == list(range(1, 13))


def test_deep_folders_and_sparse_files_come_along(box: Sandbox) -> None:
    """They are deeper than the zygote's stack was, and larger than the workspace with their holes filled."""
    source = """
import os
path = "/workspace"
for _ in range(150):
    path += "/d"
    os.mkdir(path)
    os.symlink("x" * 4000, path + "/link")
with open(path + "/file", "w") as file:
    file.write("deep")
with open("/workspace/sparse", "wb") as file:
    file.write(b"begin")
    file.seek(5_000_000_000)
    file.write(b"end")
"""
    assert box.run(source).ok
    (fork,) = box.fork()
    with fork:
        look = """
with open("/workspace/sparse", "rb") as file:
    print(open(path + "/file").read(), file.read(6), file.seek(5_000_000_000), file.read(), len(os.readlink(path + "/link")))
"""
        assert fork.run(look).stdout == b"deep b'begin\\x00' 5000000000 b'end' 4000\n"
    assert box.call("def f():\n    return 1\n", "f").value == 1
