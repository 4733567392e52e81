"""Puts the API together over an arena: routes, the one error shape, the gate in front of all of them."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response

import harena
from harena.api import auth
from harena.api.answers import pages
from harena.api.answers.boards import Boards
from harena.api.answers.links import FilesWatch, Links
from harena.api.answers.live import Live
from harena.api.answers.replays import Replays
from harena.api.auth import Sessions
from harena.api.context import Api
from harena.api.http import errors
from harena.api.http.metrics import Metrics
from harena.api.http.middleware import LOOPBACK_NAMES, Gate
from harena.api.http.strict import ONLY_KNOWN
from harena.api.routes import (
    admin,
    boards,
    discover,
    environments,
    events,
    exports,
    files,
    hooks,
    legacy,
    matches,
    session,
    submissions,
    teams,
    workers,
)
from harena.arena import audit
from harena.arena.arena import Arena
from harena.arena.db.queries import Queries
from harena.arena.redis.rates import SharedRates
from harena.arena.work.dispatch import Dispatch
from harena.http.limits import RequestLimits

DESCRIPTION = (
    "Submissions, verified leaderboards and rating ladders for agents in boxes. Reading needs no key unless the host "
    "says so. Send a key as `Authorization: Bearer hrn_…`. Every refusal is {code, detail, hint, request_id, trace_id}."
)
# Boards first: routes are tried in order, and boards are asked for most.
ROUTERS = (
    boards,
    session,
    environments,
    submissions,
    matches,
    discover,
    teams,
    hooks,
    workers,
    admin,
    events,
    exports,
    files,
    legacy,
)


def operation_id(route: APIRoute) -> str:
    """Name of an operation in the OpenAPI document. It becomes a function in generated clients, so it follows from the
    names of the code, and not from paths."""
    module = route.endpoint.__module__.rpartition(".")[2]
    older = "_older" if route.path.startswith(("/submissions", "/leaderboard/")) else ""
    return f"{'contract' if module == 'legacy' else module}_{route.endpoint.__name__}{older}"


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
    metrics = Metrics()
    metrics.watch(arena)
    queries = Queries(arena.store)
    links = Links(arena.files, arena.settings.secret_key, arena.store.clock)
    api = Api(
        arena=arena,
        loopback=loopback,
        limits=limits,
        metrics=metrics,
        queries=queries,
        sessions=Sessions(arena.settings.secret_key, arena.store.clock),
        boards=Boards(arena, queries, metrics),
        live=Live(arena, limits, metrics),
        replays=Replays(arena.files, links),
        links=links,
        files_watch=FilesWatch(arena.files),
        dispatch=Dispatch(arena),
        uploading=threading.Semaphore(limits.uploads_at_once),
    )

    api.bell = workers.JobBell(api)
    shared = SharedRates(arena.redis.link) if arena.redis is not None else None

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        api.live.close()
        if shared is not None:
            await shared.close()

    app = FastAPI(
        title="Harena",
        version=harena.__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's page fetches scripts from elsewhere; ours is in `pages`
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
        default_response_class=Response,
        lifespan=lifespan,
    )
    app.state.api = api
    for module in ROUTERS:
        checks = () if module is legacy else (ONLY_KNOWN,)
        app.include_router(module.router, dependencies=[*auth.SCHEMES, *checks])
    app.include_router(matches.embedding)
    app.include_router(pages.router)
    errors.install(app, missing_page=pages.missing)
    hosts = LOOPBACK_NAMES | set(allowed_hosts or ())
    app.add_middleware(
        Gate,
        hosts=hosts,
        limits=limits,
        max_upload_bytes=arena.settings.max_upload_bytes,
        metrics=metrics,
        audit=functools.partial(audit.record, arena.settings.data),
        clock=clock,
        shared=shared,
        kept=functools.partial(boards.kept, api),
    )
    return app
