"""Operations of a session: each id runs at most once, and everybody who asks for it follows the same events.

Events are numbered from 1. A reader that lost its connection continues after the last number that it has seen:

{"number": 1, "event": "output", "step": 0, "stream": "stdout", "data": "…"}
{"number": 2, "event": "step", "step": 0, "result": {…}}       the whole record of the step
{"number": 3, "event": "end", "result": {…}}                   or "error"; the last event
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harena.errors import BoxError, HarenaError, Retry
from harena.sandbox.spec import MB
from harena.sessions.errors import NotFound, error_out

MAX_PIECES = 4 * MB
"""Characters of output that are kept in pieces. A reader that is further behind misses the oldest pieces, which is seen
by their numbers; the record of the step has the whole output."""
PIECE_ROOM = 200
"""What a piece takes beside its characters."""

Record = dict[str, Any]
OnStep = Callable[[Record], object]
OnOutput = Callable[[Record], object]
"""Called with {"step", "stream", "data"} for each piece of output."""


class Feed:
    """Events of one operation, for readers in any thread. Appending never waits for a reader."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: OrderedDict[int, Record] = OrderedDict()
        self._pieces: OrderedDict[int, int] = OrderedDict()
        """Sizes of the pieces of output among the events."""
        self._last = 0
        self._ended = False
        self._listeners: list[Callable[[], object]] = []
        self.size = 0

    def append(self, event: Record, size: int = 0) -> None:
        with self._changed:
            self._last += 1
            self._events[self._last] = {"number": self._last, **event}
            self._ended = event["event"] in ("end", "error")
            if event["event"] == "output":
                self._pieces[self._last] = size + PIECE_ROOM
                self.size += size + PIECE_ROOM
            while self.size > MAX_PIECES:
                oldest, gone = self._pieces.popitem(last=False)
                del self._events[oldest]
                self.size -= gone
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    @property
    def last(self) -> int:
        """Number of the last event."""
        with self._changed:
            return self._last

    def after(self, number: int) -> tuple[list[Record], bool]:
        """Events after a number, and whether they are the last ones."""
        with self._changed:
            found: list[Record] = []
            for known in reversed(self._events):
                if known <= number:
                    break
                found.append(self._events[known])
            return found[::-1], self._ended

    def wait(self, number: int) -> tuple[list[Record], bool]:
        """The same, but wait until there are some, or the operation has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._last > number)
        return self.after(number)

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each event, in the thread that appends. Returns what ends it."""
        with self._changed:
            self._listeners.append(listener)
        return lambda: self._forget(listener)

    def _forget(self, listener: Callable[[], object]) -> None:
        with self._changed:
            self._listeners.remove(listener)

    def forget_pieces(self) -> None:
        with self._changed:
            for number in self._pieces:
                del self._events[number]
            self._pieces.clear()
            self.size = 0


def call_back(event: Record, on_step: OnStep | None, on_output: OnOutput | None) -> None:
    """Hand an event to the callback that wants it."""
    if event["event"] == "step" and on_step is not None:
        on_step(event["result"])
    elif event["event"] == "output" and on_output is not None:
        on_output({name: event[name] for name in ("step", "stream", "data")})


@dataclass(slots=True)
class Operation:
    id: str
    digest: str
    """Digest of the requested work. The same id with other work is a conflict."""
    feed: Feed = field(default_factory=Feed)
    ended: threading.Event = field(default_factory=threading.Event)
    result: Record | None = None
    error: Exception | None = None
    records: list[Record] = field(default_factory=list[Record])
    """Steps that have run."""
    steps: int = 0
    """Steps that it may run."""
    reserved: int = 0
    """Bytes that its records take besides their output."""
    size: int = 0
    """Bytes of its output."""
    forgotten: bool = False
    refused: bool = False
    """True if nobody did the work, and the id is free again."""

    def run(self, work: Callable[[], Record]) -> None:
        """Do the work, and keep how it ended. Called once."""
        try:
            self.result = work()
        except Exception as error:
            self.error = without_frames(error)
        finally:
            if self.result is None and self.error is None:
                self.error = BoxError("the operation was interrupted", retry=Retry.NEVER)
            self.feed.append(self._last_event())
            self.ended.set()

    def _last_event(self) -> Record:
        if self.result is not None:
            return {"event": "end", "result": without_steps(self.result)}
        error = self.error if isinstance(self.error, HarenaError) else BoxError("the step failed on the server")
        return {"event": "error", "error": error_out(error)}

    def outcome(self) -> Record:
        self.ended.wait()
        if self.error is not None:
            raise without_frames(self.error)
        result = self.result
        if result is None:
            raise NotFound("the operation has run; its result was too old to be kept")
        return result

    def follow(self, on_step: OnStep | None, on_output: OnOutput | None) -> Record:
        """Call back for each event from the first one on, and return the outcome."""
        number, ended = 0, False
        while not ended:
            events, ended = self.feed.wait(number)
            for event in events:
                number = event["number"]
                call_back(event, on_step, on_output)
        return self.outcome()

    def forget(self) -> None:
        """Let go of what was written, but not of the id."""
        for record in self.records:
            record |= {"stdout": "", "stderr": "", "command": [], "forgotten": True}
        self.result, self.forgotten = None, True
        self.feed.forget_pieces()


def without_frames(error: Exception) -> Exception:
    """Return the same error without its traceback, which would keep the data of the request that it ended."""
    if isinstance(error, OSError):
        return copy.copy(error)
    made = type(error).__new__(type(error))
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made


def without_steps(result: Record) -> Record:
    """A result without what its steps say already, which came in events of their own."""
    status = {name: value for name, value in result["status"].items() if name not in ("steps", "stdout", "stderr")}
    return {**result, "status": status}


def with_steps(result: Record, records: list[Record]) -> Record:
    """The inverse of `without_steps`."""
    joined = {name: "".join(record[name] for record in records) for name in ("stdout", "stderr")}
    return {**result, "status": {**result["status"], **joined, "steps": records}}
