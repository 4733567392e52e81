"""Variants × seeds of training under equal compute, and what came of them.

    DIR/variants/NAME.json      all settings of a variant
        NAME/seed-N/            a run, as `harena azr train` leaves it
        study.json, study.md    scores with intervals, paired tests, learning curves, the commands

Guarantees: every run has the same model, number of iterations and samples, and held-out tasks; a run that is complete
is not run again, one that was interrupted goes on; a folder that holds another study is refused. Tests are two-sided
sign tests on tasks that one side solved and the other did not, not corrected for their number.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.azr import config as configs
from harena.azr import run
from harena.azr.config import TrainConfig
from harena.azr.engines import registry
from harena.azr.report import journal, scores
from harena.azr.run import Say
from harena.errors import SpecError

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "self-play": {},
    "frozen-model": {"update": {"learning_rate": 0.0}},
    "frozen-proposer": {"train_proposer": False},
    "no-novelty": {"reward": {"repeat": None}},
    "single-baseline": {"advantage": {"algorithm": "single"}},
    "six-baselines": {"advantage": {"algorithm": "trr++"}},
}
"""What each changes of the settings that the study starts from. The first is what the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    variant: str
    seed: int
    folder: Path
    config: TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    variant: str
    seed: int
    tasks: int
    before: frozenset[str]
    after: frozenset[str]
    """Tasks that were solved."""
    curve: tuple[tuple[int, float], ...]
    """Held-out accuracy by iteration."""
    seconds: float
    """Time of the iterations, without evaluation."""
    learnt: int
    """Samples that were learnt from."""


def sign_test(gained: int, lost: int) -> float:
    """Two-sided p of so many gains and losses if both are equally likely."""
    n, k = gained + lost, max(gained, lost)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n) if n else 1.0


def cells(folder: Path, base: TrainConfig, variants: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """All runs of a study. SpecError for what no study can be made of."""
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown:
        raise SpecError(f"variant {unknown[0]!r}: one of {', '.join(VARIANTS)}")
    if not variants or not seeds or len({*variants}) < len(variants) or len({*seeds}) < len(seeds):
        raise SpecError("a study needs variants and seeds, none of them twice")
    if not base.evaluate_tasks:
        raise SpecError("evaluate_tasks=0: a study that measures nothing says nothing")
    return [
        Cell(
            variant=name,
            seed=seed,
            folder=folder / name / f"seed-{seed}",
            config=configs.from_dict({**VARIANTS[name], "seed": seed}, base),
        )
        for name in variants
        for seed in seeds
    ]


def perform(folder: Path, base: TrainConfig, variants: Sequence[str], seeds: Sequence[int], *, say: Say) -> Path:
    """Run what is missing of a study and write its tables; return the path of study.md."""
    planned = cells(folder, base, variants, seeds)
    _keep_settings(folder, planned)
    for number, cell in enumerate(planned, 1):
        name = f"{cell.variant}, seed {cell.seed} ({number} of {len(planned)})"
        if _is_done(cell):
            say(f"{name}: done already")
            continue
        say(name)
        driver = registry.driver(cell.config.engine, trains=True)
        started = (cell.folder / run.CONFIG).exists()
        driver.train(cell.folder, cell.config, sinks=(), resume=started, say=say)
    return write(folder, planned, [result_of(cell) for cell in planned])


def _keep_settings(folder: Path, planned: Sequence[Cell]) -> None:
    """Write down the settings of each variant, or see that they are still the same."""
    (folder / "variants").mkdir(parents=True, exist_ok=True)
    for cell in planned:
        kept = configs.as_dict(dataclasses.replace(cell.config, seed=0))
        path = folder / "variants" / f"{cell.variant}.json"
        if not path.exists():
            path.write_text(json.dumps(kept, indent=1) + "\n")
        elif configs.as_dict(configs.read(path)) != kept:
            raise SpecError(f"{path} has other settings: a study keeps its own; choose another --out")


def _evaluations(cell: Cell) -> dict[int, dict[str, Any]]:
    if not (cell.folder / journal.NAME).exists():
        return {}
    return {record["iteration"]: record for record in journal.read(cell.folder) if record["kind"] == "eval"}


def _is_done(cell: Cell) -> bool:
    return cell.config.iterations in _evaluations(cell)


def result_of(cell: Cell) -> CellResult:
    evaluations = _evaluations(cell)
    steps = [record for record in journal.read(cell.folder) if record["kind"] == "step"]
    suite = next(iter(evaluations[0]["suites"].values()))
    curve = tuple((at, next(iter(one["suites"].values()))["all"]["value"]) for at, one in sorted(evaluations.items()))
    return CellResult(
        variant=cell.variant,
        seed=cell.seed,
        tasks=suite["all"]["n"],
        before=frozenset(evaluations[0]["right"]),
        after=frozenset(evaluations[cell.config.iterations]["right"]),
        curve=curve,
        seconds=sum(step["time"]["total"] for step in steps),
        learnt=sum(of["count"] for step in steps for role in ("propose", "solve") for of in step[role].values()),
    )


def write(folder: Path, planned: Sequence[Cell], results: Sequence[CellResult]) -> Path:
    data = [{**dataclasses.asdict(one), "before": sorted(one.before), "after": sorted(one.after)} for one in results]
    (folder / "study.json").write_text(json.dumps(data, indent=1) + "\n")
    path = folder / "study.md"
    path.write_text(_page(folder, planned, results))
    return path


def _page(folder: Path, planned: Sequence[Cell], results: Sequence[CellResult]) -> str:
    config = planned[0].config
    head = (
        f"# Study: {config.engine.model}\n\n{config.iterations} iterations of {config.batch} samples for each pair of "
        f"role and kind. {results[0].tasks} held-out tasks, greedy, intervals of 95 % (Wilson). p: a sign test on "
        "the tasks that changed, not corrected for the number of tests."
    )
    commands = [
        f"harena azr train --config {shlex.quote(str(folder / 'variants' / f'{cell.variant}.json'))} "
        f"--seed {cell.seed} --out {shlex.quote(str(cell.folder))}"
        for cell in planned
    ]
    curves = [[one.variant, str(one.seed), *(f"{value:.3f}" for _, value in one.curve)] for one in results]
    at = [str(iteration) for iteration, _ in results[0].curve]
    return "\n\n".join(
        (
            head,
            "## Runs\n\n" + _table(("variant", "seed", "before", "after", "gained, lost", "p", "s"), _runs(results)),
            "## Pooled over seeds\n\n" + _table(("variant", "gain", "gained, lost", "p"), _pooled(results)),
            f"## Against {results[0].variant}, same seeds and tasks\n\n"
            + _table(("variant", "difference", "better, worse", "p"), _against_first(results)),
            "## Held-out accuracy by iteration\n\n" + _table(("variant", "seed", *at), curves),
            "## Commands\n\n```\n" + "\n".join(commands) + "\n```\n",
        )
    )


def _runs(results: Sequence[CellResult]) -> list[list[str]]:
    rows: list[list[str]] = []
    for one in results:
        gained, lost = len(one.after - one.before), len(one.before - one.after)
        before, after = (scores.wilson(len(side), one.tasks) for side in (one.before, one.after))
        p = sign_test(gained, lost)
        rows.append(
            [one.variant, str(one.seed), str(before), str(after), f"{gained}, {lost}", f"{p:.2g}", f"{one.seconds:.0f}"]
        )
    return rows


def _pooled(results: Sequence[CellResult]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name in dict.fromkeys(one.variant for one in results):
        of_variant = [one for one in results if one.variant == name]
        gained = sum(len(one.after - one.before) for one in of_variant)
        lost = sum(len(one.before - one.after) for one in of_variant)
        gain = (gained - lost) / sum(one.tasks for one in of_variant)
        rows.append([name, f"{gain:+.3f}", f"{gained}, {lost}", f"{sign_test(gained, lost):.2g}"])
    return rows


def _against_first(results: Sequence[CellResult]) -> list[list[str]]:
    first = {one.seed: one for one in results if one.variant == results[0].variant}
    rows: list[list[str]] = []
    for name in dict.fromkeys(one.variant for one in results if one.variant != results[0].variant):
        of_variant = [one for one in results if one.variant == name]
        better = sum(len(one.after - first[one.seed].after) for one in of_variant)
        worse = sum(len(first[one.seed].after - one.after) for one in of_variant)
        difference = (better - worse) / sum(one.tasks for one in of_variant)
        rows.append([name, f"{difference:+.3f}", f"{better}, {worse}", f"{sign_test(better, worse):.2g}"])
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
