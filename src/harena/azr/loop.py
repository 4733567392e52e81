"""Absolute Zero's self-play, top to bottom. One model proposes tasks, the verifier keeps those that are tasks, the
model solves them, and one update learns from both.

    seed     propose from the identity function until the buffers hold enough; nothing is learnt
    repeat   propose   for each kind a batch, shown K tasks of the buffer             one engine call
             validate  in boxes, while others are still being written; programs that are held out for
                       evaluation are no tasks (verify.py)
             solve     each valid task n times, to see how hard it is, and once       one engine call
                       more to learn from; short batches are filled from the buffer
             grade     in boxes, likewise
             reward    what a task teaches; what an answer is worth
             update    advantages by role and kind, one learner step

Promises: the same configuration, seed and engine give the same run (a program near its time limit aside); rollouts are
sampled, never greedy; tasks are solved in the iteration that proposed them. Does not measure progress: a solve rate in
self-play says what the proposer made of it. Held-out sets do (evaluate.py). Does not write files: its caller does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from harena.azr.check import rewards
from harena.azr.check.verify import Attempt, Grade, TaskValidation, TaskVerdict, TaskVerifier
from harena.azr.config import Algorithm, Baseline, TrainConfig
from harena.azr.engines.protocol import (
    Bounded,
    Completion,
    CompletionRequest,
    Engine,
    OnDone,
    Rollout,
    Sampling,
    Update,
)
from harena.azr.learn import advantages, metrics
from harena.azr.tasks import buffer, prompts
from harena.azr.tasks.buffer import Buffers
from harena.azr.tasks.kinds import FormatError, Proposal, Role, SolverAnswer, Task, TaskKind, Triplet
from harena.azr.tasks.task_kinds import kinds_of
from harena.errors import SpecError

CHUNK = 64
"""Completions that go to the verifier together while others are being written."""

LAST_RATE = 0.02
"""The share of the learning rate that annealing ends with."""
PHASES = ("seed", "propose", "solve")
CUT_SHORT = FormatError(reason="cut short by the limit on tokens")
Key = TypeVar("Key")
Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(slots=True, kw_only=True)
class Proposed:
    """One completion of a proposer, and what became of it."""

    kind: TaskKind
    references: list[Triplet]
    completion: Completion
    parsed: Proposal | FormatError
    validation: TaskValidation | None = None
    seen_before: bool = False
    share: float | None = None
    """Share of its sampled solves that were right; None when it was not measured."""
    reward: float = 0.0

    @property
    def role(self) -> Role:
        return Role.PROPOSE

    @property
    def task(self) -> Task | None:
        return self.validation.task if self.validation is not None else None


SeedProgress = Callable[[int, Mapping[TaskKind, int], Sequence[Proposed]], None]
"""Told after each round of seeding: its number, tasks by kind so far, what was proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A task to solve: once to learn from, and `samples` times to measure the proposal it comes from."""

    kind: TaskKind
    task: Task
    samples: int = 0
    origin: Proposed | None = None


@dataclass(slots=True, kw_only=True)
class Solved:
    """One completion of a solver."""

    question: Question
    place: int
    """Which of the iteration's questions it answers."""
    sample: int
    """0 is the one to learn from; the others measure."""
    completion: Completion
    parsed: SolverAnswer | FormatError
    grade: Grade | None = None
    reward: float = 0.0

    @property
    def role(self) -> Role:
        return Role.SOLVE

    @property
    def kind(self) -> TaskKind:
        return self.question.kind

    @property
    def right(self) -> bool:
        return self.grade is not None and self.grade.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    number: int
    metrics: dict[str, Any]
    """Nested numbers, for the journal."""
    proposed: list[Proposed]
    solved: list[Solved]


@dataclass(slots=True)
class PhaseClock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


class Trainer:
    def __init__(self, engine: Engine, verifier: TaskVerifier, config: TrainConfig) -> None:
        self.config = config
        self.form = config.prompt.form()
        self.buffers = Buffers(capacity=config.buffer.capacity)
        self.number = 0
        self.rng = np.random.default_rng(np.random.SeedSequence(config.seed))
        self.baselines: dict[str, float] = {}
        self._engine = engine
        self._fits = engine.fits if isinstance(engine, Bounded) else _always
        self._verifier = verifier
        self.buffers.start(inputs=self.form.inputs, rng=self.rng)

    # ---- the algorithm ----

    def seed(self, progress: SeedProgress | None = None) -> int:
        """Proposes without learning until each buffer holds batch x seed_factor tasks; how many rounds that took."""
        wanted = self.config.batch * self.config.seed_factor
        for number in range(self.config.seed_rounds):
            short = [kind for kind in self.config.kinds if len(self.buffers[kind]) < wanted]
            if not short:
                return number
            proposed = self._propose(short, PhaseClock(), self._sampling("seed", number))
            for task in (one.task for one in proposed if one.task is not None):
                # What makes a program good for one direction makes it good for the other.
                for kind in kinds_of(task):
                    if len(self.buffers[kind]) < wanted:
                        self.buffers[kind].add(task, step=0, rng=self.rng)
            if progress is not None:
                progress(number + 1, {kind: len(self.buffers[kind]) for kind in self.config.kinds}, proposed)
        return self.config.seed_rounds

    def iterate(self) -> Iteration:
        """One iteration of Algorithm 1."""
        self.number += 1
        clock = PhaseClock()
        proposed = self._propose(self.config.kinds, clock, self._sampling("propose", self.number))
        self._admit(proposed)
        solved = self._solve(self._questions(proposed), clock)
        self._reward(proposed, solved)
        self._remember(proposed)
        rollouts = self._rollouts(proposed, solved)
        clock.lap("reward")
        learnt = self._engine.step(rollouts, self._update()) if rollouts else {}
        clock.lap("update")
        measured = metrics.measure(proposed, solved, rollouts, self.buffers, seed=self.config.seed + self.number)
        clock.lap("measure")
        times = clock.seconds | {"total": sum(clock.seconds.values())}
        numbers = {**measured, "update": dict(learnt), "time": times}
        return Iteration(number=self.number, metrics=numbers, proposed=proposed, solved=solved)

    def _propose(self, kinds: Sequence[TaskKind], clock: PhaseClock, sampling: Sampling) -> list[Proposed]:
        """A batch of each kind in one engine call; validated while the rest is being written."""
        asked = [(kind, self._references(kind)) for kind in kinds for _ in range(self.config.batch)]
        requests = [
            CompletionRequest(
                prompt=prompts.render_propose(kind, references, profile=self.form),
                max_new=self.config.prompt.propose_tokens,
            )
            for kind, references in asked
        ]
        checks = _Overlapped[int, Proposal, TaskValidation](self._verifier.submit_validate)
        proposed: list[Proposed | None] = [None] * len(asked)

        def on_done(index: int, completions: list[Completion]) -> None:
            kind, references = asked[index]
            parsed = self._read_proposal(kind, completions[0], references)
            proposed[index] = Proposed(kind=kind, references=references, completion=completions[0], parsed=parsed)
            if isinstance(parsed, Proposal):
                checks.put(index, parsed)

        self._generate(requests, sampling, on_done)
        clock.lap("propose")
        result = [one for one in proposed if one is not None]
        for index, validation in checks.results().items():
            result[index].validation = self._askable(validation)
        clock.lap("wait_validate")
        return result

    def _references(self, kind: TaskKind) -> list[Triplet]:
        """Draw as many references as fit into a prompt; one always does, see `_askable`."""
        found = self.buffers.references(kind, self.config.buffer.references, rng=self.rng)
        while len(found) > 1 and not self._fits(prompts.render_propose(kind, found, profile=self.form)):
            found.pop()
        return found

    def _askable(self, validation: TaskValidation) -> TaskValidation:
        """A task that makes a prompt too long, as a question or as the only reference, is none: it would end a run."""
        task = validation.task
        if task is None:
            return validation
        asked = [prompts.render_solve(kind, task, profile=self.form) for kind in kinds_of(task)]
        if isinstance(task, Triplet):
            asked += [prompts.render_propose(kind, [task], profile=self.form) for kind in TaskKind]
        if all(map(self._fits, asked)):
            return validation
        return TaskValidation(verdict=TaskVerdict.SIZE, detail="too long to be asked")

    def _admit(self, proposed: Sequence[Proposed]) -> None:
        """Notes which programs were seen before: in their buffer, or earlier in this batch."""
        fresh: set[tuple[TaskKind, str]] = set()
        for one in proposed:
            if one.task is not None:
                key = (one.kind, buffer.key_of(one.task))
                one.seen_before = key in fresh or self.buffers[one.kind].has_seen(one.task)
                fresh.add(key)

    def _questions(self, proposed: Sequence[Proposed]) -> list[Question]:
        """The valid tasks, and tasks of the buffer until the batch of each kind is full."""
        questions: list[Question] = []
        for kind in self.config.kinds:
            new = [
                Question(kind=kind, task=one.task, samples=self._samples(one), origin=one)
                for one in proposed
                if one.kind is kind and one.task is not None
            ]
            old = self.buffers[kind].fill(self.config.batch - len(new), rng=self.rng)
            questions += new + [Question(kind=kind, task=entry.task) for entry in old]
        return questions

    def _samples(self, one: Proposed) -> int:
        """A repeated program is not measured when the guard has decided already what it earns."""
        return 0 if one.seen_before and self.config.reward.repeat is not None else self.config.rollouts

    def _solve(self, questions: Sequence[Question], clock: PhaseClock) -> list[Solved]:
        """All questions in one engine call; graded while the rest is being written."""
        requests = [
            CompletionRequest(
                prompt=prompts.render_solve(one.kind, one.task, profile=self.form),
                n=1 + one.samples,
                max_new=self.config.prompt.solve_tokens,
            )
            for one in questions
        ]
        checks = _Overlapped[tuple[int, int], Attempt, Grade](self._verifier.submit_grade)
        solved: dict[tuple[int, int], Solved] = {}

        def on_done(index: int, completions: list[Completion]) -> None:
            question = questions[index]
            for number, completion in enumerate(completions):
                parsed = self._read_answer(question.kind, completion)
                solved[index, number] = Solved(
                    question=question, place=index, sample=number, completion=completion, parsed=parsed
                )
                if isinstance(parsed, SolverAnswer):
                    checks.put((index, number), Attempt(task=question.task, answer=parsed))

        self._generate(requests, self._sampling("solve", self.number), on_done)
        clock.lap("solve")
        for key, grade in checks.results().items():
            solved[key].grade = grade
        clock.lap("wait_grade")
        return [solved[key] for key in sorted(solved)]

    def _reward(self, proposed: Sequence[Proposed], solved: Sequence[Solved]) -> None:
        for one in solved:
            one.reward = rewards.solve_reward(well_formed=isinstance(one.parsed, SolverAnswer), right=one.right)
        for origin, samples in _by_origin(solved):
            origin.share = sum(one.right for one in samples) / len(samples)
        for one in proposed:
            one.reward = rewards.propose_reward(
                well_formed=isinstance(one.parsed, Proposal),
                share=None if one.task is None else one.share or 0.0,
                form=self.config.reward.learnability,
                seen_before=one.seen_before,
                guard=self.config.reward.repeat,
            )

    def _remember(self, proposed: Sequence[Proposed]) -> None:
        for one in proposed:
            if one.task is not None:
                self.buffers[one.kind].add(one.task, step=self.number, rng=self.rng, share=one.share)

    def _rollouts(self, proposed: Sequence[Proposed], solved: Sequence[Solved]) -> list[Rollout]:
        """What is learnt from, with its advantages."""
        config = self.config
        learnt: list[Proposed | Solved] = [*proposed] if config.train_proposer else []
        learnt += [one for one in solved if one.sample == 0 or config.learn_rollouts]
        learnt = [one for one in learnt if one.completion.ids]
        if config.advantage.algorithm is Algorithm.PPO:
            return self._with_values(learnt)
        earned = [one.reward for one in learnt]
        groups = [f"{one.role}/{one.kind}" for one in learnt]
        by_token = config.advantage.baseline is Baseline.TOKEN
        lengths = [len(one.completion.ids) for one in learnt] if by_token else None
        match config.advantage.algorithm:
            case Algorithm.SINGLE:
                values = advantages.single(earned, lengths=lengths)
            case Algorithm.RAE:
                values, self.baselines = advantages.rae(earned, groups, self.baselines, decay=config.advantage.decay)
            case Algorithm.HIERARCHICAL:
                places = [one.place if isinstance(one, Solved) else None for one in learnt]
                values = advantages.hierarchical(earned, groups, places)
            case _:
                values = advantages.trr(earned, groups, lengths=lengths)
        return [_rollout(one, float(value)) for one, value in zip(learnt, values, strict=True)]

    def _with_values(self, learnt: Sequence[Proposed | Solved]) -> list[Rollout]:
        """PPO: an advantage and a return for each token, from what the engine's value head expected."""
        if any(len(one.completion.values) != len(one.completion.ids) for one in learnt):
            raise SpecError("advantage.algorithm=ppo needs an engine with a value head: turn it on, or use trr++")
        given, returns = advantages.gae(
            [one.reward for one in learnt],
            [one.completion.values for one in learnt],
            discount=self.config.advantage.discount,
            trace=self.config.advantage.trace,
        )
        return [
            _rollout(one, tuple(map(float, row)), tuple(map(float, back)))
            for one, row, back in zip(learnt, advantages.whiten(given), returns, strict=True)
        ]

    def _update(self) -> Update:
        """The settings of this iteration's update."""
        update, total = self.config.update, self.config.iterations
        if not self.config.anneal:
            return update
        left = 1.0 - (self.number - 1) / max(1, total)
        return replace(update, learning_rate=update.learning_rate * max(LAST_RATE, left))

    # ---- asking and reading ----

    def _generate(self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone) -> None:
        """Calls on_done once for every request, also where the engine does not."""
        missing = set(range(len(requests)))

        def once(index: int, completions: list[Completion]) -> None:
            missing.remove(index)
            on_done(index, completions)

        found = self._engine.generate(requests, sampling, once)
        for index in sorted(missing):
            on_done(index, found[index])

    def _sampling(self, phase: str, number: int) -> Sampling:
        """A seed of its own for each call, so that a resumed run samples what the other would have."""
        words = [self.config.seed, PHASES.index(phase), number]
        seed = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))
        return Sampling(seed=seed, temperature=self.config.temperature, top_p=self.config.top_p, stop=self.form.stop)

    def _read_proposal(
        self, kind: TaskKind, completion: Completion, references: Sequence[Triplet]
    ) -> Proposal | FormatError:
        if not completion.finished:
            return CUT_SHORT
        return prompts.parse_propose(kind, completion.text, profile=self.form, reference=references[0])

    def _read_answer(self, kind: TaskKind, completion: Completion) -> SolverAnswer | FormatError:
        if not completion.finished:
            return CUT_SHORT
        return prompts.parse_solve(kind, completion.text, profile=self.form)

    # ---- going on later ----

    def state(self) -> dict[str, Any]:
        """JSON data; with the engine's own state it is all that `load` needs to go on bit for bit."""
        return {
            "number": self.number,
            "rng": self.rng.bit_generator.state,
            "baselines": dict(self.baselines),
            "buffers": self.buffers.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        try:
            self.number = int(state["number"])
            self.rng.bit_generator.state = state["rng"]
            self.baselines = {str(group): float(value) for group, value in state["baselines"].items()}
            self.buffers.load(state["buffers"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:  # files are not believed
            raise SpecError(f"the state of a run is not as it should be: {type(error).__name__}: {error}") from None


class _Overlapped(Generic[Key, Item, Found]):
    """Sends what comes in to the verifier in chunks, and keeps whose answer is whose."""

    def __init__(self, submit: Callable[[Sequence[Item]], Future[list[Found]]]) -> None:
        self._submit = submit
        self._waiting: list[tuple[Key, Item]] = []
        self._sent: list[tuple[list[Key], Future[list[Found]]]] = []

    def put(self, key: Key, item: Item) -> None:
        self._waiting.append((key, item))
        if len(self._waiting) >= CHUNK:
            self._send()

    def results(self) -> dict[Key, Found]:
        """Waits for all of them."""
        self._send()
        return {key: found for keys, sent in self._sent for key, found in zip(keys, sent.result(), strict=True)}

    def _send(self) -> None:
        if self._waiting:
            keys, items = zip(*self._waiting, strict=True)
            self._sent.append((list(keys), self._submit(items)))
            self._waiting = []


def _always(prompt: str) -> bool:
    del prompt
    return True


def _by_origin(solved: Sequence[Solved]) -> list[tuple[Proposed, list[Solved]]]:
    """The samples that measure each proposal."""
    found: dict[int, tuple[Proposed, list[Solved]]] = {}
    for one in solved:
        if one.sample > 0 and one.question.origin is not None:
            found.setdefault(one.place, (one.question.origin, []))[1].append(one)
    return list(found.values())


def _rollout(one: Proposed | Solved, advantage: float | tuple[float, ...], returns: tuple[float, ...] = ()) -> Rollout:
    return Rollout(
        completion=one.completion,
        role=one.role,
        kind=one.kind,
        reward=one.reward,
        advantage=advantage,
        returns=returns,
    )
