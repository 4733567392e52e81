"""Timer thread that calls functions at given times: idle and lifetime clocks of boxes, TTLs of leases."""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable

MANY = 256
"""Cancelled calls that may stay in memory. Beyond that they are at most half of all."""


class ScheduledCall:
    """A call that was asked for."""

    def __init__(self, alarm: Alarm, action: Callable[[], float | None]) -> None:
        self._alarm = alarm
        self.action: Callable[[], float | None] | None = action

    def cancel(self) -> None:
        """Forget the call, and what its function holds. Idempotent."""
        if self.action is not None:
            self.action = None
            self._alarm.forget_cancelled()


class Alarm:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, ScheduledCall]] = []
        self._cancelled = 0
        """At least as many calls of the heap as these were cancelled since it was last cleaned."""
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def at(self, when: float, action: Callable[[], float | None]) -> ScheduledCall:
        """Call `action` at that monotonic time. If it returns another time, call it again then."""
        ring = ScheduledCall(self, action)
        self._add(when, ring)
        return ring

    def forget_cancelled(self) -> None:
        """Count a call that was cancelled, and clean the heap when there are many."""
        with self._changed:
            self._cancelled += 1
            if self._cancelled > max(MANY, len(self._heap) // 2):
                self._heap = [one for one in self._heap if one[2].action is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _add(self, when: float, ring: ScheduledCall) -> None:
        with self._changed:
            heapq.heappush(self._heap, (when, next(self._order), ring))
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
                _, _, ring = heapq.heappop(self._heap)
            action = ring.action
            if action is None:
                continue
            try:
                again = action()
            except Exception:  # of one box: the clocks of all others go on
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
                continue
            if again is not None:
                self._add(again, ring)
            else:
                ring.action = None

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._heap = []
        self._cancelled = 0
        self._thread = None


ALARM = Alarm()
