from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from torch.nn import functional as F

from harena.azr.engines.protocol import Completion, CompletionRequest, Rollout, Sampling, Update
from harena.azr.engines.torch_engine import TorchEngine
from harena.azr.model import decode, kernels, lean
from harena.azr.model import decoder as m
from harena.azr.model.tokenizer import ByteTokenizer
from harena.azr.tasks.kinds import Role, TaskKind

CODEC = ByteTokenizer()
SHAPE = m.ModelConfig(vocab=CODEC.vocab, width=36, layers=2, heads=6, kv_heads=2, head_dim=10, feed=45)
LENGTHS = [1, 7, 16, 33, 0, 50, 2]
REQUESTS = [
    CompletionRequest(prompt="def f(a):\n    return a", n=9, max_new=25),
    CompletionRequest(prompt="a", n=2, max_new=40),
]
REQUESTS += [
    CompletionRequest(prompt="assert f(1, 2, 3) ==", n=4, max_new=18),
    CompletionRequest(prompt="f('ab') # x", n=1, max_new=3),
]

pytestmark = pytest.mark.skipif(not kernels.is_there(), reason="the kernels were not built")


@pytest.fixture(params=kernels.builds())
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every build that this processor runs, in turn."""
    monkeypatch.setattr(kernels, "library", lambda: kernels.load(request.param))
    return request.param


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def engine(*, rows: int = 8, shape: m.ModelConfig = SHAPE) -> TorchEngine:
    model = m.DecoderModel(shape).start(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
    return TorchEngine(model, CODEC, decode=decode.DecodeSettings(rows=rows, check_every=3))


def written(sampling: Sampling, *, rows: int = 8) -> list[Completion]:
    return [one for group in engine(rows=rows).generate(REQUESTS, sampling) for one in group]


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda: None)


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 16), (130, 36), (64, 45), (65, 704)])
def test_norms_and_gates_have_the_numbers_and_gradients_of_torch(rows: int, width: int) -> None:
    x, weight, both = numbers(rows, width) * 3, numbers(width, seed=1), numbers(rows, 2 * width, seed=2) * 8
    found: list[list[Any]] = []
    for how in (kernels, lean):
        given = [one.clone().requires_grad_() for one in (x, weight, both)]
        result = how.norm(given[0], given[1], 1e-6), how.gated(given[2])
        torch.autograd.backward(result, [numbers(rows, width, seed=3), numbers(rows, width, seed=4)])
        found.append([*result, *(one.grad for one in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("shape", [(1, 1, 2), (6, 2, 10), (8, 4, 32), (3, 3, 40), (9, 1, 64)])
def test_attention_has_the_numbers_and_gradients_of_torch_for_any_lengths(shape: lean.Shape) -> None:
    heads, kv_heads, width = shape
    cos, sin = m.rotary(torch.arange(max(LENGTHS)), width, 10_000.0)
    qkv = numbers(sum(LENGTHS), (heads + 2 * kv_heads) * width).requires_grad_()
    weights = numbers(sum(LENGTHS), heads * width, seed=1)
    mixed = kernels.KernelSequences(LENGTHS, cos, sin, shape).attend(qkv)
    mixed.backward(weights)
    found = qkv.grad.clone()
    qkv.grad = None
    plain = [
        lean.attend(part, cos[:n], sin[:n], shape) for part, n in zip(qkv.split(LENGTHS), LENGTHS, strict=True) if n
    ]
    torch.cat(plain).backward(weights)
    torch.testing.assert_close(mixed, torch.cat(plain), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, qkv.grad, rtol=1e-4, atol=2e-5)


def test_the_number_of_threads_changes_no_bit(threads: Any) -> None:
    shape = (8, 4, 32)
    cos, sin = m.rotary(torch.arange(max(LENGTHS)), 32, 10_000.0)
    found: list[list[Any]] = []
    for count in (1, 2):
        threads(count)
        x, weight = numbers(sum(LENGTHS), 16 * 32).requires_grad_(), numbers(16 * 32, seed=1).requires_grad_()
        mixed = kernels.KernelSequences(LENGTHS, cos, sin, shape).attend(kernels.norm(x, weight, 1e-6))
        kernels.gated(mixed).sum().backward()
        found.append([mixed, x.grad, weight.grad])
    assert all(map(torch.equal, *found))


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("rows", [3, 8, 64])
def test_completions_are_those_of_the_torch_forms(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = written(Sampling(seed=0, greedy=True), rows=rows)
    without(monkeypatch)
    plain = written(Sampling(seed=0, greedy=True), rows=rows)
    assert [one.ids for one in ours] == [one.ids for one in plain]
    for one, other in zip(ours, plain, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-4)


@pytest.mark.usefixtures("build")
def test_samples_have_the_log_probabilities_of_the_whole_model() -> None:
    model = engine().model
    for one in written(Sampling(seed=3, temperature=0.7)):
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([[*one.prompt_ids, *one.ids]]))[0] / 0.7, dim=-1)
        first = len(one.prompt_ids) - 1
        wanted = [float(logp[first + n, token]) for n, token in enumerate(one.ids)]
        assert one.logprobs == pytest.approx(wanted, abs=1e-3)


def test_the_same_seed_gives_the_same_samples_also_from_a_decoder_that_was_used_before() -> None:
    fresh, used = engine(), engine()
    used.generate(REQUESTS[::-1] * 3, Sampling(seed=9))
    assert fresh.generate(REQUESTS, Sampling(seed=1)) == used.generate(REQUESTS, Sampling(seed=1))
    assert fresh.generate(REQUESTS, Sampling(seed=1)) != fresh.generate(REQUESTS, Sampling(seed=2))


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("vocab", [2, 16, 61])
def test_a_sample_is_what_the_same_random_number_draws_with_torch(vocab: int) -> None:
    rows = 300
    logits = numbers(rows, vocab) * 4
    logits[:, vocab // 2] = float("-inf")
    state = decode._DecodeState(rows, 2, vocab, torch.device("cpu"))
    state.limit.fill_(2)
    state.ends[0] = True
    marks = torch.rand(rows, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    left = torch.arange(rows)
    count = kernels.sample(logits, 1.0, marks, left, state.described())
    logp = F.log_softmax(logits, dim=-1)
    wanted = decode.draw(logp, torch.Generator().manual_seed(4))
    assert (state.out[:, 0] == wanted).float().mean() > 0.99  # but for marks that fall on a step of the ladder
    assert not (state.out[:, 0] == vocab // 2).any()
    token = state.out[:, :1]
    torch.testing.assert_close(state.logprobs[:, 0], logp.gather(-1, token)[:, 0], rtol=1e-5, atol=1e-5)
    entropy = torch.special.entr(logp.exp()).sum(-1)
    torch.testing.assert_close(state.entropy, entropy, rtol=1e-4, atol=1e-5)
    assert left[:count].tolist() == torch.flatten((token[:, 0] != 0).nonzero()).tolist()
    assert state.live.tolist() == (token[:, 0] != 0).tolist()
    assert kernels.sample(logits[:count].contiguous(), 1.0, None, left[:count], state.described()) == 0
    assert state.out[left[:count], 1].tolist() == logits[:count].argmax(-1).tolist()


def test_an_update_is_that_of_the_torch_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = [
        Rollout(completion=one, role=Role.SOLVE, kind=TaskKind.DEDUCTION, reward=1.0, advantage=(-1.0) ** n)
        for n, one in enumerate(written(Sampling(seed=3)))
    ]
    found = []
    for how in ("ours", "torch"):
        if how == "torch":
            without(monkeypatch)
        learner = engine()
        metrics = learner.step(rollouts, Update(learning_rate=1e-3, mini_batch=5, kl=0.1))
        found.append((metrics, [p.detach().clone() for p in learner.model.parameters()]))
    for name in ("policy_loss", "entropy", "grad_norm", "kl"):
        assert found[0][0][name] == pytest.approx(found[1][0][name], rel=1e-3, abs=1e-5)
    before = list(engine().model.parameters())
    for one, other, start in zip(found[0][1], found[1][1], before, strict=True):
        # Adam's first steps are as long for a gradient that is all but zero: most, not all, must be the same.
        moved = (other - start).norm()
        assert (one - other).norm() < 0.05 * moved


def test_where_no_library_was_built_torch_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = written(Sampling(seed=0, greedy=True))
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    for cached in (kernels.load, kernels.library):
        cached.cache_clear()
    try:
        assert not kernels.is_there()
        assert [one.ids for one in written(Sampling(seed=0, greedy=True))] == [one.ids for one in ours]
    finally:
        for cached in (kernels.load, kernels.library):
            cached.cache_clear()
