"""`harena run`, `exec` and `shell`: a program, a command or a terminal in a fresh box."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, BinaryIO

from harena.cli import USAGE, fail
from harena.command import print_json

if TYPE_CHECKING:
    from harena.sandbox.box import Sandbox
    from harena.sandbox.process import Process
    from harena.sandbox.spec import Limits, Result, Spec

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


def run(args: argparse.Namespace) -> int:
    words = [*args.args, *args.rest]
    if args.code is not None:
        if args.file is not None:
            words.insert(0, args.file)  # as in Python: all words after -c belong to the program
        if args.preload:
            return _run_forked(args, "-c", args.code.encode(), words)
        with _box(args) as box:
            return _execute(box, ["python3", "-c", args.code, *words], args)
    if args.file is None:
        return fail(USAGE, "run needs a FILE or -c CODE", "see `harena run --help`")
    if args.file == args.stdin == "-":
        return fail(USAGE, "the program and its input cannot both come from stdin", "give the program as a FILE")
    name = "stdin.py" if args.file == "-" else os.path.basename(args.file)
    try:
        source = sys.stdin.buffer.read() if args.file == "-" else _read(args.file)
    except OSError as error:
        return fail(USAGE, f"cannot read {args.file}: {error.strerror}", "give the path of a Python file")
    if args.preload:
        return _run_forked(args, name, source, words)
    with _box(args) as box:
        box.write(name, source)
        return _execute(box, ["python3", name, *words], args)


def _run_forked(args: argparse.Namespace, name: str, source: bytes, words: list[str]) -> int:
    from harena.sandbox.pool import SandboxPool

    if args.allow or args.forward:
        return fail(USAGE, "--preload does not go with a network", "leave out --preload, or --allow and --forward")
    # compile() decodes a file as Python itself does, and keeps its name in tracebacks.
    code = f"compile({source!r}, {name!r}, 'exec')"
    program = f"import sys; sys.argv[:] = {[name, *words]!r}; exec({code}, {{'__name__': '__main__'}})"
    with SandboxPool(_spec(args), warm=1, max_live=1, limits=_limits(args)) as pool:
        result = pool.map([program], stdin=[_stdin(args)])[0]
    if not args.json:
        _write(sys.stdout.buffer, result.stdout)
        _write(sys.stderr.buffer, result.stderr)
    return _finish(result, args)


def exec(args: argparse.Namespace) -> int:
    argv = [*args.command, *args.rest]
    if not argv:
        return fail(USAGE, "exec needs a command", "for example `harena exec -- ls -la /`")
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
        print_json(result.as_json())
    elif verdict not in {"ok", "exit"}:
        options = " or ".join(f"--{LIMIT_OPTIONS[name]}" for name in result.verdict.limits)
        hint = f"; raise {options}" if options else ""
        print(f"harena: {verdict}: {result.detail}{hint}", file=sys.stderr)
    elif not result.started:
        print(f"harena: {result.detail}; `harena shell` shows what is in a box", file=sys.stderr)
    if result.network is not None and not args.json:
        for denied in result.network.denied:
            times = f", {denied.count} times" if denied.count > 1 else ""
            print(f"harena: network: refused {denied.target}: {denied.reason}{times}", file=sys.stderr)
    return exit_code(result)


def exit_code(result: Result) -> int:
    """Exit code of a result, by the table in `harena run --help`."""
    if result.verdict.shell_code is not None:
        return result.verdict.shell_code
    if result.exit_code is None:
        return 128 + (result.signal or 9)
    return result.exit_code


def shell(args: argparse.Namespace) -> int:
    argv = ["python3"] if args.python else ["bash"] if os.path.exists("/bin/bash") else ["sh"]
    limits = _limits(args, wall_s=DAY_S, output_bytes=256 << 20)
    with _box(args, limits) as box:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            args.json = False
            with box.start(argv) as process:
                return _finish(_follow(process, sys.stdin.buffer.read()), args)
        reach = f"network to {', '.join(args.allow)}" if args.allow else "no network"
        print(f"box {box.id}: {reach}; /workspace is writable and deleted at the end; leave with exit or Ctrl-D")
        env = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
        size = os.get_terminal_size()
        with box.start(argv, env={**env, "PS1": r"box:\w\$ "}, pty=True, rows=size.lines, cols=size.columns) as process:
            with _raw_terminal(process):
                _converse(process)
            return exit_code(process.wait())


@contextlib.contextmanager
def _box(args: argparse.Namespace, limits: Limits | None = None) -> Generator[Sandbox]:
    from harena.sandbox.box import Sandbox

    with contextlib.ExitStack() as stack:
        ports = [_ports(text) for text in args.forward]
        box = stack.enter_context(Sandbox(_spec(args), limits=limits or _limits(args)))
        for local, port in ports:
            from harena.sandbox.forward import Forward

            forward = stack.enter_context(Forward(box, port, local))
            print(f"harena: 127.0.0.1:{forward.local} leads to port {port} of the box", file=sys.stderr)
        yield box


def _ports(text: str) -> tuple[int, int]:
    from harena.errors import SpecError

    local, _, port = text.rpartition(":")
    if (
        not all(part.isascii() and part.isdecimal() and int(part) <= 65535 for part in (local or port, port))
        or port == "0"
    ):
        raise SpecError(f"--forward {text}: give PORT or LOCAL:PORT, such as 8080 or 9000:8080")
    return int(local or port), int(port)


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


def _spec(args: argparse.Namespace) -> Spec:
    from harena.sandbox.spec import Spec

    network = None
    if args.allow:
        from harena.sandbox.network import Network

        network = Network(allow=args.allow)
    return Spec(packages=tuple(args.package), preload=tuple(getattr(args, "preload", ())), network=network)


def _limits(args: argparse.Namespace, **defaults: Any) -> Limits:
    from harena.sandbox.spec import Limits

    given = {field: getattr(args, name) for field, name in LIMIT_OPTIONS.items() if getattr(args, name) is not None}
    return Limits(**(defaults | given))


def _stdin(args: argparse.Namespace) -> bytes:
    return sys.stdin.buffer.read() if args.stdin == "-" else (args.stdin or "").encode()


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
