"""Every verb of the client, once: what it asks, and how the answer is read. Pure: nothing here talks to anybody.

`Verbs` gives them to both clients as methods. Arguments that cannot be sent are SpecErrors.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from harena import schema
from harena.client import decode
from harena.client.upload import MB, Part, Source, parts, sendable
from harena.errors import SpecError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_JSON, MAX_LOG, MAX_CODE, MAX_REPLAY, MAX_EXPORT = 32 * MB, 16 * MB, 64 * MB, 256 * MB, 1024 * MB
EXPORTS = ("board", "matches", "ratings", "submissions")
FORMATS = ("csv", "jsonl", "parquet")
REPLAYS = ("json", "html", "compact")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

Time = datetime.datetime | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    fields: Mapping[str, str]
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T_co]):
    path: str
    decode: Callable[[bytes], T_co]
    method: str = "GET"
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, Any] | None = None
    form: Form | None = None
    max_bytes: int = MAX_JSON
    """A longer answer is not read to its end."""


# ---- the parts of a call ----


def _json(read: Callable[[Any], T]) -> Callable[[bytes], T]:
    return lambda body: read(decode.parse(body))


def one(kind: type[T]) -> Callable[[bytes], T]:
    return _json(lambda data: decode.shape(kind, data))


def many(kind: type[T], name: str) -> Callable[[bytes], list[T]]:
    return _json(decode.listing(kind, name))


def nothing(body: bytes) -> None:
    return None


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def checked_id(value: object, what: str) -> str:
    """It becomes part of a path, so it has no slash and no dots."""
    text = str(value)
    if not _ID.fullmatch(text):
        raise SpecError(f"{text[:80]!r} is not the id of a {what}")
    return text


def _params(**given: object) -> dict[str, str]:
    """What is None is left out."""
    return {name.rstrip("_"): _word(value) for name, value in given.items() if value is not None}


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return sendable(value.isoformat() if isinstance(value, datetime.datetime) else str(value))


def _given(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _of(kind: str, value: object, rest: str = "") -> str:
    return f"/v1/{kind}s/{checked_id(value, kind)}{rest}"


def _choice(value: str, choices: Sequence[str], what: str) -> str:
    if value not in choices:
        raise SpecError(f"{value!r} is no {what}: {', '.join(choices)}")
    return value


# ---- the arena ----


def about() -> Call[schema.About]:
    """The arena's name and version, and what it lets people do who have no key."""
    return Call(path="/v1", decode=one(schema.About))


def me() -> Call[schema.Me]:
    """Whose key this is, with its scopes and what is left of the quota."""
    return Call(path="/v1/me", decode=one(schema.Me))


def health() -> Call[Mapping[str, Any]]:
    return Call(path="/health", decode=_json(decode.whole))


def environments() -> Call[list[schema.Environment]]:
    return Call(path="/v1/environments", decode=many(schema.Environment, "environments"))


def environment(env_id: str) -> Call[schema.EnvironmentDetails]:
    """Get an environment with its rules, spaces, limits, seasons and a sample agent."""
    if not env_id or any(part in ("", ".", "..") for part in env_id.split("/")):
        raise SpecError(f"{env_id!r} is not the id of an environment")
    return Call(path=f"/v1/environments/{quote(env_id)}", decode=one(schema.EnvironmentDetails))


# ---- submissions ----


def submit(
    source: Source, env_id: str, *, algorithm: str = "Custom", owner: str | None = None, main_file: str | None = None
) -> Call[schema.Submission]:
    """Hands in an agent: a .py file, a folder, a zip, several files, or the bytes of a .py file or a zip.

    With a key the owner is the key's own. `main_file` says which of several files is started."""
    found = parts(source)
    fields = _params(env_id=env_id, algorithm=algorithm, user_id=owner, main_file=main_file)
    return Call(
        method="POST", path="/v1/submissions", decode=one(schema.Submission), form=Form(fields=fields, parts=found)
    )


def submissions(
    *, owner: str | None = None, env_id: str | None = None, state: str | None = None, limit: int = 50, offset: int = 0
) -> Call[list[schema.Submission]]:
    """One's own in every state; those of others that are ranked."""
    params = _params(owner=owner, env_id=env_id, state=state, limit=limit, offset=offset)
    return Call(path="/v1/submissions", params=params, decode=many(schema.Submission, "submissions"))


def status(submission_id: str) -> Call[schema.Submission]:
    """State, score, place in the queue; to its owner also the reason and warnings."""
    return Call(path=_of("submission", submission_id), decode=one(schema.Submission))


def logs(submission_id: str) -> Call[str]:
    """What it printed, for its owner. Hostile text: a terminal must not see it as it is."""
    return Call(path=_of("submission", submission_id, "/log"), decode=_text, max_bytes=MAX_LOG)


def code(submission_id: str) -> Call[bytes]:
    """A zip of what was handed in, for its owner."""
    return Call(path=_of("submission", submission_id, "/code"), decode=bytes, max_bytes=MAX_CODE)


def cancel(submission_id: str) -> Call[schema.Submission]:
    return Call(method="POST", path=_of("submission", submission_id, "/cancel"), decode=one(schema.Submission))


def reevaluate(submission_id: str) -> Call[schema.Submission]:
    return Call(method="POST", path=_of("submission", submission_id, "/reevaluate"), decode=one(schema.Submission))


def delete(submission_id: str) -> Call[None]:
    return Call(method="DELETE", path=_of("submission", submission_id), decode=nothing)


def ratings(submission_id: str) -> Call[list[schema.RatingPoint]]:
    """Its rating after each of its matches, the oldest first."""
    return Call(path=_of("submission", submission_id, "/ratings"), decode=many(schema.RatingPoint, "points"))


def opponents(submission_id: str) -> Call[list[schema.Opponent]]:
    return Call(path=_of("submission", submission_id, "/opponents"), decode=many(schema.Opponent, "opponents"))


def episodes(submission_id: str) -> Call[list[schema.EpisodeReplay]]:
    """List episodes of a verified evaluation once its season has ended: they show the hidden seeds."""
    return Call(path=_of("submission", submission_id, "/replays"), decode=many(schema.EpisodeReplay, "replays"))


def episode(submission_id: str, episode: int, format: str = "json") -> Call[bytes]:
    """The replay of one of them: json, html or compact."""
    params = _params(format=_choice(format, REPLAYS, "format of a replay"))
    path = _of("submission", submission_id, f"/replays/{int(episode)}")
    return Call(path=path, params=params, decode=bytes, max_bytes=MAX_REPLAY)


def practice(submission_id: str) -> Call[list[schema.PracticeEpisode]]:
    """A verified agent's episodes on public seeds, for its owner."""
    path = _of("submission", submission_id, "/practice")
    return Call(path=path, decode=many(schema.PracticeEpisode, "episodes"))


def practice_replay(submission_id: str, episode: int, format: str = "json") -> Call[bytes]:
    """The replay of one of them: json, html or compact."""
    params = _params(format=_choice(format, REPLAYS, "format of a replay"))
    path = _of("submission", submission_id, f"/practice/{int(episode)}")
    return Call(path=path, params=params, decode=bytes, max_bytes=MAX_REPLAY)


def choose_finalist(submission_id: str, chosen: bool = True) -> Call[schema.Submission]:
    """Choose a submission for the finals of its season, or take that back."""
    path = _of("submission", submission_id, "/finalist")
    return Call(method="POST", path=path, body={"chosen": chosen}, decode=one(schema.Submission))


def agent(owner: str, algorithm: str, env_id: str) -> Call[schema.AgentVersions]:
    """All versions of one agent."""
    params = _params(owner=owner, algorithm=algorithm, env_id=env_id)
    return Call(path="/v1/agents", params=params, decode=one(schema.AgentVersions))


# ---- boards and matches ----


def leaderboard(
    env_id: str,
    *,
    board: str | None = None,
    season: int | None = None,
    user: str | None = None,
    algorithm: str | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    date_from: Time | None = None,
    date_to: Time | None = None,
    sort: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> Call[schema.Board]:
    """The board that belongs to the environment, or the one named: verified, self-reported or ladder."""
    params = _params(
        env_id=env_id,
        board=board,
        season=season,
        user=user,
        algorithm=algorithm,
        score_min=score_min,
        score_max=score_max,
        date_from=date_from,
        date_to=date_to,
        sort=sort,
        limit=limit,
        offset=offset,
    )
    return Call(path="/v1/boards", params=params, decode=one(schema.Board))


def matches(
    *,
    env_id: str | None = None,
    submission: str | None = None,
    tournament: str | None = None,
    state: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Call[list[schema.Match]]:
    """The newest first; `before` is the number of a match, to page on."""
    params = _params(
        env_id=env_id, submission=submission, tournament=tournament, state=state, before=before, limit=limit
    )
    return Call(path="/v1/matches", params=params, decode=many(schema.Match, "matches"))


def match(match_id: str) -> Call[schema.Match]:
    return Call(path=f"/v1/matches/{checked_id(match_id, 'match')}", decode=one(schema.Match))


def replay(match_id: str, format: str = "json") -> Call[bytes]:
    """json, html (a page that plays it) or compact (for `harena replay`)."""
    params = _params(format=_choice(format, REPLAYS, "format of a replay"))
    path = f"/v1/matches/{checked_id(match_id, 'match')}/replay"
    return Call(path=path, params=params, decode=bytes, max_bytes=MAX_REPLAY)


def match_log(match_id: str, seat: int) -> Call[str]:
    """What the agent on this seat printed, for its owner."""
    path = f"/v1/matches/{checked_id(match_id, 'match')}/log"
    return Call(path=path, params=_params(seat=seat), decode=_text, max_bytes=MAX_LOG)


def challenge(submission: str, opponent: str, games: int = 1) -> Call[list[schema.Match]]:
    """Games against a chosen opponent. They move no rating."""
    body = {
        "submission_id": checked_id(submission, "submission"),
        "opponent_id": checked_id(opponent, "submission"),
        "games": games,
    }
    return Call(method="POST", path="/v1/challenges", body=body, decode=many(schema.Match, "matches"))


# ---- seasons and tournaments ----


def seasons(env_id: str) -> Call[list[schema.Season]]:
    return Call(path="/v1/seasons", params=_params(env_id=env_id), decode=many(schema.Season, "seasons"))


def season(season_id: int) -> Call[schema.Season]:
    return Call(path=_of("season", season_id), decode=one(schema.Season))


def start_season(env_id: str, name: str) -> Call[schema.Season]:
    """Start a season. For hosts, as are the three that follow."""
    return Call(method="POST", path="/v1/seasons", body={"env_id": env_id, "name": name}, decode=one(schema.Season))


def freeze_season(season_id: int, frozen: bool = True) -> Call[schema.Season]:
    path = _of("season", season_id, "/freeze")
    return Call(method="POST", path=path, body={"frozen": frozen}, decode=one(schema.Season))


def season_finals(season_id: int, *, top: int = 8, games: int = 2) -> Call[schema.Tournament]:
    path = _of("season", season_id, "/finals")
    return Call(method="POST", path=path, body={"top": top, "games": games}, decode=one(schema.Tournament))


def evaluate_finalists(season_id: int, *, top: int | None = None) -> Call[schema.Season]:
    """The finals of a verified season: of every owner, or of the `top` owners."""
    path = _of("season", season_id, "/finalists")
    return Call(method="POST", path=path, body={"top": top}, decode=one(schema.Season))


def end_season(season_id: int, *, without_finals: bool = False) -> Call[schema.Season]:
    path = _of("season", season_id, "/end")
    return Call(method="POST", path=path, body={"without_finals": without_finals}, decode=one(schema.Season))


def tournaments(env_id: str | None = None) -> Call[list[schema.Tournament]]:
    return Call(path="/v1/tournaments", params=_params(env_id=env_id), decode=many(schema.Tournament, "tournaments"))


def tournament(tournament_id: str) -> Call[schema.Tournament]:
    return Call(path=_of("tournament", tournament_id), decode=one(schema.Tournament))


def create_tournament(
    env_id: str,
    name: str,
    format: str = "round-robin",
    *,
    participants: Sequence[str] | None = None,
    top: int | None = None,
    games: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
) -> Call[schema.Tournament]:
    """Create a tournament between the submissions that are named, or the best of the board. For hosts."""
    body = _given(
        env_id=env_id,
        name=name,
        format=format,
        top=top,
        games=games,
        rounds=rounds,
        seed=seed,
        participants=None if participants is None else [checked_id(one, "submission") for one in participants],
    )
    return Call(method="POST", path="/v1/tournaments", body=body, decode=one(schema.Tournament))


def cancel_tournament(tournament_id: str) -> Call[schema.Tournament]:
    return Call(method="POST", path=_of("tournament", tournament_id, "/cancel"), decode=one(schema.Tournament))


# ---- keys, exports ----


def keys() -> Call[list[schema.Key]]:
    return Call(path="/v1/keys", decode=many(schema.Key, "keys"))


def create_key(
    owner: str | None = None, *, scopes: Sequence[str] | None = None, label: str = "", expires_in_s: float | None = None
) -> Call[schema.NewKey]:
    """Create a key for oneself, with no more than one's own scopes; an admin creates them for anybody. The token is
    shown once."""
    body = _given(
        owner=owner, scopes=None if scopes is None else list(scopes), label=label or None, expires_in_s=expires_in_s
    )
    return Call(method="POST", path="/v1/keys", body=body, decode=one(schema.NewKey))


def rotate_key(key_id: str, *, grace_s: float = 0.0) -> Call[schema.NewKey]:
    """A new token in place of the old one, which still works for `grace_s`."""
    path = _of("key", key_id, "/rotate")
    return Call(method="POST", path=path, body={"grace_s": grace_s}, decode=one(schema.NewKey))


def revoke_key(key_id: str) -> Call[None]:
    return Call(method="DELETE", path=_of("key", key_id), decode=nothing)


def export(
    what: str, env_id: str, format: str = "csv", *, board: str | None = None, season: int | None = None
) -> Call[bytes]:
    """board, matches, ratings or submissions as csv, jsonl or parquet."""
    params = _params(env_id=env_id, format=_choice(format, FORMATS, "format of an export"), board=board, season=season)
    path = f"/v1/export/{_choice(what, EXPORTS, 'export')}"
    return Call(path=path, params=params, decode=bytes, max_bytes=MAX_EXPORT)


# ---- for hosts ----


def queue() -> Call[Mapping[str, Any]]:
    """Counts, and the jobs that run or are dead."""
    return Call(path="/v1/admin/queue", decode=_json(decode.whole))


def revive_job(job_id: int) -> Call[None]:
    return Call(method="POST", path=f"/v1/admin/jobs/{checked_id(job_id, 'job')}/revive", decode=nothing)


def cancel_job(job_id: int) -> Call[None]:
    return Call(method="POST", path=f"/v1/admin/jobs/{checked_id(job_id, 'job')}/cancel", decode=nothing)


def benched() -> Call[Mapping[str, Any]]:
    return Call(path="/v1/admin/benched", decode=_json(decode.whole))


def bench(submission_id: str, reason: str) -> Call[None]:
    body = {"submission_id": checked_id(submission_id, "submission"), "reason": reason}
    return Call(method="POST", path="/v1/admin/bench", body=body, decode=nothing)


def unbench(submission_id: str, reason: str = "") -> Call[None]:
    body = {"submission_id": checked_id(submission_id, "submission"), "reason": reason}
    return Call(method="POST", path="/v1/admin/unbench", body=body, decode=nothing)


def put_environment(
    env_id: str, *, kind: str | None = None, settings: Mapping[str, Any] | None = None, enabled: bool = True
) -> Call[schema.Environment]:
    """Adds or changes one; what is not given stays as it is."""
    body = _given(env_id=env_id, kind=kind, settings=None if settings is None else dict(settings), enabled=enabled)
    return Call(method="PUT", path="/v1/admin/environments", body=body, decode=one(schema.Environment))


def owners() -> Call[Mapping[str, Any]]:
    return Call(path="/v1/admin/owners", decode=_json(decode.whole))


def set_quota(owner: str, *, per_day: int | None = None, at_once: int | None = None) -> Call[None]:
    """None gives back the host's default."""
    body = {"owner": owner, "per_day": per_day, "at_once": at_once}
    return Call(method="PUT", path="/v1/admin/quotas", body=body, decode=nothing)
