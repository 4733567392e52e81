"""/v1 itself, who is asking, login and keys."""

from __future__ import annotations

import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

import harena
from harena import schema
from harena.api import auth
from harena.api.answers import views
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Anyone, Keyed, Principal
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError, not_found
from harena.arena.db.accounts.keys import MAX_TOKEN, KeyRecord
from harena.arena.db.models import Scope
from harena.arena.queue.kinds import EVALUATIONS

router = APIRouter(prefix="/v1", tags=["keys and sessions"])

MAX_LIFETIME_S = 10 * 366 * 86400.0
MAX_KEYS = 50
"""Maximum number of keys that an owner can create."""
Label = Annotated[str, Field(max_length=200)]


class Login(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    token: Annotated[str, Field(min_length=1, max_length=MAX_TOKEN)]


class KeyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    owner: Annotated[str, Field(max_length=200)] = ""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))] = [Scope.READ, Scope.SUBMIT]
    label: Label = ""
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_LIFETIME_S, allow_inf_nan=False)] | None = None


class Rotate(BaseModel):
    model_config = ConfigDict(extra="forbid")
    grace_s: Annotated[float, Field(ge=0, le=30 * 86400.0, allow_inf_nan=False)] = 0.0


@router.get("", responses=answers(schema.About), summary="What this server is, and who you are to it")
def root(api: ApiOf, who: Anyone) -> Response:
    settings = api.settings
    return reply(
        schema.About(
            name="harena",
            version=harena.__version__,
            anonymous_submit=settings.anonymous_submit,
            anonymous_read=settings.anonymous_read,
            me=None if who.key is None else visitor(who, who.key),
            time=datetime.datetime.fromtimestamp(api.clock(), datetime.UTC),
            queue=schema.Load(waiting=api.arena.queue.waiting(EVALUATIONS), running=len(api.arena.queue.running())),
        )
    )


@router.get("/me", responses=answers(schema.Me), summary="Your key's name, scopes and quota")
def me(api: ApiOf, who: Keyed) -> Response:
    return reply(_me(api, who))


@router.post("/login", responses=answers(schema.Me), summary="A session cookie for a key")
def login(api: ApiOf, request: Request, body: Login) -> Response:
    key = auth.authenticate(api, body.token.strip())
    cookie = api.sessions.cookie(key)
    answer = reply(_me(api, Principal(key=key, csrf=api.sessions.csrf(cookie))))
    auth.set_cookie(answer, cookie, secure=request.url.scheme == "https")
    return answer


@router.post("/logout", responses=answers(schema.Acknowledgement), summary="Ends the session in this browser")
async def logout(request: Request) -> Response:
    answer = reply(schema.Acknowledgement(ok=True))
    auth.clear_cookie(answer, secure=request.url.scheme == "https")
    return answer


@router.get("/keys", responses=answers(listed(schema.Key, "keys")), summary="Your keys; an admin's: all")
def keys(api: ApiOf, who: Keyed) -> Response:
    found = api.queries.all_keys() if who.can(Scope.ADMIN) else api.store.keys.of(who.owner or "")
    return reply({"keys": [views.key(key) for key in found]})


@router.post(
    "/keys",
    status_code=201,
    responses=answers(schema.NewKey, status=201),
    summary="A new key; its token is shown once",
)
def create_key(api: ApiOf, who: Keyed, body: KeyRequest) -> Response:
    owner = body.owner or who.owner or ""
    if not who.can(Scope.ADMIN):
        _check_own(who, owner, body)
        if sum(key.revoked_at is None for key in api.store.keys.of(owner)) >= MAX_KEYS:
            raise ApiError(409, "too_many_keys", f"{owner[:80]!r} has {MAX_KEYS} keys", hint="revoke one of them first")
    key, token = api.store.keys.create(owner, body.scopes, label=body.label, lifetime_s=body.expires_in_s)
    return reply(schema.NewKey(key=views.key(key), token=token), 201)


@router.post("/keys/{key_id}/rotate", responses=answers(schema.NewKey), summary="A new token in place of a key's")
def rotate(api: ApiOf, who: Keyed, key_id: str, body: Rotate | None = None) -> Response:
    _own_key(api, who, key_id)
    key, token = api.store.keys.rotate(key_id, grace_s=body.grace_s if body else 0.0)
    return reply(schema.NewKey(key=views.key(key), token=token))


@router.delete(
    "/keys/{key_id}", responses=answers(schema.Acknowledgement), summary="Revokes a key, at once and for good"
)
def revoke(api: ApiOf, who: Keyed, key_id: str) -> Response:
    _own_key(api, who, key_id)
    api.store.keys.revoke(key_id)
    return reply(schema.Acknowledgement(ok=True))


def visitor(who: Principal, key: KeyRecord) -> schema.Visitor:
    return schema.Visitor(owner=key.owner, scopes=views.scopes(key), csrf=who.csrf)


def _me(api: Api, who: Principal) -> schema.Me:
    assert who.key is not None
    owner, default = api.store.owners.ensure(who.key.owner), api.settings.quota
    today, active = api.store.quotas.used(owner.name)
    quota = schema.Quota(
        per_day=default.per_day if owner.per_day is None else owner.per_day,
        at_once=default.at_once if owner.at_once is None else owner.at_once,
        used_today=today,
        active=active,
    )
    teams = tuple(map(views.membership, api.store.teams.memberships(owner.name)))
    return schema.Me(**views.same(visitor(who, who.key)), quota=quota, teams=teams)


def _check_own(who: Principal, owner: str, body: KeyRequest) -> None:
    """Nobody gives more than they have, nor to another name, nor for longer."""
    key = who.key
    if key is None or owner != key.owner:
        raise ApiError(403, "not_you", "only an admin makes keys for others", hint="leave owner out")
    more = [scope.value for scope in body.scopes if not key.allows(scope)]
    if more:
        raise ApiError(403, "scope_missing", f"your key lacks {', '.join(more)}", hint="ask for fewer scopes")
    if key.expires_at is not None:
        raise ApiError(403, "key_expires", "a key that expires makes no others", hint="ask the host, or rotate it")


def _own_key(api: Api, who: Principal, key_id: str) -> KeyRecord:
    """A key that is not the caller's is not told from one that is not there. A key with less does not touch one with
    more: whoever rotates a key has its scopes."""
    missing = not_found(f"no API key {key_id[:40]!r}")
    if not auth.ascii_id(key_id):
        raise missing
    key = api.store.keys.get(key_id)
    if who.can(Scope.ADMIN):
        return key
    if key.owner != who.owner:
        raise missing
    if who.key is None or not all(who.key.allows(scope) for scope in key.scopes):
        raise ApiError(403, "scope_missing", "that key has scopes which yours lacks", hint="use that key itself")
    return key
