"""The life of boxes and pools: what ends them, what they leave behind (nothing), and how many there may be."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harena import (
    BoxClosed,
    BoxError,
    BoxLost,
    Clocks,
    Limits,
    QueueTimeout,
    Retry,
    Sandbox,
    SandboxPool,
    SpecError,
    StartTimeout,
)
from harena.backends.local import backend as local
from harena.backends.local.launch import cgroups
from support.leaks import (
    alive,
    boxes_of,
    descendants,
    descriptors,
    keepers,
    leaked,
    new_marker,
    settle,
    traces,
    with_marker,
)

# ---- the host process dies ----

pytestmark = pytest.mark.serial  # counts what this process has, and other tests leave servers in it

HOST = """
import os, signal, sys, threading
from harena import Sandbox, SandboxPool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
marker = sys.argv[1]
one, other = Sandbox(), Sandbox()
process = one.start(["sh", "-c", f"setsid sleep {marker} & sleep {marker}"])
one.run(f"import subprocess; child = subprocess.Popen(['setsid', 'sleep', '{marker}'])")
other.write("a", b"1")
threading.Thread(target=other.exec, args=(["sleep", marker],), daemon=True).start()
pool = SandboxPool(warm=2)
leased = pool.lease()
program = f"import subprocess; subprocess.run(['sleep', '{marker}'])"
threading.Thread(target=pool.map, args=([program] * 6,), daemon=True).start()
"""
WAIT = """
import os, select
os.write(1, b'ready\\n')  # in one piece: a forked child may write, too
while not select.select([sys.stdin], [], [], 0.1)[0]:
    pass  # a signal that another thread took does not end a read of this one
"""
RUNNING = 7
"""The sleepers of HOST that are there for certain: of its programs at least two run at once."""


@contextlib.contextmanager
def host(source: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", source + WAIT, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.serial
def test_killed_host_leaves_nothing_behind() -> None:
    marker = new_marker()
    with host(HOST, marker) as process:
        assert line_of(process) == b"ready"
        assert settle(lambda: with_marker(marker) - 1 >= RUNNING, True, 30), with_marker(marker)
        boxes, below = boxes_of(process.pid), descendants(process.pid)
        assert len(boxes) >= 4
        assert len(below) > 20
        process.kill()
        process.wait()
        end = time.monotonic() + 2
        assert settle(lambda: alive(below), set(), end - time.monotonic()) == set()
        assert settle(lambda: traces(boxes), [], end - time.monotonic()) == []
        assert with_marker(marker) == 0


def test_host_that_ends_without_closing_leaves_nothing_behind() -> None:
    marker = new_marker()
    with host(HOST, marker) as process:
        assert line_of(process) == b"ready"
        boxes, below = boxes_of(process.pid), descendants(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
        assert settle(lambda: alive(below), set()) == set()
        assert settle(lambda: traces(boxes), []) == []


def test_what_a_host_and_its_keepers_leave_when_killed_at_once_is_swept_by_the_next() -> None:
    with host("import sys\nfrom harena import Sandbox\nboxes = [Sandbox() for _ in range(3)]") as process:
        assert line_of(process) == b"ready"
        boxes, below = boxes_of(process.pid), descendants(process.pid)
        for pid, _ in [(process.pid, ""), *below]:
            os.kill(pid, signal.SIGSTOP)  # so that none has time to clean up before all are dead
        for pid, _ in [(process.pid, ""), *below]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        assert settle(lambda: alive(below), set()) == set()
    subprocess.run([sys.executable, "-c", "from harena import Sandbox; Sandbox().close()"], check=True)
    assert settle(lambda: traces(boxes), []) == []


def test_interrupted_host_leaves_nothing_behind() -> None:
    """Ctrl-C reaches every process of the terminal's group, the keepers too."""
    marker = new_marker()
    with host(HOST, marker) as process:
        assert line_of(process) == b"ready"
        boxes, below = boxes_of(process.pid), descendants(process.pid)
        for pid, _ in [(process.pid, ""), *below]:
            try:
                os.kill(pid, signal.SIGINT)
            except ProcessLookupError:
                continue
        process.wait(30)
        assert settle(lambda: alive(below), set()) == set()
        assert settle(lambda: traces(boxes), []) == []


FORKED = """
import os, signal, sys
from harena import BoxError, Sandbox
box = Sandbox()
box.run("x = 1")
child = os.fork()
if not child:
    try:
        box.exec(["true"])
    except BoxError as error:
        os.write(1, b"refused %d\\n" % os.getpid())
    signal.pause()
"""


def test_fork_of_the_host_keeps_no_box_alive() -> None:
    with host(FORKED) as process:
        lines = sorted([line_of(process), line_of(process)])
        assert lines[0] == b"ready"
        word, child = lines[1].split()
        assert word == b"refused", "a box belongs to the process that made it"
        boxes, below = boxes_of(process.pid), descendants(process.pid)
        below = {(pid, started) for pid, started in below if pid != int(child)}
        process.kill()
        process.wait()
        try:
            assert settle(lambda: alive(below), set()) == set()
            assert settle(lambda: traces(boxes), []) == []
            os.kill(int(child), 0)
        finally:
            os.kill(int(child), signal.SIGKILL)


FORKED_AND_ENDED = """
import os, sys
from harena import Sandbox, SandboxPool
box, pool = Sandbox(), SandboxPool(warm=1)
box.run("x = 1")
if not os.fork():
    sys.exit(0)
os.wait()
assert box.run("print(x)").stdout == b"1\\n"
assert box.exec(["echo", "1"]).stdout == b"1\\n"
assert pool.map(["print(1)"])[0].ok
"""


def test_end_of_a_forked_child_does_not_hurt_its_parents_boxes() -> None:
    with host(FORKED_AND_ENDED) as process:
        assert line_of(process) == b"ready"


# ---- boxes come and go ----


def use(number: int) -> None:
    with Sandbox() as box:
        assert box.exec(["true"]).ok
        if number % 5 == 0:
            assert box.run("x = 1").ok
            box.write("a", b"1")
            with box.start(["cat"]) as process:
                process.write(b"1")
            box.start(["sleep", "1000"], pty=True)
            assert box.run("while True: pass", limits=Limits(wall_s=0.05)).detail


def test_fifty_boxes_leave_no_descriptor_process_thread_or_trace() -> None:
    use(0)
    before, threads, boxes = descriptors(), threading.active_count(), boxes_of(os.getpid())
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(use, range(50)))
    assert leaked(before) == []
    assert keepers() == 0
    assert boxes_of(os.getpid()) == boxes
    assert threading.active_count() == threads


def test_pools_leave_no_descriptor_process_or_trace() -> None:
    def work() -> None:
        with SandboxPool(warm=2) as pool:
            pool.map(["print(1)", "while True: pass", "import os; os._exit(1)"], limits=Limits(wall_s=0.1))
            pool.lease().close()

    work()
    assert settle(keepers, 0) == 0
    before, boxes = descriptors(), boxes_of(os.getpid())
    for _ in range(3):
        work()
    assert settle(keepers, 0) == 0
    assert leaked(before) == []
    assert boxes_of(os.getpid()) == boxes


def test_a_box_that_ends_before_it_is_configured_is_lost_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send = local.NamespaceEnclosure._send_config

    def too_late(self: local.NamespaceEnclosure, channel: Any, body: bytes) -> None:
        for folder in self._cgroups:
            cgroups.remove(folder)
        if not self._cgroups or any(folder.exists() for folder in self._cgroups):
            pytest.skip("host: boxes have no cgroup of their own that can be removed")
        send(self, channel, body)

    monkeypatch.setattr(local.NamespaceEnclosure, "_send_config", too_late)
    with pytest.raises(BoxLost, match="ended before it was configured") as lost:
        Sandbox()
    assert lost.value.retry is Retry.SAFE
    assert settle(keepers, 0) == 0


def kill(processes: set[tuple[int, str]]) -> None:
    for pid, _ in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["init", "keeper"])
def test_box_that_is_killed_from_outside_is_lost_and_leaves_nothing(victim: str) -> None:
    others = descendants(os.getpid())  # servers of other tests
    with Sandbox() as box:
        box.run("x = 1")
        below = descendants(os.getpid()) - others
        keeper = min(pid for pid, _ in below)
        kill({(pid, started) for pid, started in below if (pid == keeper) == (victim == "keeper")})
        with pytest.raises(BoxError):
            box.exec(["true"])
        assert not box.alive
    assert settle(lambda: alive(below), set()) == set()
    assert settle(lambda: traces([box.id]), []) == []
    with Sandbox() as other:
        assert other.exec(["true"]).ok


@pytest.mark.timeout(30)
def test_start_that_takes_too_long_is_told_in_time_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = new_marker()
    silent = tmp_path / "launcher"
    silent.write_text(f"#!/bin/sh\nexec sleep {marker}\n")
    silent.chmod(0o755)
    monkeypatch.setattr(local, "LAUNCHER", silent)
    before, boxes = descriptors(), boxes_of(os.getpid())
    started = time.monotonic()
    with pytest.raises(StartTimeout, match=r"start_s=0\.3") as caught:
        Sandbox(clocks=Clocks(start_s=0.3))
    assert time.monotonic() - started < 20
    assert caught.value.retry is Retry.SAFE
    assert settle(lambda: with_marker(marker), 0) == 0
    assert leaked(before) == []
    assert boxes_of(os.getpid()) == boxes


# ---- clocks ----


def test_idle_clock_closes_a_box_that_nobody_uses() -> None:
    box = Sandbox(clocks=Clocks(idle_s=0.2))
    assert settle(lambda: box.closed, True, 20)
    with pytest.raises(BoxClosed, match=r"idle_s=0\.2"):
        box.exec(["true"])
    assert settle(lambda: traces([box.id]), []) == []


def test_idle_clock_does_not_run_during_a_call() -> None:
    with Sandbox(clocks=Clocks(idle_s=0.2)) as box:
        assert box.exec(["sleep", "1"]).ok
        assert box.run("import time; time.sleep(1)").ok


def test_idle_clock_starts_again_with_every_call() -> None:
    with Sandbox(clocks=Clocks(idle_s=1.5)) as box:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            box.ping()
            time.sleep(0.05)
        assert box.alive


def test_lifetime_clock_closes_a_box_whatever_it_does() -> None:
    with Sandbox(clocks=Clocks(lifetime_s=0.5)) as box:
        started = time.monotonic()
        with pytest.raises(BoxError):
            box.exec(["sleep", "1000"])
        assert time.monotonic() - started < 20
        with pytest.raises(BoxClosed, match=r"lifetime_s=0\.5"):
            box.ping()


def test_lifetime_clock_ends_a_run() -> None:
    with Sandbox(clocks=Clocks(lifetime_s=1)) as box:
        started = time.monotonic()
        with pytest.raises(BoxError):
            box.run("while True: pass", limits=Limits(wall_s=25))
        assert time.monotonic() - started < 20


def test_many_clocks_share_one_thread() -> None:
    boxes = [Sandbox(clocks=Clocks(idle_s=60, lifetime_s=60)) for _ in range(3)]
    assert sum(thread.name == "harena-alarm" for thread in threading.enumerate()) == 1
    for box in boxes:
        box.close()


# ---- leases and admission ----


def test_lease_ends_with_its_ttl_and_its_place_is_free_again() -> None:
    with SandboxPool(warm=1, max_live=1, clocks=Clocks(queue_s=30)) as pool:
        first = pool.lease(ttl_s=0.3)
        second = pool.lease()
        assert first.closed
        with pytest.raises(BoxClosed, match=r"ttl_s=0\.3"):
            first.exec(["true"])
        assert second.exec(["true"]).ok
        second.close()


def test_queue_clock_is_told_with_the_knob() -> None:
    with SandboxPool(warm=1, max_live=1, clocks=Clocks(queue_s=0.2)) as pool, pool.lease():
        with pytest.raises(QueueTimeout, match=r"queue_s=0\.2.*max_live=1") as caught:
            pool.lease()
        assert caught.value.retry is Retry.SAFE
        with pytest.raises(QueueTimeout):
            pool.map(["print(1)"])


def test_who_waits_is_woken_when_a_lease_ends() -> None:
    with SandboxPool(warm=1, max_live=1) as pool, ThreadPoolExecutor(1) as threads:
        first = pool.lease()
        waiting = threads.submit(pool.lease)
        first.close()
        with waiting.result(30) as second:
            assert second.exec(["true"]).ok


def test_lease_gives_a_box_nobody_had_before() -> None:
    with SandboxPool(warm=1, max_live=2) as pool:
        for _ in range(3):
            with pool.lease() as box:
                assert box.list() == []
                assert box.run("print('x' in globals())").stdout == b"False\n"
                box.run("x = 1")
                box.write("a", b"1")


def test_never_more_than_max_live() -> None:
    most = 3
    seen: list[int] = []
    with SandboxPool(warm=1, max_live=most, max_starting=3) as pool:

        def work(number: int) -> None:
            for _ in range(4):
                if number % 3:
                    with pool.lease() as box:
                        seen.append(keepers())
                        assert box.exec(["true"]).ok
                else:
                    assert pool.map(["print(1)"] * 3)[0].ok
                seen.append(keepers())

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    assert len(seen) > 20
    assert max(seen) <= most
    assert settle(keepers, 0) == 0


def test_pool_that_lost_a_warm_box_gives_another() -> None:
    others = descendants(os.getpid())
    with SandboxPool(warm=1, max_live=2) as pool:
        kill(descendants(os.getpid()) - others)
        assert pool.map(["print(1)"])[0].stdout == b"1\n"
        with pool.lease() as box:
            assert box.exec(["true"]).ok


def test_closed_pool_refuses_and_its_leases_go_on() -> None:
    pool = SandboxPool(warm=1)
    leased = pool.lease()
    for _ in range(2):
        pool.close()
    for action in (pool.lease, lambda: pool.map(["print(1)"])):
        with pytest.raises(BoxClosed, match="pool is closed"):
            action()
    assert leased.exec(["true"]).ok
    leased.close()
    assert settle(keepers, 0) == 0


@pytest.mark.parametrize(
    "bad", [{"warm": -1}, {"warm": 3, "max_live": 2}, {"max_starting": 0}, {"max_live": 0, "warm": 0}]
)
def test_impossible_pools_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="a pool needs"):
        SandboxPool(**bad)
