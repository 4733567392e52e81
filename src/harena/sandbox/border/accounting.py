"""Observer that charges an account for what a box does, and refuses once its owner's budget is used up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from harena.errors import BoxFileError, SpecError, Unsupported
from harena.journal.writer import current_labels
from harena.ledger.budget import GIB, Counts, as_label
from harena.sandbox.backend import Backend, Box, Capabilities
from harena.sandbox.border.observed import ObservedBox
from harena.sandbox.spec import Limits, Result, Spec

if TYPE_CHECKING:
    from harena.ledger.ledger import Account


@dataclass(slots=True)
class _Action:
    verb: str
    memory_gib: float
    """Memory that is reserved for it."""
    run: str
    began: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began


class AccountObserver:
    """One box more is charged when it is created."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._created = time.monotonic()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, _Action] = {}
        self._closed = False
        account.charge(Counts(boxes=1))

    def begin(
        self,
        verb: str,
        plain: Mapping[str, Any],
        data: Mapping[str, Any],
        values: Mapping[str, Any],
        limits: Limits | None,
    ) -> int:
        self.account.check()
        run = as_label(current_labels().get("trace", ""))
        of = next(self._numbers)
        with self._lock:
            self._open[of] = _Action(verb, 0.0 if limits is None else limits.memory_mb / GIB, run)
        self.account.charge(Counts(bytes_in=sum(map(_size, data.values()))), run=run)
        return of

    def piece(self, of: int, stream: str, data: bytes) -> None:
        if stream in ("stdin", "in"):
            self.account.check()
            self.account.charge(Counts(bytes_in=len(data)))
        else:
            self.account.charge(Counts(bytes_out=len(data)))

    def end(self, of: int, results: Sequence[Result], answer: Any = None, data: bytes | None = None) -> None:
        action = self._finish(of)
        counts = Counts(bytes_out=len(data or b""), executions=len(results))
        for result in results:
            counts.cpu_s += result.usage.cpu_s
            counts.gib_s += result.usage.wall_s * action.memory_gib
            counts.bytes_out += len(result.stdout) + len(result.stderr)
        verdicts = tuple(result.verdict.value for result in results)
        self.account.charge(counts, run=action.run, verdicts=verdicts, latency_s=action.age_s)

    def fail(self, of: int, error: BaseException) -> None:
        action = self._finish(of)
        if isinstance(error, SpecError | Unsupported | BoxFileError):
            return
        counts = Counts(faults=1, gib_s=action.age_s * action.memory_gib)
        self.account.charge(counts, run=action.run, verdicts=("platform fault",), latency_s=action.age_s)

    def _finish(self, of: int) -> _Action:
        with self._lock:
            return self._open.pop(of)

    def fork(self, box_id: str) -> AccountObserver:
        return AccountObserver(self.account)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            broken_off = [action for action in self._open.values() if action.verb == "program"]
        counts = Counts(box_s=time.monotonic() - self._created)
        for action in broken_off:  # their batch was given up, and nobody waits for them
            counts.gib_s += action.age_s * action.memory_gib
        self.account.charge(counts)


class AccountedBackend:
    """A backend whose boxes are charged to an account."""

    def __init__(self, inner: Backend, account: Account) -> None:
        self._inner, self._account = inner, account

    def capabilities(self) -> Capabilities:
        return self._inner.capabilities()

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> Box:
        self._account.check()
        made = self._inner.create(spec, limits=limits, start_s=start_s)
        return cast("Box", ObservedBox(made, AccountObserver(self._account)))


def _size(data: Any) -> int:
    return sum(map(len, data)) if isinstance(data, list) else len(data)  # pyright: ignore[reportUnknownArgumentType]
