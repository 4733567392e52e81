"""Paths of sessions: their life, steps, history and snapshots."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from harena.node import messages
from harena.serve.routes import models
from harena.serve.routes.context import (
    Context,
    answer,
    clocks_of,
    contents,
    events,
    owner_of,
    path_options,
    stream_events,
)
from harena.sessions.operations import Operation
from harena.sessions.service import session_view

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.post("", **path_options("createSession", models.SessionAnswer, 201))
async def create_session(request: Request, body: models.NewSession) -> Response:
    """Create a session from a pool, an image or a spec, and wait for its box."""
    context = Context.of(request)
    spec, limits = contents(body.spec, body.limits)

    def create() -> dict[str, Any]:
        made = context.service.create_session(
            owner_of(request),
            pool_ref=body.poolRef,
            namespace=body.namespace,
            image=body.image,
            spec=spec,
            limits=limits,
            clocks=clocks_of(body),
            keep_steps=body.keepSteps,
            run=body.run,
            agent=body.agent,
        )
        return session_view(made)

    return answer(await context.run(request, create), 201)


@router.get("", **path_options("listSessions", models.SessionList))
async def list_sessions(request: Request) -> Response:
    """List the sessions of the owner that have not ended."""
    found = Context.of(request).service.sessions(owner_of(request))
    return answer({"sessions": [session_view(session) for session in found]})


@router.get("/{session_id}", **path_options("getSession", models.SessionAnswer))
async def get_session(request: Request, session_id: str) -> Response:
    """Return what a session is."""
    return answer(session_view(Context.of(request).session(request, session_id)))


@router.delete("/{session_id}", **path_options("deleteSession", models.Empty))
async def delete_session(request: Request, session_id: str) -> Response:
    """End a session with everything in its box."""
    context = Context.of(request)
    session = context.session(request, session_id)
    await context.end(request, session.end)
    return answer({})


# ---- steps ----


@router.post(
    "/{session_id}/execute",
    **path_options("executeSteps", models.OperationResult, 200, 409, lines=models.OperationEvent),
)
async def execute(request: Request, session_id: str, body: models.Execution) -> Response:
    """Run steps in order. With `stream`, the answer is JSON lines (OperationEvent) as things happen. A client that lost
    its connection sends the request again, with the number of the last event that it has seen."""
    context = Context.of(request)
    session = context.session(request, session_id)
    operation, work = session.prepare(
        body.steps,
        operation_id=body.operationId,
        keep_going=body.keepGoing,
        trace_id=body.traceId,
        output=body.stream == "output",
    )
    if work is not None and not context.workers(owner_of(request)).run(work):
        session.refuse(operation)
    if body.stream is not None and not operation.refused:
        return stream_events(operation.feed, body.after)
    found = await _outcome(operation)
    return await context.run(request, lambda: answer(found))


@router.post("/{session_id}/evaluate", **path_options("evaluateSession", models.OperationResult, 200, 409))
async def evaluate(request: Request, session_id: str, body: models.NewEvaluation) -> Response:
    """Run steps in a second box that has a copy of the session's files. The session sees nothing of it, and its history
    does not name it."""
    context, owner = Context.of(request), owner_of(request)
    spec, limits = contents(body.spec, body.limits)
    session, operation, work = context.service.prepare_evaluation(
        owner,
        session_id,
        body.steps,
        image=body.image,
        spec=spec,
        limits=limits,
        operation_id=body.operationId,
        keep_going=body.keepGoing,
        trace_id=body.traceId,
    )
    if work is not None and not context.workers(owner).run(work):
        session.refuse(operation)
    return answer(await _outcome(operation))


async def _outcome(operation: Operation) -> dict[str, Any]:
    """Wait for the end without a thread."""
    async for _ in events(operation.feed, operation.feed.last):
        pass
    return operation.outcome()


@router.get(
    "/{session_id}/operations/{operation_id:path}/events",
    **path_options("followOperation", None, lines=models.OperationEvent),
)
async def follow(
    request: Request,
    session_id: str,
    operation_id: str,
    after: Annotated[int, Query(ge=0, le=models.MAX_EVENT, description="The last number that was seen.")] = 0,
) -> Response:
    """Stream the events of an operation that was started by another request, from any number on."""
    operation = Context.of(request).session(request, session_id).operation(operation_id)
    return stream_events(operation.feed, after)


@router.get("/{session_id}/history", **path_options("getHistory", models.History))
async def history(request: Request, session_id: str) -> Response:
    """Return every step that has run, in order."""
    context = Context.of(request)
    session = context.session(request, session_id)
    return await context.run(request, lambda: answer({"history": session.history()}))


# ---- network ----


@router.put("/{session_id}/network", **path_options("setNetwork", models.Empty, 200, 501))
async def set_network(request: Request, session_id: str, body: models.NewNetwork) -> Response:
    """Replace what the box may reach. Connections that are no longer allowed are cut. The session must have been
    created with a network."""
    context, owner = Context.of(request), owner_of(request)
    network = messages.network_in(None if body.network is None else body.network.model_dump())
    await context.run(request, lambda: context.service.set_network(owner, session_id, network))
    return answer({})


@router.get("/{session_id}/network", **path_options("getNetworkReport", models.NetworkUse))
async def network_report(request: Request, session_id: str) -> Response:
    """Return what the box did with its network, and which attempts were refused."""
    context = Context.of(request)
    session = context.session(request, session_id)
    return answer(messages.report_out(await context.run(request, session.network_report)))


# ---- snapshots ----


@router.post("/{session_id}/snapshots", **path_options("createSnapshot", models.SnapshotName, 201, 409))
async def snapshot(request: Request, session_id: str) -> Response:
    """Save the workspace."""
    context = Context.of(request)
    session = context.session(request, session_id)
    return answer({"name": await context.run(request, session.snapshot)}, 201)


@router.post("/{session_id}/restore", **path_options("restoreSnapshot", models.Empty, 200, 409))
async def restore(request: Request, session_id: str, body: models.Name) -> Response:
    """Restore the workspace from a snapshot, or from a step such as `step-3` of a session that keeps its steps."""
    context = Context.of(request)
    session = context.session(request, session_id)
    await context.run(request, lambda: session.restore(body.name))
    return answer({})


@router.post("/{session_id}/fork", **path_options("forkSession", models.SessionAnswer, 201, 409))
async def fork(request: Request, session_id: str, body: models.ForkAt) -> Response:
    """Create a session that continues from here with the interpreter's memory, or with the workspace of a snapshot or a
    step."""
    context = Context.of(request)
    made = await context.run(
        request, lambda: session_view(context.service.fork(owner_of(request), session_id, body.at))
    )
    return answer(made, 201)
