"""Self-play on TRL's GRPOTrainer: its optimiser, its precision and parallelism, our loop, verifier and rewards.

How it fits: the dataset has one row for each pair of role and kind, and each row is generated `batch` times. TRL hands
those to `rollout_func`, where one iteration of our loop runs; the completions that come back stand for the rows. A
group of TRL is then exactly one pair of role and kind, and its normalisation within groups is TRR++ on the sequence
level; a test compares them.

Needs `pip install harena[trl]`. Covers one process and transformers' own generation. Does not cover several processes
(the tasks would have to be shared between them), vLLM inside TRL, the other advantages of config.py, and --resume. TRL
marks `rollout_func` as experimental.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.azr import report, run, suite
from harena.azr.config import Algorithm, Baseline, Config
from harena.azr.engine import Completion, OnDone, Request, Rollout, Sampling, Update
from harena.azr.evaluate import Evaluation
from harena.azr.journal import Journal, Sink
from harena.azr.loop import Iteration, Trainer
from harena.azr.openai_engine import before_stop
from harena.azr.run import Outcome, Say, silent
from harena.azr.tasks import Kind, Role
from harena.errors import SpecError

MODEL = "model"
"""The folder of a run that gets the trained weights."""
ROWS = 64
"""Sequences that are generated together."""


@dataclass(slots=True)
class TrlEngine:
    """Writes with the model of a GRPOTrainer, and keeps what is to be learnt for it."""

    tokenizer: Any
    rows: int = ROWS
    trainer: Any = None
    rollouts: list[Rollout] | None = None

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        torch = importlib.import_module("torch")
        answers: list[list[Completion]] = [[] for _ in requests]
        order = sorted(range(len(requests)), key=lambda at: (requests[at].max_new, len(requests[at].prompt)))
        jobs = [index for index in order for _ in range(requests[index].n)]
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))), self._model() as model:
            torch.manual_seed(sampling.seed)
            for first in range(0, len(jobs), self.rows):
                part = jobs[first : first + self.rows]
                prompts = [requests[index].prompt for index in part]
                written = self._write(model, prompts, [requests[index].max_new for index in part], sampling)
                for index, completion in zip(part, written, strict=True):
                    answers[index].append(completion)
                    if on_done is not None and len(answers[index]) == requests[index].n:
                        on_done(index, answers[index])
        return answers

    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        del update
        self.rollouts = list(rollouts)
        return {}

    def state(self) -> dict[str, Any]:
        return {}  # the weights are in DIR/model, written by TRL

    def load(self, state: Mapping[str, Any]) -> None:
        del state
        raise SpecError("a run on TRL cannot be resumed")

    def _model(self) -> Any:
        utils = importlib.import_module("trl.models.utils")
        return utils.unwrap_model_for_generation(self.trainer.model_wrapped, self.trainer.accelerator)

    def _write(self, model: Any, prompts: Sequence[str], limits: Sequence[int], sampling: Sampling) -> list[Completion]:
        torch = importlib.import_module("torch")
        encoded = [self.tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
        width = max(map(len, encoded))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(one)) + one for one in encoded], device=model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in encoded], device=model.device)
        recorder = _Recorder(sampling)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                full = model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=max(limits), do_sample=not sampling.greedy,
                    temperature=1.0, top_p=1.0, top_k=0, logits_processor=[recorder], pad_token_id=pad,
                    **({"stop_strings": list(sampling.stop), "tokenizer": self.tokenizer} if sampling.stop else {}),
                )  # fmt: skip
        finally:
            model.train(was_training)
        logprobs, entropies = recorder.finish(full)
        new = full[:, width:].tolist()
        return [
            self._completion(prompt, row[: limits[at]], logprobs[at], entropies[at], sampling)
            for at, (prompt, row) in enumerate(zip(encoded, new, strict=True))
        ]

    def _completion(
        self, prompt: Sequence[int], row: Sequence[int], logprobs: Sequence[float], entropies: Sequence[float],
        sampling: Sampling,
    ) -> Completion:  # fmt: skip
        length, finished = self._end(row, sampling.stop)
        text = self.tokenizer.decode(row[:length], skip_special_tokens=True)
        return Completion(
            prompt_ids=tuple(prompt),
            ids=tuple(row[:length]),
            logprobs=tuple(logprobs[:length]),
            text=before_stop(text, sampling.stop),
            finished=finished,
            entropy=math.fsum(entropies[:length]) / max(1, length),
        )

    def _end(self, row: Sequence[int], stop: Sequence[str]) -> tuple[int, bool]:
        """How many tokens were written, the end token or those of the stop string included; what follows is padding."""
        ends = self.trainer.eos_token_ids
        length = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        finished = length < len(row) or (length > 0 and row[length - 1] in ends)
        if not _stopped(self.tokenizer.decode(row[:length], skip_special_tokens=True), stop):
            return length, finished
        low, high = 1, length  # the shortest beginning that holds a stop string
        while low < high:
            middle = (low + high) // 2
            if _stopped(self.tokenizer.decode(row[:middle], skip_special_tokens=True), stop):
                high = middle
            else:
                low = middle + 1
        return low, True


def _stopped(text: str, stop: Sequence[str]) -> bool:
    return any(word in text for word in stop)


class _Recorder:
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


def check(config: Config) -> None:
    """SpecError for settings that TRL's groups cannot express."""
    advantage = config.advantage
    if advantage.algorithm is not Algorithm.TRR or advantage.baseline is not Baseline.SEQUENCE:
        raise SpecError("engine.name=trl: TRL's groups are trr++ on the sequence level; use torch for others")
    if config.learn_rollouts:
        raise SpecError("engine.name=trl: learn_rollouts would make groups of unequal size; use torch")
    total = len(groups(config)) * config.batch
    if total % config.update.mini_batch:
        raise SpecError(f"engine.name=trl: update.mini_batch must divide the {total} samples of an iteration")
    if config.batch < 2:
        raise SpecError("engine.name=trl: a group needs a batch of at least 2")


def groups(config: Config) -> list[tuple[Role, Kind]]:
    """The rows of the dataset, in the order of the loop's rollouts."""
    roles = (Role.PROPOSE, Role.SOLVE) if config.train_proposer else (Role.SOLVE,)
    return [(role, kind) for role in roles for kind in config.kinds]


def columns(rollouts: Sequence[Rollout], config: Config) -> dict[str, list[Any]]:
    """What TRL wants back, row by row in the order of the dataset."""
    found = [one for pair in groups(config) for one in rollouts if (one.role, one.kind) == pair]
    if len(found) != len(groups(config)) * config.batch or len(found) != len(rollouts):
        raise SpecError(f"{len(rollouts)} rollouts for {len(groups(config))} groups of {config.batch}")
    return {
        "prompt_ids": [list(one.completion.prompt_ids) for one in found],
        "completion_ids": [list(one.completion.ids) for one in found],
        "logprobs": [list(one.completion.logprobs) for one in found],
        "azr_reward": [one.reward for one in found],
    }


def rewards_of(azr_reward: Sequence[float], **_: object) -> list[float]:
    return list(azr_reward)


def arguments(folder: Path, config: Config, *, micro: int) -> Any:
    """TRL's configuration for ours. micro: sequences of one forward and backward pass."""
    trl = importlib.import_module("trl")
    update = config.update
    total = len(groups(config)) * config.batch
    on_cpu = config.engine.device == "cpu" or not importlib.import_module("torch").cuda.is_available()
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"), seed=config.seed, use_cpu=on_cpu,
        bf16=not on_cpu and config.engine.dtype in ("bfloat16", "bf16"),
        max_steps=config.iterations * update.epochs * (total // update.mini_batch),
        per_device_train_batch_size=micro, gradient_accumulation_steps=update.mini_batch // micro,
        generation_batch_size=total, num_generations=config.batch, num_iterations=update.epochs,
        shuffle_dataset=False, max_completion_length=max(config.prompt.propose_tokens, config.prompt.solve_tokens),
        temperature=config.temperature, scale_rewards="group", loss_type="dapo" if update.token_mean else "grpo",
        beta=update.kl, epsilon=update.clip, entropy_coef=update.entropy, learning_rate=update.learning_rate,
        lr_scheduler_type="constant", max_grad_norm=update.max_grad_norm, gradient_checkpointing=False,
        report_to=[], logging_strategy="no", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip


def train(
    folder: Path, config: Config, *, sinks: Sequence[Sink] = (), per_cell: int = suite.PER_CELL,
    say: Say = silent, model: Any = None, tokenizer: Any = None,
) -> Outcome:  # fmt: skip
    """As run.train. `model`, `tokenizer`: transformers' objects, instead of what config.engine.model names."""
    started = time.perf_counter()
    check(config)
    run.check_free(folder)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    trl, datasets, transformers = (importlib.import_module(name) for name in ("trl", "datasets", "transformers"))
    name = config.engine.model
    if model is None and name == "default":
        raise SpecError("engine.name=trl: our own small model is for torch; give --model a transformers model")
    tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(name)
    options = dict(config.engine.options)
    engine = TrlEngine(tokenizer, rows=int(options.pop("rows", ROWS)))
    micro = int(options.pop("micro_batch", math.gcd(config.update.mini_batch, 8)))
    if options:
        raise SpecError(f"engine.options.{min(options)}: the trl engine knows rows and micro_batch")
    items = suite.tiny(per_cell=per_cell, inputs=config.prompt.inputs) if per_cell else []
    run.start(folder, config)
    with (
        Journal(folder, sinks=sinks) as log,
        run.HeldOutVerifier(config.executor.settings(), suite.digests(items)) as verifier,
    ):
        play = run.Run(folder, config, engine, verifier, Trainer(engine, verifier, config), log, items, say)
        done: list[Iteration] = []

        def rollout(prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
            del prompts, trainer
            number = play.trainer.number
            if number and config.evaluate_every and number % config.evaluate_every == 0:
                play.evaluated()
            done[:] = [play.iterate()]
            return columns(engine.rollouts or [], config)

        engine.trainer = trl.GRPOTrainer(
            model=model or transformers.AutoModelForCausalLM.from_pretrained(name),
            args=arguments(folder, config, micro=micro), processing_class=tokenizer, reward_funcs=[rewards_of],
            train_dataset=datasets.Dataset.from_list([{"prompt": f"{role} {kind}"} for role, kind in groups(config)]),
            rollout_func=rollout,
        )  # fmt: skip
        if engine.trainer.accelerator.num_processes > 1:
            raise SpecError("engine.name=trl: one process so far; the tasks are not shared between several")
        play.begin()
        before = play.evaluated()
        engine.trainer.train()
        after: Evaluation | None = play.evaluated()
        engine.trainer.save_model(str(folder / MODEL))
    report.write(folder)
    return Outcome(
        folder=folder, iterations=play.trainer.number, before=before, after=after, last=done[0] if done else None,
        seconds=time.perf_counter() - started,
    )  # fmt: skip
