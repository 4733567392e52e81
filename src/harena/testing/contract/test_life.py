"""The life of a box, from start to close: it answers while it lives, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harena import BoxClosed, BoxError, Retry, Sandbox, Verdict
from harena.testing import make_spec
from harena.testing.contract.conftest import processes_with

MakeBox = Callable[..., Sandbox]


def test_ping_is_answered(box: Sandbox) -> None:
    box.ping()
    assert box.alive


def test_close_is_idempotent(box: Sandbox) -> None:
    for _ in range(3):
        box.close()
    assert box.closed
    assert not box.alive


CALLS: dict[str, Callable[[Sandbox], Any]] = {
    "exec": lambda box: box.exec(["true"]),
    "start": lambda box: box.start(["true"]),
    "run": lambda box: box.run("pass"),
    "call": lambda box: box.call("def f(): pass", "f"),
    "read": lambda box: box.read("a"),
    "write": lambda box: box.write("a", b""),
    "list": lambda box: box.list(),
    "snapshot": lambda box: box.snapshot(),
    "ping": lambda box: box.ping(),
}


@pytest.mark.parametrize("name", CALLS)
def test_closed_box_refuses_every_call(box: Sandbox, name: str) -> None:
    box.close()
    with pytest.raises(BoxClosed) as caught:
        CALLS[name](box)
    assert caught.value.retry is Retry.NEVER
    assert box.id in str(caught.value)


def test_everything_in_use_ends_with_the_box(
    make_box: MakeBox, marker: str, runs_on_host: Callable[[str], None], ends_on_host: Callable[[str], None]
) -> None:
    box = make_box()
    box.write("a", b"1")
    box.run(f"import subprocess; child = subprocess.Popen(['setsid', 'sleep', '{marker}'])")
    box.start(["sh", "-c", f"setsid sleep {marker} & wait"])
    runs_on_host(marker)
    box.close()
    ends_on_host(marker)


def test_box_without_an_owner_ends(
    variant: Any, marker: str, runs_on_host: Callable[[str], None], ends_on_host: Callable[[str], None]
) -> None:
    box = Sandbox(make_spec(), backend=variant.backend)
    process = box.start(["sleep", marker])
    runs_on_host(marker)
    del box, process
    ends_on_host(marker)


@pytest.mark.parametrize("name", ["exec", "start", "run", "call", "write", "ping"])
def test_box_that_was_killed_is_told_and_not_waited_for(make_box: MakeBox, name: str, marker: str) -> None:
    box = make_box()
    box.run("pass")
    box.write("a", b"")
    box.exec(["kill", "-9", "-1"])
    kill_box(box, marker)
    with pytest.raises(BoxError):
        call_until_it_fails(box, name)
    wait_until(lambda: not box.alive)
    box.close()


def call_until_it_fails(box: Sandbox, name: str) -> None:
    """What a box serves by itself, as files, goes on until it is dead."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        CALLS[name](box)


def kill_box(box: Sandbox, marker: str) -> None:
    """Ends the first process of the box, found from one that runs in it, and with it all others."""
    box.start(["sleep", marker])
    wait_until(lambda: processes_with(marker) != [])
    pid, init = processes_with(marker)[0], 0
    while pid > 1 and os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
        pid, init = parent_of(pid), pid
    if not init:  # no pid namespace: the first process of the box is the child of its keeper, which is ours
        while (parent := parent_of(pid)) != os.getpid():
            pid, init = parent, pid
    assert init
    os.kill(init, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


LONG: dict[str, Callable[[Sandbox, str], Any]] = {
    "exec": lambda box, marker: box.exec(["sleep", marker]),
    "start": lambda box, marker: box.start(["sleep", marker]).wait(),
    "run": lambda box, marker: box.run(f"import subprocess; subprocess.run(['sleep', '{marker}'])"),
    "call": lambda box, marker: box.call(
        "import subprocess\ndef f(n):\n    subprocess.run(['sleep', n])", "f", [marker]
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_call_under_way_is_told_that_the_box_was_closed(
    make_box: MakeBox, marker: str, runs_on_host: Callable[[str], None], name: str
) -> None:
    box = make_box()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(LONG[name], box, marker)
        runs_on_host(marker)
        box.close()
        try:
            result = call.result(20)
        except BoxError:
            return
        # Closing ends a started command first, so its end may be seen before the box's.
        assert (name, result.verdict) == ("start", Verdict.SIGNAL)


def test_boxes_have_names_of_their_own(make_box: MakeBox) -> None:
    one, other = make_box(), make_box()
    assert one.id != other.id
    assert one.id in repr(one)
