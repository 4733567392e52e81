"""The parts of the `harena` command for hosts: environments of an arena, backups. They work while an arena serves the
folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any, cast

from harena.arena.cli import EXTRAS, code_of, open_store, settings_of
from harena.arena.variables import DEFAULT_DATA, data_folder
from harena.command import Action, guarded, print_json
from harena.errors import SpecError
from harena.match.cli import commands as games
from harena.terminal import safe

ENVS_EPILOG = """\
Without ACTION, the games that are installed. `add` offers one on the arena's page, with its first season; a game of
your own is named as module:factory, found in the folder that the arena is started in, or in PYTHONPATH. `close` takes
no more submissions, `open` takes them again, `show` prints the settings. Everybody sees an `invited` board, and its
guests submit to it; only its guests and hosts know of a `private` one.

examples:
  harena envs
  harena envs add LunarLander-v3 --title "Lunar lander"
  harena envs add nim:Nim --set games_target=40 --set rules=@rules.md
  harena envs add pong --access private --guest ann --guest "the blue team"
  harena envs close CartPole-v1"""


GC_EPILOG = """\
An arena that runs does this by itself every six hours. HARENA_KEEP_DAYS and HARENA_KEEP_MATCHES say how long replays
and logs are kept; without them nothing that a row refers to goes. Boards, finals and the replays that prove a verified
score keep theirs. A file without references is set aside first, and deleted a day later."""


def fill(name: str, parser: argparse.ArgumentParser) -> None:
    """Gives the command of this name its options and its action."""
    {"envs": _fill_envs, "backup": _fill_backup, "restore": _fill_restore, "gc": _fill_gc}[name](parser)


def _fill_envs(command: argparse.ArgumentParser) -> None:
    games.fill("envs", command)
    listing: Action = command.get_default("action")
    command.epilog = ENVS_EPILOG
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("what", nargs="?", choices=("add", "close", "open", "show"), metavar="ACTION")
    command.add_argument("env", nargs="?", metavar="ENV", help="its id, or module:factory")
    command.add_argument("--kind", choices=("verified", "ladder", "script-only"), help="(as the game is)")
    command.add_argument("--title", metavar="TEXT")
    command.add_argument(
        "--access", choices=("public", "invited", "private"), help="who may see it, and submit to it (public)"
    )
    command.add_argument("--guest", action="append", default=[], metavar="OWNER", help="to invite; may be repeated")
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; @FILE reads a text"
    )
    _data(command)
    _guard(command, lambda args: listing(args) if args.what is None else _change(args))


def _fill_backup(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="to write, such as arena-monday.tar.gz")
    command.add_argument("--json", action="store_true", help="print what was written as JSON")
    _data(command)
    _guard(command, _backup)


def _fill_gc(command: argparse.ArgumentParser) -> None:
    command.epilog = GC_EPILOG
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("--dry-run", action="store_true", help="count files without references, change nothing")
    command.add_argument("--json", action="store_true", help="print what was done as JSON")
    _data(command)
    _guard(command, _gc)


def _fill_restore(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="that `harena backup` has written")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="a new folder")
    command.add_argument("--json", action="store_true", help="print what was restored as JSON")
    _guard(command, _restore)


def _data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data", type=Path, metavar="DIR", help=f"the arena's folder ($HARENA_DATA, or {DEFAULT_DATA})"
    )


def _guard(command: argparse.ArgumentParser, action: Action) -> None:
    command.set_defaults(action=guarded(action, extras=EXTRAS, code_of=code_of, before_dashes="options come before it"))


def _change(args: argparse.Namespace) -> int:
    from harena.arena import audit, hosting
    from harena.arena.db.models import Access, EnvironmentKind
    from harena.match import registry

    if args.env is None:
        raise SpecError(f"harena envs {args.what} needs an environment; `harena envs` lists the games")
    settings = settings_of(args)
    store = open_store(settings)
    try:
        if args.what == "add":
            registry.trust(args.env)  # typed by whoever may run code here
            kind = None if args.kind is None else EnvironmentKind(args.kind)
            given = _given(args)
            made = hosting.put_environment(
                store,
                args.env,
                kind=kind,
                settings=given or None,
                access=None if args.access is None else Access(args.access),
                start_season=store.seasons.start,
            )
            for guest in args.guest:
                store.guests.invite(made.env_id, guest)
        else:
            found = store.environments.get(args.env)
            made = found
            if args.what != "show":
                made = store.environments.put(
                    found.env_id, found.kind, settings=found.settings, enabled=args.what == "open"
                )
        if args.what != "show":
            audit.record(settings.data, audit.command_line(), f"envs {args.what} {made.env_id}")
    finally:
        store.close()
    if args.json or args.what == "show":
        print_json(
            {
                "env_id": made.env_id,
                "kind": made.kind,
                "enabled": made.enabled,
                "access": made.access,
                "settings": made.settings,
            }
        )
    else:
        print(safe(f"{made.env_id}: {made.kind}, {'open' if made.enabled else 'closed'}"))
        if args.what == "add" and ":" in made.env_id:
            print("an arena that runs plays it after its next start")
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {} if args.title is None else {"title": args.title}
    for text in cast("list[str]", args.set):
        name, sign, value = text.partition("=")
        if not sign:
            raise SpecError(f"--set {text!r:.60}: NAME=VALUE")
        given[name] = _value(value)
    return given


def _value(text: str) -> Any:
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"--set …={text:.60}: {error}") from None
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _backup(args: argparse.Namespace) -> int:
    from harena.arena import backup

    data: Path = args.data or data_folder()
    if not data.is_dir():
        raise SpecError(f"{data} is no folder of an arena: say --data DIR")
    made = backup.backup(data, args.file)
    if args.json:
        print_json({"file": str(args.file), **made})
        return 0
    print(safe(f"{args.file}: {made['files']} files, {made['bytes']} bytes before packing. It holds secrets."))
    return 0


def _gc(args: argparse.Namespace) -> int:
    from harena.arena import audit
    from harena.arena.storage import collect
    from harena.arena.storage.location import open_files

    settings = settings_of(args)
    store = open_store(settings)
    try:
        done = collect.collect(store, open_files(settings.files), settings.retention, dry_run=args.dry_run)
    finally:
        store.close()
    if not args.dry_run:
        audit.record(settings.data, audit.command_line(), "gc")
    if args.json:
        print_json(dataclasses.asdict(done))
        return 0
    if done.forgotten:
        print(f"forgot the replays and logs of {done.forgotten.matches} matches")
        print(f"forgot the logs and practice replays of {done.forgotten.submissions} submissions")
    print(f"{done.kept} files are kept ({done.kept_bytes} bytes)")
    would = "would be " if args.dry_run else ""
    print(f"{done.retired} {would}retired ({done.retired_bytes} bytes): deleted after a day, unless a row names them")
    print(f"{done.purged} {would}deleted ({done.purged_bytes} bytes), {done.restored} {would}taken back")
    return 0


def _restore(args: argparse.Namespace) -> int:
    from harena.arena import backup

    made = backup.restore(args.file, args.data)
    if args.json:
        print_json({"data": str(args.data), **made})
        return 0
    print(safe(f"{args.data}: {made['files']} files. Start it with `harena up --data {args.data}`."))
    return 0
