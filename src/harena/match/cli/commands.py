"""The part of the `harena` command that is about matches: its options, and the short commands. Guarantees: a mistake is
one line on stderr that says what to do, with an exit code of the table below. What a command needs is imported when it
runs: a missing package is named with the line that installs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from harena.command import UNAVAILABLE, USAGE, Action, guarded, print_json
from harena.errors import BackendUnavailable, HarenaError, SpecError
from harena.terminal import safe_lines, table

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
Plays agents against each other, each in a box of its own. An agent is a .py file, a folder or a zip; see
docs/agents.md. Without --tournament there are as many agents as the game has seats, in the order of the seats; name
an agent twice to let it play itself."""

MATCH_EPILOG = """\
exit codes:
  0    played: who lost, crashed or ran out of time is in the result
  2    a wrong argument, an agent that cannot be read, a game that is not there
  3    this host cannot isolate, or a package is missing; says what to install
  124  the match as a whole ran past --match-time
  125  no result, for a game that stayed void: the platform or the game failed, no agent is to blame
  130  interrupted by Ctrl-C; what was finished is printed

examples:
  harena match pong a.py b.py --seed 7 --html match.html
  harena match connect_four a.py b.py --games 100 --mirror
  harena match pong *.py --tournament round-robin --games 10 --mirror --json
  harena match tron a.py b.py c.py d.py --watch"""

REPLAY_EPILOG = """\
exit codes:
  0    done; verify: the same game and the same result
  1    verify: the replay diverges from the game, at the frame that is named
  2    a wrong argument, or a file that is no replay
  3    a package is missing; says what to install"""

VALIDATE_EPILOG = """\
exit codes:
  0    valid; there may be warnings
  1    not valid; says what must change
  2    a wrong argument, or a game that is not there
  3    this host cannot isolate, or a package is missing; says what to install
  125  the platform failed, not the agent"""

EXECUTOR_TEXT = """\
Serves matches over gRPC until it is stopped by Ctrl-C or SIGTERM; running matches are finished first. Options win over
EXECUTOR_HOST, EXECUTOR_PORT and CONFIG_PATH, which win over the config file; see docs/executor.md."""

ENVS_FOOT = """\
Also: CartPole-v1 and any Gymnasium id, pettingzoo/classic/connect_four_v3 and the like (pip install 'harena[gym]'),
openspiel/kuhn_poker and the like (pip install 'harena[openspiel]'), module:factory for a game of your own."""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Gives the command of this name its options and its action."""
    {
        "envs": _fill_envs,
        "match": _fill_match,
        "replay": _fill_replay,
        "validate": _fill_validate,
        "executor": _fill_executor,
    }[name](command)


def _sets(command: argparse.ArgumentParser, action: Action, epilog: str = "") -> None:
    command.epilog = epilog or command.epilog
    before = "agents and options come before it; ./ before a name with -"
    command.set_defaults(action=guarded(action, extras=EXTRAS, code_of=_code, before_dashes=before))


def _code(error: HarenaError) -> int | None:
    """What boxes and hosts get wrong is explained elsewhere."""
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
    _sets(command, _envs)


def _fill_match(command: argparse.ArgumentParser) -> None:
    command.description = MATCH_TEXT
    command.add_argument("env", metavar="ENV", help="a game: `harena envs` lists them")
    command.add_argument("agents", nargs="+", metavar="AGENT", help="a .py file, a folder or a zip")
    command.add_argument(
        "--seed", type=_seed, metavar="N", help="the seed of the game, or of all games together (a new one)"
    )
    command.add_argument("--json", action="store_true", help="print one object with everything")

    group = command.add_argument_group("several games")
    group.add_argument("--games", type=int, default=1, metavar="N", help="games, or in a tournament per meeting (1)")
    group.add_argument("--mirror", action="store_true", help="play every seed once in each order of the seats")
    group.add_argument("--tournament", choices=TOURNAMENTS, metavar="KIND", help=", ".join(TOURNAMENTS))
    group.add_argument("--rounds", type=int, metavar="N", help="of a Swiss tournament (enough to find the best)")
    group.add_argument(
        "--lockstep",
        action="store_true",
        help="many games in one exchange with the agents: quicker, but who crashes loses all that run",
    )
    group.add_argument(
        "--fresh", action="store_true", help="start the agents' processes anew for each game of a series"
    )
    group.add_argument("--workers", type=int, metavar="N", help="matches at once (one for each core)")

    group = command.add_argument_group("watching and keeping")
    group.add_argument("--watch", action="store_true", help="draw the game in the terminal")
    group.add_argument("--fps", type=float, metavar="N", help="frames a second for --watch (10)")
    group.add_argument("--replay", metavar="FILE", help="keep the replay: compact, or JSON for a name in .json")
    group.add_argument("--html", metavar="FILE", help="keep a page that plays it; several games are numbered")
    group.add_argument(
        "--log", type=int, action="append", default=[], metavar="SEAT", help="show what this agent printed, from 0"
    )

    group = command.add_argument_group("what an agent may use")
    group.add_argument("--move", type=float, metavar="S", help="seconds of CPU time for a move (5)")
    group.add_argument("--bank", type=float, metavar="S", help="more of them for the whole game (0)")
    group.add_argument("--start", type=float, metavar="S", help="seconds to load it (30)")
    group.add_argument("--match-time", type=float, metavar="S", help="seconds for the whole match (300)")
    group.add_argument("--memory", type=int, metavar="MB", help="memory (512)")
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
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 0 to 2**64 - 1")
    return number


def _fill_replay(command: argparse.ArgumentParser) -> None:
    from harena.match.cli import replay as cli_replay

    parts = command.add_subparsers(title="what to do with it", metavar="WHAT", required=True)
    raw = argparse.RawDescriptionHelpFormatter

    def add(name: str, text: str, action: Action) -> argparse.ArgumentParser:
        part = parts.add_parser(name, help=text, description=text, formatter_class=raw)
        part.add_argument("file", metavar="FILE", help="a replay, compact or JSON")
        _sets(part, action, REPLAY_EPILOG)
        return part

    show = add("show", "draw it in the terminal, step by step: n next, p previous, q quit", cli_replay.show)
    show.add_argument("--frame", type=int, metavar="N", help="this frame alone; 0 is the start")
    show.add_argument("--fps", type=float, metavar="N", help="play it at this speed")
    page = add("html", "one HTML file that plays it in a browser", cli_replay.html)
    page.add_argument("-o", "--output", metavar="OUT", help="where to (FILE with .html; - is stdout)")
    data = add("json", "all of it as JSON, with what every seat saw", cli_replay.as_json)
    data.add_argument("-o", "--output", metavar="OUT", help="where to (stdout)")
    verify = add("verify", "run the game again from its seed and moves, and compare", cli_replay.verify)
    verify.add_argument("--json", action="store_true", help="print the answer as JSON")
    command.epilog = REPLAY_EPILOG


def _fill_validate(command: argparse.ArgumentParser) -> None:
    command.add_argument("agent", metavar="AGENT", help="a .py file, a folder or a zip")
    command.add_argument("--env", required=True, metavar="ENV", help="the game that it is for")
    command.add_argument("--json", action="store_true", help="print the answer as JSON")
    _sets(command, _validate, VALIDATE_EPILOG)


def _fill_executor(command: argparse.ArgumentParser) -> None:
    command.description = EXECUTOR_TEXT
    command.add_argument("--host", metavar="HOST", help="address to listen on")
    command.add_argument("--port", type=int, metavar="N", help="port (50051); 0 takes a free one and says which")
    command.add_argument("--config", metavar="FILE", help="a YAML file with settings")
    command.add_argument("--files", metavar="FOLDER", help="allow file:// URLs of agents below this folder")
    command.add_argument(
        "--insecure", action="store_true", help="serve an address that others can reach without a token: anyone's code"
    )
    _sets(command, _executor)


# ---- the short commands ----


def _envs(args: argparse.Namespace) -> int:
    from harena.match import registry

    infos = registry.infos()
    if args.json:
        print_json([info.as_json() for info in infos])
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
    print(f"\n{ENVS_FOOT}")
    return OK


def space_words(space: Mapping[str, Any]) -> str:
    """Short, for a table."""
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
        host=args.host, port=args.port, config_path=args.config, file_folder=args.files, insecure=args.insecure
    )
    return OK
