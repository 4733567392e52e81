"""Which completion is in which row of a decoder, from the first that waits to the last that ends.

Promises: a prompt is read once for all its samples that are seated together; rows that end are refilled from what
waits, and when nothing waits the batch shrinks; everything of a call is decided by its prompts and tokens, so the same
tokens are seated in the same way. Does not compute: the decoder steps, the model reads.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from harena.azr.model import prefix_tree
from harena.azr.model.fused import FusedRows
from harena.azr.model.shared import SharedPrompts
from harena.azr.model.stops import Stops

if TYPE_CHECKING:
    from harena.azr.model.decode import Decoder, Sampler

TREE_TOKENS = 4_096
TREE_PAYS_FROM = 0.8
"""Prompts are read as trees of at most so many tokens, where these have at most this share of the prompts' tokens."""
PREFILL_TOKENS = {"cpu": 1_024, "cuda": 65_536}
"""Tokens of prompts read in one call, padding counted: on a processor, what stays in its caches."""


@dataclass(slots=True)
class SeatJob:
    """One completion to sample."""

    prompt: int
    """Index into the prompts."""
    limit: int
    """Tokens it may have."""
    tag: Any
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    entropy: float = 0.0
    ended: bool = False
    """True if an end token or a stop text ended it, not the limit."""


class Seats:
    """One call of `Decoder.run`: which job sits in which row, and what the host knows of it."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        waiting: deque[SeatJob],
        sampler: Sampler,
        stops: Stops,
        rows: int,
        on_done: Callable[[SeatJob], None],
    ) -> None:
        self.d = decoder
        self.prompts = prompts
        self.waiting = waiting
        self.sampler = sampler
        self.stops = stops
        self.rows = rows
        self.on_done = on_done
        self.seats: list[SeatJob | None] = [None] * rows
        self.places = [0] * rows
        """The place of each row's next token; the host counts along."""

    def go(self) -> None:
        s = self.d.state
        s.live.zero_()
        s.heat.fill_(self.sampler.temperature)
        s.ends.copy_(torch.from_numpy(self.stops.ending_tokens))
        every = self.d.settings.check_every
        while True:
            self._fill()
            if not any(self.seats):
                return
            self._advance(every)
            self.places = [place + every for place in self.places]
            self._collect()
            self._shrink()

    def _advance(self, steps: int) -> None:
        deepest = max(place for seat, place in zip(self.seats, self.places, strict=True) if seat)
        places = self.d.places_for(deepest + steps + 1)
        for _ in range(steps):
            self.d.step(self.rows, places, self.sampler)

    def _fill(self) -> None:
        free = [row for row, seat in enumerate(self.seats) if seat is None]
        # A refill of few rows is not worth a prefill, unless nothing else goes on.
        if not self.waiting or len(free) < min(len(self.waiting), max(1, self.rows // 8)):
            return
        budget = PREFILL_TOKENS["cuda" if self.d.is_cuda else "cpu"]
        while free and self.waiting:
            width = len(self.prompts[self.waiting[0].prompt])
            taken: dict[int, list[SeatJob]] = {}
            while len(free) > sum(map(len, taken.values())) and self.waiting:
                prompt = self.waiting[0].prompt
                if prompt not in taken and taken and (len(taken) + 1) * width > budget:
                    break
                taken.setdefault(prompt, []).append(self.waiting.popleft())
            self._seat(taken, free)

    def _seat(self, taken: dict[int, list[SeatJob]], free: list[int]) -> None:
        jobs = [(source, job) for source, prompt in enumerate(taken) for job in taken[prompt]]
        rows = [free.pop(0) for _ in jobs]
        device, s = self.d.device, self.d.state
        prompts = [self.prompts[prompt] for prompt in taken]
        self._prefill(prompts, [source for source, _ in jobs], rows)
        index = torch.tensor(rows, device=device)
        lengths = [len(prompts[source]) for source, _ in jobs]
        s.ids[index] = torch.tensor([prompts[source][-1] for source, _ in jobs], device=device)
        s.at[index] = torch.tensor([length - 1 for length in lengths], device=device)
        s.limit[index] = torch.tensor([job.limit for _, job in jobs], device=device)
        s.count[index] = 0
        s.entropy[index] = 0
        s.live[index] = True
        for row, length, (_, job) in zip(rows, lengths, jobs, strict=True):
            self.seats[row] = job
            self.places[row] = length - 1

    def _prefill(self, prompts: Sequence[Sequence[int]], sources: list[int], rows: list[int]) -> None:
        """All but the last token: that one is the input of the first step, whose sample is then like any other."""
        width = max(len(prompt) for prompt in prompts) - 1
        if width and not self.d.model.is_lean():
            read = [prompt[:-1] for prompt in prompts]
            packed = prefix_tree.grow(read, TREE_TOKENS)
            if prefix_tree.is_worth_it(packed, read, TREE_PAYS_FROM):
                prefix_tree.fill(self.d.model, packed, self.d.cache, sources=sources, rows=rows)
                return
        if width:
            width = up(width, 16) if self.d.is_cuda else width
            padded = np.zeros((len(prompts), width), dtype=np.int64)
            for n, prompt in enumerate(prompts):
                padded[n, : len(prompt) - 1] = prompt[:-1]
            self._read(torch.from_numpy(padded).to(self.d.device), prompts, sources, rows)

    def _read(self, ids: Tensor, prompts: Sequence[Sequence[int]], sources: list[int], rows: list[int]) -> None:
        """Prompts, padded and without their last token; row rows[i] goes on from prompt sources[i]."""
        del prompts
        which, to = torch.tensor(sources, device=self.d.device), torch.tensor(rows, device=self.d.device)
        self.d.model.prefill(ids, self.d.cache, sources=which, rows=to)

    def _collect(self) -> None:
        """Takes out what has ended, by the device's word or because its text holds a stop."""
        s = self.d.state
        packed = torch.stack((s.live[: self.rows].long(), s.count[: self.rows])).cpu().numpy()
        live, count = packed[0].astype(bool), packed[1]
        taken = np.array([seat is not None for seat in self.seats])
        ended = taken & ~live
        suspects = self._suspects(taken & live, count) if self.stops.spans_tokens else np.zeros(0, dtype=np.int64)
        rows = np.concatenate((np.flatnonzero(ended), suspects))
        if not len(rows):
            return
        index = torch.from_numpy(rows).to(self.d.device)
        width = int(count[rows].max())
        out = s.out[index, :width].cpu().numpy()
        logprobs = s.logprobs[index, :width].cpu().numpy()
        entropy = s.entropy[index].cpu().numpy()
        stopped: list[int] = []
        for n, row in enumerate(map(int, rows)):
            job, size = self.seats[row], int(count[row])
            assert job is not None
            ids = out[n, :size].tolist()
            keep, by_stop = self.stops.cut(ids)
            if live[row]:
                if not by_stop:
                    continue
                stopped.append(row)
            job.ids, job.logprobs = ids[:keep], logprobs[n, :keep].tolist()
            job.entropy = float(entropy[n]) / max(1, size)
            job.ended = by_stop
            self.seats[row] = None
            self.on_done(job)
        if stopped:
            s.live[torch.tensor(stopped, device=self.d.device)] = False

    def _suspects(self, rows: np.ndarray[Any, Any], count: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Live rows that wrote, since the last look, a token which could be the end of a stop text."""
        s, every = self.d.state, self.d.settings.check_every
        last = s.count[: self.rows, None] - torch.arange(1, every + 1, device=self.d.device)
        recent = s.out[: self.rows].gather(1, last.clamp(min=0)).cpu().numpy()
        fresh = (count[:, None] - np.arange(1, every + 1)) >= 0
        return np.flatnonzero(rows & (self.stops.closing_tokens[recent] & fresh).any(1))

    def _shrink(self) -> None:
        """Move the rows still in use to the front of a smaller batch, if nothing waits."""
        used = [row for row, seat in enumerate(self.seats) if seat is not None]
        if self.waiting or not used:
            return
        rows = row_bucket(len(used), self.rows, self.d.is_cuda)
        if rows > self.rows * 3 // 4:
            return
        source = [row for row in used if row >= rows]
        free = [row for row in range(rows) if self.seats[row] is None]
        target = free[: len(source)]
        if source:
            device = self.d.device
            a, b = torch.tensor(source, device=device), torch.tensor(target, device=device)
            self._move(a, b, source, target)
            for tensor in self.d.state.by_row():
                tensor[b] = tensor[a]
        for old, new in zip(source, target, strict=True):
            self.seats[new], self.places[new] = self.seats[old], self.places[old]
        self.seats, self.places = self.seats[:rows], self.places[:rows]
        self.rows = rows

    def _move(self, a: Tensor, b: Tensor, source: list[int], target: list[int]) -> None:
        del target
        self.d.cache.move(a, b, min(max(self.places[row] for row in source) + 1, self.d.cache.places))


class SharedSeats(Seats):
    """On a processor, for prompts with many samples each: a prompt is in one slot for all of them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        longest = max(map(len, self.prompts))
        self.shared = SharedPrompts(self.d.model, slots=self.rows, places=longest)
        self.slots = [0] * self.rows
        """The prompt's slot of each row."""

    def _advance(self, steps: int) -> None:
        pairs = list(zip(self.seats, self.places, strict=True))
        written = max(place + 1 - len(self.prompts[job.prompt]) for job, place in pairs if job)
        self.shared.seat([slot if job else None for slot, job in zip(self.slots, self.seats, strict=False)])
        places = min(written + steps + 1, self.d.cache.places)
        for _ in range(steps):
            self.d.step_shared(self.rows, places, self.sampler, self.shared)

    def _read(self, ids: Tensor, prompts: Sequence[Sequence[int]], sources: list[int], rows: list[int]) -> None:
        taken = {slot for slot, job in zip(self.slots, self.seats, strict=False) if job}
        free = [slot for slot in range(len(self.slots)) if slot not in taken]
        slots = free[: len(prompts)]
        self.shared.read(ids, [len(prompt) - 1 for prompt in prompts], slots)
        for source, row in zip(sources, rows, strict=True):
            self.slots[row] = slots[source]

    def _move(self, a: Tensor, b: Tensor, source: list[int], target: list[int]) -> None:
        self.d.cache.move(a, b, self.d.state.out.shape[1])
        for old, new in zip(source, target, strict=True):
            self.slots[new] = self.slots[old]


class FusedSeats(Seats):
    """On a processor, with our own kernels: rows that have ended cost nothing, so the batch need not shrink."""

    def __init__(self, fused: FusedRows, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fused = fused
        limit = max(job.limit for job in self.waiting)
        fused.reserve(rows=self.rows, prompt_places=max(map(len, self.prompts)), own_places=limit)
        self.slots = [0] * self.rows
        """The prompt's slot of each row."""

    def _advance(self, steps: int) -> None:
        rows = self.fused.in_order(torch.tensor([row for row, job in enumerate(self.seats) if job]))
        for _ in range(steps):
            rows = self.d.step_fused(rows, self.sampler, self.fused)
            if not len(rows):
                return

    def _prefill(self, prompts: Sequence[Sequence[int]], sources: list[int], rows: list[int]) -> None:
        taken = {slot for slot, job in zip(self.slots, self.seats, strict=True) if job}
        free = (slot for slot in range(self.rows) if slot not in taken)
        slots = [next(free) for _ in prompts]
        self.fused.read([prompt[:-1] for prompt in prompts], slots)
        for source, row in zip(sources, rows, strict=True):
            self.slots[row] = slots[source]
        self.fused.seat(rows, [self.slots[row] for row in rows])

    def _shrink(self) -> None:
        pass


def is_worth_sharing(prompts: Sequence[Sequence[int]], jobs: Sequence[SeatJob]) -> bool:
    asked = {job.prompt for job in jobs}
    # A prompt of one token leaves nothing in the cache: there would be nothing to attend to.
    return len(jobs) >= 3 * len(asked) and min(len(prompts[prompt]) for prompt in asked) > 1


def up(value: int, step: int) -> int:
    return -(-value // step) * step


def row_bucket(wanted: int, most: int, is_cuda: bool) -> int:
    """Few sizes on CUDA, because each is a graph; close ones on CPU, where a row less is time saved."""
    if not is_cuda:
        return min(most, up(wanted, 8))
    size = most
    while size // 2 >= max(wanted, 8):
        size //= 2
    return size
