"""The paths that existing clients speak, field by field as they know them. Everything behind them is that of /v1."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

import harena
from harena import schema
from harena.api import auth
from harena.api.answers import views
from harena.api.answers.boards import Ask
from harena.api.answers.openapi import answers
from harena.api.auth import Anyone, Principal, Reader
from harena.api.context import Api, ApiOf, reply
from harena.api.http import uploads
from harena.api.http.metrics import CONTENT_TYPE
from harena.api.routes.boards import CachedRoute, Date, Score, User, answer, moment, respond
from harena.api.routes.environments import cached_list, installed
from harena.api.routes.environments import respond as send
from harena.api.routes.submissions import find, remove, take
from harena.arena.db import integrity
from harena.arena.db.models import MAX_NAME, BoardKind, EnvironmentKind, NotFound, State
from harena.arena.db.records import Filter, Sort, SubmissionRecord

router = APIRouter(tags=["contract"], route_class=CachedRoute)

OWNERS_ONLY = "the reason is its owner's to see: send the key, or the client id as X-Client-Id"
LOG_CHARACTERS = 4000
"""The end of a log that a result shows."""
Limit = Annotated[int, Query(ge=1, le=100)]
KindOf = Annotated[
    Literal["verified", "self-reported", "ladder"] | None, Query(description="Self-reported ones only when asked for.")
]


@router.get("/health", responses=answers(schema.Health), summary="Whether the server and its database answer")
def health(api: ApiOf) -> Response:
    api.store.events.last()
    found = (integrity.writable(api.settings.data), api.store.database.problem(), api.files_watch.problem())
    problems = tuple(problem for problem in dict.fromkeys(found) if problem)
    status = "degraded" if problems else "healthy"
    return reply(schema.Health(status=status, version=harena.__version__, problems=problems))


@router.get(
    "/metrics",
    responses=answers(text="Prometheus text.", media=["text/plain"]),
    summary="Counters for Prometheus; from elsewhere than this machine with a key, or the host's token for them",
)
def metrics(api: ApiOf, request: Request) -> Response:
    auth.check_scraper(api, request)
    return Response(api.metrics.text(), 200, {}, CONTENT_TYPE)


@router.post(
    "/api/submit/",
    responses=answers(schema.ContractSubmitted),
    openapi_extra=uploads.CONTRACT_BODY,
    summary="Hands in code",
)
@router.post("/api/submit", include_in_schema=False)
@router.post(
    "/submissions/",
    responses=answers(schema.ContractSubmitted),
    openapi_extra=uploads.CONTRACT_BODY,
    summary="The older path",
)
@router.post("/submissions", include_in_schema=False)
async def submit(api: ApiOf, request: Request, who: Anyone) -> Response:
    made = await take(api, request, who, contract=True)
    ladder = await run_in_threadpool(api.store.environments.get, made.env_id)
    board = "ladder" if ladder.kind is EnvironmentKind.LADDER else made.kind.value
    return reply(views.fill(schema.ContractSubmitted, made, status="queued", board=board))


@router.get("/api/results/{submission_id}", responses=answers(schema.ContractResult), summary="How it stands")
@router.get("/submissions/{submission_id}", responses=answers(schema.ContractResult), summary="The older path")
def result(api: ApiOf, who: Reader, submission_id: str) -> Response:
    found = find(api, who, submission_id)
    return reply(views.contract_result(found, _error(who, found), _log(api, who, found)))


@router.delete("/submissions/{submission_id}", responses=answers(schema.ContractResult), summary="The older path")
def delete(api: ApiOf, request: Request, who: Anyone, submission_id: str) -> Response:
    address = str(request.scope["state"].get("address", "")) if who.key is None else ""
    return reply(views.contract_result(remove(api, who, submission_id, address=address), None, None))


@router.get(
    "/api/leaderboard/environments",
    responses=answers(list[schema.ContractEnvironment]),
    summary="What can be played here",
)
async def environments(api: ApiOf, request: Request, who: Reader) -> Response:
    found = await cached_list(api, who, "contract", lambda found: [views.contract_environment(one) for one in found])
    return send(request, found)


@router.get("/api/leaderboard/", responses=answers(list[schema.ContractEntry]), summary="A board")
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
    return await _board(api, request, who, ask)


@router.get("/leaderboard/{env_id:path}", responses=answers(list[schema.ContractEntry]), summary="The older path")
async def old_leaderboard(
    api: ApiOf,
    request: Request,
    who: Reader,
    env_id: Annotated[str, Path(min_length=1, max_length=MAX_NAME)],
    limit: Limit = 50,
) -> Response:
    return await _board(api, request, who, Ask(env_id=env_id.rstrip("/") or env_id, limit=limit))


async def _board(api: Api, request: Request, who: Principal, ask: Ask) -> Response:
    try:
        return respond(request, await run_in_threadpool(answer, api, request, who, ask, contract=True))
    except NotFound:
        if await run_in_threadpool(installed, api, ask.env_id) is None:
            raise
        return reply([])  # nobody has submitted to it yet


def _sees(who: Principal, of: SubmissionRecord) -> bool:
    """The reason and the log are the owner's. What was sent with neither key nor X-Client-Id has no owner who could
    ask, so whoever has its id may read them, as the contract says."""
    return who.sees(of) or (of.anonymous and of.client_id is None)


def _error(who: Principal, of: SubmissionRecord) -> str | None:
    if views.contract_status(of.state) != "failed":
        return None
    if _sees(who, of):
        return of.reason or of.state.value
    return "cancelled" if of.state is State.CANCELLED else OWNERS_ONLY


def _log(api: Api, who: Principal, of: SubmissionRecord) -> str | None:
    return api.arena.submissions.log(of)[-LOG_CHARACTERS:] if _sees(who, of) else None
