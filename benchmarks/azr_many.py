"""Training runs side by side: which variants there are, how each is started as a process of its own, their tables.

Used by azr_train.py, whose `many` it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("azr_train.py")

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "azr": ("TRR++, novelty guard, proposer learns", {}),
    "paper": ("as azr, but the measuring solves are not learnt from", {"learn_rollouts": False}),
    "hierarchical": ("as azr, each task its own baseline", {"advantage": {"algorithm": "hierarchical"}}),
    "single-baseline": ("as azr, one baseline for all six", {"advantage": {"algorithm": "single"}}),
    "frozen-proposer": ("as azr, only the solver learns", {"train_proposer": False}),
    "no-novelty": ("as azr, repeats earn what they would anyway", {"reward": {"repeat": None}}),
    "rlvr": ("the solver learns from our generator's tasks, nobody proposes", {}),
    "rlvr-group": ("as rlvr, each task its own baseline", {"advantage": {"algorithm": "hierarchical"}}),
    "frozen": ("the same work, nothing learns", {}),
}


def say(*words: object) -> None:
    print(f"[{time.strftime('%H:%M:%S')}]", *words, flush=True)


def many(args: argparse.Namespace) -> None:
    """Starts every run as a process of its own, each on its share of the cores, and puts what they wrote together."""
    started = time.perf_counter()
    out, work = Path(args.out), Path(args.work)
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    runs = [Run.read(text) for text in args.runs.split(",")]
    cores = sorted(os.sched_getaffinity(0))
    waves = [runs[first : first + args.parallel] for first in range(0, len(runs), args.parallel)]
    deadline = started + args.minutes * 60
    for number, wave in enumerate(waves):
        minutes = (deadline - time.perf_counter()) / 60 / (len(waves) - number)
        say(f"wave {number + 1} of {len(waves)}: {', '.join(run.folder for run in wave)}, {minutes:.1f} minutes")
        wave_started = [start(args, run, minutes, cores[place :: len(wave)]) for place, run in enumerate(wave)]
        for run, process in zip(wave, wave_started, strict=True):
            left = max(1.0, deadline + 20 - time.perf_counter())
            try:
                code = process.wait(timeout=left)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            say(f"{run.folder} ended with {code}")
            if code:
                print(tail(work / run.folder / "log.txt", 12), flush=True)
        gather(work, out)
    print(results_table(out))


@dataclasses.dataclass(frozen=True)
class Run:
    """VARIANT:SEED, or LABEL=VARIANT:SEED:OPTION=VALUE:... for a run that differs from the others in options."""

    label: str
    variant: str
    seed: int
    options: dict[str, str]

    @property
    def folder(self) -> str:
        return f"{self.label}-{self.seed}"

    @classmethod
    def read(cls, text: str) -> Run:
        first, *rest = text.split(":")
        label, _, variant = first.rpartition("=")
        if variant not in VARIANTS:
            raise SystemExit(f"variant {variant!r}: there are {', '.join(VARIANTS)}")
        options = dict(option.split("=", 1) for option in rest[1:])
        return cls(label or variant, variant, int(rest[0]), options)


def start(args: argparse.Namespace, run: Run, minutes: float, cores: list[int]) -> subprocess.Popen[bytes]:
    work = Path(args.work) / run.folder
    work.mkdir(parents=True, exist_ok=True)
    passed = [
        "init",
        "device",
        "dtype",
        "batch",
        "samples",
        "references",
        "learning_rate",
        "mini_batch",
        "entropy",
        "per_cell",
        "quick_per_cell",
        "evaluate_every",
        "rows",
        "iterations",
        "shots",
        "propose_tokens",
        "solve_tokens",
        "cruxeval",
        "cruxeval_items",
        "warmup_steps",
        "max_places",
        "loss_mean",
        "learnability",
        "algorithm",
        "kl",
        "decay",
        "suite_seed",
    ]
    command = [sys.executable, str(SCRIPT), "selfplay", "--variant", run.variant, "--seed", str(run.seed)]
    command += ["--work", str(work), "--label", run.label]
    command += ["--minutes", f"{minutes:.3f}", "--cores", ",".join(map(str, cores))]
    for option in passed:
        value = getattr(args, option)
        if value is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    for option, text in run.options.items():  # the last one given counts
        command += [f"--{option}", text]
    command += ["--no-graph"] if args.no_graph else []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(max(1, len(cores)))}
    with (work / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def gather(work: Path, out: Path) -> None:
    """All runs in three files: curves.jsonl, results.json and the weights of the best azr run."""
    results: list[dict[str, Any]] = []
    with (out / "curves.jsonl").open("w", encoding="utf-8") as file:
        for folder in sorted(path for path in work.iterdir() if path.is_dir()):
            name, _, seed = folder.name.rpartition("-")
            if (folder / "result.json").is_file():
                results.append(json.loads((folder / "result.json").read_text()))
            if (folder / "curve.jsonl").is_file():
                for line in (folder / "curve.jsonl").read_text().splitlines():
                    file.write(json.dumps({"variant": name, "seed": int(seed), **json.loads(line)}) + "\n")
    (out / "results.json").write_text(json.dumps(results))
    learnt = [one for one in results if one["variant"] == "azr"]
    if learnt:
        best = max(learnt, key=lambda one: one["after"]["scores"]["all"]["value"])
        source = work / f"azr-{best['seed']}" / "final.safetensors"
        if source.is_file():
            shutil.copyfile(source, out / "azr.safetensors")


def results_table(out: Path) -> str:
    from harena.azr.report.scores import wilson

    results = json.loads((out / "results.json").read_text()) if (out / "results.json").is_file() else []
    lines = ["| run | iterations | rollouts | held-out before | after | gain | gained/lost items | 3-4 ops gain |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for one in results:
        before, after = one["before"], one["after"]
        won = sum(after["right"][item] > right for item, right in before["right"].items())
        lost = sum(after["right"][item] < right for item, right in before["right"].items())
        a, b = before["scores"]["all"], after["scores"]["all"]
        hard = [mean_of(found, ("3 op", "4 op")) for found in (before, after)]
        sure = wilson(won, won + lost) if won + lost else None
        lines.append(
            f"| {one['variant']} {one['seed']} | {one['iterations']} | {one['rollouts']:,} | {a['value']:.3f} "
            f"[{a['low']:.3f}, {a['high']:.3f}] | {b['value']:.3f} [{b['low']:.3f}, {b['high']:.3f}] | "
            f"{b['value'] - a['value']:+.3f} | {won}/{lost}{f' ({sure.low:.2f}-{sure.high:.2f})' if sure else ''} | "
            f"{hard[1] - hard[0]:+.3f} |"
        )
    return "\n".join(lines)


def mean_of(found: dict[str, Any], endings: tuple[str, ...]) -> float:
    picked = [score["value"] for name, score in found["scores"].items() if name.endswith(endings)]
    return sum(picked) / max(1, len(picked))


def score_table(columns: dict[str, dict[str, Any]]) -> str:
    names = list(next(iter(columns.values()))["scores"])
    lines = [f"| held-out | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name in names:
        cells = [found["scores"][name] for found in columns.values()]
        shown = [f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]" for cell in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.is_file() else ""
