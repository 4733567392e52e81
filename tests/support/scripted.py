"""An engine without a model, for tests: it proposes from a list and knows the answers to what is on it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Rollout, Sampling, Update
from harena.azr.tasks import prompts
from harena.azr.tasks.kinds import InductionTask, Role, TaskKind, Triplet

TASKS = tuple(
    Triplet(program=program, input=given, output=output)
    for program, given, output in (
        ("def f(x):\n    return x + 1", "3", "4"),
        ("def f(x):\n    return x * 2", "5", "10"),
        ("def f(s):\n    return s[::-1]", "'abc'", "'cba'"),
        ("def f(l):\n    return sorted(l)", "[3, 1, 2]", "[1, 2, 3]"),
        ("def f(a, b):\n    return a - b", "9, 4", "5"),
        ("def f(s):\n    return len(s)", "'four'", "4"),
        ("def f(n):\n    return [i * i for i in range(n)]", "3", "[0, 1, 4]"),
        ("def f(x):\n    return {'v': x}", "1", "{'v': 1}"),
    )
)
BAD = (
    "def f(x):\n    return 1 / 0\nf(1)",
    "def f(x):\n    return id(x)\nf(object)",
    "import os\ndef f(x):\n    return x\nf(1)",
    "no program at all",
    "def f(x):\n    return list({'a', 'b', 'c', 'd', x})\nf('e')",
)


class ScriptedEngine:
    """Generator and Learner. What it has learnt is one number, which moves how often it is right."""

    def __init__(self, *, right: float = 0.5, bad: float = 0.2, values: bool = False) -> None:
        self.right, self.bad, self.values = right, bad, values
        self.weight = 0.0
        self.steps = 0
        self.calls: list[list[CompletionRequest]] = []
        self.rollouts: list[Rollout] = []
        self._answers = _answers()

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        assert not sampling.greedy
        self.calls.append(list(requests))
        rng = random.Random(sampling.seed)
        found: list[list[Completion]] = []
        for index, request in enumerate(requests):
            found.append([self._complete(request, rng) for _ in range(request.n)])
            if on_done is not None:
                on_done(index, found[-1])
        return found

    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        self.rollouts = list(rollouts)
        self.steps += 1
        self.weight += 0.01 * sum(rollout.reward for rollout in rollouts) / len(rollouts)
        return {"loss": -self.weight}

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight, "steps": self.steps}

    def load(self, state: Mapping[str, Any]) -> None:
        self.weight, self.steps = state["weight"], state["steps"]

    def _complete(self, request: CompletionRequest, rng: random.Random) -> Completion:
        text = (
            self._propose(request.prompt, rng) if request.prompt.startswith("# propose") else self._solve(request, rng)
        )
        data = (text + prompts.END).encode()
        return Completion(
            prompt_ids=tuple(request.prompt.encode()),
            ids=tuple(data[: request.max_new]),
            logprobs=(-0.5,) * min(len(data), request.max_new),
            text=text,
            finished=len(data) <= request.max_new,
            entropy=0.5,
            values=(0.25,) * min(len(data), request.max_new) if self.values else (),
        )

    def _propose(self, prompt: str, rng: random.Random) -> str:
        if rng.random() < self.bad:
            return rng.choice(BAD)
        if not prompt.startswith("# propose induction"):
            task = rng.choice(TASKS)
            extra = rng.randrange(4)
            program = task.program.replace("return", f"y = {extra}\n    return")
            return f"{program}\nf({task.input})"
        texts = ["1", "2", "3", "4", "5", "6"] if "f(s)" not in prompt else [repr("ab" * n) for n in range(6)]
        return "\n".join(["# what it does", *(f"f({text})" for text in texts)])

    def _solve(self, request: CompletionRequest, rng: random.Random) -> str:
        answer = next(
            (text for prompt, text in self._answers.items() if prompt in _without_extra(request.prompt)), "None"
        )
        if rng.random() < min(0.95, max(0.05, self.right + self.weight)):
            return answer
        return rng.choice(["None", "0)", "(", "def f(x):\n    return None"])


def _without_extra(prompt: str) -> str:
    return "\n".join(line for line in prompt.split("\n") if not line.startswith("    y = "))


def _answers() -> dict[str, str]:
    found: dict[str, str] = {}
    for task in TASKS:
        for kind in (TaskKind.DEDUCTION, TaskKind.ABDUCTION):
            prompt, completion = prompts.document(Role.SOLVE, kind, task)
            found[prompt] = completion.removesuffix(prompts.END)
    one = InductionTask(program="def f(x):\n    return x + 1", message="", pairs=(("1", "2"), ("2", "3")))
    found[prompts.render_solve(TaskKind.INDUCTION, one)] = one.program
    return found
