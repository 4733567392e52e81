"""The verbs for teams and webhooks, in the way of `calls`: what each asks, and how the answer is read."""

from __future__ import annotations

from urllib.parse import quote

from harena import schema
from harena.client.calls import Call, checked_id, many, nothing, one
from harena.client.upload import sendable
from harena.errors import SpecError


def teams() -> Call[list[schema.Team]]:
    """Your teams, and those that have invited you, with their members."""
    return Call(path="/v1/teams", decode=many(schema.Team, "teams"))


def create_team(name: str) -> Call[schema.Team]:
    """Found a team; you are its captain."""
    return Call(method="POST", path="/v1/teams", body={"name": sendable(name)}, decode=one(schema.Team))


def invite(team: str, owner: str) -> Call[schema.Team]:
    """Invite somebody who has a key. For the captain."""
    return Call(method="POST", path=_team(team, "invite"), body={"owner": sendable(owner)}, decode=one(schema.Team))


def join_team(team: str) -> Call[schema.Team]:
    """Accept the invitation of a team."""
    return Call(method="POST", path=_team(team, "join"), decode=one(schema.Team))


def leave_team(team: str, member: str | None = None) -> Call[None]:
    """Leave a team, or decline its invitation. The captain also removes a `member`."""
    body = None if member is None else {"owner": sendable(member)}
    return Call(method="POST", path=_team(team, "leave"), body=body, decode=nothing)


def hooks() -> Call[list[schema.Hook]]:
    """Your webhooks and mail addresses."""
    return Call(path="/v1/hooks", decode=many(schema.Hook, "hooks"))


def add_webhook(target: str) -> Call[schema.NewHook]:
    """Add a URL that is told of results and changes of rank. Only this answer has the secret that signs them."""
    body = {"kind": "webhook", "target": sendable(target)}
    return Call(method="POST", path="/v1/hooks", body=body, decode=one(schema.NewHook))


def remove_hook(hook_id: str) -> Call[None]:
    return Call(method="DELETE", path=_hook(hook_id), decode=nothing)


def try_webhook(hook_id: str) -> Call[schema.Delivery]:
    """Send a test there. `hook_deliveries` tells how it went."""
    return Call(method="POST", path=_hook(hook_id, "/test"), decode=one(schema.Delivery))


def hook_deliveries(hook_id: str) -> Call[list[schema.Delivery]]:
    """What was sent there last, the newest first."""
    return Call(path=_hook(hook_id, "/deliveries"), decode=many(schema.Delivery, "deliveries"))


def _team(name: str, what: str) -> str:
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise SpecError(f"{name[:80]!r} is not the name of a team")
    return f"/v1/teams/{quote(sendable(name), safe='')}/{what}"


def _hook(hook_id: str, rest: str = "") -> str:
    return f"/v1/hooks/{checked_id(hook_id, 'webhook')}{rest}"
