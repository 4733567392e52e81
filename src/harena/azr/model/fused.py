"""Writing on a processor with our own kernels: a prompt is kept and read once for all its samples, and only rows that
still write are computed.

Promises the logits of `Model.step` up to rounding and the samples of `decode.draw` for the same random numbers (tests
compare both). Which row has which prompt is for seats.py to say. Needs kernels.py to be there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from harena.azr.model import kernels
from harena.azr.model.decoder import DecoderModel, Layer


class FusedRows:
    """Keys and values of prompts in slots, and of what each row has written since; memory stays from call to call."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self._layers = model.stack()
        shape = self._layers[0].shape
        self._shape = shape
        self._prompts = [kernels.Kept(0, 0, shape, None) for _ in self._layers]
        self._own = [kernels.Kept(0, 0, shape, None) for _ in self._layers]
        self._cos, self._sin = model.rotary(torch.arange(0))
        self._lengths = self._slots = torch.zeros(0, dtype=torch.long)

    def reserve(self, *, rows: int, prompt_places: int, own_places: int) -> None:
        """Room for a call, with as many slots as rows; what earlier calls kept is gone."""
        shape = self._shape
        self._prompts = [kernels.Kept(rows, prompt_places, shape, before) for before in self._prompts]
        self._own = [kernels.Kept(rows, own_places, shape, before) for before in self._own]
        self._lengths, self._slots = (torch.zeros(rows, dtype=torch.long) for _ in range(2))
        if self._cos.shape[0] < prompt_places + own_places:
            self._cos, self._sin = self._model.rotary(torch.arange(prompt_places + own_places))

    def read(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        """Prompts into slots; an empty one is one that leaves nothing to look at."""
        lengths = [len(prompt) for prompt in prompts]
        to = torch.tensor(slots)
        self._lengths[to] = torch.tensor(lengths)
        sequences = kernels.KernelSequences(lengths, self._cos, self._sin, self._shape)
        x = F.embedding(torch.tensor(list(chain.from_iterable(prompts)), dtype=torch.long), self._model.embed.weight)
        for layer, kept in zip(self._layers, self._prompts, strict=True):
            qkv = _project(layer, x)
            sequences.keep(qkv, to, kept)
            if layer is not self._layers[-1]:  # nothing looks at what the last layer would make of a prompt
                x = _rest(layer, x, sequences.attend(qkv))

    def seat(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Says which slot each of these rows samples from."""
        self._slots[torch.tensor(rows)] = torch.tensor(slots)

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows of one prompt beside each other: they read it together."""
        return rows[torch.argsort(self._slots[rows], stable=True)]

    def step(self, rows: Tensor, ids: Tensor, positions: Tensor, written: Tensor) -> Tensor:
        """Logits of `rows`. The others are by row: its last token, that token's place, and how many of its own came
        before."""
        model = self._model
        at = (self._cos, self._sin, rows, self._slots, self._lengths, positions, written)
        x = F.embedding(ids[rows], model.embed.weight)
        for layer, prompts, own in zip(self._layers, self._prompts, self._own, strict=True):
            x = _rest(layer, x, kernels.attend_rows(_project(layer, x), at, self._shape, prompts, own))
        return model.logits(kernels.norm_rows(x, model.norm.weight, model.norm.eps))


def _project(layer: Layer, x: Tensor) -> Tensor:
    normed = kernels.norm_rows(x, layer.before.weight, layer.before.eps)
    return F.linear(normed, layer.qkv.weight, layer.qkv.bias)


def _rest(layer: Layer, x: Tensor, mixed: Tensor) -> Tensor:
    x = torch.addmm(x, mixed, layer.out.weight.t())
    gate_up = F.linear(kernels.norm_rows(x, layer.between.weight, layer.between.eps), layer.gate_up.weight)
    return torch.addmm(x, kernels.gated_rows(gate_up), layer.down.weight.t())
