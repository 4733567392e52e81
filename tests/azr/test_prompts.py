from __future__ import annotations

import dataclasses

import pytest

from harena.azr.tasks import prompts
from harena.azr.tasks.kinds import FormatError, InductionTask, Proposal, Role, SolverAnswer, TaskKind, Triplet
from harena.azr.tasks.prompts import COMPACT, PAPER
from harena.errors import SpecError

TASK = Triplet(program="def f(x, s):\n    y = x + 1\n    return s * y", input="1, 'ab'", output="'abab'")
PAIRS = tuple((f"{n}, 'a'", repr("a" * (n + 1))) for n in range(6))
INDUCTION = InductionTask(program=TASK.program, message="Repeats.", pairs=PAIRS)


def task_of(kind: TaskKind) -> Triplet | InductionTask:
    return INDUCTION if kind is TaskKind.INDUCTION else TASK


@pytest.mark.parametrize("kind", TaskKind)
def test_what_a_document_answers_is_what_is_read(kind: TaskKind) -> None:
    prompt, completion = prompts.document(Role.SOLVE, kind, task_of(kind))
    assert prompt == prompts.render_solve(kind, task_of(kind))
    wanted = {TaskKind.DEDUCTION: TASK.output, TaskKind.ABDUCTION: TASK.input, TaskKind.INDUCTION: TASK.program}[kind]
    assert prompts.parse_solve(kind, completion) == SolverAnswer(kind=kind, text=wanted)


@pytest.mark.parametrize("kind", TaskKind)
def test_what_a_document_proposes_is_what_is_read(kind: TaskKind) -> None:
    prompt, completion = prompts.document(Role.PROPOSE, kind, task_of(kind))
    assert prompt.startswith(f"# propose {kind}\n\n")
    found = prompts.parse_propose(kind, completion, reference=TASK)
    inputs = tuple(given for given, _ in PAIRS) if kind is TaskKind.INDUCTION else (TASK.input,)
    message = "Repeats." if kind is TaskKind.INDUCTION else ""
    assert found == Proposal(kind=kind, program=TASK.program, inputs=inputs, message=message)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", TaskKind)
def test_every_document_ends_once_and_at_its_end(role: Role, kind: TaskKind) -> None:
    _, completion = prompts.document(role, kind, task_of(kind))
    assert completion.index(prompts.END) == len(completion) - len(prompts.END)
    assert COMPACT.stop == (prompts.END,)


def test_a_solver_does_not_see_what_is_asked_for() -> None:
    for profile in (COMPACT, PAPER):
        induction = prompts.render_solve(TaskKind.INDUCTION, INDUCTION, profile=profile)
        assert TASK.program not in induction
        for given, out in INDUCTION.hidden:
            assert f"({given})" not in induction
            assert out not in induction
        assert TASK.output not in prompts.render_solve(TaskKind.DEDUCTION, TASK, profile=profile)
        assert TASK.input not in prompts.render_solve(TaskKind.ABDUCTION, TASK, profile=profile)


def test_shots_come_before_the_question() -> None:
    profile = dataclasses.replace(COMPACT, shots=3)
    for kind in TaskKind:
        question = prompts.render_solve(kind, task_of(kind))
        with_shots = prompts.render_solve(kind, task_of(kind), profile=profile)
        assert prompts.END + question.removesuffix("(") in with_shots
        assert with_shots.count(prompts.END) == 3
    assert prompts.render_propose(TaskKind.INDUCTION, [TASK], profile=profile).count(prompts.END) == 4


def test_with_shots_prompts_end_within_a_line_and_answers_are_read_from_there() -> None:
    profile = dataclasses.replace(COMPACT, shots=4)
    for kind in TaskKind:
        asked = prompts.render_solve(kind, task_of(kind), profile=profile)
        whole = prompts.render_solve(kind, task_of(kind)) + prompts.completion_for_solve(kind, task_of(kind))
        ending = asked.rpartition(prompts.END)[2]
        assert whole.startswith(ending)
        assert not asked.endswith(("\n", "(", " "))
        wanted = prompts.parse_solve(kind, prompts.completion_for_solve(kind, task_of(kind)))
        assert prompts.parse_solve(kind, whole.removeprefix(ending), profile=profile) == wanted
        asked = prompts.render_propose(kind, [TASK], profile=profile)
        assert not asked.endswith(("\n", "(", " "))
    assert isinstance(prompts.parse_solve(TaskKind.ABDUCTION, "oo(1)", profile=profile), FormatError)


def test_with_shots_what_follows_an_answer_or_a_proposal_is_not_read() -> None:
    profile = dataclasses.replace(COMPACT, shots=1)
    for kind, text in ((TaskKind.DEDUCTION, " 4\n```"), (TaskKind.ABDUCTION, "(4)\nassert True")):
        assert prompts.parse_solve(kind, text, profile=profile) == SolverAnswer(kind=kind, text="4")
    for kind in (TaskKind.DEDUCTION, TaskKind.ABDUCTION):
        found = prompts.parse_propose(kind, "(x):\n    return x\nf(1)\nf(2)\nprint(3)", profile=profile)
        assert found == Proposal(kind=kind, program="def f(x):\n    return x", inputs=("1",))
        assert isinstance(prompts.parse_propose(kind, "(x):\n    return x", profile=profile), FormatError)
    for count, good in ((5, False), (6, True), (7, True)):
        text = " Repeats.\n" + "\n".join(f"f({n})" for n in range(count))
        found = prompts.parse_propose(TaskKind.INDUCTION, text, profile=profile, reference=TASK)
        assert isinstance(found, Proposal) == good


def test_with_shots_a_completion_ends_where_others_go_on() -> None:
    profile = dataclasses.replace(COMPACT, shots=1)
    assert profile.stop[:1] == COMPACT.stop
    assert len(profile.stop) <= 4, "servers take four at most"
    for kind in TaskKind:
        answer = prompts.completion_for_solve(kind, task_of(kind))
        assert not any(stop in answer for stop in prompts.OVERRUNS)


def test_shots_stand_in_for_references_that_a_buffer_does_not_have_yet() -> None:
    profile = dataclasses.replace(COMPACT, shots=4)
    asked = prompts.render_propose(TaskKind.DEDUCTION, [prompts.SHOTS[0], TASK], profile=profile)
    for one in (*prompts.SHOTS, TASK):
        assert asked.count(f"{one.program}\nf({one.input})") == 1


def test_references_are_shown_in_order() -> None:
    for profile in (COMPACT, PAPER):
        text = prompts.render_propose(TaskKind.ABDUCTION, [TASK, prompts.SHOTS[1]], profile=profile)
        assert text.index(TASK.program) < text.index(prompts.SHOTS[1].program)


def test_a_program_may_hold_what_looks_like_a_format() -> None:
    task = dataclasses.replace(TASK, program="def f(x):\n    return '{question}{0}' + \"{}\"", output="'{x}'")
    for profile in (COMPACT, PAPER):
        assert "{question}{0}" in prompts.render_propose(TaskKind.DEDUCTION, [task], profile=profile)
        assert "{question}{0}" in prompts.render_solve(TaskKind.ABDUCTION, task, profile=profile)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TaskKind.DEDUCTION, ""),
        (TaskKind.DEDUCTION, "x"),
        (TaskKind.DEDUCTION, "4 5"),
        (TaskKind.ABDUCTION, "3"),
        (TaskKind.ABDUCTION, "1) or (True)"),
        (TaskKind.ABDUCTION, "x)"),
        (TaskKind.INDUCTION, ""),
        (TaskKind.INDUCTION, "def f(x) return"),
    ],
)
def test_a_bad_answer_is_a_format_error(kind: TaskKind, text: str) -> None:
    assert isinstance(prompts.parse_solve(kind, text), FormatError)


@pytest.mark.parametrize("text", ["", "f(1)", "def f(x):\n    return x", "def f(x):\n    return x\nf(1", "x\ny"])
def test_a_bad_proposal_is_a_format_error(text: str) -> None:
    assert isinstance(prompts.parse_propose(TaskKind.DEDUCTION, text), FormatError)


def test_the_number_of_inputs_counts() -> None:
    for count, good in ((5, False), (6, True), (7, False)):
        text = "\n".join(f"f({n})" for n in range(count))
        assert isinstance(prompts.parse_propose(TaskKind.INDUCTION, text, reference=TASK), Proposal) == good


THINKING = "It adds.</think>\n<answer>"


def test_the_papers_answers_are_read() -> None:
    parse = prompts.parse_solve
    assert parse(TaskKind.DEDUCTION, f"{THINKING}```output\n4\n```", profile=PAPER) == SolverAnswer(
        kind=TaskKind.DEDUCTION, text="4"
    )
    assert parse(TaskKind.DEDUCTION, f"<think>{THINKING}```output\n4\n```</answer>", profile=PAPER) == SolverAnswer(
        kind=TaskKind.DEDUCTION, text="4"
    )
    assert parse(TaskKind.ABDUCTION, f"{THINKING}so:\n```input\n[1], 'a'\n```\n", profile=PAPER) == SolverAnswer(
        kind=TaskKind.ABDUCTION, text="[1], 'a'"
    )
    program = "import math\n\ndef f(x):\n    return x"
    assert parse(TaskKind.INDUCTION, f"{THINKING}```python\n{program}\n```", profile=PAPER) == SolverAnswer(
        kind=TaskKind.INDUCTION, text=program
    )


@pytest.mark.parametrize(
    "text",
    [
        "```output\n4\n```",
        "hm<answer>```output\n4\n```",
        f"{THINKING}4",
        f"{THINKING}```input\n4\n```",
        f"{THINKING}```output\n4",
        f"{THINKING}```output\n4\n```</answer> and more",
        f"{THINKING}<answer>```output\n4\n```",
    ],
)
def test_the_papers_form_is_asked_for_strictly(text: str) -> None:
    assert isinstance(prompts.parse_solve(TaskKind.DEDUCTION, text, profile=PAPER), FormatError)


def test_the_papers_proposals_are_read() -> None:
    text = f"{THINKING}```python\ndef f(x):\n    return x\n```\n```input\n1, 2\n```"
    assert prompts.parse_propose(TaskKind.DEDUCTION, text, profile=PAPER) == Proposal(
        kind=TaskKind.DEDUCTION, program="def f(x):\n    return x", inputs=("1, 2",)
    )
    many = "\n".join(f"```input\n{n}\n```" for n in range(10))
    found = prompts.parse_propose(
        TaskKind.INDUCTION, f"{THINKING}{many}\n```message\nLook at\nthe sum.\n```", profile=PAPER, reference=TASK
    )
    assert isinstance(found, Proposal)
    assert (len(found.inputs), found.message) == (10, "Look at the sum.")


def test_wrong_use_is_refused() -> None:
    for call in (
        lambda: prompts.render_propose(TaskKind.DEDUCTION, []),
        lambda: prompts.render_solve(TaskKind.INDUCTION, TASK),
        lambda: prompts.parse_propose(TaskKind.INDUCTION, "f(1)"),
        lambda: prompts.document(Role.SOLVE, TaskKind.DEDUCTION, TASK, profile=PAPER),
        lambda: dataclasses.replace(COMPACT, shots=99),
        lambda: dataclasses.replace(COMPACT, name="other"),
    ):
        with pytest.raises(SpecError):
            call()
