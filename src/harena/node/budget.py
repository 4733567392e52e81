"""Memory for outputs of executions, shared by the connections of one owner."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator

from harena.errors import BoxLost
from harena.sandbox.spec import MB

OUTPUT_BYTES = 256 * MB
"""Output that the executions of one owner may have at once, by their limits; more wait. A single one may have more."""


class OutputBudget:
    """Taken before an execution and given back when its answer was sent."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._used = 0

    @contextlib.contextmanager
    def share(self, size: int, has_gone: Callable[[], bool]) -> Generator[None]:
        """Wait for room. Raises BoxLost if the client has gone; `wake` makes this look again."""
        with self._changed:
            self._changed.wait_for(lambda: has_gone() or not self._used or self._used + size <= OUTPUT_BYTES)
            if has_gone():
                raise BoxLost("the client has gone")
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
