"""Sampling many completions at once from one model, on CPU or CUDA.

Promises: on CUDA one recorded graph runs a whole step with its sampling in it, and the host looks only every few steps;
the same seed, prompts and weights give the same tokens (bit for bit on CPU). Falls back to plain calls, with a warning,
when a graph cannot be recorded. Which completion is in which row is for seats.py. Does not know tasks, rewards or
learning.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harena.azr.model import flash, kernels, lean
from harena.azr.model.decoder import Cache, DecoderModel, RowKernels, project, rest
from harena.azr.model.fused import FusedRows
from harena.azr.model.seats import FusedSeats, SeatJob, Seats, SharedSeats, is_worth_sharing, row_bucket, up
from harena.azr.model.shared import SharedPrompts
from harena.azr.model.stops import Stops
from harena.errors import SpecError

log = logging.getLogger(__name__)

PLACES_STEP = 128
MAX_VIEWS = 64
"""Views of the cache that are kept. A processor looks at as many places as it must, so there are hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    rows: int = 256
    """Sequences decoded side by side."""
    check_every: int = 8
    """Steps between two looks at what has ended."""
    graphs: bool = True
    """Record CUDA graphs. Off: the same steps, launched one kernel at a time."""
    fuse: bool = False
    """Compile the parts of a step that are many small kernels: pays for large models and long runs."""
    kernel: bool = True
    """Use our attention kernel on CUDA where it works and agrees with the plain form."""
    max_places: int = 0
    """Room of a row, prompt and completion together; 0 takes what the first call needs and grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    temperature: float
    top_p: float
    greedy: bool

    def __post_init__(self) -> None:
        if self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise SpecError("temperature must be above 0 (use greedy) and top_p in (0, 1]")


class _DecodeState:
    """Device tensors that a step reads and writes in place: their addresses must not change under a graph."""

    def __init__(self, rows: int, width: int, vocab: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, device=device, dtype=dtype)

        self.ids, self.at, self.count, self.limit = zeros(rows), zeros(rows), zeros(rows), zeros(rows)
        self.live = zeros(rows, dtype=torch.bool)
        self.out = zeros(rows, width)
        self.logprobs = zeros(rows, width, dtype=torch.float32)
        self.entropy = zeros(rows, dtype=torch.float32)
        self.ends = zeros(vocab, dtype=torch.bool)
        self.heat = torch.ones((), device=device)

    def described(self) -> kernels.KernelState:
        parts = (self.ids, self.at, self.count, self.limit, self.out, self.logprobs, self.entropy, self.live, self.ends)
        return kernels.KernelState(*(part.data_ptr() for part in parts), self.out.shape[1])

    def by_row(self) -> tuple[Tensor, ...]:
        return self.ids, self.at, self.count, self.limit, self.live, self.out, self.logprobs, self.entropy


def measure(logits: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of softmax(logits / temperature) and their entropy."""
    logp = torch.log_softmax(logits.float() / heat, dim=-1)
    return logp, -(logp.exp() * logp).sum(-1)


def pick(scores: Tensor, noise: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
    """Sample softmax(scores) as the largest of score − log of exponential noise: Gumbel's trick, without a sum."""
    token = (scores - noise.log()).argmax(-1)
    return token, logp.gather(-1, token[:, None])[:, 0]


def draw(scores: Tensor, generator: torch.Generator) -> Tensor:
    """A sample of softmax(scores), as a walk up the ladder of chances: one random number a row, not one a token."""
    ladder = scores.exp().cumsum(-1, dtype=torch.float64)
    mark = torch.rand((ladder.shape[0], 1), generator=generator, dtype=torch.float64) * ladder[:, -1:]
    return torch.searchsorted(ladder, mark, right=True)[:, 0].clamp_(max=scores.shape[-1] - 1)


@dataclass(slots=True)
class _SampleKernels:
    measure: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = measure
    pick: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = pick


def choose(
    logits: Tensor, sampler: Sampler, heat: Tensor, generator: torch.Generator | None, how: _SampleKernels
) -> tuple[Tensor, Tensor, Tensor]:
    """A token a row, its log probability and the entropy of what it was drawn from. `generator`: of a processor."""
    logp, entropy = how.measure(logits, heat)
    if sampler.greedy:
        token = logp.argmax(-1)
        return token, logp.gather(-1, token[:, None])[:, 0], entropy
    scores = logp if sampler.top_p >= 1 else _nucleus(logp, sampler.top_p)
    if generator is not None:
        token = draw(scores, generator)
        return token, logp.gather(-1, token[:, None])[:, 0], entropy
    noise = torch.empty_like(logp).exponential_()
    token, logprob = how.pick(scores, noise, logp)
    return token, logprob, entropy


def _nucleus(logp: Tensor, top_p: float) -> Tensor:
    ordered, order = logp.exp().sort(dim=-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    return logp.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf"))


class Decoder:
    """Owns a cache and the recorded graphs for one model; weights changed in place are seen at once."""

    def __init__(self, model: DecoderModel, settings: DecodeSettings) -> None:
        self.model = model
        self.settings = settings
        self.device = model.device
        self.is_cuda = self.device.type == "cuda"
        self.graphs_recorded = 0
        self._use_graphs = settings.graphs and self.is_cuda
        self._kernels, self._sample_kernels = _kernels(settings, model)
        self._state: _DecodeState | None = None
        self._cache: Cache | None = None
        self._views: dict[tuple[int, int], Cache] = {}
        self._graphs: dict[tuple[int, int, float, bool], Any] = {}
        self._generator: torch.Generator | None = None
        self._fused: FusedRows | None = None
        self._pool: Any = None
        """Memory that all graphs share: they run one after the other, and keep nothing of their own."""

    @torch.no_grad()
    def run(
        self,
        prompts: Sequence[Sequence[int]],
        jobs: Iterable[SeatJob],
        *,
        sampler: Sampler,
        stops: Stops,
        seed: int,
        on_done: Callable[[SeatJob], None],
    ) -> None:
        """Fills in every job and calls `on_done` with it, in the order in which they end."""
        # Long prompts first: the rows that are left at the end are then short ones.
        waiting = deque(sorted(jobs, key=lambda job: -len(prompts[job.prompt])))
        if not waiting:
            return
        need = max(len(prompts[job.prompt]) + job.limit for job in waiting)
        rows = min(self.settings.rows, row_bucket(len(waiting), self.settings.rows, self.is_cuda))
        width = max(job.limit for job in waiting)
        call = (self, prompts, waiting, sampler, stops, rows, on_done)
        if self.model.is_lean() and kernels.is_there() and sampler.top_p >= 1:
            self._reserve_state(rows, width)
            self._seed(seed)
            self._fused = self._fused or FusedRows(self.model)
            FusedSeats(self._fused, *call).go()
            return
        self._reserve(rows, need, width)
        self._seed(seed)
        shared = self.model.is_lean() and is_worth_sharing(prompts, waiting)
        (SharedSeats if shared else Seats)(*call).go()

    def _reserve(self, rows: int, places: int, width: int) -> None:
        """Room for a call. Grows only; what a graph has recorded is dropped with the memory it points to."""
        settings = self.settings
        rows = max(rows, settings.rows if self.is_cuda else rows)
        places = max(up(places + settings.check_every, PLACES_STEP), settings.max_places)
        cache = self._cache
        if cache is None or cache.rows < rows or cache.places < places:
            self._drop_graphs()
            self._views.clear()
            if cache is not None:
                rows, places = max(rows, cache.rows), max(places, cache.places)
            self._cache = cache = None  # the old one goes before the new one comes
            self._cache = Cache(self.model.config, rows=rows, places=places, device=self.device, dtype=self.model.dtype)
        self._reserve_state(max(rows, self.cache.rows), width)

    def _reserve_state(self, rows: int, width: int) -> None:
        state, width = self._state, up(width, 64)
        if state is None or state.ids.shape[0] < rows or state.out.shape[1] < width:
            self._drop_graphs()
            if state is not None:
                rows, width = max(rows, state.ids.shape[0]), max(width, state.out.shape[1])
            self._state = _DecodeState(rows, width, self.model.config.vocab, self.device)

    def _seed(self, seed: int) -> None:
        if self.is_cuda:
            # The default generator is the one whose offset a replayed graph moves on by itself.
            torch.cuda.manual_seed(seed)
        else:
            self._generator = torch.Generator().manual_seed(seed)

    @property
    def state(self) -> _DecodeState:
        assert self._state is not None
        return self._state

    @property
    def cache(self) -> Cache:
        assert self._cache is not None
        return self._cache

    def places_for(self, deepest: int) -> int:
        """How much of the cache a step has to look at. Our kernel stops at each row's own end: one graph serves all."""
        if self._kernels.attend is flash.attend:
            return self.cache.places
        return min(_place_bucket(deepest, self.is_cuda), self.cache.places)

    def step(self, rows: int, places: int, sampler: Sampler) -> None:
        """One token for the first `rows` rows, looking at the first `places` of each."""
        graph = self._graph(rows, places, sampler) if self._use_graphs else None
        if graph is None:
            self._step(rows, places, sampler)
        else:
            graph.replay()

    def _step(self, rows: int, places: int, sampler: Sampler) -> None:
        s = self.state
        # A row that has ended may stand beyond the places looked at; it must not write outside them.
        place = s.at[:rows].clamp(max=places - 1)
        self._take(self.model.step(s.ids[:rows], place, self._view(rows, places), self._kernels), rows, sampler)

    def step_shared(self, rows: int, places: int, sampler: Sampler, prompts: SharedPrompts) -> None:
        """Decode as `step` does; `places` are those of what the rows have written themselves."""
        s = self.state
        place = s.count[:rows].clamp(max=places - 1)
        self._take(prompts.step(s.ids[:rows], s.at[:rows], place, self._view(rows, places)), rows, sampler)

    def step_fused(self, rows: Tensor, sampler: Sampler, fused: FusedRows) -> Tensor:
        """One token for each of `rows`; returns those that live on."""
        s = self.state
        logits = fused.step(rows, s.ids, s.at, s.count)
        marks = None if sampler.greedy else torch.rand(len(rows), generator=self._generator, dtype=torch.float64)
        return rows[: kernels.sample(logits, sampler.temperature, marks, rows, s.described())]

    def _take(self, logits: Tensor, rows: int, sampler: Sampler) -> None:
        """Samples, and notes what the rows that live have written."""
        s = self.state
        live, count = s.live[:rows], s.count[:rows]
        token, logprob, entropy = choose(logits, sampler, s.heat, self._generator, self._sample_kernels)
        row = torch.arange(rows, device=self.device)
        at = count.clamp(max=s.out.shape[1] - 1)
        s.out[row, at] = torch.where(live, token, s.out[row, at])
        s.logprobs[row, at] = torch.where(live, logprob, s.logprobs[row, at])
        s.entropy[:rows] += entropy * live
        count += live
        s.at[:rows] += live
        s.ids[:rows] = torch.where(live, token, s.ids[:rows])
        live &= ~(s.ends[token] | (count >= s.limit[:rows]))

    def _view(self, rows: int, places: int) -> Cache:
        key = (rows, places)
        if key not in self._views:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            self._views[key] = self.cache.view(rows, places)
        return self._views[key]

    def _graph(self, rows: int, places: int, sampler: Sampler) -> Any:
        key = (rows, places, sampler.top_p, sampler.greedy)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._record(rows, places, sampler)
                self.graphs_recorded += 1
            except RuntimeError as error:
                log.warning("a CUDA graph could not be recorded, going on without: %s", error)
                torch.cuda.synchronize()
                self._use_graphs = False
                self._drop_graphs()
                return None
        return self._graphs[key]

    def _drop_graphs(self) -> None:
        self._graphs.clear()
        self._pool = None  # torch gives a pool back with its last graph: its name is worth nothing then

    def _record(self, rows: int, places: int, sampler: Sampler) -> Any:
        """Warms the step up on a side stream with every row dead, so nothing is written, then records it."""
        live = self.state.live
        kept = live.clone()
        # A dead row still writes a key at its place; its own next key goes there anyway.
        live.zero_()
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._step(rows, places, sampler)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool):
                self._step(rows, places, sampler)
            return graph
        finally:
            live.copy_(kept)


def _kernels(settings: DecodeSettings, model: DecoderModel) -> tuple[RowKernels, _SampleKernels]:
    row, sample = RowKernels(), _SampleKernels()
    is_cuda = model.device.type == "cuda"
    if model.is_lean():
        row = RowKernels(project=lean.project_row, attend=lean.attend_row, rest=lean.rest_row)
    if settings.kernel and is_cuda:
        row.attend = flash.best(model.config, model.device, model.dtype)
    if settings.fuse and is_cuda:
        row.project, row.rest = torch.compile(project, dynamic=False), torch.compile(rest, dynamic=False)
        sample.measure, sample.pick = torch.compile(measure, dynamic=False), torch.compile(pick, dynamic=False)
    return row, sample


def _place_bucket(wanted: int, is_cuda: bool) -> int:
    return up(wanted, PLACES_STEP if wanted <= 1_024 else 512) if is_cuda else wanted
