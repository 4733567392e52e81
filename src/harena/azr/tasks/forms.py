"""The two forms of asking and answering, and what all kinds of tasks share in them. prompts.py shows what they look
like; what only one kind has is in task_kinds.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harena.azr.tasks.kinds import ENTRY, IDENTITY, FormatError, Triplet
from harena.errors import SpecError

END = "\n\n"
"""What ends every compact document: a stop string, and part of what is learnt."""
OVERRUNS = ("\nassert", "\nprint", "\n```")
"""What models that were not trained on the compact form go on with, instead of ending: no such line is part of it."""
MAX_MESSAGE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProfile:
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
SHOT_INPUTS = (
    ("Gives back what it gets.", ("1", "'a'", "[2]", "None", "(3, 4)", "-5", "'xyz'", "[]", "7.5", "True")),
    ("Adds one.", ("3", "0", "-1", "10", "99", "41", "7", "-20", "5", "100")),
    (
        "Doubles the first letters.",
        (
            "'abc', 2",
            "'xy', 1",
            "'', 3",
            "'word', 4",
            "'q', 0",
            "'tree', 3",
            "'on', 2",
            "'ab', 5",
            "'zebra', 1",
            "'go', 0",
        ),
    ),
    (
        "The largest.",
        ("[4, 9, 1]", "[0]", "[-3, -7]", "[2, 2]", "[8, 6]", "[5, 1, 3]", "[10, 20]", "[-1, 0]", "[7]", "[3, 30, 13]"),
    ),
)
"""A message and inputs for each of SHOTS."""

PAPER = PromptProfile(name="paper", ends=("</answer>",), inputs=10)
COMPACT = PromptProfile(name="compact", ends=(END,), inputs=6)
PROFILES = {"paper": PAPER, "compact": COMPACT}

PAPER_SYSTEM = """\
You are given a task. First think it through, then give the answer. Put the thinking between <think> and </think> and \
the answer between <answer> and </answer>, in that order and with nothing else around them.

{question}

<think>"""
"""The words around every question of the paper's form, filled in with str.format; model text is never a format."""
_RESPONSE = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)(?:</answer>\s*)?\Z", re.DOTALL)
_FENCE = re.compile(r"```([a-z]+)[ \t]*\n(.*?)\n?```", re.DOTALL)


def squeeze(program: str) -> str:
    """Remove empty lines, which would end a compact document. (Inside a multi-line text they are lost as well; such a
    program is a poor reference, not a wrong task: tasks are checked with the program itself.)"""
    return "\n".join(line.rstrip() for line in program.splitlines() if line.strip())


def one_line(message: str) -> str:
    """A proposer's message as tasks keep it."""
    return " ".join(message.split())[:MAX_MESSAGE_CHARS]


def comment(message: str) -> str:
    line = one_line(message)
    return f"# {line}\n" if line else ""


def call_lines(message: str, inputs: Sequence[str]) -> str:
    """A message and calls, as an induction proposal has them in the compact form."""
    calls = "\n".join(f"{ENTRY}({given})" for given in inputs)
    return f"{comment(message)}{calls}{END}"


def call_of(line: str) -> str | None:
    """The arguments of a line that calls the function."""
    return line[len(ENTRY) + 1 : -1] if line.startswith(f"{ENTRY}(") and line.endswith(")") else None


def before_end(text: str) -> str:
    return text.partition(END)[0]


def fenced(label: str, body: str) -> str:
    return f"```{label}\n{body}\n```"


def paper_blocks(text: str) -> list[tuple[str, str]] | FormatError:
    """The fenced blocks of an answer in the paper's form, in order, as (label, body)."""
    # The stop string "</answer>" is not part of a completion's text; the prompt ends with an open <think>.
    found = _RESPONSE.fullmatch(text if text.lstrip().startswith("<think>") else f"<think>{text}")
    if found is None or any(tag in found[2] for tag in ("<answer>", "</answer>", "<think>", "</think>")):
        return FormatError(reason="not <think>…</think><answer>…</answer>")
    return [(label, body) for label, body in _FENCE.findall(found[2])]
