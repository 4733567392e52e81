"""`ArenaClient`: the arena for ordinary programs. It may be used by several threads at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import TypeVar

import httpx

from harena import schema
from harena.client import calls, config
from harena.client.calls import Call
from harena.client.session import ApiSession, Incoming, client_options, iterate, run
from harena.client.verbs import Verbs

T = TypeVar("T")


class ArenaClient(Verbs):
    """Talks to the arena at `url` (HARENA_URL, else http://127.0.0.1:8000) with `key` (HARENA_KEY, else none).

    `timeout_s` is how long the arena may be silent. Verbs raise ArenaError, and SpecError for arguments that cannot be
    sent. Close it, or use it with `with`."""

    def __init__(
        self, url: str | None = None, *, key: str | None = None, client_id: str | None = None, timeout_s: float = 30
    ) -> None:
        url = config.arena_url(url)
        self._http = httpx.Client(**client_options(url))
        self._session = ApiSession(
            _Wire(self._http), url=url, key=config.api_key(key), client_id=client_id, timeout_s=timeout_s
        )

    @property
    def url(self) -> str:
        return self._session.url

    def perform(self, make: Callable[[], Call[T]]) -> T:
        return run(self._session.send(make()))

    def wait(
        self,
        submission_id: str,
        timeout_s: float = 600,
        *,
        on_change: Callable[[schema.Submission], None] | None = None,
    ) -> schema.Submission:
        """Until the submission is ranked, rejected, failed or cancelled; WaitTimeout when the time is over first."""
        return run(self._session.wait(submission_id, timeout_s, on_change))

    def watch(self, topics: str | Iterable[str], *, last_id: str = "") -> Generator[schema.Notice]:
        """News without end, such as of ["board:CartPole-v1", "submission:ID", "matches:ENV"]. The first one is a
        `reset`, when the stream is open: read then what you want to show; see docs/client.md."""
        return iterate(self._session.watch([topics] if isinstance(topics, str) else list(topics), last_id))

    def live(self, match_id: str) -> Generator[schema.MatchFrame]:
        """The frames of a running match from its start; the last one is `finished`."""
        return iterate(self._session.live(match_id))

    def export_stream(
        self, what: str, env_id: str, format: str = "csv", *, board: str | None = None, season: int | None = None
    ) -> Generator[bytes]:
        """Export in pieces, for what is larger than memory."""
        return iterate(self._session.pieces(calls.export(what, env_id, format, board=board, season=season)))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> ArenaClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ArenaClient({self.url!r})"


class _Wire:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @contextlib.asynccontextmanager
    async def open(self, request: httpx.Request) -> AsyncGenerator[Incoming]:
        response = self._http.send(request, stream=True)
        try:
            yield Incoming(response.status_code, response.headers, _pieces(response.iter_raw()))
        finally:
            response.close()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)


async def _pieces(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in source:
        yield piece
