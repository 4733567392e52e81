"""The processes of one training run, as torchrun or `accelerate launch` start them. The first leads: it owns the loop,
its files and its boxes, and gives orders; the others hear them and do their share.

Guarantees: everybody is in the same call at the same time, or hears why not. What one process fails with ends all of
them: the one raises its own error, the others RankFailed with its number and its words. A process that is killed says
nothing; its launcher ends the others. One process alone needs no group, and nothing is sent.

Orders are pickled between processes of the same run; they carry text of models as strings and nothing that a box made.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from harena.azr.errors import TrainingError

Value = TypeVar("Value")
MAX_WORDS = 2_000
SILENCE = datetime.timedelta(minutes=30)
"""How long processes wait for one that says nothing; the first may be busy with its boxes for minutes."""


class RankFailed(TrainingError):
    """Another process of the run failed; the message says which, and with what."""


@dataclass(frozen=True, slots=True)
class _RankFailure:
    rank: int
    words: str

    def error(self) -> RankFailed:
        return RankFailed(f"process {self.rank} of the run failed: {self.words}")


class Ranks:
    """`count` processes, of which this one is `index`."""

    def __init__(self, *, count: int = 1, index: int = 0) -> None:
        self.count = count
        self.index = index
        self._over = False

    @classmethod
    def met(cls, *, cpu: bool) -> Ranks:
        """The processes that the launcher started, once all of them are there."""
        state = importlib.import_module("accelerate").PartialState(cpu=cpu, timeout=SILENCE)
        return cls(count=state.num_processes, index=state.process_index)

    @property
    def leads(self) -> bool:
        return self.index == 0

    # ---- orders ----

    def tell(self, order: object) -> None:
        """Send an order from the first process to all others, which `hear` it."""
        if self.count > 1:
            self._group().broadcast_object_list([order], src=0)

    def hear(self) -> Any:
        """The next order; RankFailed when there will be none."""
        heard: list[Any] = [None]
        try:
            self._group().broadcast_object_list(heard, src=0)
        except RuntimeError as error:
            raise RankFailed(f"the first process of the run is gone: {error}") from error
        if isinstance(heard[0], _RankFailure):
            self._over = True
            raise heard[0].error()
        return heard[0]

    def shared(self, make: Callable[[], Value]) -> Value:
        """What `make` gives the first; the others do not call it."""
        if not self.leads:
            return cast("Value", self.hear())
        with self.leading():
            value = make()
        self.tell(value)
        return value

    @contextlib.contextmanager
    def leading(self) -> Generator[None]:
        """Lead as the first process while the others hear. If this fails, they are told."""
        try:
            yield
        except BaseException as error:
            if not self._over:
                self._over = True
                with contextlib.suppress(RuntimeError):  # they may be gone, and the error is worth more
                    self.tell(_RankFailure(self.index, _words(error)))
            raise

    # ---- together ----

    def gather(self, work: Callable[[], Value]) -> list[Value]:
        """Everybody works; what each of them made, in order, for all."""
        if self.count == 1:
            return [work()]
        mine: Value | _RankFailure
        own: BaseException | None = None
        try:
            mine = work()
        except BaseException as error:
            mine, own = _RankFailure(self.index, _words(error)), error
        found: list[Any] = [None] * self.count
        try:
            self._group().all_gather_object(found, mine)
        except RuntimeError as error:
            raise own or RankFailed(f"another process of the run is gone: {error}") from error
        failed = [one for one in found if isinstance(one, _RankFailure)]
        if failed:
            self._over = True
            raise own or failed[0].error()
        return found

    def together(self, work: Callable[[], Value]) -> Value:
        """Everybody works and keeps what it made; all wait for the slowest."""
        made: list[Value] = []
        self.gather(lambda: made.append(work()))
        return made[0]

    def _group(self) -> Any:
        return importlib.import_module("torch.distributed")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_WORDS]
