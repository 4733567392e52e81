"""The paths that existing clients speak, field by field as they know them. Everything behind them is that of /v1."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

import harena
from harena.api import auth, shapes, uploads, views
from harena.api.auth import Anyone, Principal, Reader
from harena.api.boards import Ask
from harena.api.context import Api, ApiOf, reply
from harena.api.metrics import CONTENT_TYPE
from harena.api.routes.boards import CachedRoute, Date, Score, User, answer, moment, respond
from harena.api.routes.environments import overview
from harena.api.routes.submissions import find, remove, take
from harena.arena.db.models import MAX_NAME, BoardKind, State
from harena.arena.db.records import Filter, Sort, Submission

router = APIRouter(tags=["contract"], route_class=CachedRoute)

OWNERS_ONLY = "the reason is its owner's to see: send the key, or the client id as X-Client-Id"
Limit = Annotated[int, Query(ge=1, le=100)]
KindOf = Annotated[
    Literal["verified", "self-reported", "ladder"] | None, Query(description="Self-reported ones only when asked for.")
]


@router.get("/health", responses=shapes.answers(shapes.Health), summary="Whether the server and its database answer")
def health(api: ApiOf) -> Response:
    api.store.events.last()
    return reply({"status": "ok", "version": harena.__version__})


@router.get(
    "/metrics",
    responses=shapes.answers(text="Prometheus text.", media=["text/plain"]),
    summary="Counters for Prometheus; from elsewhere than this machine with a key, or the host's token for them",
)
def metrics(api: ApiOf, request: Request) -> Response:
    auth.check_scraper(api, request)
    return Response(api.metrics.text(), 200, {}, CONTENT_TYPE)


@router.post(
    "/api/submit/", responses=shapes.answers(shapes.Submitted), openapi_extra=uploads.BODY, summary="Hands in code"
)
@router.post("/api/submit", include_in_schema=False)
@router.post(
    "/submissions/", responses=shapes.answers(shapes.Submitted), openapi_extra=uploads.BODY, summary="The older path"
)
@router.post("/submissions", include_in_schema=False)
async def submit(api: ApiOf, request: Request, who: Anyone) -> Response:
    made = await take(api, request, who)
    return reply({"id": made.id, "status": "queued", "env_id": made.env_id, "algorithm": made.algorithm})


@router.get("/api/results/{submission_id}", responses=shapes.answers(shapes.Result), summary="How it stands")
@router.get("/submissions/{submission_id}", responses=shapes.answers(shapes.Result), summary="The older path")
def result(api: ApiOf, who: Reader, submission_id: str) -> Response:
    found = find(api, submission_id)
    return reply(views.contract_result(found, _error(api, who, found)))


@router.delete("/submissions/{submission_id}", responses=shapes.answers(shapes.Result), summary="The older path")
def delete(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    return reply(views.contract_result(remove(api, who, submission_id), None))


@router.get(
    "/api/leaderboard/environments",
    responses=shapes.answers(list[shapes.ContractEnvironment]),
    summary="What can be played here",
)
def environments(api: ApiOf, who: Reader) -> Response:
    found = [overview(api, env) for env in api.store.environments.all()]
    return reply(
        [
            {
                "id": env["env_id"],
                "env_id": env["env_id"],
                "name": env["title"],
                "kind": env["kind"],
                "entries": env["entries"],
                "submissions": env["submissions"],
            }
            for env in found
        ]
    )


@router.get("/api/leaderboard/", responses=shapes.answers(list[shapes.ContractEntry]), summary="A board")
@router.get("/api/leaderboard", include_in_schema=False)
async def leaderboard(
    api: ApiOf,
    request: Request,
    who: Reader,
    env_id: Annotated[str, Query(min_length=1, max_length=MAX_NAME)] = uploads.DEFAULT_ENV,
    limit: Limit = 50,
    user: User = None,
    algorithm: User = None,
    score_min: Score = None,
    score_max: Score = None,
    date_from: Date = None,
    date_to: Date = None,
    sort: Sort = Sort.SCORE_DESC,
    kind: KindOf = None,
) -> Response:
    where = Filter(
        user=user,
        algorithm=algorithm,
        score_min=score_min,
        score_max=score_max,
        date_from=moment(date_from),
        date_to=moment(date_to, end=True),
    )
    ask = Ask(env_id=env_id, board=None if kind is None else BoardKind(kind), where=where, sort=sort, limit=limit)
    return await _board(api, request, ask)


@router.get(
    "/leaderboard/{env_id:path}", responses=shapes.answers(list[shapes.ContractEntry]), summary="The older path"
)
async def old_leaderboard(
    api: ApiOf,
    request: Request,
    who: Reader,
    env_id: Annotated[str, Path(min_length=1, max_length=MAX_NAME)],
    limit: Limit = 50,
) -> Response:
    return await _board(api, request, Ask(env_id=env_id.rstrip("/") or env_id, limit=limit))


async def _board(api: Api, request: Request, ask: Ask) -> Response:
    return respond(request, await run_in_threadpool(answer, api, request, ask, contract=True))


def _error(api: Api, who: Principal, of: Submission) -> str | None:
    """The reason is the owner's. What was sent without a key and without a client id has no owner who could ask, so
    whoever has the id may read why it never had a score."""
    if views.contract_status(of.state) != "failed":
        return None
    nobodys = of.anonymous and of.client_id is None
    if who.sees(of) or (nobodys and of.score is None and not api.queries.was_scored(of.id)):
        return of.reason or of.state.value
    return "cancelled" if of.state is State.CANCELLED else OWNERS_ONLY
