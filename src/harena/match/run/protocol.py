"""What plays matches: the runner protocol, and how a caller waits for a match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from harena.errors import HarenaError
from harena.match.result import MatchResult, MatchSpec

POLL_S = 0.05


class MatchHandle(Protocol):
    """A match that was handed over."""

    def result(self, timeout: float | None = None) -> MatchResult:
        """Raises TimeoutError when it has not ended by then."""
        ...

    def results(self, timeout: float | None = None) -> list[MatchResult]:
        """Return the results of lockstep games, one for each seed."""
        ...

    def cancel(self) -> None: ...


class MatchRunner(Protocol):
    """`run.runner.Runner` is one, and so is the desk of an arena."""

    def submit(
        self,
        spec: MatchSpec,
        on_event: Callable[[dict[str, Any]], object] | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> MatchHandle:
        """Takes a match. With `seeds`: lockstep games."""
        ...


def wait(handle: MatchHandle, cancelled: Callable[[], bool] | None = None, poll_s: float = POLL_S) -> list[MatchResult]:
    """Waits for a match, in short waits so that Ctrl-C comes through. Cancels it once `cancelled` says so."""
    while True:
        try:
            return handle.results(timeout=poll_s)
        except TimeoutError as error:
            if isinstance(error, HarenaError):
                raise  # the match's own, not that of this wait
        if cancelled is not None and cancelled():
            handle.cancel()
