"""The decoder of Qwen2, Llama and our own small model, in plain torch.

Promises: the same numbers as transformers' Qwen2ForCausalLM and LlamaForCausalLM (tests compare them); one set of
weights for training (`hidden`), for filling a cache (`prefill`) and for one token a row (`step`), which a CUDA graph
can record. Does not sample, schedule or tokenize: decode.py and tokenizer.py do. No scaled rotary embeddings, no
sliding windows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint

from harena.azr.model import kernels, lean
from harena.errors import SpecError

MAX_HEADS = 4_096
"""Far above any model. What a file claims goes to our kernels, which keep a few numbers a head on a thread's stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed: int
    """Width of the gated feed-forward part."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    """Qwen2 has a bias on queries, keys and values; Llama has none."""
    tied: bool = True
    """The output layer is the embedding."""

    def __post_init__(self) -> None:
        if not 1 <= self.kv_heads <= self.heads <= MAX_HEADS:
            raise SpecError(f"{self.heads} heads and {self.kv_heads} key-value heads: there are 1 to {MAX_HEADS}")
        if self.heads % self.kv_heads:
            raise SpecError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise SpecError("head_dim must be even: rotary embeddings turn pairs")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        return cls(**raw)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads a transformers config.json of Qwen2 or Llama; refuses what the decoder would compute differently."""
        kind = raw.get("model_type")
        if kind not in ("qwen2", "llama"):
            raise SpecError(f"model_type {kind!r}: only qwen2 and llama decoders are known here")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise SpecError("scaled rotary embeddings are not supported")
        if raw.get("use_sliding_window"):
            raise SpecError("sliding-window attention is not supported")
        if raw.get("hidden_act", "silu") != "silu" or raw.get("mlp_bias"):
            raise SpecError("the feed-forward part must be a gated SiLU without bias")
        heads = int(raw["num_attention_heads"])
        return cls(
            vocab=int(raw["vocab_size"]),
            width=int(raw["hidden_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
            feed=int(raw["intermediate_size"]),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            qkv_bias=kind == "qwen2" or bool(raw.get("attention_bias", False)),
            tied=bool(raw.get("tie_word_embeddings", False)),
        )


class Cache:
    """Keys and values of every layer, laid out once: rows × kv heads × places × head_dim."""

    def __init__(
        self, config: ModelConfig, *, rows: int, places: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (rows, config.kv_heads, places, config.head_dim)
        self.rows = rows
        self.places = places
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]

    def view(self, rows: int, places: int) -> Cache:
        """The first rows and places, sharing memory: what a smaller graph works on."""
        part = Cache.__new__(Cache)
        part.rows, part.places = rows, places
        part.keys = [k[:rows, :, :places] for k in self.keys]
        part.values = [v[:rows, :, :places] for v in self.values]
        return part

    def move(self, source: Tensor, target: Tensor, places: int) -> None:
        """Copies rows `source` onto rows `target`; only the first `places` of each."""
        for part in (*self.keys, *self.values):
            part[target, :, :places] = part[source, :, :places]


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, float32, positions' shape + (head_dim,)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * torch.pow(theta, -exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def attend_row(q: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """One new token a row. Queries that share keys are grouped (rows × kv heads × group), so no key is read twice."""
    unseen = (torch.arange(keys.shape[2], device=q.device)[None, :] > at[:, None])[:, None, None, :]
    scores = torch.matmul(q, keys.transpose(-1, -2)).float() * (q.shape[-1] ** -0.5)
    weights = torch.softmax(scores.masked_fill(unseen, float("-inf")), dim=-1)
    return torch.matmul(weights.to(values.dtype), values)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def project(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: tuple[int, int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of x, the first two turned. Tensors only, so that one compilation serves every layer."""
    heads, kv_heads, head_dim = shape
    qkv = F.linear(norm(x, scale, eps), weight, bias).unflatten(-1, (-1, head_dim))
    turned = rotate(qkv[..., : heads + kv_heads, :], cos[..., None, :], sin[..., None, :])
    return turned[..., :heads, :], turned[..., heads:, :], qkv[..., heads + kv_heads :, :]


def rest(x: Tensor, mixed: Tensor, out: Tensor, scale: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
    """What follows attention: its output added, then the gated feed-forward part."""
    x = x + F.linear(mixed, out)
    gate, up = F.linear(norm(x, scale, eps), gate_up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down)


Project = Callable[..., tuple[Tensor, Tensor, Tensor]]
Rest = Callable[..., Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(slots=True)
class RowKernels:
    """How `Model.step` computes: a faster engine may put compiled or hand-written ones in place of these."""

    project: Project = project
    attend: Attend = attend_row
    rest: Rest = rest


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight, self.eps)


class WeightMatrix(nn.Module):
    """A weight, and a bias where asked for, without numbers in them: `start` or a file gives these."""

    bias: nn.Parameter | None

    def __init__(self, rows: int, columns: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None


class Layer(nn.Module):
    """Attention and feed-forward part. Queries, keys and values are one matrix, gate and up another: fewer kernels."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.shape = (c.heads, c.kv_heads, c.head_dim)
        self.before = Norm(c.width, c.norm_eps)
        self.qkv = WeightMatrix((c.heads + 2 * c.kv_heads) * c.head_dim, c.width, bias=c.qkv_bias)
        self.out = WeightMatrix(c.width, c.heads * c.head_dim)
        self.between = Norm(c.width, c.norm_eps)
        self.gate_up = WeightMatrix(2 * c.feed, c.width)
        self.down = WeightMatrix(c.width, c.feed)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor, how: Project | None = None) -> tuple[Tensor, Tensor, Tensor]:
        w = self.qkv
        return (how or project)(x, cos, sin, self.before.weight, w.weight, w.bias, self.shape, self.config.norm_eps)

    def rest(self, x: Tensor, mixed: Tensor, how: Rest | None = None) -> Tensor:
        weights = (self.out.weight, self.between.weight, self.gate_up.weight, self.down.weight)
        return (how or rest)(x, mixed, *weights, self.config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A whole causal sequence: x is rows × places × width. Returns keys and values, rows × kv heads × places."""
        c = self.config
        q, k, v = (part.transpose(1, 2) for part in self.project(x, cos, sin))
        group = c.heads // c.kv_heads
        wide_k = k.repeat_interleave(group, dim=1) if group > 1 else k
        wide_v = v.repeat_interleave(group, dim=1) if group > 1 else v
        mixed = F.scaled_dot_product_attention(q, wide_k, wide_v, is_causal=True)
        return self.rest(x, mixed.transpose(1, 2).flatten(-2)), k, v

    def learn(self, x: Tensor, how: lean.LeanSequences | kernels.KernelSequences, at: Tensor | None) -> Tensor:
        """Run `forward` on a processor: x is tokens × width, of the sequences that `how` knows. With `at`, only those
        tokens go on from attention."""
        eps = self.config.norm_eps
        qkv = F.linear(how.norm(x, self.before.weight, eps), self.qkv.weight, self.qkv.bias)
        mixed = how.attend(qkv)
        if at is not None:
            x, mixed = x.index_select(0, at), mixed.index_select(0, at)
        x = torch.addmm(x, mixed, self.out.weight.t())
        opened = how.gated(F.linear(how.norm(x, self.between.weight, eps), self.gate_up.weight))
        return torch.addmm(x, opened, self.down.weight.t())

    def read(self, x: Tensor, cos: Tensor, sin: Tensor, *, is_last: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Run `forward` on a processor without gradients; x as in `learn`. The last layer gives only keys and
        values."""
        qkv = F.linear(lean.norm(x, self.before.weight, self.config.norm_eps), self.qkv.weight, self.qkv.bias)
        if is_last:
            return x, *lean.read_last(qkv, cos, sin, self.shape)
        mixed, k, v = lean.read(qkv, cos, sin, self.shape)
        return self.rest(x, mixed, lean.rest_row), k, v

    def step(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Tensor,
        at: Tensor,
        how: RowKernels,
    ) -> Tensor:
        """One token a row: x is rows × width; writes its key and value at place `at` of the cache."""
        c = self.config
        q, k, v = self.project(x, cos, sin, how.project)
        keys[rows, :, at] = k
        values[rows, :, at] = v
        grouped = q.unflatten(-2, (c.kv_heads, c.heads // c.kv_heads))
        return self.rest(x, how.attend(grouped, keys, values, at).flatten(1), how.rest)


class DecoderModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = WeightMatrix(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.width, config.norm_eps)
        self.head = None if config.tied else WeightMatrix(config.vocab, config.width)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def start(self, seed: int) -> DecoderModel:
        """Fresh weights: normal, scaled down where a layer adds to the residual stream."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
                continue
            deviation = 0.02 / (2 * self.config.layers) ** 0.5 if name.endswith(("out.weight", "down.weight")) else 0.02
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
        return self

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.weight if self.head is None else self.head.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))

    def hidden(self, ids: Tensor, *, save_memory: bool = False) -> Tensor:
        """Rows × places × width. Pad on the right: attention is causal, so pads change nothing before them."""
        x, cos, sin = self._begin(ids)
        for layer in self.stack():
            if save_memory:
                x = cast(Tensor, checkpoint.checkpoint(_only_hidden, layer, x, cos, sin, use_reentrant=False))
            else:
                x = layer(x, cos, sin)[0]
        return self.norm(x)

    def hidden_at(self, ids: Tensor, rows: Tensor, places: Tensor, *, save_memory: bool = False) -> Tensor:
        """What `hidden` has at places (rows[i], places[i]): the last layer computes little more than those."""
        if save_memory or not self.is_lean():
            return self.hidden(ids, save_memory=save_memory)[rows, places]
        ids, how, at = self._packed(ids, rows, places) if kernels.is_there() else self._padded(ids, rows, places)
        x = F.embedding(ids, self.embed.weight)
        *first, last = self.stack()
        for layer in first:
            x = layer.learn(x, how, None)
        return how.norm(last.learn(x, how, at), self.norm.weight, self.norm.eps)

    def _packed(self, ids: Tensor, rows: Tensor, places: Tensor) -> tuple[Tensor, kernels.KernelSequences, Tensor]:
        """Tokens one after the other, of each row those up to the last place asked for; and where these places are."""
        lengths = torch.zeros(ids.shape[0], dtype=torch.long).scatter_reduce_(0, rows, places + 1, "amax")
        cos, sin = self.rotary(torch.arange(ids.shape[1]))
        how = kernels.KernelSequences(lengths.tolist(), cos, sin, self.stack()[0].shape)
        return ids[torch.arange(ids.shape[1]) < lengths[:, None]], how, how.starts[rows] + places

    def _padded(self, ids: Tensor, rows: Tensor, places: Tensor) -> tuple[Tensor, lean.LeanSequences, Tensor]:
        cos, sin = self.rotary(torch.arange(ids.shape[1]))
        return ids.flatten(), lean.LeanSequences(cos, sin, self.stack()[0].shape), rows * ids.shape[1] + places

    def prefill(self, ids: Tensor, cache: Cache, *, sources: Tensor, rows: Tensor) -> None:
        """Computes keys and values of right-padded prompts; row `rows[i]` of the cache gets prompt `sources[i]`."""
        if self.is_lean():
            self._read(ids, cache, _runs(sources.tolist(), rows.tolist()))
            return
        x, cos, sin = self._begin(ids)
        places = ids.shape[1]
        for layer, keys, values in zip(self.stack(), cache.keys, cache.values, strict=True):
            x, k, v = layer(x, cos, sin)
            keys[rows, :, :places] = k[sources]
            values[rows, :, :places] = v[sources]

    def _read(self, ids: Tensor, cache: Cache, runs: Sequence[tuple[int, int, int]]) -> None:
        """`prefill` on a processor."""
        x, cos, sin = self._begin(ids)
        x = x.flatten(0, 1)
        places, layers = ids.shape[1], self.stack()
        for layer, keys, values in zip(layers, cache.keys, cache.values, strict=True):
            x, k, v = layer.read(x, cos, sin, is_last=layer is layers[-1])
            for source, first, end in runs:
                keys[first:end, :, :places] = k[source]
                values[first:end, :, :places] = v[source]

    def step(self, ids: Tensor, positions: Tensor, cache: Cache, how: RowKernels | None = None) -> Tensor:
        """Logits (rows × vocab) after token `ids[r]` at place `positions[r]`; everything stays on the device."""
        how = how or RowKernels()
        cos, sin = self.rotary(positions)
        rows = torch.arange(ids.shape[0], device=ids.device)
        x = F.embedding(ids, self.embed.weight)
        for layer, keys, values in zip(self.stack(), cache.keys, cache.values, strict=True):
            x = layer.step(x, cos, sin, keys, values, rows, positions, how)
        return self.logits(self.norm(x))

    def is_lean(self) -> bool:
        """Whether the forms of lean.py are for it."""
        return self.device.type == "cpu" and self.dtype == torch.float32

    def _begin(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = self.rotary(torch.arange(ids.shape[1], device=ids.device))
        return F.embedding(ids, self.embed.weight), cos, sin

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        return cos.to(self.dtype), sin.to(self.dtype)

    def stack(self) -> list[Layer]:
        return cast(list[Layer], list(self.layers))


def _runs(sources: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """(source, first row, end): neighbouring rows that get the same."""
    runs: list[tuple[int, int, int]] = []
    for source, row in zip(sources, rows, strict=True):
        if runs and runs[-1][0] == source and runs[-1][2] == row:
            runs[-1] = (source, runs[-1][1], row + 1)
        else:
            runs.append((source, row, row + 1))
    return runs


def _only_hidden(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return layer(x, cos, sin)[0]


def from_hf_state(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under transformers' names, as ours. Every name must be there; nothing is filled in."""

    def take(name: str) -> Tensor:
        if name not in state:
            raise SpecError(f"the weights lack {name}")
        return state[name]

    ours = {"embed.weight": take("model.embed_tokens.weight"), "norm.weight": take("model.norm.weight")}
    for n in range(config.layers):
        theirs, mine = f"model.layers.{n}.", f"layers.{n}."
        for part in ("weight", "bias") if config.qkv_bias else ("weight",):
            names = [f"{theirs}self_attn.{p}_proj.{part}" for p in "qkv"]
            ours[f"{mine}qkv.{part}"] = torch.cat([take(name) for name in names])
        ours[f"{mine}gate_up.weight"] = torch.cat([take(f"{theirs}mlp.{p}_proj.weight") for p in ("gate", "up")])
        ours[f"{mine}out.weight"] = take(f"{theirs}self_attn.o_proj.weight")
        ours[f"{mine}down.weight"] = take(f"{theirs}mlp.down_proj.weight")
        ours[f"{mine}before.weight"] = take(f"{theirs}input_layernorm.weight")
        ours[f"{mine}between.weight"] = take(f"{theirs}post_attention_layernorm.weight")
    if not config.tied:
        ours["head.weight"] = take("lm_head.weight")
    return ours
