"""`converse`: a process in the box that the host exchanges packets with, times, stops and pins."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from harena import Limits, Sandbox, Verdict
from harena.sandbox.backend import Conversation

ECHO = "import socket\nsock = socket.socket(fileno=5)\nwhile data := sock.recv(500_000): sock.send(data)\n"


def hear(talk: Conversation) -> bytes:
    """The next packet, whatever is printed meanwhile."""
    end = time.monotonic() + 60
    while (packet := talk.receive(60)) is None:
        assert time.monotonic() < end, "nothing was sent"
        talk.read_log()
    return packet


def test_packets_go_both_ways(box: Sandbox) -> None:
    talk = box.converse(ECHO).met()
    for packet in (b"x", os.urandom(1000), bytes(60_000)):
        talk.send(packet)
        assert hear(talk) == packet
    talk.end()


def test_each_has_empty_files_and_nothing_of_the_one_before(box: Sandbox) -> None:
    source = "import os, socket\nseen = os.listdir('/workspace') + os.listdir('/tmp')\nopen('/workspace/a', 'w'); open('/tmp/b', 'w')\nsocket.socket(fileno=5).send(repr(seen).encode())\n"
    for _ in range(3):
        talk = box.converse(source).met()
        assert hear(talk) == b"[]"
        talk.end()


def test_what_it_prints_is_its_log(box: Sandbox) -> None:
    talk = box.converse("import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)\n").met()
    printed, end = b"", time.monotonic() + 60
    while len(printed) < 8 and time.monotonic() < end:
        talk.receive(0.1)
        printed += talk.read_log()
    assert printed == b"out\nerr\n"
    assert talk.end(30).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("raise SystemExit(3)", Verdict.EXIT),
        ("import os; os.kill(os.getpid(), 11)", Verdict.SIGNAL),
        (
            "import mmap\nx = [mmap.mmap(-1, 1 << 24) for _ in range(50)]\nfor m in x: m.write(bytes(1 << 24))",
            Verdict.MEMORY,
        ),
    ],
)
def test_end_says_how_it_ended(box: Sandbox, source: str, verdict: Verdict) -> None:
    talk = box.converse(source, limits=Limits(memory_mb=64)).met()
    assert hear(talk) == b""
    result = talk.end(30)
    assert result.verdict in (verdict, Verdict.EXIT), result


def test_end_of_one_that_goes_on_is_the_hosts_doing(box: Sandbox) -> None:
    result = box.converse("import time; time.sleep(1000)").met().end()
    assert (result.verdict, result.detail) == (Verdict.SIGNAL, "the process was ended by the host")


def await_cpu(read: Callable[[], int], more_than_ns: int) -> None:
    """Wait until a conversation has used that much processor time; a busy machine gives it little."""
    end = time.monotonic() + 60
    while read() <= more_than_ns:
        assert time.monotonic() < end, "its time is not counted"
        time.sleep(0.02)


def test_its_time_is_counted_and_it_can_be_stopped(box: Sandbox) -> None:
    talk = box.converse("while True: pass").met()
    start = talk.cpu_ns()
    await_cpu(talk.cpu_ns, start + 10_000_000)
    talk.freeze()
    time.sleep(0.05)
    stopped = talk.cpu_ns()
    time.sleep(0.2)
    assert talk.cpu_ns() - stopped < 5_000_000
    talk.thaw()
    await_cpu(talk.cpu_ns, stopped + 10_000_000)
    talk.end()


def test_what_it_starts_is_seen_counted_and_stopped(box: Sandbox) -> None:
    source = "import os, socket\npid = os.fork()\nif pid == 0:\n    if os.fork(): os._exit(0)\n    while True: pass\nos.waitpid(pid, 0)\nsock = socket.socket(fileno=5)\nsock.send(b'x')\nsock.recv(1)\n"
    talk = box.converse(source).met()
    assert hear(talk) == b"x"
    await_cpu(talk.others_cpu_ns, 10_000_000)  # an orphan's too
    talk.freeze()
    time.sleep(0.05)
    stopped = talk.others_cpu_ns()
    time.sleep(0.2)
    assert talk.others_cpu_ns() - stopped < 15_000_000
    talk.thaw()
    await_cpu(talk.others_cpu_ns, stopped + 10_000_000)
    talk.end()


def test_it_stays_on_the_processor_it_was_given(box: Sandbox) -> None:
    one = min(os.sched_getaffinity(0))
    source = "import os, socket\nsock = socket.socket(fileno=5)\nsock.recv(1)\ntry: os.sched_setaffinity(0, range(64))\nexcept OSError as error: print(error)\nsock.send(repr(os.sched_getaffinity(0)).encode())\n"
    talk = box.converse(source).met()
    talk.pin({one})
    talk.send(b"x")
    assert hear(talk) == repr({one}).encode()
    talk.end()


def test_dropped_talks_leave_the_box_in_order(box: Sandbox) -> None:
    for known in (True, False, True, False, False):
        talk = box.converse(ECHO)
        if known:
            talk.met()
        talk.drop()
    talk = box.converse(ECHO).met()
    talk.send(b"still there")
    assert hear(talk) == b"still there"
    talk.end()
    assert box.exec(["echo", "works"]).stdout == b"works\n"


def test_it_has_no_network(box: Sandbox) -> None:
    source = "import socket\nsock = socket.socket(fileno=5)\ntry:\n    socket.socket(socket.AF_INET)\n    sock.send(b'open')\nexcept OSError: sock.send(b'refused')\n"
    talk = box.converse(source).met()
    assert hear(talk) == b"refused"
    talk.end()


def test_the_process_that_is_timed_is_the_first_one(box: Sandbox) -> None:
    """It cannot pass a child off as itself: the first word is ours, before its own code runs."""
    talk = box.converse(
        "import os, socket\nsock = socket.socket(fileno=5)\nif os.fork() == 0:\n    sock.send(b'child')\n    os._exit(0)\nsock.recv(1)\n"
    ).met()
    assert hear(talk) == b"child"
    assert talk.cpu_ns() > 0, "the child has ended, and it has not"
    talk.end()


def test_host_sockets_are_not_among_its_descriptors(box: Sandbox) -> None:
    source = "import os, socket\nsock = socket.socket(fileno=5)\nseen = []\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    try: seen.append((fd, os.readlink(f'/proc/self/fd/{fd}').split(':')[0]))\n    except OSError: pass\nsock.send(repr(sorted(seen)).encode())\n"
    talk = box.converse(source).met()
    seen = hear(talk).decode()
    assert seen.count("socket") == 1, seen
    assert seen.count("pipe") == 2, seen
    talk.end()
