"""The loop with an engine that has no model, and real boxes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harena.azr import checkpoint, config
from harena.azr.check.verify import TaskVerdict, TaskVerifier
from harena.azr.checkpoint import Checkpoint
from harena.azr.config import (
    AdvantageConfig,
    Algorithm,
    Baseline,
    BufferConfig,
    PromptConfig,
    RewardConfig,
    TrainConfig,
)
from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Sampling, Update
from harena.azr.loop import Iteration, Trainer
from harena.azr.tasks import prompts
from harena.azr.tasks.kinds import FormatError, Proposal, Role, SolverAnswer, TaskKind, Triplet
from harena.errors import SpecError
from support.scripted import ScriptedEngine

SMALL = TrainConfig(
    batch=6,
    rollouts=4,
    seed_factor=2,
    seed_rounds=3,
    seed=11,
    reward=RewardConfig(repeat=-0.5),
    buffer=BufferConfig(references=2, capacity=40),
)


def trainer(verifier: TaskVerifier, settings: TrainConfig = SMALL, **engine: Any) -> tuple[Trainer, ScriptedEngine]:
    made = ScriptedEngine(**engine)
    return Trainer(made, verifier, settings), made


def bare(iteration: Iteration) -> dict[str, Any]:
    """What does not depend on the clock."""
    return {name: value for name, value in iteration.metrics.items() if name != "time"}


def test_seeding_fills_the_buffers_without_learning(verifier: TaskVerifier) -> None:
    one, engine = trainer(verifier)
    seen: list[int] = []
    rounds = one.seed(lambda number, sizes, proposed: seen.append(sizes[TaskKind.DEDUCTION]))
    assert 1 <= rounds <= 3
    assert len(engine.calls) == len(seen) == rounds
    assert len(one.buffers[TaskKind.DEDUCTION]) > 6
    assert engine.steps == 0
    assert {entry.step for entry in one.buffers[TaskKind.ABDUCTION]} == {0}


def test_an_iteration_asks_the_engine_twice_and_learns_once(verifier: TaskVerifier) -> None:
    one, engine = trainer(verifier)
    iteration = one.iterate()
    assert (len(engine.calls), engine.steps) == (2, 1)
    propose, solve = engine.calls
    assert len(propose) == 3 * 6
    assert all(request.n == 1 for request in propose)
    assert len(solve) == 3 * 6, "a batch of each kind, filled from the buffer where proposals were short"
    assert {request.n for request in solve} <= {1, 1 + 4}
    assert len(engine.rollouts) == 6 * 6
    counts = {
        (role, kind): sum((one.role, one.kind) == (role, kind) for one in engine.rollouts)
        for role in Role
        for kind in TaskKind
    }
    assert set(counts.values()) == {6}
    assert iteration.number == 1


def test_rewards_follow_from_what_was_found(verifier: TaskVerifier) -> None:
    one, _ = trainer(verifier, dataclasses.replace(SMALL, batch=12))
    iteration = one.iterate()
    for proposed in iteration.proposed:
        if isinstance(proposed.parsed, FormatError):
            assert proposed.reward == -1
        elif proposed.task is None or proposed.seen_before:
            assert proposed.reward == -0.5
        else:
            assert proposed.share is not None
            assert proposed.reward == (1 - proposed.share if 0 < proposed.share < 1 else 0)
    for solved in iteration.solved:
        assert solved.reward == (-1 if isinstance(solved.parsed, FormatError) else 1 if solved.right else -0.5)
    measured = [proposed for proposed in iteration.proposed if proposed.share is not None]
    assert measured
    for proposed in measured:
        samples = [solved.right for solved in iteration.solved if solved.question.origin is proposed and solved.sample]
        assert len(samples) == 4
        assert proposed.share == sum(samples) / 4


def test_valid_proposals_enter_their_buffer_with_their_share(verifier: TaskVerifier) -> None:
    one, _ = trainer(verifier)
    iteration = one.iterate()
    new = [proposed for proposed in iteration.proposed if proposed.task is not None and not proposed.seen_before]
    for proposed in new:
        entries = {entry.task: entry for entry in one.buffers[proposed.kind]}
        assert proposed.task in entries
        assert entries[proposed.task].share == proposed.share
        assert entries[proposed.task].step == 1


def test_repeats_are_not_measured_under_the_guard_and_are_without_it(verifier: TaskVerifier) -> None:
    for guard, measured in ((-0.5, False), (None, True)):
        one, _ = trainer(verifier, dataclasses.replace(SMALL, batch=10, reward=RewardConfig(repeat=guard)), bad=0.0)
        repeats = [proposed for _ in range(3) for proposed in one.iterate().proposed if proposed.seen_before]
        assert repeats
        assert {proposed.share is not None for proposed in repeats} == {measured}


def test_the_same_seed_gives_the_same_run_and_another_another(verifier: TaskVerifier) -> None:
    runs: list[list[dict[str, Any]]] = []
    for seed in (11, 11, 12):
        one, _ = trainer(verifier, dataclasses.replace(SMALL, seed=seed))
        one.seed()
        runs.append([bare(one.iterate()) for _ in range(2)])
    assert json.dumps(runs[0]) == json.dumps(runs[1]) != json.dumps(runs[2])


@pytest.mark.parametrize(
    "odd",
    [
        {"rng": 5},
        {"rng": {"bit_generator": "X"}},
        {"number": "x"},
        {"number": None},
        {"baselines": [1]},
        {"buffers": {}},
        {"buffers": 3},
        {"buffers": {str(kind): {"entries": 5, "seen": []} for kind in TaskKind}},
        {"buffers": {str(kind): {"entries": [], "seen": 5} for kind in TaskKind}},
    ],
)
def test_a_state_that_is_not_as_it_should_be_is_refused(verifier: TaskVerifier, odd: dict[str, Any]) -> None:
    one, _ = trainer(verifier)
    state = one.state()
    with pytest.raises(SpecError, match="not as it should be"):
        one.load(state | odd)


@pytest.mark.parametrize("algorithm", [Algorithm.TRR, Algorithm.RAE])
def test_a_resumed_run_goes_on_bit_for_bit(verifier: TaskVerifier, tmp_path: Path, algorithm: Algorithm) -> None:
    settings = dataclasses.replace(SMALL, advantage=AdvantageConfig(algorithm=algorithm))
    one, engine = trainer(verifier, settings)
    one.seed()
    one.iterate()
    place = checkpoint.save(
        tmp_path,
        Checkpoint(
            step=one.number, state={"loop": one.state(), "config": config.as_dict(settings)}, learner=engine.state()
        ),
    )
    straight = [json.dumps(bare(one.iterate())) for _ in range(2)]

    found = checkpoint.load(place)
    again, other = trainer(verifier, config.from_dict(found.state["config"]))
    again.load(found.state["loop"])
    other.load(found.learner)
    assert [json.dumps(bare(again.iterate())) for _ in range(2)] == straight
    assert again.state() == one.state()
    assert other.state() == engine.state()


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("baseline", Baseline)
def test_every_algorithm_gives_the_learner_advantages(
    verifier: TaskVerifier, algorithm: Algorithm, baseline: Baseline
) -> None:
    settings = dataclasses.replace(
        SMALL,
        batch=3,
        advantage=AdvantageConfig(algorithm=algorithm, baseline=baseline),
        learn_rollouts=algorithm is Algorithm.HIERARCHICAL,
        update=Update(value=0.5),
    )
    one, engine = trainer(verifier, settings, values=algorithm is Algorithm.PPO)
    one.iterate()
    for rollout in engine.rollouts:
        tokens = len(rollout.completion.ids)
        if algorithm is Algorithm.PPO:
            assert isinstance(rollout.advantage, tuple)
            assert len(rollout.advantage) == len(rollout.returns) == tokens
        else:
            assert isinstance(rollout.advantage, float)
            assert rollout.returns == ()
    assert any(rollout.advantage for rollout in engine.rollouts)


def test_ppo_without_a_value_head_is_refused(verifier: TaskVerifier) -> None:
    one, _ = trainer(
        verifier,
        dataclasses.replace(SMALL, advantage=AdvantageConfig(algorithm=Algorithm.PPO), update=Update(value=0.5)),
    )
    with pytest.raises(SpecError, match="value head"):
        one.iterate()


def test_a_frozen_proposer_is_not_learnt_from(verifier: TaskVerifier) -> None:
    one, engine = trainer(verifier, dataclasses.replace(SMALL, train_proposer=False))
    one.iterate()
    assert {rollout.role for rollout in engine.rollouts} == {Role.SOLVE}
    assert len(engine.rollouts) == 3 * 6


@pytest.mark.parametrize(("anneal", "shares"), [(False, [1.0] * 4), (True, [1.0, 0.5, 0.02, 0.02])])
def test_annealing_lowers_the_learning_rate_along_a_line(
    verifier: TaskVerifier, monkeypatch: pytest.MonkeyPatch, anneal: bool, shares: list[float]
) -> None:
    one, engine = trainer(verifier, dataclasses.replace(SMALL, anneal=anneal, iterations=2))
    rates: list[float] = []
    step = engine.step
    monkeypatch.setattr(
        engine, "step", lambda rollouts, update: rates.append(update.learning_rate) or step(rollouts, update)
    )
    for _ in shares:
        one.iterate()
    assert rates == pytest.approx([share * SMALL.update.learning_rate for share in shares])


def test_one_kind_alone_can_be_trained(verifier: TaskVerifier) -> None:
    one, engine = trainer(verifier, dataclasses.replace(SMALL, kinds=(TaskKind.ABDUCTION,)))
    one.seed()
    iteration = one.iterate()
    assert {rollout.kind for rollout in engine.rollouts} == {TaskKind.ABDUCTION}
    assert set(iteration.metrics["propose"]) == {"abduction"}


def test_a_completion_that_was_cut_short_is_a_format_error(verifier: TaskVerifier) -> None:
    one, _ = trainer(verifier, dataclasses.replace(SMALL, prompt=PromptConfig(propose_tokens=5, solve_tokens=3)))
    iteration = one.iterate()
    assert all(isinstance(proposed.parsed, FormatError) for proposed in iteration.proposed)
    assert {proposed.reward for proposed in iteration.proposed} == {-1}
    assert iteration.metrics["propose"]["deduction"]["cut_short"] == 1
    assert iteration.metrics["propose"]["deduction"]["valid"] == 0


def test_metrics_have_what_a_reader_needs(verifier: TaskVerifier) -> None:
    one, _ = trainer(verifier)
    found = one.iterate().metrics
    for role in ("propose", "solve"):
        for kind in TaskKind:
            numbers = found[role][str(kind)]
            assert {"count", "reward", "length", "entropy", "format_errors", "cut_short", "verdicts"} <= set(numbers)
            assert sum(numbers["verdicts"].values()) <= numbers["count"]
    assert {"unique", "distance", "input_types", "output_types"} <= set(found["diversity"])
    assert set(found["buffer"]) == {"deduction", "abduction", "induction"}
    assert {"propose", "wait_validate", "solve", "wait_grade", "reward", "update", "total"} <= set(found["time"])
    assert found["update"]["loss"] != 0
    json.dumps(found, allow_nan=True)


class Hostile(ScriptedEngine):
    """Writes what models write on a bad day."""

    TEXTS = (
        "",
        "\0",
        "f(",
        "def f(x):\n    while True: pass\nf(1)",
        "import os\ndef f(x):\n    os._exit(1)\nf(1)",
        "(" * 3000,
        "def f(x):\n    return x\nf(\ud800)",
        "🙂)",
    )

    def generate(
        self, requests: list[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        found = []
        for index, request in enumerate(requests):
            text = self.TEXTS[index % len(self.TEXTS)]
            one = Completion(prompt_ids=(1,), ids=(2, 3), logprobs=(-1.0, -1.0), text=text, finished=True)
            found.append([one] * request.n)
            if on_done is not None:
                on_done(index, found[-1])
        return found


def test_whatever_a_model_writes_an_iteration_goes_through(verifier: TaskVerifier) -> None:
    engine = Hostile()
    one = Trainer(engine, verifier, dataclasses.replace(SMALL, batch=8))
    iteration = one.iterate()
    assert not any(solved.right for solved in iteration.solved)
    assert not any(proposed.task for proposed in iteration.proposed)
    assert len(engine.rollouts) == 6 * 8


def test_parsed_things_are_what_they_say(verifier: TaskVerifier) -> None:
    one, _ = trainer(verifier)
    iteration = one.iterate()
    assert all(isinstance(proposed.parsed, Proposal | FormatError) for proposed in iteration.proposed)
    assert all(isinstance(solved.parsed, SolverAnswer | FormatError) for solved in iteration.solved)
    assert all(isinstance(reference, Triplet) for proposed in iteration.proposed for reference in proposed.references)


class Mute(ScriptedEngine):
    """Does not say when a request is done, as an engine may that gets all at once."""

    def generate(
        self, requests: list[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        return super().generate(requests, sampling)


def test_an_engine_need_not_say_when_a_request_is_done(verifier: TaskVerifier) -> None:
    loud, mute = (Trainer(make(), verifier, SMALL) for make in (ScriptedEngine, Mute))
    assert json.dumps(bare(loud.iterate())) == json.dumps(bare(mute.iterate()))


class Cramped(ScriptedEngine):
    """Refuses prompts beyond so many characters, as an engine does whose cache is bounded."""

    def __init__(self, most: int) -> None:
        super().__init__(right=0.5, bad=0.0)
        self.most = most

    def fits(self, prompt: str) -> bool:
        return len(prompt) <= self.most

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        assert all(self.fits(request.prompt) for request in requests)
        return super().generate(requests, sampling, on_done)


def test_no_prompt_is_longer_than_an_engine_takes(verifier: TaskVerifier) -> None:
    settings = dataclasses.replace(SMALL, buffer=BufferConfig(references=6))
    one, engine = trainer(verifier, settings, bad=0.0)
    one.iterate()
    one.iterate()
    longest = max(len(request.prompt) for call in engine.calls for request in call)
    one = Trainer(Cramped(longest // 2), verifier, settings)
    found = [*one.iterate().proposed, *one.iterate().proposed]
    assert any(proposed.task for proposed in found)
    assert 1 < max(len(proposed.references) for proposed in found) < 6


def test_a_task_that_is_too_long_to_be_asked_is_none(verifier: TaskVerifier) -> None:
    settings = dataclasses.replace(SMALL, kinds=(TaskKind.DEDUCTION,))
    one, _ = trainer(verifier, settings)
    (identity,) = one.buffers.references(TaskKind.DEDUCTION, 1, rng=one.rng)
    most = len(prompts.render_propose(TaskKind.DEDUCTION, [identity])) + 4
    found = [proposed.validation for proposed in Trainer(Cramped(most), verifier, settings).iterate().proposed]
    assert {one.verdict for one in found if one and one.detail == "too long to be asked"} == {TaskVerdict.SIZE}
