"""`start`: a live command, with its streams, its signals and its terminal."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable

import pytest

from harena import Limits, Process, Sandbox, SpecError, Verdict

ECHO = "import sys\nfor line in sys.stdin:\n    print('got', line.strip(), flush=True)\n"


def read_until(process: Process, wanted: bytes) -> bytes:
    """What it writes, up to and with the wanted bytes."""
    data = b""
    while wanted not in data:
        chunk = process.stdout.read(timeout_s=30)
        assert chunk, f"it ended after {data!r}"
        data += chunk
    return data


def test_talks_while_it_runs(box: Sandbox) -> None:
    with box.start(["python3", "-c", ECHO]) as process:
        for word in (b"one", b"two", b"three"):
            process.write(word + b"\n")
            assert read_until(process, b"\n") == b"got " + word + b"\n"
        process.close_stdin()
        result = process.wait(30)
    assert (result.verdict, result.exit_code, result.stdout) == (Verdict.OK, 0, b"")


def test_wait_ends_its_input_and_returns_what_was_not_read(box: Sandbox) -> None:
    process = box.start(["python3", "-c", ECHO + "print('bye', file=sys.stderr)\nsys.exit(4)"])
    process.write(b"a\nb\n")
    result = process.wait(30)
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 4)
    assert (result.stdout, result.stderr) == (b"got a\ngot b\n", b"bye\n")
    assert process.wait() is result


def test_stdout_and_stderr_are_streams_of_their_own(box: Sandbox) -> None:
    with box.start(["sh", "-c", "echo out; echo err >&2; cat"]) as process:
        assert process.stderr is not None
        assert read_until(process, b"\n") == b"out\n"
        assert process.stderr.read(timeout_s=30) == b"err\n"


def test_output_can_be_iterated_to_its_end(box: Sandbox) -> None:
    process = box.start(["seq", "20000"])
    assert b"".join(process.stdout).split() == [str(number).encode() for number in range(1, 20001)]
    assert process.wait(30).ok


def test_output_larger_than_a_pipe_is_collected_by_wait(box: Sandbox) -> None:
    result = box.start(["sh", "-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"]).wait(30)
    assert (len(result.stdout), len(result.stderr), result.usage.bytes) == (300_000, 300_000, 600_000)


def test_read_says_when_nothing_came(box: Sandbox) -> None:
    with box.start(["cat"]) as process, pytest.raises(TimeoutError, match="timeout_s"):
        process.stdout.read(timeout_s=0.05)


def test_wait_says_when_it_goes_on(box: Sandbox) -> None:
    with box.start(["sleep", "1000"]) as process:
        with pytest.raises(TimeoutError, match="goes on"):
            process.wait(0.05)
        process.kill()
        assert process.wait(30).verdict is Verdict.SIGNAL


def test_output_seen_by_a_wait_that_gave_up_is_not_lost(box: Sandbox) -> None:
    with box.start(["sh", "-c", "echo early; while [ ! -e go ]; do sleep 0.01; done; echo late"]) as process:
        assert select.select([process.stdout], [], [], 30)[0]
        with pytest.raises(TimeoutError):
            process.wait(0.05)
        box.write("go", b"")
        assert process.wait(30).stdout == b"early\nlate\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_signal_ends_a_process_that_does_not_handle_it(box: Sandbox, number: signal.Signals) -> None:
    with box.start(["sh", "-c", "echo ready; exec sleep 1000"]) as process:
        read_until(process, b"ready\n")
        process.send_signal(number)
        result = process.wait(30)
    assert (result.verdict, result.signal) == (Verdict.SIGNAL, number)


def test_signal_can_be_handled(box: Sandbox) -> None:
    source = (
        "import os, signal, sys\n"
        "def handler(number, frame):\n    os.write(1, b'hup')\n    sys.exit(7)\n"
        "signal.signal(signal.SIGHUP, handler)\nos.write(1, b'ready')\nwhile True: signal.pause()\n"
    )
    with box.start(["python3", "-c", source]) as process:
        read_until(process, b"ready")
        process.send_signal(signal.SIGHUP)
        result = process.wait(30)
    assert (result.exit_code, result.stdout) == (7, b"hup")


def test_unknown_signal_is_refused(box: Sandbox) -> None:
    with box.start(["cat"]) as process, pytest.raises(ValueError, match="999"):
        process.send_signal(999)


def test_kill_ends_the_whole_tree(box: Sandbox, marker: str, ends_on_host: Callable[[str], None]) -> None:
    line = f"sleep {marker} & setsid sleep {marker} & (setsid sh -c 'sleep {marker}' &); echo ready; wait"
    with box.start(["sh", "-c", line]) as process:
        read_until(process, b"ready\n")
        process.kill()
        assert process.wait(30).verdict is Verdict.SIGNAL
    ends_on_host(marker)


def test_close_of_the_box_ends_it(
    make_box: Callable[..., Sandbox],
    marker: str,
    runs_on_host: Callable[[str], None],
    ends_on_host: Callable[[str], None],
) -> None:
    box = make_box()
    process = box.start(["sleep", marker])
    runs_on_host(marker)
    box.close()
    ends_on_host(marker)
    process.close()


def test_process_nobody_holds_on_to_runs_on(
    box: Sandbox, marker: str, runs_on_host: Callable[[str], None], ends_on_host: Callable[[str], None]
) -> None:
    process = box.start(["sh", "-c", f"sleep {marker}; :"])
    runs_on_host(marker)
    for _ in range(3):
        assert box.exec(["true"]).ok
    runs_on_host(marker)
    process.close()
    ends_on_host(marker)


def test_wall_clock_holds(box: Sandbox) -> None:
    process = box.start(["sleep", "1000"], limits=Limits(wall_s=0.3))
    result = process.wait(30)
    assert result.verdict is Verdict.TIME
    assert "wall_s=0.3" in result.detail


def test_flood_of_output_ends_it(box: Sandbox) -> None:
    process = box.start(["yes"], limits=Limits(output_bytes=100_000))
    result = process.wait(30)
    assert result.verdict is Verdict.OUTPUT
    assert (len(result.stdout), result.usage.bytes) == (100_000, 100_000)
    assert "output_bytes=100000" in result.detail


def test_flood_read_as_a_stream_ends_at_the_limit(box: Sandbox) -> None:
    process = box.start(["yes"], limits=Limits(output_bytes=100_000))
    assert sum(map(len, process.stdout)) == 100_000
    assert process.wait(30).verdict is Verdict.OUTPUT


def test_write_to_a_process_that_has_ended_is_a_broken_pipe(box: Sandbox) -> None:
    with box.start(["true"]) as process:
        assert process.stdout.read(timeout_s=30) == b""
        with pytest.raises(BrokenPipeError):
            process.write(b"x" * 1_000_000)


def test_unknown_command_says_so(box: Sandbox) -> None:
    result = box.start(["no-such-command"]).wait(30)
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 127)


def test_many_run_side_by_side(box: Sandbox) -> None:
    processes = [box.start(["cat"]) for _ in range(10)]
    for number, process in enumerate(processes):
        process.write(str(number).encode())
    for number, process in reversed(list(enumerate(processes))):
        assert process.wait(30).stdout == str(number).encode()


def test_sees_environment_and_cwd(box: Sandbox) -> None:
    result = box.start(["sh", "-c", "echo $A; pwd"], env={"A": "1"}, cwd="/tmp").wait(30)
    assert result.stdout == b"1\n/tmp\n"


# ---- terminals ----


def test_terminal_is_one_to_the_process(box: Sandbox) -> None:
    with box.start(["sh", "-c", "tty; test -t 0 && test -t 1 && test -t 2 && echo yes >&2"], pty=True) as process:
        assert process.stderr is None
        shown = process.wait(30).stdout
    assert shown.startswith(b"/dev/pts/")
    assert shown.endswith(b"yes\r\n")


def test_terminal_has_the_size_it_was_given(box: Sandbox) -> None:
    with box.start(["stty", "size"], pty=True, rows=33, cols=111) as process:
        assert process.wait(30).stdout == b"33 111\r\n"


def test_terminal_can_be_resized_and_the_process_is_told(box: Sandbox) -> None:
    source = (
        "import os, signal\n"
        "tell = lambda *_: os.write(1, b'%d %d now' % os.get_terminal_size())\n"
        "signal.signal(signal.SIGWINCH, tell)\nos.write(1, b'ready')\nwhile True: signal.pause()\n"
    )
    with box.start(["python3", "-c", source], pty=True) as process:
        read_until(process, b"ready")
        process.resize(50, 132)
        assert read_until(process, b"now") == b"132 50 now"


def test_keys_of_a_terminal_are_signals(box: Sandbox) -> None:
    with box.start(["sh", "-c", "echo ready; exec sleep 1000"], pty=True) as process:
        read_until(process, b"ready\r\n")
        process.write(b"\x03")
        result = process.wait(30)
    assert (result.verdict, result.signal) == (Verdict.SIGNAL, signal.SIGINT)


def test_what_the_host_ignores_the_guest_does_not(make_box: Callable[..., Sandbox]) -> None:
    """A program that a shell has started in the background ignores Ctrl-C; in its boxes it would do nothing."""
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMIN)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        box = make_box()
        for result in (box.exec(["grep", "SigIgn", "/proc/self/status"]), box.run(READ)):
            mask = int(result.stdout.split()[-1], 16)
            assert [number for number in ignored if mask >> (number - 1) & 1] == []
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)


READ = "print(next(line for line in open('/proc/self/status') if line.startswith('SigIgn')))"


def test_shell_on_a_terminal_can_be_driven(box: Sandbox) -> None:
    with box.start(["sh", "-i"], pty=True, env={"PS1": "> "}) as process:
        read_until(process, b"> ")
        process.write(b"echo $((6 * 7))\n")
        read_until(process, b"42\r\n")
        process.write(b"exit 3\n")
        assert process.wait(30).exit_code == 3


def test_terminal_of_a_killed_process_comes_to_an_end(box: Sandbox) -> None:
    with box.start(["sleep", "1000"], pty=True) as process:
        process.kill()
        assert b"".join(process.stdout) == b""
        assert process.wait(30).verdict is Verdict.SIGNAL


def test_resize_without_a_terminal_is_refused(box: Sandbox) -> None:
    with box.start(["cat"]) as process, pytest.raises(SpecError, match="pty=True"):
        process.resize(10, 10)


def test_resize_of_a_terminal_that_has_ended_does_nothing(box: Sandbox) -> None:
    with box.start(["true"], pty=True) as process:
        assert b"".join(process.stdout) == b""
        process.resize(10, 10)
