"""Helpers shared by all parts of the `harena` command. Guarantees: a mistake or a missing package is reported in one
line on stderr that says what to do, with an exit code; text from other people cannot control the terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping

from harena.errors import HarenaError
from harena.terminal import safe

USAGE, UNAVAILABLE = 2, 3

Action = Callable[[argparse.Namespace], int]


def fail(code: int, text: str) -> int:
    print(f"harena: {safe(text)}", file=sys.stderr)
    return code


def print_json(data: object) -> None:
    print(json.dumps(data, indent=2, allow_nan=False))


def guarded(
    action: Action, *, extras: Mapping[str, str], code_of: Callable[[HarenaError], int | None], before_dashes: str
) -> Action:
    """Wrap an action so that errors become one line and an exit code.

    `extras` maps a package to the extra that installs it. `code_of` returns the exit code of an error, or None for
    errors that `harena.cli` explains. `before_dashes` says what belongs before a `--`."""

    def run(args: argparse.Namespace) -> int:
        if getattr(args, "rest", None):
            return fail(USAGE, f"unexpected argument {args.rest[0]!r} after --: {before_dashes}")
        try:
            return action(args)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name not in extras:
                raise
            return fail(UNAVAILABLE, f"this needs {name}: pip install 'harena[{extras[name]}]'")
        except HarenaError as error:
            code = code_of(error)
            if code is None:
                raise
            return fail(code, str(error))

    return run
