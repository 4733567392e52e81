"""Our own compiled kernels (native/kernels.c): what lean.py does with torch's operations, in one pass over memory each.

Promises the numbers and gradients of lean.py up to rounding, the same bits for any number of threads, and no padding:
sequences lie one after the other, each of its own length. Float32 on the CPU. `is_there` says whether they were built
for this processor; where they were not, lean.py computes, and nothing else changes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false, reportUntypedFunctionDecorator=false
# (torch leaves many of its own types open)

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harena.azr.model.lean import Shape

FOLDER = Path(__file__).parents[1] / "native"
RUNS = {"AVX512": ("avx512", "avx2", "plain"), "AVX2": ("avx2", "plain")}
"""Which builds a processor can run, by torch's word for it: the best first."""
LANES = 16
"""Floats of the longest vector: rows of what is kept are a multiple of it."""
BLOCK = 64
"""Rows whose gradients of a norm's weight are summed together, as in the C file."""


@functools.cache
def load(name: str) -> ctypes.CDLL | None:
    """One of the builds; None where there is none."""
    try:
        # After torch: its OpenMP library is then ours too, with one set of threads for both.
        library = ctypes.CDLL(str(FOLDER / f"kernels-{name}.so"))
    except OSError:
        return None
    for function, kinds in _SIGNATURES.items():
        getattr(library, function).argtypes = [_KINDS[kind] for kind in kinds]
        getattr(library, function).restype = ctypes.c_long if function == "sample" else None
    return library


def builds() -> list[str]:
    """Those that this processor can run, the best first."""
    return [name for name in RUNS.get(torch.backends.cpu.get_cpu_capability(), ("plain",)) if load(name) is not None]


@functools.cache
def library() -> ctypes.CDLL | None:
    return next(map(load, builds()), None)


_KINDS: dict[str, Any] = {"p": ctypes.c_void_p, "n": ctypes.c_long, "f": ctypes.c_float, "t": ctypes.c_int}
_SIGNATURES = {
    "norm": "ppfnnppt",
    "norm_back": "ppppnnpppt",
    "gated": "pnnpt",
    "gated_back": "ppnnpt",
    "attend": "ppppnnnnppt",
    "attend_back": "ppppppnnnnpt",
    "keep": "pppppnnnnppnnt",
    "attend_rows": "ppppppppnnnnnpppt",
    "sample": "pnfppnpt",
}


def is_there() -> bool:
    return library() is not None


def _call(name: str, *arguments: Any) -> Any:
    given = [one.data_ptr() if isinstance(one, Tensor) else one for one in arguments]
    return getattr(library(), name)(*given, torch.get_num_threads())


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return cast(Tensor, _KernelNorm.apply(x, weight, eps))


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, of one tensor that holds both."""
    return cast(Tensor, _KernelGated.apply(gate_up))


class KernelSequences:
    """Sequences of these lengths, one after the other, and the kernels of a layer that learns or reads them."""

    norm = staticmethod(norm)
    gated = staticmethod(gated)

    def __init__(self, lengths: Sequence[int], cos: Tensor, sin: Tensor, shape: Shape) -> None:
        """`cos` and `sin` have as many places as the longest, or more."""
        self.starts = torch.tensor([0, *lengths]).cumsum(0)
        self.cos, self.sin, self.shape = cos, sin, shape

    def __len__(self) -> int:
        return len(self.starts) - 1

    def attend(self, qkv: Tensor) -> Tensor:
        """Causal attention within each sequence."""
        return cast(Tensor, _KernelAttend.apply(qkv, self))

    def keep(self, qkv: Tensor, slots: Tensor, kept: Kept) -> None:
        """Writes keys and values to slots."""
        where = (qkv, self.cos, self.sin, self.starts, slots, len(self), *self.shape)
        _call("keep", *where, kept.keys, kept.values, kept.places, kept.wide)


class _KernelNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, inverse = torch.empty_like(x), x.new_empty(x.shape[0])
        _call("norm", x, weight, eps, *x.shape, out, inverse)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        to_x, to_weight = torch.empty_like(x), torch.empty_like(weight)
        partial = x.new_empty(-(-x.shape[0] // BLOCK) * x.shape[1])
        _call("norm_back", grad.contiguous(), x, weight, inverse, *x.shape, to_x, to_weight, partial)
        return to_x, to_weight, None


class _KernelGated(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return gated_rows(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        result = torch.empty_like(gate_up)
        _call("gated_back", grad.contiguous(), gate_up, *grad.shape, result)
        return result


class _KernelAttend(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, of: KernelSequences) -> Tensor:
        heads, _, width = of.shape
        mixed, sums = qkv.new_empty((qkv.shape[0], heads * width)), qkv.new_empty((qkv.shape[0], heads))
        _call("attend", qkv, of.cos, of.sin, of.starts, len(of), *of.shape, mixed, sums)
        ctx.save_for_backward(qkv, sums)
        ctx.of = of
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        qkv, sums = ctx.saved_tensors
        of = ctx.of
        result = torch.empty_like(qkv)
        where = (grad.contiguous(), qkv, of.cos, of.sin, of.starts, sums, len(of), *of.shape)
        _call("attend_back", *where, result)
        return result, None


# ---- writing: one token a row, without gradients ----


class Kept:
    """Keys and values of one layer, by slot or by row. Nothing looks at what was never written: it may be anything."""

    def __init__(self, count: int, places: int, shape: Shape, before: Kept | None) -> None:
        """Takes the memory of `before`, which is then no longer good, where that is enough."""
        _, kv_heads, width = shape
        self.places, self.wide = _up(places), _up(width)
        self.keys = _grown(count * kv_heads * width * self.places, before and before.keys)
        self.values = _grown(count * kv_heads * self.places * self.wide, before and before.values)
        self.described = _Kept(self.keys.data_ptr(), self.values.data_ptr(), self.places)


class _Kept(ctypes.Structure):
    _fields_: ClassVar[Any] = [("keys", ctypes.c_void_p), ("values", ctypes.c_void_p), ("places", ctypes.c_int64)]


class KernelState(ctypes.Structure):
    """Where the tensors of a decoder's state are: see State in the C file."""

    _names = ("ids", "at", "count", "limit", "out", "logprobs", "entropy", "live", "ends")
    _fields_: ClassVar[Any] = [*((name, ctypes.c_void_p) for name in _names), ("width", ctypes.c_int64)]


def _up(value: int) -> int:
    return -(-value // LANES) * LANES


def _grown(size: int, before: Tensor | None) -> Tensor:
    return before if before is not None and before.numel() >= size else torch.empty(size)


def norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out, inverse = torch.empty_like(x), x.new_empty(x.shape[0])
    _call("norm", x, weight, eps, *x.shape, out, inverse)
    return out


def gated_rows(gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    _call("gated", gate_up, rows, width, out)
    return out


def attend_rows(qkv: Tensor, at: Sequence[Tensor], shape: Shape, prompts: Kept, own: Kept) -> Tensor:
    """`at`: cos, sin, rows, slots, lengths, positions, written, as the C file names them."""
    count, (heads, _, width) = qkv.shape[0], shape
    mixed = qkv.new_empty((count, heads * width))
    kept = ctypes.byref(prompts.described), ctypes.byref(own.described)
    _call("attend_rows", qkv, *at, count, *shape, own.wide, *kept, mixed)
    return mixed


def sample(logits: Tensor, heat: float, marks: Tensor | None, rows: Tensor, state: KernelState) -> int:
    """A token for each of `rows`, noted in the state; how many of them live on: they are then the first in `rows`."""
    count, vocab = logits.shape
    return int(_call("sample", logits, vocab, heat, marks, rows, count, ctypes.byref(state)))
