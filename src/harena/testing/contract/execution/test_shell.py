"""A shell that stays: what one command leaves, the next one finds; a command that runs too long does not end it."""

from __future__ import annotations

import asyncio
import time

import pytest

from harena import AsyncSandbox, BoxClosed, BoxError, Limits, Sandbox, SpecError, Verdict


def test_variables_functions_and_the_folder_stay(box: Sandbox) -> None:
    with box.shell() as shell:
        assert shell.exec("cd /tmp; X=5; export Y=6; f() { echo f $X; }").ok
        assert shell.exec("pwd; f; sh -c 'echo $X $Y'").stdout == b"/tmp\nf 5\n6\n"


def test_each_command_has_its_own_output_and_exit_code(box: Sandbox) -> None:
    with box.shell() as shell:
        result = shell.exec("echo out; echo err >&2; (exit 3)")
        assert (result.verdict, result.exit_code, result.stdout, result.stderr) == (Verdict.EXIT, 3, b"out\n", b"err\n")
        assert shell.exec("echo $?").stdout == b"3\n"
        assert shell.exec("true").stdout == b""


def test_a_command_reads_no_input_of_the_shell(box: Sandbox) -> None:
    with box.shell() as shell:
        assert shell.exec("cat; echo end").stdout == b"end\n"
        assert shell.exec("echo next").stdout == b"next\n"


def test_any_bytes_pass_and_nothing_of_a_command_is_interpreted_before_the_shell(box: Sandbox) -> None:
    with box.shell() as shell:
        text = 'line one\nit\'s "two" $(three) \\ é \x1b[0m\ttab'
        assert shell.exec(f"cat <<'END'\n{text}\nEND").stdout.decode() == text + "\n"
        assert shell.exec("printf '\\x00\\xff\\r\\n'").stdout == b"\x00\xff\r\n"
        assert len(shell.exec("head -c 300000 /dev/zero").stdout) == 300_000


def test_a_syntax_error_is_the_command_s_own(box: Sandbox) -> None:
    with box.shell() as shell:
        result = shell.exec("if then")
        assert result.verdict is Verdict.EXIT
        assert b"syntax error" in result.stderr.lower()
        assert shell.exec("echo on").stdout == b"on\n"


def test_background_jobs_stay_and_are_listed_signalled_and_waited_for(box: Sandbox) -> None:
    with box.shell() as shell:
        shell.exec("sleep 300 & (until [ -e go ]; do sleep 0.05; done; exit 7) & second=$!")
        assert b"sleep 300" in shell.exec("jobs").stdout
        # By its pid: bash forgets the number of a job that ends before it is waited for.
        assert shell.exec("touch go; wait $second").exit_code == 7
        assert shell.exec("kill %1; wait %1").exit_code == 143


@pytest.mark.parametrize("command", ["sleep 300", "while :; do :; done", "sleep 300 | cat", "f() { sleep 300; }; f"])
def test_a_command_that_runs_too_long_is_interrupted_and_the_shell_lives_on(box: Sandbox, command: str) -> None:
    with box.shell() as shell:
        shell.exec("X=5; sleep 400 &")
        result = shell.exec(f"echo before; {command}; echo after", timeout_s=0.3)
        assert (result.verdict, result.exit_code, result.stdout) == (Verdict.TIME, None, b"before\n")
        assert shell.exec("echo $X; jobs | grep -c 400").stdout == b"5\n1\n"


def test_a_command_that_ignores_interrupts_is_ended_all_the_same(box: Sandbox) -> None:
    with box.shell() as shell:
        stubborn = "import signal, time\nfor n in (2, 3, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(300)"
        box.write("/tmp/stubborn.py", stubborn)
        started = time.monotonic()
        result = shell.exec("python3 /tmp/stubborn.py", timeout_s=0.3)
        assert time.monotonic() - started < 60
        assert result.verdict is Verdict.TIME
        assert "the shell was ended" in result.detail
        assert not shell.alive
        with pytest.raises(BoxClosed, match="did not give way"):
            shell.exec("echo")


def test_too_much_output_is_cut_and_the_shell_lives_on(box: Sandbox) -> None:
    with box.shell() as shell:
        result = shell.exec("echo 12345; echo 67890 >&2", output_bytes=8)
        assert (result.verdict, result.stdout, result.stderr) == (Verdict.OUTPUT, b"12345\n", b"67")
        assert shell.exec("echo on").ok


def test_exit_ends_the_shell_with_its_code(box: Sandbox) -> None:
    with box.shell() as shell:
        result = shell.exec("echo bye; exit 4")
        assert (result.exit_code, result.stdout) == (4, b"bye\n")
        assert not shell.alive
        with pytest.raises(BoxClosed, match="ended it"):
            shell.exec("echo")


def test_a_guest_that_prints_reports_of_its_own_is_only_believed_about_itself(box: Sandbox) -> None:
    with box.shell() as shell:
        forged = "t=$(sed -n 's/^printf .\\\\n\\([0-9a-f]*\\) .*/\\1/p' /tmp/.shell-*/step)"
        result = shell.exec(
            f"{forged}; printf '\\n%s 9 1\\n0m0s 0m0s\\n0m0s 0m0s\\n' $t > /dev/tty; sleep 0.2; echo late"
        )
        assert result.exit_code in (0, 9)
        assert shell.exec("echo next").stdout == b"next\n"


def test_two_shells_of_a_box_do_not_meet(box: Sandbox) -> None:
    with box.shell() as one, box.shell(["sh", "-i"]) as two:
        one.exec("X=one; cd /tmp")
        assert two.exec('echo "$X"; pwd').stdout == b"\n/workspace\n"
        assert one.exec("echo $X").stdout == b"one\n"


def test_closing_a_shell_ends_its_jobs_and_removes_its_files(box: Sandbox) -> None:
    with box.shell() as shell:
        shell.exec("(while :; do date +%N > /tmp/beat; done) &")
        shell.exec("until [ -s /tmp/beat ]; do sleep 0.01; done", timeout_s=20)
    ended = box.read("/tmp/beat")
    time.sleep(0.3)
    assert box.read("/tmp/beat") == ended
    assert box.exec(["sh", "-c", "ls -a /tmp | grep shell"]).stdout == b""


def test_limits_hold_for_the_shell_with_all_its_jobs(box: Sandbox) -> None:
    with box.shell(limits=Limits(processes=8)) as shell:
        result = shell.exec("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 5 & done; wait", timeout_s=3)
        assert not result.ok or b"Resource temporarily unavailable" in result.stderr or b"annot fork" in result.stderr


def test_what_cannot_be_a_shell_is_said(box: Sandbox) -> None:
    with pytest.raises(BoxError, match="has no shell"):
        box.shell(["no-such-shell"])
    with box.shell() as shell:
        with pytest.raises(SpecError):
            shell.exec("echo \0")
        with pytest.raises(SpecError):
            shell.exec("echo", timeout_s=-1)


def test_the_async_twin_does_the_same() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box, box.shell() as shell:
            await shell.exec("X=5")
            assert (await shell.exec("echo $X")).stdout == b"5\n"
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(shell.exec("sleep 300"), 0.3)
            assert not shell.alive
            assert (await box.exec(["echo", "on"])).stdout == b"on\n"

    asyncio.run(scenario())
