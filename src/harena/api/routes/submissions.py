"""/v1/submissions and /v1/agents: send code, follow it, and all that is known about it."""

from __future__ import annotations

import contextlib
import re
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from harena import schema
from harena.api import auth, visibility
from harena.api.answers import replays, views
from harena.api.answers.openapi import answers, listed
from harena.api.auth import Anyone, Principal, Reader
from harena.api.context import Api, ApiOf, reply
from harena.api.http import uploads
from harena.api.http.errors import ApiError, not_found
from harena.api.http.uploads import UploadForm
from harena.api.routes.boards import MAX_OFFSET
from harena.api.routes.environments import EnvId, playable
from harena.arena.db.jobs import QueuePlace
from harena.arena.db.models import MAX_NAME, BoardKind, Busy, NotFound, QuotaExceeded, Scope, State
from harena.arena.db.queries import Viewer
from harena.arena.db.records import EvaluationRecord, SubmissionRecord
from harena.arena.seasons import finals
from harena.arena.submissions.intake import IntakeError
from harena.errors import HarenaError

router = APIRouter(prefix="/v1", tags=["submissions"])

Name = Annotated[str, Query(min_length=1, max_length=MAX_NAME)]
OptionalName = Annotated[str | None, Query(max_length=MAX_NAME)]
Limit = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET)]
MAX_MINE = 100
"""Maximum number of the caller's own submissions, which are described in full."""
EpisodeNumber = Annotated[int, Path(ge=0, le=1_000_000)]


_HYPHENATED = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
"""A UUID as clients write it."""


class Choice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    chosen: bool = True


@router.post(
    "/submissions",
    status_code=201,
    responses=answers(schema.Submission, status=201),
    openapi_extra=uploads.BODY,
    summary="Hands in an agent or a script",
)
async def submit(api: ApiOf, request: Request, who: Anyone) -> Response:
    made = await take(api, request, who)
    shape = await run_in_threadpool(describe, api, who, made, mine=True)
    return reply(shape, 201, {"Location": f"/v1/submissions/{made.id}"})


async def take(api: Api, request: Request, who: Principal, *, contract: bool = False) -> SubmissionRecord:
    """Accept an upload; every path that takes uploads uses this. On paths of the `contract` a client id names the
    submission; elsewhere it identifies the sender."""
    try:
        async with uploads.form(request, contract=contract) as form:
            return await run_in_threadpool(_submit, api, request, who, form, contract=contract)
    except ApiError as error:
        if error.status_code in (400, 408, 413, 415, 422):
            api.metrics.refused.labels(error.code).inc()
        raise


def _submit(api: Api, request: Request, who: Principal, form: UploadForm, *, contract: bool) -> SubmissionRecord:
    loopback = bool(request.scope["state"].get("loopback"))
    client_id, submission_id = form.client_id, uuid.uuid4().hex
    if contract and client_id is not None:
        client_id, submission_id = None, uploads.contract_id(client_id)
    sender = auth.sender(
        api, who, user_id=form.user_id, client_id=client_id, submission_id=submission_id, loopback=loopback
    )
    env_id = playable(api, who, form.env_id)
    names = () if sender.anonymous else (sender.owner, sender.name or sender.owner)
    visibility.check_entry(api, names, api.store.environments.get(env_id), is_host=who.can(Scope.HOST))
    # An image is not held in memory, and takes its time: the arena bounds how many are fetched at once.
    with contextlib.nullcontext() if form.docker_image else api.uploading:
        files = form.uploads()
        api.metrics.upload_bytes.inc(sum(len(upload.data) for upload in files))
        zipped = len(files) == 1 and files[0].data.startswith(b"PK")
        try:
            made = api.arena.submissions.submit(
                files,
                docker_image=form.docker_image,
                owner=sender.owner,
                env_id=env_id,
                algorithm=form.algorithm,
                main_file=form.main_file,
                wanted=form.kind,
                submission_id=submission_id,
                client_id=sender.client_id,
                anonymous=sender.anonymous,
                address=str(request.scope["state"].get("address", "")),
                sender=sender.name,
            )
        except HarenaError as error:
            api.metrics.refused.labels(_why(error)).inc()
            raise
    mode = "image" if form.docker_image else "zip" if zipped else "file" if len(files) == 1 else "files"
    api.metrics.received.labels(mode).inc()
    return made


def _why(error: HarenaError) -> str:
    for kind, reason in ((IntakeError, "code"), (QuotaExceeded, "quota"), (Busy, "busy")):
        if isinstance(error, kind):
            return reason
    return "other"


@router.get(
    "/submissions",
    responses=answers(listed(schema.Submission, "submissions")),
    summary="Yours in every state, others' when ranked",
)
def submissions(
    api: ApiOf,
    who: Reader,
    owner: OptionalName = None,
    env_id: OptionalName = None,
    state: State | None = None,
    mine: Annotated[bool, Query(description="Only your own and your teams', with all that is known of each.")] = False,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    limit = min(limit, MAX_MINE) if mine else limit
    found = api.queries.submissions(
        viewer(api, who), owner=owner, env_id=env_id, state=state, mine=mine, limit=limit, offset=offset
    )
    return reply({"submissions": [describe(api, who, one, brief=not mine) for one in found]})


@router.get("/agents", responses=answers(schema.AgentVersions), summary="All versions of one agent, newest first")
def agent(api: ApiOf, who: Reader, owner: Name, algorithm: Name, env_id: EnvId) -> Response:
    env_id = visibility.environment(api, who, env_id).env_id
    found = api.queries.submissions(viewer(api, who), owner=owner, algorithm=algorithm, env_id=env_id, limit=200)
    owners = {one.owner for one in found}
    if owner not in owners and len(owners) > 1:
        raise not_found(f"several owners typed the name {owner[:60]!r}: ask for one of {', '.join(sorted(owners)[:5])}")
    name = owner if owner in owners else "".join(owners)
    found = [one for one in found if one.owner == name]
    if not found:
        raise not_found(f"no agent {algorithm[:60]!r} of {owner[:60]!r} in {env_id}")
    versions = tuple(describe(api, who, one) for one in found)
    return reply(schema.AgentVersions(owner=name, algorithm=algorithm, env_id=env_id, versions=versions))


@router.get("/submissions/{submission_id}", responses=answers(schema.Submission), summary="One submission")
def submission(api: ApiOf, who: Reader, submission_id: str) -> Response:
    return reply(describe(api, who, find(api, who, submission_id)))


@router.post("/submissions/{submission_id}/cancel", responses=answers(schema.Submission), summary="Calls it off")
def cancel(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    own(api, who, submission_id)
    return _changed(api, who, api.arena.submissions.cancel(submission_id))


@router.post(
    "/submissions/{submission_id}/reevaluate", responses=answers(schema.Submission), summary="Evaluates it again"
)
def reevaluate(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    own(api, who, submission_id)
    return _changed(api, who, api.arena.submissions.reevaluate(submission_id))


@router.delete(
    "/submissions/{submission_id}",
    responses=answers(schema.Acknowledgement),
    summary="Takes it off the board and lists",
)
def delete(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    remove(api, who, submission_id)
    return reply(schema.Acknowledgement(ok=True))


@router.get(
    "/submissions/{submission_id}/log",
    responses=answers(media=["text/plain"]),
    summary="Owner: the end of what it printed, a verified agent in practice",
)
def log(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    found = private(api, who, submission_id)
    return replays.text(api.arena.submissions.log(found))


@router.get(
    "/submissions/{submission_id}/code",
    responses=answers(media=["application/zip"]),
    summary="Owner: its files, as a zip",
)
def code(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    found = private(api, who, submission_id)
    return replays.attachment(api.arena.submissions.code_zip(found), "application/zip", f"{found.id}.zip")


@router.get(
    "/submissions/{submission_id}/ratings",
    responses=answers(listed(schema.RatingPoint, "points")),
    summary="Its rating over time",
)
def ratings(api: ApiOf, who: Reader, submission_id: str) -> Response:
    return reply({"points": views.ratings(api.store.ratings.history(find(api, who, submission_id).id))})


@router.get(
    "/submissions/{submission_id}/opponents",
    responses=answers(listed(schema.Opponent, "opponents")),
    summary="Whom it has met",
)
def opponents(api: ApiOf, who: Reader, submission_id: str) -> Response:
    found = api.arena.standings.opponents(find(api, who, submission_id).id)
    return reply({"opponents": [views.opponent(one) for one in found]})


@router.get(
    "/submissions/{submission_id}/practice",
    responses=answers(schema.Practice),
    summary="Owner: its episodes on public seeds",
)
def practice(api: ApiOf, who: Anyone, submission_id: str) -> Response:
    found = private(api, who, submission_id)
    report = api.store.draws.practice(found.id) or {"score": None, "episodes": []}
    return reply(views.practice(report, f"/v1/submissions/{found.id}/practice"))


@router.get(
    "/submissions/{submission_id}/practice/{episode}",
    responses=answers(media=replays.MEDIA),
    summary="Owner: the replay of one of those episodes",
)
def practice_episode(
    api: ApiOf,
    request: Request,
    who: Anyone,
    submission_id: str,
    episode: EpisodeNumber,
    format: replays.Format = "json",
) -> Response:
    found, one = _practised(api, who, submission_id, episode)
    if one["replay"] is None:
        raise not_found(f"no replay of practice episode {episode} is kept")
    return api.replays.answer(request, one["replay"], format, f"{found.id}-practice-{episode}")


@router.get(
    "/submissions/{submission_id}/practice/{episode}/log",
    responses=answers(media=["text/plain"]),
    summary="Owner: the end of what it printed in one of those episodes",
)
def practice_log(api: ApiOf, who: Anyone, submission_id: str, episode: EpisodeNumber) -> Response:
    _, one = _practised(api, who, submission_id, episode)
    return replays.text("" if one["log"] is None else api.arena.submissions.kept_log(one["log"]))


@router.post(
    "/submissions/{submission_id}/finalist",
    responses=answers(schema.Submission),
    summary="Owner: chooses it for the finals, or takes that back",
)
def finalist(api: ApiOf, who: Anyone, submission_id: str, body: Choice) -> Response:
    finals.choose(api.store, own(api, who, submission_id), chosen=body.chosen)
    return _changed(api, who, find(api, who, submission_id))


@router.get(
    "/submissions/{submission_id}/replays",
    responses=answers(listed(schema.EpisodeReplay, "replays")),
    summary="Its episodes on hidden seeds, once its season has ended",
)
def episodes(api: ApiOf, who: Reader, submission_id: str) -> Response:
    found = find(api, who, submission_id)
    path = f"/v1/submissions/{found.id}/replays"
    replays = [
        schema.EpisodeReplay(episode=one["episode"], roles=one["roles"], url=f"{path}/{one['episode']}")
        for one in _revealed(api, found)
    ]
    return reply({"replays": replays})


@router.get(
    "/submissions/{submission_id}/replays/{episode}",
    responses=answers(media=replays.MEDIA),
    summary="One of those episodes",
)
def episode(
    api: ApiOf,
    request: Request,
    who: Reader,
    submission_id: str,
    episode: EpisodeNumber,
    format: replays.Format = "json",
) -> Response:
    found = find(api, who, submission_id)
    for one in _revealed(api, found):
        if one["episode"] == episode:
            return api.replays.answer(request, one["digest"], format, f"{found.id}-{episode}")
    raise not_found(f"no replay of episode {episode} is kept")


# Parts that other routes use


def find(api: Api, who: Principal, submission_id: str) -> SubmissionRecord:
    missing = not_found(f"no submission {submission_id[:60]!r}")
    if _HYPHENATED.fullmatch(submission_id):
        submission_id = submission_id.replace("-", "").lower()
    if not auth.ascii_id(submission_id):
        raise missing
    found = api.store.submissions.get(submission_id)
    if found.deleted_at is not None:
        raise missing
    visibility.check(api, who, found.env_id, f"no submission {submission_id!r:.60}")
    return found


def own(api: Api, who: Principal, submission_id: str) -> SubmissionRecord:
    """To change it: its owner, with a key that may submit, or the host."""
    found = find(api, who, submission_id)
    if who.can(Scope.HOST):
        return found
    if not who.owns(found):
        raise _not_yours(who)
    if who.key is not None and not found.anonymous:
        auth.require(who, Scope.SUBMIT)
    return found


def private(api: Api, who: Principal, submission_id: str) -> SubmissionRecord:
    found = find(api, who, submission_id)
    if not who.sees(found):
        raise _not_yours(who)
    return found


def remove(api: Api, who: Principal, submission_id: str, *, address: str = "") -> SubmissionRecord:
    """`address`: the client's, where the contract lets whoever sent something without a key delete it, too."""
    found = find(api, who, submission_id)
    if not (address and api.arena.submissions.came_from(found, address)):
        own(api, who, submission_id)
    removed = api.arena.submissions.delete(found.id)
    api.boards.forget()
    return removed


def viewer(api: Api, who: Principal) -> Viewer:
    return Viewer(
        owner=who.owner,
        client_id=who.client_id,
        everything=who.can(Scope.HOST),
        teams=who.teams,
        hidden=visibility.hidden(api, who),
    )


def describe(
    api: Api, who: Principal, of: SubmissionRecord, *, mine: bool | None = None, brief: bool = False
) -> schema.Submission:
    """`brief`: without what takes a query for each."""
    mine = who.owns(of) if mine is None else mine
    place = api.arena.submissions.place(of) if of.state in _WAITING else None
    line, latest, bench, finalist, ended = None, None, None, None, False
    if not brief:
        latest = _latest(api, of)
        finalist = api.store.finalists.find(of.id)
        ended = _season_ended(api, of)
        found = api.arena.standings.standing(of.id)
        if found is not None:
            sparks = api.arena.standings.spark([of.id]) if found.board is BoardKind.LADDER else {}
            line = views.standing(found, sparks.get(of.id, []))
        bench = api.store.roster.benched(of.id)
    return views.submission(
        of,
        mine=mine,
        sees=mine or who.sees(of),
        place=place,
        waits_for=_waits_for(api, of, place),
        latest=latest,
        line=line,
        bench=bench,
        finalist=finalist,
        ended=ended,
    )


def _waits_for(api: Api, of: SubmissionRecord, place: QueuePlace | None) -> str | None:
    if place is None or of.state is State.RUNNING or of.job_id is None:
        return None
    with contextlib.suppress(NotFound):
        if api.arena.queue.get(of.job_id).run_at > api.store.clock():
            return "another attempt"
    return "submissions ahead of it" if place.position else "a worker"


_WAITING = (State.RECEIVED, State.CHECKED, State.QUEUED, State.RUNNING)


def _latest(api: Api, of: SubmissionRecord) -> EvaluationRecord | None:
    found = api.store.submissions.evaluations(of.id)
    return found[-1] if found else None


def _season_ended(api: Api, of: SubmissionRecord) -> bool:
    return of.season_id is not None and api.store.seasons.get(of.season_id).ended_at is not None


def _practised(api: Api, who: Principal, submission_id: str, episode: int) -> tuple[SubmissionRecord, dict[str, Any]]:
    found = private(api, who, submission_id)
    report = api.store.draws.practice(found.id) or {"episodes": []}
    for one in report["episodes"]:
        if one["episode"] == episode:
            return found, one
    raise not_found(f"no practice episode {episode} of this submission")


def _revealed(api: Api, of: SubmissionRecord) -> list[dict[str, Any]]:
    """The recordings hold the hidden seeds: nobody has them while the season runs."""
    latest = _latest(api, of)
    if not _season_ended(api, of):
        raise ApiError(
            403, "season_runs", "these replays hold the season's hidden seeds", hint="they are shown when it has ended"
        )
    return [] if latest is None else list(latest.metrics.get("replays", []))


def _changed(api: Api, who: Principal, changed: SubmissionRecord) -> Response:
    api.boards.forget()
    return reply(describe(api, who, changed))


def _not_yours(who: Principal) -> ApiError:
    hint = "send its owner's key, or the client id that it was sent with as X-Client-Id"
    return ApiError(403 if who.key else 401, "not_yours", "only its owner and the host may do this", hint=hint)
