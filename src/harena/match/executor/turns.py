"""Queue of matches that wait for a place to play. Guarantees: never more than `limit` play at once; the next place goes
to the owner who plays least, then to the one who waited longest since their last start; among the matches of one owner,
higher priority first, then first come, first served. A priority never gains anything over other owners.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

POLL_S = 0.1
"""How often a waiting match checks whether it was cancelled; places are handed over at once."""


@dataclass(eq=False, slots=True)
class TurnTicket:
    owner: str
    priority: int
    number: int
    called: threading.Event = field(default_factory=threading.Event)


class Turns:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[TurnTicket] = []
        self._playing: Counter[str] = Counter()
        self._last_start: dict[str, int] = {}
        """Number of the last start by owner; only owners who wait or play."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def playing(self) -> int:
        return self._playing.total()

    @contextlib.contextmanager
    def turn(self, owner: str, priority: int, cancelled: Callable[[], bool]) -> Generator[bool]:
        """Wait for a place and hold it. Yields False, without a place, if the match was cancelled before its turn."""
        ticket = TurnTicket(owner, priority, next(self._numbers))
        with self._lock:
            self._waiting.append(ticket)
            self._call_next()
        try:
            while not ticket.called.wait(POLL_S) and not cancelled():
                pass
        finally:
            with self._lock:
                playing = ticket.called.is_set()
                if not playing:
                    self._waiting.remove(ticket)
                    self._forget(owner)
        try:
            yield playing
        finally:
            if playing:
                with self._lock:
                    self._playing[owner] -= 1
                    self._forget(owner)
                    self._call_next()

    def _call_next(self) -> None:
        while self._waiting and self._playing.total() < self.limit:
            ticket = min(self._waiting, key=self._rank)
            self._waiting.remove(ticket)
            self._playing[ticket.owner] += 1
            self._last_start[ticket.owner] = next(self._numbers)
            ticket.called.set()

    def _rank(self, ticket: TurnTicket) -> tuple[int, int, int, int]:
        owner = ticket.owner
        return self._playing[owner], self._last_start.get(owner, -1), -ticket.priority, ticket.number

    def _forget(self, owner: str) -> None:
        if not self._playing[owner]:
            del self._playing[owner]
            if all(ticket.owner != owner for ticket in self._waiting):
                self._last_start.pop(owner, None)
