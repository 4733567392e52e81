"""/v1/environments and /v1/seasons."""

from __future__ import annotations

import functools
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from harena.api import shapes, views
from harena.api.auth import Host, Reader
from harena.api.context import Api, ApiOf, reply
from harena.arena.db.environments import Environment
from harena.arena.db.models import MAX_NAME, EnvironmentKind
from harena.arena.settings import EnvironmentSettings
from harena.arena.submissions import script
from harena.errors import HarenaError
from harena.match import registry
from harena.match.agent import packages
from harena.match.game import GameInfo

router = APIRouter(prefix="/v1", tags=["environments and seasons"])

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


@router.get("/environments", responses=shapes.answers(shapes.Environments), summary="What can be played here")
def environments(api: ApiOf, who: Reader) -> Response:
    return reply({"environments": [overview(api, env) for env in api.store.environments.all()]})


@router.get(
    "/environments/{env_id:path}",
    responses=shapes.answers(shapes.EnvironmentDetails),
    summary="One environment: rules, spaces, limits, seasons",
)
def environment(api: ApiOf, who: Reader, env_id: Annotated[str, Path(min_length=1, max_length=MAX_NAME)]) -> Response:
    env = api.queries.environment(env_id)
    settings = EnvironmentSettings.parse(env.settings)
    seasons = [api.boards.season(season) for season in api.store.seasons.all(env.env_id)]
    offered = script.packages() if env.kind is EnvironmentKind.SCRIPT_ONLY else packages.for_agents()
    details = views.environment_details(settings, game_info(env.env_id), offered, seasons)
    return reply({**overview(api, env), **details})


@router.get("/seasons", responses=shapes.answers(shapes.Seasons), summary="Seasons of an environment, newest first")
def seasons(api: ApiOf, who: Reader, env_id: EnvId) -> Response:
    env = api.queries.environment(env_id)
    return reply({"seasons": [api.boards.season(season) for season in api.store.seasons.all(env.env_id)]})


@router.get("/seasons/{season_id}", responses=shapes.answers(shapes.Season), summary="One season")
def season(api: ApiOf, who: Reader, season_id: SeasonId) -> Response:
    return reply(api.boards.season(api.store.seasons.get(season_id)))


@router.post(
    "/seasons", status_code=201, responses=shapes.answers(shapes.Season, status=201), summary="Host: starts a season"
)
def start_season(api: ApiOf, who: Host, body: NewSeason) -> Response:
    started = api.arena.seasons.start(api.queries.environment(body.env_id).env_id, body.name)
    return _changed(api, api.boards.season(started), 201)


@router.post(
    "/seasons/{season_id}/freeze",
    responses=shapes.answers(shapes.Season),
    summary="Host: takes no new submissions, or takes them again",
)
def freeze_season(api: ApiOf, who: Host, season_id: SeasonId, body: Freeze) -> Response:
    return _changed(api, api.boards.season(api.arena.seasons.freeze(season_id, body.frozen)))


@router.post(
    "/seasons/{season_id}/finals",
    status_code=201,
    responses=shapes.answers(shapes.Tournament, status=201),
    summary="Host: a round robin of the best decides a ladder's season",
)
def finals(api: ApiOf, who: Host, season_id: SeasonId, body: Finals) -> Response:
    made = api.arena.seasons.finals(season_id, top=body.top, games=body.games)
    return reply(views.tournament(made, api.queries.by_id(made.participants)), 201)


@router.post(
    "/seasons/{season_id}/finalists",
    responses=shapes.answers(shapes.Season),
    summary="Host: evaluates the finalists of a verified season on its second secret",
)
def evaluate_finalists(api: ApiOf, who: Host, season_id: SeasonId, body: Finalists) -> Response:
    api.arena.seasons.evaluate_finalists(season_id, top=body.top)
    return _changed(api, api.boards.season(api.store.seasons.get(season_id)))


@router.post(
    "/seasons/{season_id}/end",
    responses=shapes.answers(shapes.Season),
    summary="Host: keeps its boards, reveals its secrets",
)
def end_season(api: ApiOf, who: Host, season_id: SeasonId, body: End | None = None) -> Response:
    without = body is not None and body.without_finals
    return _changed(api, api.boards.season(api.arena.seasons.end(season_id, without_finals=without)))


def overview(api: Api, env: Environment) -> views.Shape:
    live = api.store.seasons.live(env.env_id)
    return views.environment(
        env,
        EnvironmentSettings.parse(env.settings),
        game_info(env.env_id),
        api.queries.environment_counts(env.env_id),
        None if live is None else api.boards.season(live),
    )


@functools.lru_cache(maxsize=256)
def game_info(env_id: str) -> GameInfo | None:
    """None: only scripts know it."""
    try:
        return registry.info(env_id)
    except HarenaError:
        return None


def _changed(api: Api, shape: views.Shape, status: int = 200) -> Response:
    api.boards.forget()
    return reply(shape, status)
