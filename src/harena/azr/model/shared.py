"""Decoding many samples of each prompt on a processor: what a prompt left in the cache is kept and read once for all of
its samples, not once for each.

Promises the logits of `Model.step` up to rounding (tests compare completions). A row's own cache holds only what it has
written itself; attention over the prompt and over that are computed apart and merged by their weights' sums.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from harena.azr.model import lean
from harena.azr.model.decoder import Cache, DecoderModel


class SharedPrompts:
    """Keys and values of prompts, in slots, and which row samples which of them."""

    def __init__(self, model: DecoderModel, *, slots: int, places: int) -> None:
        self._model = model
        self._cache = Cache(model.config, rows=slots, places=places, device=model.device, dtype=model.dtype)
        self._lengths = [0] * slots
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._where = self._unseen = torch.zeros(0)
        self._lanes = 0

    def read(self, ids: Tensor, lengths: Sequence[int], slots: Sequence[int]) -> None:
        """Right-padded prompts into slots. Only the first lengths[i] places of prompt i, one or more, are looked at."""
        self._model.prefill(ids, self._cache, sources=torch.arange(len(slots)), rows=torch.tensor(slots))
        for slot, length in zip(slots, lengths, strict=True):
            self._lengths[slot] = length

    def seat(self, slots: Sequence[int | None]) -> None:
        """Says which slot each row samples from; None: its row is computed, and nobody looks at what comes out."""
        used = sorted({slot for slot in slots if slot is not None})
        order = {slot: n for n, slot in enumerate(used)}
        counts = [0] * len(used)
        lanes: list[int] = []
        for slot in slots:
            lanes.append(counts[order[slot]] if slot is not None else -1)
            if slot is not None:
                counts[order[slot]] += 1
        # One lane more than there are samples takes the rows that nobody looks at.
        self._lanes = max(counts) + 1
        group = torch.tensor([order[slot] if slot is not None else 0 for slot in slots])
        lane = torch.tensor([at if at >= 0 else self._lanes - 1 for at in lanes])
        self._where = group * self._lanes + lane
        index = torch.tensor(used)
        lengths = torch.tensor([self._lengths[slot] for slot in used])
        places = int(lengths.max())
        kv_heads = self._model.config.kv_heads
        self._keys = [part[index, :, :places].flatten(0, 1) for part in self._cache.keys]
        self._values = [part[index, :, :places].flatten(0, 1) for part in self._cache.values]
        beyond = (torch.arange(places) >= lengths[:, None]).repeat_interleave(kv_heads, 0)
        self._unseen = torch.zeros(beyond.shape).masked_fill_(beyond, float("-inf"))[:, None]

    def step(self, ids: Tensor, positions: Tensor, count: Tensor, own: Cache) -> Tensor:
        """`Model.step`, for tokens at `positions` that are each row's count[r]-th of its own."""
        model = self._model
        cos, sin = model.rotary(positions)
        rows = torch.arange(ids.shape[0])
        unseen = (torch.arange(own.places) > count[:, None])[:, None, None]
        x = F.embedding(ids, model.embed.weight)
        for n, layer in enumerate(model.stack()):
            q, k, v = layer.project(x, cos, sin, lean.project_row)
            own.keys[n][rows, :, count] = k
            own.values[n][rows, :, count] = v
            mixed = self._attend(n, q, own.keys[n], own.values[n], unseen)
            x = layer.rest(x, mixed, lean.rest_row)
        return model.logits(model.norm(x))

    def _attend(self, n: int, q: Tensor, own_keys: Tensor, own_values: Tensor, unseen: Tensor) -> Tensor:
        rows, heads, width = q.shape
        kv_heads = own_keys.shape[1]
        q = (q * width**-0.5).view(rows, kv_heads, heads // kv_heads, width)
        scores = torch.matmul(q, own_keys.transpose(-1, -2)).masked_fill_(unseen, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        own, own_sum = torch.matmul(weights, own_values), _log_sum(scores, weights)
        prompt, prompt_sum = self._attend_prompts(n, q)
        return torch.lerp(own, prompt, torch.sigmoid(prompt_sum - own_sum)[..., None]).view(rows, heads * width)

    def _attend_prompts(self, n: int, q: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that sample one prompt are rows of one product."""
        _, kv_heads, group, width = q.shape
        keys, values, lanes = self._keys[n], self._values[n], self._lanes
        wide = q.new_zeros((keys.shape[0] // kv_heads * lanes, kv_heads, group, width))
        wide[self._where] = q
        wide = wide.view(-1, lanes, kv_heads, group, width).transpose(1, 2).reshape(-1, lanes * group, width)
        scores = torch.baddbmm(self._unseen, wide, keys.transpose(1, 2))
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(weights, values).view(-1, kv_heads, lanes, group, width).transpose(1, 2).flatten(0, 1)
        sums = _log_sum(scores, weights).view(-1, kv_heads, lanes, group).transpose(1, 2).flatten(0, 1)
        return mixed[self._where], sums[self._where]


def _log_sum(scores: Tensor, weights: Tensor) -> Tensor:
    """The logarithm of what softmax divided by, from its largest weight."""
    return scores.amax(-1) - weights.amax(-1).log_()
