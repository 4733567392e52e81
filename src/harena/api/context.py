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

from harena.api.limits import RequestLimits
from harena.api.metrics import Metrics
from harena.api.queries import Queries
from harena.api.replays import Replays
from harena.arena.arena import Arena
from harena.arena.db.store import Store
from harena.arena.settings import Settings

if TYPE_CHECKING:
    from harena.api.auth import Sessions
    from harena.api.boards import Boards
    from harena.api.live import Live


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
    uploading: threading.Semaphore
    """Uploads that are in memory at once."""
    clock: Callable[[], float] = field(default=time.time)

    @property
    def store(self) -> Store:
        return self.arena.store

    @property
    def settings(self) -> Settings:
        return self.arena.settings


def reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(data), status, dict(headers or {}), "application/json")


async def get_api(request: Request) -> Api:
    return request.app.state.api


ApiOf = Annotated[Api, Depends(get_api)]
