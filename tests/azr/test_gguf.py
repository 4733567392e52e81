from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from harena.azr.model import gguf, weights
from harena.azr.model.decoder import DecoderModel, ModelConfig, from_hf_state
from harena.azr.model.tokenizer import ByteTokenizer
from harena.errors import SpecError

RNG = np.random.default_rng(11)


def half(raw: bytes) -> float:
    return float(np.frombuffer(raw, dtype=np.float16)[0])


def block(*halves: float, size: int) -> bytes:
    """Scales first, random bytes after."""
    head = np.array(halves, dtype=np.float16).tobytes()
    return head + RNG.integers(0, 256, size - len(head), dtype=np.uint8).tobytes()


def slow_q4_1(raw: bytes) -> list[float]:
    d, m, q = half(raw[:2]), half(raw[2:4]), raw[4:]
    return [d * (q[i] & 15) + m for i in range(16)] + [d * (q[i] >> 4) + m for i in range(16)]


def slow_q8_0(raw: bytes) -> list[float]:
    return [half(raw[:2]) * struct.unpack("b", raw[2 + i : 3 + i])[0] for i in range(32)]


def slow_q4_k(raw: bytes) -> list[float]:
    d, dmin, s, q = half(raw[:2]), half(raw[2:4]), raw[4:16], raw[16:]
    out: list[float] = []
    for j in range(8):
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4)
            least = (s[j + 4] >> 4) | ((s[j] >> 6) << 4)
        part = q[32 * (j // 2) : 32 * (j // 2) + 32]
        out += [d * scale * ((b >> 4) if j % 2 else (b & 15)) - dmin * least for b in part]
    return out


def slow_q6_k(raw: bytes) -> list[float]:
    low, high, d = raw[:128], raw[128:192], half(raw[208:210])
    scales = struct.unpack("16b", raw[192:208])
    out = [0.0] * 256
    for n in range(2):
        for i in range(32):
            h = high[32 * n + i]
            four = [
                (low[64 * n + i] & 15) | ((h & 3) << 4),
                (low[64 * n + 32 + i] & 15) | (((h >> 2) & 3) << 4),
                (low[64 * n + i] >> 4) | (((h >> 4) & 3) << 4),
                (low[64 * n + 32 + i] >> 4) | (((h >> 6) & 3) << 4),
            ]
            for k, value in enumerate(four):
                out[128 * n + 32 * k + i] = d * scales[8 * n + i // 16 + 2 * k] * (value - 32)
    return out


@pytest.mark.parametrize(
    ("kind", "slow", "make"),
    [
        (3, slow_q4_1, lambda: block(0.11, -0.7, size=20)),
        (8, slow_q8_0, lambda: block(0.03, size=34)),
        (12, slow_q4_k, lambda: block(0.01, 0.02, size=144)),
        (14, slow_q6_k, lambda: block(size=208) + np.float16(0.004).tobytes()),
    ],
)
def test_blocks_are_read_as_the_format_says(kind: int, slow: Any, make: Any) -> None:
    form = gguf.FORMATS[kind]
    blocks = [make() for _ in range(5)]
    assert len(blocks[0]) == form.size
    raw = np.frombuffer(b"".join(blocks), dtype=np.uint8).reshape(5, form.size)
    wanted = np.array([slow(one) for one in blocks])
    np.testing.assert_allclose(form.read(raw), wanted, rtol=1e-5, atol=1e-6)


def test_half_precision_is_read_as_the_format_says() -> None:
    values = np.array([0.5, -3.25, 1e-3], dtype=np.float32)
    assert gguf.FORMATS[1].read(values.astype(np.float16).view(np.uint8).reshape(3, 2)).ravel() == pytest.approx(
        values, rel=1e-3
    )
    top = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert gguf.FORMATS[30].read(top.view(np.uint8).reshape(3, 2)).ravel() == pytest.approx(values, rel=1e-2)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(name) + struct.pack("<If", 6, value)
    if isinstance(value, list) and isinstance(value[0], str):
        return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return text(name) + struct.pack("<II", 4, value)


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(pair(name, value) for name, value in metadata.items())
    body = b""
    for name, value in tensors.items():
        head += text(name) + struct.pack("<I", value.ndim) + struct.pack(f"<{value.ndim}Q", *value.shape[::-1])
        head += struct.pack("<IQ", 0, len(body))
        body += value.astype(np.float32).tobytes() + b"\0" * (-value.nbytes % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path


SHAPE = ModelConfig(vocab=6, width=16, layers=1, heads=4, kv_heads=2, head_dim=4, feed=8, qkv_bias=False, norm_eps=1e-5)
TOKENS = ["a", "b", "ab", "Ġ", "<|endoftext|>", "c"]


def hf_weights(file: gguf.GgufFile, config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    return {name: gguf.read(file, source) for name, source in gguf.sources(file, config).items()}


def small(path: Path, arch: str, *, twice: bool = False) -> tuple[Path, dict[str, np.ndarray[Any, Any]]]:
    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return RNG.normal(size=shape).astype(np.float32)

    hf = {
        "model.embed_tokens.weight": draw(6, 16),
        "model.norm.weight": draw(16),
        "model.layers.0.input_layernorm.weight": draw(16),
        "model.layers.0.post_attention_layernorm.weight": draw(16),
        "model.layers.0.self_attn.q_proj.weight": draw(16, 16),
        "model.layers.0.self_attn.k_proj.weight": draw(8, 16),
        "model.layers.0.self_attn.v_proj.weight": draw(8, 16),
        "model.layers.0.self_attn.o_proj.weight": draw(16, 16),
        "model.layers.0.mlp.gate_proj.weight": draw(8, 16),
        "model.layers.0.mlp.up_proj.weight": draw(8, 16),
        "model.layers.0.mlp.down_proj.weight": draw(16, 8),
    }

    def permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
        return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    stored = {"token_embd.weight": hf["model.embed_tokens.weight"], "output_norm.weight": hf["model.norm.weight"]}
    if twice:
        stored["output.weight"] = hf["model.embed_tokens.weight"]
        stored["token_embd.weight"] = hf["model.embed_tokens.weight"] + 0.01 * draw(6, 16)
    for theirs, ours in gguf._NAMES.items():
        if theirs.endswith("bias"):
            continue
        value = hf[f"model.layers.0.{ours}"]
        if arch == "llama" and theirs in ("attn_q.weight", "attn_k.weight"):
            value = permuted(value, 4 if "q" in theirs else 2)
        stored[f"blk.0.{theirs}"] = value
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": 1,
        f"{arch}.embedding_length": 16,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.feed_forward_length": 8,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 1],
        "tokenizer.ggml.eos_token_id": 4,
    }
    return write(path, metadata, stored), hf


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_file_gives_the_weights_that_transformers_would_have(tmp_path: Path, arch: str) -> None:
    path, hf = small(tmp_path / "m.gguf", arch)
    file = gguf.GgufFile(path)
    config = gguf.config_of(file)
    assert (config.width, config.heads, config.kv_heads, config.tied) == (16, 4, 2, True)
    found = hf_weights(file, config)
    assert found.keys() == hf.keys()
    for name, value in hf.items():
        np.testing.assert_array_equal(found[name], value)


def test_an_embedding_stored_twice_is_tied_to_its_better_copy(tmp_path: Path) -> None:
    path, hf = small(tmp_path / "m.gguf", "qwen2", twice=True)
    file = gguf.GgufFile(path)
    config = gguf.config_of(file)
    assert config.tied
    np.testing.assert_array_equal(
        hf_weights(file, config)["model.embed_tokens.weight"], hf["model.embed_tokens.weight"]
    )


def test_a_model_and_its_tokenizer_load_from_one_file(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path, hf = small(tmp_path / "m.gguf", "llama")
    model, codec = weights.load(str(path))
    assert codec.encode("ab c") == [2, 3, 5]
    assert codec.decode([2, 3, 5]) == "ab c"
    assert codec.eos == (4,)
    np.testing.assert_array_equal(model.embed.weight.detach().numpy(), hf["model.embed_tokens.weight"])


@pytest.mark.parametrize("piece", [1, 40, 1 << 19])
def test_a_file_read_in_pieces_is_the_file(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    path, hf = small(tmp_path / "m.gguf", "llama")
    monkeypatch.setattr(weights, "PIECE", piece)
    for dtype in ("f32", "bf16"):
        model, _ = weights.load(str(path), dtype=dtype)
        state = {name: torch.from_numpy(value) for name, value in hf.items()}
        for name, value in from_hf_state(model.config, state).items():
            torch.testing.assert_close(model.state_dict()[name], value.to(weights.DTYPES[dtype]), rtol=0, atol=0)


def test_rows_are_read_where_blocks_begin(tmp_path: Path) -> None:
    path, hf = small(tmp_path / "m.gguf", "llama")
    file = gguf.GgufFile(path)
    np.testing.assert_array_equal(file.rows("token_embd.weight", 2, 5), hf["model.embed_tokens.weight"][2:5])
    file.entries["token_embd.weight"] = gguf.TensorEntry((6, 16), 8, 0)
    with pytest.raises(SpecError, match="no whole number of Q8_0 blocks"):
        file.rows("token_embd.weight", 1, 2)


def test_only_control_tokens_end_a_text() -> None:
    pytest.importorskip("tokenizers")
    about = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "</s>", "<|im_end|>", "<|endoftext|>"],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [1, 1, 3, 3],
        "tokenizer.ggml.eos_token_id": 2,
    }
    assert gguf.tokenizer_of(about)[1] == [2, 3]
    del about["tokenizer.ggml.eos_token_id"], about["tokenizer.ggml.token_type"]
    with pytest.raises(SpecError, match="no token that ends"):
        gguf.tokenizer_of(about)


def test_broken_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    path, _ = small(tmp_path / "m.gguf", "llama")
    data = path.read_bytes()
    for name, broken, reason in (
        ("magic", b"GGML" + data[4:], "not a GGUF"),
        ("version", data[:4] + struct.pack("<I", 9) + data[8:], "version"),
        ("head", data[:200], "ends too early|entries"),
        ("claims", data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "entries"),
    ):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(SpecError, match=reason):
            gguf.GgufFile(tmp_path / name)
    (tmp_path / "short").write_bytes(data[:-400])
    with pytest.raises(SpecError, match="beyond the end"):
        hf_weights(gguf.GgufFile(tmp_path / "short"), SHAPE)


def small_with(path: Path, *, tensor: Any = None, **metadata: Any) -> Path:
    """The small file with other metadata, or with another record of where its embedding is: shape, kind, offset."""
    small(path, "llama")
    data = path.read_bytes()
    for name, value in metadata.items():
        old = text(name.replace("__", "."))
        at = data.index(old) + len(old)
        data = data[:at] + struct.pack("<II", 4, value) + data[at + 8 :]
    if tensor is not None:
        name, columns, rows, kind, offset = tensor
        at = data.index(text(name)) + len(text(name)) + 4
        data = data[:at] + struct.pack("<QQIQ", columns, rows, kind, offset) + data[at + 28 :]
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("tensor", "metadata", "reason"),
    [
        (("token_embd.weight", 1 << 40, 1 << 18, 0, 0), {}, "shape"),
        (("token_embd.weight", 1 << 30, 1 << 10, 0, 0), {}, "more than the file has"),
        (("token_embd.weight", 0, 6, 0, 0), {}, "shape"),
        (("blk.0.attn_q.weight", 16, 0, 0, 0), {}, "shape"),
        (("blk.0.attn_v.weight", 16, 9, 0, 0), {}, "should be"),
        (("token_embd.weight", 16, 6, 0, 1 << 63), {}, "beyond the end"),
        (("token_embd.weight", 16, 6, 99, 0), {}, "type 99"),
        (None, {"llama__block_count": 0xFFFFFFFF}, "4294967295 blocks"),
        (None, {"llama__attention__head_count": 0}, "without attention heads"),
        (None, {"llama__attention__head_count_kv": 0}, "without attention heads"),
        (None, {"llama__attention__head_count": 3}, "evenly|as it should be"),
        (None, {"llama__embedding_length": 0xFFFFFFFF}, "even|should be"),
        (None, {"llama__feed_forward_length": 0xFFFFFFFF}, "should be"),
        (None, {"tokenizer__ggml__eos_token_id": 600}, "tokens that the model"),
    ],
)
def test_a_file_that_claims_what_it_has_not_is_refused_before_memory_is_taken(
    tmp_path: Path, tensor: Any, metadata: dict[str, Any], reason: str
) -> None:
    pytest.importorskip("tokenizers")
    path = small_with(tmp_path / "m.gguf", tensor=tensor, **metadata)
    with pytest.raises(SpecError, match=reason):
        weights.load(str(path))


def test_tensors_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    file = gguf.GgufFile(small(tmp_path / "m.gguf", "llama")[0])
    many = {f"blk.{n}": gguf.TensorEntry((6, 16), 0, 0) for n in range(1000)}
    file.entries |= many
    with pytest.raises(SpecError, match="overlap"):
        file.check(many)


@pytest.mark.parametrize("step", [0, 1 << 31])
def test_an_odd_alignment_is_refused(tmp_path: Path, step: int) -> None:
    path = write(tmp_path / "m.gguf", {"general.alignment": step}, {})
    with pytest.raises(SpecError, match="aligned"):
        gguf.GgufFile(path)


def test_an_empty_file_and_a_tensor_without_a_shape_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(SpecError, match="empty"):
        gguf.GgufFile(tmp_path / "m.gguf")
    path = write(tmp_path / "n.gguf", {}, {"a": np.zeros((), np.float32)})
    with pytest.raises(SpecError, match="0 dimensions"):
        gguf.GgufFile(path)


def test_a_mutated_file_loads_or_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path, _ = small(tmp_path / "m.gguf", "llama", twice=True)
    data = path.read_bytes()
    head = data.index(b"blk.0.ffn_down") + 60
    rng = np.random.default_rng(4)
    sizes = (0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1)
    refused = 0
    for _ in range(250):
        broken = bytearray(data)
        at = int(rng.integers(4, head))
        if rng.random() < 0.5:
            broken[at : at + 8] = struct.pack("<Q", sizes[int(rng.integers(len(sizes)))])
        else:
            broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            weights.load(str(path))
        except SpecError:
            refused += 1
    assert refused > 100


def test_a_checkpoint_that_claims_what_it_has_not_is_refused(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    codec = ByteTokenizer()
    config = ModelConfig(vocab=codec.vocab, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, feed=8)
    model = DecoderModel(config)
    weights.save(tmp_path / "good.safetensors", model, codec)
    weights.load(str(tmp_path / "good.safetensors"))
    tensors = safetensors.load_file(tmp_path / "good.safetensors")
    about = {"config": config.to_dict(), "tokenizer": codec.to_json(), "note": ""}
    wide = tensors | {
        "embed.weight": torch.zeros(1, 1 << 16, dtype=torch.int8),
        "embed.weight:scale": torch.zeros(1 << 16),
    }
    odd: list[tuple[Any, dict[str, torch.Tensor]]] = [
        (about | {"config": config.to_dict() | {"layers": 1 << 40}}, tensors),
        (about | {"config": config.to_dict() | {"feed": 1 << 40}}, tensors),
        (about | {"config": config.to_dict() | {"kv_heads": 0}}, tensors),
        (about | {"config": config.to_dict() | {"vocab": 5}}, tensors),
        (about | {"config": config.to_dict() | {"width": "8"}}, tensors),
        (about | {"config": {"vocab": 1}}, tensors),
        (about | {"config": 3}, tensors),
        (about | {"tokenizer": 3}, tensors),
        (about, {"embed.weight": tensors["embed.weight"]}),
        (about, wide),
        ([], tensors),
    ]
    for words, state in odd:
        safetensors.save_file(state, tmp_path / "odd.safetensors", metadata={"harena": json.dumps(words)})
        with pytest.raises(SpecError):
            weights.load(str(tmp_path / "odd.safetensors"))
    for raw in (b"", b"\xff" * 64, (1 << 62).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{}"):
        (tmp_path / "odd.safetensors").write_bytes(raw)
        with pytest.raises(SpecError):
            weights.load(str(tmp_path / "odd.safetensors"))


def test_unknown_architectures_and_formats_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "g.gguf", {"general.architecture": "gemma3"}, {"token_embd.weight": np.zeros((2, 2), np.float32)}
    )
    file = gguf.GgufFile(path)
    with pytest.raises(SpecError, match="gemma3"):
        gguf.config_of(file)
    file.entries["odd"] = gguf.TensorEntry((32,), 2, 0)
    with pytest.raises(SpecError, match="type 2"):
        file.tensor("odd")
