"""Tries to earn a reward without solving: mutated answers and programs, against an oracle that knows who is right.

An answer may be graded right only if the oracle, plain Python on values that we made ourselves, agrees. The quick run is
part of every test run; `make soak` runs thousands more.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable

import pytest

from harena.azr.check.verify import Attempt, TaskVerdict, TaskVerifier
from harena.azr.tasks import literals, prompts
from harena.azr.tasks.kinds import FormatError, InductionTask, Proposal, SolverAnswer, TaskKind, Triplet

FUNCTIONS: dict[str, Callable[[int], object]] = {
    "def f(x):\n    return x * 2 + 1": lambda x: x * 2 + 1,
    "def f(x):\n    return [x, -x]": lambda x: [x, -x],
    "def f(x):\n    return str(x) * 2": lambda x: str(x) * 2,
    "def f(x):\n    return (x > 3, x / 4)": lambda x: (x > 3, x / 4),
    "def f(x):\n    return {x: x % 3}": lambda x: {x: x % 3},
}
SPLICES = (
    "(",
    ")",
    ") or (True",
    "==",
    "__eq__",
    "1",
    "0.0",
    "-",
    "True",
    "None",
    "'",
    "[",
    "]",
    ",",
    "#",
    "\n",
    "\\",
    "{",
    "}",
    "lambda: 0",
    "__import__('os')",
    "f(",
    "e999",
    "j",
    "*",
    "\0",
    "\ud800",
    "…",
    " if 1 else ",
    "_",
    "0x",
    "9" * 50,
)
LINES = (
    "    return True",
    "    __builtins__.clear()",
    "    print(['ok', ['1']])",
    "    raise SystemExit",
    "    x = None",
    "    import builtins; builtins.repr = lambda _: '1'",
    "    while x: pass",
    "    return type('A', (), {'__eq__': lambda s, o: True})()",
    "    import sys; sys.stdout = None",
    "    import os; os._exit(0)",
    "    globals().clear()",
    "    return f.__globals__",
    "    return open(0).read()",
    "    yield x",
    "    f = 1",
    "    return float('nan')",
    "    import json; json.dumps = str",
    "    import signal; signal.setitimer(0, 0.0001)",
    "    import gc; return gc.get_objects()",
    "    return 1e999",
    "    assert 0",
)


def mutated(text: str, rng: random.Random, splices: tuple[str, ...]) -> str:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice(splices) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randrange(1, 4) :]
            case 2:
                text = text[:at] + chr(rng.choice((32, 39, 40, 41, 44, 48, 57, 91, 93, 0x660, 0xFF11))) + text[at + 1 :]
            case _:
                text = text[at:] + text[:at]
    return text


def mutated_program(program: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        return mutated(program, rng, SPLICES)
    lines = program.split("\n")
    for _ in range(rng.randrange(1, 3)):
        lines.insert(rng.randrange(1, len(lines) + 1), rng.choice(LINES))
    return "\n".join(lines)


def fuzz(verifier: TaskVerifier, seed: int, count: int) -> tuple[int, int]:
    """How many attempts there were and how many of them were right; fails when one was right that should not be."""
    rng = random.Random(seed)
    attempts: list[Attempt] = []
    rightful: list[bool | None] = []
    for _ in range(count):
        program, oracle = rng.choice(list(FUNCTIONS.items()))
        given = rng.randrange(-9, 99)
        task = Triplet(program=program, input=repr(given), output=repr(oracle(given)))
        kind = rng.choice((TaskKind.DEDUCTION, TaskKind.ABDUCTION))
        text = mutated(task.output if kind is TaskKind.DEDUCTION else task.input, rng, SPLICES)
        attempts.append(Attempt(task=task, answer=SolverAnswer(kind=kind, text=text)))
        rightful.append(deserves(task, kind, text, oracle))
    for _ in range(count // 4):
        program, oracle = rng.choice(list(FUNCTIONS.items()))
        pairs = tuple((repr(n), repr(oracle(n))) for n in rng.sample(range(-9, 99), 6))
        text = mutated_program(program, rng)
        task = InductionTask(program=program, message="", pairs=pairs)
        attempts.append(Attempt(task=task, answer=SolverAnswer(kind=TaskKind.INDUCTION, text=text)))
        rightful.append(None)
    grades = verifier.grade(attempts)
    assert len(grades) == len(attempts)
    for attempt, grade, deserved in zip(attempts, grades, rightful, strict=True):
        assert deserved is None or grade.right == deserved, attempt
    again = [
        Attempt(task=other_inputs(attempt.task.program), answer=attempt.answer)
        for attempt, grade, deserved in zip(attempts, grades, rightful, strict=True)
        if deserved is None and grade.right
    ]
    for attempt, grade in zip(again, verifier.grade(again), strict=True):
        assert grade.right, attempt  # else it was right by luck, or by something worse
    return len(grades), sum(grade.right for grade in grades)


def deserves(task: Triplet, kind: TaskKind, text: str, oracle: Callable[[int], object]) -> bool:
    """By Python's own reader and ==, with types compared through repr: another way than the verifier's."""
    if text.strip().endswith("\\"):
        return False  # what is wrapped around it below would become its next line
    try:
        value = ast.literal_eval(text.strip() if kind is TaskKind.DEDUCTION else f"[{text}\n]")
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        return False
    if kind is TaskKind.DEDUCTION:
        return repr(value) == task.output
    if len(value) != 1 or type(value) is not list:
        return False
    try:
        return repr(oracle(value[0])) == task.output
    except (TypeError, ValueError, ArithmeticError):
        return False


def other_inputs(program: str) -> InductionTask:
    """All that the first task may not have asked: who computes the function is right here, too."""
    oracle = FUNCTIONS[program]
    return InductionTask(program=program, message="", pairs=tuple((repr(n), repr(oracle(n))) for n in range(-9, 99)))


def test_no_mutated_answer_earns_what_it_does_not_deserve(verifier: TaskVerifier) -> None:
    count, right = fuzz(verifier, seed=5, count=160)  # `make soak` tries 80,000
    assert count == 200
    assert 0 < right < count / 2, "some mutations change nothing; most do"


def test_no_mutated_proposal_breaks_the_verifier(verifier: TaskVerifier) -> None:
    rng = random.Random(6)
    proposals = [
        Proposal(
            kind=TaskKind.DEDUCTION,
            program=mutated_program(rng.choice(list(FUNCTIONS)), rng),
            inputs=(mutated("7", rng, SPLICES),),
        )
        for _ in range(150)
    ]
    for proposal, found in zip(proposals, verifier.validate(proposals), strict=True):
        assert found.ok == (found.verdict is TaskVerdict.OK), proposal
        if isinstance(found.task, Triplet):
            assert literals.show(literals.read(found.task.output)) == found.task.output
            assert literals.show_arguments(literals.read_arguments(found.task.input)) == found.task.input


@pytest.mark.parametrize("profile", [prompts.COMPACT, prompts.PAPER], ids=lambda profile: profile.name)
def test_parsing_never_raises(profile: prompts.PromptProfile) -> None:
    rng = random.Random(7)
    good = "<think>\nhm</think><answer>```python\ndef f(x):\n    return x\n```\n```input\n1\n```\n```output\n2\n```</answer>"
    reference = Triplet(program="def f(x):\n    return x", input="1", output="1")
    for _ in range(1500):
        text = mutated(
            rng.choice((good, "def f(x):\n    return x\nf(1)\n\n", "f(1)\nf(2)", "3)")),
            rng,
            (*SPLICES, "```", "<answer>", "\n\n"),
        )
        kind = rng.choice(list(TaskKind))
        assert isinstance(
            prompts.parse_propose(kind, text, profile=profile, reference=reference), Proposal | FormatError
        )
        assert isinstance(prompts.parse_solve(kind, text, profile=profile), SolverAnswer | FormatError)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_many_more_mutations(verifier: TaskVerifier, seed: int) -> None:
    fuzz(verifier, seed=1000 + seed, count=4000)
