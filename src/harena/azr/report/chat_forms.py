"""Evaluation in forms that training never uses: a question in words, answered at once or step by step.

Guarantees: apart from the trainer's way of asking and grading. Prompts are not those of tasks/prompts.py, replies are
not read by its parsers, and an answer is judged by an `assert` that Python runs in a box with nothing of the
verifier's. An answer goes into that assert only as a literal, so that code in an answer earns nothing. `==` decides, so
that 1, True and 1.0 are equal here, as in CRUXEval's own grading and unlike in training.

Asks for outputs and inputs (deduction and abduction), and for functions (HumanEval, MBPP). Induction has no such form.
"""

from __future__ import annotations

import ast
import enum
import re
import time
from collections.abc import Sequence

from harena.azr.engines.protocol import Completion, CompletionRequest, Generator
from harena.azr.report import evaluate
from harena.azr.report.evaluate import How, Judged, ModelEvaluation, Progress
from harena.azr.tasks.kinds import TaskKind, Triplet
from harena.azr.tasks.public_sets import CodeItem
from harena.azr.tasks.suite import Item
from harena.sandbox.pool import SandboxPool

MAX_ANSWER_CHARS = 4_000
ANSWER = "ANSWER:"
KINDS = (TaskKind.DEDUCTION, TaskKind.ABDUCTION)


class ChatForm(enum.StrEnum):
    DIRECT = "chat"
    """Reply with the answer alone."""
    STEPS = "steps"
    """Think step by step, then give the answer."""


USUAL_TOKENS = {ChatForm.DIRECT: 64, ChatForm.STEPS: 400}

_ENDINGS = {
    ChatForm.DIRECT: f"Reply with one line and nothing else: {ANSWER} followed by {{what}}.",
    ChatForm.STEPS: f"Think step by step. End with one line: {ANSWER} followed by {{what}}.",
}
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def question(kind: TaskKind, task: Triplet, form: ChatForm) -> str:
    if kind is TaskKind.DEDUCTION:
        asked = f"What does `f({task.input})` return?"
        what = "the returned value as a Python literal"
    else:
        asked = f"Find arguments for which `f` returns `{task.output}`. Any that do are right."
        what = "the arguments, separated by commas, as Python literals"
    return f"Here is a Python function.\n\n```python\n{task.program}\n```\n\n{asked} {_ENDINGS[form].format(what=what)}"


def code_question(item: CodeItem, form: ChatForm) -> str:
    start = f"\n\n```python\n{item.start}\n```" if item.start else ""
    first = "Think step by step, then reply" if form is ChatForm.STEPS else "Reply"
    return f"{item.question}{start}\n\n{first} with one ```python block that holds the whole function."


def answer_in(reply: str) -> str | None:
    """What follows the last ANSWER: of a reply; None where there is none."""
    _, found, rest = reply.rpartition(ANSWER)
    line = rest.strip().splitlines()[0].strip().strip("*").strip() if found and rest.strip() else ""
    if len(line) > 1 and line.startswith("`") and line.endswith("`"):
        line = line.strip("`").strip()
    return line if line and len(line) <= MAX_ANSWER_CHARS else None


def program_in(reply: str) -> str | None:
    """The last fenced block of a reply."""
    blocks = _FENCE.findall(reply)
    return blocks[-1] if blocks and len(blocks[-1]) <= evaluate.MAX_CODE_CHARS else None


def asserted(kind: TaskKind, task: Triplet, answer: str) -> str | None:
    """The assertion that judges an answer, made of literals alone; None of what is no literal."""
    try:
        if kind is TaskKind.DEDUCTION:
            tree = ast.parse(answer, mode="eval")
            ast.literal_eval(tree)
            return f"assert f({task.input}) == ({ast.unparse(tree)})\n"
        text = answer[2:-1] if answer.startswith("f(") and answer.endswith(")") else answer
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "f":
            return None
        for value in (*call.args, *(word.value for word in call.keywords)):
            ast.literal_eval(value)
        return f"assert {ast.unparse(call)} == ({task.output})\n"
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def evaluate_tasks(
    generator: Generator,
    pool: SandboxPool,
    items: Sequence[Item],
    how: How,
    form: ChatForm,
    *,
    suite: str,
    progress: Progress | None = None,
) -> ModelEvaluation:
    """Deduction and abduction items of a suite; others are left out."""
    started = time.perf_counter()
    pairs = [(item, item.task) for item in items if item.kind in KINDS and isinstance(item.task, Triplet)]
    kept = [item for item, _ in pairs]
    groups = _asked(generator, [question(item.kind, task, form) for item, task in pairs], how, progress)
    judged = [[Judged(right=False, verdict=evaluate.FORMAT) for _ in group] for group in groups]
    places: list[tuple[int, int]] = []
    checks: list[CodeItem] = []
    for n, ((item, task), group) in enumerate(zip(pairs, groups, strict=True)):
        for m, completion in enumerate(group):
            answer = answer_in(completion.text)
            test = None if answer is None else asserted(item.kind, task, answer)
            if test is not None:
                places.append((n, m))
                checks.append(CodeItem(id=item.id, question="", start=f"{task.program}\n", tests=test, solution=""))
    for (n, m), [one] in zip(
        places, evaluate.grade_code(pool, checks, [[""]] * len(checks), continued=True), strict=True
    ):
        judged[n][m] = one
    labels = [(str(item.kind), *item.groups) for item in kept]
    return evaluate.summary(f"{suite} ({form})", [item.id for item in kept], labels, judged, how, started)


def evaluate_code(
    generator: Generator,
    pool: SandboxPool,
    items: Sequence[CodeItem],
    how: How,
    form: ChatForm,
    *,
    suite: str,
    progress: Progress | None = None,
) -> ModelEvaluation:
    started = time.perf_counter()
    groups = _asked(generator, [code_question(item, form) for item in items], how, progress)
    answers = [[program_in(one.text) for one in group] for group in groups]
    judged = evaluate.grade_code(pool, items, answers, continued=False)
    return evaluate.summary(f"{suite} ({form})", [item.id for item in items], [()] * len(items), judged, how, started)


def _asked(
    generator: Generator, questions: Sequence[str], how: How, progress: Progress | None
) -> list[list[Completion]]:
    done = 0

    def count(index: int, completions: list[Completion]) -> None:
        nonlocal done
        del index, completions
        done += 1
        if progress is not None:
            progress(done, len(questions))

    requests = [CompletionRequest(prompt=text, n=how.samples, max_new=how.max_new, is_chat=True) for text in questions]
    return generator.generate(requests, how.sampling(()), count)
