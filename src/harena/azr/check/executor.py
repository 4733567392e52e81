"""Calls the functions of programs that nobody trusts, many at once, in boxes. Promises: an outcome for every job, in
order; no job has a part in another's outcome; whatever a program does is a value here, never an exception.

Plain programs (plain.py) share a process, bundle by bundle, each job in a fresh namespace: one that ends its process is
run again alone, and those behind it in another process; one that ran out of memory is run again alone, since it may
have been another's. All other programs are alone from the start: a process, files and namespaces of their own. There
are two sides, so that a job can be run twice in interpreters that were started apart, with other hash seeds, other
addresses, another limit on recursion, and for those that could look around another host, environment, folder, time and
process.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import marshal
import os
import signal
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

from harena.azr.config import ExecutorConfig
from harena.errors import SpecError
from harena.sandbox.batch import IN_FLIGHT
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import MB, Limits, Result, Spec, Verdict

BUNDLE = 64
"""Plain programs that share a process."""
STRAGGLERS = 32
"""Programs alone on a core at once, once they take long: so many infinite loops end in one wall_s. Fewer where the host
could not bear it if each of them held all the memory that it may; but not fewer than LEAST_STRAGGLERS."""
LEAST_STRAGGLERS = 4
MEMORY_SHARE = 0.75
"""Share of the host's memory for programs that hang."""
PRELOAD = ("json", "signal", "warnings")
BATCHES = 4
"""Batches that run side by side, so that one with programs that hang does not hold back those behind it."""
DEEPER = 64
"""Calls by which the second run of a job may recurse deeper than the first: what tells them apart is no task."""
_USUAL = ExecutorConfig()
_SLOW_EXIT = 111
"""What boxed.py exits with when a job does not stop; nothing plain can exit by itself."""
_LENGTH = struct.Struct("<I")
_FRAME_CHARS = 6
"""Bytes that a character may take in a frame, which is ASCII JSON."""


class ProgramStatus(enum.StrEnum):
    OK = "ok"
    ERROR = "error"
    """It raised an exception, or ended its process."""
    TIME = "time"
    MEMORY = "memory"
    SIZE = "size"
    """An output longer than the cap. Nothing is cut short: what does not fit is no output."""
    TYPE = "type"
    """An output that is no plain value, or holds one that is none."""


_FROM_BOX = {status.value: status for status in ProgramStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    program: str
    calls: tuple[str, ...]
    """Argument lists, each a literal that the host wrote itself. They are called in order, in one namespace that is
    fresh for this job."""
    plain: bool
    fresh: int = 0
    """The last so many calls have a namespace each, in which the program has just been run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    status: ProgramStatus
    outputs: tuple[str, ...] = ()
    """One literal for each call, when all went well: the guest's word."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    wall_s: float = _USUAL.wall_s
    """Wall time of a job that is alone: many that hang then end together, after this time."""
    cpu_s: float = _USUAL.cpu_s
    """Processor time for a job in a shared process; in CPython some million steps."""
    patient: bool = _USUAL.patient
    """Whether what is too slow for a shared process is run again, alone, for wall_s. False: it is too slow."""
    memory_mb: int = _USUAL.memory_mb
    max_chars: int = _USUAL.output_chars
    """Characters of one output."""
    share: bool = _USUAL.share
    """False: plain programs do not share processes either. Slower, and one assumption fewer."""

    def __post_init__(self) -> None:
        if not self.cpu_s > 0 or self.max_chars < 1:
            raise SpecError("cpu_s and max_chars must be above 0")
        Limits(wall_s=self.wall_s, memory_mb=self.memory_mb)


@dataclass(frozen=True, slots=True)
class _Parcel:
    """What one process gets."""

    indices: list[int]
    stdin: bytes
    calls: int


def _specs() -> tuple[Spec, Spec]:
    """The boxes of both sides. A program that looks around sees something else on the second one; boxed.py has the
    rest. A restricted box has the machine's name, so that there a program may depend on that unnoticed."""
    here = Spec(preload=PRELOAD)
    elsewhere = replace(here, env={"TZ": "XYZ-5:45", "HOME": "/tmp", "USER": "other", "ELSEWHERE": "1"})
    return here, replace(elsewhere, hostname="elsewhere") if here.isolation == "full" else elsewhere


class ProgramExecutor:
    """Safe to use from several threads: a batch with programs that hang does not hold back the others."""

    def __init__(self, *, bounds: Bounds | None = None, backend: str = _USUAL.backend, cores: int = 0) -> None:
        """cores: how many programs run at once (default: one for each core)."""
        self.bounds = bounds or Bounds()
        boxes = max(1, (cores or _cores()) // 2)
        self._sides: list[_Side] = []
        self._threads = ThreadPoolExecutor(2 * BATCHES, thread_name_prefix="azr-executor")
        try:
            for spec in _specs():
                self._sides.append(_Side(self.bounds, spec, backend=backend, boxes=boxes))
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Sequence[ProgramJob]) -> list[ProgramOutcome]:
        """Each job once."""
        middle = (len(jobs) + 1) // 2
        halves = self._threads.map(_Side.run, self._sides, (jobs[:middle], jobs[middle:]))
        return list(itertools.chain.from_iterable(halves))

    def run_twice(self, jobs: Sequence[ProgramJob]) -> list[tuple[ProgramOutcome, ProgramOutcome]]:
        """Each job in two interpreters that share neither a hash seed nor an address."""
        return self.begin_twice(jobs, jobs)()

    def begin_twice(
        self, jobs: Sequence[ProgramJob], others: Sequence[ProgramJob]
    ) -> Callable[[], list[tuple[ProgramOutcome, ProgramOutcome]]]:
        """Each job in one interpreter, and its counterpart of `others`, which may call in another order, in the other
        one. Begins at once; what it gives waits for the outcomes."""
        first, second = self._sides
        running = [
            self._threads.submit(first.run, jobs),
            self._threads.submit(second.run, others, elsewhere=True),
        ]

        def outcomes() -> list[tuple[ProgramOutcome, ProgramOutcome]]:
            first, second = (one.result() for one in running)
            return list(zip(first, second, strict=True))

        return outcomes

    def run_with_seeds(self, jobs: Sequence[ProgramJob], seeds: Sequence[int]) -> list[list[ProgramOutcome]]:
        """All jobs once with each hash seed: for what may depend on the order of a set. An interpreter is started for
        each bundle and seed, so this is slow; it tells orders apart that two interpreters may have in common."""
        if not jobs:
            return []
        halves = self._threads.map(_Side.run_with_seeds, self._sides, (jobs, jobs), (seeds[::2], seeds[1::2]))
        one, other = halves
        return [outcomes for pair in itertools.zip_longest(one, other) for outcomes in pair if outcomes is not None]

    def close(self) -> None:
        for side in self._sides:
            side.close()
        self._threads.shutdown(wait=False)

    def __enter__(self) -> ProgramExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Side:
    """Boxes whose interpreters no other side has: some for bundles, which are quick, some for jobs that are alone."""

    def __init__(self, bounds: Bounds, spec: Spec, *, backend: str, boxes: int) -> None:
        self._bounds = bounds
        self._shared = SandboxPool(spec, warm=boxes, max_live=boxes, backend=backend)
        try:
            stragglers = stragglers_for(_host_mb(), boxes=2 * boxes, memory_mb=bounds.memory_mb)
            self._alone = SandboxPool(spec, warm=boxes, max_live=boxes, backend=backend, stragglers=stragglers)
        except BaseException:
            self._shared.close()
            raise
        self._source = _boxed()
        self._size = max(8, BUNDLE // boxes)
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._waiting: list[tuple[list[_Parcel], Future[list[Result]]]] = []

    def close(self) -> None:
        self._shared.close()
        self._alone.close()

    def run(
        self, jobs: Sequence[ProgramJob], seed: int | None = None, *, elsewhere: bool = False
    ) -> list[ProgramOutcome]:
        outcomes: dict[int, ProgramOutcome] = {}
        shared = [index for index, job in enumerate(jobs) if job.plain and self._bounds.share]
        alone = sorted(set(range(len(jobs))) - set(shared))
        while shared:
            parcels = [self._parcel(jobs, at, seed, elsewhere, together=True) for at in _cut(shared, self._size)]
            results = self._map(self._shared, parcels, together=True)
            shared = list[int]()
            for parcel, result in zip(parcels, results, strict=True):
                done = self._frames(parcel, jobs, result)
                outcomes |= zip(parcel.indices, done, strict=False)
                left = parcel.indices[len(done) :]
                alone += self._again(parcel.indices[: len(done)], outcomes) + self._culprit(left[:1], result, outcomes)
                shared += left[1:]
        parcels = [self._parcel(jobs, [index], seed, elsewhere, together=False) for index in alone]
        for parcel, result in zip(parcels, self._map_alone(parcels), strict=True):
            done = self._frames(parcel, jobs, result)
            outcomes[parcel.indices[0]] = done[0] if done and result.ok else _outcome_of(result)
        return [outcomes[index] for index in range(len(jobs))]

    def run_with_seeds(self, jobs: Sequence[ProgramJob], seeds: Sequence[int]) -> list[list[ProgramOutcome]]:
        return [self.run(jobs, seed) for seed in seeds]

    def _again(self, indices: Sequence[int], outcomes: dict[int, ProgramOutcome]) -> list[int]:
        """Return those of the jobs that shared a process whose outcome that process may have influenced."""
        doubted = {ProgramStatus.MEMORY, ProgramStatus.TIME} if self._bounds.patient else {ProgramStatus.MEMORY}
        return [index for index in indices if outcomes[index].status in doubted]

    def _culprit(self, indices: list[int], result: Result, outcomes: dict[int, ProgramOutcome]) -> list[int]:
        """Return the job that ended the process it shared, if it is to get its own process."""
        stopped = result.exit_code == _SLOW_EXIT or result.signal == signal.SIGVTALRM
        if self._bounds.patient or not stopped:
            return indices
        outcomes.update((index, ProgramOutcome(status=ProgramStatus.TIME)) for index in indices)
        return []

    def _parcel(
        self, jobs: Sequence[ProgramJob], indices: list[int], seed: int | None, elsewhere: bool, *, together: bool
    ) -> _Parcel:
        bounds = self._bounds
        head = {
            "cpu_s": bounds.cpu_s if together else 0,
            "max_chars": bounds.max_chars,
            "deeper": DEEPER if elsewhere else 0,
            "elsewhere": elsewhere and not jobs[indices[0]].plain,  # a plain one sees nothing of it
            "hash_seed": seed,
            "source": "" if seed is None else self._source,
        }
        lines = [head, *([jobs[index].program, jobs[index].calls, jobs[index].fresh] for index in indices)]
        calls = sum(len(jobs[index].calls) for index in indices)
        return _Parcel(indices, "\n".join(map(json.dumps, lines)).encode(), calls)

    def _map(self, pool: SandboxPool, parcels: Sequence[_Parcel], *, together: bool) -> list[Result]:
        if not parcels:
            return []
        bounds = self._bounds
        longest = max(parcel.calls for parcel in parcels) * bounds.max_chars * _FRAME_CHARS
        limits = Limits(
            # A bundle's jobs are timed one by one in there; this is for when that fails.
            wall_s=bounds.wall_s + (30 + 10 * bounds.cpu_s * BUNDLE if together else 0),
            memory_mb=bounds.memory_mb,
            processes=16,
            output_bytes=min(128 * MB, 64 * 1024 + longest),
        )
        return pool.map([self._source] * len(parcels), stdin=[parcel.stdin for parcel in parcels], limits=limits)

    def _map_alone(self, parcels: list[_Parcel]) -> list[Result]:
        """One batch at a time; what comes meanwhile goes along with the next, so that all that hangs, hangs at once."""
        if not parcels:
            return []
        mine: Future[list[Result]] = Future()
        with self._lock:
            self._waiting.append((parcels, mine))
        with self._running:
            with self._lock:
                taken, self._waiting = self._waiting, []
            self._map_for(taken)
        return mine.result()

    def _map_for(self, taken: Sequence[tuple[list[_Parcel], Future[list[Result]]]]) -> None:
        try:
            results = iter(self._map(self._alone, [one for parcels, _ in taken for one in parcels], together=False))
            for parcels, future in taken:
                future.set_result(list(itertools.islice(results, len(parcels))))
        except BaseException as error:
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)

    def _frames(self, parcel: _Parcel, jobs: Sequence[ProgramJob], result: Result) -> list[ProgramOutcome]:
        return _frames(result.stdout, [jobs[index] for index in parcel.indices], self._bounds.max_chars)


def _cut(indices: list[int], size: int) -> list[list[int]]:
    return [indices[at : at + size] for at in range(0, len(indices), size)]


def _boxed() -> str:
    """boxed.py as a program, compiled: the box has our own Python, and compiling would take a third of the time of a
    job that is alone."""
    source = resources.files("harena.azr.check").joinpath("boxed.py").read_text("utf-8")
    code = marshal.dumps(compile(source, "<boxed>", "exec", dont_inherit=True, optimize=2))
    return f"import marshal\nexec(marshal.loads({code!r}))"


def stragglers_for(host_mb: int, *, boxes: int, memory_mb: int) -> int:
    """How many programs that take long a box may run at once."""
    each = int(host_mb * MEMORY_SHARE) // (boxes * memory_mb) - IN_FLIGHT
    return max(LEAST_STRAGGLERS, min(STRAGGLERS, each))


def _host_mb() -> int:
    """What the machine has, or the container that this process is in."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(found) // MB


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _outcome_of(result: Result) -> ProgramOutcome:
    """Return the outcome of a job that left no frame."""
    known = {
        Verdict.TIME: ProgramStatus.TIME,
        Verdict.MEMORY: ProgramStatus.MEMORY,
        Verdict.OUTPUT: ProgramStatus.SIZE,
    }
    return ProgramOutcome(status=known.get(result.verdict, ProgramStatus.ERROR), detail=result.detail[:200])


def _frames(data: bytes, jobs: Sequence[ProgramJob], max_chars: int) -> list[ProgramOutcome]:
    """What a process said of its jobs, up to the first thing that is not as it should be."""
    outcomes: list[ProgramOutcome] = []
    at = 0
    for job in jobs:
        if len(data) - at < _LENGTH.size:
            break
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        outcome = _outcome(data[at : at + length], job, max_chars) if len(data) - at >= length else None
        if outcome is None:
            break
        outcomes.append(outcome)
        at += length
    return outcomes


def _outcome(data: bytes, job: ProgramJob, max_chars: int) -> ProgramOutcome | None:
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, list) or len(cast("list[Any]", answer)) != 2:
        return None
    status, body = cast("list[Any]", answer)
    if not isinstance(status, str) or status not in _FROM_BOX:
        return None
    if _FROM_BOX[status] is not ProgramStatus.OK:
        return ProgramOutcome(status=_FROM_BOX[status], detail=body[:80] if isinstance(body, str) else "")
    if not isinstance(body, list) or len(cast("list[Any]", body)) != len(job.calls):
        return None
    outputs = cast("list[Any]", body)
    if not all(isinstance(output, str) and len(output) <= max_chars for output in outputs):
        return None
    return ProgramOutcome(status=ProgramStatus.OK, outputs=tuple(outputs))
