"""The path of batches."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from harena.errors import HarenaError, SpecError
from harena.serve.routes import models
from harena.serve.routes.context import LINES, Bell, Context, contents, json_line, owner_of, path_options
from harena.sessions.batches import BatchWork, Outlet
from harena.sessions.errors import error_out

router = APIRouter(prefix="/v1", tags=["batches"])


@router.post("/batch", **path_options("runBatch", None, 200, 409, lines=models.BatchEvent))
async def run_batch(request: Request, body: models.NewBatch) -> Response:
    """Run Python programs, each in a fresh process, and answer with JSON lines: each result as soon as its program has
    ended, and `end` last. A client that reads slowly slows down only its own batch; one that leaves ends it."""
    context, owner = Context.of(request), owner_of(request)
    spec, limits = contents(body.spec, body.limits)
    work = BatchWork(programs=body.programs, stdin=_decoded(body.stdin), limits=limits, run=body.run, agent=body.agent)
    outlet = context.service.start_batch(
        owner,
        work,
        context.workers(owner).run,
        pool_ref=body.poolRef,
        namespace=body.namespace,
        image=body.image,
        spec=spec,
    )
    return StreamingResponse(_lines(outlet), media_type=LINES)


async def _lines(outlet: Outlet) -> AsyncIterator[bytes]:
    bell, count = Bell(), 0
    outlet.on_change = bell.ring
    try:
        async for found in bell.follow(outlet.poll):
            count += len(found)
            yield b"".join(json_line({"event": "result", **record}) for record in found) or b"\n"
        yield json_line({"event": "end", "count": count})
    except HarenaError as error:
        yield json_line({"event": "error", "error": error_out(error)})
    finally:
        outlet.close()


def _decoded(stdin: list[str] | None) -> list[bytes] | None:
    if stdin is None:
        return None
    try:
        return [base64.b64decode(text, validate=True) for text in stdin]
    except (binascii.Error, ValueError):
        raise SpecError("stdin: base64") from None
