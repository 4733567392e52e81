"""The checks of self-play as a reward function, for people with their own trainer.

    rewards = TaskReward()                                   # starts boxes; close() ends them
    GRPOTrainer(reward_funcs=[rewards], train_dataset=load_dataset("json", data_files="tasks.jsonl"), …)

`harena azr export` writes such a data set: `prompt`, `kind` and `task`, the task's record as JSON text. The signature
is TRL's (prompts, completions, and a keyword for each column); nothing of TRL is imported. A completion is parsed as
data and graded in boxes, as in self-play: 1 if right, −0.5 if wrong, −1 if not in the form that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from harena.azr.check import rewards
from harena.azr.check.verify import Attempt, TaskVerifier, VerifierSettings
from harena.azr.tasks import prompts
from harena.azr.tasks.kinds import SolverAnswer, Task, TaskKind, task_from_record
from harena.azr.tasks.prompts import PromptProfile
from harena.errors import SpecError

MAX_COMPLETION_CHARS = 100_000


class TaskReward:
    __name__ = "harena_task_reward"
    """What TRL calls it in its logs."""

    def __init__(self, *, profile: PromptProfile = prompts.COMPACT, settings: VerifierSettings | None = None) -> None:
        """`profile`: the form that the prompts were written in."""
        self._profile = profile
        self._verifier = TaskVerifier(settings or VerifierSettings())

    def __call__(
        self, *, completions: Sequence[object], kind: Sequence[str], task: Sequence[str], **columns: object
    ) -> list[float]:
        """One reward for each completion: its text, or a list of chat messages of which the last one counts."""
        del columns
        if not len(completions) == len(kind) == len(task):
            raise SpecError(f"{len(completions)} completions, {len(kind)} kinds and {len(task)} tasks: one of each")
        answers = [
            prompts.parse_solve(TaskKind(of), self._ended(_text(one)), profile=self._profile)
            for one, of in zip(completions, kind, strict=True)
        ]
        good = [(n, answer) for n, answer in enumerate(answers) if isinstance(answer, SolverAnswer)]
        grades = self._verifier.grade([Attempt(task=_task(task[n]), answer=answer) for n, answer in good])
        right = {n: grade.right for (n, _), grade in zip(good, grades, strict=True)}
        return [
            rewards.solve_reward(well_formed=isinstance(answer, SolverAnswer), right=right.get(n, False))
            for n, answer in enumerate(answers)
        ]

    def _ended(self, text: str) -> str:
        """Without what follows the first stop string, which trainers leave in."""
        for stop in self._profile.stop:
            text = text.partition(stop)[0]
        return text[:MAX_COMPLETION_CHARS]

    def close(self) -> None:
        self._verifier.close()

    def __enter__(self) -> TaskReward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _text(completion: object) -> str:
    if isinstance(completion, str):
        return completion
    messages = cast("list[object]", completion) if isinstance(completion, list) else []
    if messages and isinstance(messages[-1], dict):
        content = cast("dict[str, object]", messages[-1]).get("content")
        if isinstance(content, str):
            return content
    raise SpecError("a completion is a text or a list of chat messages")


def _task(record: str) -> Task:
    try:
        return task_from_record(json.loads(record))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"task: not the record of a task, as `harena azr export` writes it: {error}") from None
