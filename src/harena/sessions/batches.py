"""Batches: many Python programs, each in a fresh process of a pool's boxes, with verdicts as they come.

Guarantees: at most MAX_WAITING of results wait in memory; a reader that stops reading pauses its batch and nobody
else's; a reader that leaves ends it at the next result.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harena.errors import BoxClosed, SpecError
from harena.sandbox.border.observed import Observer
from harena.sandbox.pool import MAX_GROUP_BYTES, SandboxPool
from harena.sandbox.spec import MB, Limits, Result
from harena.sessions.operations import Record
from harena.sessions.steps import of_result

MAX_PROGRAMS = 100_000
MAX_WAITING = 4 * MB
"""Characters of results that wait for their reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    programs: Sequence[str]
    stdin: Sequence[bytes] | None
    limits: Limits | None
    """None: those of the pool."""
    run: str = ""
    agent: str = ""
    """Labels of its usage."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.programs) <= MAX_PROGRAMS:
            raise SpecError(f"programs: from 1 to {MAX_PROGRAMS} at once")
        for index, program in enumerate(self.programs):
            if not isinstance(program, str) or len(program) > MAX_GROUP_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise SpecError(f"program {index}: must be text of at most {MAX_GROUP_BYTES} characters")
            if not program.isascii():
                _check_encodable(index, program)
        if self.stdin is not None and len(self.stdin) != len(self.programs):
            raise SpecError("stdin: one for each program")


def _check_encodable(index: int, program: str) -> None:
    try:
        program.encode()
    except UnicodeEncodeError:
        raise SpecError(f"program {index}: holds half of a surrogate pair") from None


class Outlet:
    """Results on their way from the thread that runs a batch to one reader."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Record] = deque()
        self._size = 0
        self._closed = False
        self._ended = False
        self._error: Exception | None = None
        self.on_change: Callable[[], object] = lambda: None
        """Called when there is something to take."""

    def put(self, record: Record, size: int) -> None:
        """Waits until there is room. Raises BoxClosed once the reader has left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._size < MAX_WAITING)
            if self._closed:
                raise BoxClosed("nobody reads the results any more")
            self._waiting.append(record)
            self._size += size
            self._changed.notify_all()
        self.on_change()

    def end(self, error: Exception | None = None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()
        self.on_change()

    def poll(self) -> tuple[list[Record], bool]:
        """What has come, and whether that was all. Raises the error of a batch that failed, after its last result."""
        with self._changed:
            found = list(self._waiting)
            self._waiting.clear()
            self._size = 0
            self._changed.notify_all()
            if not found and self._error is not None:
                raise self._error
            return found, self._ended and self._error is None

    def close(self) -> None:
        """The reader leaves."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Record]:
        try:
            ended = False
            while not ended:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._waiting) or self._ended)
                found, ended = self.poll()
                yield from found
        finally:
            self.close()


def run_batch(
    pool: SandboxPool, work: BatchWork, outlet: Outlet, observe: Callable[[], Observer] | None = None
) -> None:
    """Run all programs, and put each result into the outlet as it comes. `observe`: see SandboxPool.run_each."""

    def put(index: int, result: Result) -> None:
        outlet.put({"index": index, **of_result(result)}, 500 + len(result.stdout) + len(result.stderr))

    pool.run_each(work.programs, put, limits=work.limits, stdin=work.stdin, observe=observe)
