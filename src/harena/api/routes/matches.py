"""/v1/matches, /v1/challenges and /v1/tournaments."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from harena import schema
from harena.api import auth, visibility
from harena.api.answers import replays, views
from harena.api.answers.live import EventStream
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Anyone, Host, Principal, Reader
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError, not_found
from harena.api.routes.environments import MAX_SEASON, EnvId
from harena.api.routes.submissions import Limit, OptionalName, find, own
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.models import MAX_NAME, MatchState
from harena.match.replay import viewer

router = APIRouter(prefix="/v1", tags=["matches and tournaments"])

embedding = APIRouter()

MAX_SEAT = 63
Id = Annotated[str, Field(min_length=1, max_length=32, pattern="^[0-9a-f]+$")]


class Challenge(BaseModel):
    model_config = ConfigDict(extra="forbid")
    submission_id: Id
    opponent_id: Id
    games: Annotated[int, Field(ge=1, le=10)] = 1


class NewTournament(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    format: Literal["round-robin", "swiss", "elimination", "double-elimination"] = "round-robin"
    participants: Annotated[list[Id], Field(min_length=2, max_length=128)] | None = None
    top: Annotated[int, Field(ge=2, le=128)] | None = None
    games: Annotated[int, Field(ge=1, le=100)] = 2
    rounds: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None


@router.get("/matches", responses=answers(listed(schema.Match, "matches")), summary="Matches, newest first")
def matches(
    api: ApiOf,
    who: Reader,
    env_id: OptionalName = None,
    submission: Annotated[str | None, Query(max_length=32)] = None,
    tournament: Annotated[str | None, Query(max_length=32)] = None,
    state: MatchState | None = None,
    before: Annotated[int | None, Query(ge=1, le=MAX_SEASON, description="Only with smaller numbers.")] = None,
    after: Annotated[int | None, Query(ge=0, le=MAX_SEASON, description="Only with larger numbers.")] = None,
    limit: Limit = 50,
) -> Response:
    found = api.store.matches.where(
        env_id=env_id,
        submission_id=submission,
        tournament_id=tournament,
        state=state,
        before=before,
        after=after,
        limit=limit,
        hidden=visibility.hidden(api, who),
    )
    return reply({"matches": describe(api, who, found)})


@router.get("/matches/{match_id}", responses=answers(schema.Match), summary="One match")
def match(api: ApiOf, who: Reader, match_id: str) -> Response:
    return reply(describe(api, who, [_find(api, who, match_id)])[0])


@router.get(
    "/matches/{match_id}/replay",
    responses=answers(
        text="As JSON, as a page, compact, or (`link`) a redirect to a signed download of the compact one.",
        media=replays.MEDIA,
    ),
    summary="Its replay; as a page also while it runs",
)
def replay(api: ApiOf, request: Request, who: Reader, match_id: str, format: replays.Format = "json") -> Response:
    found = _find(api, who, match_id)
    if found.state is MatchState.SCHEDULED and format == "html":
        return replays.page(viewer.page(_running(api, found)).encode())
    if found.replay_digest is None:
        raise not_found("the match has no replay" if found.finished_at else "the match is not over yet")
    return api.replays.answer(request, found.replay_digest, format, found.id)


@embedding.get("/embed/match/{match_id}", include_in_schema=False)
def embed(api: ApiOf, request: Request, who: Reader, match_id: str) -> Response:
    """The viewer alone, which other sites may show in a frame. It shows what everybody may see: a browser sends no
    cookie of ours from a frame of another site."""
    answer = replay(api, request, who, match_id, "html")
    return replays.embeddable(answer)


@router.get(
    "/matches/{match_id}/log",
    responses=answers(media=["text/plain"]),
    summary="Owner: what the agent in a seat printed",
)
def log(api: ApiOf, who: Anyone, match_id: str, seat: Annotated[int, Query(ge=0, le=MAX_SEAT)]) -> Response:
    found = _find(api, who, match_id)
    if seat >= len(found.seats):
        raise not_found(f"the match has no seat {seat}")
    taken = found.seats[seat]
    if not who.sees(api.store.submissions.get(taken.submission_id)):
        hint = "send its owner's key, or the client id that it was sent with as X-Client-Id"
        raise ApiError(
            403 if who.key else 401, "not_yours", "only the agent's owner and the host may read it", hint=hint
        )
    data = b"" if taken.log_digest is None else api.arena.files.get(taken.log_digest)
    return replays.text(data.decode("utf-8", "replace"))


@router.get(
    "/matches/{match_id}/live",
    responses=answers(text="Server-sent events: `frame`, then `finished`.", media=["text/event-stream"]),
    summary="A running match, step by step",
)
def live(api: ApiOf, request: Request, who: Reader, match_id: str) -> Response:
    found = _find(api, who, match_id)
    return EventStream(api.live.frames(found.id, request.scope["state"]["address"]))


@router.post(
    "/challenges",
    status_code=201,
    responses=answers(listed(schema.Match, "matches"), status=201),
    summary="Your agent against an opponent of your choice; no rating moves",
)
def challenge(api: ApiOf, who: Anyone, body: Challenge) -> Response:
    own(api, who, body.submission_id)
    find(api, who, body.opponent_id)
    made = api.arena.challenges.challenge(body.submission_id, body.opponent_id, body.games)
    return reply({"matches": describe(api, who, made)}, 201)


@router.get(
    "/tournaments", responses=answers(listed(schema.Tournament, "tournaments")), summary="Tournaments, newest first"
)
def tournaments(api: ApiOf, who: Reader, env_id: EnvId | None = None, limit: Limit = 50) -> Response:
    found = api.arena.tournaments.list(env_id=env_id, limit=limit, hidden=visibility.hidden(api, who))
    known = api.queries.by_id({one for tournament in found for one in tournament.participants})
    return reply({"tournaments": [views.tournament(one, known, brief=True) for one in found]})


@router.get("/tournaments/{tournament_id}", responses=answers(schema.Tournament), summary="One tournament")
def tournament(api: ApiOf, who: Reader, tournament_id: str) -> Response:
    if not auth.ascii_id(tournament_id):
        raise not_found(f"no tournament {tournament_id[:60]!r}")
    found = api.arena.tournaments.get(tournament_id)
    visibility.check(api, who, found.env_id, f"no tournament {tournament_id!r:.60}")
    return reply(views.tournament(found, api.queries.by_id(found.participants)))


@router.post(
    "/tournaments",
    status_code=201,
    responses=answers(schema.Tournament, status=201),
    summary="Host: starts a tournament of chosen agents, or of the best",
)
def create_tournament(api: ApiOf, who: Host, body: NewTournament) -> Response:
    env_id = api.queries.environment(body.env_id).env_id
    made = api.arena.tournaments.create(
        env_id,
        body.name,
        body.format,
        participants=body.participants,
        top=body.top,
        games=body.games,
        rounds=body.rounds,
        seed=body.seed,
    )
    api.arena.matchmaker.wake()
    return reply(views.tournament(made, api.queries.by_id(made.participants)), 201)


@router.post("/tournaments/{tournament_id}/cancel", responses=answers(schema.Tournament), summary="Host: ends it")
def cancel_tournament(api: ApiOf, who: Host, tournament_id: str) -> Response:
    ended = api.arena.tournaments.cancel(tournament_id)
    return reply(views.tournament(ended, api.queries.by_id(ended.participants)))


def describe(api: Api, who: Principal, found: list[MatchRecord]) -> list[schema.Match]:
    known = api.queries.by_id({seat.submission_id for one in found for seat in one.seats})
    seen = frozenset(name for name, submission in known.items() if who.sees(submission))
    return [views.match(one, known, seen) for one in found]


def _find(api: Api, who: Principal, match_id: str) -> MatchRecord:
    if not auth.ascii_id(match_id):
        raise not_found(f"no match {match_id[:60]!r}")
    found = api.store.matches.get(match_id)
    visibility.check(api, who, found.env_id, f"no match {match_id!r:.60}")
    return found


def _running(api: Api, match: MatchRecord) -> dict[str, Any]:
    """Return a match for the viewer, without a status; its frames come later."""
    known = api.queries.by_id({seat.submission_id for seat in match.seats})
    names = [
        f"{of.owner}/{of.algorithm} v{of.version}" if (of := known.get(seat.submission_id)) else ""
        for seat in match.seats
    ]
    game = match.env_id.rsplit("-v", 1)[0]
    return {
        "match": {
            "environment": match.env_id,
            "game": game,
            "title": viewer.title(game),
            "seed": None,
            "match_id": match.id,
            "status": None,
            "reason": "",
            "winner": None,
            "scores": [0.0] * len(names),
            "steps": None,
            "started_at": match.created_at,
            "wall_s": None,
        },
        "seats": [{"name": name, "status": "ok", "reason": ""} for name in names],
        "versions": {},
        "frames": cast("list[Any]", []),
        "stride": 1,
        "logs": None,
    }
