"""A training run in a folder: seeding, iterations, held-out evaluation, journal, checkpoints, report.

    DIR/config.json       the settings, all of them
        journal.jsonl     what happened (journal.py)
        buffers/          the tasks, as JSON lines
        checkpoints/      to go on from
        report.html       plots and samples, written anew at the end

Guarantees: a run that was ended, however, goes on from its last checkpoint as if nothing had happened; a folder that
holds a run is never written over; programs of the held-out suite are no valid proposals, so nothing is trained on them.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harena.azr import checkpoint, evaluate, journal, report, suite
from harena.azr import config as configs
from harena.azr.checkpoint import Checkpoint
from harena.azr.config import Config
from harena.azr.engine import Engine, Generator
from harena.azr.evaluate import Evaluation, How
from harena.azr.journal import Journal, Sink
from harena.azr.loop import Iteration, Proposed, Trainer
from harena.azr.suite import Item
from harena.azr.tasks import FormatError, InductionTask, Kind, Proposal, program_digest
from harena.azr.verify import Settings, Validation, Verdict, Verifier
from harena.errors import SpecError

CONFIG, BUFFERS, CHECKPOINTS = "config.json", "buffers", "checkpoints"
SAMPLES = 3
"""Proposals of each iteration that are written down for a person to read."""
MAX_SAMPLE_CHARS = 2_000
BY_OPERATIONS = " by operations"

Say = Callable[[str], None]
MakeEngine = Callable[[Config], Engine]


def silent(text: str) -> None:
    del text


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    folder: Path
    iterations: int
    before: Evaluation | None
    """Held-out accuracy before the first iteration of this call; None when evaluation is off."""
    after: Evaluation | None
    last: Iteration | None
    seconds: float


class HeldOutVerifier(Verifier):
    """A verifier to which programs of the suite are no tasks."""

    def __init__(self, settings: Settings, held_out: frozenset[str]) -> None:
        super().__init__(settings=settings)
        self._held_out = held_out

    def validate(self, proposals: Sequence[Proposal]) -> list[Validation]:
        return [
            Validation(verdict=Verdict.FORBIDDEN, detail="held out for evaluation")
            if found.task is not None and program_digest(found.task.program) in self._held_out
            else found
            for found in super().validate(proposals)
        ]


def check_free(folder: Path) -> None:
    if (folder / CONFIG).exists() or (folder / journal.NAME).exists():
        raise SpecError(f"{folder} holds a run already: --resume goes on with it, or choose another --out")


def start(folder: Path, config: Config) -> None:
    """Claims a folder for a run."""
    check_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(configs.as_dict(config), indent=1) + "\n")
    except OSError as error:
        raise SpecError(f"{folder}: {error.strerror}") from error


def settings_of(folder: Path) -> Config:
    """The configuration of a run that was started."""
    if not (folder / CONFIG).is_file():
        raise SpecError(f"{folder} holds no run: start one without --resume")
    return configs.read(folder / CONFIG)


def train(
    folder: Path, config: Config, make: MakeEngine, *, sinks: Sequence[Sink] = (), per_cell: int = suite.PER_CELL,
    resume: bool = False, say: Say = silent,
) -> Outcome:  # fmt: skip
    """Runs to `config.iterations`. per_cell: tasks of each kind and grade of the held-out suite; 0 turns it off."""
    started = time.perf_counter()
    if not resume:
        check_free(folder)
    items = suite.tiny(per_cell=per_cell, inputs=config.prompt.inputs) if per_cell else []
    engine = make(config)
    if not resume:
        start(folder, config)
    with (
        Journal(folder, sinks=sinks) as log,
        HeldOutVerifier(config.executor.settings(), suite.digests(items)) as verifier,
    ):
        trainer = Trainer(engine, verifier, config)
        whole = Run(folder, config, engine, verifier, trainer, log, items, say)
        whole.resume() if resume else whole.begin()
        before = whole.evaluated()
        last: Iteration | None = None
        after = before
        while trainer.number < config.iterations:
            last = whole.iterate()
            due = config.evaluate_every and trainer.number % config.evaluate_every == 0
            if due or trainer.number == config.iterations:
                after = whole.evaluated()
            if trainer.number % config.checkpoint_every == 0 or trainer.number == config.iterations:
                whole.save()
    report.write(folder)
    return Outcome(
        folder=folder, iterations=trainer.number, before=before, after=after, last=last,
        seconds=time.perf_counter() - started,
    )  # fmt: skip


@dataclass(slots=True)
class Run:
    folder: Path
    config: Config
    engine: Engine
    verifier: Verifier
    trainer: Trainer
    log: Journal
    items: list[Item]
    say: Say

    def begin(self) -> None:
        settings = configs.as_dict(self.config)
        self.log.write(
            "run", profile=self.config.profile, seed=self.config.seed, engine=self.config.engine.name,
            model=self.config.engine.model, python=platform.python_version(), config=settings,
        )  # fmt: skip
        self.trainer.buffers.keep_in(self.folder / BUFFERS)
        self.trainer.seed(lambda rounds, sizes: self.say(f"seeding, round {rounds}: {_sizes(sizes)}"))
        self.save()

    def resume(self) -> None:
        place = checkpoint.latest(self.folder / CHECKPOINTS)
        if place is None:
            raise SpecError(f"{self.folder}: no checkpoint to go on from; the run ended before its first")
        saved = checkpoint.load(place)
        self.engine.load(saved.learner)
        self.trainer.load(saved.state)
        self.trainer.buffers.keep_in(self.folder / BUFFERS)
        self.log.write("resume", iteration=saved.step)
        self.say(f"going on after iteration {saved.step}")

    def save(self) -> None:
        now = Checkpoint(step=self.trainer.number, state=self.trainer.state(), learner=self.engine.state())
        checkpoint.save(self.folder / CHECKPOINTS, now, keep=self.config.keep_checkpoints)

    def iterate(self) -> Iteration:
        done = self.trainer.iterate()
        self.log.write("step", iteration=done.number, **done.metrics)
        for sample in samples_of(done):
            self.log.write("sample", iteration=done.number, **sample)
        self.say(line_of(done, self.config.iterations))
        return done

    def evaluated(self) -> Evaluation | None:
        if not self.items:
            return None
        found = held_out(self.engine, self.verifier, self.items, self.config)
        self.log.write("eval", iteration=self.trainer.number, suites=suites_of(found), seconds=found.seconds)
        parts = ", ".join(f"{kind} {found.scores[kind].value:.3f}" for kind in Kind if kind in found.scores)
        self.say(f"held out after {self.trainer.number}: {parts} ({found.seconds:.1f} s)")
        return found


def held_out(generator: Generator, verifier: Verifier, items: Sequence[Item], config: Config) -> Evaluation:
    how = How(profile=config.prompt.form(), max_new=config.prompt.solve_tokens)
    kept = [item for item in items if item.kind in config.kinds]
    return evaluate.evaluate(generator, verifier, kept, how)


def suites_of(found: Evaluation) -> dict[str, Any]:
    """For the journal: kinds apart from grades."""
    graded = {name: score.as_json() for name, score in found.scores.items() if name.endswith(" op")}
    whole = {name: score.as_json() for name, score in found.scores.items() if name not in graded}
    return {found.suite: whole, **({found.suite + BY_OPERATIONS: graded} if graded else {})}


def line_of(done: Iteration, of: int) -> str:
    numbers = done.metrics
    parts = [f"iteration {done.number}/{of}: {numbers['time']['total']:.1f} s"]
    for kind, of_kind in numbers["propose"].items():
        valid, share = of_kind.get("valid"), of_kind.get("share")
        if valid is not None:
            parts.append(f"{kind} {valid:.0%} valid" + ("" if share is None else f", {share:.0%} solved"))
    return "; ".join(parts)


def samples_of(done: Iteration) -> list[dict[str, Any]]:
    """A few proposals to read: of each kind the first that was valid, else the first of all."""
    found: list[dict[str, Any]] = []
    for kind in dict.fromkeys(one.kind for one in done.proposed):
        of_kind = [one for one in done.proposed if one.kind is kind]
        found.append(_sample(next((one for one in of_kind if one.task is not None), of_kind[0])))
    return found[:SAMPLES]


def _sample(one: Proposed) -> dict[str, Any]:
    head: dict[str, Any] = {"task": str(one.kind), "reward": one.reward, "solve_rate": one.share}
    if isinstance(one.parsed, FormatError):
        return head | {"verdict": f"format: {one.parsed.reason}", "program": one.completion.text[:MAX_SAMPLE_CHARS]}
    if one.task is None:
        verdict = "" if one.validation is None else f"{one.validation.verdict}: {one.validation.detail}"
        return head | {
            "verdict": verdict,
            "program": one.parsed.program[:MAX_SAMPLE_CHARS],
            "input": one.parsed.inputs[0],
        }
    if isinstance(one.task, InductionTask):
        given, output = one.task.pairs[0]
        body = {"program": one.task.program, "message": one.task.message, "input": given, "output": output}
    else:
        body = {"program": one.task.program, "input": one.task.input, "output": one.task.output}
    return head | {name: text[:MAX_SAMPLE_CHARS] for name, text in body.items()}


def propose(folder: Path, config: Config, generator: Generator, *, say: Say = silent) -> dict[Kind, int]:
    """Fills the buffers of a new folder with valid proposals and learns nothing: any generator will do."""
    start(folder, config)
    items = suite.tiny(inputs=config.prompt.inputs)
    with (
        Journal(folder) as log,
        HeldOutVerifier(config.executor.settings(), suite.digests(items)) as verifier,
    ):
        # Seeding asks for nothing but completions.
        trainer = Trainer(cast("Engine", generator), verifier, config)
        log.write("propose", engine=config.engine.name, model=config.engine.model, config=configs.as_dict(config))
        trainer.buffers.keep_in(folder / BUFFERS)
        trainer.seed(lambda rounds, sizes: say(f"round {rounds}: {_sizes(sizes)}"))
        return {kind: len(trainer.buffers[kind]) for kind in config.kinds}


def _sizes(sizes: Mapping[Kind, int]) -> str:
    return ", ".join(f"{size} {kind}" for kind, size in sizes.items())


def trained(folder: Path) -> tuple[Config, Mapping[str, Any]]:
    """The settings of a run and what its learner had learnt at its last checkpoint."""
    config = settings_of(folder)
    place = checkpoint.latest(folder / CHECKPOINTS)
    if place is None:
        raise SpecError(f"{folder}: no checkpoint")
    return config, checkpoint.load(place).learner


def with_options(config: Config, *, model: str | None, engine: str | None) -> Config:
    changed = dataclasses.replace(config.engine, model=model or config.engine.model, name=engine or config.engine.name)
    return dataclasses.replace(config, engine=changed)
