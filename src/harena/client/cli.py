"""The part of the `harena` command that talks to an arena: its options and exit codes. Guarantees: a mistake is one
line on stderr that says what to do; nothing that other users wrote reaches the terminal as more than text. httpx is
imported when a command runs: where it is missing, the line that installs it is printed.
"""

from __future__ import annotations

import argparse

from harena.client.errors import ArenaError, Unreachable, WaitTimeout
from harena.command import UNAVAILABLE, USAGE, guarded
from harena.errors import HarenaError, SpecError

OK, NO, TIMEOUT, PLATFORM, INTERRUPTED = 0, 1, 124, 125, 130
BOARDS = ("verified", "self-reported", "ladder")
EXPORTS = ("board", "matches", "ratings", "submissions")
FORMATS = ("csv", "jsonl", "parquet")
EXTRAS = {"httpx": "client", "gradio": "gradio"}
BEFORE_DASHES = "files and options come before it; ./ before a name with -"
DAY_S = 86400.0

EXIT_CODES = """\
exit codes:
  0    done
  1    the arena said no, or the submission was rejected, failed or cancelled; says why
  2    a wrong argument, or a file that cannot be sent
  3    no arena answers there, or a package is missing; says what to start or install
  124  the time given with --timeout ran out; the submission goes on
  125  the arena failed, or what answered is no arena
  130  interrupted by Ctrl-C; a submission goes on

variables: HARENA_URL, HARENA_KEY, HARENA_CONFIG (a folder, ~/.config/harena)"""

SUBMIT_TEXT = """\
Hands in an agent: a .py file, a folder, a zip, or several files that lie side by side. Waits until it is ranked."""
WATCH_TEXT = """\
Follows what happens: a match, drawn in the terminal while it runs; with --env the board of an environment; without
either, the results of all matches as they come. Ctrl-C ends it."""
EXPORT_TEXT = """\
Downloads the data of an environment. What other people named their agents is in it: spreadsheets are safe from it in
csv, where texts that begin like a formula are quoted."""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Gives the command of this name its options and its action."""
    {
        "submit": _fill_submit,
        "status": _fill_status,
        "logs": _fill_logs,
        "leaderboard": _fill_leaderboard,
        "watch": _fill_watch,
        "challenge": _fill_challenge,
        "export": _fill_export,
        "gradio": _fill_gradio,
    }[name](command)


def _code(error: HarenaError) -> int | None:
    return exit_code(error) if isinstance(error, ArenaError | SpecError) else None


def exit_code(error: HarenaError) -> int:
    match error:
        case Unreachable():
            return UNAVAILABLE
        case WaitTimeout():
            return TIMEOUT
        case ArenaError(status=int(status)) if status < 500:
            return NO
        case ArenaError():
            return PLATFORM
        case _:
            return USAGE


# ---- options ----


def _sets(command: argparse.ArgumentParser, name: str, *, json: bool = True) -> None:
    group = command.add_argument_group("the arena")
    group.add_argument("--url", metavar="URL", help="where it is ($HARENA_URL, else http://127.0.0.1:8000)")
    group.add_argument("--key", metavar="KEY", help="an API key; $HARENA_KEY keeps it out of the list of processes")
    if json:
        command.add_argument("--json", action="store_true", help="print the answer as JSON")

    def action(args: argparse.Namespace) -> int:
        from harena.client import commands

        return getattr(commands, name)(args)

    command.epilog = EXIT_CODES
    command.set_defaults(action=guarded(action, extras=EXTRAS, code_of=_code, before_dashes=BEFORE_DASHES))


def _fill_submit(command: argparse.ArgumentParser) -> None:
    command.description = SUBMIT_TEXT
    command.add_argument("files", nargs="+", metavar="FILE", help="a .py file, a folder or a zip; or several files")
    command.add_argument("--env", required=True, metavar="ENV", help="the environment that it is for")
    command.add_argument("--algorithm", default="Custom", metavar="NAME", help="what to call it (Custom)")
    command.add_argument("--owner", metavar="NAME", help="whose it is; with a key always the key's owner")
    command.add_argument("--main-file", metavar="FILE", help="the one of several files that is started")
    command.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until it is ranked (yes)"
    )
    command.add_argument("--timeout", type=_positive, default=600.0, metavar="S", help="seconds to wait (600)")
    _sets(command, "submit")


def _fill_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="of a submission")
    command.add_argument("--watch", action="store_true", help="follow it to its end")
    command.add_argument("--timeout", type=_positive, default=DAY_S, metavar="S", help="seconds to follow it (a day)")
    _sets(command, "status")


def _fill_logs(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="of a submission of yours")
    _sets(command, "logs")


def _fill_leaderboard(command: argparse.ArgumentParser) -> None:
    command.add_argument("env", metavar="ENV", nargs="?", help="an environment; without it they are listed")
    command.add_argument("--board", choices=BOARDS, metavar="KIND", help=f"{', '.join(BOARDS)} (the environment's own)")
    command.add_argument("--season", type=int, metavar="ID", help="one that has ended (the one that runs)")
    command.add_argument("--limit", type=_count, default=50, metavar="N", help="lines (50)")
    command.add_argument("--offset", type=int, default=0, metavar="N", help="lines to leave out (0)")
    command.add_argument("--user", metavar="NAME", help="only this owner's")
    command.add_argument("--algorithm", metavar="NAME", help="only agents of this name")
    command.add_argument("--watch", action="store_true", help="draw it again whenever it changes")
    _sets(command, "leaderboard")


def _fill_watch(command: argparse.ArgumentParser) -> None:
    command.description = WATCH_TEXT
    what = command.add_mutually_exclusive_group()
    what.add_argument("match", nargs="?", metavar="MATCH_ID", help="a match")
    what.add_argument("--env", metavar="ENV", help="the board of this environment")
    command.add_argument("--fps", type=_positive, metavar="N", help="frames a second, at most (20 in a terminal)")
    command.add_argument("--limit", type=_count, default=20, metavar="N", help="lines of the board (20)")
    _sets(command, "watch")


def _fill_challenge(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="a submission of yours")
    command.add_argument("opponent", metavar="OPPONENT", help="the id of another")
    command.add_argument("--games", type=_count, default=1, metavar="N", help="how many (1)")
    _sets(command, "challenge")


def _fill_export(command: argparse.ArgumentParser) -> None:
    command.description = EXPORT_TEXT
    command.add_argument("what", choices=EXPORTS, metavar="WHAT", help=", ".join(EXPORTS))
    command.add_argument("--env", required=True, metavar="ENV", help="the environment")
    command.add_argument("--format", choices=FORMATS, default="csv", help="(csv)")
    command.add_argument("--board", choices=BOARDS, metavar="KIND", help=f"{', '.join(BOARDS)} (the environment's own)")
    command.add_argument("--season", type=int, metavar="ID", help="one that has ended (the one that runs)")
    command.add_argument("-o", "--output", default="-", metavar="FILE", help="where to (stdout)")
    _sets(command, "export", json=False)


def _fill_gradio(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (127.0.0.1)")
    command.add_argument("--port", type=int, default=7860, metavar="N", help="(7860)")
    _sets(command, "gradio", json=False)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: a number above 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text}: a whole number above 0")
    return number
