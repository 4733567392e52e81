"""Timer thread that calls functions at given times: idle and lifetime clocks of boxes, TTLs of leases."""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable


class Alarm:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Callable[[], float | None]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def at(self, when: float, action: Callable[[], float | None]) -> None:
        """Call `action` at that monotonic time. If it returns another time, call it again then."""
        with self._changed:
            heapq.heappush(self._heap, (when, next(self._order), action))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="harena-alarm", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    wait = self._heap[0][0] - time.monotonic() if self._heap else None
                    self._changed.wait(wait)
                _, _, action = heapq.heappop(self._heap)
            try:
                again = action()
            except Exception:  # of one box: the clocks of all others go on
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
                continue
            if again is not None:
                self.at(again, action)

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._heap = []
        self._thread = None


ALARM = Alarm()
