"""What a client raises. A wrong argument is a SpecError, before anything was sent.

ArenaError           the arena said no: `code`, `detail`, `hint`, `status` and `request_id` are its own words
├── Unreachable      nobody answered at that URL; says how to start an arena there
├── BadAnswer        an answer that no arena gives: too large, of the wrong type, or a way to another server
└── WaitTimeout      the time given to `wait` ran out; the submission goes on                       (also TimeoutError)
"""

from __future__ import annotations

from harena.errors import HarenaError


class ArenaError(HarenaError):
    """The arena's own words, which may quote what other users wrote: make them safe before a terminal sees them."""

    def __init__(
        self, detail: str, *, code: str = "", hint: str = "", status: int | None = None, request_id: str = ""
    ) -> None:
        super().__init__(f"{detail}; {hint}" if hint else detail)
        self.code = code
        """A word for programs, such as not_found."""
        self.detail = detail
        self.hint = hint
        """What to do about it."""
        self.status = status
        """The HTTP status; None where no answer came."""
        self.request_id = request_id
        """The arena's log has it too."""


class Unreachable(ArenaError):
    """No arena answered. Reading calls have been tried again already."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"no arena answers at {url}: {why}",
            code="unreachable",
            hint="start one with `harena up`, or name another with --url or HARENA_URL",
        )
        self.url = url


class BadAnswer(ArenaError):
    """The answer was not used."""

    def __init__(self, detail: str, *, hint: str = "", status: int | None = None) -> None:
        super().__init__(
            detail, code="bad_answer", hint=hint or "is it an arena, and not older than this client?", status=status
        )


class WaitTimeout(ArenaError, TimeoutError):
    """Call `wait` again to go on waiting."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(
            f"{what} after {timeout_s:g} s", code="wait_timeout", hint="it goes on: wait again, with a longer timeout"
        )
