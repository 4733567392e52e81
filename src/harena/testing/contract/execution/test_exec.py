"""`exec`: a command, run to its end."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from harena import Limits, Sandbox, SpecError, Verdict


def test_answers_with_output_exit_code_and_verdict(box: Sandbox) -> None:
    result = box.exec(["python3", "-c", "print(6 * 7)"])
    assert (result.verdict, result.exit_code, result.signal) == (Verdict.OK, 0, None)
    assert (result.stdout, result.stderr, result.detail) == (b"42\n", b"", "")
    assert result.ok


def test_arguments_arrive_as_they_are(box: Sandbox) -> None:
    words = ["a b", "", "ü€", "x\ny", "$HOME", "-n", "'\""]
    assert box.exec(["printf", "%s|", *words]).stdout == "".join(f"{word}|" for word in words).encode()


def test_arguments_keep_bytes_that_are_not_text(box: Sandbox) -> None:
    assert box.exec(["printf", "%s", os.fsdecode(b"\xff\xfe")]).stdout == b"\xff\xfe"


def test_stdin_arrives_whole(box: Sandbox) -> None:
    data = os.urandom(3_000_000)
    assert box.exec(["sha256sum"], stdin=data).stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_stdin_is_empty_unless_given(box: Sandbox) -> None:
    assert box.exec(["cat"]).stdout == b""


def test_stdin_that_nobody_reads_does_no_harm(box: Sandbox) -> None:
    assert box.exec(["true"], stdin=b"x" * 3_000_000).ok


def test_output_may_be_any_bytes(box: Sandbox) -> None:
    data = bytes(range(256)) * 200
    assert box.exec(["cat"], stdin=data).stdout == data


def test_stdout_and_stderr_come_apart(box: Sandbox) -> None:
    result = box.exec(["sh", "-c", "echo out; echo err >&2; echo out"])
    assert (result.stdout, result.stderr) == (b"out\nout\n", b"err\n")


def test_bare_name_is_looked_up_in_the_path_that_the_command_gets(box: Sandbox) -> None:
    box.write("one/tool", b"#!/bin/sh\necho one", mode=0o755)
    box.write("two/tool", b"echo two $1", mode=0o755)  # without a first line, as a shell takes it
    box.write("bad/tool", b"#!/bin/sh\necho bad", mode=0o644)
    assert box.exec(["tool"], env={"PATH": "/workspace/one:/workspace/two"}).stdout == b"one\n"
    assert box.exec(["tool", "x"], env={"PATH": "/nowhere:/workspace/bad:/workspace/two:/bin"}).stdout == b"two x\n"
    assert box.exec(["tool"], env={"PATH": ":/bin"}, cwd="one").stdout == b"one\n"
    assert box.exec(["tool"], env={"PATH": "/workspace/bad"}).exit_code == 126
    assert box.exec(["tool"]).exit_code == 127


def test_python_of_the_box_is_the_one_of_its_spec(box: Sandbox) -> None:
    seen = box.exec(["python3", "-c", "import sys; print(sys.base_prefix)"]).stdout.decode().strip()
    assert seen == box.run("import sys; print(sys.base_prefix)").stdout.decode().strip()


def test_wall_time_is_that_of_the_command(box: Sandbox) -> None:
    for _ in range(3):
        assert 0.04 <= box.exec(["sleep", "0.05"]).usage.wall_s < 5


def test_environment_adds_to_the_boxs_own(box: Sandbox) -> None:
    result = box.exec(["sh", "-c", 'echo "$A|$HOME|$USER"'], env={"A": "1 2", "USER": "me"})
    assert result.stdout == b"1 2|/workspace|me\n"
    assert box.exec(["sh", "-c", 'echo "[$A]"']).stdout == b"[]\n", "it holds for one call"


def test_environment_has_nothing_of_the_hosts(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_TEST_SECRET", "s3cret")
    assert b"s3cret" not in box.exec(["env"]).stdout


def test_starts_in_the_workspace(box: Sandbox) -> None:
    assert box.exec(["pwd"]).stdout == b"/workspace\n"


@pytest.mark.parametrize(("cwd", "shown"), [("sub/deep", b"/workspace/sub/deep\n"), ("/tmp", b"/tmp\n")])
def test_cwd_is_relative_to_the_workspace_or_absolute(box: Sandbox, cwd: str, shown: bytes) -> None:
    box.exec(["mkdir", "-p", "sub/deep"])
    assert box.exec(["pwd"], cwd=cwd).stdout == shown


def test_missing_cwd_is_the_callers_failure_and_is_told(box: Sandbox) -> None:
    result = box.exec(["true"], cwd="nowhere")
    assert result.verdict is Verdict.EXIT
    assert "could not be started" in result.detail


@pytest.mark.parametrize("code", [1, 3, 126, 127, 255])
def test_exit_code_comes_back(box: Sandbox, code: int) -> None:
    result = box.exec(["sh", "-c", f"exit {code}"])
    assert (result.verdict, result.exit_code, result.signal) == (Verdict.EXIT, code, None)
    assert str(code) in result.detail


def test_unknown_command_is_exit_code_127(box: Sandbox) -> None:
    result = box.exec(["no-such-command"])
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 127)
    assert "No such file" in result.detail


def test_file_that_cannot_be_executed_is_exit_code_126(box: Sandbox) -> None:
    box.write("data.txt", b"not a program", mode=0o644)
    result = box.exec(["/workspace/data.txt"])
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 126)


def test_script_of_the_workspace_can_be_executed(box: Sandbox) -> None:
    box.write("tool.sh", b"#!/bin/sh\necho $1\n", mode=0o755)
    assert box.exec(["./tool.sh", "hi"]).stdout == b"hi\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_signal_is_a_verdict_of_its_own(box: Sandbox, number: signal.Signals) -> None:
    result = box.exec(["sh", "-c", f"kill -{int(number)} $$"])
    assert (result.verdict, result.exit_code, result.signal) == (Verdict.SIGNAL, None, number)
    assert number.name in result.detail


@pytest.mark.parametrize("argv", [[], "ls -l", ["a\0b"], [b"ls"], ["ls", 1]])
def test_bad_argv_is_refused(box: Sandbox, argv: list[str]) -> None:
    with pytest.raises(SpecError, match="argv"):
        box.exec(argv)
    assert box.exec(["true"]).ok


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"": "1"}, {"A": "a\0b"}])
def test_bad_environment_is_refused(box: Sandbox, env: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="env"):
        box.exec(["true"], env=env)


def test_files_stay_and_processes_do_not(
    box: Sandbox, marker: str, runs_on_host: Callable[[str], None], ends_on_host: Callable[[str], None]
) -> None:
    with box.start(["sleep", marker]):
        runs_on_host(marker)
    ends_on_host(marker)
    box.exec(["sh", "-c", "echo 1 > kept"])
    assert box.exec(["cat", "kept"]).stdout == b"1\n"


def test_background_processes_end_with_the_command(
    box: Sandbox, marker: str, ends_on_host: Callable[[str], None]
) -> None:
    started = time.monotonic()
    result = box.exec(["sh", "-c", f"sleep {marker} & setsid sleep {marker} & (sleep {marker} &) ; echo done"])
    assert (result.verdict, result.stdout) == (Verdict.OK, b"done\n")
    assert time.monotonic() - started < 20, "it waited for a child that keeps its output open"
    ends_on_host(marker)


TREE = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execvp("sleep", ["sleep", sys.argv[1]])
print("ready", flush=True)
time.sleep(1000)
"""


def test_timeout_ends_the_whole_tree(box: Sandbox, marker: str, ends_on_host: Callable[[str], None]) -> None:
    result = box.exec(["python3", "-c", TREE, marker], limits=Limits(wall_s=1))
    assert (result.verdict, result.exit_code, result.signal) == (Verdict.TIME, None, None)
    assert result.stdout in (b"ready\n", b""), "what it wrote before is kept"
    ends_on_host(marker)


def test_timeout_names_the_knob(box: Sandbox) -> None:
    result = box.exec(["sleep", "1000"], limits=Limits(wall_s=0.2))
    assert result.verdict is Verdict.TIME
    assert "wall_s=0.2" in result.detail


def test_process_that_ignores_signals_ends_in_time(box: Sandbox) -> None:
    result = box.exec(["sh", "-c", "trap '' TERM INT HUP QUIT; while :; do :; done"], limits=Limits(wall_s=0.3))
    assert result.verdict is Verdict.TIME


def test_limits_of_the_box_hold_unless_a_call_has_its_own(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(limits=Limits(output_bytes=10))
    assert box.exec(["echo", "x" * 20]).verdict is Verdict.OUTPUT
    assert box.exec(["echo", "x" * 20], limits=Limits()).ok


def test_two_boxes_share_nothing(make_box: Callable[..., Sandbox]) -> None:
    one, other = make_box(), make_box()
    one.exec(["sh", "-c", "echo secret | tee /workspace/a /tmp/a /dev/shm/a"])
    assert other.exec(["sh", "-c", "cat /workspace/a /tmp/a /dev/shm/a"]).stdout == b""


def test_threads_may_use_one_box_at_once(box: Sandbox) -> None:
    def work(number: int) -> None:
        for turn in range(5):
            text = f"{number}-{turn}"
            result = box.exec(["sh", "-c", 'cat; printf " %s" "$1"', "sh", text], stdin=text.encode())
            assert result.stdout == f"{text} {text}".encode()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_slow_call_of_one_thread_does_not_hold_back_another(box: Sandbox) -> None:
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(box.exec, ["sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo went"])
        box.write("go", b"")
        assert slow.result(30).stdout == b"went\n"


def test_output_longer_than_any_message_comes_whole(box: Sandbox) -> None:
    limits = Limits(output_bytes=256_000_000, wall_s=120)
    result = box.exec(["sh", "-c", "head -c 70000000 /dev/zero; echo end; echo err >&2"], limits=limits)
    assert result.ok
    assert (len(result.stdout), result.stdout[-4:], result.stderr) == (70_000_004, b"end\n", b"err\n")
    assert result.usage.bytes == 70_000_008
