"""/v1/admin: the host's desk. Environments, queue, benched agents, owners and their quotas."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from harena import schema
from harena.api.answers import views
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Host
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError
from harena.api.routes.boards import MAX_OFFSET
from harena.api.routes.environments import MAX_SEASON, EnvId, game_info, overview
from harena.api.routes.matches import Id
from harena.api.routes.submissions import find
from harena.arena import audit
from harena.arena.db.models import ACTIVE, MAX_NAME, Access, Conflict, EnvironmentKind, has_mark
from harena.arena.db.queries import MAX_LISTED
from harena.errors import HarenaError
from harena.match import registry

router = APIRouter(prefix="/v1/admin", tags=["the host's desk"])

JobId = Annotated[int, Path(ge=1, le=MAX_SEASON)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]


class PutEnvironment(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    kind: EnvironmentKind | None = None
    settings: dict[str, Any] | None = None
    enabled: bool = True
    access: Access | None = None
    """None: as it is; a new one is public."""


class Guest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    owner: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class BenchOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")
    submission_id: Id
    reason: Annotated[str, Field(max_length=1000)] = ""


class BulkCancel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    owner: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None


class PutQuota(BaseModel):
    model_config = ConfigDict(extra="forbid")
    owner: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    per_day: Count | None = None
    at_once: Count | None = None


@router.get("/queue", responses=answers(schema.JobQueue), summary="Jobs: how many, which run, which died")
def queue(api: ApiOf, who: Host) -> Response:
    counts: dict[str, dict[str, int]] = {}
    for (kind, state), number in api.arena.queue.counts().items():
        counts.setdefault(kind, {})[state.value] = number
    running, dead = api.arena.queue.running(), api.arena.queue.dead()
    jobs = schema.JobQueue(counts=counts, running=tuple(map(views.job, running)), dead=tuple(map(views.job, dead)))
    return reply(jobs)


@router.post("/jobs/{job_id}/revive", responses=answers(schema.Acknowledgement), summary="A dead job is tried again")
def revive(api: ApiOf, who: Host, job_id: JobId) -> Response:
    api.arena.queue.get(job_id)
    if not api.arena.queue.revive(job_id):
        raise ApiError(409, "conflict", "the job is not dead", hint="only dead jobs are revived")
    return reply(schema.Acknowledgement(ok=True))


@router.post("/jobs/{job_id}/cancel", responses=answers(schema.Acknowledgement), summary="Calls a job off")
def cancel(api: ApiOf, who: Host, job_id: JobId) -> Response:
    job = api.arena.queue.get(job_id)
    submission_id = job.payload.get("submission_id")
    if isinstance(submission_id, str) and api.store.submissions.get(submission_id).job_id == job_id:
        api.arena.submissions.cancel(submission_id)
    elif not api.arena.queue.cancel(job_id, reason="cancelled by the host"):
        raise ApiError(409, "conflict", "the job is over", hint="there is nothing to cancel")
    return reply(schema.Acknowledgement(ok=True))


@router.get(
    "/benched",
    responses=answers(listed(schema.BenchedAgent, "benched")),
    summary="Agents that sit on the bench, and why",
)
def benched(api: ApiOf, who: Host) -> Response:
    found = api.store.roster.all_benched()[:MAX_LISTED]
    known = api.queries.by_id({bench.submission_id for bench in found})
    agents = ((bench, known.get(bench.submission_id)) for bench in found)
    return reply({"benched": [views.benched(bench, of) for bench, of in agents if of is not None]})


@router.post("/bench", responses=answers(schema.Acknowledgement), summary="Takes an agent out of the ladder")
def bench(api: ApiOf, who: Host, body: BenchOrder) -> Response:
    api.store.roster.bench(find(api, who, body.submission_id).id, body.reason or "benched by the host")
    return _done(api)


@router.post("/unbench", responses=answers(schema.Acknowledgement), summary="Lets it play again")
def unbench(api: ApiOf, who: Host, body: BenchOrder) -> Response:
    api.store.roster.unbench(find(api, who, body.submission_id).id)
    return _done(api)


@router.get(
    "/environments",
    responses=answers(listed(schema.EnvironmentWithSettings, "environments")),
    summary="All environments, with their settings",
)
def environments(api: ApiOf, who: Host) -> Response:
    found = api.store.environments.all(enabled_only=False)
    return reply({"environments": [views.environment_with_settings(overview(api, env), env.settings) for env in found]})


@router.put("/environments", responses=answers(schema.Environment), summary="Adds or changes an environment")
def put_environment(api: ApiOf, who: Host, body: PutEnvironment) -> Response:
    if ":" in body.env_id and not _trusted(body.env_id):
        raise ApiError(
            422,
            "invalid",
            "an id with a colon names code to import, which only the operator of the server may choose",
            hint=f"on the server: harena envs add {body.env_id[:80]}; then restart it. Or list it in HARENA_GAMES",
        )
    made = api.arena.put_environment(
        body.env_id, kind=body.kind, settings=body.settings, enabled=body.enabled, access=body.access
    )
    game_info.cache_clear()
    api.boards.forget()
    return reply(overview(api, made))


@router.get("/guests", responses=answers(schema.Guests), summary="Who is invited to an environment")
def guests(api: ApiOf, who: Host, env_id: EnvId) -> Response:
    return _guests(api, env_id)


@router.post("/guests", responses=answers(schema.Guests), summary="Invites an owner or a team to an environment")
def invite(api: ApiOf, who: Host, body: Guest) -> Response:
    env_id = api.store.environments.get(body.env_id).env_id
    if has_mark(body.owner):
        raise ApiError(422, "invalid", "an owner without a key cannot be invited", hint="make a key for them first")
    api.store.guests.invite(env_id, body.owner)
    return _guests(api, env_id)


@router.post("/guests/remove", responses=answers(schema.Guests), summary="Takes an invitation back")
def uninvite(api: ApiOf, who: Host, body: Guest) -> Response:
    api.store.guests.remove(body.env_id, body.owner)
    api.boards.forget()
    return _guests(api, body.env_id)


def _guests(api: Api, env_id: str) -> Response:
    env_id = api.store.environments.get(env_id).env_id
    return reply(schema.Guests(env_id=env_id, owners=tuple(api.store.guests.of(env_id))))


@router.get("/owners", responses=answers(listed(schema.OwnerSummary, "owners")), summary="Owners and their quotas")
def owners(api: ApiOf, who: Host, offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0) -> Response:
    return reply({"owners": [views.owner(one) for one in api.queries.owners(offset=offset)]})


@router.put("/quotas", responses=answers(schema.Acknowledgement), summary="An owner's own quota; null: the default")
def put_quota(api: ApiOf, who: Host, body: PutQuota) -> Response:
    api.store.owners.set_quota(body.owner, per_day=body.per_day, at_once=body.at_once)
    return reply(schema.Acknowledgement(ok=True))


def _trusted(env_id: str) -> bool:
    try:
        return registry.resolve(env_id) == env_id
    except HarenaError:
        return False


@router.post(
    "/cancel",
    responses=answers(schema.Cancelled),
    summary="Cancels all submissions that wait or run, of an environment or an owner if one is named",
)
def cancel_all(api: ApiOf, who: Host, body: BulkCancel) -> Response:
    number = 0
    while found := api.store.submissions.where(owner=body.owner, env_id=body.env_id, states=ACTIVE, limit=100):
        done = 0
        for one in found:
            with contextlib.suppress(Conflict):  # it ended by itself just now
                api.arena.submissions.cancel(one.id)
                done += 1
        number += done
        if not done:
            break
    api.boards.forget()
    return reply(schema.Cancelled(cancelled=number))


@router.get(
    "/audit", responses=answers(listed(schema.AuditEntry, "entries")), summary="What hosts have changed, newest first"
)
def audit_log(api: ApiOf, who: Host, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Response:
    return reply({"entries": [views.audit(entry) for entry in audit.latest(api.settings.data, limit)]})


def _done(api: Api) -> Response:
    api.boards.forget()
    api.arena.matchmaker.wake()
    return reply(schema.Acknowledgement(ok=True))
