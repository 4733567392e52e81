"""The `harena` command: its options, and the exit codes of errors.

The code of a subcommand is imported only when it runs, so that help appears at once: `run` (also exec and shell),
`host` (doctor, bench, boxes, version, completion, man) and `demo`; the modules in `PARTS` have the others. `greet` and
`reference` (texts made from the parser) are imported only by those that print them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harena.errors import HarenaError

USAGE, UNAVAILABLE, PLATFORM, INTERRUPTED, BROKEN_PIPE = 2, 3, 125, 130, 141
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

OWN = ("run", "exec", "shell", "doctor", "bench", "demo", "boxes", "completion", "man", "version")
"""Commands that are defined here."""

PARTS = {
    "harena.api.cli": {
        "up": "start an arena: API, web page, workers and gRPC executor in one command",
        "worker": "do an arena's jobs from this machine, over HTTP or on its database",
    },
    "harena.client.cli": {
        "submit": "submit an agent to an arena",
        "status": "show the state of a submission",
        "logs": "show what your submission printed",
        "leaderboard": "show a leaderboard",
        "watch": "follow a match or a board live",
        "challenge": "let your agent play a chosen opponent, without changing ratings",
        "export": "download boards, matches, ratings or submissions",
        "teams": "found a team, invite people, join or leave one",
        "webhooks": "have results and changes of rank sent to a URL",
        "gradio": "serve a small web page for Spaces and notebooks",
    },
    "harena.images.cli": {
        "image": "pull, import, list and remove OCI images, without Docker or root",
    },
    "harena.cli.journal": {
        "journal": "show, verify, export or replay the journal of a box",
    },
    "harena.cli.usage": {
        "usage": "show what owners, runs and agents used on a server",
    },
    "harena.cli.top": {
        "top": "watch sessions, pools, verdicts and latencies of a server, or the boxes of this machine",
    },
    "harena.serve.cli": {
        "serve": "serve boxes of this machine to clients elsewhere",
    },
    "harena.adapters.mcp_cli": {
        "mcp": "serve boxes to language models over the Model Context Protocol",
    },
    "harena.operator.cli": {
        "operator": "look after warm pools of pods on Kubernetes",
    },
    "harena.sandbox.package_commands": {
        "packages": "install, list and remove the requirements that boxes import",
    },
    "harena.match.cli.commands": {
        "match": "play agents against each other: a match, a series or a tournament",
        "replay": "show, convert or verify the replay of a match",
        "validate": "check an agent: load it in a box and let it play a short game",
        "executor": "serve matches over gRPC",
    },
    "harena.azr.cli.commands": {
        "azr": "train a model by self-play (Absolute Zero), evaluate it, read the tasks it proposes",
    },
    "harena.cli.envs": {
        "envs": "list the games that agents can play; add one to an arena",
    },
    "harena.arena.host_cli": {
        "backup": "write everything of an arena into one file, also while it runs",
        "restore": "make an arena's folder from a backup",
        "gc": "forget replays and logs by the rules of retention, delete files that no row needs",
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
    if words == ["--version"]:
        words = ["version"]
    from harena.errors import HarenaError

    try:
        if words in ([], ["--json"]):
            return _greet(json=bool(words))
        args = _parser(words[:1]).parse_args(words)
        args.rest = rest
        return args.action(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone. Keep Python from reporting that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except HarenaError as error:
        return _explain(error)
    except Exception as error:
        if os.environ.get("HARENA_DEBUG"):
            raise
        return _unexpected(error)


def _greet(*, json: bool) -> int:
    from harena.cli import greet
    from harena.command import print_json

    found = greet.greeting()
    print_json(found) if json else print(greet.text(found))
    return 0


def _unexpected(error: Exception) -> int:
    """One line for what no command foresaw, by the type of the error."""
    from harena.lazy import missing_part
    from harena.terminal import safe

    match error:
        case ModuleNotFoundError() if sentence := missing_part(error):
            return fail(UNAVAILABLE, sentence, "")
        case ModuleNotFoundError(name=str(name)):
            return fail(UNAVAILABLE, f"the package {safe(name)} is missing", "install it, or the extra that has it")
        case UnicodeError():
            return fail(USAGE, safe(f"text that is not valid: {error}"), "give text in UTF-8")
        case OSError(filename=str(path)):
            return fail(USAGE, safe(f"{path}: {error.strerror}"), "check the path and its rights")
        case OSError():
            return fail(PLATFORM, safe(str(error)), "see `harena doctor`, or set HARENA_DEBUG=1 for the details")
        case _:
            what = safe(f"{type(error).__name__}: {error}")[:500]
            return fail(PLATFORM, f"unexpected error: {what}", "set HARENA_DEBUG=1 for the details, and report it")


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

    def add(name: str, module: str, text: str, *, more: str = "", epilog: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=more or text, epilog=epilog, formatter_class=raw)
        command.set_defaults(action=functools.partial(_act, module, name))
        return command

    run = add("run", "run", "run a Python file or a piece of code in a fresh box", more=RUN_TEXT, epilog=EXIT_CODES)
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

    execute = add("exec", "run", "run any command in a fresh box", epilog=EXIT_CODES)
    execute.usage = "harena exec [options] -- COMMAND [ARGS...]"
    execute.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if "exec" in command:
        _add_program_options(execute)

    shell = add("shell", "run", "open a terminal in a fresh box; its files are deleted at the end")
    shell.add_argument("--python", action="store_true", help="start Python instead of a shell")
    _add_isolation(shell)
    if "shell" in command:
        _add_limits(shell)

    doctor = add(
        "doctor",
        "host",
        "attack a box on this machine and report what holds",
        epilog="exit codes: 0 every probe held, 1 a probe failed, 3 this host cannot isolate programs",
    )
    doctor.add_argument("--image", metavar="NAME", help="attack a box from this image, which needs sh and Python")
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_isolation(doctor)

    bench = add("bench", "host", "run the benchmarks")
    bench.add_argument("what", choices=["sandbox", "match", "service"])
    bench.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    bench.add_argument("--quick", action="store_true", help="fewer repetitions")

    add("demo", "demo", "show in a few seconds what a box does and what it withstands")
    boxes = add("boxes", "host", "list the running boxes of this user")
    boxes.add_argument("--json", action="store_true", help="print the list as JSON")
    for module, names in PARTS.items():
        for name, text in names.items():
            part = commands.add_parser(name, help=text, description=text, formatter_class=raw)
            if name in command:
                _fill(module, name, part, is_asked_for=len(command) == 1)
    completion = add("completion", "host", "print the completion of this command for a shell")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    add("man", "host", "print the manual page: harena man | man -l -")
    version = add("version", "host", "print the version")
    version.add_argument("--json", action="store_true", help="print versions of Harena and Python as JSON")
    return parser


def _fill(module: str, name: str, part: argparse.ArgumentParser, *, is_asked_for: bool) -> None:
    try:
        importlib.import_module(module).fill(name, part)
    except ModuleNotFoundError:  # a part whose extra is not installed has a name and a help text all the same
        if is_asked_for:
            raise


def full_parser() -> argparse.ArgumentParser:
    """Every command with all of its options. Imports the modules of all parts: for texts that are made from it."""
    return _parser([*OWN, *(name for names in PARTS.values() for name in names)])


def _add_program_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stdin", metavar="TEXT", help="input of the program; - passes on the stdin of this command")
    _add_isolation(command)
    _add_limits(command)
    command.add_argument("--json", action="store_true", help="print verdict, output and usage as JSON")


class _Isolation(argparse.Action):
    """The tier of all boxes of this command, also of those that it makes in other processes."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: object = None) -> None:
        os.environ["HARENA_ISOLATION"] = str(values)


def _add_isolation(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--isolation",
        action=_Isolation,
        choices=("full", "restricted", "best"),
        help="isolation tier (full): restricted needs no namespaces, best is full if possible; see docs/isolation.md",
    )


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
    group = command.add_argument_group("network")
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="let the box reach this name or address, such as packages.example:443 or '*.example.org:443'",
    )
    group.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="[LOCAL:]PORT",
        help="make this port of the box reachable on 127.0.0.1 of this machine",
    )


def _act(module: str, name: str, args: argparse.Namespace) -> int:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)(args)


def _explain(error: HarenaError) -> int:
    from harena.errors import BackendUnavailable, BoxError, IsolationUnavailable, Retry, SpecError

    match error:
        case IsolationUnavailable():
            return fail(UNAVAILABLE, error.missing, error.fix)
        case BackendUnavailable():
            return fail(UNAVAILABLE, str(error), "install the missing package")
        case SpecError():
            return fail(USAGE, str(error), "see --help")
        case BoxError():
            hints = {Retry.SAFE: "nothing was started, try again", Retry.UNKNOWN: "the program may have run in part"}
            return fail(PLATFORM, str(error), hints.get(error.retry, "trying again will not help"))
        case _:
            return fail(PLATFORM, str(error), "")


def fail(code: int, what: str, hint: str) -> int:
    print(f"harena: {what}; {hint}" if hint else f"harena: {what}", file=sys.stderr)
    return code
