"""How well a model answers tasks that training never sees. Guarantees: answers are parsed here and run only in boxes;
every number has its interval and its count; the same model, tasks and seed give the same numbers.

Two forms of suites: tasks of the three kinds (our own and CRUXEval), graded by the verifier that also grades self-play,
and functions to write (HumanEval, MBPP), judged by the assertions of the set. Those assertions run in the same process
as the answer, as everywhere: a box protects the host from the answer, and a word that the answer cannot know tells an
end of the tests from an early exit, but an answer that sets out to deceive the assertions can. Verified tasks have no
such gap: what is expected never enters a box.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harena.azr.check.verify import Attempt, TaskVerifier
from harena.azr.engines.protocol import Completion, CompletionRequest, Generator, Sampling
from harena.azr.report import scores
from harena.azr.report.scores import Score
from harena.azr.tasks import prompts
from harena.azr.tasks.forms import PAPER_SYSTEM
from harena.azr.tasks.kinds import FormatError, SolverAnswer, Task, TaskKind
from harena.azr.tasks.prompts import PromptProfile
from harena.azr.tasks.public_sets import CodeItem
from harena.azr.tasks.suite import Item
from harena.azr.tasks.task_kinds import TASK_KINDS
from harena.errors import SpecError
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Limits

FORMAT = "format"
"""The verdict on an answer that was not in the form asked for; nothing of it was run."""
CODE_STOP = ("\ndef ", "\nclass ", "\nif ", "\nprint(", "\nassert ", "\n#", '\n"""', "\n```")
"""Where a continued function ends, for a model that goes on."""
CODE_LIMITS = Limits(wall_s=10.0, memory_mb=512, processes=16, output_bytes=1 << 20)
MAX_CODE_CHARS = 40_000
BY_OPERATIONS = " by operations"
"""What the journal calls the scores of a suite by grade, after the suite's name."""

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a model is asked."""

    profile: PromptProfile = prompts.COMPACT
    max_new: int = 96
    """Tokens of an answer."""
    samples: int = 1
    """Answers to each task. One is greedy, unless `greedy` says otherwise."""
    k: int = 1
    """pass@k is reported; needs at least k samples."""
    greedy: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.samples:
            raise SpecError(f"pass@{self.k} needs at least {self.k} samples of each task, not {self.samples}")
        if self.samples > 1 and self.greedy:
            raise SpecError("several samples of a task are drawn, not greedy: set greedy=False")
        if self.max_new < 1:
            raise SpecError(f"max_new={self.max_new}: an answer needs tokens")

    def sampling(self, stop: tuple[str, ...]) -> Sampling:
        return Sampling(seed=self.seed, temperature=self.temperature, top_p=self.top_p, greedy=self.greedy, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluation:
    suite: str
    scores: dict[str, Score]
    """Scores by kind or set, by grade, and of `all`."""
    k: int
    samples: int
    verdicts: dict[str, int]
    """Number of answers by verdict: ok, wrong, format, and what the executor said."""
    seconds: float
    right: dict[str, int] = field(default_factory=dict[str, int])
    """Number of right answers by task."""

    def as_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "k": self.k,
            "samples": self.samples,
            "seconds": self.seconds,
            "scores": {name: score.as_json() for name, score in self.scores.items()},
            "verdicts": self.verdicts,
            "right": self.right,
        }


def from_record(record: Mapping[str, Any]) -> ModelEvaluation | None:
    """Return the evaluation that a journal's record `eval` holds, without verdicts; None where anything is missing."""
    try:
        suites = dict(record["suites"])
        name = next(suite for suite in suites if not suite.endswith(BY_OPERATIONS))
        both = {**suites[name], **suites.get(name + BY_OPERATIONS, {})}
        return ModelEvaluation(
            suite=name,
            scores={str(label): Score.from_json(one) for label, one in both.items()},
            k=1,
            samples=1,
            verdicts={},
            seconds=float(record["seconds"]),
            right={str(task): 1 for task in record["right"]},
        )
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):  # files are not believed
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of one answer."""

    right: bool
    verdict: str


# ---- tasks of the three kinds ----


def evaluate(
    generator: Generator,
    verifier: TaskVerifier,
    items: Sequence[Item],
    how: How,
    *,
    suite: str = "tiny",
    progress: Progress | None = None,
) -> ModelEvaluation:
    started = time.perf_counter()
    asked = [prompts.render_solve(item.kind, item.task, profile=how.profile) for item in items]
    groups = _generate(generator, asked, how, how.profile.stop, progress)
    judged = grade(verifier, items, groups, how.profile)
    labels = [(str(item.kind), *item.groups) for item in items]
    return summary(suite, [item.id for item in items], labels, judged, how, started)


def grade(
    verifier: TaskVerifier, items: Sequence[Item], groups: Sequence[Sequence[Completion]], profile: PromptProfile
) -> list[list[Judged]]:
    """All answers to all items in one batch."""
    attempts: list[Attempt] = []
    places: list[tuple[int, int]] = []
    judged = [[Judged(right=False, verdict=FORMAT) for _ in group] for group in groups]
    for index, (item, group) in enumerate(zip(items, groups, strict=True)):
        for number, completion in enumerate(group):
            answer = prompts.parse_solve(item.kind, completion.text, profile=profile)
            # As in self-play, what was cut short by the limit on tokens is no answer.
            if completion.finished and not isinstance(answer, FormatError):
                attempts.append(Attempt(task=item.task, answer=answer))
                places.append((index, number))
    for (index, number), one in zip(places, verifier.grade(attempts), strict=True):
        judged[index][number] = Judged(right=one.right, verdict=str(one.verdict))
    return judged


def gold(kind: TaskKind, task: Task) -> SolverAnswer:
    """The answer that the task itself knows."""
    return SolverAnswer(kind=kind, text=TASK_KINDS[kind].gold(task))


def failing_golds(verifier: TaskVerifier, items: Sequence[Item]) -> dict[str, str]:
    """Tasks whose own answer is not accepted, with the verdict: a suite should have none."""
    attempts = [Attempt(task=item.task, answer=gold(item.kind, item.task)) for item in items]
    grades = verifier.grade(attempts)
    return {item.id: str(one.verdict) for item, one in zip(items, grades, strict=True) if not one.right}


# ---- functions to write ----


def evaluate_code(
    generator: Generator,
    pool: SandboxPool,
    items: Sequence[CodeItem],
    how: How,
    *,
    suite: str,
    progress: Progress | None = None,
) -> ModelEvaluation:
    started = time.perf_counter()
    stop = CODE_STOP if how.profile.name == "compact" else how.profile.stop
    groups = _generate(generator, [_code_prompt(item, how.profile) for item in items], how, stop, progress)
    answers = [[_code_answer(one.text, how.profile) for one in group] for group in groups]
    judged = grade_code(pool, items, answers, continued=how.profile.name == "compact")
    return summary(suite, [item.id for item in items], [()] * len(items), judged, how, started)


def grade_code(
    pool: SandboxPool, items: Sequence[CodeItem], answers: Sequence[Sequence[str | None]], *, continued: bool
) -> list[list[Judged]]:
    """`continued`: an answer goes on where `start` ends; else it is a whole program. None is a format error."""
    word = secrets.token_hex(16)
    places = [(i, j) for i, group in enumerate(answers) for j, answer in enumerate(group) if answer is not None]
    sources = [_source(items[i], answers[i][j] or "", word, continued=continued) for i, j in places]
    judged = [[Judged(right=False, verdict=FORMAT) for _ in group] for group in answers]
    for (i, j), result in zip(places, pool.map(sources, limits=CODE_LIMITS), strict=True):
        ended = result.stdout.rstrip().endswith(word.encode())
        verdict = "ok" if result.ok and ended else "early exit" if result.ok else result.verdict.value
        judged[i][j] = Judged(right=verdict == "ok", verdict=verdict)
    return judged


def failing_code_golds(pool: SandboxPool, items: Sequence[CodeItem]) -> dict[str, str]:
    judged = grade_code(pool, items, [[item.solution] for item in items], continued=True)
    return {item.id: one.verdict for item, [one] in zip(items, judged, strict=True) if not one.right}


def _source(item: CodeItem, answer: str, word: str, *, continued: bool) -> str:
    # A whole program comes after the start, completed to nothing, for the imports and helpers that the start has.
    start = item.start if continued or not item.start else f"{item.start.rstrip()}\n    pass\n\n"
    return f"{start}{answer}\n\n{item.tests}\nprint({word!r})\n"


def _code_prompt(item: CodeItem, profile: PromptProfile) -> str:
    if profile.name == "compact":
        return item.start or f'"""\n{item.question}\n"""\n'
    start = f"\n\n```python\n{item.start}\n```" if item.start else ""
    question = f"{item.question}{start}\n\nWrite the answer as one ```python block with the whole function."
    return PAPER_SYSTEM.format(question=question)


def _code_answer(text: str, profile: PromptProfile) -> str | None:
    if profile.name == "compact":
        return text if text.strip() and len(text) <= MAX_CODE_CHARS else None
    answer = prompts.parse_solve(TaskKind.INDUCTION, text, profile=profile)
    return None if isinstance(answer, FormatError) else answer.text


# ---- both ----


def _generate(
    generator: Generator, asked: Sequence[str], how: How, stop: tuple[str, ...], progress: Progress | None
) -> list[list[Completion]]:
    done = 0

    def count(index: int, completions: list[Completion]) -> None:
        nonlocal done
        del index, completions
        done += 1
        if progress is not None:
            progress(done, len(asked))

    requests = [CompletionRequest(prompt=prompt, n=how.samples, max_new=how.max_new) for prompt in asked]
    return generator.generate(requests, how.sampling(stop), count)


def summary(
    suite: str,
    ids: Sequence[str],
    labels: Sequence[Sequence[str]],
    judged: Sequence[Sequence[Judged]],
    how: How,
    started: float,
) -> ModelEvaluation:
    right = [sum(one.right for one in group) for group in judged]
    by_label: dict[str, list[int]] = {}
    for names, count in zip(labels, right, strict=True):
        for name in dict.fromkeys(names):
            by_label.setdefault(name, []).append(count)
    by_label["all"] = right
    # A name that covers the same tasks as one before it, such as CRUXEval-O and deduction, replaces it.
    places = {name: tuple(n for n, names in enumerate(labels) if name in names) for name in by_label if name != "all"}
    covered = {tasks: name for name, tasks in places.items()}
    by_label = {name: counts for name, counts in by_label.items() if name == "all" or covered[places[name]] == name}
    return ModelEvaluation(
        suite=suite,
        scores={
            name: scores.score(counts, samples=how.samples, k=how.k, seed=how.seed) for name, counts in by_label.items()
        },
        k=how.k,
        samples=how.samples,
        verdicts=dict(Counter(one.verdict for group in judged for one in group).most_common()),
        seconds=time.perf_counter() - started,
        right=dict(zip(ids, right, strict=True)),
    )
