"""Commands of `harena packages`: installed requirements of boxes. Nothing that a package says controls the terminal."""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

from harena.command import USAGE, guarded, print_json
from harena.errors import BoxError, HarenaError, SpecError
from harena.terminal import safe, table

FAILED = 1
EXIT_CODES = """\
exit codes:
  0  success
  1  a package could not be installed
  2  invalid argument"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Add the options and the actions of `harena packages`."""
    verbs = command.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(verb: str, text: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        part = verbs.add_parser(verb, help=text, description=text, epilog=EXIT_CODES, formatter_class=raw)
        part.add_argument("--json", action="store_true", help="print the result as JSON")
        action = {"install": _install, "ls": _list, "gc": _collect}[verb]
        part.set_defaults(
            action=guarded(action, extras={}, code_of=_code, before_dashes="put requirements and options before it")
        )
        return part

    install = add("install", "install requirements now, so that the first box with them starts at once")
    install.add_argument("requirements", nargs="+", metavar="REQUIREMENT", help="such as numpy or 'httpx[http2]>=0.28'")
    install.add_argument("--python", metavar="PATH", help="interpreter or virtual environment of the boxes")
    add("ls", "list installed sets of requirements, the one used last first")
    collect = add("gc", "remove the sets unused for longest; those that a live box shows stay")
    collect.add_argument("--max-gb", type=_number, default=0.0, metavar="GB", help="stop at this size (0)")
    collect.add_argument(
        "--days", type=_number, default=0.0, metavar="N", help="keep what was used in the last N days (0)"
    )


def _install(args: argparse.Namespace) -> int:
    from harena.sandbox.box import Sandbox
    from harena.sandbox.spec import Spec

    spec = Spec(requirements=tuple(args.requirements), python=args.python)
    with Sandbox(spec):
        found = _sets().sets()[0]
    if args.json:
        print_json(found.as_json())
    else:
        print(safe(" ".join(found.packages)))
    return 0


def _list(args: argparse.Namespace) -> int:
    found = _sets().sets()
    if args.json:
        print_json([one.as_json() for one in found])
    elif found:
        rows = [
            [
                one.key[:12],
                f"{one.size_bytes / 1e6:.1f} MB",
                time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_at)),
                " ".join(one.requirements),
            ]
            for one in found
        ]
        print(table(["set", "size", "used", "requirements"], rows, left=["set", "requirements"]))
    return 0


def _collect(args: argparse.Namespace) -> int:
    removed = _sets().collect(max_bytes=int(args.max_gb * 1e9), unused_s=args.days * 86400)
    if args.json:
        print_json([one.as_json() for one in removed])
    else:
        print(f"removed {len(removed)} sets, {sum(one.size_bytes for one in removed) / 1e6:.1f} MB")
    return 0


def _sets() -> Any:
    """The store of the local backend, which nothing may import."""
    return importlib.import_module("harena.sandbox.backend").load("local").package_sets


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number from 0")
    return value


def _code(error: HarenaError) -> int | None:
    match error:
        case SpecError():
            return USAGE
        case BoxError():
            return FAILED
        case _:
            return None
