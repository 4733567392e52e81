"""The kinds of tasks: one class for each, with everything that is special about it, and the registry of them.

A class says what its prompts are, what it shows and asks for, how a proposal and an answer are read, where its
references come from, and what an answer is checked with. A new kind is a member of `TaskKind` in kinds.py (with the
shape of its task, if that is new) and a class here. Reading takes text apart: it evaluates nothing and never raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from harena.azr.tasks import forms, literals
from harena.azr.tasks.forms import END, SHOT_INPUTS, SHOTS, PromptProfile, call_of, fenced, squeeze
from harena.azr.tasks.kinds import (
    ENTRY,
    IDENTITY,
    FormatError,
    InductionTask,
    Proposal,
    Role,
    SolverAnswer,
    Task,
    TaskKind,
    Triplet,
    identity_induction,
)

T = TypeVar("T", Triplet, InductionTask)
Pairs = Sequence[tuple[str, str]]
_DEF = f"def {ENTRY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The calls that show whether an answer is right."""

    program: str
    calls: tuple[str, ...]
    fresh: int = 0
    """The last so many calls have a namespace each, in which the program has just been run."""
    is_answer: bool = False
    """Whether the program is the answer, and must pass the lint first; else it is the task's own."""


class KindRules(ABC, Generic[T]):
    """What one kind of task does differently. Its objects hold no state."""

    kind: ClassVar[TaskKind]
    task_type: type[T]
    openings: ClassVar[Mapping[Role, str]]
    """What a compact prompt with shots ends with, and a completion therefore lacks."""
    paper_ask: ClassVar[str]
    paper_solve: ClassVar[str]
    """The paper's words for the proposer and the solver, filled in with str.format."""
    paper_label: ClassVar[str]
    """The fenced block that holds an answer."""
    pretrain_shares: ClassVar[Mapping[Role, float]]
    """How often pretraining shows it."""
    references_from: ClassVar[tuple[TaskKind, ...]] = ()
    """The buffers that lend a proposer its one reference; empty: several from its own."""
    needs_reference: ClassVar[bool] = False
    """Whether a proposal is about the program of its reference."""

    # ---- tasks ----

    @abstractmethod
    def make(self, *, program: str, message: str, pairs: Pairs) -> T:
        """The task of a program with the outputs that were seen."""

    @abstractmethod
    def identity(self, inputs: int) -> T:
        """The task that a buffer starts with; `inputs` where a task has several."""

    @abstractmethod
    def inputs(self, several: int) -> int:
        """How many inputs a task has: one, or several."""

    @abstractmethod
    def gold(self, task: T) -> str:
        """The answer that the task itself knows."""

    # ---- asking, in the compact form ----

    @abstractmethod
    def references(self, references: Sequence[Triplet], profile: PromptProfile) -> str:
        """What a proposer is shown, after its head line."""

    @abstractmethod
    def question(self, task: T) -> str: ...

    @abstractmethod
    def completion(self, task: T) -> str:
        """The right answer to `question`, with its end."""

    @abstractmethod
    def proposal(self, task: T) -> str:
        """The proposal of this task, with its end."""

    @abstractmethod
    def shots(self) -> Sequence[T]:
        """Solved examples."""

    def own_references(self, task: T) -> list[Triplet]:
        """The reference that a proposal of this task must have been shown, if any."""
        del task
        return []

    def opening(self, role: Role) -> str:
        return self.openings.get(role, "")

    def closed(self, text: str) -> str:
        """A solver's completion as it would be without shots."""
        return self.opening(Role.SOLVE) + text

    # ---- asking, in the paper's form ----

    @abstractmethod
    def paper_references(self, references: Sequence[Triplet]) -> str: ...

    @abstractmethod
    def paper_question(self, task: T) -> str: ...

    # ---- reading ----

    @abstractmethod
    def read_proposal(
        self, lines: list[str], profile: PromptProfile, reference: Triplet | None
    ) -> Proposal | FormatError: ...

    @abstractmethod
    def read_paper_proposal(
        self, blocks: Pairs, profile: PromptProfile, reference: Triplet | None
    ) -> Proposal | FormatError: ...

    @abstractmethod
    def read_completion(self, body: str, profile: PromptProfile) -> SolverAnswer | FormatError:
        """The answer in a compact completion, of which `body` is the part before its end."""

    @abstractmethod
    def read_answer(self, text: str) -> SolverAnswer | FormatError: ...

    # ---- checking ----

    @abstractmethod
    def trial(self, task: T, answer: str) -> Trial | bool:
        """What to run, or whether the answer is right where nothing has to run. LiteralError: it is no answer."""

    def trial_outputs(self, task: T) -> tuple[str, ...]:
        """What must come out of the calls of the trial."""
        return tuple(output for _, output in task.judged)

    def may_be_luck(self, task: T, calls: tuple[str, ...]) -> bool:
        """Whether these calls were not made when the task was found to be deterministic."""
        del task, calls
        return False


class _TripletKind(KindRules[Triplet]):
    """Deduction and abduction: one input, of which the proposer writes the program too."""

    task_type = Triplet
    openings: ClassVar[Mapping[Role, str]] = {Role.PROPOSE: _DEF}

    def make(self, *, program: str, message: str, pairs: Pairs) -> Triplet:
        del message
        return Triplet(program=program, input=pairs[0][0], output=pairs[0][1])

    def identity(self, inputs: int) -> Triplet:
        del inputs
        return IDENTITY

    def inputs(self, several: int) -> int:
        del several
        return 1

    def references(self, references: Sequence[Triplet], profile: PromptProfile) -> str:
        # A model that was not trained on this form learns it from examples, even while a buffer holds hardly any.
        shown = [*(one for one in SHOTS[: profile.shots] if one not in references), *references]
        return "".join(map(self.proposal, shown))

    def proposal(self, task: Triplet) -> str:
        return f"{squeeze(task.program)}\n{ENTRY}({task.input}){END}"

    def shots(self) -> Sequence[Triplet]:
        return SHOTS

    def paper_references(self, references: Sequence[Triplet]) -> str:
        return "\n\n".join(
            f"Example {number}:\n{fenced('python', one.program)}\n"
            f"{fenced('input', one.input)}\n{fenced('output', one.output)}"
            for number, one in enumerate(references, 1)
        )

    def paper_question(self, task: Triplet) -> str:
        return self.paper_solve.format(program=task.program, input=task.input, output=task.output)

    def read_proposal(
        self, lines: list[str], profile: PromptProfile, reference: Triplet | None
    ) -> Proposal | FormatError:
        if profile.shots:
            first = next((n for n, line in enumerate(lines) if call_of(line) is not None), len(lines))
            lines = lines[: first + 1]
        given = call_of(lines[-1]) if lines else None
        if given is None:
            return FormatError(reason=f"the last line is not {ENTRY}(…)")
        if len(lines) < 2:
            return FormatError(reason="no program before the call")
        return Proposal(kind=self.kind, program="\n".join(lines[:-1]), inputs=(given,))

    def read_paper_proposal(
        self, blocks: Pairs, profile: PromptProfile, reference: Triplet | None
    ) -> Proposal | FormatError:
        inputs = [body.strip() for label, body in blocks if label == "input"]
        programs = [body for label, body in blocks if label == "python"]
        if not programs or not inputs:
            return FormatError(reason="a ```python and an ```input block are needed")
        return Proposal(kind=self.kind, program=programs[0].strip("\n").rstrip(), inputs=(inputs[0],))

    def read_completion(self, body: str, profile: PromptProfile) -> SolverAnswer | FormatError:
        return self.read_line(body.partition("\n")[0].strip() if profile.shots else body.strip())

    def read_line(self, line: str) -> SolverAnswer | FormatError:
        return self.read_answer(line)

    def read_answer(self, text: str) -> SolverAnswer | FormatError:
        try:
            self.check(text)
        except literals.LiteralError as error:
            return FormatError(reason=str(error))
        return SolverAnswer(kind=self.kind, text=text.strip())

    @abstractmethod
    def check(self, text: str) -> None:
        """LiteralError unless the text is what is asked for."""


_PROPOSE = """\
Invent a new Python program and one input for it. {goal}

Rules for the program:
- Its only entry point is a function named `f`, and that is the only function at the top level; helpers go inside of it.
- `f` takes at least one argument and returns a value; nothing is printed or read.
- It gives the same output for the same input, always: no randomness, no clock, no dependence on the order of a set.
- No imports of modules that reach outside the program: os, sys, io, subprocess, threading, random, time, datetime, …
- It ends within a second. Inputs and outputs are plain values: numbers, texts, lists, tuples, sets, dicts, booleans, \
None.

Rules for the input:
- It is the argument list of one call of `f`, separated by commas, as plain values. \
Example: [1, 2, 3], 'text', {{{{'a': 1}}}}

It should be solvable, but need several steps of reasoning: state that changes, recursion, data structures, conditions \
that interact. Make it different in idea from each of these examples:

{{references}}

Write the answer as one ```python block with the program and one ```input block with the argument list."""


class Deduction(_TripletKind):
    """Program and input are given; the output is asked for."""

    kind = TaskKind.DEDUCTION
    pretrain_shares: ClassVar[Mapping[Role, float]] = {Role.SOLVE: 0.34, Role.PROPOSE: 0.06}
    paper_label = "output"
    paper_ask = _PROPOSE.format(
        goal="Somebody else will see the program and the input, and has to say what `f` returns, without running it."
    )
    paper_solve = """\
Here is a Python program and an input for it, which is the argument list of the call of `f`:

```python
{program}
```
```input
{input}
```

What does `f` return? Write the answer as one ```output block with the value as a Python literal."""

    def gold(self, task: Triplet) -> str:
        return task.output

    def question(self, task: Triplet) -> str:
        return f"{squeeze(task.program)}\nassert {ENTRY}({task.input}) =="

    def completion(self, task: Triplet) -> str:
        return f" {task.output}{END}"

    def check(self, text: str) -> None:
        literals.read(text)

    def trial(self, task: Triplet, answer: str) -> Trial | bool:
        return literals.same(literals.read(answer), literals.read(task.output))


class Abduction(_TripletKind):
    """Program and output are given; any input that gives the output is right."""

    kind = TaskKind.ABDUCTION
    pretrain_shares: ClassVar[Mapping[Role, float]] = {Role.SOLVE: 0.22, Role.PROPOSE: 0.06}
    paper_label = "input"
    paper_ask = _PROPOSE.format(
        goal="Somebody else will see the program and what it returns, and has to find an input that gives this."
    )
    paper_solve = """\
Here is a Python program and what its function `f` returned:

```python
{program}
```
```output
{output}
```

Find an input that gives this output; if there are several, any will do. Write the answer as one ```input block with \
the argument list of the call of `f`, separated by commas, as plain values. Example: [1, 2, 3], 'text', {{'a': 1}}"""

    def gold(self, task: Triplet) -> str:
        return task.input

    def question(self, task: Triplet) -> str:
        return f"{squeeze(task.program)}\nassert {task.output} == {ENTRY}("

    def completion(self, task: Triplet) -> str:
        return f"{task.input}){END}"

    def closed(self, text: str) -> str:
        return text[1:] if text.startswith("(") else ""

    def read_line(self, line: str) -> SolverAnswer | FormatError:
        return self.read_answer(line[:-1]) if line.endswith(")") else FormatError(reason="the call is not closed")

    def check(self, text: str) -> None:
        literals.read_arguments(text)

    def trial(self, task: Triplet, answer: str) -> Trial | bool:
        given = literals.show_arguments(literals.read_arguments(answer))
        return Trial(program=task.program, calls=(given,))

    def may_be_luck(self, task: Triplet, calls: tuple[str, ...]) -> bool:
        return calls != (task.input,)


class Induction(KindRules[InductionTask]):
    """Some inputs with their outputs and a message are given; a program is asked for, and judged on others."""

    kind = TaskKind.INDUCTION
    task_type = InductionTask
    openings: ClassVar[Mapping[Role, str]] = {Role.PROPOSE: "#", Role.SOLVE: _DEF}
    pretrain_shares: ClassVar[Mapping[Role, float]] = {Role.SOLVE: 0.24, Role.PROPOSE: 0.08}
    references_from = (TaskKind.DEDUCTION, TaskKind.ABDUCTION)
    needs_reference = True
    paper_label = "python"
    paper_ask = """\
Here is a Python program:

{references}

Write {inputs} inputs for it and a message. Somebody else will see the message and half of the inputs with their \
outputs, and has to write a program that does the same; the other half will test it. So the inputs should be different \
from each other and together show everything that the program does. The message says in words what to look for, \
without giving the program away.

Each input is the argument list of one call of `f`, separated by commas, as plain values. Write the answer as exactly \
{inputs} ```input blocks and one ```message block."""
    paper_solve = """\
A function `f` gave these outputs for these inputs, each of which is the argument list of one call:

{pairs}

About it was said: {message}

Write a Python program with one function `f` at the top level that does the same, also for inputs that are not shown. \
Write the answer as one ```python block."""

    def make(self, *, program: str, message: str, pairs: Pairs) -> InductionTask:
        return InductionTask(program=program, message=message, pairs=tuple(pairs))

    def identity(self, inputs: int) -> InductionTask:
        return identity_induction(inputs)

    def inputs(self, several: int) -> int:
        return several

    def gold(self, task: InductionTask) -> str:
        return task.program

    def references(self, references: Sequence[Triplet], profile: PromptProfile) -> str:
        shots = [
            f"{squeeze(one.program)}\n{forms.call_lines(message, inputs[: profile.inputs])}"
            for one, (message, inputs) in zip(SHOTS, SHOT_INPUTS, strict=True)
        ]
        return "".join(shots[: profile.shots]) + f"{squeeze(references[0].program)}\n"

    def question(self, task: InductionTask) -> str:
        lines = [f"assert {ENTRY}({given}) == {output}\n" for given, output in task.shown]
        return forms.comment(task.message) + "".join(lines)

    def completion(self, task: InductionTask) -> str:
        return squeeze(task.program) + END

    def proposal(self, task: InductionTask) -> str:
        return forms.call_lines(task.message, [given for given, _ in task.pairs])

    def shots(self) -> Sequence[InductionTask]:
        return [
            InductionTask(program=one.program, message=message, pairs=((one.input, one.output),) * 2)
            for one, (message, _) in zip(SHOTS, SHOT_INPUTS, strict=True)
        ]

    def own_references(self, task: InductionTask) -> list[Triplet]:
        given, output = task.pairs[0]
        return [Triplet(program=task.program, input=given, output=output)]

    def paper_references(self, references: Sequence[Triplet]) -> str:
        return fenced("python", references[0].program)

    def paper_question(self, task: InductionTask) -> str:
        pairs = "\n".join(f"{fenced('input', given)}\n{fenced('output', output)}" for given, output in task.shown)
        return self.paper_solve.format(pairs=pairs, message=task.message or "(none)")

    def read_proposal(
        self, lines: list[str], profile: PromptProfile, reference: Triplet | None
    ) -> Proposal | FormatError:
        has_message = bool(lines) and lines[0].startswith("#")
        message, lines = (lines[0][1:].strip(), lines[1:]) if has_message else ("", lines)
        lines = lines[: profile.inputs] if profile.shots else lines
        return self._proposed(reference, message, [call_of(line) for line in lines], profile)

    def read_paper_proposal(
        self, blocks: Pairs, profile: PromptProfile, reference: Triplet | None
    ) -> Proposal | FormatError:
        message = next((body for label, body in blocks if label == "message"), "")
        inputs = [body.strip() for label, body in blocks if label == "input"]
        return self._proposed(reference, message, inputs, profile)

    def _proposed(
        self, reference: Triplet | None, message: str, inputs: Sequence[str | None], profile: PromptProfile
    ) -> Proposal | FormatError:
        found = [given for given in inputs if given is not None]
        if reference is None or len(found) != len(inputs) or len(found) != profile.inputs:
            return FormatError(reason=f"{len(found)} inputs in {len(inputs)} blocks; {profile.inputs} were asked for")
        return Proposal(kind=self.kind, program=reference.program, inputs=tuple(found), message=forms.one_line(message))

    def read_completion(self, body: str, profile: PromptProfile) -> SolverAnswer | FormatError:
        return self.read_answer(body)

    def read_answer(self, text: str) -> SolverAnswer | FormatError:
        program = text.strip("\n").rstrip()
        try:
            literals.parse(program)
        except literals.LiteralError as error:
            return FormatError(reason=f"the program {error}")
        if not program.strip():
            return FormatError(reason="no program")
        return SolverAnswer(kind=self.kind, text=program)

    def trial(self, task: InductionTask, answer: str) -> Trial | bool:
        if not task.hidden:
            raise literals.LiteralError("a task without hidden pairs has no right answer")
        # In order in one namespace, then back with a namespace for each: what it remembers is of no use.
        hidden = tuple(given for given, _ in task.hidden)
        return Trial(program=answer, calls=(*hidden, *reversed(hidden)), fresh=len(hidden), is_answer=True)

    def trial_outputs(self, task: InductionTask) -> tuple[str, ...]:
        expected = super().trial_outputs(task)
        return (*expected, *reversed(expected))


TASK_KINDS: Mapping[TaskKind, KindRules[Any]] = {one.kind: one for one in (Deduction(), Abduction(), Induction())}


def kinds_of(task: Task) -> list[TaskKind]:
    """The kinds that a task can be asked as."""
    return [kind for kind, one in TASK_KINDS.items() if isinstance(task, one.task_type)]
