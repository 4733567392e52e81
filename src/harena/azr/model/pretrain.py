"""Teaches a fresh small model to read and write the six kinds of document, from programs that we generate ourselves.

Promises: loss on completions only; held-out programs never seen; one file at the end that weights.load reads. With a
number of steps the same seed gives the same weights on CPU; with a number of minutes it ends in time, wherever it then
is. Does not do self-play: the loop starts from what this leaves.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from harena.azr.learn.optimizer import MasterAdamW
from harena.azr.model import weights
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.model.tokenizer import ByteTokenizer
from harena.azr.tasks.corpus import Array, Batch, DocumentStream, DocumentWorkers, Mix
from harena.errors import SpecError

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "feed": 160},
    "small": {"width": 256, "layers": 6, "heads": 8, "kv_heads": 4, "head_dim": 32, "feed": 704},
    "base": {"width": 320, "layers": 8, "heads": 10, "kv_heads": 5, "head_dim": 32, "feed": 896},
}
"""tiny 0.1M parameters, for tests; small 4.5M, the one that comes with Harena; base 9.6M."""

FEW_TOKENS = 100_000_000
"""Below this a model is not known to be of use. The least that self-play was run from is 117M tokens; the model that
comes with Harena has read 436M."""
FIRST_REPORT = 10
"""Steps after which the speed is known well enough to tell how many tokens the whole will read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainSettings:
    seed: int = 0
    size: str = "small"
    device: str = "cpu"
    minutes: float = 5.0
    """Wall clock of the training itself."""
    steps: int = 0
    """Optimiser steps; above 0 the clock is not looked at."""
    micro_tokens: int = 8_192
    """Tokens of one forward and backward pass; 65,536 on a GPU."""
    micro_batches: int = 2
    """Passes for one optimiser step."""
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    weight_decay: float = 0.05
    workers: int = 0
    """Processes that write documents; 0: this one."""
    mix: Mix = field(default_factory=Mix)
    save_every_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainProgress:
    step: int
    tokens: int
    loss: float
    """Nats a token of the completions, mean since the last report."""
    seconds: float
    learning_rate: float


def config_for(size: str, vocab: int) -> ModelConfig:
    if size not in SHAPES:
        raise SpecError(f"size {size!r}: there are {', '.join(SHAPES)}")
    return ModelConfig(vocab=vocab, rope_theta=10_000.0, qkv_bias=True, tied=True, **SHAPES[size])


def pretrain(
    settings: PretrainSettings,
    out: Path,
    *,
    report: Callable[[PretrainProgress], None] | None = None,
    report_every: int = 100,
    form: str = "int8",
) -> DecoderModel:
    """Trains, saves to `out` now and then and at the end, and returns the model as it was trained."""
    codec = ByteTokenizer()
    device = torch.device(settings.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shard = 2_048 if settings.micro_tokens < 16_384 else 16_384
    stream = DocumentStream(seed=settings.seed, tokens=settings.micro_tokens, mix=settings.mix, shard=shard)
    workers = DocumentWorkers(stream, count=settings.workers) if settings.workers else None
    model = DecoderModel(config_for(settings.size, codec.vocab)).start(settings.seed).to(device=device, dtype=dtype)

    def save(progress: PretrainProgress) -> None:
        said = f"pretrained {settings.size}, seed {settings.seed}: {progress.step} steps, {progress.tokens} tokens"
        weights.save(out, model, codec, form=form, note=said, tokens=progress.tokens)

    try:
        batches = workers.batches() if workers else stream.batches()
        saved = time.perf_counter()
        last: PretrainProgress | None = None
        for last in _train(model, batches, settings, report_every):
            if report is not None:
                report(last)
            if time.perf_counter() - saved > settings.save_every_s:
                save(last)
                saved = time.perf_counter()
        if last is not None:
            save(last)
        return model
    finally:
        if workers:
            workers.close()


def _train(
    model: DecoderModel, batches: Iterator[Batch], settings: PretrainSettings, report_every: int
) -> Iterator[PretrainProgress]:
    """Optimiser steps until steps or minutes are up; tells how it stands every `report_every` and at the end."""
    named = list(model.named_parameters())
    optimizer = MasterAdamW(named, betas=(0.9, 0.95), weight_decay=settings.weight_decay)
    started = time.perf_counter()
    step = tokens = counted = 0
    total = torch.zeros((), device=model.device)
    while True:
        seconds = time.perf_counter() - started
        done = step / settings.steps if settings.steps else seconds / (60 * settings.minutes)
        if step and (done >= 1 or step % report_every == 0 or step == FIRST_REPORT):
            rate = rate_at(settings, step, done)
            mean = float(total) / max(1, counted)
            yield PretrainProgress(step=step, tokens=tokens, loss=mean, seconds=seconds, learning_rate=rate)
            total.zero_()
            counted = 0
        if done >= 1:
            return
        micro = [next(batches) for _ in range(settings.micro_batches)]
        count = sum(int((batch.ends - batch.begins).sum()) for batch in micro)
        optimizer.zero_grad()
        for batch in micro:
            loss = completion_loss(model, batch)
            cast(Any, loss / count).backward()
            total += loss.detach()
        optimizer.clip(1.0)
        optimizer.step(rate_at(settings, step, done))
        step += 1
        counted += count
        tokens += sum(int(batch.ends.sum()) for batch in micro)


def expected_tokens(settings: PretrainSettings, now: PretrainProgress) -> int:
    """Tokens at the end, at the speed so far."""
    if settings.steps:
        return round(now.tokens / now.step * settings.steps)
    return round(now.tokens / max(now.seconds, 1e-9) * 60 * settings.minutes)


def few(tokens: int) -> str:
    """Warn about a model that read too little; empty when it read enough."""
    if tokens >= FEW_TOKENS:
        return ""
    return (
        f"{tokens / 1e6:.1f}M tokens are few: no model that read fewer than {FEW_TOKENS / 1e6:.0f}M was seen to gain "
        "from self-play. That takes minutes on a GPU (--device cuda --workers 7) and hours on a processor; "
        "`--model default` comes with Harena and has read 436M"
    )


def rate_at(settings: PretrainSettings, step: int, done: float) -> float:
    """Rises over the first steps, then falls along a cosine to a twentieth with the share that is done."""
    rise = min(1.0, (step + 1) / max(1, settings.warmup_steps))
    fall = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return settings.learning_rate * rise * fall


def completion_loss(model: DecoderModel, batch: Batch) -> Tensor:
    """Cross-entropy summed over the tokens of the completions."""
    rows, places = _wanted(batch)
    device = model.device
    ids = torch.from_numpy(batch.ids.astype(np.int64)).to(device)
    targets = torch.from_numpy(batch.ids[rows, places].astype(np.int64)).to(device)
    # The token at a place is predicted from the place before it.
    at = model.hidden(ids)[torch.from_numpy(rows).to(device), torch.from_numpy(places - 1).to(device)]
    return F.cross_entropy(model.logits(at).float(), targets, reduction="sum")


def _wanted(batch: Batch) -> tuple[Array, Array]:
    """Rows and places of every completion token."""
    counts = (batch.ends - batch.begins).astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, np.repeat(batch.begins.astype(np.int64), counts) + offsets
