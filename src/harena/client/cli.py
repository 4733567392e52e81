"""Arena commands of `harena`: options and exit codes. Guarantees: a mistake is reported in one line on stderr that says
what to do; text of other users cannot control the terminal. httpx is imported when a command runs. If it is missing,
the line that installs it is printed.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from harena.client.errors import ArenaError, Unreachable, WaitTimeout
from harena.command import UNAVAILABLE, USAGE, guarded
from harena.errors import HarenaError, SpecError

OK, NO, TIMEOUT, PLATFORM, INTERRUPTED = 0, 1, 124, 125, 130
BOARDS = ("verified", "self-reported", "ladder")
EXPORTS = ("board", "matches", "ratings", "submissions")
FORMATS = ("csv", "jsonl", "parquet")
EXTRAS = {"httpx": "client", "gradio": "gradio"}
BEFORE_DASHES = "put files and options before it, and ./ before a name that begins with -"
DAY_S = 86400.0

EXIT_CODES = """\
exit codes:
  0    success
  1    the arena refused, or the submission was rejected, failed or cancelled; the reason is printed
  2    invalid argument, or a file that cannot be sent
  3    no arena answered, or a package is missing; the message says what to start or install
  124  the time given with --timeout ran out; the submission continues
  125  the arena failed, or the server is not an arena
  130  interrupted by Ctrl-C; a submission continues

environment variables: HARENA_URL, HARENA_KEY, HARENA_CONFIG (a folder; default ~/.config/harena)"""

SUBMIT_TEXT = """\
Submits an agent (a .py file, a folder, a zip, or several files of one folder) and waits until it is ranked."""
WATCH_TEXT = """\
Follows a match and draws it in the terminal while it runs. With --env, follows the board of an environment. Without
either, prints the result of each match when it ends. Ctrl-C stops it."""
TEAMS_TEXT = """\
Founds teams, invites people and shows who is in them. What a member submits with `--owner TEAM` belongs to the team.
Needs a key."""
WEBHOOKS_TEXT = """\
Adds and removes URLs that are told of your results and changes of rank, where the host allows it. Needs a key."""
EXPORT_TEXT = """\
Downloads the data of an environment. The data contain names that other people chose. In csv, texts that begin like a
formula are quoted, so that spreadsheets do not run them."""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Add the options and the action of the command with this name."""
    {
        "submit": _fill_submit,
        "status": _fill_status,
        "logs": _fill_logs,
        "leaderboard": _fill_leaderboard,
        "watch": _fill_watch,
        "challenge": _fill_challenge,
        "export": _fill_export,
        "teams": _fill_teams,
        "webhooks": _fill_webhooks,
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


def _sets(command: argparse.ArgumentParser, name: str, *, json: bool = True, module: str = "commands") -> None:
    group = command.add_argument_group("the arena")
    group.add_argument(
        "--url", metavar="URL", help="address of the arena ($HARENA_URL, otherwise http://127.0.0.1:8000)"
    )
    group.add_argument(
        "--key", metavar="KEY", help="an API key; prefer $HARENA_KEY, which is not visible in the list of processes"
    )
    if json:
        command.add_argument("--json", action="store_true", help="print the result as JSON")

    def action(args: argparse.Namespace) -> int:
        return getattr(importlib.import_module(f"harena.client.{module}"), name)(args)

    command.epilog = EXIT_CODES
    command.set_defaults(action=guarded(action, extras=EXTRAS, code_of=_code, before_dashes=BEFORE_DASHES))


def _fill_submit(command: argparse.ArgumentParser) -> None:
    command.description = SUBMIT_TEXT
    command.add_argument("files", nargs="+", metavar="FILE", help="a .py file, a folder or a zip; or several files")
    command.add_argument("--env", required=True, metavar="ENV", help="the environment to submit to")
    command.add_argument("--algorithm", default="Custom", metavar="NAME", help="name of the agent (Custom)")
    command.add_argument("--owner", metavar="NAME", help="name of the owner; with a key, a team of yours")
    command.add_argument("--main-file", metavar="FILE", help="the main file, if there are several")
    command.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until it is ranked (yes)"
    )
    command.add_argument("--timeout", type=_positive, default=600.0, metavar="S", help="seconds to wait (600)")
    _sets(command, "submit")


def _fill_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="id of a submission")
    command.add_argument("--watch", action="store_true", help="follow the submission until it ends")
    command.add_argument(
        "--timeout", type=_positive, default=DAY_S, metavar="S", help="seconds to follow the submission (a day)"
    )
    _sets(command, "status")


def _fill_logs(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="id of your submission")
    _sets(command, "logs")


def _fill_leaderboard(command: argparse.ArgumentParser) -> None:
    command.add_argument("env", metavar="ENV", nargs="?", help="an environment; if left out, all are listed")
    command.add_argument(
        "--board", choices=BOARDS, metavar="KIND", help=f"{', '.join(BOARDS)} (the environment's default)"
    )
    command.add_argument("--season", type=int, metavar="ID", help="a season that has ended (the current one)")
    command.add_argument("--limit", type=_count, default=50, metavar="N", help="number of lines (50)")
    command.add_argument("--offset", type=int, default=0, metavar="N", help="number of lines to skip (0)")
    command.add_argument("--user", metavar="NAME", help="show only agents of this owner")
    command.add_argument("--algorithm", metavar="NAME", help="show only agents with this name")
    command.add_argument("--watch", action="store_true", help="redraw the board whenever it changes")
    _sets(command, "leaderboard")


def _fill_watch(command: argparse.ArgumentParser) -> None:
    command.description = WATCH_TEXT
    what = command.add_mutually_exclusive_group()
    what.add_argument("match", nargs="?", metavar="MATCH_ID", help="id of a match")
    what.add_argument("--env", metavar="ENV", help="the board of this environment")
    command.add_argument("--fps", type=_positive, metavar="N", help="maximum frames per second (20 in a terminal)")
    command.add_argument("--limit", type=_count, default=20, metavar="N", help="number of lines of the board (20)")
    _sets(command, "watch")


def _fill_challenge(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="id of your submission")
    command.add_argument("opponent", metavar="OPPONENT", help="id of the opponent's submission")
    command.add_argument("--games", type=_count, default=1, metavar="N", help="number of games (1)")
    _sets(command, "challenge")


def _fill_export(command: argparse.ArgumentParser) -> None:
    command.description = EXPORT_TEXT
    command.add_argument("what", choices=EXPORTS, metavar="WHAT", help=", ".join(EXPORTS))
    command.add_argument("--env", required=True, metavar="ENV", help="the environment")
    command.add_argument("--format", choices=FORMATS, default="csv", help="file format (csv)")
    command.add_argument(
        "--board", choices=BOARDS, metavar="KIND", help=f"{', '.join(BOARDS)} (the environment's default)"
    )
    command.add_argument("--season", type=int, metavar="ID", help="a season that has ended (the current one)")
    command.add_argument("-o", "--output", default="-", metavar="FILE", help="output file (stdout)")
    _sets(command, "export", json=False)


def _fill_teams(command: argparse.ArgumentParser) -> None:
    command.description = TEAMS_TEXT
    parts: Any = command.add_subparsers(title="what to do", metavar="WHAT", required=True)
    _part(parts, "list", "your teams, and those that have invited you", "list_teams")
    create = _part(parts, "create", "found a team; you are its captain", "create_team")
    invite = _part(parts, "invite", "invite somebody who has a key; for the captain", "invite")
    join = _part(parts, "join", "accept an invitation", "join_team")
    members = _part(parts, "members", "who is in a team of yours, and who is invited", "members")
    leave = _part(parts, "leave", "leave a team, or decline its invitation", "leave_team")
    for part in (create, invite, join, members, leave):
        part.add_argument("team", metavar="TEAM", help="name of the team")
    invite.add_argument("owner", metavar="OWNER", help="the name on their key")
    leave.add_argument("--member", metavar="OWNER", help="remove this member instead; for the captain")


def _fill_webhooks(command: argparse.ArgumentParser) -> None:
    command.description = WEBHOOKS_TEXT
    parts: Any = command.add_subparsers(title="what to do", metavar="WHAT", required=True)
    _part(parts, "list", "your webhooks and mail addresses", "list_webhooks")
    add = _part(parts, "add", "add a URL; the secret that signs what it gets is shown this once", "add_webhook")
    add.add_argument("target", metavar="URL", help="such as https://hooks.example.org/harena")
    remove = _part(parts, "remove", "remove a webhook or mail address", "remove_webhook")
    test = _part(parts, "test", "send a test to a webhook, and say whether it arrived", "try_webhook")
    for part in (remove, test):
        part.add_argument("id", metavar="ID", help="its id, or the beginning of it")
    test.add_argument("--timeout", type=_positive, default=60.0, metavar="S", help="seconds to wait (60)")


def _part(parts: Any, name: str, text: str, action: str) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    part: argparse.ArgumentParser = parts.add_parser(name, help=text, description=text, formatter_class=raw)
    _sets(part, action, module="account_commands")
    return part


def _fill_gradio(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    command.add_argument("--port", type=int, default=7860, metavar="N", help="port to listen on (7860)")
    _sets(command, "gradio", json=False)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to 1000000")
    return number
