"""Code of `harena teams` and `harena webhooks`. Guarantees: as in `commands`. A secret is printed once, on stdout."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from harena import schema, terminal
from harena.client.blocking import ArenaClient
from harena.client.cli import NO, OK, TIMEOUT
from harena.client.commands import client_of, note, say
from harena.command import fail, print_json
from harena.errors import SpecError
from harena.terminal import safe

LOOK_S = 0.2

# ---- teams ----


def list_teams(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        found = client.teams()
    if args.json:
        print_json([schema.as_json(team) for team in found])
    elif found:
        say(terminal.table(("team", "member", "state"), [row for team in found for row in _rows(team)], left=_LEFT))
    else:
        note("you are in no team; `harena teams create NAME` founds one")
    return OK


def create_team(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        return _show_team(args, client.create_team(args.team))


def invite(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        return _show_team(args, client.invite(args.team, args.owner))


def join_team(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        return _show_team(args, client.join_team(args.team))


def members(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        found = next((team for team in client.teams() if team.name == args.team), None)
    if found is None:
        return fail(NO, f"you are not in the team {safe(args.team)!r}; `harena teams list` shows yours")
    return _show_team(args, found)


def leave_team(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        client.leave_team(args.team, args.member)
    if args.json:
        print_json({"team": args.team, "left": args.member})
    else:
        say(f"{safe(args.member or 'you')} left {safe(args.team)}")
    return OK


_LEFT = ("team", "member", "state")


def _show_team(args: argparse.Namespace, team: schema.Team) -> int:
    if args.json:
        print_json(schema.as_json(team))
    else:
        say(terminal.table(("team", "member", "state"), _rows(team), left=_LEFT))
    return OK


def _rows(team: schema.Team) -> list[tuple[str, str, str]]:
    return [(safe(team.name), safe(one.owner), _state(one)) for one in team.members]


def _state(member: schema.Membership) -> str:
    if not member.joined:
        return "invited"
    return "captain" if member.captain else "member"


# ---- webhooks ----


def list_webhooks(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        found = client.hooks()
    if args.json:
        print_json([schema.as_json(hook) for hook in found])
    elif found:
        rows = [(hook.id, hook.kind, safe(hook.target), _hook_state(hook)) for hook in found]
        say(terminal.table(("id", "kind", "target", "state"), rows, left=("id", "kind", "target", "state")))
    else:
        note("you have no webhooks; `harena webhooks add URL` adds one")
    return OK


def add_webhook(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        made = client.add_webhook(args.target)
    if args.json:
        print_json(schema.as_json(made))
    else:
        say(f"{made.id}  {safe(made.target)}")
        say(f"secret: {safe(made.secret or '')}")
        note("the secret signs what is sent, and is shown this once")
    return OK


def remove_webhook(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        hook = _full_id(args.id, client.hooks())
        client.remove_hook(hook)
    if args.json:
        print_json({"id": hook, "removed": True})
    else:
        say(f"{safe(hook)} is removed")
    return OK


def try_webhook(args: argparse.Namespace) -> int:
    """Wait for the first attempt: whoever tests does not wait for the retries."""
    with client_of(args) as client:
        hook = _full_id(args.id, client.hooks())
        sent = client.try_webhook(hook)
        end = time.monotonic() + args.timeout
        while sent.done_at is None and not sent.reason:
            if time.monotonic() > end:
                return fail(TIMEOUT, f"the test was not sent within {args.timeout:g} s; it is tried on")
            time.sleep(LOOK_S)
            sent = _delivery(client, hook, sent.id) or sent
    if args.json:
        print_json(schema.as_json(sent))
        return OK if sent.done_at is not None else NO
    if sent.done_at is None:
        return fail(NO, f"the test did not arrive: {safe(sent.reason)}")
    say("the test arrived")
    return OK


def _delivery(client: ArenaClient, hook_id: str, delivery_id: int) -> schema.Delivery | None:
    return next((one for one in client.hook_deliveries(hook_id) if one.id == delivery_id), None)


def _full_id(given: str, found: Sequence[schema.Hook]) -> str:
    """The id of one's own that begins with what was typed."""
    alike = [hook.id for hook in found if given and hook.id.startswith(given)]
    if len(alike) > 1:
        raise SpecError(f"{given} is the beginning of {len(alike)} of your webhooks: type more of it")
    return alike[0] if alike else given


def _hook_state(hook: schema.Hook) -> str:
    if hook.disabled:
        return "disabled: nothing arrived"
    return "on" if hook.confirmed else "not confirmed"
