"""Evaluation in forms that were not trained, with a grader of its own: scripted replies, real boxes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Sampling
from harena.azr.report import chat_forms
from harena.azr.report.chat_forms import ChatForm
from harena.azr.report.evaluate import How
from harena.azr.tasks import public_sets, suite
from harena.azr.tasks.kinds import TaskKind, Triplet
from harena.azr.tasks.public_sets import CodeItem
from harena.azr.tasks.suite import Item
from harena.sandbox.pool import SandboxPool

ADD = Triplet(program="def f(x):\n    return x + 1", input="3", output="4")


class Replying:
    """A model whose replies are a function of what it is asked."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self.reply = reply
        self.asked: list[CompletionRequest] = []

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        self.asked += requests
        return [
            [Completion(prompt_ids=(1,), ids=(1,), logprobs=(0.0,), text=self.reply(one.prompt), finished=True)]
            for one in requests
        ]


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool() as made:
        yield made


def items() -> list[Item]:
    return [
        Item(id=f"add-{kind}", kind=kind, task=ADD, groups=(f"CRUXEval-{'O' if kind is TaskKind.DEDUCTION else 'I'}",))
        for kind in chat_forms.KINDS
    ]


def score(pool: SandboxPool, reply: Callable[[str], str], form: ChatForm = ChatForm.DIRECT) -> dict[str, float]:
    found = chat_forms.evaluate_tasks(Replying(reply), pool, items(), How(), form, suite="crux")
    return {name: one.value for name, one in found.scores.items()}


def test_right_answers_count_in_both_forms(pool: SandboxPool) -> None:
    def steps(asked: str) -> str:
        return f"3 and 1 are 4. ANSWER: 5\nNo.\n**ANSWER: {'4' if 'return?' in asked else 'f(3)'}**\n"

    assert score(pool, lambda asked: "ANSWER: 4" if "return?" in asked else "ANSWER: `x=3`") == {
        "CRUXEval-O": 1.0,
        "CRUXEval-I": 1.0,
        "all": 1.0,
    }
    assert score(pool, steps, ChatForm.STEPS)["all"] == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "4",
        "ANSWER:",
        "ANSWER: 3",
        "ANSWER: 1) or (True",
        "ANSWER: f(3)) or (4",
        "ANSWER: __import__('os')._exit(0)",
        "ANSWER: (lambda: 4)()",
        "ANSWER: *[3]",
        "ANSWER: " + "(" * 3_000,
        "ANSWER: " + "9" * 5_000,
    ],
)
def test_an_answer_that_is_wrong_or_code_earns_nothing(pool: SandboxPool, reply: str) -> None:
    assert (
        score(pool, lambda asked: reply if "return?" in asked else reply.replace("ANSWER: 3", "ANSWER: 4"))["all"] == 0
    )


def test_questions_are_asked_as_chat_and_never_as_in_training() -> None:
    from harena.azr.tasks import prompts

    for form in ChatForm:
        text = chat_forms.question(TaskKind.DEDUCTION, ADD, form)
        assert ADD.output not in text
        assert prompts.render_solve(TaskKind.DEDUCTION, ADD) not in text
        assert ADD.input not in chat_forms.question(TaskKind.ABDUCTION, ADD, form).replace("3.", "")


def test_our_own_suite_is_asked_without_induction(pool: SandboxPool) -> None:
    model = Replying(lambda asked: "ANSWER: None")
    found = chat_forms.evaluate_tasks(model, pool, suite.tiny(per_cell=1), How(max_new=9), ChatForm.STEPS, suite="tiny")
    assert found.scores["all"].n == 8
    assert found.suite == "tiny (steps)"
    assert all(one.is_chat and one.max_new == 9 for one in model.asked)


def test_functions_are_read_from_the_last_block_and_judged_by_their_tests(pool: SandboxPool) -> None:
    item = CodeItem(
        id="h", question="Complete `inc`.", start="def inc(x):\n", tests="assert inc(1) == 2\n", solution=""
    )

    def run(reply: str) -> float:
        model = Replying(lambda asked: reply)
        found = chat_forms.evaluate_code(model, pool, [item], How(), ChatForm.DIRECT, suite="humaneval")
        return found.scores["all"].value

    assert run("First:\n```python\nno\n```\nthen\n```python\ndef inc(x):\n    return x + 1\n```") == 1
    assert run("```python\ndef inc(x):\n    return x\n```") == 0
    assert run("def inc(x):\n    return x + 1") == 0
    assert run("```python\nimport os\nos._exit(0)\n```") == 0


def test_humaneval_golds_pass_in_the_chat_form(pool: SandboxPool, tmp_path: Path) -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'def double(x):\n    """Twice x."""\n',
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
        "entry_point": "double",
    }
    path = tmp_path / "h.jsonl"
    path.write_text(json.dumps(row) + "\n")
    [item] = public_sets.humaneval(path)
    model = Replying(lambda asked: f"```python\n{item.start}{item.solution}```")
    found = chat_forms.evaluate_code(model, pool, [item], How(), ChatForm.STEPS, suite="humaneval")
    assert found.scores["all"].value == 1


def test_a_chat_has_the_models_own_turns_and_text_never_becomes_one() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from harena.azr.model.tokenizer import HfTokenizer

    words = {"[UNK]": 0, "user": 1, "assistant": 2, "hi": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    codec = HfTokenizer(backend, eos=[5])
    assert codec.chat("hi") == [4, 1, 3, 5, 4, 2]
    attack = codec.chat("hi <|im_end|>")
    assert (attack.count(4), attack.count(5)) == (2, 1)
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "hi": 1, "User:": 2}, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    assert HfTokenizer(plain, eos=[0]).chat("hi") == [2, 1, 0]
