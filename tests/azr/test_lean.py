from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from harena.azr.model import decoder as m
from harena.azr.model import kernels, lean

SHAPES = [
    m.ModelConfig(vocab=61, width=32, layers=3, heads=4, kv_heads=2, head_dim=8, feed=48),
    m.ModelConfig(vocab=61, width=24, layers=1, heads=3, kv_heads=3, head_dim=8, feed=40, qkv_bias=False, tied=False),
]


def made(config: m.ModelConfig) -> m.DecoderModel:
    model = m.DecoderModel(config).start(1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("config", SHAPES)
def test_learning_on_a_processor_has_the_numbers_and_gradients_of_the_plain_form(
    config: m.ModelConfig, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and not kernels.is_there():
        pytest.skip("the kernels were not built")
    monkeypatch.setattr(kernels, "is_there", lambda: native)
    model = made(config)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 61, (3, 11), generator=generator)
    rows, places = torch.tensor([0, 0, 2, 1, 2]), torch.tensor([3, 10, 0, 7, 5])
    weights = torch.randn(5, config.width, generator=generator)
    found = []
    for hidden in (model.hidden_at(ids, rows, places), model.hidden(ids)[rows, places]):
        model.zero_grad()
        (hidden * weights).sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        found[-1]["hidden"] = hidden.detach()
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        # Gradients here go up to 20: float32 is right to some 1e-5 of that.
        torch.testing.assert_close(value, found[1][name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("config", SHAPES)
def test_prompts_are_read_and_continued_as_in_the_plain_form(config: m.ModelConfig) -> None:
    model = made(config)
    ids = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(0))
    sources, rows = torch.tensor([0, 1, 1, 0]), torch.tensor([4, 1, 2, 0])
    at = torch.tensor([9, 6, 6, 0, 9])
    which = torch.tensor([0, 1, 1, 0, 0])
    cache = m.Cache(config, rows=5, places=16, device=torch.device("cpu"), dtype=torch.float32)
    quick = m.RowKernels(project=lean.project_row, attend=lean.attend_row, rest=lean.rest_row)
    with torch.no_grad():
        whole = model(ids)
        model.prefill(ids[:, :9], cache, sources=sources, rows=rows)
        for _ in range(2):
            logits = model.step(ids[which, at], at, cache.view(5, 12), quick)
            # Row 3 got no prompt.
            for row in (0, 1, 2, 4):
                torch.testing.assert_close(logits[row], whole[which[row], at[row]], rtol=1e-4, atol=1e-5)
            at = at + 1


def test_neighbouring_rows_of_one_prompt_are_written_at_once() -> None:
    assert m._runs([0, 0, 1, 1, 1, 0], [3, 4, 5, 7, 8, 9]) == [(0, 3, 5), (1, 5, 6), (1, 7, 9), (0, 9, 10)]
