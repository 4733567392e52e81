"""Puts the API together over an arena: routes, the one error shape, the gate in front of all of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection

from fastapi import FastAPI
from starlette.responses import Response

import harena
from harena.api import auth, errors, pages
from harena.api.auth import Sessions
from harena.api.boards import Boards
from harena.api.context import Api
from harena.api.limits import RequestLimits
from harena.api.live import Live
from harena.api.metrics import Metrics
from harena.api.middleware import LOOPBACK_NAMES, Gate
from harena.api.queries import Queries
from harena.api.replays import Replays
from harena.api.routes import (
    admin as v1_admin,
)
from harena.api.routes import (
    boards as v1_boards,
)
from harena.api.routes import (
    environments as v1_environments,
)
from harena.api.routes import (
    events as v1_events,
)
from harena.api.routes import (
    exports,
)
from harena.api.routes import (
    legacy as contract,
)
from harena.api.routes import (
    matches as v1_matches,
)
from harena.api.routes import (
    session as v1_session,
)
from harena.api.routes import (
    submissions as v1_submissions,
)
from harena.api.strict import ONLY_KNOWN
from harena.arena.arena import Arena

DESCRIPTION = (
    "Submissions, verified leaderboards and rating ladders for agents in boxes. Reading needs no key unless the host "
    "says so. Send a key as `Authorization: Bearer hrn_…`. Every refusal is {code, detail, hint, request_id}."
)
# Boards first: routes are tried in order, and boards are asked for most.
ROUTERS = (v1_boards, v1_session, v1_environments, v1_submissions, v1_matches, v1_admin, v1_events, exports, contract)


def create_app(
    arena: Arena,
    *,
    loopback: bool,
    allowed_hosts: Collection[str] | None = None,
    limits: RequestLimits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """`loopback`: served on this machine only; then nobody submits without a key from elsewhere, whatever stands in
    front. `allowed_hosts`: names beside localhost and numbers; "*" for any. `clock` is that of the rate limits. The
    arena is started and stopped by the caller; `app.state.api.live.close()` ends open streams and belongs at the
    beginning of a stop."""
    limits = limits or RequestLimits()
    metrics = Metrics(lambda: ((kind, state.value, n) for (kind, state), n in arena.queue.counts().items()))
    arena.submissions.observers.append(metrics.evaluated)
    queries = Queries(arena.store)
    api = Api(
        arena=arena,
        loopback=loopback,
        limits=limits,
        metrics=metrics,
        queries=queries,
        sessions=Sessions(arena.settings.secret_key, arena.store.clock),
        boards=Boards(arena, queries, metrics),
        live=Live(arena, limits, metrics),
        replays=Replays(arena.files),
        uploading=threading.Semaphore(limits.uploads_at_once),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        api.live.close()

    app = FastAPI(
        title="Harena",
        version=harena.__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's page fetches scripts from elsewhere; ours is in `pages`
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,
        lifespan=lifespan,
    )
    app.state.api = api
    for module in ROUTERS:
        checks = () if module is contract else (ONLY_KNOWN,)
        app.include_router(module.router, dependencies=[*auth.SCHEMES, *checks])
    app.include_router(pages.router)
    errors.install(app)
    hosts = LOOPBACK_NAMES | set(allowed_hosts or ())
    app.add_middleware(
        Gate, hosts=hosts, limits=limits, max_upload_bytes=arena.settings.max_upload_bytes, metrics=metrics, clock=clock
    )
    return app
