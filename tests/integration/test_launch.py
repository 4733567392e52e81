"""The launcher refuses what it cannot carry out whole, and boxes can be made where root is root of a container only."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harena import Sandbox, Spec
from harena.backends.local import backend, wire
from support.leaks import descendants

NEWUSER, NEWNS = 0x10000000, 0x20000
BOX = """
from harena import Sandbox, Spec
with Sandbox(Spec(workspace_mb=8)) as box:
    assert box.run("print(1)").stdout == b"1\\n"
    assert box.exec(["id", "-u"]).stdout == b"1000\\n"
    print("made", flush=True)
"""


def answer_to(words: list[str]) -> tuple[int, str]:
    """What the native launcher says to a plan: an error number and a step; (0, "") when it makes the box."""
    ours, theirs = socket.socketpair()
    plan = os.memfd_create("plan")
    os.write(plan, b"".join(os.fsencode(word) + b"\0" for word in words))
    os.lseek(plan, 0, os.SEEK_SET)
    for fd in (plan, theirs.fileno()):
        os.set_inheritable(fd, True)
    process = subprocess.Popen(
        ["harena-box", str(plan), str(theirs.fileno())], executable=backend.LAUNCHER, close_fds=False
    )
    os.close(plan)
    theirs.close()
    ours.settimeout(60)
    frames: list[wire.Frame] = []
    reader = wire.Reader()
    while not frames and (data := ours.recv(4096)):
        frames += reader.feed(data)
    ours.close()
    process.wait(60)
    assert frames, "it ended without a word"
    return wire.parse_error(frames[0].body) if frames[0].op == wire.Op.ERROR else (0, "")


@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "step"),
    [
        ([*["dir", "/d", "755"] * 2731, "uid", "1879048192"], "words"),
        (["file", "/etc/x", "x" * (1 << 20), "uid", "1879048192"], "so long a plan"),
        (["dir", "/d", "755"], "without a user"),
        (["dir", "/d", "755", "uid", "0"], "without a user"),
        (["dir", "/d", "755", "uid"], "understand"),
    ],
    ids=["words", "bytes", "no-user", "root-as-user", "cut"],
)
def test_plan_that_is_too_long_or_names_no_user_is_refused(words: list[str], step: str) -> None:
    number, said = answer_to(words)
    assert number != 0
    assert step in said


def in_user_namespace(flags: int, ids: str, command: list[str]) -> str:
    """Runs a command as root of a user namespace with these users and groups; returns what it printed."""
    made, go = os.pipe(), os.pipe()
    read, write = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 1)
            os.dup2(write, 2)
            if libc.unshare(flags) == 0:
                os.write(made[1], b"x")
                os.read(go[0], 1)
                os.setgid(0)
                os.setuid(0)
                os.execv(command[0], command)
        finally:
            os._exit(99)
    os.close(write)
    try:
        os.read(made[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(ids)
        os.write(go[1], b"x")
        with open(read, encoding="utf-8") as output:
            return output.read()
    finally:
        os.waitpid(pid, 0)
        for fd in (*made, *go):
            os.close(fd)


@pytest.mark.root
@pytest.mark.parametrize(
    ("flags", "ids", "launcher"),
    [
        (NEWUSER, "0 0 1\n", "native"),  # bubblewrap masks /proc there, and says so
        (NEWUSER | NEWNS, "0 0 1\n1 100000 65536\n", "native"),
        (NEWUSER | NEWNS, "0 0 1\n1 100000 65536\n", "bubblewrap"),
    ],
    ids=["root-alone", "container", "container-bubblewrap"],
)
def test_boxes_are_made_by_root_of_a_user_namespace(
    flags: int, ids: str, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARENA_LAUNCHER", launcher)
    assert in_user_namespace(flags, ids, [sys.executable, "-c", BOX]) == "made\n"


UNUSABLE = {
    "read-only-tmp": "mount -t tmpfs -o ro tmpfs /tmp && mount -t tmpfs -o ro tmpfs /run",
    "full-disk": "mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /tmp && mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /run",
    "masked-proc": "mount -t tmpfs -o ro tmpfs /proc/sys",
    "no-proc": "mount -t tmpfs tmpfs /proc",
    "few-descriptors": "ulimit -n 40",
    "no-descriptors": "ulimit -Sn 12",
}


@pytest.mark.root
@pytest.mark.parametrize("spoil", UNUSABLE)
def test_host_that_cannot_hold_a_box_is_told_why(spoil: str) -> None:
    """A sentence and a fix, never a traceback; a box is made all the same where it needs nothing of it."""
    source = (
        "from harena import IsolationUnavailable\ntry:\n"
        + "".join(f"    {line}\n" for line in BOX.strip().splitlines())
        + "except IsolationUnavailable as error:\n    print('refused:', error, flush=True)\n"
    )
    script = f"{UNUSABLE[spoil]} && exec {sys.executable} -c '{source.replace(chr(39), chr(34))}'"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(("made", "refused:")), done.stdout + done.stderr[-3000:]
    assert "Traceback" not in done.stderr


@pytest.mark.root
def test_host_without_proc_sweeps_no_live_box() -> None:
    with Sandbox(Spec(workspace_mb=8)) as box:
        sweep = "from harena.backends.local.launch import registry; print(registry.sweep())"
        script = f"mount -t tmpfs tmpfs /proc && exec {sys.executable} -c '{sweep}'"
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout == "0\n", done.stderr
        assert box.call("def f():\n    return 1", "f").value == 1


def turn_ns(pid: int | str) -> int:
    """How long a turn of the process on the processor is."""
    lines = Path(f"/proc/{pid}/sched").read_text().splitlines()
    return next((int(line.split()[-1]) for line in lines if line.startswith("se.slice")), 0)


def test_the_box_s_server_takes_short_turns_on_the_processor_and_its_guests_usual_ones():
    if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (6, 12) or not turn_ns("self"):
        pytest.skip("host: turns cannot be shortened before Linux 6.12, or are not shown")
    others = {pid for pid, _ in descendants(os.getpid())}  # other tests of this process may have kept boxes
    with Sandbox() as box:
        box.run("1")
        turns = {pid: turn_ns(pid) for pid, _ in descendants(os.getpid()) if pid not in others}
        shown = box.exec(["grep", "se.slice", "/proc/self/sched"]).stdout.split()
    assert sum(turn < turn_ns("self") for turn in turns.values()) == 2, "its init and its warm interpreter"
    assert int(shown[-1]) == turn_ns("self")
