"""Prompts that are read once: the tree of prefixes against plain sequences, in hidden states and in every gradient."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from harena.azr.engines.protocol import Completion, Rollout, Update
from harena.azr.learn import learner as learners
from harena.azr.learn.learner import LearnSettings, PolicyLearner
from harena.azr.model import prefix_tree
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.tasks.kinds import Role, TaskKind

QWEN = ModelConfig(
    vocab=97, width=48, layers=3, heads=6, kv_heads=2, head_dim=8, feed=80, rope_theta=1e6, qkv_bias=True, tied=True
)
LLAMA = replace(QWEN, qkv_bias=False, tied=False, kv_heads=6)


def model(shape: ModelConfig = QWEN, seed: int = 0) -> DecoderModel:
    made = DecoderModel(shape).start(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    return made


def rollouts(*, tasks: int = 5, solves: int = 4, seed: int = 0) -> list[Rollout]:
    """Two roles with examples of their own, tasks after them, answers after those; some answers are equal."""
    rng = Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(97) for _ in range(rng.randint(low, high))]

    found: list[Rollout] = []
    for _ in range(2):
        examples = tokens(20, 30)
        for _ in range(tasks):
            prompt = (*examples, *tokens(3, 9))
            answers = [tokens(1, 6) for _ in range(solves - 1)]
            for ids in (*answers, answers[0]):
                done = Completion(
                    prompt_ids=prompt,
                    ids=tuple(ids),
                    logprobs=tuple(-rng.random() - 3 for _ in ids),
                    text="",
                    finished=True,
                )
                advantage = rng.choice([-1.0, 0.0, 0.7, 2.0])
                found.append(
                    Rollout(completion=done, role=Role.SOLVE, kind=TaskKind.DEDUCTION, reward=1.0, advantage=advantage)
                )
    rng.shuffle(found)
    return found


def gradients(
    shape: ModelConfig, given: list[Rollout], update: Update, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """Gradients of one mini-batch, before anything is scaled or stepped."""
    made = model(shape)
    learner = PolicyLearner(made, LearnSettings(micro_tokens=64, **settings), pad=0)
    monkeypatch.setattr(learner._optimizer, "clip", lambda most: torch.zeros(()))
    monkeypatch.setattr(learner._optimizer, "step", lambda rate: None)
    numbers = learner.step(given, replace(update, mini_batch=len(given)))
    return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}, numbers


@pytest.mark.parametrize("shape", [QWEN, LLAMA])
@pytest.mark.parametrize(
    "update",
    [
        Update(entropy=0.01),
        Update(entropy=0.01, kl=0.1, token_mean=False),
    ],
)
@pytest.mark.parametrize("budget", [40, 200, 4096])
@pytest.mark.parametrize("save_memory", [False, True])
def test_every_gradient_is_that_of_plain_sequences(
    shape: ModelConfig, update: Update, budget: int, save_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rollouts()
    plain, _ = gradients(shape, given, update, monkeypatch, share_prompts=False, save_memory=save_memory)
    monkeypatch.setattr(LearnSettings, "tree_tokens", lambda self, size, is_cuda: budget)
    shared, numbers = gradients(shape, given, update, monkeypatch, share_prompts=True, save_memory=save_memory)
    assert plain.keys() == shared.keys() == {name for name, _ in model(shape).named_parameters()}
    for name, wanted in plain.items():
        assert float((shared[name] - wanted).abs().max() / wanted.abs().max()) < 1e-4, name
    assert numbers["tokens_computed"] < (0.95 if budget == 40 else 0.45) * numbers["tokens"]


def test_a_value_head_learns_the_same_from_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [replace(one, returns=(0.5,) * len(one.completion.ids)) for one in rollouts()]
    update = Update(value=0.5)
    plain, _ = gradients(QWEN, given, update, monkeypatch, share_prompts=False, value_head=True)
    shared, _ = gradients(QWEN, given, update, monkeypatch, share_prompts=True, value_head=True)
    for name, wanted in plain.items():
        torch.testing.assert_close(shared[name], wanted, rtol=1e-3, atol=1e-6)


def test_keys_and_values_of_a_tree_are_those_of_its_sequences() -> None:
    made = model()
    sequences = [[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4, 6, 7], [8, 9], [1, 2, 3, 4]]
    [packed] = prefix_tree.grow(sequences, 100)
    assert len(packed.tree) == 4 + 1 + 2 + 2
    kept = prefix_tree.read(made, packed.tree)
    for branch in packed.branches:
        x, cos, sin = made._begin(torch.tensor([sequences[branch.sequence]]))
        with torch.no_grad():
            for layer, (keys, values) in zip(made.stack(), kept, strict=True):
                x, k, v = layer(x, cos, sin)
                torch.testing.assert_close(keys[branch.path].transpose(0, 1), k[0], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(values[branch.path].transpose(0, 1), v[0], rtol=1e-4, atol=1e-5)


def test_a_token_sees_its_ancestors_and_nothing_else() -> None:
    sequences = [[1, 2, 3], [1, 2, 4], [1, 5], [6, 2, 3]]
    [packed] = prefix_tree.grow(sequences, 100)
    mask = packed.tree.mask(torch.device("cpu"))
    seen = {tuple(packed.tree.ids[k] for k in range(len(packed.tree)) if mask[q, k]) for q in range(len(packed.tree))}
    assert seen == {tuple(one[: n + 1]) for one in sequences for n in range(len(one))}


@pytest.mark.parametrize("budget", [1, 7, 12, 1000])
def test_trees_hold_every_sequence_once_and_keep_to_their_size(budget: int) -> None:
    rng = Random(budget)
    sequences = [tuple(rng.randrange(3) for _ in range(rng.randint(1, 9))) for _ in range(200)]
    packed = prefix_tree.grow(sequences, budget)
    assert sorted(branch.sequence for one in packed for branch in one.branches) == list(range(200))
    for one in packed:
        assert len(one.tree) <= budget or len(one.branches) == 1 or len(one.tree) == len(one.branches[0].path)
        for branch in one.branches:
            assert tuple(one.tree.ids[token] for token in branch.path) == sequences[branch.sequence]
            assert [one.tree.depths[token] for token in branch.path] == list(range(len(branch.path)))


def test_samples_without_advantage_are_left_out_where_they_have_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rollouts()
    flat = sum(one.advantage == 0 for one in given) / len(given)
    assert 0 < flat < 1
    still = Update(entropy=0.0)
    whole, numbers = gradients(QWEN, given, still, monkeypatch, share_prompts=False)
    assert numbers["without_advantage"] == pytest.approx(flat)
    with monkeypatch.context() as patched:
        patched.setattr(learners, "_says_nothing", lambda rollout, update: False)
        wanted, _ = gradients(QWEN, given, still, monkeypatch, share_prompts=False)
    for name, value in wanted.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-4, atol=1e-7)
    assert gradients(QWEN, given, Update(), monkeypatch)[1]["without_advantage"] == 0.0
    assert gradients(QWEN, given, Update(skip_flat=True), monkeypatch)[1]["without_advantage"] == pytest.approx(flat)


def test_a_batch_without_any_advantage_changes_nothing() -> None:
    made = model()
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    learner = PolicyLearner(made, LearnSettings(), pad=0)
    numbers = learner.step([replace(one, advantage=0.0) for one in rollouts()], Update(skip_flat=True))
    assert numbers["skipped"] == 1.0
    assert all(torch.equal(before[name], p) for name, p in made.named_parameters())


@pytest.mark.parametrize(("keep_prompts", "mini_batch"), [(True, 7), (True, 16), (False, 7)])
def test_every_row_is_learnt_from_once_whatever_the_order(keep_prompts: bool, mini_batch: int) -> None:
    given = rollouts()
    learner = PolicyLearner(model(), LearnSettings(keep_prompts=keep_prompts), pad=0)
    order = learner._order(given)
    assert sorted(order) == list(range(len(given)))
    prompts = [given[n].completion.prompt_ids for n in order]
    runs = sum(a != b for a, b in pairwise(prompts)) + 1
    assert (runs == len(set(prompts))) == keep_prompts
    numbers = learner.step(given, Update(mini_batch=mini_batch))
    assert numbers["optimizer_steps"] == -(-len(given) // mini_batch)


def test_prompts_read_as_a_tree_change_no_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: the plain decoder, whose prefill reads trees where prompts share enough."""
    from harena.azr.engines.protocol import CompletionRequest, Sampling
    from harena.azr.engines.torch_engine import TorchEngine
    from harena.azr.model import kernels, seats
    from harena.azr.model.decode import DecodeSettings
    from harena.azr.model.tokenizer import ByteTokenizer

    codec = ByteTokenizer()
    shape = replace(QWEN, vocab=codec.vocab)
    head = "def f(a):\n    return a\nassert f(1) == 1\n\n"
    asked = [CompletionRequest(prompt=head + f"assert f({n}) ==", n=2, max_new=8 + n) for n in range(7)]
    asked.append(CompletionRequest(prompt="x", n=1, max_new=6))
    monkeypatch.setattr(kernels, "is_there", lambda: False)
    monkeypatch.setattr(DecoderModel, "is_lean", lambda self: False)
    filled: list[int] = []
    fill = prefix_tree.fill

    def counted(made: Any, packed: Any, cache: Any, **where: Any) -> None:
        filled.append(sum(len(one.tree) for one in packed))
        fill(made, packed, cache, **where)

    monkeypatch.setattr(prefix_tree, "fill", counted)
    found = []
    for share in (0.0, 0.8):
        monkeypatch.setattr(seats, "TREE_PAYS_FROM", share)
        engine = TorchEngine(model(shape), codec, decode=DecodeSettings(rows=6, check_every=3))
        done = [one for group in engine.generate(asked, Sampling(seed=0, greedy=True)) for one in group]
        found.append([one.ids for one in done])
        assert bool(filled) == (share > 0)
    assert found[0] == found[1]
    assert sum(filled) < 0.8 * sum(len(codec.encode(one.prompt)) for one in asked)
