"""/v1/boards: boards with filters and pages, from the cache where it has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Scope

from harena import schema
from harena.api import visibility
from harena.api.answers.boards import Ask, BoardPage
from harena.api.answers.openapi import answers
from harena.api.auth import Principal, Reader
from harena.api.context import Api, ApiOf
from harena.api.http.errors import ApiError
from harena.api.routes.environments import MAX_SEASON, EnvId
from harena.arena.db.models import MAX_NAME, BoardKind
from harena.arena.db.records import Filter, Sort

MAX_OFFSET = 10_000_000
MAX_LIMIT = 200

User = Annotated[str | None, Query(max_length=MAX_NAME)]
Score = Annotated[float | None, Query(allow_inf_nan=False)]
Date = Annotated[str | None, Query(max_length=40, description="ISO 8601; a day alone means all of it.")]


BOARDS = "/v1/boards"


def kept(api: Api, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, Response] | None:
    """A public board that was asked for in the same words before, with its route: found before anything is routed or
    parsed, which takes longer than all the rest."""
    if scope["path"] != BOARDS or not api.settings.anonymous_read:
        return None
    if b"authorization" in headers or b"x-api-key" in headers:
        return None
    page = api.boards.kept(BOARDS, scope["query_string"])
    if page is None:
        return None
    return BOARDS, _respond(page, headers.get(b"if-none-match", b"").decode("latin-1"))


class CachedRoute(APIRoute):
    """Looks into the cache before parameters are parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        parse_and_answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            api: Api = request.app.state.api
            headers = request.headers
            if api.settings.anonymous_read and "authorization" not in headers and "x-api-key" not in headers:
                kept = api.boards.kept(request.scope["path"], request.scope["query_string"])
                if kept is not None:
                    return respond(request, kept)
            return await parse_and_answer(request)

        return handle


router = APIRouter(prefix="/v1", tags=["boards"])


@router.get(
    "/boards",
    responses={**answers(schema.Board), 304: {"description": "As you have it."}},
    summary="A board: verified and self-reported scores and ladders never mix",
)
async def board(
    api: ApiOf,
    request: Request,
    who: Reader,
    env_id: EnvId,
    board: Annotated[BoardKind | None, Query(description="Without it: the one that the environment is about.")] = None,
    season: Annotated[int | None, Query(ge=1, le=MAX_SEASON)] = None,
    user: User = None,
    algorithm: User = None,
    score_min: Score = None,
    score_max: Score = None,
    date_from: Date = None,
    date_to: Date = None,
    sort: Sort = Sort.SCORE_DESC,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
) -> Response:
    where = Filter(
        user=user,
        algorithm=algorithm,
        score_min=score_min,
        score_max=score_max,
        date_from=moment(date_from),
        date_to=moment(date_to, end=True),
    )
    ask = Ask(env_id=env_id, board=board, season_id=season, where=where, sort=sort, limit=limit, offset=offset)
    return respond(request, await run_in_threadpool(answer, api, request, who, ask))


def answer(api: Api, request: Request, who: Principal, ask: Ask, *, contract: bool = False) -> BoardPage:
    env = visibility.environment(api, who, ask.env_id)
    env_id = env.env_id
    if env_id != ask.env_id:
        ask = Ask(
            env_id=env_id,
            board=ask.board,
            season_id=ask.season_id,
            where=ask.where,
            sort=ask.sort,
            limit=ask.limit,
            offset=ask.offset,
        )
    page = api.boards.page(ask, contract=contract)
    if visibility.shared(env):
        api.boards.keep(request.scope["path"], request.scope["query_string"], page)
    return page


def respond(request: Request, page: BoardPage) -> Response:
    return _respond(page, request.headers.get("if-none-match", ""))


def _respond(page: BoardPage, known: str) -> Response:
    headers = {"ETag": page.etag, "Cache-Control": "no-cache"}
    if page.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(page.body, 200, headers, "application/json")


def moment(text: str | None, *, end: bool = False) -> float | None:
    """Seconds since 1970. A day without a time is its beginning, or its `end`."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.strip())
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        seconds = at.timestamp()
    except (ValueError, OverflowError):
        raise ApiError(422, "invalid", "a date is written as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    day_alone = len(text.strip()) in (8, 10)
    return math.nextafter(seconds + 86400.0, 0.0) if end and day_alone else seconds
