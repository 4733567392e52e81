"""Self-play on TRL's GRPOTrainer: its optimiser, its precision and parallelism, our loop, verifier and rewards.

How it fits: the dataset has one row for each pair of role and kind, and each row is generated `batch` times. TRL hands
those to `rollout_func`, where one iteration of our loop runs; the completions that come back stand for the rows. A
group of TRL is then exactly one pair of role and kind, and its normalisation within groups is TRR++ on the sequence
level; a test compares them.

Several processes, started by torchrun or `accelerate launch`, are one run (ranks.py): the first has the loop, the
buffers, the boxes and the files; all of them write their share of the completions and learn from their share of the
rows. TRL gathers the rewards of all rows before it normalises, so the advantages are those of one process. The same
seed gives the same run for the same number of processes.

Needs `pip install harena[trl]`. A run goes on from TRL's own checkpoints (--resume), with the same number of processes.
Does not cover the other advantages of config.py. TRL marks `rollout_func` as experimental.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never, cast

import numpy as np

from harena.azr import environment, run
from harena.azr.check.verify import TaskVerifier
from harena.azr.config import Algorithm, Baseline, EngineConfig, TrainConfig
from harena.azr.engines import registry, trl_models, trl_writer
from harena.azr.engines.protocol import Completion, CompletionRequest, Generator, OnDone, Rollout, Sampling, Update
from harena.azr.engines.ranks import Ranks
from harena.azr.errors import TrainingError
from harena.azr.loop import Iteration, Trainer
from harena.azr.report import html as report
from harena.azr.report.evaluate import ModelEvaluation
from harena.azr.report.journal import RunJournal, Sink
from harena.azr.run import RunOutcome, Say, silent
from harena.azr.tasks.kinds import Role, TaskKind
from harena.errors import SpecError

ENTRY = registry.entry("trl")
MODEL = "model"
"""The folder of a run that gets the trained weights."""
CHECKPOINTS = "trl"
"""The folder of a run that gets TRL's checkpoints: weights, optimiser, random states."""
ROWS = 64
"""Sequences that a process generates together."""


UPDATE_NUMBERS = ("loss", "policy_loss", "grad_norm", "learning_rate", "entropy", "kl", "clip_ratio", "step_time")


class TrlMismatch(TrainingError):
    """TRL did something else than this version of it was seen to do; nothing can be learnt rightly."""


@dataclass(frozen=True, slots=True)
class Write:
    """An order: everybody writes the completions of every count-th prompt."""

    prompts: tuple[str, ...]
    limits: tuple[int, ...]
    sampling: Sampling
    number: int
    """Number of this part of a call, so that its random numbers are its own."""


@dataclass(frozen=True, slots=True)
class Learn:
    """An order: these rows are there to learn from; nothing more is to be written."""

    rows: dict[str, list[Any]]


@dataclass(slots=True)
class TrlEngine:
    """Writes with the model of a GRPOTrainer in all processes, and keeps what is to be learnt for it."""

    tokenizer: Any
    rows: int = ROWS
    trainer: Any = None
    ranks: Ranks = field(default_factory=Ranks)
    rollouts: list[Rollout] | None = None
    checkpoint: str = ""
    """TRL's checkpoint that belongs to the state of the loop; empty before the first."""

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        """Called by the first process alone; the others serve."""
        answers: list[list[Completion]] = [[] for _ in requests]
        order = sorted(range(len(requests)), key=lambda at: (requests[at].max_new, len(requests[at].prompt)))
        jobs = [index for index in order for _ in range(requests[index].n)]
        at_once = self.rows * self.ranks.count
        for number, first in enumerate(range(0, len(jobs), at_once)):
            part = jobs[first : first + at_once]
            prompts, limits = zip(*((requests[index].prompt, requests[index].max_new) for index in part), strict=True)
            write = Write(prompts, limits, sampling, number)
            self.ranks.tell(write)
            for index, completion in zip(part, self._written(write), strict=True):
                answers[index].append(completion)
                if on_done is not None and len(answers[index]) == requests[index].n:
                    on_done(index, answers[index])
        return answers

    def serve(self) -> dict[str, list[Any]]:
        """What the other processes do meanwhile: write their share, until there is something to learn from."""
        while isinstance(order := self.ranks.hear(), Write):
            self._written(order)
        return order.rows

    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        del update
        self.rollouts = list(rollouts)
        return {}  # the numbers of TRL's update come later: journal, kind `update`

    def state(self) -> dict[str, Any]:
        return {"checkpoint": self.checkpoint}

    def load(self, state: Mapping[str, Any]) -> None:
        self.checkpoint = str(state["checkpoint"])

    def _written(self, order: Write) -> list[Completion]:
        shares = self.ranks.gather(lambda: self._share(order))
        return [shares[at % len(shares)][at // len(shares)] for at in range(len(order.prompts))]

    def _share(self, order: Write) -> list[Completion]:
        mine = range(self.ranks.index, len(order.prompts), self.ranks.count)
        as_many = -(-len(order.prompts) // self.ranks.count)
        places = [*mine, *[0] * (as_many - len(mine))]  # all write as many rows: see trl_writer
        words = [order.sampling.seed, order.number, self.ranks.index]
        writer = trl_writer.of(self.trainer, self.tokenizer)
        written = writer.write(
            [order.prompts[at] for at in places],
            [order.limits[at] for at in places],
            order.sampling,
            seed=int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1)),
        )
        return written[: len(mine)]


# ---- our settings as TRL's ----


def check(config: TrainConfig, *, processes: int = 1) -> None:
    """SpecError for settings that TRL's groups cannot express."""
    advantage = config.advantage
    if advantage.algorithm is not Algorithm.TRR or advantage.baseline is not Baseline.SEQUENCE:
        raise SpecError("engine.name=trl: TRL's groups are trr++ on the sequence level; use torch for others")
    if config.learn_rollouts:
        raise SpecError("engine.name=trl: learn_rollouts would make groups of unequal size; use torch")
    total = len(groups(config)) * config.batch
    if total % config.update.mini_batch:
        raise SpecError(f"engine.name=trl: update.mini_batch must divide the {total} samples of an iteration")
    if config.update.mini_batch % processes:
        raise SpecError(
            f"engine.name=trl: {processes} processes must divide update.mini_batch={config.update.mini_batch}"
        )
    if config.batch < 2:
        raise SpecError("engine.name=trl: a group needs a batch of at least 2")
    if config.iterations < 1:
        raise SpecError("engine.name=trl: at least one iteration; `harena azr eval` measures a model as it is")


def groups(config: TrainConfig) -> list[tuple[Role, TaskKind]]:
    """The rows of the dataset, in the order of the loop's rollouts."""
    roles = (Role.PROPOSE, Role.SOLVE) if config.train_proposer else (Role.SOLVE,)
    return [(role, kind) for role in roles for kind in config.kinds]


def columns(rollouts: Sequence[Rollout], config: TrainConfig) -> dict[str, list[Any]]:
    """What TRL wants back, row by row in the order of the dataset."""
    found = [one for pair in groups(config) for one in rollouts if (one.role, one.kind) == pair]
    if len(found) != len(groups(config)) * config.batch or len(found) != len(rollouts):
        raise SpecError(f"{len(rollouts)} rollouts for {len(groups(config))} groups of {config.batch}")
    return {
        "row": [_row(one.role, one.kind) for one in found],
        "prompt_ids": [list(one.completion.prompt_ids) for one in found],
        "completion_ids": [list(one.completion.ids) for one in found],
        "logprobs": [list(one.completion.logprobs) for one in found],
        "azr_reward": [one.reward for one in found],
    }


def share_of(rows: Mapping[str, list[Any]], prompts: Sequence[str], rank: int) -> dict[str, list[Any]]:
    """The rows that TRL asked this process for: its part of the whole, in order."""
    part = slice(rank * len(prompts), (rank + 1) * len(prompts))
    own = {name: column[part] for name, column in rows.items()}
    if own.pop("row") != list(prompts):
        raise TrlMismatch("TRL shares rows out between processes otherwise than expected: use another release of it")
    return own


def _row(role: Role, kind: TaskKind) -> str:
    return f"{role} {kind}"


def rewards_of(azr_reward: Sequence[float], **_: object) -> list[float]:
    return list(azr_reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlOptions:
    """What engine.options may say, apart from TRL's own `vllm_...`."""

    rows: int = ROWS
    micro_batch: int = 0
    """Sequences of one forward and backward pass of a process; 0: up to 8, as the mini-batch allows."""
    gradient_checkpointing: bool = False
    vllm: str = ""
    """colocate or server, as TRL has them; empty: transformers writes."""

    @classmethod
    def of(cls, config: TrainConfig) -> tuple[TrlOptions, dict[str, Any]]:
        """Ours, and those that TRL gets as they are."""
        given = dict(config.engine.options)
        registry.check_options(ENTRY, given)
        trls = {name: given.pop(name) for name in list(given) if name.startswith(ENTRY.passed_on)}
        unknown = sorted(set(trls) - _trl_options())
        if unknown:
            raise SpecError(f"engine.options.{unknown[0]}: TRL has no such option")
        for one in dataclasses.fields(cls):
            if type(given.get(one.name, one.default)) is not type(one.default):
                raise SpecError(f"engine.options.{one.name}={given[one.name]!r}: such as {one.default!r} is wanted")
        options = cls(**cast("dict[str, Any]", given))
        if options.rows < 1 or options.micro_batch < 0:
            raise SpecError("engine.options: rows >= 1 and micro_batch >= 0")
        if trls and not options.vllm:
            raise SpecError(f"engine.options.{min(trls)}: set vllm to colocate or server as well")
        if options.vllm not in ("", "colocate", "server"):
            raise SpecError(f"engine.options.vllm={options.vllm!r}: colocate or server")
        if options.vllm and importlib.util.find_spec("vllm") is None:
            raise SpecError("engine.options.vllm: vLLM is not installed: pip install 'trl[vllm]'")
        return options, trls


def _trl_options() -> set[str]:
    return {one.name for one in dataclasses.fields(importlib.import_module("trl").GRPOConfig)}


def arguments(folder: Path, config: TrainConfig, *, processes: int = 1) -> Any:
    """TRL's configuration for ours."""
    trl = importlib.import_module("trl")
    update = config.update
    options, trls = TrlOptions.of(config)
    total = len(groups(config)) * config.batch
    own = update.mini_batch // processes
    micro = options.micro_batch or math.gcd(own, 8)
    if own % micro:
        raise SpecError(f"engine.options.micro_batch={micro} must divide the {own} samples of a process's mini-batch")
    steps = update.epochs * (total // update.mini_batch)
    on_cpu = _on_cpu(config)
    if options.vllm:
        trls |= {"use_vllm": True, "vllm_mode": options.vllm}
    return trl.GRPOConfig(
        output_dir=str(folder / CHECKPOINTS),
        seed=config.seed,
        use_cpu=on_cpu,
        bf16=not on_cpu and config.engine.dtype in ("bfloat16", "bf16"),
        max_steps=config.iterations * steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=own // micro,
        generation_batch_size=total,
        num_generations=config.batch,
        num_iterations=update.epochs,
        shuffle_dataset=False,
        max_completion_length=max(config.prompt.propose_tokens, config.prompt.solve_tokens),
        temperature=config.temperature,
        scale_rewards="group",
        loss_type="dapo" if update.token_mean else "grpo",
        beta=update.kl,
        epsilon=update.clip,
        entropy_coef=update.entropy,
        learning_rate=update.learning_rate,
        lr_scheduler_type="linear" if config.anneal else "constant",
        max_grad_norm=update.max_grad_norm,
        gradient_checkpointing=options.gradient_checkpointing,
        report_to=[],
        logging_strategy="steps",
        logging_steps=1,
        # One more than ours: TRL removes an old one before we have noted the new one.
        save_strategy="steps",
        save_steps=steps * config.checkpoint_every,
        save_total_limit=config.keep_checkpoints + 1,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        **trls,
    )


def _on_cpu(config: TrainConfig) -> bool:
    return config.engine.device == "cpu" or not importlib.import_module("torch").cuda.is_available()


# ---- a run ----


@dataclass(slots=True)
class _Session:
    """What TRL calls back during a run, in every process; `play` is the first one's alone."""

    config: TrainConfig
    engine: TrlEngine
    play: run.Run | None = None
    resumed: bool = False
    before: ModelEvaluation | None = None
    continued_after: int = 0
    last: Iteration | None = None

    def rollout(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """One iteration of the loop, as TRL's rollout_func."""
        del trainer
        ranks = self.engine.ranks
        if self.play is None:
            rows = self.engine.serve()
        else:
            with ranks.leading():
                rows = self._iterated(self.play)
            ranks.tell(Learn(rows))
        return share_of(rows, prompts, ranks.index)

    def _iterated(self, play: run.Run) -> dict[str, list[Any]]:
        number = play.trainer.number
        if self.last is None:  # here and not before: now the weights are where they will be for the whole run
            if not self.resumed:
                play.begin()
            self.continued_after = number
            self.before, _ = play.before_and_now()
        elif self.config.evaluate_every and number % self.config.evaluate_every == 0:
            play.evaluated()
        self.last = play.iterate()
        return columns(self.engine.rollouts or [], self.config)

    def measured(self) -> ModelEvaluation | None:
        """Held-out accuracy at the end; all processes write for it."""
        trl_writer.of(self.engine.trainer, self.engine.tokenizer).refresh()
        if self.play is None:
            self.engine.serve()
            return None
        with self.engine.ranks.leading():
            found = self.play.evaluated()
        self.engine.ranks.tell(Learn({}))
        return found

    def saved(self, checkpoint: str) -> None:
        """TRL has written a checkpoint: once all processes have, the state of the loop goes with it."""
        self.engine.ranks.together(lambda: None)
        self.engine.checkpoint = checkpoint
        if self.play is not None:
            self.play.save()

    def logged(self, step: int, numbers: Mapping[str, Any]) -> None:
        """What TRL says of its update; what it says of rewards and lengths, the loop has written already."""
        if self.play is not None:
            kept = {name: number for name, number in numbers.items() if name.startswith(UPDATE_NUMBERS)}
            self.play.log.write("update", iteration=self.play.trainer.number, step=step, **kept)


def train(
    folder: Path,
    config: TrainConfig,
    *,
    sinks: Sequence[Sink] = (),
    resume: bool = False,
    say: Say = silent,
    model: Any = None,
    tokenizer: Any = None,
) -> RunOutcome | None:
    """Train as run.train does; returns None in all processes but the first. `model` and `tokenizer`: transformers'
    objects, instead of what config.engine.model names."""
    started = time.perf_counter()
    ranks = Ranks.met(cpu=_on_cpu(config))
    check(config, processes=ranks.count)
    options, _ = TrlOptions.of(config)
    if not resume:
        ranks.shared(lambda: run.check_free(folder))
    if model is None or tokenizer is None:
        model, tokenizer = ranks.together(lambda: trl_models.load(config.engine.model))
    engine = TrlEngine(tokenizer, rows=options.rows, ranks=ranks)
    session = _Session(config, engine, resumed=resume)
    engine.trainer = _trainer(folder, session, model)
    with contextlib.ExitStack() as stack:

        def opened() -> str:
            session.play = _opened(stack, folder, session, sinks=sinks, say=say)
            return engine.checkpoint

        engine.checkpoint = ranks.shared(opened)
        place = str(folder / CHECKPOINTS / engine.checkpoint) if engine.checkpoint else None
        engine.trainer.train(resume_from_checkpoint=place)
        after = session.measured()
        engine.trainer.save_model(str(folder / MODEL))
    if session.play is None:
        return None
    report.write(folder)
    return RunOutcome(
        folder=folder,
        iterations=session.play.trainer.number,
        before=session.before,
        after=after,
        last=session.last,
        seconds=time.perf_counter() - started,
        continued_after=session.continued_after,
    )


class TrlDriver:
    """How runs and commands use this engine."""

    def train(
        self, folder: Path, config: TrainConfig, *, sinks: Sequence[Sink], resume: bool, say: Say
    ) -> RunOutcome | None:
        return train(folder, config, sinks=sinks, resume=resume, say=say)

    def generator(self, engine: EngineConfig) -> Never:
        raise SpecError(f"engine.name={engine.name}: it only trains")

    def trained(self, folder: Path, config: TrainConfig, learnt: Mapping[str, Any]) -> Generator:
        """The weights that TRL saved, asked by the default engine."""
        del learnt
        asked = dataclasses.replace(config.engine, name=registry.DEFAULT, model=str(folder / MODEL), options={})
        return registry.driver(asked, trains=False).generator(asked)


def _trainer(folder: Path, session: _Session, model: Any) -> Any:
    environment.silence_trl()
    trl, datasets, transformers = (importlib.import_module(name) for name in ("trl", "datasets", "transformers"))

    class SaveCallback(transformers.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            session.saved(f"checkpoint-{state.global_step}")

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:  # else it is the summary at the end
                session.logged(state.global_step, logs)

    config, engine = session.config, session.engine
    made = trl.GRPOTrainer(
        model=model,
        args=arguments(folder, config, processes=engine.ranks.count),
        processing_class=engine.tokenizer,
        reward_funcs=[rewards_of],
        rollout_func=session.rollout,
        callbacks=[SaveCallback()],
        train_dataset=datasets.Dataset.from_list([{"prompt": _row(*pair)} for pair in groups(config)]),
    )
    made.remove_callback(transformers.PrinterCallback)  # stdout is for the results
    return made


def _opened(
    stack: contextlib.ExitStack, folder: Path, session: _Session, *, sinks: Sequence[Sink], say: Say
) -> run.Run:
    """The loop with its files and boxes: where it stood, or a new one."""
    config, engine = session.config, session.engine
    held_back = run.held_out_programs(config)
    verifier = stack.enter_context(TaskVerifier(config.executor.settings(), held_out=held_back))
    if not session.resumed:
        run.start(folder, config)
    stack.enter_context(run.working_in(folder))
    log = stack.enter_context(RunJournal(folder, sinks=sinks))
    items = run.held_out_suite(config)
    play = run.Run(folder, config, engine, verifier, Trainer(engine, verifier, config), log, items, say)
    if session.resumed:
        play.resume()
        if play.trainer.number >= config.iterations:
            raise SpecError(f"{folder}: iteration {play.trainer.number} is done: ask for more with --iterations")
        if engine.checkpoint and not (folder / CHECKPOINTS / engine.checkpoint).is_dir():
            raise SpecError(f"{folder / CHECKPOINTS / engine.checkpoint} is gone: the run cannot go on without it")
    return play
