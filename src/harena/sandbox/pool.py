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
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harena.errors import BoxClosed, BoxError, BoxLost, HarenaError, QueueTimeout, Retry, SpecError
from harena.sandbox import backend as backends
from harena.sandbox import owner
from harena.sandbox.batch import MAX_GROUP_BYTES, TRIES, PoolBatch
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import Clocks, Limits, Result, Spec, given_or_default

if TYPE_CHECKING:
    from harena.sandbox.border.observed import Observer

SPARE = 64
"""Boxes beyond one for each core that a pool has by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    deterministic: bool
    digests: tuple[str, ...]
    """Digests of verdict, exit code and output, one for each run."""
    results: tuple[Result, ...]


class SandboxPool:
    def __init__(
        self,
        spec: Spec | str | None = None,
        *,
        warm: int | None = None,
        backend: str = "local",
        token: str | None = None,
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        max_live: int | None = None,
        max_starting: int = 2,
        stragglers: int = 4,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        """`SandboxPool("https://host:8700", token=…)` keeps its boxes on a server; with a spec, the URL is `backend`.
        warm: boxes kept ready (default: one for each core). max_live: boxes at once, including leased ones.
        stragglers: how many slow programs of a map may share a core. With more, a batch with many infinite loops ends
        sooner, but each slow program gets less of the core during its wall_s.
        journal: record what crosses the borders of the boxes, in one file of this folder for each."""
        spec, backend = backends.where(spec, backend)
        cores = backends.cores(backend, token)
        self.spec = given_or_default("spec", spec, Spec)
        self.limits = given_or_default("limits", limits, Limits)
        self.clocks = given_or_default("clocks", clocks, Clocks)
        self._backend = backend
        self._token = token
        self._warm = cores if warm is None else warm
        self._grows = max_live is None
        self._max_live = max(self._warm, cores) + SPARE if max_live is None else max_live
        self._workers = max(1, min(cores, self._max_live))
        self._stragglers = stragglers
        if self._warm < 0 or self._max_live < max(1, self._warm) or max_starting < 1 or stragglers < 1:
            raise SpecError("a pool needs warm >= 0, max_live >= max(1, warm), max_starting >= 1, stragglers >= 1")
        self._journal = journal
        if journal is not None:
            os.makedirs(journal, mode=0o700, exist_ok=True)
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

    def lease(self, *, ttl_s: float | None = None, queue_s: float | None = None) -> Sandbox:
        """Lease a box until it is closed or ttl_s is over. Raises QueueTimeout if none is free within queue_s
        (default: clocks.queue_s)."""
        box = self._take(queue_s)
        if ttl_s is not None:
            box.close_at(time.monotonic() + ttl_s, f"its lease of ttl_s={ttl_s:g} is over")
        self._refill()
        return box

    def _take(self, queue_s: float | None = None) -> Sandbox:
        owner.check(self._owner, "the pool")
        queue_s = self.clocks.queue_s if queue_s is None else queue_s
        deadline = time.monotonic() + queue_s
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
                            f"no box was free within queue_s={queue_s:g}: {self._live} of "
                            f"max_live={self._max_live} are in use"
                        )
                    self._changed.wait(left)
                    continue
            if box.alive and not box.leaving:
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
                box = self._make_warm()
        except BaseException:
            self._released()
            raise
        box.on_close = self._released
        return box

    def _make_warm(self) -> Sandbox:
        """Create a box. One that is lost before anybody has used it costs nothing but the time for another."""
        lost = ""
        for _ in range(TRIES):
            box = Sandbox(
                self.spec,
                backend=self._backend,
                token=self._token,
                limits=self.limits,
                clocks=self.clocks,
                journal=self._journal,
            )
            try:
                box.warm_up()
                return box
            except BoxLost as error:
                box.close()
                lost = str(error)
            except BaseException:
                box.close()
                raise
        raise BoxLost(f"{lost} ({TRIES} tries)", retry=Retry.SAFE)

    def _released(self) -> None:
        with self._changed:
            self._live -= 1
            self._changed.notify()
        self._refill()

    def _refill(self, more: int = 0) -> None:
        """Create boxes in the background until `warm` are ready again, or so many `more`."""
        with self._changed:
            wanted = max(self._warm - len(self._ready), more)
            missing = min(wanted, self._max_live - self._live) - self._refills
            if self._closed or missing <= 0 or self._refills >= self._max_starting:
                return
            self._refills += 1
            self._live += 1
        threading.Thread(target=self._refill_one, args=(more,), name="harena-refill", daemon=True).start()

    def _refill_one(self, more: int) -> None:
        try:
            box = self._make(counted=True)
        except HarenaError:
            with self._changed:
                self._refills -= 1
            return  # the next lease meets the same failure and reports it
        with self._changed:
            self._refills -= 1
            keep = not self._closed and len(self._ready) < max(self._warm, more)  # it may have been made smaller
            if keep:
                self._ready.append(box)
                self._changed.notify()
        if not keep:
            box.close("the pool has enough")
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
            keep = not self._closed and box.alive and not box.leaving
            keep = keep and len(self._ready) < max(self._warm, self._workers)
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
        if group is not None and not 1 <= group <= 1000:
            raise SpecError(f"group={group}: from 1 to 1000 programs share a process")
        if stdin is not None and group is not None:
            raise SpecError("stdin: one for each program, and not with a group")
        _check_programs(programs, stdin)
        if not programs:
            return []
        self._count_cores()
        with self._borrow(self._workers) as boxes:
            return PoolBatch(self, programs, limits or self.limits, group, stdin, progress).run(boxes)

    def run_each(
        self,
        programs: Sequence[str],
        on_result: Callable[[int, Result], object],
        *,
        limits: Limits | None = None,
        stdin: Sequence[bytes] | None = None,
        observe: Callable[[], Observer] | None = None,
    ) -> None:
        """Run Python programs, and call `on_result` with the position and the result of each as it ends. No result is
        kept. While `on_result` blocks, no further programs start; an exception ends the batch. `observe` makes an
        observer for each box, which sees this batch and nothing else of it."""
        programs = list(programs)
        _check_programs(programs, stdin)
        if programs:
            self._count_cores()
            with self._borrow(self._workers) as boxes:
                PoolBatch(self, programs, limits or self.limits, None, stdin, None, on_result, observe).run(boxes)

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
                batch = PoolBatch(self, [program], limits, None, None, None)
                results += batch.run([boxes[index % len(boxes)]])
        digests = tuple(map(digest, results))
        return Determinism(deterministic=len(set(digests)) == 1, digests=digests, results=tuple(results))

    # ---- life ----

    def resize(self, warm: int) -> None:
        """Keep another number of boxes ready: close those beyond it, or create the missing ones in the background."""
        if not 0 <= warm <= self._max_live:
            raise SpecError(f"warm={warm}: from 0 to max_live={self._max_live}")
        with self._changed:
            self._warm = warm
            extra = [self._ready.pop() for _ in range(len(self._ready) - warm)]
        for box in extra:
            box.close("the pool has enough")
        self._refill()

    @property
    def workers(self) -> int:
        """Boxes that a batch uses at once."""
        return self._workers

    @property
    def ready(self) -> tuple[Sandbox, ...]:
        """The boxes that wait to be leased."""
        return tuple(self._ready)

    @property
    def stragglers(self) -> int:
        return self._stragglers

    def replace(self, box: Sandbox, *, have: int) -> Sandbox | None:
        """Return another box for a batch that lost its box, or None if the boxes that it has are enough, because the
        cores went with the box, or no node has room."""
        box.close("it was lost")
        self._count_cores()
        if have >= self._workers:
            return None
        try:
            return self._take()
        except BoxError:
            if have == 0:
                raise
            return None

    def another(self, *, have: int) -> Sandbox | None:
        """Return a box for a batch that may use more than it has, since nodes have joined. Does not wait for one."""
        if self._count_cores() is None or have >= self._workers:
            return None
        with self._changed:
            box = self._ready.popleft() if self._ready else None
        if box is None:
            self._refill(self._workers - have)
            return None
        if box.leaving:
            box.close("its node is leaving")
            return None
        return box

    def _count_cores(self) -> int | None:
        """Follow the number of cores where nodes come and go; None elsewhere."""
        cores = backends.cores_now(self._backend, self._token)
        if cores is not None:
            with self._changed:
                if self._grows:
                    self._max_live = max(self._warm, cores) + SPARE
                self._workers = max(1, min(cores, self._max_live))
        return cores

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


def _check_programs(programs: Sequence[Any], stdin: Sequence[bytes] | None) -> None:
    if stdin is not None and len(stdin) != len(programs):
        raise SpecError("stdin: one for each program, and not with a group")
    for index, program in enumerate(programs):
        if not isinstance(program, str) or len(program) > MAX_GROUP_BYTES:
            raise SpecError(f"program {index}: must be text of at most {MAX_GROUP_BYTES} characters")


def digest(result: Result) -> str:
    text = f"{result.verdict.value} {result.exit_code} {result.signal} {len(result.stdout)}\n".encode()
    return hashlib.sha256(text + result.stdout + result.stderr).hexdigest()
