from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from harena.azr.model import pretrain, weights
from harena.azr.model.decoder import DecoderModel
from harena.azr.model.tokenizer import ByteTokenizer
from harena.azr.tasks.corpus import DocumentStream, DocumentWorkers, pad
from harena.errors import SpecError

FEW = pretrain.PretrainSettings(
    size="tiny", steps=6, micro_tokens=512, micro_batches=1, warmup_steps=2, learning_rate=3e-3
)


def test_the_same_seed_gives_the_same_weights_and_a_file_that_loads(tmp_path: Path) -> None:
    seen: list[pretrain.PretrainProgress] = []
    made = [
        pretrain.pretrain(FEW, tmp_path / name, report=seen.append, report_every=3, form="f32")
        for name in ("a.safetensors", "b.safetensors")
    ]
    for (name, a), b in zip(made[0].state_dict().items(), made[1].state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    loaded, codec = weights.load(str(tmp_path / "a.safetensors"))
    assert codec.vocab == loaded.config.vocab
    assert all(torch.equal(x, y) for x, y in zip(loaded.parameters(), made[0].parameters(), strict=True))
    assert [progress.step for progress in seen] == [3, 6, 3, 6]
    assert "6 steps" in weights.note_of(tmp_path / "a.safetensors")


def test_the_loss_falls() -> None:
    torch.manual_seed(0)
    codec = ByteTokenizer()
    model = DecoderModel(pretrain.config_for("tiny", codec.vocab)).start(0)
    batch = next(DocumentStream(seed=1, tokens=512, shard=16).batches())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = pretrain.completion_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_prompts_are_not_learnt() -> None:
    """The loss is that of the completion's tokens, counted by hand."""
    model = DecoderModel(pretrain.config_for("tiny", 446)).start(3)
    batch = pad([([5, 6, 7], [8, 9]), ([4], [3, 2, 1])], 16)
    with torch.no_grad():
        loss = float(pretrain.completion_loss(model, batch))
        wanted = 0.0
        for ids, begin in (([5, 6, 7, 8, 9], 3), ([4, 3, 2, 1], 1)):
            logp = torch.log_softmax(model(torch.tensor([ids]))[0], -1)
            wanted -= sum(float(logp[place - 1, ids[place]]) for place in range(begin, len(ids)))
    assert loss == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("form", ["int8", "bf16", "f32"])
def test_a_checkpoint_is_small_and_close(tmp_path: Path, form: str) -> None:
    codec = ByteTokenizer()
    model = DecoderModel(pretrain.config_for("tiny", codec.vocab)).start(1)
    path = tmp_path / "m.safetensors"
    weights.save(path, model, codec, form=form)
    size = {"int8": 1.3, "bf16": 2.2, "f32": 4.2}[form] * model.parameter_count() + 20_000
    assert path.stat().st_size < size
    loaded, _ = weights.load(str(path))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        difference = (loaded(ids) - model(ids)).norm() / model(ids).norm()
    assert float(difference) < {"int8": 3e-2, "bf16": 3e-2, "f32": 1e-7}[form]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    for name in ("x.safetensors", "missing.safetensors", "missing.gguf"):
        with pytest.raises(SpecError):
            weights.load(str(tmp_path / name))
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match=r"config\.json"):
        weights.load(str(tmp_path / "folder"))
    with pytest.raises(SpecError, match="dtype"):
        weights.load("default", dtype="f8")
    with pytest.raises(SpecError, match="size"):
        pretrain.config_for("huge", 10)


def test_a_transformers_folder_loads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    config = transformers.Qwen2Config(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=8,
        tie_word_embeddings=False,
        eos_token_id=3,
    )
    reference = transformers.Qwen2ForCausalLM(config).eval()
    reference.save_pretrained(tmp_path)
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<e>": 3}, merges=[("a", "b")])
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    model, codec = weights.load(str(tmp_path))
    ids = torch.tensor([[0, 2, 1]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids), reference(ids).logits, rtol=1e-4, atol=1e-5)
    assert codec.eos == (3,)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen2"


def test_the_rate_rises_and_falls() -> None:
    rates = [pretrain.rate_at(FEW, step, step / 6) for step in range(7)]
    assert rates[0] < rates[1] > rates[3] > rates[6] > 0


def test_worker_processes_give_the_streams_in_turn() -> None:
    workers = DocumentWorkers(DocumentStream(seed=2, tokens=256, shard=8), count=2)
    try:
        batches = workers.batches()
        found = [next(batches).ids for _ in range(4)]
    finally:
        workers.close()
    streams = [DocumentStream(seed=2_000 + number, tokens=256, shard=8).batches() for number in range(2)]
    wanted = [next(streams[n % 2]).ids for n in range(4)]
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
