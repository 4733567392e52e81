"""What the routes of one app share. Made by `app.create_app`, found by `get_api`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import Depends, Request
from starlette.responses import Response

from harena import schema
from harena.api.answers.links import FilesWatch, Links
from harena.api.answers.replays import Replays
from harena.api.http.metrics import Metrics
from harena.arena.arena import Arena
from harena.arena.db.queries import Queries
from harena.arena.db.store import Store
from harena.arena.settings import Settings
from harena.http.limits import RequestLimits

if TYPE_CHECKING:
    from harena.api.answers.boards import Boards
    from harena.api.answers.live import Live
    from harena.api.auth import Sessions
    from harena.api.routes.workers import JobBell
    from harena.arena.work.dispatch import Dispatch


@dataclass(slots=True, kw_only=True, eq=False)
class Api:
    arena: Arena
    loopback: bool
    """Served on this machine's loopback only."""
    limits: RequestLimits
    metrics: Metrics
    queries: Queries
    sessions: Sessions
    boards: Boards
    live: Live
    replays: Replays
    dispatch: Dispatch
    links: Links
    files_watch: FilesWatch
    uploading: threading.Semaphore
    """Uploads that are in memory at once."""
    listing: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever makes a list that all readers share."""
    clock: Callable[[], float] = field(default=time.time)
    bell: JobBell = field(init=False)

    @property
    def store(self) -> Store:
        return self.arena.store

    @property
    def settings(self) -> Settings:
        return self.arena.settings


def reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(schema.as_json(data)), status, dict(headers or {}), "application/json")


async def get_api(request: Request) -> Api:
    return request.app.state.api


ApiOf = Annotated[Api, Depends(get_api)]
