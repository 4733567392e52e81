"""The harena command: what it prints, where, and with which exit code. Real boxes behind it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harena import IsolationUnavailable, Result, Sandbox, Usage, Verdict, cli
from harena.cli.host import live_boxes
from harena.cli.run import exit_code
from harena.sandbox import box as sandbox_box
from support import busy

COMMAND = [sys.executable, "-m", "harena.cli"]
Capture = pytest.CaptureFixture[str]


def result(verdict: Verdict, *, exit_code: int | None = None, signal: int | None = None) -> Result:
    usage = Usage(cpu_s=0, wall_s=0, peak_mb=0, bytes=0)
    return Result(verdict=verdict, exit_code=exit_code, signal=signal, stdout=b"", stderr=b"", usage=usage)


def eventually(claim: Callable[[], bool], within_s: float = 60) -> bool:
    end = time.monotonic() + within_s
    while not claim() and time.monotonic() < end:
        time.sleep(0.01)
    return claim()


# ---- help and exit codes ----


def test_help_is_quick_because_it_loads_nothing_behind_it() -> None:
    """Not the doctor, asyncio or a backend; each would double the time."""
    source = "import sys\nfrom harena import cli\ntry: cli.main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout
    loaded = set(shown.splitlines()[-1].split())
    heavy = {
        "asyncio",
        "harena.backends.local",
        "harena.sandbox.doctor",
        "harena.sandbox.aio",
        "harena.cli.demo",
        "harena.cli.run",
        "ctypes",
    }
    assert loaded & heavy == set()


@pytest.mark.serial
def test_help_comes_in_less_than_100_ms_beyond_python_itself() -> None:
    def seconds(command: list[str]) -> float:
        start = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        return time.monotonic() - start

    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    seconds([*COMMAND, "--help"])
    with busy.Span() as span:
        bare = min(seconds([sys.executable, "-c", "pass"]) for _ in range(5))
        shown = min(seconds([*COMMAND, "--help"]) for _ in range(7))
    assert shown - bare < span.limit(0.1)


def test_the_help_lists_every_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr()
    assert shown.err == ""
    names = [name for names in cli.PARTS.values() for name in names]
    assert all(f"\n    {name}" in shown.out for name in ["run", "exec", "doctor", *names])


@pytest.mark.parametrize("command", ["run", "exec", "shell", "doctor", "bench", "demo", "boxes", "version"])
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (result(Verdict.OK, exit_code=0), 0),
        (result(Verdict.EXIT, exit_code=7), 7),
        (result(Verdict.SIGNAL, signal=11), 139),
        (result(Verdict.SIGNAL), 137),
        (result(Verdict.TIME), 124),
        (result(Verdict.MEMORY, exit_code=1), 137),
        (result(Verdict.PROCESSES, exit_code=1), 122),
        (result(Verdict.OUTPUT), 123),
        (result(Verdict.POLICY, signal=31), 159),
    ],
)
def test_each_verdict_has_an_exit_code(given: Result, code: int) -> None:
    assert exit_code(given) == code


def test_every_exit_code_is_in_the_help(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    shown = capsys.readouterr().out
    assert all(
        str(code) in shown
        for code in (*(verdict.shell_code for verdict in Verdict if verdict.shell_code), 2, 3, 125, 126, 127, 130)
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "harena: run needs a FILE or -c CODE; see `harena run --help`\n"),
        (["run", "/nowhere.py"], "harena: cannot read /nowhere.py: No such file or directory; give the path of a "),
        (["run", "-", "--stdin", "-"], "harena: the program and its input cannot both come from stdin; "),
        (["exec"], "harena: exec needs a command; for example `harena exec -- ls -la /`\n"),
        (["run", "-c", "1", "--memory", "3"], "harena: memory_mb=3: must be a number from 16 to "),
        (["run", "-c", "1", "--package", "no-such-thing"], "harena: packages: no-such-thing is not installed "),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(words: list[str], said: str, capsys: Capture) -> None:
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_host_that_cannot_isolate_is_one_line_and_exit_code_3(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise IsolationUnavailable("user namespaces are off", fix="turn them on")

    monkeypatch.setattr(sandbox_box, "Sandbox", refuse)
    assert cli.main(["run", "-c", "print(1)"]) == 3
    assert capsys.readouterr().err == "harena: user namespaces are off; turn them on\n"


# ---- run and exec ----


def test_a_file_runs_with_its_arguments_and_input(tmp_path: Path, capfd: Capture) -> None:
    program = tmp_path / "tool.py"
    program.write_text("import sys\nprint(sys.argv, sys.stdin.read())\nprint('note', file=sys.stderr)\nsys.exit(7)\n")
    assert cli.main(["run", "--stdin", "text", str(program), "a", "--", "--wall", "b"]) == 7
    shown = capfd.readouterr()
    assert shown.out == "['tool.py', 'a', '--wall', 'b'] text\n"
    assert shown.err == "note\n"


def test_code_runs_with_its_arguments(capfd: Capture) -> None:
    assert cli.main(["run", "-c", "import sys; print(sys.argv)", "a", "b"]) == 0
    assert capfd.readouterr().out == "['-c', 'a', 'b']\n"


def test_a_program_sees_no_file_beside_it(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "look.py").write_text(
        "import os\nprint(os.listdir('.'), os.path.exists(os.environ.get('HOME', '/root')))"
    )
    assert cli.main(["run", str(tmp_path / "look.py")]) == 0
    assert capfd.readouterr().out == "['look.py'] True\n"


@pytest.mark.parametrize(
    ("code", "limit", "rc", "said"),
    [
        ("while True: pass", ["--wall", "0.3"], 124, "time: python3 ran past wall_s=0.3; raise --wall or --cpu"),
        ("while True: pass", ["--cpu", "0.3"], 124, "time: python3 used more than cpu_s=0.3; raise --wall or --cpu"),
        ("'a' * 10**10", ["--memory", "100"], 137, "memory: python3 needed more than memory_mb=100; raise --memory"),
        (
            "print('x' * 9999)",
            ["--output", "99"],
            123,
            "output: python3 wrote more than output_bytes=99; raise --output",
        ),
    ],
)
def test_a_limit_is_named_with_the_option_that_raises_it(
    code: str, limit: list[str], rc: int, said: str, capfd: Capture
) -> None:
    assert cli.main(["run", "-c", code, *limit]) == rc
    assert capfd.readouterr().err.splitlines()[-1] == f"harena: {said}"


def test_json_has_verdict_output_and_usage(capfd: Capture) -> None:
    assert cli.main(["run", "--json", "-c", "import sys; print(6 * 7); sys.exit(3)"]) == 3
    data = json.loads(capfd.readouterr().out)
    assert (data["verdict"], data["exit_code"], data["stdout"]) == ("exit", 3, "42\n")
    assert set(data["usage"]) == {"cpu_s", "wall_s", "peak_mb", "bytes"}


def test_output_comes_while_the_program_runs() -> None:
    source = "import time; print('early', flush=True); time.sleep(100)"
    with subprocess.Popen([*COMMAND, "run", "-c", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        start = time.monotonic()
        assert process.stdout.readline() == b"early\n"
        assert time.monotonic() - start < 60
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_ctrl_c_ends_the_box_without_a_traceback() -> None:
    command = [*COMMAND, "exec", "--", "sh", "-c", "echo up; sleep 20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.communicate()[1] == b""
    assert eventually(lambda: all(box["owner"] != process.pid for box in live_boxes()))


def test_a_reader_that_leaves_is_no_error() -> None:
    command = [*COMMAND, "run", "-c", "for n in range(100000): print(n)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 141


def test_input_that_is_not_read_holds_nothing_up(capfd: Capture) -> None:
    assert cli.main(["exec", "--stdin", "x" * 1_000_000, "--", "echo", "done"]) == 0
    assert capfd.readouterr().out == "done\n"


def test_stdin_is_passed_on_when_asked() -> None:
    shown = subprocess.run([*COMMAND, "exec", "--stdin", "-", "cat"], input=b"through", capture_output=True, check=True)
    assert shown.stdout == b"through"


def test_a_program_can_come_from_stdin() -> None:
    shown = subprocess.run([*COMMAND, "run", "-"], input=b"print(6 * 7)", capture_output=True, check=True)
    assert shown.stdout == b"42\n"


def test_a_command_that_is_not_there_is_127(capfd: Capture) -> None:
    assert cli.main(["exec", "no-such-command"]) == 127
    assert capfd.readouterr().err.startswith(
        "harena: no-such-command could not be started: No such file or directory; "
    )


def test_preloaded_modules_are_there_before_the_program(tmp_path: Path, capfd: Capture) -> None:
    program = tmp_path / "tool.py"
    program.write_text("import sys\nprint('wave' in sys.modules, sys.argv, input(), __name__)\nraise SystemExit(4)")
    assert cli.main(["run", "--preload", "wave", "--stdin", "hi", str(program), "a"]) == 4
    assert capfd.readouterr().out == "True ['tool.py', 'a'] hi __main__\n"


# ---- shell ----


class Terminal:
    """A terminal with the command in it, as a person has one."""

    def __init__(self, *words: str) -> None:
        self.shown = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [*COMMAND, *words])

    def until(self, text: bytes, within_s: float = 60) -> None:
        end, start = time.monotonic() + within_s, len(self.shown)
        while text not in self.shown[start:]:
            assert time.monotonic() < end, self.shown
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown += os.read(self.fd, 65536)

    def type(self, text: bytes, until: bytes) -> None:
        os.write(self.fd, text)
        self.until(until)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def leave(self, text: bytes) -> tuple[int, bool]:
        """The exit code, and whether the terminal is as it was."""
        os.write(self.fd, text)
        while True:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self.shown += data
        sane = bool(termios.tcgetattr(self.fd)[3] & termios.ICANON)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code, sane


def test_a_shell_is_a_terminal_in_a_box() -> None:
    terminal = Terminal("shell")
    terminal.until(b"$ ")
    terminal.type(b"hostname; tty\n", b"/dev/pts/0")
    terminal.resize(55, 77)
    time.sleep(0.2)
    terminal.type(b"stty size\n", b"55 77")
    terminal.type(b"sleep 20\n", b"\n")
    time.sleep(0.2)
    terminal.type(b"\x03", b"$ ")
    assert terminal.leave(b"exit 5\n") == (5, True)


def test_a_python_prompt_keeps_what_was_typed() -> None:
    terminal = Terminal("shell", "--python")
    terminal.until(b">>> ")
    terminal.type(b"x = 40\n", b">>> ")
    terminal.type(b"x + 2\n", b">>> ")  # a key before that would reach a terminal that is not in the prompt's mode
    assert b"42" in terminal.shown
    assert terminal.leave(b"\x04") == (0, True)


def test_what_is_pasted_arrives_whole() -> None:
    lines = b"".join(b"%06d pasted\n" % n for n in range(3000))
    terminal = Terminal("shell")
    terminal.until(b"$ ")
    os.write(terminal.fd, b"stty -echo; sleep 0.5; head -c %d | cksum; stty echo\n" % len(lines))
    for start in range(0, len(lines), 512):
        os.write(terminal.fd, lines[start : start + 512])
    wanted = subprocess.run(["cksum"], input=lines, capture_output=True, check=True).stdout.split()
    terminal.until(b" ".join(wanted))
    assert terminal.leave(b"exit\n") == (0, True)


def test_a_shell_without_a_terminal_runs_what_it_is_sent() -> None:
    shown = subprocess.run([*COMMAND, "shell"], input=b"echo $((6 * 7)); exit 3", capture_output=True)
    assert (shown.stdout, shown.returncode) == (b"42\n", 3)


# ---- the others ----


def test_boxes_lists_live_boxes_with_their_owner(capsys: Capture) -> None:
    with Sandbox() as box:
        assert cli.main(["boxes", "--json"]) == 0
        assert {"id": box.id, "owner": os.getpid()} in [
            {"id": live["id"], "owner": live["owner"]} for live in json.loads(capsys.readouterr().out)
        ]
        assert cli.main(["boxes"]) == 0
        assert box.id in capsys.readouterr().out
    assert box.id not in [live["id"] for live in live_boxes()]


def test_the_demo_ends_well(capfd: Capture) -> None:
    assert cli.main(["demo"]) == 0
    shown = capfd.readouterr().out
    assert "All as it should be." in shown
    assert all(verdict.value in shown for verdict in Verdict if verdict is not Verdict.POLICY)


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_is_the_packages(word: str, capsys: Capture) -> None:
    assert cli.main([word]) == 0
    assert capsys.readouterr().out.startswith("harena 0.")
