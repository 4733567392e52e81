"""/v1/search, /v1/matrix and /v1/feeds: find things, compare agents of a ladder, follow results with a feed reader."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from harena import schema
from harena.api import visibility
from harena.api.answers import feeds, views
from harena.api.answers.openapi import answers
from harena.api.auth import Reader
from harena.api.context import ApiOf, reply
from harena.api.http.errors import ApiError
from harena.api.routes.environments import EnvId
from harena.api.routes.environments import respond as send
from harena.api.routes.submissions import OptionalName, viewer
from harena.arena.db.models import EnvironmentKind, MatchState, State
from harena.arena.db.search import SearchRepository
from harena.arena.settings import EnvironmentSettings

router = APIRouter(prefix="/v1", tags=["search and feeds"])

HITS = 8
MATRIX_AGENTS = 30
FEED_ENTRIES = 50
MIN_TEXT = 2


@router.get("/search", responses=answers(schema.Found), summary="Finds environments, owners, agents and matches")
def search(api: ApiOf, who: Reader, q: Annotated[str, Query(min_length=MIN_TEXT, max_length=100)]) -> Response:
    text, shown, repository = q.strip(), viewer(api, who), SearchRepository(api.store.database)
    if len(text) < MIN_TEXT:
        raise ApiError(422, "invalid", f"search for at least {MIN_TEXT} characters")
    found = schema.Found(
        environments=tuple(_environments(api, shown.hidden, text))[:HITS],
        owners=tuple(repository.owners(shown, text, HITS)),
        agents=tuple(views.fill(schema.FoundAgent, hit) for hit in repository.agents(shown, text, HITS)),
        submissions=tuple(
            views.fill(schema.FoundSubmission, hit) for hit in repository.submissions(shown, text.lower(), HITS)
        ),
        matches=tuple(views.fill(schema.FoundMatch, hit) for hit in repository.matches(shown, text.lower(), HITS)),
    )
    return reply(found)


def _environments(api: ApiOf, hidden: frozenset[str], text: str) -> list[schema.FoundEnvironment]:
    found: list[schema.FoundEnvironment] = []
    for env in api.store.environments.all():
        title = EnvironmentSettings.parse(env.settings).title or env.env_id
        if env.env_id not in hidden and text.lower() in f"{env.env_id}\n{title}".lower():
            found.append(schema.FoundEnvironment(env_id=env.env_id, title=title))
    return found


@router.get("/matrix", responses=answers(schema.Matrix), summary="Head-to-head results of the best agents of a ladder")
def matrix(
    api: ApiOf,
    request: Request,
    who: Reader,
    env_id: EnvId,
    limit: Annotated[int, Query(ge=2, le=MATRIX_AGENTS)] = 12,
) -> Response:
    env = visibility.environment(api, who, env_id)
    if env.kind is not EnvironmentKind.LADDER:
        raise ApiError(409, "conflict", f"{env.env_id} is not a ladder: its agents do not meet")
    key, topics = ("matrix", env.env_id, limit), (f"board:{env.env_id}", f"matches:{env.env_id}")
    kept = api.boards.answer(key) if visibility.shared(env) else None
    if kept is not None:
        return send(request, kept)
    versions = api.boards.versions(topics)
    season = api.store.seasons.live(env.env_id)
    lines = api.arena.standings.standings(env.env_id, limit=limit) if season else []
    ids = [line.submission_id for line in lines]
    met = SearchRepository(api.store.database).meetings(season.id, ids) if season and ids else []
    made = schema.Matrix(
        env_id=env.env_id,
        agents=tuple(views.fill(schema.MatrixAgent, line) for line in lines),
        meetings=tuple(views.fill(schema.Meeting, one) for one in met),
    )
    if not visibility.shared(env):
        return reply(made)
    return send(request, api.boards.keep_answer(key, msgspec.json.encode(schema.as_json(made)), topics, versions))


@router.get(
    "/feeds/{what}",
    responses=answers(text="An Atom feed.", media=[feeds.MEDIA]),
    summary="Results, matches or changes of rank as an Atom feed, of an environment or an owner",
)
def feed(
    api: ApiOf,
    request: Request,
    who: Reader,
    what: Literal["results", "matches", "ranks"],
    env_id: OptionalName = None,
    owner: OptionalName = None,
) -> Response:
    base, shown = str(request.base_url).rstrip("/"), viewer(api, who)
    env = None if env_id is None else visibility.environment(api, who, env_id).env_id
    if what == "results":
        ranked = api.queries.submissions(shown, owner=owner, env_id=env, state=State.RANKED, limit=FEED_ENTRIES)
        entries = [feeds.result(base, one) for one in ranked]
    elif what == "ranks":
        found = api.store.notices.changes(env_id=env, owner=owner, hidden=shown.hidden, limit=FEED_ENTRIES)
        entries = [feeds.rank(base, one) for one in found]
    else:
        played = api.store.matches.where(env_id=env, state=MatchState.FINISHED, limit=FEED_ENTRIES, hidden=shown.hidden)
        known = api.queries.by_id({seat.submission_id for one in played for seat in one.seats})
        entries = [
            feeds.match(base, one, known)
            for one in played
            if owner is None or any(known[seat.submission_id].owner == owner for seat in one.seats)
        ]
    title = " ".join(filter(None, ("Harena:", what, env and f"in {env}", owner and f"of {owner}")))
    return Response(feeds.document(title, str(request.url), entries), 200, {"Cache-Control": "no-cache"}, feeds.MEDIA)
