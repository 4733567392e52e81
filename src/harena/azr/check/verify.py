"""Is a proposal a task, and is an answer right? Promises: model text is parsed here and run only in boxes; the expected
outputs never enter one; nothing is right that was not compared on this side, by type and value (literals.py).

A proposal is valid when it parses, has one function at the top level, imports nothing that the lint forbids, takes
arguments that are literals, and gives outputs that are literals and the same ones in four calls: two in each of two
interpreters with other hash seeds and addresses, another order of the calls and another limit on recursion, which also
see another time, host, folder, environment and process; and where it may meet a set, in six more. The lint keeps honest
models on the way; the wall is the box.

deduction   the answer is a literal, compared here; nothing runs
abduction   the answer is an argument list, read here; the task's own program is called with it, and its output
            compared here. Where the program may meet a set, or do more than compute, it must give that output in both
            interpreters: it was found to be the same every time for the task's own input only
induction   the answer is a program: it is called with the hidden inputs, in order and then backwards, there each time
            in a fresh namespace; one that can do more than compute also in a process for each input. Its outputs are
            compared here with the hidden ones. It can forge what it returns, but not without knowing what to return
"""

from __future__ import annotations

import ast
import enum
import functools
import itertools
import symtable
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

from harena.azr.check.executor import BATCHES, Bounds, ProgramExecutor, ProgramJob, ProgramOutcome, ProgramStatus
from harena.azr.check.plain import is_plain, may_depend_on_hashes, nodes_of
from harena.azr.config import ExecutorConfig
from harena.azr.tasks import literals
from harena.azr.tasks.kinds import ENTRY, MAX_PROGRAM_CHARS, Proposal, SolverAnswer, Task, program_digest
from harena.azr.tasks.literals import LiteralError, Value
from harena.azr.tasks.task_kinds import TASK_KINDS

_FORBIDDEN_NAMES = """
    asyncio atexit bcrypt builtins calendar code codeop concurrent ctypes datetime faulthandler fcntl gc glob hashlib
    hmac importlib inspect io logging marshal mmap multiprocessing os pathlib pebble pickle pkgutil platform posix pty
    random resource runpy secrets select selectors shutil signal site socket socketserver sqlite3 ssl subprocess sys
    sysconfig tempfile termios threading time timeit trace traceback tty types urllib uuid warnings weakref zipimport
"""
_NONE = frozenset[str]()
FORBIDDEN = frozenset(_FORBIDDEN_NAMES.split())
"""Modules that a task has no use for: their results differ from run to run, or they reach outside the program."""

PIECE = 192
"""Proposals that are looked at before their boxes start: the next ones are looked at meanwhile."""
HASH_SEEDS = (1, 2, 3, 4, 5, 6)
"""Seeds for programs that may meet a set: six more orders."""


class TaskVerdict(enum.StrEnum):
    OK = "ok"
    SYNTAX = "syntax"
    """It does not parse, or is too long."""
    FUNCTION = "function"
    """Not exactly one function at the top level."""
    FORBIDDEN = "forbidden"
    INPUT = "input"
    """An input that is no argument list of literals, or an empty or repeated one."""
    ERROR = "error"
    TIME = "time"
    MEMORY = "memory"
    SIZE = "size"
    TYPE = "type"
    """An output that is no literal."""
    NONDETERMINISTIC = "nondeterministic"
    WRONG = "wrong"
    """The answer ran without a fault and is not the right one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskValidation:
    verdict: TaskVerdict
    task: Task | None = None
    """The task, when the proposal is valid: program and inputs as the verifier understood them, outputs as it saw."""
    detail: str = ""
    is_held_out: bool = False
    """Whether it would be a task, but its program is kept for evaluation."""

    @property
    def ok(self) -> bool:
        return self.task is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    task: Task
    answer: SolverAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    right: bool
    verdict: TaskVerdict
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings:
    bounds: Bounds = field(default_factory=Bounds)
    forbidden: frozenset[str] = FORBIDDEN
    backend: str = ExecutorConfig().backend
    """Which boxes: a name of the sandbox's registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A program that may be run: with its function named f."""

    program: str
    plain: bool
    hashes: bool
    """Whether it may depend on the order of a set."""


class TaskVerifier:
    """Batches in, results out, in order. `submit_*` do the same on threads of their own, a few batches side by side."""

    def __init__(self, settings: VerifierSettings | None = None, *, held_out: frozenset[str] = _NONE) -> None:
        """held_out: digests of programs that are kept for evaluation (suite.py); a proposal of one is no task."""
        self.settings = settings or VerifierSettings()
        self._held_out = held_out
        self._executor = ProgramExecutor(bounds=self.settings.bounds, backend=self.settings.backend)
        self._threads = ThreadPoolExecutor(BATCHES, thread_name_prefix="azr-verifier")

    def validate(self, proposals: Sequence[Proposal]) -> list[TaskValidation]:
        found: list[TaskValidation | None] = [None] * len(proposals)
        begun: list[tuple[list[int], list[ProgramJob], Callable[[], list[tuple[ProgramOutcome, ProgramOutcome]]]]] = []
        for first in range(0, len(proposals), PIECE):
            jobs: list[ProgramJob] = []
            places: list[int] = []
            for index, proposal in enumerate(proposals[first : first + PIECE], first):
                job = self._job_of(proposal)
                if isinstance(job, TaskValidation):
                    found[index] = job
                else:
                    places.append(index)
                    jobs.append(job)
            begun.append((places, jobs, self._executor.begin_twice(jobs, list(map(_backwards, jobs)))))
        for places, jobs, results in begun:
            for index, job, runs in zip(places, jobs, results(), strict=True):
                found[index] = _validation(proposals[index], job, runs)
        self._shake(
            found, [place for places, _, _ in begun for place in places], [job for _, jobs, _ in begun for job in jobs]
        )
        return [self._withheld(one) for one in cast("list[TaskValidation]", found)]

    def _withheld(self, found: TaskValidation) -> TaskValidation:
        """Refuses a task whose program is held out: nothing may be trained on it."""
        if not self._held_out or found.task is None or program_digest(found.task.program) not in self._held_out:
            return found
        return TaskValidation(verdict=TaskVerdict.FORBIDDEN, detail="held out for evaluation", is_held_out=True)

    def _shake(self, found: list[TaskValidation | None], places: Sequence[int], jobs: Sequence[ProgramJob]) -> None:
        """Where a set may be met, two interpreters that agree prove little: of two elements, every second pair does."""
        doubtful = [
            (index, job)
            for index, job in zip(places, jobs, strict=True)
            if (validation := found[index]) is not None and validation.ok and _may_meet_sets(job)
        ]
        for outcomes in self._executor.run_with_seeds([job for _, job in doubtful], HASH_SEEDS):
            for (index, _), outcome in zip(doubtful, outcomes, strict=True):
                validation = found[index]
                if validation is not None and validation.task is not None and not _agrees(outcome, validation.task):
                    found[index] = TaskValidation(verdict=TaskVerdict.NONDETERMINISTIC)

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        found: list[Grade | None] = [None] * len(attempts)
        jobs: dict[ProgramJob, list[int]] = {}  # the same question twice is asked once
        for index, attempt in enumerate(attempts):
            job = self._question(attempt)
            if isinstance(job, Grade):
                found[index] = job
            else:
                jobs.setdefault(job, []).append(index)
        for outcome, places in zip(self._executor.run(list(jobs)), jobs.values(), strict=True):
            for index in places:
                found[index] = _compared(outcome, _trial_outputs(attempts[index]))
        self._confirm(attempts, found, jobs)
        self._separate(attempts, found, jobs)
        return cast("list[Grade]", found)

    def _confirm(
        self, attempts: Sequence[Attempt], found: list[Grade | None], jobs: Mapping[ProgramJob, Sequence[int]]
    ) -> None:
        """A program that is the same every time for the task's own input may throw a coin for any other."""
        doubtful = {
            job: places
            for job, places in jobs.items()
            if any(_is_lucky(attempts[index], job, found[index]) for index in places)
        }
        for runs, places in zip(self._executor.run_twice(list(doubtful)), doubtful.values(), strict=True):
            for index in places:
                again = [_compared(outcome, _trial_outputs(attempts[index])) for outcome in runs]
                found[index] = next((one for one in again if not one.right), found[index])

    def _separate(
        self, attempts: Sequence[Attempt], found: list[Grade | None], jobs: Mapping[ProgramJob, Sequence[int]]
    ) -> None:
        """An induction answer that can do more than compute may remember outside its namespace, or look at a clock:
        each hidden input gets a process of its own, in both interpreters."""
        doubtful = [
            (index, ProgramJob(program=job.program, calls=(given,), plain=False), output)
            for job, places in jobs.items()
            if job.fresh and not job.plain
            for index in places
            if (grade := found[index]) is not None and grade.right
            for given, (_, output) in zip(job.calls, attempts[index].task.judged, strict=False)
        ]
        outcomes = self._executor.run_twice([job for _, job, _ in doubtful])
        for (index, _, output), runs in zip(doubtful, outcomes, strict=True):
            again = [_compared(outcome, (output,)) for outcome in runs]
            found[index] = next((one for one in again if not one.right), found[index])

    def submit_validate(self, proposals: Sequence[Proposal]) -> Future[list[TaskValidation]]:
        return self._threads.submit(self.validate, list(proposals))

    def submit_grade(self, attempts: Sequence[Attempt]) -> Future[list[Grade]]:
        return self._threads.submit(self.grade, list(attempts))

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._executor.close()

    def __enter__(self) -> TaskVerifier:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- what is to be run ----

    def _job_of(self, proposal: Proposal) -> ProgramJob | TaskValidation:
        checked = check_program(proposal.program, self.settings.forbidden)
        if isinstance(checked, TaskValidation):
            return checked
        try:
            inputs = [literals.read_arguments(text) for text in proposal.inputs]
        except LiteralError as error:
            return TaskValidation(verdict=TaskVerdict.INPUT, detail=str(error))
        shown = tuple(map(literals.show_arguments, inputs))
        if not shown or not all(inputs):
            return TaskValidation(verdict=TaskVerdict.INPUT, detail="a task needs arguments")
        if _is_repeated(inputs, shown):
            return TaskValidation(verdict=TaskVerdict.INPUT, detail="an input that is there twice tests nothing")
        # There and back: what depends on the calls before it gives itself away.
        return ProgramJob(program=checked.program, calls=(*shown, *reversed(shown)), plain=checked.plain)

    def _question(self, attempt: Attempt) -> ProgramJob | Grade:
        answer = attempt.answer
        try:
            trial = TASK_KINDS[answer.kind].trial(attempt.task, answer.text)
        except LiteralError as error:
            return Grade(right=False, verdict=TaskVerdict.INPUT, detail=str(error))
        if isinstance(trial, bool):
            return Grade(right=trial, verdict=TaskVerdict.OK if trial else TaskVerdict.WRONG)
        if not trial.is_answer:
            return ProgramJob(
                program=trial.program, calls=trial.calls, plain=is_plain_program(trial.program), fresh=trial.fresh
            )
        checked = check_program(trial.program, self.settings.forbidden)
        if isinstance(checked, TaskValidation):
            return Grade(right=False, verdict=checked.verdict, detail=checked.detail)
        return ProgramJob(program=checked.program, calls=trial.calls, plain=checked.plain, fresh=trial.fresh)


def check_program(source: str, forbidden: frozenset[str] = FORBIDDEN) -> Checked | TaskValidation:
    """What can be said of a program without running it; its one function gets the name f."""
    if len(source) > MAX_PROGRAM_CHARS:  # such a one is not remembered either
        return TaskValidation(verdict=TaskVerdict.SYNTAX, detail=f"longer than {MAX_PROGRAM_CHARS} characters")
    return _check(source, forbidden)


@functools.lru_cache(maxsize=4096)
def _check(source: str, forbidden: frozenset[str]) -> Checked | TaskValidation:
    try:
        tree = cast("ast.Module", literals.parse(source, max_chars=MAX_PROGRAM_CHARS))
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        if len(functions) != 1:
            return TaskValidation(
                verdict=TaskVerdict.FUNCTION, detail=f"{len(functions)} functions at the top level, not one"
            )
        nodes = nodes_of(tree)
        module = next((name for name in _imported(nodes, source) if _is_forbidden(name, forbidden)), None)
        if module is not None:
            return TaskValidation(verdict=TaskVerdict.FORBIDDEN, detail=f"imports {module[:80]}")
        # Python reads letters of other widths as the plain ones, so only plain text shows which names it has.
        if ("id" in source or not source.isascii()) and _asks_for_addresses(nodes, source):
            return TaskValidation(verdict=TaskVerdict.NONDETERMINISTIC, detail="id() is another on another machine")
        if functions[0] == ENTRY:
            return Checked(program=source, plain=is_plain(nodes), hashes=may_depend_on_hashes(nodes))
        renamed = _renamed(tree, functions[0])
        if renamed is None:
            return TaskValidation(
                verdict=TaskVerdict.FUNCTION, detail=f"{functions[0][:80]} cannot be renamed: f is taken"
            )
        return Checked(program=renamed, plain=is_plain_program(renamed), hashes=may_depend_on_hashes(nodes))
    except LiteralError as error:
        return TaskValidation(verdict=TaskVerdict.SYNTAX, detail=str(error))
    except RecursionError:
        return TaskValidation(verdict=TaskVerdict.SYNTAX, detail="nested too deeply")


@functools.lru_cache(maxsize=4096)
def is_plain_program(program: str) -> bool:
    try:
        return is_plain(nodes_of(literals.parse(program, max_chars=MAX_PROGRAM_CHARS)))
    except (LiteralError, RecursionError):
        return False


def _is_repeated(inputs: Sequence[tuple[Value, ...]], shown: Sequence[str]) -> bool:
    """Compare inputs by value: dicts that differ in nothing but their order have two texts."""
    if len(set(shown)) != len(shown):
        return True
    with_dicts = [given for given, text in zip(inputs, shown, strict=True) if "{" in text]
    return any(literals.same(one, other) for one, other in itertools.combinations(with_dicts, 2))


def _asks_for_addresses(nodes: Sequence[ast.AST], source: str) -> bool:
    """Whether the built-in id is used. Where the interpreter lies at a fixed place, as Debian's does, its own objects
    have one address in every process, and runs that agree show nothing."""
    if not any(isinstance(node, ast.Name) and node.id == "id" for node in nodes):
        return False
    try:
        with literals.quiet():
            tables = [symtable.symtable(source, "<task>", "exec")]
    except SyntaxError:
        return False  # it parses and does not compile: a box will say so
    for table in tables:
        tables += table.get_children()
    found = [(table, table.lookup("id")) for table in tables if "id" in table.get_identifiers()]
    is_own = any(
        (symbol.is_assigned() or symbol.is_imported()) and (table is tables[0] or symbol.is_declared_global())
        for table, symbol in found
    )
    return not is_own and any(symbol.is_global() for _, symbol in found)


def _is_forbidden(module: str, forbidden: frozenset[str]) -> bool:
    """Where anything is forbidden, so is what lies beneath it: `_random`, `_io` and their like."""
    root = module.partition(".")[0]
    return root in forbidden or (bool(forbidden) and root.startswith("_") and root != "__future__")


def _imported(nodes: Sequence[ast.AST], source: str) -> list[str]:
    found: list[str] = []
    for node in nodes if "import" in source else ():
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or ".")
    return found


def _renamed(tree: ast.Module, name: str) -> str | None:
    """The program with its function called f, unless something else in it has that name."""
    for node in ast.walk(tree):
        if ENTRY in (getattr(node, "id", None), getattr(node, "arg", None), getattr(node, "name", None)):
            return None
        if isinstance(node, ast.Name) and node.id == name:
            node.id = ENTRY
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            node.name = ENTRY
    return ast.unparse(tree)


# ---- what came of it ----

_VERDICTS = {
    ProgramStatus.ERROR: TaskVerdict.ERROR,
    ProgramStatus.TIME: TaskVerdict.TIME,
    ProgramStatus.MEMORY: TaskVerdict.MEMORY,
    ProgramStatus.SIZE: TaskVerdict.SIZE,
    ProgramStatus.TYPE: TaskVerdict.TYPE,
}


def _validation(proposal: Proposal, job: ProgramJob, runs: tuple[ProgramOutcome, ProgramOutcome]) -> TaskValidation:
    bad = next((run for run in runs if run.status is not ProgramStatus.OK), None)
    if bad is not None:
        return TaskValidation(verdict=_VERDICTS[bad.status], detail=bad.detail)
    try:
        known = {output: literals.show(literals.read(output)) for run in runs for output in set(run.outputs)}
    except LiteralError as error:
        return TaskValidation(verdict=TaskVerdict.TYPE, detail=str(error))
    first, second = (tuple(known[output] for output in run.outputs) for run in runs)
    count = len(job.calls) // 2
    if first != second[count:] + second[:count] or first != first[::-1]:
        return TaskValidation(verdict=TaskVerdict.NONDETERMINISTIC)
    pairs = tuple(zip(job.calls[:count], first[:count], strict=True))
    task = TASK_KINDS[proposal.kind].make(program=job.program, message=proposal.message, pairs=pairs)
    return TaskValidation(verdict=TaskVerdict.OK, task=task)


def _backwards(job: ProgramJob) -> ProgramJob:
    """The same calls, those of the way back first: what depends on which input came first gives itself away."""
    count = len(job.calls) // 2
    if count == 1:
        return job
    return ProgramJob(program=job.program, calls=job.calls[count:] + job.calls[:count], plain=job.plain)


def _trial_outputs(attempt: Attempt) -> tuple[str, ...]:
    return TASK_KINDS[attempt.answer.kind].trial_outputs(attempt.task)


def _is_lucky(attempt: Attempt, job: ProgramJob, grade: Grade | None) -> bool:
    """Whether an answer may be right by chance: of a program that may throw a coin, for another input than the task's,
    for which it was seen not to."""
    if grade is None or not grade.right or not TASK_KINDS[attempt.answer.kind].may_be_luck(attempt.task, job.calls):
        return False
    return not job.plain or _may_meet_sets(job)


def _may_meet_sets(job: ProgramJob) -> bool:
    checked = check_program(job.program, _NONE)
    if not isinstance(checked, Checked) or checked.hashes:
        return True
    braced = [call for call in job.calls if "{" in call or "set(" in call]
    return any(map(literals.holds_set, map(literals.read_arguments, braced)))


def _agrees(outcome: ProgramOutcome, task: Task) -> bool:
    if outcome.status is not ProgramStatus.OK:
        return False
    wanted = [output for _, output in task.examples]
    try:
        seen = [literals.show(literals.read(output)) for output in outcome.outputs]
    except LiteralError:
        return False
    return seen == [*wanted, *reversed(wanted)]


def _compared(outcome: ProgramOutcome, expected: tuple[str, ...]) -> Grade:
    if outcome.status is not ProgramStatus.OK:
        return Grade(right=False, verdict=_VERDICTS[outcome.status], detail=outcome.detail)
    try:
        right = all(
            literals.same(literals.read(output), literals.read(wanted))
            for output, wanted in set(zip(outcome.outputs, expected, strict=True))
        )
    except LiteralError as error:
        return Grade(right=False, verdict=TaskVerdict.TYPE, detail=str(error))
    return Grade(right=right, verdict=TaskVerdict.OK if right else TaskVerdict.WRONG)
