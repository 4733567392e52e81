"""Forks of an interpreter that does not play along: what it answers, whom it signals, what it clones meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harena import BoxError, Limits, Result, Sandbox, Spec, Verdict
from harena.backends.local import interpreter

TAMPER = """
import sys
frame = sys._getframe()
while 'handle' not in frame.f_locals or not hasattr(frame.f_locals['handle'], '__self__'):
    frame = frame.f_back
guest = frame.f_locals['handle'].__self__
"""
"""Finds the object that answers the host, in the interpreter's own process."""

CLONE = """
import ctypes, os, threading, time
FORK_FLAGS = 0x7802C111
libc = ctypes.CDLL(None, use_errno=True)
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
stack = ctypes.create_string_buffer(65536)
top = ctypes.addressof(stack) + 65536 - 64
sleep = ctypes.cast(libc.pause, ctypes.c_void_p)

def clone():
    '''A process in namespaces of its own that waits; without CLONE_VFORK's wait, in a thread.'''
    return libc.clone(sleep, top, FORK_FLAGS, None)
"""


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(Spec(workspace_mb=8), limits=Limits(processes=40, wall_s=20)) as box:
        yield box


def namespaces_of_processes(box: Sandbox) -> int:
    """How many pid namespaces the interpreter sees processes in that are not its own."""
    source = """
import os
levels = set()
for name in os.listdir('/proc'):
    if name.isdigit():
        try:
            levels.add(next(line for line in open(f'/proc/{name}/status') if line.startswith('NSpid')).count('\\t'))
        except OSError:
            pass
print(len(levels) - 1)
"""
    return int(box.run(source).stdout)


def clones(box: Sandbox) -> int:
    """How many clones of a fork go through when no fork was asked for."""
    return int(box.run(CLONE + "print(sum(clone() > 0 for _ in range(20)))").stdout)


def test_refused_fork_leaves_no_way_to_a_namespace(box: Sandbox) -> None:
    box.run(TAMPER + "guest.fork = lambda count: {'errno': 12, 'detail': 'no'}")
    with pytest.raises(BoxError):
        box.fork(2)
    assert clones(box) == 0
    assert namespaces_of_processes(box) == 0
    box.run("del guest.fork; x = 1")
    (child,) = box.fork()
    with child:
        assert child.run("print(x)").stdout == b"1\n"
    assert clones(box) == 0


def test_fork_that_is_never_answered_ends_with_all_it_cloned(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "FORK_S", 1.0)
    box.run(CLONE + TAMPER)
    box.run("guest.fork = lambda count: [threading.Thread(target=clone, daemon=True).start(), time.sleep(600)]")
    with pytest.raises(BoxError):
        box.fork()
    assert box.run("print(1)").stdout == b"1\n"
    assert clones(box) == 0


def test_clone_of_another_thread_wins_at_most_the_fork_that_was_asked_for(box: Sandbox) -> None:
    """The thread that is faster gets the fork's namespaces, says nothing to anybody, and ends with the failed fork."""
    box.run(CLONE + TAMPER)
    box.run("""
won = []
def race():
    while len(won) < 3:
        pid = clone()
        if pid > 0:
            won.append(pid)
honest = guest.fork
def slow(count):
    for _ in range(2):
        threading.Thread(target=race, daemon=True).start()
    time.sleep(1)
    answer = honest(count)
    return answer
guest.fork = slow
""")
    with pytest.raises(BoxError):
        box.fork()
    assert namespaces_of_processes(box) == 0
    assert clones(box) == 0


@pytest.mark.parametrize("number", [9, 19])
def test_whoever_signals_what_sets_a_fork_up_gets_no_fork_and_holds_nobody_up(
    box: Sandbox, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 kills, 19 stops. What comes up in spite of it has files and processes of its own."""
    monkeypatch.setattr(interpreter, "ANSWER_S", 0.5)
    quick = Limits(processes=40, wall_s=0.5)
    box.run(f"""
import os
open('/tmp/parents', 'w').write('x')
if os.fork() == 0:
    me = os.getpid()
    while True:
        for pid in range(me + 1, me + 60):
            try:
                os.kill(pid, {number})
            except OSError:
                pass
""")
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            forking = thread.submit(box.fork)
            while not forking.done():
                began = time.monotonic()
                assert box.call("def f():\n    return 1", "f").value == 1
                assert time.monotonic() - began < 15  # a hang lasted as long as the host waits, 30 s and more
                time.sleep(0.2)
        if forking.exception() is None:
            (child,) = forking.result()
            with child, contextlib.suppress(BoxError):  # a fork that was killed later
                child.run("open('/tmp/childs', 'w').write('x')", limits=quick)
                assert box.exec(["ls", "/tmp"]).stdout == b"parents\n"
                look = "import os; print(min(int(name) for name in os.listdir('/proc') if name.isdigit()))"
                first = child.run(look, limits=quick)
                assert first.stdout in (b"1\n", b"")
        else:
            assert isinstance(forking.exception(), BoxError)


NONSENSE = "import os; os.write(6, b'nonsense')"
STOP_INITS = """
import os, signal
for name in os.listdir('/proc'):
    if name.isdigit() and name != '1':
        try:
            spaces = next(line for line in open(f'/proc/{name}/status') if line.startswith('NSpid')).split()
        except OSError:
            continue
        if spaces[-1] == '1':
            os.kill(int(name), signal.SIGSTOP)
            print('stopped')
"""
"""Stops the inits of all forks, which are below the interpreter's own."""


def within(seconds: float, box: Sandbox, source: str, limits: Limits | None = None) -> Result:
    began = time.monotonic()
    result = box.run(source, limits=limits)
    assert time.monotonic() - began < seconds, result
    return result


def goes_on(fork: Sandbox) -> None:
    """The end of its interpreter is not the end of its files."""
    assert fork.exec(["cat", "kept"]).stdout == b"x"
    assert fork.run("print(1)").stdout == b"1\n"


@pytest.fixture
def fork(box: Sandbox) -> Iterator[Sandbox]:
    (fork,) = box.fork()
    with fork:
        fork.write("kept", "x")
        yield fork


def test_the_end_of_a_fork_is_reported_when_its_parent_talks_nonsense(box: Sandbox, fork: Sandbox) -> None:
    (other,) = fork.fork()
    with other:
        assert box.run(NONSENSE).ok
        ended = within(5, fork, "import os; os._exit(3)")
        assert (ended.verdict, ended.exit_code) == (Verdict.EXIT, 3)
        goes_on(fork)
        goes_on(other)
        late = within(5, other, "import time; time.sleep(60)", Limits(wall_s=0.5))
        assert late.verdict is Verdict.TIME
        goes_on(other)


def test_the_end_of_a_fork_that_talks_nonsense_is_reported(fork: Sandbox) -> None:
    assert fork.run(NONSENSE).ok
    with pytest.raises(BoxError, match="nonsense"):
        fork.fork()
    ended = within(5, fork, "import os; os._exit(3)")
    assert (ended.verdict, ended.exit_code) == (Verdict.EXIT, 3)
    goes_on(fork)
    fork.fork()[0].close()


def test_the_end_of_a_fork_is_reported_when_its_parent_has_stopped_its_init(
    box: Sandbox, fork: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "HANG_UP_S", 0.5)
    assert box.run(STOP_INITS).stdout == b"stopped\n"
    late = within(5, fork, "import time; time.sleep(60)", Limits(wall_s=0.5))
    assert late.verdict is Verdict.TIME
    goes_on(fork)
    (second,) = box.fork()
    with second:
        assert box.run(STOP_INITS).stdout == b"stopped\n" * 2
        ended = within(5, second, "import os; os._exit(3)")
        assert ended.verdict is Verdict.SIGNAL, ended  # nobody can say how it ended


@pytest.mark.parametrize("way", ["interpreter", "fork"])
def test_an_interpreter_that_hangs_up_and_lives_on_is_ended(
    box: Sandbox, fork: Sandbox, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "HANG_UP_S", 0.5)
    which = fork if way == "fork" else box
    for deed in ("os.kill(os.getpid(), signal.SIGSTOP)", "time.sleep(60)"):
        ended = within(5, which, f"import os, signal, time; os.close(5); {deed}")
        assert ended.verdict is Verdict.SIGNAL
        assert "by the host" in ended.detail
        assert which.run("print(1)").stdout == b"1\n"
