"""/v1/admin: the host's desk. Environments, queue, benched agents, owners and their quotas."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from harena.api import shapes, views
from harena.api.auth import Host
from harena.api.context import Api, ApiOf, reply
from harena.api.errors import ApiError
from harena.api.queries import MAX_LISTED
from harena.api.routes.boards import MAX_OFFSET
from harena.api.routes.environments import MAX_SEASON, game_info, overview
from harena.api.routes.matches import Id
from harena.api.routes.submissions import find
from harena.arena.db.models import MAX_NAME, EnvironmentKind
from harena.arena.ladder import roster

router = APIRouter(prefix="/v1/admin", tags=["the host's desk"])

JobId = Annotated[int, Path(ge=1, le=MAX_SEASON)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]


class PutEnvironment(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    kind: EnvironmentKind | None = None
    settings: dict[str, Any] | None = None
    enabled: bool = True


class BenchOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")
    submission_id: Id
    reason: Annotated[str, Field(max_length=1000)] = ""


class PutQuota(BaseModel):
    model_config = ConfigDict(extra="forbid")
    owner: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    per_day: Count | None = None
    at_once: Count | None = None


@router.get("/queue", responses=shapes.answers(shapes.JobQueue), summary="Jobs: how many, which run, which died")
def queue(api: ApiOf, who: Host) -> Response:
    counts: dict[str, dict[str, int]] = {}
    for (kind, state), number in api.arena.queue.counts().items():
        counts.setdefault(kind, {})[state.value] = number
    running, dead = api.arena.queue.running(), api.arena.queue.dead()
    return reply({"counts": counts, "running": [*map(views.job, running)], "dead": [*map(views.job, dead)]})


@router.post("/jobs/{job_id}/revive", responses=shapes.answers(shapes.Done), summary="A dead job is tried again")
def revive(api: ApiOf, who: Host, job_id: JobId) -> Response:
    api.arena.queue.get(job_id)
    if not api.arena.queue.revive(job_id):
        raise ApiError(409, "conflict", "the job is not dead", hint="only dead jobs are revived")
    return reply({"ok": True})


@router.post("/jobs/{job_id}/cancel", responses=shapes.answers(shapes.Done), summary="Calls a job off")
def cancel(api: ApiOf, who: Host, job_id: JobId) -> Response:
    job = api.arena.queue.get(job_id)
    submission_id = job.payload.get("submission_id")
    if isinstance(submission_id, str) and api.store.submissions.get(submission_id).job_id == job_id:
        api.arena.submissions.cancel(submission_id)
    elif not api.arena.queue.cancel(job_id, reason="cancelled by the host"):
        raise ApiError(409, "conflict", "the job is over", hint="there is nothing to cancel")
    return reply({"ok": True})


@router.get("/benched", responses=shapes.answers(shapes.Benched), summary="Agents that sit on the bench, and why")
def benched(api: ApiOf, who: Host) -> Response:
    found = roster.all_benched(api.store)[:MAX_LISTED]
    known = api.queries.by_id({bench.submission_id for bench in found})
    return reply(
        {
            "benched": [
                {
                    "submission_id": bench.submission_id,
                    "owner": of.owner,
                    "algorithm": of.algorithm,
                    "version": of.version,
                    "env_id": of.env_id,
                    "reason": bench.reason,
                    "benched_at": views.time_text(bench.benched_at),
                }
                for bench in found
                if (of := known.get(bench.submission_id)) is not None
            ]
        }
    )


@router.post("/bench", responses=shapes.answers(shapes.Done), summary="Takes an agent out of the ladder")
def bench(api: ApiOf, who: Host, body: BenchOrder) -> Response:
    roster.bench(api.store, find(api, body.submission_id).id, body.reason or "benched by the host")
    return _done(api)


@router.post("/unbench", responses=shapes.answers(shapes.Done), summary="Lets it play again")
def unbench(api: ApiOf, who: Host, body: BenchOrder) -> Response:
    roster.unbench(api.store, find(api, body.submission_id).id)
    return _done(api)


@router.get(
    "/environments",
    responses=shapes.answers(shapes.EnvironmentsWithSettings),
    summary="All environments, with their settings",
)
def environments(api: ApiOf, who: Host) -> Response:
    found = api.store.environments.all(enabled_only=False)
    return reply({"environments": [{**overview(api, env), "settings": env.settings} for env in found]})


@router.put("/environments", responses=shapes.answers(shapes.Environment), summary="Adds or changes an environment")
def put_environment(api: ApiOf, who: Host, body: PutEnvironment) -> Response:
    if ":" in body.env_id:
        raise ApiError(422, "invalid", "an id with a colon names code to import", hint="add it on the command line")
    made = api.arena.put_environment(body.env_id, kind=body.kind, settings=body.settings, enabled=body.enabled)
    game_info.cache_clear()
    api.boards.forget()
    return reply(overview(api, made))


@router.get("/owners", responses=shapes.answers(shapes.Owners), summary="Owners and their quotas")
def owners(api: ApiOf, who: Host, offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0) -> Response:
    return reply(
        {
            "owners": [
                {
                    "owner": one.name,
                    "per_day": one.per_day,
                    "at_once": one.at_once,
                    "submissions": one.submissions,
                    "keys": one.keys,
                    "created_at": views.time_text(one.created_at),
                }
                for one in api.queries.owners(offset=offset)
            ]
        }
    )


@router.put("/quotas", responses=shapes.answers(shapes.Done), summary="An owner's own quota; null: the default")
def put_quota(api: ApiOf, who: Host, body: PutQuota) -> Response:
    api.store.owners.set_quota(body.owner, per_day=body.per_day, at_once=body.at_once)
    return reply({"ok": True})


def _done(api: Api) -> Response:
    api.boards.forget()
    api.arena.matchmaker.wake()
    return reply({"ok": True})
