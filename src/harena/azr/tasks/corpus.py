"""Documents to pretrain the small model on: programs.py's programs in the form that prompts.py gives all six role-kind
pairs.

Promises: nothing held out; the same seed, the same batches in the same order, whatever the number of processors that
make them does with time; only numpy here, so that worker processes start quickly. Trains nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from queue import Empty, Full
from random import Random
from typing import Any

import numpy as np

from harena.azr.model.tokenizer import ByteTokenizer
from harena.azr.tasks import programs, prompts
from harena.azr.tasks.kinds import Role, Task, TaskKind, Triplet
from harena.azr.tasks.task_kinds import TASK_KINDS
from harena.errors import HarenaError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often what is seen. The default leaves head-room: solving is taught mostly on short programs."""

    pairs: tuple[tuple[Role, TaskKind, float], ...] = tuple(
        (role, kind, one.pretrain_shares[role])
        for role in (Role.SOLVE, Role.PROPOSE)
        for kind, one in TASK_KINDS.items()
    )
    solve_ops: tuple[float, ...] = (0.40, 0.35, 0.17, 0.08)
    """Shares of 1, 2, 3 and 4 operations."""
    propose_ops: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    references: int = 6
    """At most, for proposals; fewer are seen as well."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded documents: token ids (rows × width), where the completion begins and where the document ends."""

    ids: Array
    begins: Array
    ends: Array


class Documents:
    """An endless stream of (prompt, completion)."""

    def __init__(self, seed: int, mix: Mix, *, held_out: bool = False) -> None:
        self._rng = Random(seed)
        self._mix = mix
        self._held_out = held_out
        self._recent: list[Triplet] = [prompts.SHOTS[0]]
        self._weights = [share for _, _, share in mix.pairs]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        while True:
            role, kind, _ = self._rng.choices(self._mix.pairs, weights=self._weights)[0]
            yield self.one(role, kind)

    def one(self, role: Role, kind: TaskKind) -> tuple[str, str]:
        shares = self._mix.solve_ops if role is Role.SOLVE else self._mix.propose_ops
        ops = self._rng.choices(range(1, len(shares) + 1), weights=shares)[0]
        inputs = TASK_KINDS[kind].inputs(prompts.COMPACT.inputs)
        task = as_task(kind, programs.draw(self._rng, ops=ops, inputs=inputs, held_out=self._held_out))
        if role is Role.SOLVE or not isinstance(task, Triplet):
            return prompts.document(role, kind, task)
        few = self._rng.random() < 0.3
        count = self._rng.randint(1, self._mix.references) if few else self._mix.references
        references = self._rng.sample(self._recent, k=min(count, len(self._recent)))
        self._recent.append(task)
        if len(self._recent) > 512:
            self._recent = self._recent[256:]
        return prompts.document(role, kind, task, references=references)


def as_task(kind: TaskKind, example: programs.Example) -> Task:
    pairs = tuple(zip(example.inputs, example.outputs, strict=True))
    return TASK_KINDS[kind].make(program=example.program, message=example.message, pairs=pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentStream:
    """Batches of about `tokens` tokens, documents of one length together, longer than `longest` left out."""

    seed: int
    tokens: int = 65_536
    shard: int = 16_384
    """Documents that are sorted by length at a time."""
    longest: int = 512
    mix: Mix = field(default_factory=Mix)
    pieces: tuple[str, ...] | None = None
    """Pieces of the tokenizer; None: the usual ones."""

    def batches(self) -> Iterator[Batch]:
        codec = ByteTokenizer(self.pieces)
        rng = Random(self.seed)
        documents = iter(Documents(self.seed, self.mix))
        while True:
            shard: list[tuple[list[int], list[int]]] = []
            while len(shard) < self.shard:
                prompt, completion = next(documents)
                pair = (codec.encode(prompt), codec.encode(completion))
                if len(pair[0]) + len(pair[1]) <= self.longest:
                    shard.append(pair)
            made = list(_cut(shard, self.tokens))
            rng.shuffle(made)
            yield from made


def _cut(shard: list[tuple[list[int], list[int]]], tokens: int) -> Iterator[Batch]:
    shard.sort(key=lambda pair: len(pair[0]) + len(pair[1]), reverse=True)
    first = 0
    while first < len(shard):
        width = -(-(len(shard[first][0]) + len(shard[first][1])) // 16) * 16
        rows = max(1, tokens // width)
        yield pad(shard[first : first + rows], width)
        first += rows


def pad(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], width: int) -> Batch:
    ids = np.zeros((len(pairs), width), dtype=np.uint16)
    for row, (prompt, completion) in enumerate(pairs):
        ids[row, : len(prompt)] = prompt
        ids[row, len(prompt) : len(prompt) + len(completion)] = completion
    begins = np.array([len(prompt) for prompt, _ in pairs], dtype=np.int32)
    ends = begins + np.array([len(completion) for _, completion in pairs], dtype=np.int32)
    return Batch(ids, begins, ends)


def _work(stream: DocumentStream, queue: Any, stop: Any) -> None:
    for batch in stream.batches():
        while not stop.is_set():
            try:
                queue.put((batch.ids, batch.begins, batch.ends), timeout=0.5)
                break
            except Full:
                continue
        if stop.is_set():
            queue.cancel_join_thread()
            return


def _next(queue: Any, process: BaseProcess) -> tuple[Array, Array, Array]:
    while True:
        try:
            return queue.get(timeout=2.0)
        except Empty:
            if not process.is_alive():
                raise HarenaError(f"a process that writes documents ended by itself ({process.exitcode})") from None


class DocumentWorkers:
    """Streams made by other processes, taken in turn: the order does not depend on which is quicker."""

    def __init__(self, stream: DocumentStream, *, count: int, ahead: int = 8) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop: Any = context.Event()
        self._queues: list[Any] = [context.Queue(ahead) for _ in range(count)]
        self._processes: list[BaseProcess] = []
        for number, queue in enumerate(self._queues):
            own = DocumentStream(
                seed=stream.seed * 1_000 + number,
                tokens=stream.tokens,
                shard=stream.shard,
                longest=stream.longest,
                mix=stream.mix,
                pieces=stream.pieces,
            )
            process = context.Process(target=_work, args=(own, queue, self._stop), daemon=True)
            process.start()
            self._processes.append(process)

    def batches(self) -> Iterator[Batch]:
        while True:
            for queue, process in zip(self._queues, self._processes, strict=True):
                yield Batch(*_next(queue, process))

    def close(self) -> None:
        self._stop.set()
        for process in self._processes:
            process.join(timeout=2)
            if process.is_alive():
                process.terminate()
                process.join()
        for queue in self._queues:
            queue.close()
            queue.cancel_join_thread()
