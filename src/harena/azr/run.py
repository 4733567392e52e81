"""A training run in a folder: seeding, iterations, held-out evaluation, journal, checkpoints, report.

    DIR/config.json       the settings, all of them
        journal.jsonl     what happened (journal.py)
        buffers/          the tasks, as JSON lines
        checkpoints/      to go on from
        report.html       plots and samples, written anew after each look at the held-out suite

Guarantees: a run that was ended, however, goes on from its last checkpoint as if nothing had happened; the first Ctrl-C
lets an iteration end and saves it; a folder that holds a run is never written over, and one process at a time works in
it; programs of the held-out suite are no valid proposals, so nothing is trained on them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import platform
import signal
import threading
import time
from collections import Counter, abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from harena.azr import checkpoint
from harena.azr import config as configs
from harena.azr.check.verify import TaskVerifier
from harena.azr.checkpoint import BadCheckpoint, Checkpoint
from harena.azr.config import TrainConfig
from harena.azr.engines.protocol import Engine, Generator
from harena.azr.errors import TrainingError
from harena.azr.learn import metrics
from harena.azr.loop import Iteration, Proposed, Trainer
from harena.azr.report import evaluate, journal, progress
from harena.azr.report import html as report
from harena.azr.report.evaluate import How, ModelEvaluation
from harena.azr.report.journal import RunJournal, Sink
from harena.azr.tasks import suite
from harena.azr.tasks.kinds import FormatError, InductionTask, TaskKind
from harena.azr.tasks.suite import Item
from harena.errors import SpecError

CONFIG, BUFFERS, CHECKPOINTS = "config.json", "buffers", "checkpoints"
MAX_SAMPLE_CHARS = 2_000

Say = Callable[[str], None]
MakeEngine = Callable[[TrainConfig], Engine]


class RunStopped(TrainingError):
    """A file of the run could not be written or read. Nothing up to the last checkpoint is lost: put right what the
    message names and resume."""


def silent(text: str) -> None:
    del text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    folder: Path
    iterations: int
    before: ModelEvaluation | None
    """Held-out accuracy before the first iteration of the run; None when evaluation is off."""
    after: ModelEvaluation | None
    last: Iteration | None
    seconds: float
    """Time of this call."""
    continued_after: int = 0
    """The iteration after which this call continued a run; 0 for a new one."""


def held_out_suite(config: TrainConfig) -> list[Item]:
    """What this run is measured on; nothing where that is turned off."""
    tasks = config.evaluate_tasks
    return suite.tiny(per_cell=tasks, inputs=config.prompt.inputs) if tasks else []


def held_out_programs(config: TrainConfig) -> frozenset[str]:
    """What is never trained on, whether or not this run measures itself: the suite as `harena azr eval` asks it, and as
    this run does."""
    whole = suite.tiny(per_cell=max(suite.PER_CELL, config.evaluate_tasks))
    return suite.digests(whole) | suite.digests(held_out_suite(config))


# ---- a folder ----


def check_free(folder: Path) -> None:
    try:
        taken = any((folder / name).exists() for name in (CONFIG, journal.NAME))
    except OSError as error:
        raise SpecError(f"{folder}: {error.strerror}: choose another --out") from error
    if taken:
        raise SpecError(f"{folder} holds a run already: choose another --out, or go on with it by train --resume")
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is a file: --out is a folder")


def start(folder: Path, config: TrainConfig) -> None:
    """Makes a folder a run's. Of two processes that try at once, one is refused."""
    check_free(folder)
    place = folder / CONFIG
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(place, "x", encoding="utf-8") as file:
            file.write(json.dumps(configs.as_dict(config), indent=1) + "\n")
    except FileExistsError:
        check_free(folder)
        raise
    except OSError as error:
        if error.filename is None:  # it was made, and not written
            place.unlink()
        raise SpecError(f"{folder}: {error.strerror}: choose another --out") from error


@contextlib.contextmanager
def working_in(folder: Path, *, then: str = "") -> abc.Generator[None]:
    """Holds the folder while a process works in it; the system lets go of it however the process ends. Of a file that
    fails it says which, and what to do then."""
    then = then or f"put that right, then `harena azr train --out {folder} --resume`"
    with open(folder / CONFIG, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(f"{folder}: another process works on this run: let it end first") from None
        try:
            yield
        except OSError as error:
            if error.errno is None or isinstance(error, ConnectionError):  # of no file
                raise
            raise RunStopped(f"{error.filename or folder}: {error.strerror}; {then}") from error


def where(folder: Path) -> str:
    """Say from where a run would continue."""
    place = checkpoint.latest(folder / CHECKPOINTS)
    return "from its beginning" if place is None else f"after iteration {int(place.name.rpartition('-')[2])}"


def settings_of(folder: Path) -> TrainConfig:
    """The configuration of a run that was started."""
    if not (folder / CONFIG).is_file():
        raise SpecError(f"{folder} holds no run: give the --out folder of `harena azr train`")
    return configs.read(folder / CONFIG)


# ---- training ----


def train(
    folder: Path,
    config: TrainConfig,
    make: MakeEngine,
    *,
    sinks: Sequence[Sink] = (),
    resume: bool = False,
    say: Say = silent,
) -> RunOutcome:
    """Runs to `config.iterations`."""
    started = time.perf_counter()
    if not resume:
        check_free(folder)
    engine = make(config)
    with contextlib.ExitStack() as stack:
        verifier = stack.enter_context(TaskVerifier(config.executor.settings(), held_out=held_out_programs(config)))
        if not resume:
            start(folder, config)
        stack.enter_context(working_in(folder))
        log = stack.enter_context(RunJournal(folder, sinks=sinks))
        trainer = Trainer(engine, verifier, config)
        whole = Run(folder, config, engine, verifier, trainer, log, held_out_suite(config), say)
        whole.resume() if resume and whole.has_checkpoint() else whole.begin()
        continued_after = trainer.number
        before, after = whole.before_and_now()
        last: Iteration | None = None
        saved = True
        with Patience(say) as patience:  # around all: between two iterations a signal must not end them either
            while trainer.number < config.iterations and not patience.asked:
                last = whole.iterate()
                done = trainer.number == config.iterations
                saved = done or trainer.number % config.checkpoint_every == 0
                if saved:  # before a look at the suite, during which much can happen
                    whole.save()
                due = done or (config.evaluate_every and trainer.number % config.evaluate_every == 0)
                if due and not patience.asked:
                    after = whole.evaluated()
            if patience.asked and not saved:
                whole.save()
        if patience.asked:
            report.write(folder)
            raise KeyboardInterrupt
        report.write(folder)
    return RunOutcome(
        folder=folder,
        iterations=trainer.number,
        before=before,
        after=after,
        last=last,
        seconds=time.perf_counter() - started,
        continued_after=continued_after,
    )


class Patience:
    """While it is entered, the first Ctrl-C or SIGTERM is only noted, and the second is a KeyboardInterrupt. Where a
    signal means something else, as Ctrl-C in the background of a script, it keeps its meaning."""

    USUAL: ClassVar = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def __init__(self, say: Say) -> None:
        self.asked = False
        self._say = say
        self._taken: list[signal.Signals] = []

    def __enter__(self) -> Patience:
        if threading.current_thread() is threading.main_thread():
            self._taken = [one for one, usual in self.USUAL.items() if signal.getsignal(one) is usual]
            for one in self._taken:
                signal.signal(one, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self._taken:
            signal.signal(one, self.USUAL[one])

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("this iteration ends first and is saved; Ctrl-C once more does not wait")


@dataclass(slots=True)
class Run:
    folder: Path
    config: TrainConfig
    engine: Engine
    verifier: TaskVerifier
    trainer: Trainer
    log: RunJournal
    items: list[Item]
    say: Say
    pace: progress.Pace = dataclasses.field(default_factory=progress.Pace)
    """Iterations of this call, to tell how long the rest takes."""

    def begin(self) -> None:
        settings = configs.as_dict(self.config)
        self.log.write(
            "run",
            profile=self.config.profile,
            seed=self.config.seed,
            engine=self.config.engine.name,
            model=self.config.engine.model,
            python=platform.python_version(),
            config=settings,
        )
        self.trainer.buffers.keep_in(self.folder / BUFFERS)
        seeding = _seeded(self.trainer, self.log, lambda text: self.say(f"seeding, {text}"))
        wanted = self.config.batch * self.config.seed_factor
        if any(len(self.trainer.buffers[kind]) < wanted for kind in self.config.kinds):
            self.say(f"fewer than {wanted} tasks of a kind to begin with{seeding.mostly()}")
        self.save()

    def has_checkpoint(self) -> bool:
        """False of a run that was ended before its first: it begins anew, as the same run."""
        if any(record["kind"] == "propose" for record in journal.read(self.folder)):
            raise SpecError(f"{self.folder} holds tasks that were collected, and no run: choose another --out")
        return checkpoint.latest(self.folder / CHECKPOINTS) is not None

    def resume(self) -> None:
        place = checkpoint.latest(self.folder / CHECKPOINTS)
        if place is None:
            raise SpecError(f"{self.folder}: no checkpoint: the run ended before its first; remove it and start anew")
        saved = self._saved(place)
        self.engine.load(saved.learner)
        self.trainer.load(saved.state)
        self.trainer.buffers.keep_in(self.folder / BUFFERS)
        self.log.write("resume", iteration=saved.step)
        done = saved.step >= self.config.iterations
        self.say(f"going on after iteration {saved.step}" + ("; nothing is left to do" if done else ""))

    def _saved(self, place: Path) -> Checkpoint:
        try:
            return checkpoint.load(place)
        except BadCheckpoint as error:
            earlier = checkpoint.listed(place.parent)[:-1]
            hint = f"remove it to go on from {earlier[-1].name}" if earlier else "there is no other: start a new run"
            raise BadCheckpoint(f"{error}; {hint}") from None

    def save(self) -> None:
        now = Checkpoint(step=self.trainer.number, state=self.trainer.state(), learner=self.engine.state())
        checkpoint.save(self.folder / CHECKPOINTS, now, keep=self.config.keep_checkpoints)

    def iterate(self) -> Iteration:
        done = self.trainer.iterate()
        self.log.write("step", iteration=done.number, **done.metrics)
        for sample in samples_of(done):
            self.log.write("sample", iteration=done.number, **sample)
        left = self.pace.left(self.config.iterations - done.number)
        self.say(line_of(done, self.config.iterations) + (f"; about {left} left" if left else ""))
        return done

    def before_and_now(self) -> tuple[ModelEvaluation | None, ModelEvaluation | None]:
        """Held-out accuracy before the run and at this point. What the journal has is not measured again."""
        self.pace = progress.Pace()
        if not self.items:
            return None, None
        records = [record for record in journal.read(self.folder) if record["kind"] == "eval"]
        known = {record.get("iteration"): evaluate.from_record(record) for record in records}
        now = known.get(self.trainer.number) or self.evaluated()
        return known.get(0) or now, now

    def evaluated(self) -> ModelEvaluation | None:
        if not self.items:
            return None
        found = held_out(self.engine, self.verifier, self.items, self.config)
        right = [name for name, count in found.right.items() if count]
        self.log.write(
            "eval", iteration=self.trainer.number, suites=suites_of(found), right=right, seconds=found.seconds
        )
        parts = ", ".join(f"{kind} {found.scores[kind].value:.3f}" for kind in TaskKind if kind in found.scores)
        self.say(f"held out after {self.trainer.number}: {parts} ({found.seconds:.1f} s)")
        report.write(self.folder)
        return found


def held_out(
    generator: Generator, verifier: TaskVerifier, items: Sequence[Item], config: TrainConfig
) -> ModelEvaluation:
    how = How(profile=config.prompt.form(), max_new=config.prompt.solve_tokens)
    kept = [item for item in items if item.kind in config.kinds]
    return evaluate.evaluate(generator, verifier, kept, how)


def suites_of(found: ModelEvaluation) -> dict[str, Any]:
    """Return scores for the journal, with kinds apart from grades."""
    graded = {name: score.as_json() for name, score in found.scores.items() if name.endswith(" op")}
    whole = {name: score.as_json() for name, score in found.scores.items() if name not in graded}
    return {found.suite: whole, **({found.suite + evaluate.BY_OPERATIONS: graded} if graded else {})}


def line_of(done: Iteration, of: int) -> str:
    numbers = done.metrics
    parts = [f"iteration {done.number}/{of}: {numbers['time']['total']:.1f} s"]
    for kind, of_kind in numbers["propose"].items():
        valid, share = of_kind.get("valid"), of_kind.get("share")
        if valid is not None:
            parts.append(f"{kind} {valid:.0%} valid" + ("" if share is None else f", {share:.0%} solved"))
    return "; ".join(parts)


def samples_of(done: Iteration) -> list[dict[str, Any]]:
    """A few proposals to read: the first of each kind that was valid, and the first that was not."""
    found: list[Proposed] = []
    for kind in dict.fromkeys(one.kind for one in done.proposed):
        found += [one for one in done.proposed if one.kind is kind and one.task is not None][:1]
    found += [one for one in done.proposed if one.task is None][:1]
    return [_sample(one) for one in found]


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
    message = {"message": one.task.message} if isinstance(one.task, InductionTask) else {}
    given, output = one.task.examples[0]
    body = {"program": one.task.program, **message, "input": given, "output": output}
    return head | {name: text[:MAX_SAMPLE_CHARS] for name, text in body.items()}


@dataclass(slots=True)
class Seeding:
    """What became of proposals that were only collected, by kind."""

    proposals: Counter[str] = dataclasses.field(default_factory=Counter[str])
    valid: Counter[str] = dataclasses.field(default_factory=Counter[str])
    invalid: dict[str, Counter[str]] = dataclasses.field(default_factory=dict[str, Counter[str]])
    """Invalid answers by reason."""

    def add(self, proposed: Sequence[Proposed]) -> None:
        for one in proposed:
            self.proposals[str(one.kind)] += 1
            self.valid[str(one.kind)] += one.task is not None
            reason = metrics.why_invalid(one)
            if reason is not None:
                self.invalid.setdefault(str(one.kind), Counter())[reason] += 1

    def mostly(self) -> str:
        """The most frequent reason, in words."""
        found = sum(self.invalid.values(), Counter[str]()).most_common(1)
        return "".join(f"; {count} of {self.proposals.total()} proposals: {reason}" for reason, count in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedTasks:
    tasks: dict[TaskKind, int]
    seeding: Seeding


def propose(folder: Path, config: TrainConfig, generator: Generator, *, say: Say = silent) -> ProposedTasks:
    """Fills the buffers of a new folder with valid proposals and learns nothing: any generator will do."""
    with contextlib.ExitStack() as stack:
        verifier = stack.enter_context(TaskVerifier(config.executor.settings(), held_out=held_out_programs(config)))
        start(folder, config)
        stack.enter_context(working_in(folder, then="put that right, and collect into another --out"))
        log = stack.enter_context(RunJournal(folder))
        # Seeding asks for nothing but completions.
        trainer = Trainer(cast("Engine", generator), verifier, config)
        log.write("propose", engine=config.engine.name, model=config.engine.model, config=configs.as_dict(config))
        trainer.buffers.keep_in(folder / BUFFERS)
        seeding = _seeded(trainer, log, say)
        return ProposedTasks(tasks={kind: len(trainer.buffers[kind]) for kind in config.kinds}, seeding=seeding)


def _seeded(trainer: Trainer, log: RunJournal, say: Say) -> Seeding:
    """Fills the buffers, says so round by round, and writes down what became of the proposals."""
    seeding = Seeding()

    def told(rounds: int, sizes: Mapping[TaskKind, int], proposed: Sequence[Proposed]) -> None:
        seeding.add(proposed)
        say(f"round {rounds}: " + ", ".join(f"{size} {kind}" for kind, size in sizes.items()))

    trainer.seed(told)
    log.write("seed", proposals=seeding.proposals, valid=seeding.valid, invalid=seeding.invalid)
    return seeding


def trained(folder: Path) -> tuple[TrainConfig, Mapping[str, Any]]:
    """The settings of a run and what its learner had learnt at its last checkpoint."""
    config = settings_of(folder)
    place = checkpoint.latest(folder / CHECKPOINTS)
    if place is None:
        raise SpecError(f"{folder}: no checkpoint")
    return config, checkpoint.load(place).learner


def with_options(config: TrainConfig, *, model: str | None, engine: str | None) -> TrainConfig:
    changed = dataclasses.replace(config.engine, model=model or config.engine.model, name=engine or config.engine.name)
    return dataclasses.replace(config, engine=changed)
