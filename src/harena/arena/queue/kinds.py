"""Registry of job kinds. An entry names the method that does the job, the method that is told when it is given up, and
the slots that it takes.

A new kind is one entry here, and the method that does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from harena.arena.db.jobs import QueuedJob
    from harena.arena.ladder.matches import MatchService
    from harena.arena.queue.desk import Desk
    from harena.arena.queue.workers import Handler
    from harena.arena.settings import Settings
    from harena.arena.submissions.service import Submissions


class Services(Protocol):
    """What does the jobs. `Arena` is one."""

    @property
    def settings(self) -> Settings: ...
    @property
    def submissions(self) -> Submissions: ...
    @property
    def matches(self) -> MatchService: ...
    @property
    def desk(self) -> Desk: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    name: str
    """As the database keeps it: never change one."""
    handler: Callable[[Services], Handler]
    given_up: Callable[[Services], Callable[[QueuedJob], object]]
    """Called inside the transaction that gives a job of this kind up."""
    evaluates: bool = False
    """A submission's own evaluation: its owner waits for it, and it has a place in the queue."""
    slots: Callable[[Services], int] | None = None
    """Jobs of this kind at a time; None: it plays on the runner and shares the runner's slots."""
    first: bool = False
    """The first free slot of the runner goes to it while none of it runs."""
    firm: bool = False
    """Never yields to other kinds."""


EVALUATE = JobKind(
    name="evaluate",
    handler=lambda arena: arena.submissions.evaluate,
    given_up=lambda arena: arena.submissions.dead,
    evaluates=True,
)
ENTER = JobKind(
    name="enter",
    handler=lambda arena: arena.submissions.enter,
    given_up=lambda arena: arena.submissions.dead,
    evaluates=True,
)
SCRIPT = JobKind(
    name="script",
    handler=lambda arena: arena.submissions.script,
    given_up=lambda arena: arena.submissions.dead,
    evaluates=True,
    slots=lambda arena: arena.settings.scripts_at_once,
)
FINAL = JobKind(
    name="final",
    handler=lambda arena: arena.submissions.final,
    given_up=lambda arena: arena.submissions.final_given_up,
)
MATCH = JobKind(
    name="match",
    handler=lambda arena: arena.matches.play,
    given_up=lambda arena: arena.matches.give_up,
    first=True,
)
DESK = JobKind(
    name="desk",
    handler=lambda arena: arena.desk.play,
    given_up=lambda arena: arena.desk.give_up,
    firm=True,
)

KINDS = (EVALUATE, ENTER, SCRIPT, FINAL, MATCH, DESK)
BY_NAME = {kind.name: kind for kind in KINDS}
EVALUATIONS = tuple(kind.name for kind in KINDS if kind.evaluates)
"""Jobs whose owners wait for them."""
