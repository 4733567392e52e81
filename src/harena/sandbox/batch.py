"""One call of `SandboxPool.map`: gives programs to the boxes of the pool and collects the results in order.

Guarantees: a program whose box is lost runs in another one; a slow program does not hold back those behind it; boxes of
nodes that join are used, and those of nodes that leave get nothing more.
"""

from __future__ import annotations

import itertools
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from harena.errors import BoxLost, Retry, WireError
from harena.sandbox.backend import Programs, Task
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import MB, Limits, Result

if TYPE_CHECKING:
    from harena.sandbox.border.observed import Observer

IN_FLIGHT = 3
"""Programs that a worker runs at once, so that one runs while another is set up or removed."""
STRAGGLER_S = 0.05
"""After this time a program counts as slow and no longer holds back the ones behind it."""
TRIES = 3
"""How often a program is given to a box before the platform reports a failure."""
GROW_S = 0.25
"""How often a batch looks for nodes that have joined."""
MAX_GROUP_BYTES = 16 * MB
MAX_GROUP_OUTPUT = 512 * MB
"""Maximum total output of a group by the limits of its programs; groups are made smaller to stay below it."""


@dataclass(slots=True)
class _Share:
    """Programs that are given to a worker together: one, or a group."""

    indices: list[int]
    tries: int = 0
    sent_at: float = 0.0


@dataclass(slots=True)
class _Worker:
    box: Sandbox
    lane: Programs
    observer: Observer | None = None
    running: dict[int, _Share] = field(default_factory=dict[int, _Share])
    full: bool = False
    """True if the worker accepts nothing more until something is flushed."""
    writing: bool = False
    """True if the poll waits until it can flush."""
    retired: bool = False
    """True if it gets no more programs, since its node is leaving."""

    def close_observer(self) -> None:
        if self.observer is not None:
            self.observer.close()

    def stragglers(self, now: float) -> int:
        return sum(now - share.sent_at > STRAGGLER_S for share in self.running.values())


class BoxSource(Protocol):
    """Where a batch gets its boxes: the pool."""

    @property
    def stragglers(self) -> int: ...

    def replace(self, box: Sandbox, *, have: int) -> Sandbox | None: ...

    def another(self, *, have: int) -> Sandbox | None: ...


class PoolBatch:
    def __init__(
        self,
        pool: BoxSource,
        programs: Sequence[str],
        limits: Limits,
        group: int | None,
        stdin: Sequence[bytes] | None,
        progress: Callable[[int, int], object] | None,
        on_result: Callable[[int, Result], object] | None = None,
        observe: Callable[[], Observer] | None = None,
    ) -> None:
        """`on_result` gets each result as it ends, and none is kept. `observe` makes an observer for each box."""
        self._on_result = on_result
        self._observe = observe
        self._pool = pool
        self._programs = programs
        self._limits = limits
        self._group = group
        self._stdin = stdin
        self._progress = progress
        self._results: list[Result | None] = [None] * len(programs)
        self._done = 0
        self._keys = itertools.count(1)
        size = max(1, min(group or 1, MAX_GROUP_OUTPUT // max(1, limits.output_bytes)))
        self._todo = deque(_Share(indices) for indices in _cut(programs, size))

    def run(self, boxes: list[Sandbox]) -> list[Result]:
        self._boxes = boxes
        self._grow_at = time.monotonic() + GROW_S
        self._poll = select.poll()
        self._workers: dict[int, _Worker] = {}
        workers, poll = self._workers, self._poll
        try:
            for box in list(boxes):
                if not self._add(box):
                    self._find_another(box)
            while self._done < len(self._programs):
                if self._todo and time.monotonic() >= self._grow_at:
                    self._follow_nodes()
                for fd, worker in list(workers.items()):
                    try:
                        self._feed(worker)
                        if worker.full is not worker.writing:
                            worker.writing = worker.full
                            poll.modify(fd, select.POLLIN | (select.POLLOUT if worker.writing else 0))
                    except (OSError, WireError):
                        self._lose(fd)
                for fd, events in poll.poll(STRAGGLER_S * 1000 if self._todo else 60_000):
                    worker = workers[fd]
                    try:
                        if events & select.POLLOUT:
                            worker.full = not worker.lane.flush()
                        if events & ~select.POLLOUT:
                            self._collect(worker)
                    except (OSError, WireError):
                        self._lose(fd)
        except BaseException:
            # What still runs in these boxes is nobody's any more.
            for worker in workers.values():
                if worker.running:
                    worker.box.close("the batch was given up")
            raise
        finally:
            for worker in workers.values():
                worker.close_observer()
        if self._on_result is not None:
            return []
        for index, result in enumerate(self._results):
            if result is None:  # leaving it out would give every later program its neighbour's result
                raise BoxLost(f"program {index} was lost by its batch", retry=Retry.UNKNOWN)
        return cast("list[Result]", self._results)

    def _add(self, box: Sandbox) -> bool:
        """Use a box. False if it is lost already."""
        observer = None if self._observe is None else self._observe()
        try:
            lane = box.programs(observer)
        except BaseException as error:
            if observer is not None:
                observer.close()
            if isinstance(error, BoxLost):
                return False
            raise
        self._workers[lane.fileno()] = _Worker(box, lane, observer)
        self._poll.register(lane.fileno(), select.POLLIN)
        return True

    def _feed(self, worker: _Worker) -> None:
        now = time.monotonic()
        while self._todo and not worker.full and not worker.retired:
            slow = worker.stragglers(now)
            if slow > self._pool.stragglers or len(worker.running) - slow >= IN_FLIGHT:
                return
            if slow == self._pool.stragglers and len(worker.running) > slow:
                return
            share = self._todo.popleft()
            share.sent_at = time.monotonic()
            share.tries += 1
            key = next(self._keys)
            worker.running[key] = share
            worker.lane.give(key, self._task(share))
            worker.full = not worker.lane.flush()

    def _task(self, share: _Share) -> Task:
        more = min(IN_FLIGHT, len(self._todo)) or 1
        sources = [self._programs[index] for index in share.indices]
        if self._group is None:
            stdin = self._stdin[share.indices[0]] if self._stdin else b""
            return Task(sources=sources, stdin=stdin, limits=self._limits, more=more)
        return Task(sources=sources, grouped=True, limits=self._limits, more=more)

    def _collect(self, worker: _Worker) -> None:
        for ended in worker.lane.collect():
            share = worker.running.pop(ended.key)
            if ended.failure:
                self._again(share, ended.failure)
                continue
            for index, result in zip(share.indices, ended.results, strict=False):
                self._settle(index, result)
            if rest := share.indices[len(ended.results) :]:
                self._todo.appendleft(_Share(rest))

    def _settle(self, index: int, result: Result) -> None:
        if self._on_result is not None:
            self._on_result(index, result)
        else:
            self._results[index] = result
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, len(self._programs))

    def _again(self, share: _Share, why: str) -> None:
        if share.tries >= TRIES:
            raise BoxLost(f"program {share.indices[0]}: {why} ({TRIES} tries)", retry=Retry.UNKNOWN)
        self._todo.appendleft(share)

    def _lose(self, fd: int) -> None:
        """Handle a lost box: give its programs to another."""
        worker = self._workers.pop(fd)
        worker.close_observer()
        self._poll.unregister(fd)
        for share in worker.running.values():
            self._again(share, f"box {worker.box.id} was lost")
        self._find_another(worker.box)

    def _find_another(self, lost: Sandbox) -> None:
        for _ in range(TRIES):
            self._boxes.remove(lost)
            box = self._pool.replace(lost, have=len(self._workers))
            if box is None:
                return
            self._boxes.append(box)
            if self._add(box):
                return
            lost = box
        raise BoxLost(f"box {lost.id} was lost, and those before it ({TRIES} tries)", retry=Retry.SAFE)

    def _follow_nodes(self) -> None:
        """Take boxes of nodes that have joined, and leave those of nodes that are leaving."""
        self._grow_at = time.monotonic() + GROW_S
        for fd, worker in list(self._workers.items()):
            worker.retired = worker.box.leaving
            if worker.retired and not worker.running:
                self._lose(fd)
        staying = sum(not worker.retired for worker in self._workers.values())
        if (box := self._pool.another(have=staying)) is not None:
            self._boxes.append(box)
            if not self._add(box):
                self._find_another(box)


def _cut(programs: Sequence[str], size: int) -> Iterator[list[int]]:
    """Split indices into groups of at most `size` programs and a bounded number of bytes."""
    group: list[int] = []
    room = MAX_GROUP_BYTES
    for index, program in enumerate(programs):
        if group and (len(group) == size or len(program) > room):
            yield group
            group, room = [], MAX_GROUP_BYTES
        group.append(index)
        room -= len(program)
    if group:
        yield group
