"""The parts of a layer between its matrix products, for a processor: they pass over memory as few times as plain torch
allows, and those that are learnt through have gradients of their own.

Promises the numbers and gradients of model.py's plain forms, up to rounding (tests compare both). Rows are tokens:
tensors are tokens × width; of whole sequences, one after the other and all of one length. Float32 on the CPU; other
devices have better forms of their own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false, reportUntypedFunctionDecorator=false
# (torch leaves many of its own types open)

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Shape = tuple[int, int, int]
"""Heads, key-value heads, width of a head."""


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return cast(Tensor, _LeanNorm.apply(x, weight, eps))


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, of one tensor that holds both."""
    return cast(Tensor, _LeanGated.apply(gate_up))


def attend(qkv: Tensor, cos: Tensor, sin: Tensor, shape: Shape) -> Tensor:
    """Causal attention within each sequence; their length is that of `cos` and `sin`."""
    return cast(Tensor, _LeanAttend.apply(qkv, cos, sin, shape))


class LeanSequences:
    """All of one length, that of `cos` and `sin`: the kernels of a layer that learns from them."""

    norm = staticmethod(norm)
    gated = staticmethod(gated)

    def __init__(self, cos: Tensor, sin: Tensor, shape: Shape) -> None:
        self._of = cos, sin, shape

    def attend(self, qkv: Tensor) -> Tensor:
        return attend(qkv, *self._of)


class _LeanNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse(x, eps)
        ctx.save_for_backward(x, weight, inverse)
        return torch.mul(x, inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        both = grad * x
        pull = torch.mv(both, weight)[:, None] * inverse.pow(3).div_(-x.shape[-1])
        to_x = torch.mul(grad, weight).mul_(inverse).addcmul_(x, pull)
        return to_x, torch.mv(both.t(), inverse[:, 0]), None


class _LeanGated(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        opened = F.silu(gate)
        ctx.save_for_backward(gate_up, opened)
        return opened * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        gate_up, opened = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        to_gate, to_up = result.chunk(2, dim=-1)
        torch.mul(grad, opened, out=to_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=to_gate)
        return result


class _LeanAttend(Function):
    """Queries that share keys are rows of one product: sequences × kv heads, then group × places, then head width."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, shape: Shape) -> Tensor:
        mixed, *kept = _mix(qkv, cos, sin, shape)
        ctx.save_for_backward(*kept, cos, sin)
        ctx.shape = shape
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        q, k, v, weights, cos, sin = ctx.saved_tensors
        heads, kv_heads, width = ctx.shape
        places, scale = cos.shape[0], width**-0.5
        to_mixed = grad.view(-1, places, heads, width).transpose(1, 2).reshape(q.shape)
        to_weights = torch.bmm(to_mixed, v.transpose(1, 2))
        to_scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, weights.dtype)
        to_q = torch.bmm(to_scores, k).mul_(scale).view(-1, heads, places, width)
        to_k = torch.bmm(to_scores.transpose(1, 2), q).mul_(scale).view(-1, kv_heads, places, width)
        to_v = torch.bmm(weights.transpose(1, 2), to_mixed).view(-1, kv_heads, places, width)
        result = grad.new_empty((grad.shape[0], (heads + 2 * kv_heads) * width))
        parts = result.view(-1, places, heads + 2 * kv_heads, width).transpose(1, 2)
        back = -sin
        _turn(to_q, cos, back, parts[:, :heads])
        _turn(to_k, cos, back, parts[:, heads : heads + kv_heads])
        parts[:, heads + kv_heads :] = to_v
        return result, None, None, None


# ---- without gradients: reading prompts, and one token a row ----


def read(qkv: Tensor, cos: Tensor, sin: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """What `attend` gives, and the keys and values, sequences × kv heads × places × head width."""
    mixed, _, k, v, _ = _mix(qkv, cos, sin, shape)
    apart = (-1, shape[1], *k.shape[1:])
    return mixed, k.view(apart), v.view(apart)


def read_last(qkv: Tensor, cos: Tensor, sin: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Keys and values alone: nothing looks at what the last layer would make of a prompt."""
    heads, kv_heads, width = shape
    parts = qkv.view(-1, cos.shape[0], heads + 2 * kv_heads, width).transpose(1, 2)
    k = parts[:, heads : heads + kv_heads]
    turned = torch.empty_like(k)
    _turn(k, cos, sin, turned)
    return turned, parts[:, heads + kv_heads :]


def project_row(
    x: Tensor, cos: Tensor, sin: Tensor, scale: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    heads, kv_heads, width = shape
    qkv = F.linear(_normed(x, scale, eps), weight, bias).unflatten(-1, (-1, width))
    turned = torch.empty_like(qkv[:, : heads + kv_heads])
    _turn(qkv[:, : heads + kv_heads], cos[:, None], sin[:, None], turned)
    return turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]


def attend_row(q: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    unseen = (torch.arange(keys.shape[2]) > at[:, None])[:, None, None]
    scores = torch.matmul(q * q.shape[-1] ** -0.5, keys.transpose(-1, -2)).masked_fill_(unseen, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), values)


def rest_row(x: Tensor, mixed: Tensor, out: Tensor, scale: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
    x = torch.addmm(x, mixed, out.t())
    gate, up = F.linear(_normed(x, scale, eps), gate_up).chunk(2, dim=-1)
    return torch.addmm(x, F.silu(gate).mul_(up), down.t())


# ---- both ----


def _inverse(x: Tensor, eps: float) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.mul(x, _inverse(x, eps)).mul_(weight)


def _mix(qkv: Tensor, cos: Tensor, sin: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention's output, its queries, keys and values, and its weights."""
    heads, kv_heads, width = shape
    places, group = cos.shape[0], heads // kv_heads
    parts = qkv.view(-1, places, heads + 2 * kv_heads, width).transpose(1, 2)
    turned = torch.empty_like(parts[:, : heads + kv_heads], memory_format=torch.contiguous_format)
    _turn(parts[:, : heads + kv_heads], cos, sin, turned)
    q, k = turned[:, :heads].reshape(-1, group * places, width), _flat(turned[:, heads:])
    v = _flat(parts[:, heads + kv_heads :])
    unseen = torch.full((places, places), float("-inf")).triu_(1).repeat(group, 1)
    weights = torch.softmax(torch.baddbmm(unseen, q, k.transpose(1, 2), alpha=width**-0.5), dim=-1)
    mixed = torch.bmm(weights, v).view(-1, heads, places, width).transpose(1, 2)
    return mixed.reshape(qkv.shape[0], heads * width), q, k, v, weights


def _turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Rotary embedding of x into `out`; with −sin it is undone."""
    half = x.shape[-1] // 2
    torch.mul(x, cos, out=out)
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[2], x.shape[3])
