"""`AsyncArenaClient`: the same verbs, awaited. A cancelled call closes its connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

import httpx

from harena import schema
from harena.client import calls, config
from harena.client.calls import Call
from harena.client.session import ApiSession, Incoming, client_options
from harena.client.verbs import Verbs

T = TypeVar("T")


class AsyncArenaClient(Verbs):
    """The async twin of ArenaClient, for one event loop."""

    def __init__(
        self, url: str | None = None, *, key: str | None = None, client_id: str | None = None, timeout_s: float = 30
    ) -> None:
        url = config.arena_url(url)
        self._http = httpx.AsyncClient(**client_options(url))
        self._session = ApiSession(
            _AsyncWire(self._http), url=url, key=config.api_key(key), client_id=client_id, timeout_s=timeout_s
        )

    @property
    def url(self) -> str:
        return self._session.url

    async def perform(self, make: Callable[[], Call[T]]) -> T:
        # In a thread: a submission is read from the disk, and packed.
        return await self._session.send(await asyncio.to_thread(make))

    async def wait(
        self,
        submission_id: str,
        timeout_s: float = 600,
        *,
        on_change: Callable[[schema.Submission], None] | None = None,
    ) -> schema.Submission:
        return await self._session.wait(submission_id, timeout_s, on_change)

    def watch(self, topics: str | Iterable[str], *, last_id: str = "") -> AsyncGenerator[schema.Notice]:
        """Leave it with `contextlib.aclosing`, so that the connection is closed when you do."""
        return self._session.watch([topics] if isinstance(topics, str) else list(topics), last_id)

    def live(self, match_id: str) -> AsyncGenerator[schema.MatchFrame]:
        return self._session.live(match_id)

    def export_stream(
        self, what: str, env_id: str, format: str = "csv", *, board: str | None = None, season: int | None = None
    ) -> AsyncGenerator[bytes]:
        return self._session.pieces(calls.export(what, env_id, format, board=board, season=season))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncArenaClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncArenaClient({self.url!r})"


class _AsyncWire:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @contextlib.asynccontextmanager
    async def open(self, request: httpx.Request) -> AsyncGenerator[Incoming]:
        response = await self._http.send(request, stream=True)
        try:
            yield Incoming(response.status_code, response.headers, response.aiter_raw())
        finally:
            await response.aclose()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
