"""Models and tokenizers for the trl engine, as transformers' objects: by name or folder, and our own files in
transformers' form.

Guarantees: weights in full precision, because an update at a usual learning rate is less than a weight in half
precision can show; our own models compute, and their tokenizers spell, what they do under the torch engine; text never
becomes a special token, so a program cannot end a document. GGUF files are for the torch engine.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harena.azr.model.tokenizer import SPECIALS, ByteTokenizer
from harena.errors import SpecError


def load(name: str) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    if name == "default" or Path(name).suffix == ".safetensors":
        return _own(name)
    if Path(name).suffix == ".gguf":
        raise SpecError(f"--model {name}: the trl engine reads no GGUF files; use torch, or a transformers folder")
    transformers = importlib.import_module("transformers")
    full = importlib.import_module("torch").float32
    try:
        return (
            transformers.AutoModelForCausalLM.from_pretrained(name, dtype=full),
            transformers.AutoTokenizer.from_pretrained(name),
        )
    except (OSError, ValueError) as error:
        raise SpecError(f"--model {name}: transformers cannot load it: {' '.join(str(error).split())}") from error


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def _own(name: str) -> tuple[Any, Any]:
    from harena.azr.model import weights

    transformers = importlib.import_module("transformers")
    model, codec = weights.load(name)
    shape = model.config
    if not shape.qkv_bias:
        raise SpecError(f"--model {name}: the trl engine knows our own models of Qwen2's form only")
    made = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=shape.vocab,
            hidden_size=shape.width,
            intermediate_size=shape.feed,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            rms_norm_eps=shape.norm_eps,
            tie_word_embeddings=shape.tied,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
            bos_token_id=None,
            eos_token_id=list(codec.eos),
            pad_token_id=codec.pad,
        )
    )
    found = made.load_state_dict(_their_names(model.state_dict(), shape), strict=False)
    lacking = set(found.missing_keys) - ({"lm_head.weight"} if shape.tied else set())
    if lacking or found.unexpected_keys:
        raise SpecError(f"--model {name}: it does not fit transformers' form: {[*lacking, *found.unexpected_keys][:4]}")
    return made, tokenizer_of(cast("ByteTokenizer", codec))


def _their_names(state: Mapping[str, Any], shape: Any) -> dict[str, Any]:
    """Our weights under transformers' names: the reverse of model.from_hf_state."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    plain = {
        "out": "self_attn.o_proj",
        "down": "mlp.down_proj",
        "before": "input_layernorm",
        "between": "post_attention_layernorm",
    }
    theirs = {"model.embed_tokens.weight": state["embed.weight"], "model.norm.weight": state["norm.weight"]}
    for number in range(shape.layers):
        to = f"model.layers.{number}."
        own = {name: state[f"layers.{number}.{name}.weight"] for name in (*plain, "gate_up")}
        theirs |= {f"{to}{name}.weight": own[mine] for mine, name in plain.items()}
        for name, part in zip(("gate", "up"), own["gate_up"].split(shape.feed), strict=True):
            theirs[f"{to}mlp.{name}_proj.weight"] = part
        for kind in ("weight", "bias"):
            for name, part in zip(
                "qkv", state[f"layers.{number}.qkv.{kind}"].split([wide, narrow, narrow]), strict=True
            ):
                theirs[f"{to}self_attn.{name}_proj.{kind}"] = part
    if not shape.tied:
        theirs["lm_head.weight"] = state["head.weight"]
    return theirs


def tokenizer_of(codec: ByteTokenizer) -> Any:
    """Ours, as one of transformers: text is split into the longest pieces, and what is none is spelled in bytes."""
    tokenizers = importlib.import_module("tokenizers")
    transformers = importlib.import_module("transformers")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = _letters()
    vocab = {name: number for number, name in enumerate(SPECIALS)}
    vocab |= {letters[byte]: len(vocab) + byte for byte in range(256)}
    vocab |= {
        "".join(letters[byte] for byte in piece.encode()): len(vocab) + at for at, piece in enumerate(codec.extra)
    }
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    longest_first = sorted(codec.extra, key=len, reverse=True)
    pattern = tokenizers.Regex("|".join([*map(re.escape, longest_first), r"[\s\S]"]))
    split = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, level])
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=SPECIALS[0], eos_token=SPECIALS[1], split_special_tokens=True
    )


def _letters() -> list[str]:
    """The letters that the `tokenizers` package writes bytes with: visible ones as they are, the others from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]
