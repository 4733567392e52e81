"""Attention of one new token a row over a static cache, as one Triton kernel: reads only the places a row has filled.

Promises: the same numbers as `model.attend_row` up to rounding; `best` checks that on the device before it hands the
kernel out, and hands out the plain form where Triton, the device or the number format do not fit. Forward only: it is
never trained through.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportInvalidTypeForm=false
# (torch leaves many of its own types open; a Triton kernel has none)

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
from torch import Tensor

from harena.azr.model.decoder import Attend, ModelConfig, attend_row

log = logging.getLogger(__name__)

triton: Any
tl: Any
try:
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
except ImportError:
    triton = tl = None

TOLERANCE = 2e-2
"""Largest relative norm of the difference: bfloat16 products land between 1e-3 and 1e-2."""
BLOCK = 64
"""Places read at a time."""


def _kernel(
    q,
    keys,
    values,
    last_places,
    out,
    scale,
    q_row,
    q_head,
    q_group,
    k_row,
    k_head,
    k_place,
    v_row,
    v_head,
    v_place,
    o_row,
    o_head,
    o_group,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    last = tl.load(last_places + row)
    group = tl.arange(0, PADDED)
    dim = tl.arange(0, DIM)
    offsets = row * q_row + head * q_head + group[:, None] * q_group + dim[None, :]
    query = tl.load(q + offsets, mask=group[:, None] < GROUP, other=0.0)
    best = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mixed = tl.zeros([PADDED, DIM], tl.float32)
    for first in range(0, last + 1, BLOCK):
        places = first + tl.arange(0, BLOCK)
        seen = places <= last
        at = row * k_row + head * k_head + places[:, None] * k_place + dim[None, :]
        key = tl.load(keys + at, mask=seen[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp(best - higher)
        weights = tl.exp(scores - higher[:, None])
        at = row * v_row + head * v_head + places[:, None] * v_place + dim[None, :]
        value = tl.load(values + at, mask=seen[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value)
        total = total * shrink + tl.sum(weights, 1)
        best = higher
    mixed = mixed / total[:, None]
    offsets = row * o_row + head * o_head + group[:, None] * o_group + dim[None, :]
    tl.store(out + offsets, mixed.to(query.dtype), mask=group[:, None] < GROUP)


def attend(q: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """Attend as `model.attend_row`. q: rows × kv heads × group × head_dim; keys and values may be cache views."""
    rows, heads, group, dim = q.shape
    out = torch.empty((rows, heads, group, dim), device=q.device, dtype=q.dtype)
    _launch()[(rows * heads,)](
        q,
        keys,
        values,
        at,
        out,
        dim**-0.5,
        *q.stride()[:3],
        *keys.stride()[:3],
        *values.stride()[:3],
        *out.stride()[:3],
        HEADS=heads,
        GROUP=group,
        PADDED=max(16, 1 << (group - 1).bit_length()),
        DIM=dim,
        BLOCK=BLOCK,
        num_warps=4,
        num_stages=3,
    )
    return out


_launched: list[Any] = []


def _launch() -> Any:
    if not _launched:
        _launched.append(triton.jit(_kernel))
    return _launched[0]


def best(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Attend:
    """The kernel where it works and agrees, else the plain form."""
    dim = config.head_dim
    if (
        triton is None
        or device.type != "cuda"
        or dtype not in (torch.bfloat16, torch.float16)
        or dim & (dim - 1)
        or dim < 16
    ):
        return attend_row
    try:
        difference = disagreement(config, device, dtype)
    except Exception as error:  # a compiler's failure can be anything, and the plain form always works
        log.warning("the attention kernel does not work here, going on without: %s", error)
        return attend_row
    if not difference < TOLERANCE:
        log.warning("the attention kernel is off by %.3g here, going on without", difference)
        return attend_row
    return attend


def disagreement(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, rows: int = 5, places: int = 300
) -> float:
    """‖kernel − plain‖ / ‖plain‖ on random numbers, over a view of a longer cache as the decoder has it."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)

    group = config.heads // config.kv_heads
    q = draw(rows, config.kv_heads, group, config.head_dim)
    keys, values = (draw(rows + 2, config.kv_heads, places + 50, config.head_dim)[:rows, :, :places] for _ in range(2))
    at = torch.tensor([0, 63, 64, places - 1, places // 2][:rows], device=device)
    plain = attend_row(q.float(), keys.float(), values.float(), at)
    return float((attend(q, keys, values, at).float() - plain).norm() / plain.norm())
