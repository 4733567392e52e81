"""Memory that a model needs to answer and to learn, estimated from its shape before anything is loaded.

Guarantees: pure arithmetic; a run that cannot fit is refused with the figures before its weights are read. An estimate
counts what grows with the model: weights, gradients, optimiser, reference, cache, activations, and the copy that is
made while a checkpoint is written. It does not count boxes, other processes or fragmentation.
"""

# pyright: reportUnknownMemberType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from harena.azr.model.decoder import ModelConfig
from harena.errors import SpecError

GIB = 1 << 30
FLOAT = 4
LOGIT_COPIES = 3
"""Tensors of positions × vocabulary that live at once: logits, their log-softmax, and its gradient."""
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    rows: int
    places: int
    """Tokens of a row, prompt and completion together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    micro_tokens: int
    saves_memory: bool
    """Activations are recomputed: only the input of each layer is kept."""
    max_logits: int
    """Elements of logits that are held at once."""
    has_reference: bool
    """A KL term keeps the first weights."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    parts: dict[str, int]
    """Bytes by what they are for, all held at once."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts.items())


def parameter_count(shape: ModelConfig) -> int:
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer = attention * (shape.width + shape.qkv_bias) + shape.heads * shape.head_dim * shape.width
    layer += 3 * shape.feed * shape.width + 2 * shape.width
    return shape.vocab * shape.width * (1 if shape.tied else 2) + shape.layers * layer + shape.width


def need(shape: ModelConfig, *, weight_bytes: int, decoding: Decoding, learning: Learning | None = None) -> MemoryNeed:
    """`weight_bytes`: of one weight, 4 for float32 and 2 for bfloat16."""
    count = parameter_count(shape)
    place = 2 * shape.layers * shape.kv_heads * shape.head_dim * weight_bytes
    parts = {"weights": count * weight_bytes, "cache": decoding.rows * decoding.places * place}
    if learning is None:
        return MemoryNeed(parts)
    masters = 0 if weight_bytes == FLOAT else count * FLOAT
    parts["gradients"] = count * FLOAT
    parts["optimiser"] = 2 * count * FLOAT + masters
    if learning.has_reference:
        parts["reference"] = count * weight_bytes
    kept = sum(parts[name] for name in ("weights", "optimiser", "reference") if name in parts)
    passing = _activations(shape, learning, weight_bytes) + _logits(shape, learning)
    # A checkpoint is written between two updates: the larger of the two decides.
    parts["checkpoint copy" if kept > passing else "activations"] = max(kept, passing)
    return MemoryNeed(parts)


def _activations(shape: ModelConfig, learning: Learning, weight_bytes: int) -> int:
    inside = 6 * shape.width + (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim + 3 * shape.feed
    of_layers = shape.layers * shape.width + inside if learning.saves_memory else shape.layers * inside
    return learning.micro_tokens * of_layers * weight_bytes


def _logits(shape: ModelConfig, learning: Learning) -> int:
    return LOGIT_COPIES * FLOAT * min(learning.micro_tokens * shape.vocab, learning.max_logits)


def available(device: str) -> int:
    """Bytes that are free now: on a GPU, or on this machine within the limit of its control group."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = [_meminfo()]
    try:
        limit = (GROUP / "memory.max").read_text().strip()
        if limit.isdigit():
            free.append(int(limit) - int((GROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, min(free))


def _meminfo() -> int:
    for line in MEMINFO.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) << 10
    return 1 << 62  # not told: nothing is refused


def check(wanted: MemoryNeed, *, device: str, free: int, model: str) -> None:
    """SpecError with both figures when the need is larger than what is free."""
    if wanted.total > free:
        raise SpecError(
            f"{model} needs about {wanted.total / GIB:.1f} GiB of memory on {device} ({wanted}), and "
            f"{free / GIB:.1f} GiB are free: take a smaller model or a larger machine, --profile laptop trains on any; "
            "a file with `engine: {options: {check_memory: false}}` as --config starts it all the same"
        )
