"""Learning from rollouts: one epoch (or more) of clipped policy gradient with AdamW, on the weights that generate.

Promises: weights change in place, so a decoder that shares them sees the update; with half-precision weights the
optimiser keeps float32 masters; the same rollouts in the same order give the same weights, and `load(state())` goes on
bit for bit (CPU). Takes finished advantages: how they are made is advantages.py's.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint

from harena.azr.engines.protocol import Completion, Rollout, Update
from harena.azr.learn.optimizer import MasterAdamW
from harena.azr.model import prefix_tree
from harena.azr.model.decoder import DecoderModel
from harena.errors import SpecError

LARGE = 300_000_000
"""Parameters from which activations are recomputed in the backward pass."""
TREE_TOKENS = 4_096
PAYS_FROM = 0.5
"""Share of the tokens that is left with trees, from which they pay on a processor, whose kernels for sequences are
faster than torch's attention with a mask."""
LOGIT_ELEMENTS = 1 << 28
"""Logits held at once (float32: 1 GiB); more positions are taken in turns and recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnSettings:
    value_head: bool = False
    """A linear layer that expects the return at each token, for PPO."""
    micro_tokens: int = 0
    """Tokens of one forward and backward pass, padding counted; 0 chooses by device and size."""
    save_memory: bool | None = None
    """Recompute activations; None chooses by size."""
    share_prompts: bool | None = None
    """Compute what sequences begin with once (prefix_tree.py); None: on CUDA, and on a processor where it pays."""
    keep_prompts: bool = False
    """Rows of one prompt go into one mini-batch, so that more is shared. Mini-batches then have fewer tasks each."""
    warmup_steps: int = 0
    """Optimiser steps over which the learning rate rises."""
    beta1: float = 0.9
    beta2: float = 0.99
    """Decay of AdamW's two means."""
    weight_decay: float = 0.0

    def tree_tokens(self, size: int, *, is_cuda: bool) -> int:
        """Tokens of one tree: attention looks at all pairs of them, so that more is not always better."""
        return min(TREE_TOKENS, self.tokens_at_once(size, is_cuda=is_cuda))

    def tokens_at_once(self, size: int, *, is_cuda: bool) -> int:
        """Tokens of a forward and backward pass of a model with `size` parameters."""
        return self.micro_tokens or (1_024 if not is_cuda else 32_768 if size > LARGE else 131_072)

    def saves_memory(self, size: int) -> bool:
        return size > LARGE if self.save_memory is None else self.save_memory


class PolicyLearner:
    def __init__(self, model: DecoderModel, settings: LearnSettings, *, pad: int) -> None:
        self.model = model
        self.settings = settings
        self.temperature = 1.0
        """What the rollouts were sampled with: probabilities are compared at the same."""
        self.steps = 0
        self.value = _value_head(model) if settings.value_head else None
        size = model.parameter_count()
        is_cuda = model.device.type == "cuda"
        self._pad = pad
        self._micro = settings.tokens_at_once(size, is_cuda=is_cuda)
        self._tree_tokens = settings.tree_tokens(size, is_cuda=is_cuda)
        self._save = settings.saves_memory(size)
        self._reference: DecoderModel | None = None
        extra = [] if self.value is None else [(f"value.{n}", p) for n, p in self.value.named_parameters()]
        named = [*model.named_parameters(), *extra]
        self._optimizer = MasterAdamW(named, betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay)

    # ---- one update ----

    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        started = time.perf_counter()
        usable = [rollout for rollout in rollouts if rollout.completion.ids]
        if not usable:
            return {"skipped": 1.0}
        if update.value > 0 and self.value is None:
            raise SpecError("a value loss needs a value head: make the engine with value_head=True")
        if update.kl > 0 and self._reference is None:
            self._reference = copy.deepcopy(self.model).requires_grad_(False)
        total: dict[str, float] = {}
        batches = 0
        for _ in range(update.epochs):
            order = self._order(usable)
            for first in range(0, len(order), update.mini_batch):
                chosen = [usable[n] for n in order[first : first + update.mini_batch]]
                for name, value in self._mini_batch(chosen, update).items():
                    total[name] = total.get(name, 0.0) + value
                batches += 1
        metrics = {name: value / batches for name, value in total.items()}
        tokens = sum(len(r.completion.ids) + len(r.completion.prompt_ids) for r in usable) * update.epochs
        seconds = time.perf_counter() - started
        counts = {"tokens": float(tokens), "tokens_computed": total["tokens_computed"]}
        return {**metrics, "optimizer_steps": float(batches), **counts, "seconds": seconds}

    def _order(self, rollouts: Sequence[Rollout]) -> list[int]:
        """A shuffle of rows, or of prompts with all of their rows."""
        shuffled = Random(self.steps)
        if not self.settings.keep_prompts:
            order = list(range(len(rollouts)))
            shuffled.shuffle(order)
            return order
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for number, one in enumerate(rollouts):
            by_prompt.setdefault(one.completion.prompt_ids, []).append(number)
        groups = list(by_prompt.values())
        shuffled.shuffle(groups)
        return list(chain.from_iterable(groups))

    def _mini_batch(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        self._optimizer.zero_grad()
        tokens = sum(len(rollout.completion.ids) for rollout in rollouts)
        learnt = [one for one in rollouts if not _says_nothing(one, update)]
        counts = {
            "tokens_computed": 0.0,
            "without_advantage": 1.0 - len(learnt) / len(rollouts),
        }
        sums: Tensor | None = None
        for micro in self._micro_batches(learnt):
            part = self._backward(micro, update, tokens=tokens, samples=len(rollouts))
            sums = part if sums is None else sums + part
            counts["tokens_computed"] += micro.computed
        if sums is None:
            return {**counts, "skipped": 1.0}
        norm = self._optimizer.clip(update.max_grad_norm)
        seen = sum(len(rollout.completion.ids) for rollout in learnt)
        policy, entropy, drift, clipped, value, kl = (sums / seen).tolist()
        metrics = {
            **counts,
            "policy_loss": policy,
            "entropy": entropy,
            "drift": drift,
            "clip_fraction": clipped,
            "grad_norm": float(norm),
            **({"value_loss": value} if self.value is not None else {}),
            **({"kl": kl} if update.kl > 0 else {}),
        }
        if not np.isfinite(metrics["grad_norm"]):
            return {**metrics, "grad_norm": 0.0, "skipped": 1.0}  # a broken gradient must not reach the weights
        rate = update.learning_rate * min(1.0, (self.steps + 1) / max(1, self.settings.warmup_steps))
        self._optimizer.step(rate)
        self.steps += 1
        return {**metrics, "learning_rate": rate}

    def _micro_batches(self, rollouts: Sequence[Rollout]) -> list[_LearnBatch]:
        device = self.model.device
        sequences = [_read_by(one.completion) for one in rollouts]
        shares = self.settings.share_prompts
        packed = [] if shares is False else prefix_tree.grow(sequences, self._tree_tokens)
        if shares is None and device.type != "cuda":
            shares = prefix_tree.is_worth_it(packed, sequences, PAYS_FROM)
        if shares is False:
            return [_LearnBatch(part, device, self._pad) for part in _micro_batches(rollouts, self._micro)]
        return [
            _LearnBatch([rollouts[branch.sequence] for branch in one.branches], device, self._pad, packed=one)
            for one in packed
        ]

    def _backward(self, batch: _LearnBatch, update: Update, *, tokens: int, samples: int) -> Tensor:
        """Gradients of one micro-batch, and sums over its tokens: policy, entropy, drift, clipped, value, KL."""
        at = batch.hidden(self.model, save_memory=self._save)
        logp, entropy = token_stats(self.model, at, batch.targets, self.temperature)
        ratio = torch.exp(logp - batch.old)
        bounded = ratio.clamp(1 - update.clip, 1 + update.clip)
        policy = torch.maximum(-batch.advantages * ratio, -batch.advantages * bounded)
        loss = policy - update.entropy * entropy
        zero = torch.zeros_like(policy)
        value, kl = zero, zero
        if update.value > 0 and self.value is not None:
            value = 0.5 * (self.value(at).float()[:, 0] - batch.returns).square()
            loss = loss + update.value * value
        if update.kl > 0:
            kl = self._kl(batch, logp)
            loss = loss + update.kl * kl
        weights = 1.0 / tokens if update.token_mean else batch.sample_weights / samples
        cast(Any, (loss * weights).sum()).backward()
        with torch.no_grad():
            drift = batch.old - logp
            clipped = (torch.abs(ratio - 1) > update.clip).float()
            return torch.stack([part.sum() for part in (policy, entropy, drift, clipped, value, kl)]).detach()

    def _kl(self, batch: _LearnBatch, logp: Tensor) -> Tensor:
        """Schulman's estimator, never negative: exp(d) − d − 1 with d = log reference − log policy."""
        assert self._reference is not None
        with torch.no_grad():
            at = batch.hidden(self._reference)
            first, _ = token_stats(self._reference, at, batch.targets, self.temperature)
        difference = first - logp
        return difference.exp() - difference - 1

    @torch.no_grad()
    def values(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """What the value head expects before each token of each answer."""
        if self.value is None:
            raise SpecError("no value head")
        found: list[tuple[float, ...]] = [()] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]) + len(answers[n]))
        for chunk in _by_tokens(order, [len(prompts[n]) + len(answers[n]) for n in order], self._micro):
            width = max(len(prompts[n]) + len(answers[n]) for n in chunk)
            ids = np.full((len(chunk), width), self._pad, dtype=np.int64)
            for row, n in enumerate(chunk):
                both = [*prompts[n], *answers[n]]
                ids[row, : len(both)] = both
            hidden = self.model.hidden(torch.from_numpy(ids).to(self.model.device))
            expected = self.value(hidden).float()[..., 0].cpu()
            for row, n in enumerate(chunk):
                first = len(prompts[n]) - 1
                found[n] = tuple(expected[row, first : first + len(answers[n])].tolist())
        return found

    # ---- state ----

    def state(self) -> dict[str, Any]:
        state = {"steps": self.steps, "temperature": self.temperature, **self._optimizer.state()}
        if self._reference is not None:
            state.update({f"reference/{n}": p.detach().clone() for n, p in self._reference.named_parameters()})
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load(state)
        self.steps, self.temperature = int(state["steps"]), float(state["temperature"])
        reference = {name[10:]: value for name, value in state.items() if name.startswith("reference/")}
        if reference:
            self._reference = copy.deepcopy(self.model).requires_grad_(False)
            self._reference.load_state_dict(reference)


class _LearnBatch:
    """Sequences of prompt and completion, right-padded or as a tree, and one entry for every completion token."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        device: torch.device,
        pad: int,
        *,
        packed: prefix_tree.PackedTree | None = None,
    ) -> None:
        """`packed`: the tree of these rollouts, with a branch for each of them, in their order."""
        done = [rollout.completion for rollout in rollouts]
        counts = [len(c.ids) for c in done]

        def put(values: Any, dtype: Any = np.float32) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=dtype)).to(device)

        self._tree = None if packed is None else packed.tree
        if packed is None:
            ids, places = _padded(done, pad)
            self._ids = put(ids, np.int64)
            self._rows = put(np.repeat(np.arange(len(done)), counts), np.int64)
            self.computed = sum(len(c.prompt_ids) + len(c.ids) for c in done)
        else:
            pairs = zip(packed.branches, done, strict=True)
            places = np.concatenate([branch.path[len(c.prompt_ids) - 1 :] for branch, c in pairs])
            self.computed = len(packed.tree)
        self._places = put(places, np.int64)
        self.targets = put(np.concatenate([c.ids for c in done]), np.int64)
        self.old = put(np.concatenate([c.logprobs for c in done]))
        self.advantages = put(np.concatenate([_spread(r.advantage, n) for r, n in zip(rollouts, counts, strict=True)]))
        self.returns = put(
            np.concatenate([_spread(r.returns or r.reward, n) for r, n in zip(rollouts, counts, strict=True)])
        )
        self.sample_weights = put(np.repeat([1.0 / n for n in counts], counts))

    def hidden(self, model: DecoderModel, *, save_memory: bool = False) -> Tensor:
        """Hidden states that predict the completions' tokens."""
        if self._tree is not None:
            return prefix_tree.hidden_at(model, self._tree, self._places, save_memory=save_memory)
        return model.hidden_at(self._ids, self._rows, self._places, save_memory=save_memory)


def _padded(done: Sequence[Completion], pad: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows of ids, and the places in their rows that predict the completions."""
    ids = np.full((len(done), max(len(c.prompt_ids) + len(c.ids) for c in done)), pad, dtype=np.int64)
    for row, c in enumerate(done):
        ids[row, : len(c.prompt_ids)] = c.prompt_ids
        ids[row, len(c.prompt_ids) : len(c.prompt_ids) + len(c.ids)] = c.ids
    places = [np.arange(len(c.prompt_ids) - 1, len(c.prompt_ids) - 1 + len(c.ids)) for c in done]
    return ids, np.concatenate(places)


def _read_by(completion: Completion) -> tuple[int, ...]:
    """What a model reads to predict the completion: all but its last token."""
    return (*completion.prompt_ids, *completion.ids[:-1])


def _says_nothing(rollout: Rollout, update: Update) -> bool:
    """Whether the gradient of a rollout is zero, or is taken for that by `skip_flat`."""
    advantage = rollout.advantage
    is_flat = not any(advantage) if isinstance(advantage, tuple) else advantage == 0
    return is_flat and (update.skip_flat or not (update.entropy or update.kl or update.value))


def _spread(value: float | tuple[float, ...], count: int) -> np.ndarray[Any, Any]:
    if isinstance(value, tuple):
        if len(value) != count:
            raise SpecError(f"{len(value)} values for {count} tokens")
        return np.array(value, dtype=np.float32)
    return np.full(count, value, dtype=np.float32)


def token_stats(model: DecoderModel, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log probability of each target and entropy of its distribution; hidden is positions × width."""
    chunk = max(1, LOGIT_ELEMENTS // model.config.vocab)
    if hidden.shape[0] <= chunk:
        return _stats(model, hidden, targets, temperature)
    parts = [
        cast(tuple[Tensor, Tensor], checkpoint.checkpoint(_stats, model, h, t, temperature, use_reentrant=False))
        for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _stats(model: DecoderModel, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logp = F.log_softmax(model.logits(hidden).float() / temperature, dim=-1)
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def _micro_batches(rollouts: Sequence[Rollout], budget: int) -> list[list[Rollout]]:
    lengths = [len(r.completion.prompt_ids) + len(r.completion.ids) for r in rollouts]
    order = sorted(range(len(rollouts)), key=lambda n: lengths[n])
    return [[rollouts[n] for n in chunk] for chunk in _by_tokens(order, [lengths[n] for n in order], budget)]


def _by_tokens(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Neighbours of ascending length together, as many as fit the budget when padded to the longest."""
    chunks: list[list[int]] = []
    for n, length in zip(order, lengths, strict=True):
        if not chunks or (len(chunks[-1]) + 1) * length > budget:
            chunks.append([])
        chunks[-1].append(n)
    return chunks


def _value_head(model: DecoderModel) -> nn.Linear:
    head = nn.Linear(model.config.width, 1, device=model.device, dtype=model.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
