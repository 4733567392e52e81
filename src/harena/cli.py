"""The `harena` command. The code of a subcommand is imported only when it runs, so that help appears at once."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from harena.errors import HarenaError
    from harena.sandbox.box import Sandbox
    from harena.sandbox.doctor import Report
    from harena.sandbox.process import Process
    from harena.sandbox.spec import Limits, Result, Spec

USAGE, UNAVAILABLE, PLATFORM, INTERRUPTED, BROKEN_PIPE = 2, 3, 125, 130, 141
LIMIT_OPTIONS = {
    "wall_s": "wall",
    "cpu_s": "cpu",
    "memory_mb": "memory",
    "processes": "processes",
    "output_bytes": "output",
}
"""The option that sets each field of Limits."""
DAY_S = 86400.0
KEYS, PASTE = 32, 65536
"""Bytes of input written to the terminal at once, and bytes of input buffered for it."""

EXIT_CODES = """\
exit codes:
  the program's own exit code, if it ended by itself (126 and 127: it could not be started)
  2    invalid argument
  3    this host cannot isolate programs; the message says what is missing and how to fix it
  122  ended at the limit on processes and threads      124  ended at the limit on time
  123  ended at the limit on output                     137  ended at the limit on memory
  128+n  ended by signal n                              159  ended for a forbidden system call
  125  Harena failed, not the program                   130  interrupted by Ctrl-C
A program can choose one of these codes itself. --json prints the verdict by name."""

EXAMPLES = """\
examples:
  harena run script.py                     run a file in a fresh box, without network or your files
  harena run -c 'print(6 * 7)' --json      print the output, verdict and usage as JSON
  harena exec -- sh -c 'ls -la /'          run any command in a fresh box
  harena shell                             open a terminal in a box
  harena match pong a.py b.py              play two agents against each other, each in its own box
  harena up                                start an arena with a web page on http://127.0.0.1:8000
  harena submit agent.py --env pong-v1     submit an agent to the arena
  harena doctor                            attack a box on this machine and report what holds"""

PARTS = {
    "harena.api.cli": {
        "up": "start an arena: API, web page, workers and gRPC executor in one command",
    },
    "harena.client.cli": {
        "submit": "submit an agent to an arena",
        "status": "show the state of a submission",
        "logs": "show what your submission printed",
        "leaderboard": "show a leaderboard",
        "watch": "follow a match or a board live",
        "challenge": "let your agent play a chosen opponent, without changing ratings",
        "export": "download boards, matches, ratings or submissions",
        "gradio": "serve a small web page for Spaces and notebooks",
    },
    "harena.match.cli.commands": {
        "envs": "list the games that agents can play",
        "match": "play agents against each other: a match, a series or a tournament",
        "replay": "show, convert or verify the replay of a match",
        "validate": "check an agent: load it in a box and let it play a short game",
        "executor": "serve matches over gRPC",
    },
    "harena.azr.cli": {
        "azr": "train a model by self-play (Absolute Zero), evaluate it, read the tasks it proposes",
    },
    "harena.arena.cli": {
        "arena": "re-run stored results of an arena and compare them",
        "ratings": "rebuild an arena's ratings from its match log",
        "keys": "create, list, rotate and revoke the API keys of an arena",
    },
}
"""Commands by the module that defines their options in `fill`. Only the module of the chosen command is imported."""

RUN_TEXT = """\
Runs a Python file or a piece of code in a fresh box, which is removed afterwards. The program sees none of your files
except this one. Its output is passed on immediately and unchanged: pipe it through `cat -v` if it must not control your
terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    words, rest = _split(list(sys.argv[1:] if argv is None else argv))
    parser = _parser(words[:1])
    if not words:
        parser.print_help()
        return USAGE
    args = parser.parse_args(words)
    args.rest = rest
    from harena.errors import HarenaError

    try:
        return args.action(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone. Keep Python from reporting that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except HarenaError as error:
        return _explain(error)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Separate the words after the first `--`, which belong to the program."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser(command: Sequence[str]) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="harena",
        description="Run, match, rank and train untrusted agents in isolated boxes.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        name: str, action: Callable[[argparse.Namespace], int], text: str, *, more: str = "", epilog: str | None = None
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=more or text, epilog=epilog, formatter_class=raw)
        command.set_defaults(action=action)
        return command

    run = add("run", _run, "run a Python file or a piece of code in a fresh box", more=RUN_TEXT, epilog=EXIT_CODES)
    run.usage = "harena run [options] (FILE | -c CODE) [--] [ARGS...]"
    run.add_argument("file", nargs="?", metavar="FILE", help="a Python file; - reads it from stdin")
    run.add_argument(
        "args", nargs="*", metavar="ARGS", help="arguments of the program; put -- before arguments that begin with -"
    )
    run.add_argument("-c", dest="code", metavar="CODE", help="the program as text")
    if "run" in command:
        _add_program_options(run)
    run.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MOD",
        help="import this module first, and run the program in a fork of that interpreter",
    )

    execute = add("exec", _exec, "run any command in a fresh box", epilog=EXIT_CODES)
    execute.usage = "harena exec [options] -- COMMAND [ARGS...]"
    execute.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if "exec" in command:
        _add_program_options(execute)

    shell = add("shell", _shell, "open a terminal in a fresh box; its files are deleted at the end")
    shell.add_argument("--python", action="store_true", help="start Python instead of a shell")
    if "shell" in command:
        _add_limits(shell)

    doctor = add(
        "doctor",
        _doctor,
        "attack a box on this machine and report what holds",
        epilog="exit codes: 0 every probe held, 1 a probe failed, 3 this host cannot isolate programs",
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")

    bench = add("bench", _bench, "run the benchmarks")
    bench.add_argument("what", choices=["sandbox", "match"])
    bench.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    bench.add_argument("--quick", action="store_true", help="fewer repetitions")

    add("demo", _demo, "show in a few seconds what a box does and what it withstands")
    boxes = add("boxes", _boxes, "list the running boxes of this user")
    boxes.add_argument("--json", action="store_true", help="print the list as JSON")
    for module, names in PARTS.items():
        for name, text in names.items():
            part = commands.add_parser(name, help=text, description=text, formatter_class=raw)
            if name in command:
                importlib.import_module(module).fill(name, part)
    add("version", _version, "print the version")
    return parser


def _add_program_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stdin", metavar="TEXT", help="input of the program; - passes on the stdin of this command")
    _add_limits(command)
    command.add_argument("--json", action="store_true", help="print verdict, output and usage as JSON")


def _add_limits(command: argparse.ArgumentParser) -> None:
    """Only for the command that was given: the defaults come from a module that the others need not load."""
    from harena.sandbox.spec import Limits

    usual = Limits()
    group = command.add_argument_group("limits and packages")
    group.add_argument("--wall", type=float, metavar="S", help=f"seconds of wall time ({usual.wall_s:g})")
    group.add_argument("--cpu", type=float, metavar="S", help="seconds of CPU time (unlimited)")
    group.add_argument("--memory", type=int, metavar="MB", help=f"megabytes of memory ({usual.memory_mb})")
    group.add_argument(
        "--processes", type=int, metavar="N", help=f"number of processes and threads at once ({usual.processes})"
    )
    group.add_argument(
        "--output", type=int, metavar="BYTES", help=f"bytes of stdout and stderr together ({usual.output_bytes})"
    )
    group.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="an installed package that the program may import",
    )


# ---- run, exec, shell ----


def _run(args: argparse.Namespace) -> int:
    words = [*args.args, *args.rest]
    if args.code is not None:
        if args.file is not None:
            words.insert(0, args.file)  # as in Python: all words after -c belong to the program
        if args.preload:
            return _run_forked(args, "-c", args.code.encode(), words)
        with _box(args) as box:
            return _execute(box, ["python3", "-c", args.code, *words], args)
    if args.file is None:
        return _fail(USAGE, "run needs a FILE or -c CODE", "see `harena run --help`")
    if args.file == args.stdin == "-":
        return _fail(USAGE, "the program and its input cannot both come from stdin", "give the program as a FILE")
    name = "stdin.py" if args.file == "-" else os.path.basename(args.file)
    try:
        source = sys.stdin.buffer.read() if args.file == "-" else _read(args.file)
    except OSError as error:
        return _fail(USAGE, f"cannot read {args.file}: {error.strerror}", "give the path of a Python file")
    if args.preload:
        return _run_forked(args, name, source, words)
    with _box(args) as box:
        box.write(name, source)
        return _execute(box, ["python3", name, *words], args)


def _run_forked(args: argparse.Namespace, name: str, source: bytes, words: list[str]) -> int:
    from harena.sandbox.pool import SandboxPool

    # compile() decodes a file as Python itself does, and keeps its name in tracebacks.
    code = f"compile({source!r}, {name!r}, 'exec')"
    program = f"import sys; sys.argv[:] = {[name, *words]!r}; exec({code}, {{'__name__': '__main__'}})"
    with SandboxPool(_spec(args), warm=1, max_live=1, limits=_limits(args)) as pool:
        result = pool.map([program], stdin=[_stdin(args)])[0]
    if not args.json:
        _write(sys.stdout.buffer, result.stdout)
        _write(sys.stderr.buffer, result.stderr)
    return _finish(result, args)


def _exec(args: argparse.Namespace) -> int:
    argv = [*args.command, *args.rest]
    if not argv:
        return _fail(USAGE, "exec needs a command", "for example `harena exec -- ls -la /`")
    with _box(args) as box:
        return _execute(box, argv, args)


def _execute(box: Sandbox, argv: list[str], args: argparse.Namespace) -> int:
    stdin = _stdin(args)
    if args.json:
        return _finish(box.exec(argv, stdin=stdin), args)
    with box.start(argv) as process:
        return _finish(_follow(process, stdin), args)


def _follow(process: Process, stdin: bytes) -> Result:
    """Pass the output on as soon as it arrives."""
    import select
    import threading

    feeder = threading.Thread(target=_feed, args=(process, stdin), daemon=True)
    feeder.start()
    assert process.stderr is not None
    ways = {process.stdout: sys.stdout.buffer, process.stderr: sys.stderr.buffer}
    while live := [stream for stream in ways if stream.fileno() >= 0]:
        for stream in select.select(live, [], [])[0]:
            _write(ways[stream], stream.read())
    feeder.join()  # ends with the process at the latest; `wait` closes the stream it writes to
    return process.wait()


def _feed(process: Process, stdin: bytes) -> None:
    with contextlib.suppress(OSError):  # the program may not read its input
        process.write(stdin)
    process.close_stdin()


def _finish(result: Result, args: argparse.Namespace) -> int:
    verdict = result.verdict.value
    if args.json:
        _print_json(result.as_json())
    elif verdict not in {"ok", "exit"}:
        options = " or ".join(f"--{LIMIT_OPTIONS[name]}" for name in result.verdict.limits)
        hint = f"; raise {options}" if options else ""
        print(f"harena: {verdict}: {result.detail}{hint}", file=sys.stderr)
    elif not result.started:
        print(f"harena: {result.detail}; `harena shell` shows what is in a box", file=sys.stderr)
    return exit_code(result)


def exit_code(result: Result) -> int:
    """Exit code of a result, by the table in `harena run --help`."""
    if result.verdict.shell_code is not None:
        return result.verdict.shell_code
    if result.exit_code is None:
        return 128 + (result.signal or 9)
    return result.exit_code


def _shell(args: argparse.Namespace) -> int:
    argv = ["python3"] if args.python else ["bash"] if os.path.exists("/bin/bash") else ["sh"]
    limits = _limits(args, wall_s=DAY_S, output_bytes=256 << 20)
    with _box(args, limits) as box:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            args.json = False
            with box.start(argv) as process:
                return _finish(_follow(process, sys.stdin.buffer.read()), args)
        print(f"box {box.id}: no network; /workspace is writable and deleted at the end; leave with exit or Ctrl-D")
        env = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
        size = os.get_terminal_size()
        with box.start(argv, env={**env, "PS1": r"box:\w\$ "}, pty=True, rows=size.lines, cols=size.columns) as process:
            with _raw_terminal(process):
                _converse(process)
            return exit_code(process.wait())


@contextlib.contextmanager
def _raw_terminal(process: Process) -> Generator[None]:
    """Send every key to the box, and tell it when the window changes its size."""
    import signal
    import termios
    import tty

    fd = sys.stdin.fileno()

    def resize(*_: object) -> None:
        size = os.get_terminal_size()
        with contextlib.suppress(OSError):  # it has just ended
            process.resize(size.lines, size.columns)

    before = termios.tcgetattr(fd)
    handler = signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(fd)
        yield
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _converse(process: Process) -> None:
    """Exchange keys and output. Pasted text is buffered, so that it is not lost and does not delay the output."""
    import select

    typed, open_stdin = b"", True
    while process.stdout.fileno() >= 0:
        reads = [process.stdout, sys.stdin] if open_stdin and len(typed) < PASTE else [process.stdout]
        ready, takes, _ = select.select(reads, [process.stdout] if typed else [], [])
        if process.stdout in takes:
            with contextlib.suppress(OSError):  # the terminal is full, or the process has just ended
                process.write(typed[:KEYS])
                typed = typed[KEYS:]
        if process.stdout in ready:
            _write(sys.stdout.buffer, process.stdout.read())
        if sys.stdin in ready:
            keys = os.read(sys.stdin.fileno(), PASTE)
            typed, open_stdin = typed + keys, bool(keys)


def _box(args: argparse.Namespace, limits: Limits | None = None) -> Sandbox:
    from harena.sandbox.box import Sandbox

    return Sandbox(_spec(args), limits=limits or _limits(args))


def _spec(args: argparse.Namespace) -> Spec:
    from harena.sandbox.spec import Spec

    return Spec(packages=tuple(args.package), preload=tuple(getattr(args, "preload", ())))


def _limits(args: argparse.Namespace, **defaults: Any) -> Limits:
    from harena.sandbox.spec import Limits

    given = {field: getattr(args, name) for field, name in LIMIT_OPTIONS.items() if getattr(args, name) is not None}
    return Limits(**(defaults | given))


def _stdin(args: argparse.Namespace) -> bytes:
    return sys.stdin.buffer.read() if args.stdin == "-" else (args.stdin or "").encode()


# ---- other commands ----


def _doctor(args: argparse.Namespace) -> int:
    from harena.sandbox.doctor import run_doctor

    with _progress("probing") as progress:
        report = run_doctor(progress=progress)
    if args.json:
        _print_json(report.to_json())
    else:
        print(doctor_text(report))
    if report.missing is not None:
        return UNAVAILABLE
    return 0 if report.ok else 1


def doctor_text(report: Report) -> str:
    lines = [f"{name:<10} {value}" for name, value in report.enforcement.items()]
    lines += [f"note       {note}" for note in report.notes]
    if report.missing is not None:
        lines += ["", f"No box can be created: {report.missing}"]
        # The default fix is to run the doctor, which is running already.
        return "\n".join(lines if "harena doctor" in (report.fix or "") else [*lines, f"Fix: {report.fix}"])
    width = max((len(probe.name) for probe in report.probes), default=0)
    group = ""
    for probe in report.probes:
        if group != (group := probe.name.split(".")[0]):
            lines.append("")
        lines.append(f"{'held' if probe.held else 'FAILED':<6}  {probe.name:<{width}}  {probe.detail}")
    held = sum(probe.held for probe in report.probes)
    lines += ["", f"{held} of {len(report.probes)} held"]
    if not report.ok:
        lines[-1] += f", {len(report.probes) - held} FAILED: read them before you run untrusted code here"
    return "\n".join(lines)


def _bench(args: argparse.Namespace) -> int:
    if args.what == "match":
        from harena.match import bench
    else:
        from harena.sandbox import bench

    return bench.main(quick=args.quick, json_file=args.json)


def _demo(args: argparse.Namespace) -> int:
    from harena import demo

    return demo.main()


def _boxes(args: argparse.Namespace) -> int:
    boxes = live_boxes()
    if args.json:
        _print_json(boxes)
    elif not boxes:
        print("no live boxes")
    else:
        print(f"{'box':<14} {'owner':>7}  command")
        for box in boxes:
            print(f"{box['id']:<14} {box['owner']:>7}  {box['command']}")
    return 0


def live_boxes() -> list[dict[str, Any]]:
    """List running boxes from the records of the local backend: one file for each box, which names its owner."""
    folder = importlib.import_module("harena.backends.local.registry").folder()
    boxes: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError, ValueError):  # it has just ended
            owner = int(path.read_text().split()[0])
            with open(f"/proc/{owner}/cmdline", "rb") as file:
                words = file.read(200).replace(b"\0", b" ").decode("utf-8", "replace")
            command = "".join(letter if letter.isprintable() else "?" for letter in words).strip()
            boxes.append({"id": path.name, "owner": owner, "command": command})
    return boxes


def _version(args: argparse.Namespace) -> int:
    from harena import __version__

    print(f"harena {__version__}")
    return 0


# ---- messages ----


def _explain(error: HarenaError) -> int:
    from harena.errors import BackendUnavailable, BoxError, IsolationUnavailable, Retry, SpecError

    match error:
        case IsolationUnavailable():
            return _fail(UNAVAILABLE, error.missing, error.fix)
        case BackendUnavailable():
            return _fail(UNAVAILABLE, str(error), "install the missing package")
        case SpecError():
            return _fail(USAGE, str(error), "see --help")
        case BoxError():
            hints = {Retry.SAFE: "nothing was started, try again", Retry.UNKNOWN: "the program may have run in part"}
            return _fail(PLATFORM, str(error), hints.get(error.retry, "trying again will not help"))
        case _:
            return _fail(PLATFORM, str(error), "")


def _fail(code: int, what: str, hint: str) -> int:
    print(f"harena: {what}; {hint}" if hint else f"harena: {what}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _progress(label: str) -> Generator[Callable[[int, int], None] | None]:
    """Show a progress counter, only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(done: int, total: int) -> None:
        print(f"\r{label} {done}/{total} ", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _print_json(data: object) -> None:
    import json

    print(json.dumps(data, indent=2))


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(main())
