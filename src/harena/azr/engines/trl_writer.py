"""How the model of a GRPOTrainer writes: with transformers' `generate`, or with the vLLM that TRL keeps beside it.

Guarantees: completions in the order of the prompts, each cut at its own limit, its first stop string or end token; the
log probabilities are those the tokens were sampled with. With transformers the same seed, prompts and weights give the
same completions; vLLM draws from its own generator, and tells no entropies. All processes of a run write at once, each
the same number of rows: weights that are shared out between them, and vLLM's server, are used by all together.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harena.azr.engines import trl_models
from harena.azr.engines.openai_engine import before_stop
from harena.azr.engines.protocol import Completion, Sampling


class Writer(Protocol):
    def write(
        self, prompts: Sequence[str], limits: Sequence[int], sampling: Sampling, *, seed: int
    ) -> list[Completion]: ...

    def refresh(self) -> None:
        """Makes sure that the weights that write are those that were learnt last. Called by all processes."""
        ...


def of(trainer: Any, tokenizer: Any) -> Writer:
    return Vllm(trainer, tokenizer) if getattr(trainer, "use_vllm", False) else Transformers(trainer, tokenizer)


@dataclass(slots=True)
class Transformers:
    trainer: Any
    tokenizer: Any

    def write(
        self, prompts: Sequence[str], limits: Sequence[int], sampling: Sampling, *, seed: int
    ) -> list[Completion]:
        torch = importlib.import_module("torch")
        utils = importlib.import_module("trl.models.utils")
        sharding = importlib.import_module("trl.distributed").DistributedBackend(self.trainer.accelerator)
        encoded = [trl_models.encode(self.tokenizer, prompt) for prompt in prompts]
        width = max(map(len, encoded))
        recorder = LogprobRecorder(sampling)
        device = self.trainer.accelerator.device
        with (
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            utils.unwrap_model_for_generation(self.trainer.model_wrapped, self.trainer.accelerator) as model,
            torch.no_grad(),
            sharding.summon_full_params(self.trainer.model_wrapped, recurse=False),
        ):
            torch.manual_seed(seed)
            full = self._generate(model, encoded, width, max(limits), sampling, recorder)
        logprobs, entropies = recorder.finish(full)
        ends = self.trainer.eos_token_ids
        return [
            completion(self.tokenizer, prompt, row[:limit], odds, sampling.stop, ends=ends, entropies=unsure)
            for prompt, row, limit, odds, unsure in zip(
                encoded, full[:, width:].tolist(), limits, logprobs, entropies, strict=True
            )
        ]

    def refresh(self) -> None:
        pass  # there is one set of weights

    def _generate(
        self,
        model: Any,
        encoded: Sequence[list[int]],
        width: int,
        max_new: int,
        sampling: Sampling,
        recorder: LogprobRecorder,
    ) -> Any:
        torch = importlib.import_module("torch")
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(one)) + one for one in encoded], device=model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in encoded], device=model.device)
        plain = {} if sampling.greedy else {"temperature": 1.0, "top_p": 1.0, "top_k": 0}  # the recorder's are ours
        stops = {"stop_strings": list(sampling.stop), "tokenizer": self.tokenizer} if sampling.stop else {}
        was_training = model.training
        model.eval()
        try:
            return model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_new,
                do_sample=not sampling.greedy,
                logits_processor=[recorder],
                pad_token_id=pad,
                **plain,
                **stops,
            )
        finally:
            model.train(was_training)


class LogprobRecorder:
    """A logits processor that applies temperature and top-p itself, and keeps what the sampled tokens had."""

    def __init__(self, sampling: Sampling) -> None:
        self._temperature = 1.0 if sampling.greedy else sampling.temperature
        self._top_p = 1.0 if sampling.greedy else sampling.top_p
        self._last: Any = None
        self._logprobs: list[Any] = []
        self._entropies: list[Any] = []

    def __call__(self, ids: Any, scores: Any) -> Any:
        torch = importlib.import_module("torch")
        if self._last is not None:
            self._logprobs.append(self._last.gather(1, ids[:, -1:]).squeeze(1))
        scores = scores.float() / self._temperature
        if self._top_p < 1:
            ordered, places = torch.sort(scores, descending=True)
            before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
            ordered[before >= self._top_p] = -torch.inf
            scores = torch.empty_like(scores).scatter(1, places, ordered)
        self._last = torch.log_softmax(scores, -1)
        chances = self._last.exp()
        self._entropies.append(-(chances * self._last.clamp(min=-1e9)).sum(-1))
        return scores

    def finish(self, full: Any) -> tuple[list[list[float]], list[list[float]]]:
        """Log probabilities and entropies, a list for each sequence."""
        torch = importlib.import_module("torch")
        self._logprobs.append(self._last.gather(1, full[:, -1:]).squeeze(1))
        return torch.stack(self._logprobs, 1).tolist(), torch.stack(self._entropies, 1).tolist()


@dataclass(slots=True)
class Vllm:
    """TRL's own vLLM, in the same process or as a server; TRL brings it the weights before each rollout."""

    trainer: Any
    tokenizer: Any

    def write(
        self, prompts: Sequence[str], limits: Sequence[int], sampling: Sampling, *, seed: int
    ) -> list[Completion]:
        del seed  # one for a whole call would give equal prompts equal completions
        encoded = [trl_models.encode(self.tokenizer, prompt) for prompt in prompts]
        vllm = self.trainer.vllm_generation
        vllm.temperature = 0.0 if sampling.greedy else sampling.temperature
        vllm.top_p = 1.0 if sampling.greedy else sampling.top_p
        vllm.max_completion_length = max(limits)
        vllm.generation_kwargs = {"stop": list(sampling.stop)}
        _, rows, found, _ = vllm.generate(prompts=encoded, images=None, num_generations=1)
        odds = [[math.nan if token[0] is None else token[0] for token in row] for row in found]
        ends = self.trainer.eos_token_ids
        return [
            completion(self.tokenizer, prompt, row[:limit], own, sampling.stop, ends=ends)
            for prompt, row, limit, own in zip(encoded, rows, limits, odds, strict=True)
        ]

    def refresh(self) -> None:
        self.trainer.vllm_generation.sync_weights()


def completion(
    tokenizer: Any,
    prompt: Sequence[int],
    row: Sequence[int],
    logprobs: Sequence[float],
    stop: Sequence[str],
    *,
    ends: Sequence[int],
    entropies: Sequence[float] = (),
) -> Completion:
    length, finished = end_of(tokenizer, row, stop, ends=ends)
    return Completion(
        prompt_ids=tuple(prompt),
        ids=tuple(row[:length]),
        logprobs=tuple(logprobs[:length]),
        text=before_stop(tokenizer.decode(row[:length], skip_special_tokens=True), stop),
        finished=finished,
        entropy=math.fsum(entropies[:length]) / max(1, length),
    )


def end_of(tokenizer: Any, row: Sequence[int], stop: Sequence[str], *, ends: Sequence[int]) -> tuple[int, bool]:
    """How many tokens were written, the end token or those of the stop string included; what follows is padding."""
    length = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
    finished = length < len(row) or (length > 0 and row[length - 1] in ends)

    def stopped(tokens: int) -> bool:
        text = tokenizer.decode(row[:tokens], skip_special_tokens=True)
        return any(word in text for word in stop)

    if not stopped(length):
        return length, finished
    low, high = 1, length  # the shortest beginning that holds a stop string
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stopped(middle) else (middle + 1, high)
    return low, True
