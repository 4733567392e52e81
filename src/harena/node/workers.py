"""Threads that serve requests: started when needed, reused, bounded in number, with a bounded line of waiting jobs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

IDLE_S = 10.0
"""A thread ends after this time without a job."""


class Workers:
    """Jobs start in the order in which they were given. A job must not raise."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._most = threads
        self._most_waiting = waiting
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._threads = 0

    def run(self, job: Callable[[], None]) -> bool:
        """Run a job in a thread, soon or when one is free. False if too many wait already."""
        with self._changed:
            if len(self._jobs) < self._idle:
                self._jobs.append(job)
                self._changed.notify()
                return True
            if self._threads < self._most:
                self._threads += 1
            elif len(self._jobs) < self._idle + self._most_waiting:
                self._jobs.append(job)
                return True
            else:
                return False
        try:
            threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True).start()
        except RuntimeError:  # the machine has no room for another thread
            with self._changed:
                self._threads -= 1
            return False
        return True

    def _work(self, job: Callable[[], None]) -> None:
        while True:
            job()
            del job  # it may hold a large request
            with self._changed:
                self._idle += 1
                got = bool(self._jobs) or self._changed.wait_for(lambda: bool(self._jobs), IDLE_S)
                self._idle -= 1
                if not got:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
