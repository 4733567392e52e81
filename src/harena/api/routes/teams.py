"""/v1/teams: people who share quota, finalists and rows on boards."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from harena import schema
from harena.api import auth
from harena.api.answers import views
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Keyed, Principal
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError, not_found
from harena.arena.db.models import MAX_NAME, Scope

router = APIRouter(prefix="/v1", tags=["teams"])

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
TeamName = Annotated[str, Path(min_length=1, max_length=MAX_NAME)]


class NewTeam(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Name


class Member(BaseModel):
    model_config = ConfigDict(extra="forbid")
    owner: Name


@router.get(
    "/teams", responses=answers(listed(schema.Team, "teams")), summary="Your teams, and those that have invited you"
)
def teams(api: ApiOf, who: Keyed) -> Response:
    names = [one.team for one in api.store.teams.memberships(who.owner or "")]
    return reply({"teams": [_team(api, name) for name in names]})


@router.post("/teams", status_code=201, responses=answers(schema.Team, status=201), summary="Founds a team")
def create(api: ApiOf, who: Keyed, body: NewTeam) -> Response:
    captain = _person(api, who)
    if auth.looks(body.name) in api.queries.keyed_looks(auth.looks) or body.name == auth.ANONYMOUS:
        raise ApiError(409, "conflict", f"the name {body.name[:80]!r} is taken", hint="choose another one")
    api.store.teams.create(body.name, captain)
    return reply(_team(api, body.name), 201)


@router.post("/teams/{team:path}/invite", responses=answers(schema.Team), summary="Captain: invites somebody")
def invite(api: ApiOf, who: Keyed, team: TeamName, body: Member) -> Response:
    _mine(api, who, team)
    if body.owner not in api.queries.keyed_names():
        raise not_found(f"nobody with a key is called {body.owner[:80]!r}")
    api.store.teams.invite(team, body.owner, by=_person(api, who))
    return reply(_team(api, team))


@router.post("/teams/{team:path}/join", responses=answers(schema.Team), summary="Accepts an invitation")
def join(api: ApiOf, who: Keyed, team: TeamName) -> Response:
    _mine(api, who, team)
    api.store.teams.join(team, _person(api, who))
    return reply(_team(api, team))


@router.post(
    "/teams/{team:path}/leave",
    responses=answers(schema.Acknowledgement),
    summary="Leaves the team, or declines; the captain also removes others",
)
def leave(api: ApiOf, who: Keyed, team: TeamName, body: Member | None = None) -> Response:
    _mine(api, who, team)
    person = _person(api, who)
    api.store.teams.remove(team, person if body is None else body.owner, by=person)
    return reply(schema.Acknowledgement(ok=True))


def _person(api: Api, who: Principal) -> str:
    auth.require(who, Scope.SUBMIT)
    owner = who.owner or ""
    if api.store.teams.exists(owner):
        raise ApiError(403, "is_team", "this key is of a team, and a team is in no team", hint="use your own key")
    return owner


def _mine(api: Api, who: Principal, team: str) -> None:
    """A team that has nothing to do with the caller is not told from one that does not exist."""
    if all(one.team != team for one in api.store.teams.memberships(who.owner or "")):
        raise not_found(f"no team {team[:80]!r} has invited you")


def _team(api: Api, name: str) -> schema.Team:
    return schema.Team(name=name, members=tuple(map(views.membership, api.store.teams.members(name))))
