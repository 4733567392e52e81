from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from harena.azr.engines.protocol import Completion, CompletionRequest, Sampling
from harena.azr.engines.torch_engine import TorchEngine
from harena.azr.model import decode, kernels
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.model.seats import SeatJob, is_worth_sharing
from harena.azr.model.shared import SharedPrompts
from harena.azr.model.tokenizer import ByteTokenizer

CODEC = ByteTokenizer()
SHAPE = ModelConfig(vocab=CODEC.vocab, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, feed=48)
REQUESTS = [
    CompletionRequest(prompt=prompt, n=n, max_new=limit)
    for prompt, n, limit in (
        ("def f(a):\n    return a", 9, 25),
        ("assert f(1) ==", 1, 20),
        ("def f(s, n):\n    return s[:n] * 2\nassert f('ab', 2) ==", 7, 30),
        ("ab", 5, 12),
    )
]


def engine(rows: int) -> TorchEngine:
    model = DecoderModel(SHAPE).start(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
    return TorchEngine(model, CODEC, decode=decode.DecodeSettings(rows=rows, check_every=3))


def generate(rows: int, sampling: Sampling, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> list[Completion]:
    """With few rows, prompts are split, rows refilled and the batch shrunk."""
    steps = 0
    step = SharedPrompts.step

    def counted(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(*arguments)

    monkeypatch.setattr(kernels, "library", lambda: None)
    monkeypatch.setattr(SharedPrompts, "step", counted)
    monkeypatch.setattr(decode, "is_worth_sharing", lambda prompts, jobs: shared)
    done = [one for group in engine(rows).generate(REQUESTS, sampling) for one in group]
    assert (steps > 0) == shared
    return done


@pytest.mark.parametrize("rows", [3, 8, 64])
def test_prompts_read_once_for_all_samples_change_no_completion(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = generate(rows, Sampling(seed=0, greedy=True), monkeypatch, shared=False)
    together = generate(rows, Sampling(seed=0, greedy=True), monkeypatch, shared=True)
    assert [one.ids for one in together] == [one.ids for one in apart]
    for one, other in zip(together, apart, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("rows", [5, 64])
def test_samples_have_the_log_probabilities_of_the_whole_model(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine(1).model
    for one in generate(rows, Sampling(seed=3), monkeypatch, shared=True):
        ids = torch.tensor([[*one.prompt_ids, *one.ids]])
        with torch.no_grad():
            logp = torch.log_softmax(model(ids)[0], dim=-1)
        first = len(one.prompt_ids) - 1
        wanted = [float(logp[first + n, token]) for n, token in enumerate(one.ids)]
        assert one.logprobs == pytest.approx(wanted, abs=1e-3)


def test_prompts_are_shared_where_it_pays() -> None:
    def jobs(*prompts: int) -> list[SeatJob]:
        return [SeatJob(prompt=prompt, limit=4, tag=None) for prompt in prompts]

    prompts = [[1, 2, 3], [4, 5], [6]]
    assert is_worth_sharing(prompts, jobs(0, 0, 0, 1, 1, 1))
    assert not is_worth_sharing(prompts, jobs(0, 0, 1))
    assert not is_worth_sharing(prompts, jobs(2, 2, 2))


def test_a_draw_follows_the_chances_and_never_takes_what_has_none() -> None:
    chances = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    found = Counter(decode.draw(chances.log().repeat(20_000, 1), torch.Generator().manual_seed(1)).tolist())
    assert set(found) == {1, 3, 4}
    for token, chance in ((1, 0.5), (3, 0.2), (4, 0.3)):
        assert found[token] / 20_000 == pytest.approx(chance, abs=0.015)
