"""Sequences that begin alike, as one tree: what they share is computed once, with exact gradients.

The tokens of a tree lie one after the other in depth-first order, without padding. A token attends to its ancestors and
itself, which is what it would see in a sequence of its own, so hidden states are those of plain sequences up to
rounding (tests compare all gradients). Sharing goes as far as the tokens do: all rows of a role share the examples,
all answers to a task its prompt, and equal answers everything.

A forest is split into trees of bounded size, each with its own copy of the prefixes that it needs. That bounds the
memory of activations and of the attention mask, and leaves the sum of all gradients as it is. Plain torch operations,
the same on CPU and CUDA.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import checkpoint

from harena.azr.model.decoder import Cache, DecoderModel, Layer

Ids = Sequence[int]


@dataclass(slots=True)
class PrefixTree:
    """Grows by one sequence at a time; those that begin alike come one after the other."""

    ids: list[int] = field(default_factory=list[int])
    depths: list[int] = field(default_factory=list[int])
    """The place of each token in its sequences."""
    ends: list[int] = field(default_factory=list[int])
    """Where the descendants of each token end; 0 while it can still get more."""
    _path: list[int] = field(default_factory=list[int])
    """The tokens of the last sequence."""

    def __len__(self) -> int:
        return len(self.ids)

    def growth(self, sequence: Ids) -> int:
        """Tokens that adding the sequence would add."""
        return len(sequence) - self._shared(sequence)

    def add(self, sequence: Ids) -> list[int]:
        """Return where each token of the sequence is in the tree."""
        shared = self._shared(sequence)
        for token in self._path[shared:]:
            self.ends[token] = len(self.ids)
        del self._path[shared:]
        for depth in range(shared, len(sequence)):
            self._path.append(len(self.ids))
            self.ids.append(sequence[depth])
            self.depths.append(depth)
            self.ends.append(0)
        return list(self._path)

    def _shared(self, sequence: Ids) -> int:
        count = 0
        for token, other in zip(self._path, sequence, strict=False):
            if self.ids[token] != other:
                break
            count += 1
        return count

    def mask(self, device: torch.device) -> Tensor:
        """Tokens × tokens: true where the column is the row itself or an ancestor of it."""
        count = len(self.ids)
        ends = torch.tensor([end or count for end in self.ends], device=device)
        place = torch.arange(count, device=device)
        return (place[None, :] <= place[:, None]) & (place[:, None] < ends[None, :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One of the sequences of a forest, in a tree."""

    sequence: int
    path: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTree:
    tree: PrefixTree
    branches: list[Branch]


def grow(sequences: Sequence[Ids], budget: int) -> list[PackedTree]:
    """All sequences in trees of at most `budget` tokens; a longer sequence has a tree of its own."""
    packed: list[PackedTree] = []
    for number in sorted(range(len(sequences)), key=lambda n: tuple(sequences[n])):
        if not packed or len(packed[-1].tree) + packed[-1].tree.growth(sequences[number]) > max(1, budget):
            packed.append(PackedTree(tree=PrefixTree(), branches=[]))
        last = packed[-1]
        last.branches.append(Branch(sequence=number, path=last.tree.add(sequences[number])))
    return packed


def hidden_at(model: DecoderModel, tree: PrefixTree, at: Tensor, *, save_memory: bool = False) -> Tensor:
    """What DecoderModel.hidden has at these tokens of the tree; a token may be asked for several times."""
    device = model.device
    wanted, back = torch.unique(at, return_inverse=True)
    mask = tree.mask(device)
    cos, sin = model.rotary(torch.tensor(tree.depths, device=device))
    x = F.embedding(torch.tensor(tree.ids, device=device), model.embed.weight)
    *first, last = model.stack()
    for layer in first:
        if save_memory:
            x = cast(Tensor, checkpoint.checkpoint(_through, layer, x, cos, sin, mask, None, use_reentrant=False))
        else:
            x = _through(layer, x, cos, sin, mask, None)
    # The last layer goes on only with what is asked for.
    return model.norm(_through(last, x, cos, sin, mask, wanted)).index_select(0, back)


def read(model: DecoderModel, tree: PrefixTree) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, each tokens × kv heads × head width; without gradients."""
    device = model.device
    mask = tree.mask(device)
    cos, sin = model.rotary(torch.tensor(tree.depths, device=device))
    found: list[tuple[Tensor, Tensor]] = []
    layers = model.stack()
    with torch.no_grad():
        x = F.embedding(torch.tensor(tree.ids, device=device), model.embed.weight)
        for layer in layers:
            q, k, v = layer.project(x, cos, sin)
            found.append((k, v))
            if layer is not layers[-1]:  # nothing looks at what the last layer would make of a prompt
                x = layer.rest(x, _attend(layer, q, k, v, mask))
    return found


def _through(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, at: Tensor | None) -> Tensor:
    q, k, v = layer.project(x, cos, sin)
    if at is not None:
        x, q, mask = x.index_select(0, at), q.index_select(0, at), mask.index_select(0, at)
    return layer.rest(x, _attend(layer, q, k, v, mask))


def _attend(layer: Layer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Tokens × width: q has the tokens that `mask` has rows."""
    group = layer.config.heads // layer.config.kv_heads
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    if group > 1:
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return mixed[0].transpose(0, 1).flatten(-2)


def is_worth_it(packed: Sequence[PackedTree], sequences: Sequence[Ids], at_most: float) -> bool:
    """Whether the trees have at most that share of the sequences' tokens."""
    return sum(len(one.tree) for one in packed) <= at_most * sum(map(len, sequences))


@torch.no_grad()
def fill(
    model: DecoderModel, packed: Sequence[PackedTree], cache: Cache, *, sources: Sequence[int], rows: Sequence[int]
) -> None:
    """Row `rows[i]` of the cache gets keys and values of sequence `sources[i]`, as DecoderModel.prefill does."""
    for one in packed:
        order = {branch.sequence: n for n, branch in enumerate(one.branches)}
        taken = [(order[source], row) for source, row in zip(sources, rows, strict=True) if source in order]
        width = max(len(branch.path) for branch in one.branches)
        if not taken or not width:
            continue
        # Places beyond a sequence's end hold what nobody looks at.
        padded = [branch.path + [0] * (width - len(branch.path)) for branch in one.branches]
        paths = torch.tensor([padded[n] for n, _ in taken], device=model.device)
        to = torch.tensor([row for _, row in taken], device=model.device)
        for (k, v), keys, values in zip(read(model, one.tree), cache.keys, cache.values, strict=True):
            keys[to, :, :width] = k[paths].transpose(1, 2)
            values[to, :, :width] = v[paths].transpose(1, 2)
