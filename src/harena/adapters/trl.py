"""Reward function for TRL's trainers: completions are programs, graded in boxes by calling a function of theirs.

    reward = CodeReward(function="solve")
    GRPOTrainer(reward_funcs=[reward], ...)  # the data set has a column "cases": [{"args": [2, 3], "result": 5}, ...]

Guarantees: expected results never enter a box and are compared outside, so a program can only win by computing them; a
failure of the platform gives None, which TRL masks, never a score; a call ends after `deadline_s`, and what is not
graded by then is None. Programs that can only compute share processes (docs/adr/0011); others have one each.
`CodeReward.in_background` is the same as a coroutine function, which TRL runs beside its other rewards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, cast

from harena.azr.check.executor import Bounds, ProgramExecutor, ProgramJob, ProgramOutcome, ProgramStatus
from harena.azr.check.verify import is_plain_program
from harena.azr.tasks import literals
from harena.errors import HarenaError, SpecError

CHUNK = 256
"""Completions that are graded together; a chunk that is late does not hold back the others."""
MAX_CHARS = 64 * 1024
"""Longer programs score 0 and are not run."""
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_log = logging.getLogger(__name__)


class CodeReward:
    def __init__(
        self,
        *,
        function: str = "f",
        cases: str = "cases",
        partial: bool = False,
        deadline_s: float = 120.0,
        bounds: Bounds | None = None,
        cores: int = 0,
    ) -> None:
        """function: the function that completions define, unless a column "function" names another for each sample.
        cases: the column with the calls and their results. partial: the share of right results instead of 0 or 1."""
        if not function.isidentifier():
            raise SpecError(f"function={function!r:.40}: not the name of a function")
        self.__name__ = "code_reward"
        self._function, self._cases, self._partial = function, cases, partial
        self._deadline_s, self._bounds, self._cores = deadline_s, bounds, cores
        self._lock = threading.Lock()
        self._executor: ProgramExecutor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._owner = 0

    def __call__(self, prompts: Any = None, completions: Sequence[Any] = (), **columns: Any) -> list[float | None]:
        """Return a score for each completion, or None where the platform failed."""
        until = time.monotonic() + self._deadline_s
        cases = columns.get(self._cases)
        if cases is None or len(cases) != len(completions):
            raise SpecError(f"CodeReward needs the column {self._cases!r} in the data set, with the calls to grade by")
        functions = columns.get("function") or [self._function] * len(completions)
        graded = list(map(_Graded, map(text_of, completions), functions, cases))
        threads = self._started()
        chunks = [graded[at : at + CHUNK] for at in range(0, len(graded), CHUNK)]
        running: list[Future[list[float | None]]] = [threads.submit(self._grade, chunk) for chunk in chunks]
        scores: list[float | None] = []
        for chunk, future in zip(chunks, running, strict=True):
            try:
                scores += future.result(max(0.0, until - time.monotonic()))
            except FutureTimeout:
                future.cancel()
                _log.warning("%d completions were not graded within %g s: masked", len(chunk), self._deadline_s)
                scores += [None] * len(chunk)
        return scores

    @property
    def in_background(self) -> Any:
        async def code_reward(prompts: Any = None, completions: Sequence[Any] = (), **columns: Any) -> Any:
            return await asyncio.to_thread(self, prompts, completions, **columns)

        return code_reward

    def close(self) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        if executor is not None and self._owner == os.getpid():
            executor.close()

    def __enter__(self) -> CodeReward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None or self._owner != os.getpid():  # a forked worker makes its own
                self._owner = os.getpid()
                self._threads = ThreadPoolExecutor(4, thread_name_prefix="harena-reward")
                self._executor = None
            return self._threads

    def _boxes(self) -> ProgramExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ProgramExecutor(bounds=self._bounds, cores=self._cores)
            return self._executor

    def _grade(self, chunk: Sequence[_Graded]) -> list[float | None]:
        jobs = [one.job for one in chunk]
        try:
            outcomes = iter(self._boxes().run([job for job in jobs if job is not None]))
            return [0.0 if one.job is None else one.score(next(outcomes), self._partial) for one in chunk]
        except (HarenaError, OSError) as error:
            _log.warning("%d completions could not be graded and are masked: %s", len(chunk), error)
            with self._lock:
                self._executor = None  # its boxes may be gone; the next call makes new ones
            return [None] * len(chunk)


class _Graded:
    """A completion with the calls that it is graded by."""

    def __init__(self, text: str, function: str, cases: Sequence[Any]) -> None:
        pairs = [_pair(case) for case in cases]
        if not pairs:
            raise SpecError("a sample without cases cannot be graded")
        self._expected = [expected for _, expected in pairs]
        self.job: ProgramJob | None = None
        program = code_of(text)
        if len(program) <= MAX_CHARS:
            if function != "f":
                program += f"\nf = {function}\n"
            calls = tuple(literals.show_arguments(arguments) for arguments, _ in pairs)
            plain = is_plain_program(program)
            # Each call sees the program as if it had just been run.
            self.job = ProgramJob(program=program, calls=calls, plain=plain, fresh=len(calls))

    def score(self, outcome: ProgramOutcome, partial: bool) -> float:
        if outcome.status is not ProgramStatus.OK:
            return 0.0
        right = [_is_right(output, wanted) for output, wanted in zip(outcome.outputs, self._expected, strict=True)]
        return sum(right) / len(right) if partial else float(all(right))


def text_of(completion: Any) -> str:
    """The text of a completion, in TRL's plain or conversational form."""
    if isinstance(completion, str):
        return completion
    messages = cast("list[dict[str, Any]]", completion)
    content = messages[-1].get("content") if messages else ""
    return content if isinstance(content, str) else ""


def code_of(text: str) -> str:
    """The last fenced block of Python in a text, or the whole text if there is none."""
    blocks = _FENCE.findall(text)
    return blocks[-1] if blocks else text


def _pair(case: Any) -> tuple[tuple[Any, ...], Any]:
    if isinstance(case, Mapping):
        found = cast("Mapping[str, Any]", case)
        if set(found) == {"args", "result"} and isinstance(found["args"], list | tuple):
            return tuple(cast("list[Any]", found["args"])), found["result"]
    raise SpecError(f'a case is {{"args": [...], "result": ...}}, not {case!r:.80}')


def _is_right(output: str, expected: Any) -> bool:
    try:
        return literals.read(output) == expected
    except (literals.LiteralError, RecursionError):
        return False
