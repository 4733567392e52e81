"""How much longer things take because of what else the machine does: tests whose claim is a time ask for it."""

from __future__ import annotations

import time

SPIN_S = 0.2
QUIET = 1.2
"""A loop that takes longer than this times its processor time shows that something else runs."""
MARGIN = 2.0
"""The load changes while a block runs, and a block of many processes feels it more than one loop does."""


def slowdown() -> float:
    """The time that a loop takes, divided by the processor time that it gets; about 1 on a quiet machine."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < SPIN_S:
        pass
    return max(1.0, (time.perf_counter() - began) / SPIN_S)


class Span:
    """Measures a block: `took_s` is its time, and `limit(s)` that many seconds of a quiet machine, with a
    margin on a busy one."""

    def __enter__(self) -> Span:
        self._slow = slowdown()
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_s = time.monotonic() - self._began
        self._slow = max(self._slow, slowdown())

    def limit(self, seconds: float) -> float:
        return seconds * self._slow * (1 if self._slow < QUIET else MARGIN)
