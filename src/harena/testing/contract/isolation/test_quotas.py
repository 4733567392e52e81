"""What the kernel counts by user: one box that takes all it can get leaves enough to the host and to other boxes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from harena import Limits, Mount, Process, Sandbox, SpecError

GREEDY = """
import ctypes, os, resource, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_SIGPENDING, (resource.getrlimit(resource.RLIMIT_SIGPENDING)[1],) * 2)
instances = 0
while instances < 10_000 and libc.inotify_init1(0) >= 0:
    instances += 1
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
info = ctypes.create_string_buffer(struct.pack('iiiiii', 40, 0, -1, 0, os.getpid(), os.getuid()), 128)
signals = 0
while signals < 200_000 and libc.syscall(129 if os.uname().machine == 'x86_64' else 138, os.getpid(), 40, info) == 0:
    signals += 1
print(instances, signals, flush=True)
time.sleep(60)
"""
MODEST = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.inotify_init1(0) >= 0, libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())) == 0)
"""


def first_line(process: Process) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        chunk = process.stdout.read(timeout_s=60)
        assert chunk, f"it ended after {data!r}"
        data += chunk
    return data


def test_greedy_box_leaves_inotify_signals_and_timers_to_others(make_box: Callable[..., Sandbox]) -> None:
    limits = Limits(open_files=1024)
    with make_box(workspace_mb=8, limits=limits).start(["python3", "-c", GREEDY]) as process:
        instances, signals = map(int, first_line(process).split())
        most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
        assert 0 < instances <= most // 4
        assert 0 < signals <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // 4
        assert make_box(workspace_mb=8).exec(["python3", "-c", MODEST]).stdout == b"True True\n"
        libc = ctypes.CDLL(None, use_errno=True)
        fds = [libc.inotify_init1(0) for _ in range(most // 4)]
        timer = ctypes.c_void_p()
        made = libc.timer_create(0, None, ctypes.byref(timer))
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        assert min(fds) >= 0
        assert made == 0
        libc.timer_delete(timer)


def test_terminals_of_one_execution_are_not_in_another(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(workspace_mb=8)
    with box.start(["sh", "-c", "tty; read secret; sleep 60"], pty=True) as process:
        assert first_line(process) == b"/dev/pts/0\r\n"
        process.write(b"password\n")
        assert box.exec(["ls", "/dev/pts"]).stdout == b"ptmx\n"
        assert box.call("def f():\n    import os\n    return os.listdir('/dev/pts')", "f").value == ["ptmx"]
        count = "import os\nn = 0\ntry:\n    while n < 1000: os.openpty(); n += 1\nexcept OSError: pass\nprint(n)"
        opened = int(box.exec(["python3", "-c", count], limits=Limits(open_files=4096)).stdout)
        assert 8 <= opened <= 64


def test_many_commands_at_once(make_box: Callable[..., Sandbox]) -> None:
    """Each has fewer descriptors than the init of the box holds for all of them."""
    box = make_box(workspace_mb=8, limits=Limits(open_files=64))
    with contextlib.ExitStack() as processes:
        for _ in range(60):
            processes.enter_context(box.start(["sleep", "60"]))
        assert box.exec(["echo", "hi"]).stdout == b"hi\n"


def test_box_with_more_mounts_than_the_launcher_holds_is_refused(make_box: Callable[..., Sandbox]) -> None:
    mounts = tuple(Mount(source="/usr/bin", target=f"/mnt/{number}") for number in range(3000))
    with pytest.raises(SpecError, match="mount a folder above them"):
        make_box(mounts=mounts)
