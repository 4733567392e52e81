"""Registry of job kinds. An entry names the methods that say what is to be done and what follows from it, the method
that is told when the job is given up, and the slots that it takes.

A new kind is one entry here, and these methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harena.errors import BackendUnavailable

if TYPE_CHECKING:
    from harena.arena.db.jobs import QueuedJob
    from harena.arena.ladder.matches import MatchService
    from harena.arena.queue.desk import Desk
    from harena.arena.queue.workers import Commit, Handler
    from harena.arena.settings import Settings
    from harena.arena.submissions.service import Submissions
    from harena.arena.work.orders import Answer, Order
    from harena.arena.work.perform import Bench


class Services(Protocol):
    """What does the jobs. `Arena` is one."""

    @property
    def settings(self) -> Settings: ...
    @property
    def submissions(self) -> Submissions: ...
    @property
    def matches(self) -> MatchService: ...
    @property
    def bench(self) -> Bench | None: ...
    @property
    def desk(self) -> Desk | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    name: str
    """The name in the database. Never change one."""
    order: Callable[[Services], Callable[[QueuedJob], Order | Commit]] | None = None
    """What a worker is to do for it, or at once what follows; None: only the process that queued it can do it."""
    settle: Callable[[Services], Callable[[QueuedJob, Answer], Commit]] | None = None
    """What follows from what a worker did."""
    own_handler: Callable[[Services], Handler] | None = None
    """Does a job that is not done by an order."""
    watched: bool = False
    """Whether frames are shown while it runs."""
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


def _desk(arena: Services) -> Desk:
    if arena.desk is None:
        raise BackendUnavailable("this process has no workers: matches over gRPC are played where they are asked for")
    return arena.desk


def _nobody_waits(job: QueuedJob) -> None:
    """Its caller was another process's, which hears of it by itself."""


EVALUATE = JobKind(
    name="evaluate",
    order=lambda arena: arena.submissions.order_evaluation,
    settle=lambda arena: arena.submissions.settle_evaluation,
    given_up=lambda arena: arena.submissions.dead,
    evaluates=True,
)
ENTER = JobKind(
    name="enter",
    order=lambda arena: arena.submissions.order_entry,
    settle=lambda arena: arena.submissions.settle_entry,
    given_up=lambda arena: arena.submissions.dead,
    evaluates=True,
)
SCRIPT = JobKind(
    name="script",
    order=lambda arena: arena.submissions.order_script,
    settle=lambda arena: arena.submissions.settle_script,
    given_up=lambda arena: arena.submissions.dead,
    evaluates=True,
    slots=lambda arena: arena.settings.scripts_at_once,
)
FINAL = JobKind(
    name="final",
    order=lambda arena: arena.submissions.order_final,
    settle=lambda arena: arena.submissions.settle_final,
    given_up=lambda arena: arena.submissions.final_given_up,
)
MATCH = JobKind(
    name="match",
    order=lambda arena: arena.matches.order,
    settle=lambda arena: arena.matches.settle,
    watched=True,
    given_up=lambda arena: arena.matches.give_up,
    first=True,
)
DESK = JobKind(
    name="desk",
    own_handler=lambda arena: _desk(arena).play,
    given_up=lambda arena: arena.desk.give_up if arena.desk is not None else _nobody_waits,
    firm=True,
)

KINDS = (EVALUATE, ENTER, SCRIPT, FINAL, MATCH, DESK)
BY_NAME = {kind.name: kind for kind in KINDS}
REMOTE = tuple(kind.name for kind in KINDS if kind.order is not None)
"""Jobs that workers on other machines can do."""
EVALUATIONS = tuple(kind.name for kind in KINDS if kind.evaluates)
"""Jobs whose owners wait for them."""
