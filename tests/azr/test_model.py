from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from harena.azr.model import decoder as m
from harena.errors import SpecError

SMALL = m.ModelConfig(vocab=61, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, feed=48)


def theirs(kind: str, **extra: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    shape = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        **extra,
    }
    torch.manual_seed(3)
    if kind == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_transformers(kind: str, tied: bool) -> None:
    reference = theirs(kind, tie_word_embeddings=tied)
    config = m.ModelConfig.from_hf(reference.config.to_dict())
    assert config.rope_theta == 5000.0
    ours = m.DecoderModel(config)
    ours.load_state_dict(m.from_hf_state(config, reference.state_dict()))
    ids = torch.randint(0, 61, (3, 17))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), reference(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_cached_step_equals_the_whole_sequence() -> None:
    torch.manual_seed(0)
    model = m.DecoderModel(SMALL).start(1)
    ids = torch.randint(0, 61, (2, 12))
    lengths = torch.tensor([5, 9])
    cache = m.Cache(SMALL, rows=4, places=16, device=torch.device("cpu"), dtype=torch.float32)
    sources = torch.tensor([0, 1, 1])
    rows = torch.tensor([2, 0, 1])
    with torch.no_grad():
        whole = model(ids)
        model.prefill(ids[:, :9], cache, sources=sources, rows=rows)
        view = cache.view(3, 12)
        at = lengths[sources[[1, 2, 0]]]
        for _ in range(3):
            prompt = sources[[1, 2, 0]]
            logits = model.step(ids[prompt, at], at, view)
            torch.testing.assert_close(logits, whole[prompt, at], rtol=1e-4, atol=1e-5)
            at = at + 1


def test_saving_memory_changes_no_gradient() -> None:
    model = m.DecoderModel(SMALL).start(1)
    ids = torch.randint(0, 61, (2, 7), generator=torch.Generator().manual_seed(0))
    grads = []
    for save in (False, True):
        model.zero_grad()
        model.hidden(ids, save_memory=save).square().sum().backward()
        grads.append(model.layers[0].qkv.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1])


def test_what_would_be_computed_differently_is_refused() -> None:
    base = {
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    m.ModelConfig.from_hf(base)
    for change in (
        {"model_type": "gemma3"},
        {"rope_scaling": {"rope_type": "llama3"}},
        {"use_sliding_window": True},
        {"mlp_bias": True},
    ):
        with pytest.raises(SpecError):
            m.ModelConfig.from_hf({**base, **change})


@pytest.mark.parametrize(("heads", "kv_heads"), [(1_000_000, 1), (4, 0), (0, 0), (-4, -2), (2, 4)])
def test_heads_that_no_model_has_are_refused(heads: int, kv_heads: int) -> None:
    """A small file may claim a million of them, which would take a thread's stack."""
    with pytest.raises(SpecError, match="heads"):
        dataclasses.replace(SMALL, heads=heads, kv_heads=kv_heads)


def test_missing_weights_are_named() -> None:
    with pytest.raises(SpecError, match=r"model\.embed_tokens\.weight"):
        m.from_hf_state(SMALL, {})


def test_moved_rows_keep_their_keys() -> None:
    cache = m.Cache(SMALL, rows=4, places=6, device=torch.device("cpu"), dtype=torch.float32)
    for row in range(4):
        cache.keys[1][row] = row
    cache.move(torch.tensor([3, 2]), torch.tensor([0, 1]), 4)
    assert cache.keys[1][:, 0, 0, 0].tolist() == [3, 2, 2, 3]
    assert cache.keys[1][:2, 0, 5, 0].tolist() == [0, 1]
