"""The default engine: one torch model that writes and learns, on CPU or CUDA.

Promises what engine.py asks of a Generator and a Learner; generation and learning share their weights, nothing is
copied. Does not load or save files: weights.py and checkpoint.py do.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

import time
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch

from harena.azr.config import fitting
from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Rollout, Sampling, Update
from harena.azr.learn.learner import LearnSettings, PolicyLearner
from harena.azr.model import weights
from harena.azr.model.decode import Decoder, DecodeSettings, Sampler
from harena.azr.model.decoder import DecoderModel
from harena.azr.model.seats import SeatJob
from harena.azr.model.stops import Stops
from harena.azr.model.tokenizer import TextCodec
from harena.errors import SpecError

MAX_PROMPT = 8_192


class TorchEngine:
    def __init__(
        self,
        model: DecoderModel,
        codec: TextCodec,
        *,
        decode: DecodeSettings | None = None,
        learn: LearnSettings | None = None,
        max_prompt: int = MAX_PROMPT,
    ) -> None:
        """`max_prompt`, in tokens, refuses prompts that would ask for an absurd cache."""
        if codec.vocab > model.config.vocab:
            raise SpecError(f"the tokenizer has {codec.vocab} tokens, the model only {model.config.vocab}")
        self.model = model
        self.codec = codec
        self.decoder = Decoder(model, decode or default_decode(model))
        self._learn = learn or LearnSettings()
        self._learner: PolicyLearner | None = None
        self._max_prompt = max_prompt
        self._temperature = 1.0
        """Temperature of the last sampled call, at which the learner compares probabilities."""
        self._stops: dict[tuple[str, ...], Stops] = {}
        self.totals = {"prompt_tokens": 0, "new_tokens": 0, "seconds": 0.0}
        """Sums over all calls of `generate`."""

    @property
    def learner(self) -> PolicyLearner:
        """Made when first needed: an engine that only generates holds no optimiser."""
        if self._learner is None:
            self._learner = PolicyLearner(self.model, self._learn, pad=self.codec.pad)
        return self._learner

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        started = time.perf_counter()
        prompts, which = self._prompts(requests)
        stops = self._stops_for(sampling.stop)
        waiting = [request.n for request in requests]
        found: list[list[SeatJob | None]] = [[None] * request.n for request in requests]
        results: list[list[Completion]] = [[] for _ in requests]

        def done(job: SeatJob) -> None:
            index, sample = job.tag
            found[index][sample] = job
            waiting[index] -= 1
            if not waiting[index]:
                jobs = [one for one in found[index] if one is not None]
                results[index] = self._completions(prompts[which[index]], jobs, stops)
                if on_done is not None:
                    on_done(index, results[index])

        jobs = [
            SeatJob(prompt=which[index], limit=request.max_new, tag=(index, sample))
            for index, request in enumerate(requests)
            for sample in range(request.n)
        ]
        sampler = Sampler(temperature=sampling.temperature, top_p=sampling.top_p, greedy=sampling.greedy)
        self.decoder.run(prompts, jobs, sampler=sampler, stops=stops, seed=sampling.seed, on_done=done)
        if not sampling.greedy:
            self._temperature = sampling.temperature
        self.totals["prompt_tokens"] += sum(map(len, prompts))
        self.totals["new_tokens"] += sum(len(one.ids) for group in results for one in group)
        self.totals["seconds"] += time.perf_counter() - started
        return results

    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        self.learner.temperature = self._temperature
        return self.learner.step(rollouts, update)

    def state(self) -> dict[str, Any]:
        return self.learner.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.learner.load(state)
        self._temperature = self.learner.temperature

    def _prompts(self, requests: Sequence[CompletionRequest]) -> tuple[list[list[int]], list[int]]:
        """Different prompts only, and which of them each request has."""
        places: dict[tuple[str, bool], int] = {}
        prompts: list[list[int]] = []
        for request in requests:
            if request.n < 1 or request.max_new < 1:
                raise SpecError("a request needs n >= 1 and max_new >= 1")
            if (request.prompt, request.is_chat) in places:
                continue
            ids = self.codec.chat(request.prompt) if request.is_chat else self.codec.encode(request.prompt)
            ids = ids or [self.codec.eos[0]]
            if len(ids) > self._max_prompt:
                raise SpecError(f"a prompt of {len(ids)} tokens; the engine takes {self._max_prompt} (max_prompt)")
            places[request.prompt, request.is_chat] = len(prompts)
            prompts.append(ids)
        return prompts, [places[request.prompt, request.is_chat] for request in requests]

    def fits(self, prompt: str) -> bool:
        """Whether the prompt may be asked. Short ones need not be counted: hardly a tokenizer makes more than one token
        of a byte, and none several."""
        return 4 * len(prompt.encode()) <= self._max_prompt or len(self.codec.encode(prompt)) <= self._max_prompt

    def _stops_for(self, texts: tuple[str, ...]) -> Stops:
        if texts not in self._stops:
            self._stops[texts] = Stops(self.codec, texts, vocab=self.model.config.vocab)
        return self._stops[texts]

    def _completions(self, prompt: Sequence[int], jobs: Sequence[SeatJob], stops: Stops) -> list[Completion]:
        done = [
            Completion(
                prompt_ids=tuple(prompt),
                ids=tuple(job.ids),
                logprobs=tuple(job.logprobs),
                text=stops.text(job.ids),
                finished=job.ended,
                entropy=job.entropy,
            )
            for job in jobs
        ]
        if not self._learn.value_head:
            return done
        values = self.learner.values([prompt] * len(done), [one.ids for one in done])
        return [replace(one, values=value) for one, value in zip(done, values, strict=True)]


def build(
    *,
    model: str = "default",
    device: str = "auto",
    dtype: str = "auto",
    options: Mapping[str, str | int | float | bool] | None = None,
) -> TorchEngine:
    """An engine as a configuration names it. `options`: fields of DecodeSettings and LearnSettings, and max_prompt."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bf16" if device.startswith("cuda") else "f32"
    chosen = EngineOptions.of(options or {})
    loaded, codec = weights.load(model, device=device, dtype=dtype)
    decode = replace(default_decode(loaded), **chosen.decode)
    return TorchEngine(loaded, codec, decode=decode, learn=chosen.learn, max_prompt=chosen.max_prompt)


_LEAST: Mapping[str, float] = {"rows": 1, "check_every": 1, "max_prompt": 1}
"""The smallest value of an option that is a number; 0 for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`engine.options`, each of the type that its setting has."""

    decode: dict[str, Any]
    """What differs from the defaults, which depend on the model."""
    learn: LearnSettings
    max_prompt: int

    @classmethod
    def of(cls, options: Mapping[str, str | int | float | bool]) -> EngineOptions:
        given: dict[str, Any] = dict(options)
        hints = typing.get_type_hints(DecodeSettings) | typing.get_type_hints(LearnSettings) | {"max_prompt": int}
        for name, value in given.items():
            if name not in hints:
                raise SpecError(f"engine.options.{name}: the torch engine does not know it")
            value = given[name] = cast("Any", fitting(value, hints[name], f"engine.options.{name}"))
            if type(value) in (int, float) and not value >= _LEAST.get(name, 0):
                raise SpecError(f"engine.options.{name}={value!r}: at least {_LEAST.get(name, 0)}")
        for name in ("beta1", "beta2"):
            if not given.get(name, 0.0) < 1:
                raise SpecError(f"engine.options.{name}={given[name]!r}: below 1")
        max_prompt = int(given.pop("max_prompt", MAX_PROMPT))
        of_learning = {field.name for field in fields(LearnSettings)}
        learn = {name: value for name, value in given.items() if name in of_learning}
        decode = {name: value for name, value in given.items() if name not in of_learning}
        return cls(decode=decode, learn=LearnSettings(**learn), max_prompt=max_prompt)


def default_decode(model: DecoderModel) -> DecodeSettings:
    return decode_defaults(model.parameter_count(), is_cuda=model.device.type == "cuda")


def decode_defaults(size: int, *, is_cuda: bool) -> DecodeSettings:
    """For a model with `size` parameters."""
    if is_cuda:
        return DecodeSettings(rows=1_024 if size < 100_000_000 else 256, check_every=8)
    return DecodeSettings(rows=256, check_every=2)
