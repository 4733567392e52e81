"""Queues between a running match and those who watch it. Guarantees: a slow watcher loses steps, is told how many, and
delays nobody.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BACKLOG = 256
"""Number of events kept for a slow watcher."""


@dataclass(frozen=True, slots=True)
class Told:
    kind: str
    """started, step, finished, result."""
    game: int
    data: Any
    skipped: int
    """Steps left out before this one."""


class Watcher:
    """Bounded queue between a match and a watcher."""

    def __init__(self) -> None:
        self._queue: collections.deque[Told | None] = collections.deque()
        self._skipped = 0
        self._condition = threading.Condition()

    def put(self, kind: str, game: int, data: Any) -> None:
        with self._condition:
            if kind == "step" and len(self._queue) >= BACKLOG:
                self._skipped += 1
                return
            self._queue.append(Told(kind, game, data, self._skipped))
            self._skipped = 0
            self._condition.notify()

    def end(self) -> None:
        with self._condition:
            self._queue.append(None)
            self._condition.notify()

    def __iter__(self) -> Iterator[Told]:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue)
                told = self._queue.popleft()
            if told is None:
                return
            yield told
