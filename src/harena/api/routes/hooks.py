"""/v1/hooks: webhooks and mail for results and changes of rank."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from harena import schema
from harena.api import auth
from harena.api.answers import views
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Keyed, Principal
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError, not_found
from harena.arena.db.models import HookKind, Scope
from harena.arena.db.notices import HookRecord
from harena.arena.notices.transport import MAX_URL

router = APIRouter(prefix="/v1/hooks", tags=["webhooks and mail"])

TEST = "test"
"""The event of a delivery that its owner asked for."""
GUESSES = 5
"""Wrong codes after which a mail address is removed."""


class HookRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: HookKind
    target: Annotated[str, Field(min_length=1, max_length=MAX_URL)]


class Code(BaseModel):
    model_config = ConfigDict(extra="forbid")
    code: Annotated[str, Field(min_length=1, max_length=20)]


@router.get("", responses=answers(listed(schema.Hook, "hooks")), summary="Your webhooks and mail addresses")
def hooks(api: ApiOf, who: Keyed) -> Response:
    return reply({"hooks": [views.hook(one) for one in api.store.notices.hooks_of(who.owner or "")]})


@router.post(
    "",
    status_code=201,
    responses=answers(schema.NewHook, status=201),
    summary="Adds a webhook, or a mail address that must be confirmed",
)
def create_hook(api: ApiOf, who: Keyed, body: HookRequest) -> Response:
    auth.require(who, Scope.SUBMIT)
    made = api.arena.notices.add(who.owner or "", body.kind, body.target)
    secret = made.secret if made.kind is HookKind.WEBHOOK else None
    return reply(schema.NewHook(**views.same(views.hook(made)), secret=secret), 201)


@router.post("/{hook_id}/confirm", responses=answers(schema.Hook), summary="Confirms a mail address with its code")
def confirm(api: ApiOf, who: Keyed, hook_id: str, body: Code) -> Response:
    found = _own(api, who, hook_id)
    if found.kind is HookKind.MAIL and found.confirmed_at is None:
        if not hmac.compare_digest(found.secret.encode(), body.code.strip().encode("utf-8", "replace")):
            if api.store.notices.count_guess(found.id) >= GUESSES:
                api.store.notices.remove_hook(found.id)
            raise ApiError(403, "wrong_code", "the code is wrong", hint="look it up in the mail")
        api.store.notices.confirm(found.id)
    return reply(views.hook(_own(api, who, hook_id)))


@router.get(
    "/{hook_id}/deliveries",
    responses=answers(listed(schema.Delivery, "deliveries")),
    summary="What was sent there last, and how it went",
)
def deliveries(api: ApiOf, who: Keyed, hook_id: str) -> Response:
    found = api.store.notices.deliveries_of(_own(api, who, hook_id).id)
    return reply({"deliveries": [views.fill(schema.Delivery, one) for one in found]})


@router.post(
    "/{hook_id}/test",
    status_code=201,
    responses=answers(schema.Delivery, status=201),
    summary="Sends a test to a webhook; its deliveries tell how it went",
)
def test_hook(api: ApiOf, who: Keyed, hook_id: str) -> Response:
    found = _own(api, who, hook_id)
    if found.kind is not HookKind.WEBHOOK:
        raise ApiError(422, "invalid", "only a webhook can be tested", hint="a mail address is confirmed by its code")
    sent = api.store.notices.deliveries_of(found.id)
    if any(one.event == TEST and one.next_at is not None for one in sent):
        raise ApiError(409, "conflict", "a test is under way", hint="GET its deliveries", headers={"Retry-After": "10"})
    made = api.store.notices.add_delivery(found.id, TEST, {"owner": found.owner})
    delivery = next(one for one in api.store.notices.deliveries_of(found.id) if one.id == made)
    return reply(views.fill(schema.Delivery, delivery), 201)


@router.delete("/{hook_id}", responses=answers(schema.Acknowledgement), summary="Removes it")
def delete_hook(api: ApiOf, who: Keyed, hook_id: str) -> Response:
    api.store.notices.remove_hook(_own(api, who, hook_id).id)
    return reply(schema.Acknowledgement(ok=True))


def _own(api: Api, who: Principal, hook_id: str) -> HookRecord:
    missing = not_found(f"no webhook or mail address {hook_id[:40]!r}")
    if not auth.ascii_id(hook_id):
        raise missing
    auth.require(who, Scope.SUBMIT)
    found = [one for one in api.store.notices.hooks_of(who.owner or "") if one.id == hook_id]
    if not found:
        raise missing
    return found[0]
