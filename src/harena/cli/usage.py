"""`harena usage`: what owners, runs and agents used, from the file of a server or from the server itself."""

from __future__ import annotations

import argparse
from typing import Any

from harena.command import print_json
from harena.errors import SpecError, WireError
from harena.terminal import safe, table

COLUMNS = ("cpu_s", "gib_s", "box_s", "bytes_in", "bytes_out", "boxes", "executions", "faults")
EPILOG = """\
cpu_s: CPU time of executions. gib_s: their memory limit in GiB times their wall time. box_s: lifetime of boxes that
were closed. faults: executions without a result because the platform failed.

examples:
  harena usage usage.db --by owner              everybody, for the operator
  harena usage --server https://host:8700       your own, with HARENA_TOKEN"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    command.epilog = EPILOG
    command.add_argument("file", nargs="?", metavar="FILE", help="the file that `harena serve --usage` writes")
    add_server(command)
    command.add_argument("--by", default="", metavar="NAMES", help="day, owner, run, agent, with commas (run,agent)")
    command.add_argument("--since", default="", metavar="DAY", help="the first day to count, such as 2026-01-31 (UTC)")
    command.add_argument("--json", action="store_true", help="print the rows as JSON")
    command.set_defaults(action=_usage)


def add_server(command: argparse.ArgumentParser) -> None:
    command.add_argument("--server", metavar="URL", help="a server instead (HARENA_SERVER)")
    command.add_argument("--token", metavar="TOKEN", help="its token (HARENA_TOKEN, which other users cannot read)")


def remote(args: argparse.Namespace) -> Any:
    """The server that was named; None if there is none."""
    from harena.node import variables

    server = args.server or variables.server()
    if not server:
        return None
    from harena.sessions.engines.remote import RemoteEngine

    return RemoteEngine(server, args.token or variables.token())


def _usage(args: argparse.Namespace) -> int:
    by = tuple(name for name in (args.by or ("owner,run,agent" if args.file else "run,agent")).split(",") if name)
    if args.file is not None:
        from harena.ledger.ledger import Ledger

        ledger = Ledger.open_to_read(args.file)
        found: dict[str, Any] = {"usage": ledger.usage(since=_day(args.since), by=by)}
        ledger.close()
    else:
        engine = remote(args)
        if engine is None:
            raise SpecError("give the file of a server, or --server URL")
        found = engine.get(f"/v1/usage?by={','.join(map(_word, by))}&since={_day(args.since)}")
    if args.json:
        print_json(found)
    else:
        print(_text(found, by))
    return 0


def _text(found: dict[str, Any], by: tuple[str, ...]) -> str:
    rows = found.get("usage")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):  # pyright: ignore
        raise WireError("the server sent something else than usage")
    cells = [[str(row.get(name, "")) for name in by] + [number(row.get(name)) for name in COLUMNS] for row in rows]  # pyright: ignore
    text = table((*by, *COLUMNS), cells, left=by) if cells else "nothing was used"
    budget = found.get("budget")
    if isinstance(budget, dict):
        limits = ", ".join(f"{name} {value}" for name, value in budget.items() if value is not None)  # pyright: ignore
        text += f"\n\nbudget: {safe(limits)}"
    return text


def number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "?"
    return f"{value:.2f}" if isinstance(value, float) and value < 1e6 else f"{value:.0f}"


def _day(text: str) -> str:
    if text and not (len(text) == 10 and text[4] == text[7] == "-" and text.replace("-", "").isdecimal()):
        raise SpecError(f"--since {text}: give a day such as 2026-01-31")
    return text


def _word(text: str) -> str:
    if not text.isalpha() or not text.isascii():
        raise SpecError(f"--by {text}: day, run, agent")
    return text
