"""Tasks as text, and text as tasks. What each kind asks and reads is in task_kinds.py.

Promises: `parse_*` only takes text apart, it evaluates nothing and never raises; what `document` writes is what
`render_*` asks for and `parse_*` reads, so that pretraining and self-play cannot differ.

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

from collections.abc import Sequence

from harena.azr.tasks.forms import (
    COMPACT,
    END,
    OVERRUNS,
    PAPER,
    PAPER_SYSTEM,
    PROFILES,
    SHOTS,
    PromptProfile,
    before_end,
    paper_blocks,
    squeeze,
)
from harena.azr.tasks.kinds import IDENTITY, FormatError, Proposal, Role, SolverAnswer, Task, TaskKind, Triplet
from harena.azr.tasks.task_kinds import TASK_KINDS
from harena.errors import SpecError

__all__ = [
    "COMPACT",
    "END",
    "OVERRUNS",
    "PAPER",
    "PAPER_SYSTEM",
    "PROFILES",
    "SHOTS",
    "PromptProfile",
    "completion_for_solve",
    "document",
    "parse_propose",
    "parse_solve",
    "render_propose",
    "render_solve",
    "squeeze",
]


def render_propose(kind: TaskKind, references: Sequence[Triplet], *, profile: PromptProfile = COMPACT) -> str:
    """Asks for a task unlike the references; for induction, for inputs to the first reference's program."""
    if not references:
        raise SpecError("a proposal needs at least one reference: a buffer starts with the identity")
    one = TASK_KINDS[kind]
    if profile.name == "paper":
        asked = one.paper_ask.format(references=one.paper_references(references), inputs=profile.inputs)
        return PAPER_SYSTEM.format(question=asked)
    prompt = f"# propose {kind}{END}{one.references(references, profile)}"
    return _opened(prompt, one.opening(Role.PROPOSE), profile)


def render_solve(kind: TaskKind, task: Task, *, profile: PromptProfile = COMPACT) -> str:
    """Asks for what is missing of a task."""
    one = TASK_KINDS[kind]
    if not isinstance(task, one.task_type):
        raise SpecError(f"{kind} does not go with a {type(task).__name__}")
    if profile.name == "paper":
        return PAPER_SYSTEM.format(question=one.paper_question(task))
    shots = "".join(one.question(shot) + one.completion(shot) for shot in one.shots()[: profile.shots])
    return _opened(shots + one.question(task), one.opening(Role.SOLVE), profile)


def _opened(prompt: str, opening: str, profile: PromptProfile) -> str:
    """Add the opening. With shots a prompt ends within a line, where any tokenizer has a token's end: an empty line or
    an open bracket at the end of a text is another token than in the middle of it, and models go astray after one."""
    return prompt.removesuffix("(") + opening if profile.shots else prompt


# ---- documents: a prompt with the completion that is wanted ----


def document(
    role: Role, kind: TaskKind, task: Task, *, references: Sequence[Triplet] = (), profile: PromptProfile = COMPACT
) -> tuple[str, str]:
    """(prompt, completion) in the compact profile; the completion has its end with it. The task is one of its kind;
    `references` are for proposing only."""
    if profile.name != "compact":
        raise SpecError("documents are for pretraining tiny models: compact only")
    if role is Role.SOLVE:
        return render_solve(kind, task, profile=profile), completion_for_solve(kind, task)
    one = TASK_KINDS[kind]
    shown = one.own_references(task) or references or [IDENTITY]
    return render_propose(kind, shown, profile=profile), one.proposal(task)


def completion_for_solve(kind: TaskKind, task: Task) -> str:
    """The right answer as the compact profile wants it written."""
    return TASK_KINDS[kind].completion(task)


# ---- reading ----


def parse_propose(
    kind: TaskKind, text: str, *, profile: PromptProfile = COMPACT, reference: Triplet | None = None
) -> Proposal | FormatError:
    """`reference` is the program that inputs were asked for (induction)."""
    one = TASK_KINDS[kind]
    if one.needs_reference and reference is None:
        raise SpecError(f"an {kind} proposal is about a program: give `reference`")
    if profile.name == "paper":
        blocks = paper_blocks(text)
        return blocks if isinstance(blocks, FormatError) else one.read_paper_proposal(blocks, profile, reference)
    text = one.opening(Role.PROPOSE) + text if profile.shots else text
    lines = [line.rstrip() for line in before_end(text).splitlines() if line.strip()]
    return one.read_proposal(lines, profile, reference)


def parse_solve(kind: TaskKind, text: str, *, profile: PromptProfile = COMPACT) -> SolverAnswer | FormatError:
    """What is to be checked. That it is well formed says nothing about its being right, or harmless."""
    one = TASK_KINDS[kind]
    if profile.name == "compact":
        return one.read_completion(before_end(one.closed(text) if profile.shots else text), profile)
    blocks = paper_blocks(text)
    if isinstance(blocks, FormatError):
        return blocks
    bodies = [body for label, body in blocks if label == one.paper_label]
    return one.read_answer(bodies[0]) if bodies else FormatError(reason=f"no ```{one.paper_label} block in the answer")
