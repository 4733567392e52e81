"""/v1/worker: jobs for workers on other machines. A key with the scope `worker` opens these routes and no others; it
holds jobs under its own id and the worker's name, and can see or end no job that it does not hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

import harena
from harena import schema
from harena.api.answers.openapi import answers
from harena.api.auth import Anyone, Principal, require
from harena.api.context import Api, ApiOf, reply
from harena.api.http.errors import ApiError
from harena.arena.db.models import MAX_NAME, EnvironmentKind, Scope
from harena.arena.queue.kinds import REMOTE
from harena.arena.work.dispatch import LEASE_S, Dispatch, Given

router = APIRouter(prefix="/v1/worker", tags=["workers"])

MSGPACK = "application/x-msgpack"
MAX_WAIT_S = 30.0
MAX_WAITING = 1000
MAX_ID = 2**63 - 1
AGAIN_S = 2.0
"""A job whose wait is over is announced by nobody."""


def worker(found: Anyone) -> Principal:
    return require(found, Scope.WORKER)


WorkerKey = Annotated[Principal, Depends(worker)]
JobNumber = Annotated[int, Path(ge=1, le=MAX_ID)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
NameQuery = Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="The name that it was claimed under.")]
Fence = Annotated[int, Query(ge=1, le=MAX_ID, description="The number of the claim.")]


class ClaimOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Name
    kinds: Annotated[list[str], Field(min_length=1, max_length=len(REMOTE))] = list(REMOTE)
    environments: Annotated[list[Annotated[str, Field(max_length=MAX_NAME)]], Field(max_length=2000)] | None = None
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] = 0.0


class FailureReport(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reason: Annotated[str, Field(max_length=4000)]
    retry: bool = True


class JobBell:
    """Wakes claims that wait when a job was queued, by whichever process."""

    def __init__(self, api: Api) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._lock = threading.Lock()
        api.store.database.on_commit(self._committed)

    def _committed(self, changes: frozenset[str]) -> None:
        if any(change == "*" or change.startswith("jobs:") for change in changes):
            with self._lock:
                waiting = list(self._waiting)
            for loop, rung in waiting:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(rung.set)

    @contextlib.contextmanager
    def listening(self) -> Any:
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise ApiError(429, "too_many_requests", "too many workers wait", headers={"Retry-After": "10"})
            self._waiting.add(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._waiting.discard(entry)


@router.get("", responses=answers(schema.WorkPlace), summary="What a worker needs to know before it begins")
def place(api: ApiOf, who: WorkerKey) -> Response:
    found = api.store.environments.all(enabled_only=False)
    scripts = [env.env_id for env in found if env.kind is EnvironmentKind.SCRIPT_ONLY]
    games = [env.env_id for env in found if env.kind is not EnvironmentKind.SCRIPT_ONLY]
    return reply(
        schema.WorkPlace(
            version=harena.__version__, lease_s=LEASE_S, kinds=REMOTE, games=tuple(games), scripts=tuple(scripts)
        )
    )


@router.post(
    "/claim",
    responses=answers(
        text="A job: {job_id, fence, kind, lease_s, order, trace}. 204: nothing to do now.", media=[MSGPACK]
    ),
    summary="The next job, as msgpack; waits for one if asked to",
)
async def claim(api: ApiOf, request: Request, who: WorkerKey, body: ClaimOrder) -> Response:
    unknown = set(body.kinds) - set(REMOTE)
    if unknown:
        raise ApiError(
            422, "invalid", f"no jobs of the kind {min(unknown)[:40]!r}", hint=f"some of {', '.join(REMOTE)}"
        )
    assert who.key is not None
    holder, end = Dispatch.holder(who.key.id, body.name), time.monotonic() + body.wait_s
    kinds = list(dict.fromkeys(body.kinds))
    with api.bell.listening() as rung:
        while True:
            rung.clear()
            given = await run_in_threadpool(api.dispatch.claim, holder, kinds, body.environments)
            left_s = end - time.monotonic()
            if given is not None:
                return await _hand_over(api, request, holder, given)
            if left_s <= 0 or api.live.closed or await request.is_disconnected():
                return Response(status_code=204)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, AGAIN_S)):
                    await rung.wait()


async def _hand_over(api: Api, request: Request, holder: str, given: Given) -> Response:
    job = given.job
    if await request.is_disconnected():  # nobody would do it before its lease is over
        await run_in_threadpool(api.dispatch.release, holder, job.id, job.fence)
        return Response(status_code=204)
    told = {"job_id": job.id, "fence": job.fence, "kind": job.kind, "lease_s": LEASE_S, "order": given.order}
    told["trace"] = job.trace
    return Response(msgspec.msgpack.encode(told), 200, {}, MSGPACK)


@router.post(
    "/jobs/{job_id}/heartbeat", responses=answers(schema.Acknowledgement), summary="Keeps a job; 409: it is lost"
)
def heartbeat(api: ApiOf, who: WorkerKey, job_id: JobNumber, name: NameQuery, fence: Fence) -> Response:
    api.dispatch.heartbeat(_holder(who, name), job_id, fence)
    return reply(schema.Acknowledgement(ok=True))


@router.post(
    "/jobs/{job_id}/frames", responses=answers(schema.Acknowledgement), summary="Frames of a running match, as JSON"
)
async def frames(
    api: ApiOf, request: Request, who: WorkerKey, job_id: JobNumber, name: NameQuery, fence: Fence
) -> Response:
    try:
        told = msgspec.json.decode(await request.body(), type=list[dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError(422, "invalid", "frames are a list of objects") from None
    await run_in_threadpool(api.dispatch.frames, _holder(who, name), job_id, fence, told)
    return reply(schema.Acknowledgement(ok=True))


@router.post(
    "/jobs/{job_id}/result",
    responses=answers(schema.Acknowledgement),
    summary="What a worker did, as msgpack; 409: the job is not its own any more",
)
async def result(
    api: ApiOf, request: Request, who: WorkerKey, job_id: JobNumber, name: NameQuery, fence: Fence
) -> Response:
    body = await request.body()
    await run_in_threadpool(api.dispatch.finish, _holder(who, name), job_id, fence, body)
    return reply(schema.Acknowledgement(ok=True))


@router.post("/jobs/{job_id}/failed", responses=answers(schema.Acknowledgement), summary="A worker could not do a job")
def failed(
    api: ApiOf, who: WorkerKey, job_id: JobNumber, name: NameQuery, fence: Fence, body: FailureReport
) -> Response:
    api.dispatch.fail(_holder(who, name), job_id, fence, body.reason, retry=body.retry)
    return reply(schema.Acknowledgement(ok=True))


@router.post("/jobs/{job_id}/release", responses=answers(schema.Acknowledgement), summary="A worker gives a job back")
def release(api: ApiOf, who: WorkerKey, job_id: JobNumber, name: NameQuery, fence: Fence) -> Response:
    api.dispatch.release(_holder(who, name), job_id, fence)
    return reply(schema.Acknowledgement(ok=True))


def _holder(who: Principal, name: str) -> str:
    assert who.key is not None
    return Dispatch.holder(who.key.id, name)
