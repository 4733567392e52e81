"""Match commands of `harena`: options of all of them, and the code of the short ones. Guarantees: a mistake is reported
in one line on stderr that says what to do, with an exit code of the tables below. Packages that a command needs are
imported when it runs, and a missing one is named with the line that installs it.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Any

from harena.command import UNAVAILABLE, USAGE, Action, guarded, print_json
from harena.errors import BackendUnavailable, HarenaError, SpecError
from harena.terminal import safe, safe_lines, table

OK, NO, TIMEOUT, PLATFORM, INTERRUPTED = 0, 1, 124, 125, 130
TOURNAMENTS = ("round-robin", "swiss", "elimination", "double-elimination")
EXTRAS = {
    "numpy": "match",
    "msgspec": "match",
    "zstandard": "match",
    "grpc": "executor",
    "grpc_health": "executor",
    "grpc_reflection": "executor",
    "google": "executor",
    "yaml": "executor",
    "gymnasium": "gym",
    "pettingzoo": "gym",
    "pyspiel": "openspiel",
}

MATCH_TEXT = """\
Plays agents against each other, each in its own box. An agent is a .py file, a folder or a zip; see docs/agents.md.
Without --tournament, give as many agents as the game has seats, in the order of the seats. Name an agent twice to let
it play itself."""

MATCH_EPILOG = """\
exit codes:
  0    the match was played, also if an agent crashed or ran out of time; the result says which
  2    invalid argument, unreadable agent or unknown game
  3    this host cannot isolate programs, or a package is missing; the message says what to install
  124  the match as a whole ran past --match-time
  125  no result: a game stayed void because the platform or the game failed, not an agent
  130  interrupted by Ctrl-C; finished games are printed

examples:
  harena match pong a.py b.py --seed 7 --html match.html
  harena match connect_four a.py b.py --games 100 --mirror
  harena match pong *.py --tournament round-robin --games 10 --mirror --json
  harena match tron a.py b.py c.py d.py --watch"""

REPLAY_EPILOG = """\
exit codes:
  0    success; for verify: the game and the result are the same
  1    for verify: the replay differs from the game; the first differing frame is printed
  2    invalid argument, or a file that is not a replay
  3    a package is missing; the message says what to install"""

VALIDATE_EPILOG = """\
exit codes:
  0    valid; there may be warnings
  1    not valid; the message says what must change
  2    invalid argument or unknown game
  3    this host cannot isolate programs, or a package is missing; the message says what to install
  125  the platform failed, not the agent"""

EXECUTOR_TEXT = """\
Serves matches over gRPC until Ctrl-C or SIGTERM; running matches are finished first. Options override EXECUTOR_HOST,
EXECUTOR_PORT and CONFIG_PATH, which override the config file; see docs/executor.md."""

ENVS_FOOT = """\
Other games that work: any Gymnasium id, such as CartPole-v1, and any PettingZoo environment, such as
pettingzoo/classic/connect_four_v3 (pip install 'harena[gym]'); OpenSpiel games, such as openspiel/kuhn_poker
(pip install 'harena[openspiel]'); your own game as module:factory."""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Add the options and the action of the command with this name."""
    {
        "envs": _fill_envs,
        "match": _fill_match,
        "replay": _fill_replay,
        "validate": _fill_validate,
        "executor": _fill_executor,
    }[name](command)


def _sets(command: argparse.ArgumentParser, action: Action, epilog: str = "") -> None:
    command.epilog = epilog or command.epilog
    before = "put agents and options before it, and ./ before a name that begins with -"
    command.set_defaults(action=guarded(action, extras=EXTRAS, code_of=_code, before_dashes=before))


def _code(error: HarenaError) -> int | None:
    """Exit code of an error, or None for errors of boxes and hosts, which `harena.cli` explains."""
    from harena.match.game import GameError
    from harena.match.registry import MissingExtra

    if isinstance(error, BackendUnavailable | MissingExtra):
        return UNAVAILABLE
    if isinstance(error, GameError):
        return PLATFORM
    ours = type(error).__module__.startswith("harena.match.")
    return USAGE if ours or isinstance(error, SpecError) else None


# ---- options ----


def _fill_envs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print the list as JSON")
    command.add_argument("--all", action="store_true", help="with --json: also those of other libraries, by id")
    _sets(command, _envs)


def _fill_match(command: argparse.ArgumentParser) -> None:
    command.description = MATCH_TEXT
    command.add_argument("env", metavar="ENV", help="a game; `harena envs` lists them")
    command.add_argument("agents", nargs="+", metavar="AGENT", help="a .py file, a folder, a zip, or image:NAME")
    command.add_argument("--seed", type=_seed, metavar="N", help="seed of the game or of the whole series (random)")
    command.add_argument("--json", action="store_true", help="print the full result as one JSON object")

    group = command.add_argument_group("several games")
    group.add_argument(
        "--games", type=int, default=1, metavar="N", help="number of games; in a tournament, per meeting (1)"
    )
    group.add_argument("--mirror", action="store_true", help="play every seed once in each order of the seats")
    group.add_argument("--tournament", choices=TOURNAMENTS, metavar="KIND", help=", ".join(TOURNAMENTS))
    group.add_argument("--rounds", type=int, metavar="N", help="rounds of a Swiss tournament (enough to find the best)")
    group.add_argument(
        "--lockstep",
        action="store_true",
        help="play many games at once: faster, but an agent that crashes loses all running games",
    )
    group.add_argument("--fresh", action="store_true", help="start new agent processes for each game of a series")
    group.add_argument("--workers", type=int, metavar="N", help="number of matches at once (one for each core)")
    group.add_argument(
        "--backend",
        default="local",
        metavar="URL",
        help="where the agents run: a server by its URL, with its token in HARENA_TOKEN (this machine)",
    )

    group = command.add_argument_group("display and files")
    group.add_argument("--watch", action="store_true", help="draw the game in the terminal")
    group.add_argument("--fps", type=float, metavar="N", help="frames per second for --watch (10)")
    group.add_argument(
        "--replay", metavar="FILE", help="write the replay: JSON if the name ends in .json, otherwise compact"
    )
    group.add_argument(
        "--html", metavar="FILE", help="write a page that shows the match; pages of several games are numbered"
    )
    group.add_argument(
        "--log",
        type=int,
        action="append",
        default=[],
        metavar="SEAT",
        help="print the output of this agent; the first is 0",
    )

    group = command.add_argument_group("limits and settings")
    group.add_argument("--move", type=float, metavar="S", help="seconds of CPU time for a move (5)")
    group.add_argument("--bank", type=float, metavar="S", help="additional seconds of CPU time for the whole game (0)")
    group.add_argument("--start", type=float, metavar="S", help="seconds to load an agent (30)")
    group.add_argument("--match-time", type=float, metavar="S", help="seconds for the whole match (300)")
    group.add_argument("--memory", type=int, metavar="MB", help="megabytes of memory for each agent (512)")
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="a setting of the game"
    )

    def match(args: argparse.Namespace) -> int:
        from harena.match.cli import match as cli_match

        return cli_match.match(args)

    _sets(command, match, MATCH_EPILOG)


def _seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 2**64 - 1")
    return number


def _fill_replay(command: argparse.ArgumentParser) -> None:
    from harena.match.cli import replay as cli_replay

    parts = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    raw = argparse.RawDescriptionHelpFormatter

    def add(name: str, text: str, action: Action) -> argparse.ArgumentParser:
        part = parts.add_parser(name, help=text, description=text, formatter_class=raw)
        part.add_argument("file", metavar="FILE", help="a replay, compact or JSON")
        _sets(part, action, REPLAY_EPILOG)
        return part

    show = add("show", "draw a replay in the terminal, step by step: n next, p previous, q quit", cli_replay.show)
    show.add_argument("--frame", type=int, metavar="N", help="show only this frame; 0 is the start")
    show.add_argument("--fps", type=float, metavar="N", help="play at this number of frames per second")
    page = add("html", "write one HTML file that shows the match in a browser", cli_replay.html)
    page.add_argument("-o", "--output", metavar="OUT", help="output file (FILE with .html; - is stdout)")
    data = add("json", "print the whole replay as JSON, including what every seat saw", cli_replay.as_json)
    data.add_argument("-o", "--output", metavar="OUT", help="output file (stdout)")
    verify = add("verify", "re-run the game from its seed and moves and compare", cli_replay.verify)
    verify.add_argument("--json", action="store_true", help="print the result as JSON")
    command.epilog = REPLAY_EPILOG


def _fill_validate(command: argparse.ArgumentParser) -> None:
    command.add_argument("agent", metavar="AGENT", help="a .py file, a folder, a zip, or image:NAME")
    command.add_argument("--env", required=True, metavar="ENV", help="the game that the agent plays")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    _sets(command, _validate, VALIDATE_EPILOG)


def _fill_executor(command: argparse.ArgumentParser) -> None:
    command.description = EXECUTOR_TEXT
    command.add_argument("--host", metavar="HOST", help="address to listen on")
    command.add_argument("--port", type=int, metavar="N", help="port (50051); 0 chooses a free port and prints it")
    command.add_argument("--metrics-port", type=int, metavar="N", help="serve Prometheus metrics on this port too")
    command.add_argument("--config", metavar="FILE", help="a YAML file with settings")
    command.add_argument("--files", metavar="FOLDER", help="allow paths and file:// URLs of agents below this folder")
    command.add_argument("--insecure", action="store_true", help="allow others to run code here without a token")
    _sets(command, _executor)


# ---- the short commands ----


def _envs(args: argparse.Namespace) -> int:
    from harena.match import registry

    infos = registry.infos()
    others = registry.others()
    if args.json:
        more = [{"id": one, "library": library} for library, ids in others.items() for one in ids] if args.all else []
        print_json([*(info.as_json() for info in infos), *more])
        return OK
    rows = [
        (
            info.id,
            str(info.seats),
            "at once" if info.simultaneous else "in turn" if info.seats > 1 else "alone",
            "hidden" if info.hidden else "",
            space_words(info.action),
            info.summary,
        )
        for info in infos
    ]
    head = ("game", "seats", "moves", "information", "action", "summary")
    print(table(head, rows, left=("game", "moves", "information", "action", "summary")))
    for library, ids in others.items():
        print(f"\n{library} ({len(ids)})")
        print(
            textwrap.fill(safe(" ".join(ids)), 118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        )
    print(f"\n{ENVS_FOOT}")
    return OK


def space_words(space: Mapping[str, Any]) -> str:
    """Short description of a space, for a table."""
    match space:
        case {"kind": "discrete", "n": n, "start": start}:
            return f"{start} to {start + n - 1}"
        case {"kind": "multi_discrete", "nvec": bounds}:
            return f"{len(bounds)} numbers"
        case {"kind": "box", "shape": shape, "dtype": dtype}:
            return f"{dtype}[{', '.join(map(str, shape))}]"
        case {"kind": "text", "max_length": most}:
            return f"text up to {most}"
        case {"kind": "dict", "spaces": parts}:
            return "{" + ", ".join(map(str, parts)) + "}"
        case {"kind": "tuple", "spaces": parts}:
            return f"{len(parts)} parts"
        case _:
            return str(space.get("kind", "?"))


def _validate(args: argparse.Namespace) -> int:
    from harena.match import registry
    from harena.match.agent import validate

    registry.trust(args.env)
    answer = validate.validate(args.agent, args.env)
    if args.json:
        print_json(answer.as_json())
    else:
        for kind, texts in (("error", answer.errors), ("warning", answer.warnings)):
            for text in texts:
                print(f"{kind}: {safe_lines(text)}")
        print("valid" if answer.valid else "not valid")
    return OK if answer.valid else NO


def _executor(args: argparse.Namespace) -> int:
    from harena.match.executor import server

    server.serve_from(
        host=args.host,
        port=args.port,
        metrics_port=args.metrics_port,
        config_path=args.config,
        file_folder=args.files,
        insecure=args.insecure,
    )
    return OK
