"""The conversation with an arena, written once for both clients: headers, errors, trying again, events, waiting.

Guarantees: a key leaves only for the origin it was given for, and no way to another server is followed; no answer is
read beyond its cap or unpacked; only calls that change nothing are tried again, a few times and with bounded pauses;
a stream of events goes on after a break where it stopped.

It is written with async and await, over a `Wire` that either waits for the loop or blocks. With a blocking wire a
coroutine never gives way, so `run` and `iterate` take it to its end in one go: that is the ordinary client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urljoin

import httpx

from harena import __version__, schema
from harena.client import config, decode, sse
from harena.client.calls import Call, checked_id, status
from harena.client.errors import ArenaError, BadAnswer, Unreachable, WaitTimeout
from harena.errors import SpecError

T = TypeVar("T")

TRIES, REDIRECTS = 4, 3
MAX_PAUSE_S = 10.0
"""An arena that wants to be left alone for longer gets its way: its error is raised."""
MAX_ERROR = 65536
MAX_WORDS = 2000
"""Characters of an error's sentence."""
SLOW = 10
"""An answer may take so many times `timeout_s` in all, however busily it drips."""
POLL_S = 5.0
"""How often a submission is asked for while there is no news: an event may be lost."""
SILENCE_S = 45.0
"""An arena sends a heartbeat every 15 s; after this long without one the connection is dead."""
PATIENCE_S = 30.0
"""An arena that is being started again is waited for."""
BREAKS = 8
BUSY, AWAY = frozenset({429, 503}), frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Incoming:
    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    """The body's pieces as they came over the wire."""


class Wire(Protocol):
    def open(self, request: httpx.Request) -> AbstractAsyncContextManager[Incoming]: ...
    async def pause(self, seconds: float) -> None: ...


def run(task: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose wire blocks."""
    try:
        task.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a blocking wire gave way")


def iterate(source: AsyncGenerator[T]) -> Generator[T]:
    async def next_one() -> T:
        return await anext(source)

    try:
        while True:
            try:
                found = run(next_one())
            except StopAsyncIteration:
                return
            yield found
    finally:
        run(source.aclose())


def client_options(url: str) -> dict[str, Any]:
    # What a proxy would be told about a server on this machine, it has no business to know.
    # Reading the certificates of the world takes 50 ms, which plain http has no use for.
    return {
        "follow_redirects": False,
        "trust_env": not config.is_loopback(url),
        "verify": url.startswith("https:"),
    }


class ApiSession:
    def __init__(
        self,
        wire: Wire,
        *,
        url: str,
        key: str | None,
        client_id: str | None,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not timeout_s > 0:
            raise SpecError("timeout_s is a number of seconds above 0")
        self.url = url
        self._wire, self._key, self._timeout_s, self._clock = wire, key, timeout_s, clock
        self._client_id = None if client_id is None else config.checked_client_id(client_id)

    # ---- one call ----

    async def send(self, call: Call[T]) -> T:
        tries = TRIES if call.method == "GET" else 1
        for attempt in range(1, tries + 1):
            pause_s = 0.1 * 2 ** (attempt - 1)
            try:
                return call.decode(await self._body(call))
            except httpx.TransportError as error:
                if attempt == tries or isinstance(error, httpx.TimeoutException):
                    raise self._unreachable(error) from error
            except _Busy as busy:
                if attempt == tries or busy.after_s > MAX_PAUSE_S:
                    raise busy.error from None
                pause_s = max(pause_s, busy.after_s)
            await self._wire.pause(pause_s)
        raise AssertionError("the last try returns or raises")

    async def pieces(self, call: Call[bytes]) -> AsyncGenerator[bytes]:
        """An answer as it comes, for what is larger than memory. Not tried again: half of it may have been used."""
        try:
            async with self._opened(self._request(call)) as incoming:
                async for piece in incoming.pieces:
                    yield piece
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except _Busy as busy:
            raise busy.error from None

    async def _body(self, call: Call[Any]) -> bytes:
        request = self._request(call)
        for _ in range(REDIRECTS):
            async with self._opened(request, moved=True) as incoming:
                if incoming.status < 300:
                    return await self._read(incoming, call.max_bytes)
                place = self._elsewhere(request, incoming)
            request = self._request(call, url=place)
        raise BadAnswer("the server sends us round and round", hint="check the URL")

    async def _read(self, incoming: Incoming, max_bytes: int) -> bytes:
        body, deadline = bytearray(), self._clock() + self._timeout_s * SLOW
        async for piece in incoming.pieces:
            body += piece
            if len(body) > max_bytes:
                raise BadAnswer(f"an answer of more than {max_bytes} bytes", status=incoming.status)
            if self._clock() > deadline:
                raise BadAnswer(f"an answer that took more than {self._timeout_s * SLOW:g} s", status=incoming.status)
        return bytes(body)

    def _request(
        self, call: Call[Any], *, url: str = "", silence_s: float | None = None, last_id: str = ""
    ) -> httpx.Request:
        timeout = httpx.Timeout(self._timeout_s, read=silence_s or self._timeout_s).as_dict()
        headers = self._headers(call) | ({"Last-Event-ID": last_id} if last_id else {})
        form: dict[str, Any] = {}
        if call.form is not None:
            several = len(call.form.parts) > 1
            files = [("files" if several else "file", (part.name, part.data)) for part in call.form.parts]
            form = {"data": dict(call.form.fields), "files": files}
        try:
            return httpx.Request(
                call.method,
                url or self.url + call.path,
                params=None if url else dict(call.params),
                headers=headers,
                json=call.body,
                extensions={"timeout": timeout},
                **form,
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise SpecError(f"this cannot be asked for: {error}") from None

    def _headers(self, call: Call[Any]) -> dict[str, str]:
        # Not packed: a small answer must not become a large one here.
        headers = {"User-Agent": f"harena/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        who = self._client_id or config.client_id(self.url, make=call.method != "GET" and self._key is None)
        return headers | ({"X-Client-Id": who} if who else {})

    @contextlib.asynccontextmanager
    async def _opened(self, request: httpx.Request, *, moved: bool = False) -> AsyncGenerator[Incoming]:
        """An answer that is not a refusal, nor, unless `moved`, one that sends us elsewhere."""
        async with self._wire.open(request) as incoming:
            if incoming.headers.get("content-encoding", "identity") != "identity":
                raise BadAnswer("a packed answer, which we did not ask for", status=incoming.status)
            if incoming.status >= 400:
                error = refusal(incoming.status, await self._read(incoming, MAX_ERROR))
                if incoming.status in BUSY:
                    raise _Busy(error, _seconds(incoming.headers.get("retry-after", "")))
                raise error
            if incoming.status >= 300 and not moved:
                raise _sent_away(incoming.status)
            yield incoming

    def _elsewhere(self, request: httpx.Request, incoming: Incoming) -> str:
        """Where an answer sends us, if that is this server."""
        if request.method != "GET" or "location" not in incoming.headers:
            raise _sent_away(incoming.status)
        try:
            place = urljoin(str(request.url), incoming.headers["location"])
            there = config.origin(place)
        except ValueError:
            raise _sent_away(incoming.status) from None
        if there != config.origin(self.url):
            raise BadAnswer(
                f"{self.url} sends us to another server, {there}", hint=f"if you trust it, use --url {there}"
            )
        return place

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(self.url, _why(error))

    # ---- events ----

    async def watch(self, topics: Collection[str], last_id: str = "") -> AsyncGenerator[schema.Notice]:
        """News of these topics, without end. The first one is a `reset`, as soon as the stream is open: what is read
        from then on will not change unheard. After a break it goes on with the first that was missed."""
        if not topics:
            raise SpecError("name a topic, such as board:CartPole-v1, submission:ID or matches:ENV")
        if last_id and not (last_id.isascii() and last_id.isdigit()):
            raise SpecError(f"{last_id[:80]!r} is not the id of a notice")
        call = _stream("/v1/events", topics=",".join(topics))
        async with contextlib.aclosing(self._following(call, last_id=last_id)) as events:
            async for event in events:
                if event.event == "reset":
                    yield schema.Notice(kind="reset", id=event.id)
                else:
                    yield dataclasses.replace(decode.shape(schema.Notice, decode.parse(event.data)), id=event.id)

    async def live(self, match_id: str) -> AsyncGenerator[schema.MatchFrame]:
        """The frames of a running match from its start, each step once, and `finished` at its end."""
        call = _stream(f"/v1/matches/{checked_id(match_id, 'match')}/live")
        last = -1
        async with contextlib.aclosing(self._following(call)) as events:
            async for event in events:
                frame = schema.MatchFrame(event=event.event, body=decode.whole(decode.parse(event.data)))
                step = frame.body.get("step")
                if frame.event == "reset" or (isinstance(step, int) and step <= last):
                    continue  # after a break, or for a slow reader, they are all told again
                last = step if isinstance(step, int) else last
                yield frame
                if frame.event == "finished":
                    return

    async def _following(self, call: Call[Any], *, last_id: str = "") -> AsyncGenerator[sse.ServerEvent]:
        breaks = 0
        while True:
            try:
                async with self._events(call, last_id=last_id) as events:
                    breaks = 0
                    if not last_id:
                        yield sse.ServerEvent("reset", "{}", "")
                    async for event in events:
                        last_id = event.id or last_id
                        yield event
                why: Exception | None = None
            except httpx.TransportError as error:
                why = error
            except _Busy as busy:
                why = busy.error
            except ArenaError as error:
                if error.status not in AWAY:
                    raise
                why = error
            breaks += 1
            if why is not None and breaks > BREAKS:
                raise why if isinstance(why, ArenaError) else self._unreachable(why)
            await self._wire.pause(min(0.25 * 2**breaks, POLL_S))

    @contextlib.asynccontextmanager
    async def _events(
        self, call: Call[Any], *, last_id: str = "", silence_s: float = SILENCE_S
    ) -> AsyncGenerator[AsyncIterator[sse.ServerEvent]]:
        async with self._opened(self._request(call, silence_s=silence_s, last_id=last_id)) as incoming:
            if not incoming.headers.get("content-type", "").startswith("text/event-stream"):
                raise BadAnswer("an answer that is no stream of events", status=incoming.status)
            async with contextlib.aclosing(_parsed(incoming.pieces)) as events:
                yield events

    # ---- waiting ----

    async def wait(
        self, submission_id: str, timeout_s: float, on_change: Callable[[schema.Submission], None] | None = None
    ) -> schema.Submission:
        """Until it is ranked, rejected, failed or cancelled. News hurry the next look; looks go on without them."""
        topic = f"submission:{checked_id(submission_id, 'submission')}"
        deadline = self._clock() + timeout_s
        last: schema.Submission | None = None

        async def look() -> bool:
            nonlocal last
            found = await self._patiently(status(submission_id), deadline if last else 0.0)
            if on_change is not None and found != last:
                on_change(found)
            last = found
            if not found.final and self._clock() >= deadline:
                raise WaitTimeout(f"{submission_id} is still {found.state}", timeout_s)
            return found.final

        while not await look():
            silence_s = max(0.05, min(POLL_S, deadline - self._clock()))
            try:
                async with self._events(_stream("/v1/events", topics=topic), silence_s=silence_s) as events:
                    # The stream is open by now: whatever happens after this look will be heard.
                    heard = await look()
                    while not heard and await anext(events, None) is not None:
                        heard = await look()
                if not heard:
                    await self._wire.pause(min(0.5, silence_s))
            except WaitTimeout:
                raise
            except httpx.ReadTimeout:
                pass
            except (httpx.TransportError, _Busy, ArenaError):
                await self._wire.pause(min(1.0, silence_s))  # the next look says what is wrong, if it is not the news
        assert last is not None
        return last

    async def _patiently(self, call: Call[T], deadline: float) -> T:
        """Waits until an arena that has just been there is back."""
        give_up_at = min(self._clock() + PATIENCE_S, deadline)
        while True:
            try:
                return await self.send(call)
            except Unreachable:
                if self._clock() >= give_up_at:
                    raise
            await self._wire.pause(1.0)


class _Busy(Exception):
    """The arena asks to come back later."""

    def __init__(self, error: ArenaError, after_s: float) -> None:
        super().__init__(str(error))
        self.error, self.after_s = error, after_s


def refusal(code: int, body: bytes) -> ArenaError:
    """The arena's error; of a server that is none, what can be said of it."""
    try:
        data: Any = decode.parse(body)
    except BadAnswer:
        data = None
    words = cast(dict[str, Any], data) if isinstance(data, dict) else {}

    def word(name: str) -> str:
        found = words.get(name)
        return found[:MAX_WORDS] if isinstance(found, str) else ""

    if not word("detail"):
        return ArenaError(f"HTTP status {code}", code=f"http_{code}", hint="is this an arena?", status=code)
    return ArenaError(word("detail"), code=word("code"), hint=word("hint"), status=code, request_id=word("request_id"))


def _sent_away(status: int) -> BadAnswer:
    return BadAnswer(f"the server sends us elsewhere (HTTP status {status})", hint="check the URL", status=status)


def _stream(path: str, **params: str) -> Call[bytes]:
    return Call(path=path, params=params, decode=bytes)


async def _parsed(pieces: AsyncIterator[bytes]) -> AsyncGenerator[sse.ServerEvent]:
    parser = sse.Parser()
    async for piece in pieces:
        for event in parser.feed(piece):
            yield event


def _seconds(text: str) -> float:
    """Return the seconds of a Retry-After; a date, or nonsense, counts as a moment."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.5


def _is_refused(error: BaseException | None) -> bool:
    """Whether a refused connection is what it came from; of several tries, whether all were refused."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        if isinstance(error, BaseExceptionGroup):
            tries = cast("BaseExceptionGroup[BaseException]", error).exceptions
            return all(map(_is_refused, tries))
        error = error.__cause__ or error.__context__
    return error is not None


def _why(error: Exception) -> str:
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return "connection refused" if _is_refused(error) else str(error)[:200] or "no connection"
        case httpx.TimeoutException():
            return "it does not answer in time"
        case _:
            return "the connection was lost"
