"""Tasks as text, and text as tasks. Promises: `parse_*` only takes text apart, it evaluates nothing and never raises;
what `document` writes is what `render_*` asks for and `parse_*` reads, so that pretraining and self-play cannot differ.

Two profiles:

paper      instructions in words, `<think>…</think><answer>…</answer>` with fenced blocks: for models from 1.5B on.
compact    code to be continued, every document ended by an empty line: for tiny models, with `shots` for small ones.

Compact, by role and kind (`·` marks where the prompt ends; the completion is the rest):

    propose deduction, abduction    propose induction      solve deduction      solve abduction      solve induction

    # propose deduction             # propose induction    def f(x):            def f(x):            # adds one
                                                               return x + 1         return x + 1     assert f(1) == 2
    def f(a):                       def f(x):              assert f(3) ==· 4    assert 4 == f(·3)    assert f(5) == 6
        return a                        return x + 1                                                 ·def f(x):
    f('Hello world')                ·# adds one                                                          return x + 1
                                    f(1)
    ·def f(x):                      f(5)
        return x + 1
    f(3)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harena.azr.tasks import literals
from harena.azr.tasks.kinds import (
    ENTRY,
    IDENTITY,
    Answer,
    FormatError,
    InductionTask,
    Kind,
    Proposal,
    Role,
    Task,
    Triplet,
)
from harena.azr.tasks.paper_prompts import PAPER_ASK, PAPER_SOLVE, PAPER_SYSTEM
from harena.errors import SpecError

END = "\n\n"
"""What ends every compact document: a stop string, and part of what is learnt."""
OVERRUNS = ("\nassert", "\nprint", "\n```")
"""What models that were not trained on the compact form go on with, instead of ending: no such line is part of it."""
MAX_MESSAGE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    ends: tuple[str, ...]
    """What ends a completion that keeps to the form."""
    inputs: int
    """Inputs of an induction proposal: the first half is shown to solvers, the rest judges them."""
    shots: int = 0
    """Solved examples before the question (compact): none for a model trained on this form, a few for others. What
    others write after a call, below a value, or beyond the inputs that were asked for, is not read."""

    @property
    def stop(self) -> tuple[str, ...]:
        return (*self.ends, *OVERRUNS) if self.shots else self.ends

    def __post_init__(self) -> None:
        if self.name not in ("paper", "compact"):
            raise SpecError(f"prompt profile {self.name!r}: there are 'paper' and 'compact'")
        if self.inputs < 2 or not 0 <= self.shots <= len(SHOTS):
            raise SpecError(f"prompt profile {self.name!r}: inputs >= 2 and shots from 0 to {len(SHOTS)}")


SHOTS: tuple[Triplet, ...] = (
    IDENTITY,
    Triplet(program="def f(x):\n    return x + 1", input="3", output="4"),
    Triplet(program="def f(s, n):\n    return s[:n] * 2", input="'abc', 2", output="'abab'"),
    Triplet(program="def f(l):\n    return sorted(l)[-1]", input="[4, 9, 1]", output="9"),
)
"""The examples of `Profile.shots`, the last ones first dropped."""
_SHOT_INPUTS = (
    ("Gives back what it gets.", ("1", "'a'", "[2]", "None", "(3, 4)", "-5", "'xyz'", "[]", "7.5", "True")),
    ("Adds one.", ("3", "0", "-1", "10", "99", "41", "7", "-20", "5", "100")),
    ("Doubles the first letters.", ("'abc', 2", "'xy', 1", "'', 3", "'word', 4", "'q', 0",
                                    "'tree', 3", "'on', 2", "'ab', 5", "'zebra', 1", "'go', 0")),
    ("The largest.", ("[4, 9, 1]", "[0]", "[-3, -7]", "[2, 2]", "[8, 6]",
                      "[5, 1, 3]", "[10, 20]", "[-1, 0]", "[7]", "[3, 30, 13]")),
)  # fmt: skip

PAPER = Profile(name="paper", ends=("</answer>",), inputs=10)
COMPACT = Profile(name="compact", ends=(END,), inputs=6)
PROFILES = {"paper": PAPER, "compact": COMPACT}


# ---- asking ----


def render_propose(kind: Kind, references: Sequence[Triplet], *, profile: Profile = COMPACT) -> str:
    """Asks for a task unlike the references; for induction, for inputs to the first reference's program."""
    if not references:
        raise SpecError("a proposal needs at least one reference: a buffer starts with the identity")
    if profile.name == "paper":
        return _paper_propose(kind, references, profile)
    head = f"# propose {kind}{END}"
    if kind is Kind.INDUCTION:
        shots = "".join(
            _call_lines(program, message, inputs[: profile.inputs])
            for program, message, inputs in _induction_shots(profile)
        )
        return _opened(Role.PROPOSE, kind, f"{head}{shots}{squeeze(references[0].program)}\n", profile)
    # A model that was not trained on this form gets it from examples, also while a buffer holds little more than one.
    shown = [*(one for one in SHOTS[: profile.shots] if one not in references), *references]
    lines = "".join(f"{squeeze(one.program)}\n{ENTRY}({one.input}){END}" for one in shown)
    return _opened(Role.PROPOSE, kind, head + lines, profile)


def render_solve(kind: Kind, task: Task, *, profile: Profile = COMPACT) -> str:
    """Asks for what is missing of a task."""
    if (kind is Kind.INDUCTION) != isinstance(task, InductionTask):
        raise SpecError(f"{kind} does not go with a {type(task).__name__}")
    if profile.name == "paper":
        return _paper_solve(kind, task)
    return _opened(Role.SOLVE, kind, _solve_shots(kind, profile) + _question(kind, task), profile)


_OPENINGS = {
    (Role.PROPOSE, Kind.DEDUCTION): f"def {ENTRY}",
    (Role.PROPOSE, Kind.ABDUCTION): f"def {ENTRY}",
    (Role.PROPOSE, Kind.INDUCTION): "#",
    (Role.SOLVE, Kind.INDUCTION): f"def {ENTRY}",
}


def _opened(role: Role, kind: Kind, prompt: str, profile: Profile) -> str:
    """With shots a prompt ends within a line, where any tokenizer has a token's end: an empty line or an open bracket
    at the end of a text is another token than in the middle of it, and models go astray after one."""
    if not profile.shots:
        return prompt
    return prompt.removesuffix("(") + _OPENINGS.get((role, kind), "")


def _closed(role: Role, kind: Kind, text: str, profile: Profile) -> str:
    """The completion as it would be without shots."""
    if not profile.shots:
        return text
    if (role, kind) == (Role.SOLVE, Kind.ABDUCTION):
        return text[1:] if text.startswith("(") else ""
    return _OPENINGS.get((role, kind), "") + text


def _question(kind: Kind, task: Task) -> str:
    if isinstance(task, InductionTask):
        return _message(task.message) + "".join(f"assert {ENTRY}({given}) == {out}\n" for given, out in task.shown)
    if kind is Kind.DEDUCTION:
        return f"{squeeze(task.program)}\nassert {ENTRY}({task.input}) =="
    return f"{squeeze(task.program)}\nassert {task.output} == {ENTRY}("


def _solve_shots(kind: Kind, profile: Profile) -> str:
    if kind is Kind.INDUCTION:
        examples = [
            InductionTask(program=one.program, message=message, pairs=((one.input, one.output),) * 2)
            for one, (message, _) in zip(SHOTS, _SHOT_INPUTS, strict=True)
        ]
        return "".join(_question(kind, one) + completion_for_solve(kind, one) for one in examples[: profile.shots])
    return "".join(_question(kind, one) + completion_for_solve(kind, one) for one in SHOTS[: profile.shots])


def _induction_shots(profile: Profile) -> list[tuple[str, str, tuple[str, ...]]]:
    shots = [(one.program, *rest) for one, rest in zip(SHOTS, _SHOT_INPUTS, strict=True)]
    return shots[: profile.shots]


# ---- documents: a prompt with the completion that is wanted ----


def document(
    role: Role, kind: Kind, task: Task, *, references: Sequence[Triplet] = (), profile: Profile = COMPACT
) -> tuple[str, str]:
    """(prompt, completion) in the compact profile; the completion has its end with it. The task of an induction
    document is an InductionTask, of the others a Triplet; `references` are for proposing only."""
    if profile.name != "compact":
        raise SpecError("documents are for pretraining tiny models: compact only")
    if role is Role.SOLVE:
        return render_solve(kind, task, profile=profile), completion_for_solve(kind, task)
    if isinstance(task, InductionTask):
        shown = Triplet(program=task.program, input=task.pairs[0][0], output=task.pairs[0][1])
        lines = _call_lines("", task.message, [given for given, _ in task.pairs])
        return render_propose(kind, [shown], profile=profile), lines
    wanted = f"{squeeze(task.program)}\n{ENTRY}({task.input}){END}"
    return render_propose(kind, references or [IDENTITY], profile=profile), wanted


def completion_for_solve(kind: Kind, task: Task) -> str:
    """The right answer as the compact profile wants it written."""
    if isinstance(task, InductionTask):
        return squeeze(task.program) + END
    return f" {task.output}{END}" if kind is Kind.DEDUCTION else f"{task.input}){END}"


def squeeze(program: str) -> str:
    """Without empty lines, which would end a compact document. (Inside a multi-line text they are lost as well; such a
    program is a poor reference, not a wrong task: tasks are checked with the program itself.)"""
    return "\n".join(line.rstrip() for line in program.splitlines() if line.strip())


def _message(message: str) -> str:
    line = " ".join(message.split())[:MAX_MESSAGE_CHARS]
    return f"# {line}\n" if line else ""


def _call_lines(program: str, message: str, inputs: Sequence[str]) -> str:
    calls = "\n".join(f"{ENTRY}({given})" for given in inputs)
    return (f"{squeeze(program)}\n" if program else "") + f"{_message(message)}{calls}{END}"


# ---- reading ----


def parse_propose(
    kind: Kind, text: str, *, profile: Profile = COMPACT, reference: Triplet | None = None
) -> Proposal | FormatError:
    """`reference` is the program that inputs were asked for (induction)."""
    if kind is Kind.INDUCTION and reference is None:
        raise SpecError("an induction proposal is about a program: give `reference`")
    if profile.name == "paper":
        return _paper_parse_propose(kind, text, profile, reference)
    text = _closed(Role.PROPOSE, kind, text, profile)
    lines = [line.rstrip() for line in _before_end(text).splitlines() if line.strip()]
    if kind is Kind.INDUCTION and reference is not None:
        message = lines.pop(0)[1:].strip() if lines and lines[0].startswith("#") else ""
        lines = lines[: profile.inputs] if profile.shots else lines
        return _induction(reference, message, [_call_of(line) for line in lines], profile)
    if profile.shots:
        first = next((n for n, line in enumerate(lines) if _call_of(line) is not None), len(lines))
        lines = lines[: first + 1]
    given = _call_of(lines[-1]) if lines else None
    if given is None:
        return FormatError(reason=f"the last line is not {ENTRY}(…)")
    if len(lines) < 2:
        return FormatError(reason="no program before the call")
    return Proposal(kind=kind, program="\n".join(lines[:-1]), inputs=(given,))


def parse_solve(kind: Kind, text: str, *, profile: Profile = COMPACT) -> Answer | FormatError:
    """What is to be checked. That it is well formed says nothing about its being right, or harmless."""
    if profile.name == "paper":
        return _paper_parse_solve(kind, text)
    body = _before_end(_closed(Role.SOLVE, kind, text, profile))
    if kind is Kind.INDUCTION:
        return _program_answer(body)
    line = body.partition("\n")[0].strip() if profile.shots else body.strip()
    if kind is Kind.ABDUCTION:
        if not line.endswith(")"):
            return FormatError(reason="the call is not closed")
        line = line[:-1]
    return _data_answer(kind, line)


def _before_end(text: str) -> str:
    return text.partition(END)[0]


def _call_of(line: str) -> str | None:
    return line[len(ENTRY) + 1 : -1] if line.startswith(f"{ENTRY}(") and line.endswith(")") else None


def _induction(
    reference: Triplet, message: str, inputs: Sequence[str | None], profile: Profile
) -> Proposal | FormatError:
    found = [given for given in inputs if given is not None]
    if len(found) != len(inputs) or len(found) != profile.inputs:
        return FormatError(reason=f"{len(found)} inputs in {len(inputs)} blocks; {profile.inputs} were asked for")
    message = " ".join(message.split())[:MAX_MESSAGE_CHARS]
    return Proposal(kind=Kind.INDUCTION, program=reference.program, inputs=tuple(found), message=message)


def _data_answer(kind: Kind, text: str) -> Answer | FormatError:
    try:
        if kind is Kind.DEDUCTION:
            literals.read(text)
        else:
            literals.read_arguments(text)
    except literals.LiteralError as error:
        return FormatError(reason=str(error))
    return Answer(kind=kind, text=text.strip())


def _program_answer(text: str) -> Answer | FormatError:
    program = text.strip("\n").rstrip()
    try:
        literals.parse(program)
    except literals.LiteralError as error:
        return FormatError(reason=f"the program {error}")
    if not program.strip():
        return FormatError(reason="no program")
    return Answer(kind=Kind.INDUCTION, text=program)


# ---- the paper's form ----

_RESPONSE = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)(?:</answer>\s*)?\Z", re.DOTALL)
_FENCE = re.compile(r"```([a-z]+)[ \t]*\n(.*?)\n?```", re.DOTALL)


def _paper_propose(kind: Kind, references: Sequence[Triplet], profile: Profile) -> str:
    if kind is Kind.INDUCTION:
        shown = f"```python\n{references[0].program}\n```"
    else:
        shown = "\n\n".join(
            f"Example {number}:\n```python\n{one.program}\n```\n"
            f"```input\n{one.input}\n```\n```output\n{one.output}\n```"
            for number, one in enumerate(references, 1)
        )
    return PAPER_SYSTEM.format(question=PAPER_ASK[kind].format(references=shown, inputs=profile.inputs))


def _paper_solve(kind: Kind, task: Task) -> str:
    if isinstance(task, InductionTask):
        pairs = "\n".join(f"```input\n{given}\n```\n```output\n{out}\n```" for given, out in task.shown)
        question = PAPER_SOLVE[kind].format(pairs=pairs, message=task.message or "(none)")
    else:
        question = PAPER_SOLVE[kind].format(program=task.program, input=task.input, output=task.output)
    return PAPER_SYSTEM.format(question=question)


def _paper_answer(text: str) -> list[tuple[str, str]] | FormatError:
    """The fenced blocks of the answer, in order, as (label, body)."""
    # The stop string "</answer>" is not part of a completion's text; the prompt ends with an open <think>.
    found = _RESPONSE.fullmatch(text if text.lstrip().startswith("<think>") else f"<think>{text}")
    if found is None or any(tag in found[2] for tag in ("<answer>", "</answer>", "<think>", "</think>")):
        return FormatError(reason="not <think>…</think><answer>…</answer>")
    return [(label, body) for label, body in _FENCE.findall(found[2])]


def _paper_parse_propose(kind: Kind, text: str, profile: Profile, reference: Triplet | None) -> Proposal | FormatError:
    blocks = _paper_answer(text)
    if isinstance(blocks, FormatError):
        return blocks
    inputs = [body.strip() for label, body in blocks if label == "input"]
    if kind is Kind.INDUCTION and reference is not None:
        message = next((body for label, body in blocks if label == "message"), "")
        return _induction(reference, message, inputs, profile)
    programs = [body for label, body in blocks if label == "python"]
    if not programs or not inputs:
        return FormatError(reason="a ```python and an ```input block are needed")
    return Proposal(kind=kind, program=programs[0].strip("\n").rstrip(), inputs=(inputs[0],))


_LABELS = {Kind.DEDUCTION: "output", Kind.ABDUCTION: "input", Kind.INDUCTION: "python"}


def _paper_parse_solve(kind: Kind, text: str) -> Answer | FormatError:
    blocks = _paper_answer(text)
    if isinstance(blocks, FormatError):
        return blocks
    bodies = [body for label, body in blocks if label == _LABELS[kind]]
    if not bodies:
        return FormatError(reason=f"no ```{_LABELS[kind]} block in the answer")
    return _program_answer(bodies[0]) if kind is Kind.INDUCTION else _data_answer(kind, bodies[0])
