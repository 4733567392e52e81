"""Warm pool of boxes. Guarantees: never more than max_live boxes; a lease always ends; results in input order; one bad
program never affects another. The isolation itself is done by backends.

The caller chooses what programs of `map` share:

fresh      each program has its own process, forked from the box's warm interpreter into its own pid, mount, ipc and
           user namespaces, on empty files. Nothing of it is visible to the next one.
group=n    n programs of one owner run one after the other in such a process. The host is equally safe, but programs see
           what earlier ones did to the interpreter, and can forge each other's results.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harena.errors import BoxClosed, BoxLost, HarenaError, QueueTimeout, Retry, SpecError, WireError
from harena.sandbox import owner
from harena.sandbox.alarm import ALARM
from harena.sandbox.backend import Programs, Task
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import MB, Clocks, Limits, Result, Spec

IN_FLIGHT = 3
"""Programs that a worker runs at once, so that one runs while another is set up or removed."""
STRAGGLER_S = 0.05
"""After this time a program counts as slow and no longer holds back the ones behind it."""
TRIES = 3
"""How often a program is given to a box before the platform reports a failure."""
MAX_GROUP_BYTES = 16 * MB
MAX_GROUP_OUTPUT = 512 * MB
"""Maximum total output of a group by the limits of its programs; groups are made smaller to stay below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    deterministic: bool
    digests: tuple[str, ...]
    """Digests of verdict, exit code and output, one for each run."""
    results: tuple[Result, ...]


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
    running: dict[int, _Share] = field(default_factory=dict[int, _Share])
    full: bool = False
    """True if the worker accepts nothing more until something is flushed."""
    writing: bool = False
    """True if the poll waits until it can flush."""

    def stragglers(self, now: float) -> int:
        return sum(now - share.sent_at > STRAGGLER_S for share in self.running.values())


class SandboxPool:
    def __init__(
        self,
        spec: Spec | None = None,
        *,
        warm: int | None = None,
        backend: str = "local",
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        max_live: int | None = None,
        max_starting: int = 2,
        stragglers: int = 4,
    ) -> None:
        """warm: boxes kept ready (default: one for each core). max_live: boxes at once, including leased ones.
        stragglers: how many slow programs of a map may share a core. With more, a batch with many infinite loops ends
        sooner, but each slow program gets less of the core during its wall_s."""
        cores = len(os.sched_getaffinity(0))
        self.spec = spec or Spec()
        self.limits = limits or Limits()
        self.clocks = clocks or Clocks()
        self._backend = backend
        self._warm = cores if warm is None else warm
        self._max_live = max(self._warm, cores) + 64 if max_live is None else max_live
        self._workers = max(1, min(cores, self._max_live))
        self._stragglers = stragglers
        if self._warm < 0 or self._max_live < max(1, self._warm) or max_starting < 1 or stragglers < 1:
            raise SpecError("a pool needs warm >= 0, max_live >= max(1, warm), max_starting >= 1, stragglers >= 1")
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._ready: deque[Sandbox] = deque()
        self._live = 0
        self._closed = False
        self._starting = threading.Semaphore(max_starting)
        self._refills = 0
        self._max_starting = max_starting
        try:
            for _ in range(self._warm):
                self._ready.append(self._make(counted=False))
        except BaseException:
            self.close()
            raise

    # ---- leases ----

    def lease(self, *, ttl_s: float | None = None) -> Sandbox:
        """Lease a box until it is closed or ttl_s is over. Raises QueueTimeout if none is free within
        clocks.queue_s."""
        box = self._take()
        if ttl_s is not None:
            ALARM.at(time.monotonic() + ttl_s, lambda: box.close(f"its lease of ttl_s={ttl_s:g} is over"))
        self._refill()
        return box

    def _take(self) -> Sandbox:
        owner.check(self._owner, "the pool")
        deadline = time.monotonic() + self.clocks.queue_s
        while True:
            with self._changed:
                if self._closed:
                    raise BoxClosed("the pool is closed")
                if self._ready:
                    box = self._ready.popleft()
                elif self._live < self._max_live:
                    self._live += 1
                    break
                else:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise QueueTimeout(
                            f"no box was free within queue_s={self.clocks.queue_s:g}: {self._live} of "
                            f"max_live={self._max_live} are in use"
                        )
                    self._changed.wait(left)
                    continue
            if box.alive:
                return box
            box.close("it was lost")
        return self._make(counted=True)

    def _make(self, *, counted: bool) -> Sandbox:
        """Create a warm box. `counted`: it is already counted in max_live."""
        if not counted:
            with self._changed:
                self._live += 1
        try:
            with self._starting:
                box = Sandbox(self.spec, backend=self._backend, limits=self.limits, clocks=self.clocks)
                try:
                    box.warm_up()
                except BaseException:
                    box.close()
                    raise
        except BaseException:
            self._released()
            raise
        box.on_close = self._released
        return box

    def _released(self) -> None:
        with self._changed:
            self._live -= 1
            self._changed.notify()
        self._refill()

    def _refill(self) -> None:
        """Create boxes in the background until `warm` are ready again."""
        with self._changed:
            missing = min(self._warm - len(self._ready), self._max_live - self._live) - self._refills
            if self._closed or missing <= 0 or self._refills >= self._max_starting:
                return
            self._refills += 1
            self._live += 1
        threading.Thread(target=self._refill_one, name="harena-refill", daemon=True).start()

    def _refill_one(self) -> None:
        try:
            box = self._make(counted=True)
        except HarenaError:
            with self._changed:
                self._refills -= 1
            return  # the next lease meets the same failure and reports it
        with self._changed:
            self._refills -= 1
            keep = not self._closed
            if keep:
                self._ready.append(box)
                self._changed.notify()
        if not keep:
            box.close("the pool is closed")
        self._refill()

    @contextlib.contextmanager
    def _borrow(self, count: int) -> Generator[list[Sandbox]]:
        """Borrow boxes for the pool's own use. Fresh programs leave nothing in them, so they are returned."""
        boxes: list[Sandbox] = []
        try:
            boxes.append(self._take())
            while len(boxes) < count and self._has_room():
                boxes.append(self._take())
            yield boxes
        finally:
            for box in boxes:
                self._give_back(box)

    def _has_room(self) -> bool:
        with self._changed:
            return bool(self._ready) or self._live < self._max_live

    def _give_back(self, box: Sandbox) -> None:
        with self._changed:
            keep = not self._closed and box.alive and len(self._ready) < max(self._warm, self._workers)
            if keep:
                self._ready.append(box)
                self._changed.notify()
        if not keep:
            box.close("the pool has enough")

    # ---- batches ----

    def map(
        self,
        programs: Sequence[str],
        *,
        limits: Limits | None = None,
        group: int | None = None,
        stdin: Sequence[bytes] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[Result]:
        """Run Python programs; results are in input order. `group=n` lets n of them share a process; see the module."""
        programs = list(programs)
        limits = limits or self.limits
        if stdin is not None and (len(stdin) != len(programs) or group is not None):
            raise SpecError("stdin: one for each program, and not with a group")
        if group is not None and not 1 <= group <= 1000:
            raise SpecError(f"group={group}: from 1 to 1000 programs share a process")
        for index, program in enumerate(cast("list[Any]", programs)):
            if not isinstance(program, str) or len(program) > MAX_GROUP_BYTES:
                raise SpecError(f"program {index}: must be text of at most {MAX_GROUP_BYTES} characters")
        if not programs:
            return []
        with self._borrow(self._workers) as boxes:
            return _Batch(self, programs, limits, group, stdin, progress).run(boxes)

    def check_deterministic(self, program: str, *, runs: int = 3, limits: Limits | None = None) -> Determinism:
        """Run a program in several interpreters with different hash seeds and memory layouts, and compare."""
        if runs < 2:
            raise SpecError(f"runs={runs}: comparing takes at least 2")
        limits = limits or self.limits
        with self._borrow(runs) as boxes:
            if len(boxes) < 2:
                raise SpecError("check_deterministic needs two boxes: raise max_live")
            results: list[Result] = []
            for index in range(runs):
                batch = _Batch(self, [program], limits, None, None, None)
                results += batch.run([boxes[index % len(boxes)]])
        digests = tuple(map(digest, results))
        return Determinism(deterministic=len(set(digests)) == 1, digests=digests, results=tuple(results))

    # ---- life ----

    @property
    def ready(self) -> tuple[Sandbox, ...]:
        """The boxes that wait to be leased."""
        return tuple(self._ready)

    @property
    def stragglers(self) -> int:
        return self._stragglers

    def replace(self, box: Sandbox) -> Sandbox:
        """Return another box for a batch that lost its box."""
        box.close("it was lost")
        return self._take()

    def close(self) -> None:
        """Close the boxes that are not leased; leased ones end with their lease. Idempotent. Does nothing in a forked
        child of its owner."""
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._closed = True
            boxes = list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
        for box in boxes:
            box.close("the pool is closed")

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def digest(result: Result) -> str:
    text = f"{result.verdict.value} {result.exit_code} {result.signal} {len(result.stdout)}\n".encode()
    return hashlib.sha256(text + result.stdout + result.stderr).hexdigest()


class _Batch:
    """One call of `map`: gives programs to workers and collects the results in order."""

    def __init__(
        self,
        pool: SandboxPool,
        programs: Sequence[str],
        limits: Limits,
        group: int | None,
        stdin: Sequence[bytes] | None,
        progress: Callable[[int, int], object] | None,
    ) -> None:
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
        self._poll = select.poll()
        self._workers: dict[int, _Worker] = {}
        for box in boxes:
            self._add(box)
        workers, poll = self._workers, self._poll
        try:
            while self._done < len(self._programs):
                for fd, worker in list(workers.items()):
                    try:
                        self._feed(worker)
                        if worker.full is not worker.writing:
                            worker.writing = worker.full
                            poll.modify(fd, select.POLLIN | (select.POLLOUT if worker.writing else 0))
                    except OSError:
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
        for index, result in enumerate(self._results):
            if result is None:  # leaving it out would give every later program its neighbour's result
                raise BoxLost(f"program {index} was lost by its batch", retry=Retry.UNKNOWN)
        return cast("list[Result]", self._results)

    def _add(self, box: Sandbox) -> None:
        lane = box.programs()
        self._workers[lane.fileno()] = _Worker(box, lane)
        self._poll.register(lane.fileno(), select.POLLIN)

    def _feed(self, worker: _Worker) -> None:
        now = time.monotonic()
        while self._todo and not worker.full:
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
        self._poll.unregister(fd)
        for share in worker.running.values():
            self._again(share, f"box {worker.box.id} was lost")
        box = self._pool.replace(worker.box)
        self._boxes[self._boxes.index(worker.box)] = box
        self._add(box)


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
