"""/v1/environments and /v1/seasons."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from harena import schema
from harena.api import visibility
from harena.api.answers import kit, replays, views
from harena.api.answers.boards import CachedAnswer
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Host, Principal, Reader
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.models import MAX_NAME, EnvironmentKind, NotFound
from harena.arena.settings import EnvironmentSettings
from harena.arena.submissions import script
from harena.errors import HarenaError
from harena.match import registry
from harena.match.agent import packages
from harena.match.game import GameError, GameInfo

router = APIRouter(prefix="/v1", tags=["environments and seasons"])

HOSTS_ONLY = frozenset({"pettingzoo", "openspiel"})
"""Libraries whose games a host adds; anybody may submit to a registered Gymnasium id."""
MAX_SEASON = (1 << 53) - 1
EnvId = Annotated[str, Query(min_length=1, max_length=MAX_NAME)]
SeasonId = Annotated[int, Path(ge=1, le=MAX_SEASON)]


class NewSeason(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class Freeze(BaseModel):
    model_config = ConfigDict(extra="forbid")
    frozen: bool = True


class Finals(BaseModel):
    model_config = ConfigDict(extra="forbid")
    top: Annotated[int, Field(ge=2, le=64)] = 8
    games: Annotated[int, Field(ge=1, le=100)] = 2


class Finalists(BaseModel):
    model_config = ConfigDict(extra="forbid")
    top: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class End(BaseModel):
    model_config = ConfigDict(extra="forbid")
    without_finals: bool = False


@router.get(
    "/environments", responses=answers(listed(schema.Environment, "environments")), summary="What can be played here"
)
async def environments(api: ApiOf, request: Request, who: Reader) -> Response:
    found = await cached_list(api, who, "environments", lambda found: {"environments": found})
    return respond(request, found)


async def cached_list(
    api: Api, who: Principal, name: str, shape: Callable[[list[schema.Environment]], Any]
) -> CachedAnswer:
    """The open environments that the caller may know of, in some shape, as bytes that are ready to be sent."""
    private = frozenset[str]()  # that this caller sees
    if who.key is not None:
        private = await run_in_threadpool(lambda: api.store.guests.private() - visibility.hidden(api, who))
    key = (name, private)
    return api.boards.answer(key) or await run_in_threadpool(_listed, api, key, shape)


def _listed(
    api: Api, key: tuple[str, frozenset[str]], shape: Callable[[list[schema.Environment]], Any]
) -> CachedAnswer:
    with api.listing:  # one reader makes it, the others wait for it
        kept = api.boards.answer(key)
        if kept is not None:
            return kept
        hidden = api.store.guests.private() - key[1]
        here = [env for env in api.store.environments.all() if env.env_id not in hidden]
        topics = [f"board:{env.env_id}" for env in here]
        versions = api.boards.versions(topics)
        shown = shape([overview(api, env) for env in here])
        return api.boards.keep_answer(key, msgspec.json.encode(schema.as_json(shown)), topics, versions)


def respond(request: Request, found: CachedAnswer) -> Response:
    headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.body, 200, headers, "application/json")


@router.get(
    "/environments/{env_id:path}",
    responses=answers(schema.EnvironmentDetails),
    summary="One environment: rules, spaces, limits, seasons",
)
def environment(api: ApiOf, who: Reader, env_id: Annotated[str, Path(min_length=1, max_length=MAX_NAME)]) -> Response:
    return reply(details(api, visibility.environment(api, who, env_id)))


@router.get(
    "/kits",
    responses=answers(text="A zip.", media=["application/zip"]),
    summary="Starter kit of an environment: a sample agent, the rules, a notebook, how to try it",
)
def starter_kit(api: ApiOf, who: Reader, env_id: EnvId) -> Response:
    found = details(api, visibility.environment(api, who, env_id))
    return replays.attachment(kit.kit(found), "application/zip", f"{found.env_id}-kit.zip")


def details(api: Api, env: EnvironmentRecord) -> schema.EnvironmentDetails:
    settings = EnvironmentSettings.parse(env.settings)
    seasons = [api.boards.season(season) for season in api.store.seasons.all(env.env_id)]
    offered = script.packages() if env.kind is EnvironmentKind.SCRIPT_ONLY else packages.for_agents()
    info = game_info(env.env_id)
    return views.environment_details(overview(api, env), settings, info, offered, seasons)


@router.get(
    "/seasons", responses=answers(listed(schema.Season, "seasons")), summary="Seasons of an environment, newest first"
)
def seasons(api: ApiOf, who: Reader, env_id: EnvId) -> Response:
    env = visibility.environment(api, who, env_id)
    return reply({"seasons": [api.boards.season(season) for season in api.store.seasons.all(env.env_id)]})


@router.get("/seasons/{season_id}", responses=answers(schema.Season), summary="One season")
def season(api: ApiOf, who: Reader, season_id: SeasonId) -> Response:
    found = api.store.seasons.get(season_id)
    visibility.check(api, who, found.env_id, f"no season {season_id}")
    return reply(api.boards.season(found))


@router.post("/seasons", status_code=201, responses=answers(schema.Season, status=201), summary="Host: starts a season")
def start_season(api: ApiOf, who: Host, body: NewSeason) -> Response:
    started = api.arena.seasons.start(api.queries.environment(body.env_id).env_id, body.name)
    return _changed(api, api.boards.season(started), 201)


@router.post(
    "/seasons/{season_id}/freeze",
    responses=answers(schema.Season),
    summary="Host: takes no new submissions, or takes them again",
)
def freeze_season(api: ApiOf, who: Host, season_id: SeasonId, body: Freeze) -> Response:
    return _changed(api, api.boards.season(api.arena.seasons.freeze(season_id, body.frozen)))


@router.post(
    "/seasons/{season_id}/finals",
    status_code=201,
    responses=answers(schema.Tournament, status=201),
    summary="Host: a round robin of the best decides a ladder's season",
)
def finals(api: ApiOf, who: Host, season_id: SeasonId, body: Finals) -> Response:
    made = api.arena.seasons.finals(season_id, top=body.top, games=body.games)
    return reply(views.tournament(made, api.queries.by_id(made.participants)), 201)


@router.post(
    "/seasons/{season_id}/finalists",
    responses=answers(schema.Season),
    summary="Host: evaluates the finalists of a verified season on its second secret",
)
def evaluate_finalists(api: ApiOf, who: Host, season_id: SeasonId, body: Finalists) -> Response:
    api.arena.seasons.evaluate_finalists(season_id, top=body.top)
    return _changed(api, api.boards.season(api.store.seasons.get(season_id)))


@router.post(
    "/seasons/{season_id}/end",
    responses=answers(schema.Season),
    summary="Host: keeps its boards, reveals its secrets",
)
def end_season(api: ApiOf, who: Host, season_id: SeasonId, body: End | None = None) -> Response:
    without = body is not None and body.without_finals
    return _changed(api, api.boards.season(api.arena.seasons.end(season_id, without_finals=without)))


def overview(api: Api, env: EnvironmentRecord) -> schema.Environment:
    live = api.store.seasons.live(env.env_id)
    return views.environment(
        env,
        EnvironmentSettings.parse(env.settings),
        game_info(env.env_id),
        api.queries.environment_counts(env.env_id, env.kind),
        None if live is None else api.boards.season(live),
    )


def playable(api: Api, who: Principal, env_id: str) -> str:
    """The full id of an environment that can be submitted to. One that is installed and not offered yet is added,
    unless the host offers only what they have listed."""
    hidden = visibility.hidden(api, who)
    try:
        return api.queries.environment(env_id, hidden=hidden).env_id
    except NotFound:
        full = installed(api, env_id)
        if full is None or full in hidden:
            raise
    try:
        added = api.arena.put_environment(full).env_id
    except GameError as error:
        raise ApiError(
            422, "unknown_environment", f"{full} cannot be played here: {error}", hint="ask the host to install it"
        ) from None
    api.boards.forget()
    return added


def installed(api: Api, env_id: str) -> str | None:
    """The full id of a registered environment that anybody may submit to, though it is not offered yet."""
    if not api.settings.any_environment or ":" in env_id or env_id.partition("/")[0] in HOSTS_ONLY:
        return None
    try:
        return registry.resolve(env_id)
    except HarenaError:
        return None


@functools.lru_cache(maxsize=256)
def game_info(env_id: str) -> GameInfo | None:
    """None: only scripts know it."""
    try:
        return registry.info(env_id)
    except HarenaError:
        return None


def _changed(api: Api, season: schema.Season, status: int = 200) -> Response:
    api.boards.forget()
    return reply(season, status)
