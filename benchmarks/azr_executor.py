"""Measures the checks of Absolute Zero on this machine: `python benchmarks/azr_executor.py [--quick] [--model FILE]`.

Programs come from our own generator. A validation is what a proposal goes through before it is a task: parsing, the
lint, four calls in two interpreters, the comparison. A grading is one answer: abduction and induction run the program,
deduction compares values. Beside them, in turns, the same calls in a plain pool of processes without any isolation,
limits or parsing, which is what isolation is paid against; only our own programs ever run there. With a model (the one
that comes with Harena, or --model) also whole iterations of the laptop profile: how long, how much of it waits for the
executor, and what it takes when one proposal in twenty is an infinite loop.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from harena.azr import config as configs
from harena.azr import environment
from harena.azr.check.verify import Attempt, TaskVerdict, TaskVerifier
from harena.azr.engines import torch_driver
from harena.azr.engines.protocol import Completion, CompletionRequest, Engine, OnDone, Sampling
from harena.azr.loop import Trainer
from harena.azr.report import evaluate
from harena.azr.tasks import programs
from harena.azr.tasks.kinds import InductionTask, Proposal, TaskKind, Triplet
from harena.azr.tasks.suite import Item
from harena.sandbox.bench import Row, table

LOOP = "def f(a):\n    while True:\n        pass"
INPUTS = 6
"""Of an induction task."""
ROUNDS = 3
LOOP_EVERY = 20
"""One proposal in so many is an infinite loop: 5 %."""


def examples(count: int, *, inputs: int = 1, seed: int = 0) -> list[programs.Example]:
    rng = Random(seed)
    return [programs.draw(rng, ops=1 + number % programs.MAX_OPS, inputs=inputs) for number in range(count)]


def proposals(count: int, *, seed: int = 0) -> list[Proposal]:
    """A third of each kind, as a step has them."""
    made: list[Proposal] = []
    for kind in TaskKind:
        inputs = INPUTS if kind is TaskKind.INDUCTION else 1
        for one in examples(count // 3, inputs=inputs, seed=seed):
            made.append(Proposal(kind=kind, program=one.program, inputs=one.inputs, message=one.message))
    return made


def tasks(count: int, *, seed: int = 1) -> list[Item]:
    made: list[Item] = []
    for kind in TaskKind:
        for one in examples(count // 3, inputs=INPUTS if kind is TaskKind.INDUCTION else 1, seed=seed):
            pairs = tuple(zip(one.inputs, one.outputs, strict=True))
            task = (
                InductionTask(program=one.program, message="", pairs=pairs)
                if kind is TaskKind.INDUCTION
                else Triplet(program=one.program, input=pairs[0][0], output=pairs[0][1])
            )
            made.append(Item(id="", kind=kind, task=task))
    return made


def attempts(items: Sequence[Item]) -> list[Attempt]:
    return [Attempt(task=item.task, answer=evaluate.gold(item.kind, item.task)) for item in items]


def in_turns(own: Callable[[], int], other: Callable[[], int]) -> tuple[float, float]:
    """Both per second, the best of some rounds that take turns: the machine may be shared."""
    best = [0.0, 0.0]
    for _ in range(ROUNDS):
        for place, action in enumerate((own, other)):
            started = time.perf_counter()
            count = action()
            best[place] = max(best[place], count / (time.perf_counter() - started))
    return best[0], best[1]


# ---- ours ----


def validations(verifier: TaskVerifier, batch: Sequence[Proposal]) -> int:
    if not all(one.ok for one in verifier.validate(batch)):
        raise RuntimeError("a valid program was refused")
    return len(batch)


def apart(batch: Sequence[Proposal]) -> float:
    """What `executor: {share: false}` costs."""
    settings = configs.read(profile="laptop", executor={"share": False}).executor.settings()
    with TaskVerifier(settings=settings) as verifier:
        verifier.validate(batch[:30])
        started = time.perf_counter()
        return validations(verifier, batch) / (time.perf_counter() - started)


def gradings(verifier: TaskVerifier, batch: Sequence[Attempt]) -> int:
    if not all(one.right for one in verifier.grade(batch)):
        raise RuntimeError("a right answer was refused")
    return len(batch)


def step_s(verifier: TaskVerifier, step: Sequence[Proposal], graded: Sequence[Attempt], loops: int) -> float:
    """Seconds for all checks of a step: its proposals, then its answers."""
    started = time.perf_counter()
    found = verifier.validate(step)
    grades = verifier.grade(graded)
    took = time.perf_counter() - started
    hung = sum(one.verdict is TaskVerdict.TIME for one in found)
    if hung != loops or not all(one.right for one in grades):
        raise RuntimeError(f"{hung} of {loops} infinite loops were found, or a right answer was refused")
    return took


# ---- the same without isolation ----


def bare_calls(job: tuple[str, tuple[str, ...], int]) -> list[str]:
    program, inputs, times = job
    outputs: list[str] = []
    for _ in range(times):
        names: dict[str, Any] = {}
        exec(program, names)
        outputs += [repr(eval(f"f({given})", names)) for given in inputs]  # noqa: S307 (our generator's programs)
    return outputs


def bare(pool: ProcessPoolExecutor, jobs: Sequence[tuple[str, tuple[str, ...], int]]) -> int:
    list(pool.map(bare_calls, jobs, chunksize=64))
    return len(jobs)


# ---- whole iterations ----


class Poisoned:
    """An engine that now and then writes an infinite loop instead of its own program."""

    def __init__(self, engine: Engine, every: int) -> None:
        self._engine, self._every = engine, every
        self.step, self.state, self.load = engine.step, engine.state, engine.load

    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        def spoiled(index: int, completions: list[Completion]) -> None:
            asked = requests[index].prompt
            if self._every and index % self._every == 3 and asked.startswith(("# propose ded", "# propose abd")):
                completions = [dataclasses.replace(completions[0], text=f"{LOOP}\nf({index})", finished=True)]
            if on_done is not None:
                on_done(index, completions)

        return self._engine.generate(requests, sampling, spoiled)


def iterations(model: str, *, quick: bool) -> list[Row]:
    config = configs.read(profile="laptop")
    config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, model=model))
    with TaskVerifier(settings=config.executor.settings()) as verifier:
        clean, poisoned = (
            Trainer(Poisoned(torch_driver.engine_of(config), every), verifier, config)
            for every in (0, LOOP_EVERY * 2 // 3)  # two of three kinds are about new programs
        )
        for trainer in (clean, poisoned):
            trainer.seed()
            trainer.iterate()
        # In turns, so that what else the machine does meets both.
        pairs = [(clean.iterate(), poisoned.iterate()) for _ in range(3 if quick else 7)]
    times = [one.metrics["time"] for one, _ in pairs]
    waits = [(one["wait_validate"] + one["wait_grade"]) / one["total"] for one in times]
    ratios = [other.metrics["time"]["total"] / one.metrics["time"]["total"] for one, other in pairs]
    hung = sum(
        kind["verdicts"].get("time", 0) for _, other in pairs for kind in other.metrics["propose"].values()
    ) / len(pairs)
    spoiled = f"… with {hung:.0f} infinite loops in 96 proposals, against without"
    return [
        Row("laptop iteration (6×32, n=8), median", statistics.median(one["total"] for one in times), "s", 15, 5),
        Row("… share of it that waits for the executor", statistics.median(waits), "", 0.25, 0.10),
        Row(spoiled, statistics.median(ratios), "×", 1.5, 1.1),
    ]


# ---- the table ----


def measure(*, quick: bool, model: str | None, say: Callable[[str], object]) -> list[Row]:
    count = 384 if quick else 1536
    batch, items = proposals(count), tasks(2 * count)
    answers = attempts(items)
    executed = [one for one in answers if one.answer.kind is not TaskKind.DEDUCTION]
    jobs = [(one.program, one.inputs, 4) for one in batch]
    asked = [(one.task.program, evaluated_inputs(one), 1) for one in executed]
    rows: list[Row] = []
    # The processes first: a fork of a process with threads would be asking for trouble.
    with ProcessPoolExecutor() as pool:
        bare(pool, jobs[:64])
        with TaskVerifier(settings=configs.read(profile="laptop").executor.settings()) as verifier:
            verifier.validate(batch[:30])
            say("measuring validations …")
            own, other = in_turns(lambda: validations(verifier, batch), lambda: bare(pool, jobs))
            rows.append(Row("isolated validations", own, "/s", 400, 1500, more_is_better=True))
            rows.append(Row("… the same calls without isolation", other, "/s", None, None))
            rows.append(Row("… each program in a process of its own", apart(batch[:192]), "/s", None, None))
            say("measuring gradings …")
            own, _ = in_turns(lambda: gradings(verifier, answers), lambda: 0)
            rows.append(Row("isolated gradings, all kinds", own, "/s", 1500, 4000, more_is_better=True))
            own, other = in_turns(lambda: gradings(verifier, executed), lambda: bare(pool, asked))
            rows.append(Row("… abduction and induction alone", own, "/s", None, None))
            rows.append(Row("… the same calls without isolation", other, "/s", None, None))
            say("measuring the checks of a step with and without infinite loops …")
            rows += loops(verifier)
    if model:
        say("measuring iterations …")
        rows += iterations(model, quick=quick)
    return rows


def evaluated_inputs(attempt: Attempt) -> tuple[str, ...]:
    if isinstance(attempt.task, InductionTask):
        return tuple(given for given, _ in attempt.task.hidden)
    return (attempt.task.input,)


def loops(verifier: TaskVerifier) -> list[Row]:
    """The checks of one laptop step (6×32, n=8): 96 proposals, 96×8 sampled and 96 trained answers."""
    step = proposals(96, seed=2)
    graded = attempts(tasks(96 * 9, seed=3))
    poisoned = list(step)
    places = range(3, 96, LOOP_EVERY)
    for place in places:
        poisoned[place] = Proposal(kind=TaskKind.DEDUCTION, program=LOOP, inputs=(str(place),))
    clean = min(step_s(verifier, step, graded, 0) for _ in range(ROUNDS))
    slow = min(step_s(verifier, poisoned, graded, len(places)) for _ in range(ROUNDS))
    return [
        Row("checks of a laptop step (96 proposals, 864 answers)", clean, "s", None, None),
        Row(f"… with {len(places)} infinite loops among the proposals (5 %)", slow, "s", None, None),
        Row("… what the loops add", slow - clean, "s", None, None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the verifier of Absolute Zero on this machine.")
    parser.add_argument("--quick", action="store_true", help="fewer programs")
    parser.add_argument("--model", metavar="FILE", help="for whole iterations (the one that comes with Harena)")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON here, not after the table")
    args = parser.parse_args()
    environment.wait_briefly()  # before anything loads torch
    from harena.azr.model import weights

    model = args.model or ("default" if weights.SMALL.is_file() else None)
    rows = measure(quick=args.quick, model=model, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows))
    if args.json:
        Path(args.json).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    else:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
