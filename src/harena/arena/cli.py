"""The part of the `harena` command that works on an arena's data folder: checks, ratings made again, API keys.
Guarantees: a mistake is one line on stderr that says what to do; what changes ratings wants the folder for itself. Keys
and checks also work while an arena serves the folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harena.arena.variables import DEFAULT_DATA, data_folder
from harena.command import UNAVAILABLE, USAGE, Action, guarded, print_json
from harena.errors import BackendUnavailable, HarenaError, SpecError
from harena.terminal import safe, table

if TYPE_CHECKING:
    from harena.arena.db.accounts.keys import KeyRecord
    from harena.arena.db.store import Store
    from harena.arena.settings import Settings
    from harena.arena.submissions.verify import Finding

OK, NO = 0, 1
SAMPLE = 20
EXTRAS: dict[str, str] = dict.fromkeys(("sqlalchemy", "openskill", "msgspec", "numpy", "zstandard"), "arena")
DAY_S = 86400.0

VERIFY_EPILOG = """\
verdicts:
  same       done again, it gives the same
  unlike     the agents played otherwise this time, as those that throw dice do; the recorded result stands
  differs    what is stored does not follow from what was played: somebody has to look
  unchecked  there is nothing to compare

exit codes:
  0    nothing differs
  1    something differs
  2    a wrong argument
  3    a package is missing; says what to install"""

REBUILD_EPILOG = """\
exit codes:
  0    the ratings and the board are what the match log gives
  1    they were not; without --check they are now
  2    a wrong argument, or an arena serves it: stop it first, or use --check"""


def fill(name: str, parser: argparse.ArgumentParser) -> None:
    """Gives the command of this name its options and its action."""
    {"arena": _fill_arena, "ratings": _fill_ratings, "keys": _fill_keys}[name](parser)


# ---- options ----


def _fill_arena(command: argparse.ArgumentParser) -> None:
    verify = _part(command, "verify", "check results: re-run replays, evaluate again on the same seeds", _verify)
    verify.epilog = VERIFY_EPILOG
    verify.add_argument("--submission", action="append", default=[], metavar="ID", help="its score, or its matches")
    verify.add_argument("--match", action="append", default=[], metavar="ID", help="its replay")
    verify.add_argument("--sample", type=int, metavar="N", help=f"so many by chance ({SAMPLE}, if nothing is named)")
    verify.add_argument("--again", action="store_true", help="let the agents of a match play it again, too")


def _fill_ratings(command: argparse.ArgumentParser) -> None:
    rebuild = _part(command, "rebuild", "make ratings and boards again from the match log", _rebuild)
    rebuild.epilog = REBUILD_EPILOG
    rebuild.add_argument("--env", metavar="ID", help="of this environment only")
    rebuild.add_argument("--check", action="store_true", help="only compare, change nothing")


def _fill_keys(command: argparse.ArgumentParser) -> None:
    parts = command.add_subparsers(title="what to do", metavar="WHAT", required=True)
    create = _add(parts, "create", "make a key; its token is shown this once", _create_key)
    create.add_argument("--owner", required=True, metavar="NAME", help="whose key it is")
    create.add_argument("--scopes", default="read,submit", metavar="LIST", help="of read, submit, host, admin")
    create.add_argument("--label", default="", metavar="TEXT", help="to tell it from others")
    create.add_argument("--days", type=float, metavar="N", help="until it expires (never)")
    show = _add(parts, "list", "all keys, without their tokens", _list_keys)
    show.add_argument("--owner", metavar="NAME", help="of this owner only")
    rotate = _add(parts, "rotate", "a new token in place of a key's; the old one ends", _rotate_key)
    rotate.add_argument("key", metavar="KEY", help="the key's id")
    rotate.add_argument("--grace", type=float, default=0.0, metavar="S", help="the old token lives so much longer (0)")
    revoke = _add(parts, "revoke", "end a key now", _revoke_key)
    revoke.add_argument("key", metavar="KEY", help="the key's id")


def _part(command: argparse.ArgumentParser, name: str, text: str, action: Action) -> argparse.ArgumentParser:
    return _add(command.add_subparsers(title="what to do", metavar="WHAT", required=True), name, text, action)


def _add(parts: Any, name: str, text: str, action: Action) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    part: argparse.ArgumentParser = parts.add_parser(name, help=text, description=text, formatter_class=raw)
    part.add_argument("--data", type=Path, metavar="DIR", help=f"the arena's folder ($HARENA_DATA, or {DEFAULT_DATA})")
    part.add_argument("--json", action="store_true", help="print the answer as JSON")
    part.set_defaults(action=guarded(action, extras=EXTRAS, code_of=code_of, before_dashes="options come before it"))
    return part


def code_of(error: HarenaError) -> int | None:
    from harena.arena.db.models import StoreError

    if isinstance(error, BackendUnavailable):
        return UNAVAILABLE
    return USAGE if isinstance(error, SpecError | StoreError) else None


# ---- what they do ----


def _verify(args: argparse.Namespace) -> int:
    from harena.arena.storage.location import open_files
    from harena.arena.submissions.service import Submissions
    from harena.arena.submissions.verify import Agreement, ResultVerifier
    from harena.match.run.runner import Runner

    settings = settings_of(args)
    store = open_store(settings)
    try:
        with Runner(settings.workers) as runner:
            files = open_files(settings.files)
            submissions = Submissions(store, store.jobs, files, settings)
            verifier = ResultVerifier(store, files, submissions, runner=runner)
            found: list[Finding] = []
            for submission_id in args.submission:
                found += verifier.verify_submission(submission_id)
            for match_id in args.match:
                found += verifier.verify_match(match_id, replay=args.again)
            named = bool(args.submission or args.match)
            if args.sample is not None or not named:
                found += verifier.sample(SAMPLE if args.sample is None else args.sample, replay=args.again)
    finally:
        store.close()
    if args.json:
        print_json([finding.as_json() for finding in found])
    else:
        for finding in found:
            _say(f"{finding.verdict:<9}  {finding.what} {finding.id}: {finding.detail}")
        bad = sum(finding.verdict is Agreement.DIFFERS for finding in found)
        _say(f"{len(found)} checked, {bad} differ")
    return NO if any(finding.verdict is Agreement.DIFFERS for finding in found) else OK


def _rebuild(args: argparse.Namespace) -> int:
    import contextlib

    from harena.arena.db.models import EnvironmentKind
    from harena.arena.ladder.rebuild import rebuild
    from harena.arena.lock import FolderLock

    settings = settings_of(args)
    with contextlib.nullcontext() if args.check else FolderLock(settings.data, shared=not settings.embedded):
        store = open_store(settings)
        try:
            if not args.check:
                store.hold()
            ladders = [
                environment.env_id
                for environment in store.environments.all(enabled_only=False)
                if environment.kind is EnvironmentKind.LADDER and args.env in (None, environment.env_id)
            ]
            if args.env is not None and not ladders:
                raise SpecError(f"{args.env} is no ladder of this arena")
            found = [
                rebuild(store, env_id, season.id, check=args.check)
                for env_id in ladders
                for season in store.seasons.all(env_id)
            ]
        finally:
            store.close()
    if args.json:
        print_json(
            [
                {
                    "env_id": one.env_id,
                    "season_id": one.season_id,
                    "matches": one.matches,
                    "behind": one.behind,
                    "same": one.same,
                    "rating": one.rating,
                    "line": one.line,
                }
                for one in found
            ]
        )
    for one in [] if args.json else found:
        late = f"; {one.behind} of them were not taken in yet" if one.behind else ""
        _say(f"{one.env_id}, season {one.season_id}: {one.matches} matches{late}: {'same' if one.same else 'differs'}")
        for difference in (one.rating, one.line):
            if difference:
                _say(f"  {difference}")
    return OK if all(one.same for one in found) else NO


def _create_key(args: argparse.Namespace) -> int:
    from harena.access import parse_scopes
    from harena.arena.db.models import Scope

    scopes = parse_scopes(args.scopes, Scope)
    if args.days is not None and not 0 < args.days <= 36500:
        raise SpecError(f"--days {args.days:g}: above 0 and at most 36500")
    lifetime_s = None if args.days is None else args.days * DAY_S
    return _with_store(
        args,
        lambda store: _show_new(args, *store.keys.create(args.owner, scopes, label=args.label, lifetime_s=lifetime_s)),
    )


def _list_keys(args: argparse.Namespace) -> int:
    def show(store: Store) -> int:
        keys = store.keys.of(args.owner) if args.owner is not None else _all_keys(store)
        if args.json:
            print_json([_key_json(key) for key in keys])
            return OK
        now = time.time()
        rows = [
            (key.id, safe(key.owner), ",".join(sorted(key.scopes)), safe(key.label), _state(key, now)) for key in keys
        ]
        print(table(("key", "owner", "scopes", "label", "state"), rows, left=("key", "owner", "scopes", "label")))
        return OK

    return _with_store(args, show)


def _rotate_key(args: argparse.Namespace) -> int:
    if not 0 <= args.grace <= 365 * DAY_S:
        raise SpecError(f"--grace {args.grace:g}: from 0 to a year of seconds")
    return _with_store(args, lambda store: _show_new(args, *store.keys.rotate(args.key, grace_s=args.grace)))


def _revoke_key(args: argparse.Namespace) -> int:
    def revoke(store: Store) -> int:
        store.keys.get(args.key)  # raises NotFound
        store.keys.revoke(args.key)
        if args.json:
            print_json(_key_json(store.keys.get(args.key)))
        else:
            _say(f"{args.key} is revoked")
        return OK

    return _with_store(args, revoke)


# ---- parts ----


def settings_of(args: argparse.Namespace) -> Settings:
    from harena.arena.settings import Settings

    data: Path = args.data or data_folder()
    if getattr(args, "rest", None):
        raise SpecError(f"{args.rest[0]!r} after --: nothing comes there")
    if not data.is_dir():
        raise SpecError(f"{data} is no folder of an arena: say --data DIR, or start one there with `harena up`")
    return Settings.from_env(data)


def open_store(settings: Settings) -> Store:
    from harena.arena.db.store import Store

    return Store(settings.database_url)


def _with_store(args: argparse.Namespace, act: Callable[[Store], int]) -> int:
    store = open_store(settings_of(args))
    try:
        return act(store)
    finally:
        store.close()


def _all_keys(store: Store) -> list[KeyRecord]:
    keys: list[KeyRecord] = []
    while page := store.keys.all(limit=100, offset=len(keys)):
        keys += page
    return keys


def _show_new(args: argparse.Namespace, key: KeyRecord, token: str) -> int:
    if args.json:
        print_json({"key": _key_json(key), "token": token})
    else:
        print(token)
        print(f"harena: key {key.id}; the token above is shown this once", file=sys.stderr)
    return OK


def _key_json(key: KeyRecord) -> dict[str, Any]:
    return {
        "id": key.id,
        "owner": key.owner,
        "scopes": sorted(key.scopes),
        "label": key.label,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _state(key: KeyRecord, now: float) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None:
        return "live"
    days = (key.expires_at - now) / DAY_S
    return "expired" if days <= 0 else f"{days:.0f} days left"


def _say(text: str) -> None:
    """Names in it may be anybody's."""
    print(safe(text))
