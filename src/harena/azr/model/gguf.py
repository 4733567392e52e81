"""GGUF files read without another package: metadata, and tensors turned back into floats (F32 F16 BF16 Q8_0 Q4_1 Q4_K
Q6_K).

Promises: the numbers that the format defines (tests compare with a scalar reading of it); a broken or unknown file is
refused with a reason, never guessed at. The file is data: nothing in it is executed. Does not write GGUF, does not
keep blocks.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harena.azr.model.decoder import ModelConfig
from harena.errors import SpecError

Array = np.ndarray[Any, Any]
MAX_ENTRIES = 1_000_000
"""Most entries of any one list or table in the head of a file."""
MAX_VALUES = 1 << 40
"""Most values of one tensor: far above any model, and far below where products of sizes stop being sizes."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its shape as numpy has it, how it is stored, where its bytes are."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _GgufReader:
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> Any:
        size = struct.calcsize(form)
        if self.at + size > len(self.data):
            raise SpecError("the GGUF file ends too early")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return value

    def count(self) -> int:
        value = int(self.take("<Q"))
        if value > MAX_ENTRIES:
            raise SpecError(f"the GGUF file claims {value} entries; {MAX_ENTRIES} are the most")
        return value

    def text(self) -> str:
        size = self.count()
        raw = bytes(self.data[self.at : self.at + size])
        if len(raw) != size:
            raise SpecError("the GGUF file ends too early")
        self.at += size
        return raw.decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner = int(self.take("<I"))
            if inner == _ARRAY:
                raise SpecError("lists of lists are not read")
            return [self.value(inner) for _ in range(self.count())]
        if kind not in _SCALARS:
            raise SpecError(f"unknown metadata type {kind} in the GGUF file")
        return self.take(_SCALARS[kind])


class GgufFile:
    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise SpecError(f"{path.name} is empty")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = _GgufReader(self._data)
        if bytes(self._data[:4]) != b"GGUF":
            raise SpecError(f"{path.name} is not a GGUF file")
        reader.at = 4
        version = reader.take("<I")
        if version not in (2, 3):
            raise SpecError(f"GGUF version {version}; 2 and 3 are read")
        tensors, pairs = reader.count(), reader.count()
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            name = reader.text()
            self.metadata[name] = reader.value(int(reader.take("<I")))
        self.entries: dict[str, TensorEntry] = {}
        for _ in range(tensors):
            name = reader.text()
            dims = int(reader.take("<I"))
            if not 1 <= dims <= 4:
                raise SpecError(f"{name[:80]} has {dims} dimensions; there are 1 to 4")
            shape = tuple(int(reader.take("<Q")) for _ in range(dims))[::-1]
            self.entries[name] = TensorEntry(shape, int(reader.take("<I")), int(reader.take("<Q")))
        step = self.metadata.get("general.alignment", 32)
        if type(step) is not int or not 1 <= step <= 1 << 20:
            raise SpecError(f"the GGUF file is aligned to {str(step)[:40]} bytes")
        self._start = -(-reader.at // step) * step

    def tensor(self, name: str) -> Array:
        """Float32, in the shape that a torch layer has."""
        return self.rows(name, 0, self.entry(name).shape[0])

    def rows(self, name: str, first: int, last: int) -> Array:
        """Part of a tensor, as float32: a large one is read faster, and in little memory, piece by piece."""
        entry = self.entry(name)
        if entry.kind not in FORMATS:
            raise SpecError(
                f"{name} is stored as type {entry.kind}; read are {', '.join(f.name for f in FORMATS.values())}"
            )
        form = FORMATS[entry.kind]
        columns = math.prod(entry.shape[1:])
        if columns * (last - first) % form.elements or columns * first % form.elements:
            raise SpecError(f"{name}: {columns * (last - first)} values are no whole number of {form.name} blocks")
        start = self._start + entry.offset + columns * first // form.elements * form.size
        size = columns * (last - first) // form.elements * form.size
        if start + size > len(self._data):
            raise SpecError(f"{name} lies beyond the end of the GGUF file")
        raw = np.frombuffer(self._data, dtype=np.uint8, count=size, offset=start).reshape(-1, form.size)
        return form.read(raw).reshape(last - first, *entry.shape[1:])

    def entry(self, name: str) -> TensorEntry:
        if name not in self.entries:
            raise SpecError(f"the GGUF file lacks {name}")
        return self.entries[name]

    def check(self, names: Collection[str]) -> None:
        """Before memory is taken for them: each lies in the file as a whole, and no two share its bytes, so that what
        they take is bounded by what the file has."""
        total = 0
        for name in names:
            entry = self.entry(name)
            values = math.prod(entry.shape)
            if not 0 < values <= MAX_VALUES:
                raise SpecError(f"{name} has the shape {entry.shape}")
            form = FORMATS.get(entry.kind)
            total += 0 if form is None else values // form.elements * form.size
        if total > len(self._data):
            raise SpecError(
                "the tensors of the GGUF file take more than the file has: is it cut short? do they overlap?"
            )


# ---- blocks: uint8 rows in, float32 rows out ----


def _half(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _f32(raw: Array) -> Array:
    return raw.copy().view(np.float32)  # the file cannot be written to, its copy can


def _bf16(raw: Array) -> Array:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: Array) -> Array:
    return _half(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32)


def _q4_1(raw: Array) -> Array:
    nibbles = raw[:, 4:]
    values = np.concatenate((nibbles & 15, nibbles >> 4), axis=1).astype(np.float32)
    return _half(raw[:, :2]) * values + _half(raw[:, 2:4])


def _q4_k(raw: Array) -> Array:
    scale, least = _half(raw[:, :2])[:, :, None], _half(raw[:, 2:4])[:, :, None]
    packed = raw[:, 4:16]
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=1).astype(np.float32)[:, :, None]
    mins = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), axis=1).astype(np.float32)[:, :, None]
    nibbles = raw[:, 16:].reshape(-1, 4, 1, 32)
    values = np.concatenate((nibbles & 15, nibbles >> 4), axis=2).reshape(-1, 8, 32).astype(np.float32)
    return (scale * scales * values - least * mins).reshape(-1, 256)


def _q6_k(raw: Array) -> Array:
    low = raw[:, :128].reshape(-1, 2, 2, 32)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    nibbles = np.concatenate((low & 15, low >> 4), axis=2)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    values = (nibbles | ((high >> shifts & 3) << 4)).astype(np.float32) - 32
    scaled = values.reshape(-1, 16, 16) * (_half(raw[:, 208:210]) * scales)[:, :, None]
    return scaled.reshape(-1, 256)


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    elements: int
    """Values in a block."""
    size: int
    """Bytes of a block."""
    read: Callable[[Array], Array]


FORMATS = {
    0: Format("F32", 1, 4, _f32),
    1: Format("F16", 1, 2, _half),
    3: Format("Q4_1", 32, 20, _q4_1),
    8: Format("Q8_0", 32, 34, _q8_0),
    12: Format("Q4_K", 256, 144, _q4_k),
    14: Format("Q6_K", 256, 210, _q6_k),
    30: Format("BF16", 1, 2, _bf16),
}


# ---- models ----


def config_of(file: GgufFile) -> ModelConfig:
    meta = file.metadata
    kind = str(meta.get("general.architecture"))
    if kind not in ("llama", "qwen2"):
        raise SpecError(f"GGUF architecture {kind!r}: only llama and qwen2 decoders are known here")
    if meta.get(f"{kind}.rope.scaling.type", "none") not in ("none", ""):
        raise SpecError("scaled rotary embeddings are not supported")

    def number(name: str, default: float | None = None) -> Any:
        value = meta.get(f"{kind}.{name}", default)
        if value is None:
            raise SpecError(f"the GGUF file lacks {kind}.{name}")
        return value

    width, heads = int(number("embedding_length")), int(number("attention.head_count"))
    if heads < 1 or int(number("attention.head_count_kv", heads)) < 1:
        raise SpecError("the GGUF file claims a model without attention heads")
    return ModelConfig(
        vocab=file.entry("token_embd.weight").shape[0],
        width=width,
        layers=int(number("block_count")),
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=int(number("attention.key_length", width // heads)),
        feed=int(number("feed_forward_length")),
        rope_theta=float(number("rope.freq_base", 10_000.0)),
        norm_eps=float(number("attention.layer_norm_rms_epsilon", 1e-6)),
        qkv_bias="blk.0.attn_q.bias" in file.entries,
        tied="output.weight" not in file.entries or _is_same(file),
    )


def _is_same(file: GgufFile) -> bool:
    """A tied model is sometimes stored with its embedding twice, in two precisions."""
    embedding, output = file.entry("token_embd.weight"), file.entry("output.weight")
    if embedding.shape != output.shape:
        return False
    some = min(256, embedding.shape[0])
    a, b = (file.rows(name, 0, some).ravel() for name in ("token_embd.weight", "output.weight"))
    return float(np.corrcoef(a, b)[0, 1]) > 0.97


_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
}


def unpermute(weight: Array, heads: int) -> Array:
    """Llama files hold queries and keys with the halves of each rotated pair interleaved; this undoes it."""
    rows = weight.shape[0]
    parts = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(weight.shape)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight of transformers' is found."""

    name: str
    heads: int = 0
    """Above 0: rows of this many heads are to be put back in order, see `unpermute`."""


def sources(file: GgufFile, config: ModelConfig) -> dict[str, Source]:
    """Return the source of every weight under transformers' name. A tied embedding is taken from its more precise
    copy."""
    if config.layers > len(file.entries):
        raise SpecError(f"the GGUF file claims {config.layers} blocks and has {len(file.entries)} tensors")
    is_llama = file.metadata["general.architecture"] == "llama"
    both = config.tied and "output.weight" in file.entries
    found = {
        "model.embed_tokens.weight": Source("output.weight" if both else "token_embd.weight"),
        "model.norm.weight": Source("output_norm.weight"),
    }
    if not config.tied:
        found["lm_head.weight"] = Source("output.weight")
    for number in range(config.layers):
        for theirs, ours in _NAMES.items():
            name = f"blk.{number}.{theirs}"
            if name not in file.entries and theirs.endswith("bias"):
                continue
            heads = config.heads if theirs.startswith("attn_q") else config.kv_heads
            is_turned = is_llama and theirs.startswith(("attn_q", "attn_k"))
            found[f"model.layers.{number}.{ours}"] = Source(name, heads if is_turned else 0)
    return found


def read(file: GgufFile, source: Source) -> Array:
    weight = file.tensor(source.name)
    return unpermute(weight, source.heads) if source.heads else weight


_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of(metadata: Mapping[str, Any]) -> tuple[Any, list[int]]:
    """The byte-pair tokenizer that the file carries, for the `tokenizers` package, and the ids that end a text."""
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers
    except ImportError as error:
        raise SpecError("a GGUF tokenizer needs the `tokenizers` package: pip install tokenizers") from error
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise SpecError(f"tokenizer {metadata.get('tokenizer.ggml.model')!r}: only byte-pair (gpt2) ones are read")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    made: Any = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    kind = metadata.get("tokenizer.ggml.pre", "default")
    if kind == "qwen2":
        split = pre_tokenizers.Split(tokenizers.Regex(_QWEN2), "isolated")
        raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    elif kind == "smollm":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif kind in ("default", "gpt-2"):
        made.pre_tokenizer = byte_level
    else:
        raise SpecError(f"pre-tokenizer {kind!r} is not known here")
    made.decoder = decoders.ByteLevel()
    types: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    controls = [token for token, kind in zip(tokens, types, strict=False) if kind == 3]
    made.add_special_tokens(controls)
    # A name is not enough: in some vocabularies "</s>" is a piece of HTML.
    ends = [vocab[name] for name in ("<|endoftext|>", "<|im_end|>", "</s>") if name in controls]
    if "tokenizer.ggml.eos_token_id" in metadata:
        ends.insert(0, int(metadata["tokenizer.ggml.eos_token_id"]))
    if not ends:
        raise SpecError("the GGUF file names no token that ends a text")
    return made, list(dict.fromkeys(ends))
