"""Our own models as transformers has them: they compute and spell the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from harena.azr.engines import trl_models
from harena.azr.model import weights
from harena.azr.model.tokenizer import ByteTokenizer
from harena.errors import SpecError

pytest.importorskip("trl", reason="trl is not installed: pip install 'harena[trl]'")
pytestmark = pytest.mark.filterwarnings("default")  # transformers and what it imports warn about themselves

TEXTS = [
    "",
    "def f(x, n):\n    return x[::-1] + 12\nf('abc', 2)\n\n",
    "\t  x = {'a': 1}  # ```python\r\n",
    "f('é ü 😀 \u2028')",
    "an <end> and a <pad> in <answer> text",
    "returning",
    "    " * 5,
    "!=== <=<=",
    "\x00\x7f",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_spelled_as_our_tokenizer_spells_it(text: str) -> None:
    own = ByteTokenizer()
    theirs = trl_models.tokenizer_of(own)
    assert trl_models.encode(theirs, text) == own.encode(text)
    assert theirs.decode(own.encode(text), skip_special_tokens=True) == text
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (own.eos[0], own.pad, own.vocab)


@pytest.mark.parametrize("tied", [True, False])
def test_our_model_computes_the_same_and_comes_back(tmp_path: Path, tied: bool) -> None:
    import torch

    from harena.azr.model.decoder import DecoderModel, ModelConfig

    codec = ByteTokenizer()
    torch.manual_seed(0)
    shape = ModelConfig(vocab=codec.vocab, width=24, layers=2, heads=4, kv_heads=2, head_dim=8, feed=40, tied=tied)
    own = DecoderModel(shape)
    for value in own.parameters():
        torch.nn.init.normal_(value, std=0.3)
    weights.save(tmp_path / "own.safetensors", own, codec, form="f32")
    theirs, tokenizer = trl_models.load(str(tmp_path / "own.safetensors"))
    ids = torch.tensor([codec.encode("def f(x):\n    return x + 1")])
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, own(ids), atol=1e-4)
        theirs.save_pretrained(tmp_path / "folder")
        tokenizer.save_pretrained(tmp_path / "folder")
        again, reader = weights.load(str(tmp_path / "folder"))
        assert torch.allclose(again(ids), own(ids), atol=1e-4)
    assert reader.encode("a <end>") == codec.encode("a <end>")
    assert reader.eos == codec.eos


@pytest.mark.parametrize(("name", "text"), [("x.gguf", "GGUF"), ("/nowhere/at/all", "transformers cannot load it")])
def test_what_cannot_be_loaded_is_one_line(name: str, text: str) -> None:
    with pytest.raises(SpecError, match=text) as caught:
        trl_models.load(name)
    assert "\n" not in str(caught.value)
