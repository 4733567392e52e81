"""Self-play with a real model, and what it did: valid proposals and CRUXEval before and after, on the same items.

    python benchmarks/azr_real.py --model smollm2.gguf --cruxeval cruxeval.jsonl --minutes 4 --out OUT
    python benchmarks/azr_real.py --model qwen2.5-coder-1.5b.gguf --cruxeval cruxeval.jsonl --minutes 8 --out OUT
    python benchmarks/azr_real.py --model MODEL --device cpu --batch 8 --samples 2 --items 8 --minutes 5

Ends by itself within --minutes, loading and both measurements included. Greedy answers to CRUXEval; proposals are
sampled, from the same prompts and with the same seed both times: their references are drawn once, when the buffers are
seeded. Writes NAME.jsonl (a line for each step), NAME.json and NAME.md. The solve rate in self-play is logged and is no
progress. A model that was not trained on the compact form is shown --shots examples of it; the paper's form (--form
paper) asks in words and wants long answers. Every check runs in a box.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from azr_train import brief, build, pick_device, say, sizes, slowed

LARGE = 500_000_000
"""Parameters from which the gentler defaults hold."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of, and the fixed questions it is measured with."""

    args: argparse.Namespace
    engine: Any
    verifier: Any
    trainer: Any


def run(args: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    import torch

    torch.manual_seed(args.seed)
    if args.threads:
        torch.set_num_threads(args.threads)
    from harena.azr.check.verify import TaskVerifier
    from harena.azr.engines import torch_engine
    from harena.azr.loop import Trainer

    device = pick_device(args.device)
    engine = torch_engine.build(model=args.model, device=device, dtype=args.dtype, options=engine_options(args, device))
    is_large = engine.model.parameter_count() > LARGE
    args.learning_rate = args.learning_rate or (3e-6 if is_large else 2e-5)
    args.inputs = args.inputs or (10 if args.form == "paper" else 6 if is_large else 3)
    args.temperature = args.temperature or (1.0 if is_large else 0.8)
    loaded_s = time.perf_counter() - started
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    say(f"{engine.model.parameter_count():,} parameters on {name} after {loaded_s:.1f} s")
    config = config_of(args)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with TaskVerifier(settings=config.executor.settings()) as verifier:
        setup = Setup(args, engine, verifier, Trainer(engine, verifier, config))
        seeding = seed(setup)
        questions = fixed_questions(setup)
        before = measured(setup, questions)
        say("before", shown(before))
        steps = play(setup, started, reserve=before["seconds"] * 1.3 + 8, log=out / f"{args.name}.jsonl")
        after = measured(setup, questions)
        say("after", shown(after))
    result = {
        "model": Path(args.model).name,
        "parameters": engine.model.parameter_count(),
        "device": name,
        "torch": torch.__version__,
        "command": " ".join(sys.argv),
        "learning_rate": args.learning_rate,
        "settings": vars(args),
        "loaded_s": loaded_s,
        "seeding": seeding,
        "steps": steps,
        "seconds": time.perf_counter() - started,
        "tokens": engine.totals,
        "buffers": sizes(setup.trainer),
        "before": before,
        "after": after,
    }
    if device == "cuda":
        result["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    result["table"] = table(result)
    (out / f"{args.name}.json").write_text(json.dumps(result, default=float))
    (out / f"{args.name}.md").write_text(result["table"] + "\n")
    print(result["table"], flush=True)
    return result


def engine_options(args: argparse.Namespace, device: str) -> dict[str, Any]:
    options: dict[str, Any] = {"rows": args.rows, "warmup_steps": args.warmup_steps, "fuse": args.fuse}
    if device == "cuda":
        options |= {"graphs": not args.no_graph, "max_places": args.max_places, "micro_tokens": args.micro_tokens}
    return options


def config_of(args: argparse.Namespace) -> Any:
    from harena.azr import config

    return config.read(
        profile="laptop",
        seed=args.seed,
        batch=args.batch,
        rollouts=args.samples,
        learn_rollouts=True,
        seed_factor=args.seed_factor,
        seed_rounds=args.seed_rounds,
        temperature=args.temperature,
        buffer={"references": args.references},
        reward={"repeat": -0.5},
        advantage={"algorithm": args.algorithm},
        executor={"wall_s": 2.0, "output_chars": 400},
        prompt={
            "profile": args.form,
            "inputs": args.inputs,
            "shots": args.shots if args.form == "compact" else 0,
            "propose_tokens": args.propose_tokens,
            "solve_tokens": args.solve_tokens,
        },
        update={
            "learning_rate": args.learning_rate,
            "mini_batch": args.mini_batch,
            "entropy": args.entropy,
            "token_mean": args.loss == "tokens",
            "kl": args.kl,
        },
    )


def seed(setup: Setup) -> dict[str, Any]:
    """Fills the buffers with the model's own proposals; --seed-tasks puts some of our generator's there first."""
    started = time.perf_counter()
    trainer = setup.trainer
    if setup.args.seed_tasks:
        from harena.azr.tasks import corpus, programs

        rng = Random(setup.args.seed)
        for kind in trainer.config.kinds:
            for _ in range(setup.args.seed_tasks):
                example = programs.draw(rng, ops=rng.randint(1, 2), inputs=trainer.form.inputs)
                trainer.buffers[kind].add(corpus.as_task(kind, example), step=0, rng=trainer.rng)
    rounds = trainer.seed(lambda number, held, _: say(f"seeding, round {number}: {[*held.values()]}"))
    return {
        "rounds": rounds,
        "buffers": sizes(trainer),
        "from_generator": setup.args.seed_tasks,
        "seconds": time.perf_counter() - started,
    }


# ---- what is measured, before and after ----


def fixed_questions(setup: Setup) -> list[tuple[Any, Any]]:
    """Kind and references of the proposals that are asked for before and after."""
    import numpy as np

    trainer, rng = setup.trainer, np.random.default_rng(setup.args.seed + 1)
    return [
        (kind, trainer.buffers.references(kind, setup.args.references, rng=rng))
        for kind in trainer.config.kinds
        for _ in range(setup.args.proposals)
    ]


def measured(setup: Setup, questions: list[tuple[Any, Any]]) -> dict[str, Any]:
    started = time.perf_counter()
    found = proposals(setup, questions)
    if setup.args.cruxeval:
        found |= cruxeval(setup)
    return found | {"seconds": time.perf_counter() - started}


def proposals(setup: Setup, questions: list[tuple[Any, Any]]) -> dict[str, Any]:
    from harena.azr.engines.protocol import CompletionRequest, Sampling
    from harena.azr.tasks import prompts
    from harena.azr.tasks.kinds import FormatError, program_digest

    args, form = setup.args, setup.trainer.form
    requests = [
        CompletionRequest(prompt=prompts.render_propose(kind, references, profile=form), max_new=args.propose_tokens)
        for kind, references in questions
    ]
    sampling = Sampling(seed=args.seed + 2, temperature=args.temperature, stop=form.stop)
    written = [group[0] for group in setup.engine.generate(requests, sampling)]
    read = [
        prompts.parse_propose(kind, one.text, profile=form, reference=references[0])
        if one.finished
        else FormatError(reason="cut short")
        for (kind, references), one in zip(questions, written, strict=True)
    ]
    places = [place for place, one in enumerate(read) if not isinstance(one, FormatError)]
    valid = [0] * len(read)
    programs: dict[str, set[str]] = {}
    verdicts: dict[str, int] = {"format": len(read) - len(places)}
    for place, one in zip(places, setup.verifier.validate([read[place] for place in places]), strict=True):
        verdicts[str(one.verdict)] = verdicts.get(str(one.verdict), 0) + 1
        if one.task is not None:
            valid[place] = 1
            programs.setdefault(str(questions[place][0]), set()).add(program_digest(one.task.program))
    rights: dict[str, dict[str, int]] = {}
    for place, (kind, _) in enumerate(questions):
        rights.setdefault(f"valid proposals, {kind}", {})[str(place)] = valid[place]
    return {
        "rights": rights,
        "distinct_programs": {kind: len(found) for kind, found in programs.items()},
        "proposal_verdicts": verdicts,
        "proposal_samples": [one.text for one in written[:: max(1, len(written) // 12)]],
    }


def cruxeval(setup: Setup) -> dict[str, Any]:
    """Greedy, each program once as O (deduction) and once as I (abduction)."""
    from harena.azr.report import evaluate
    from harena.azr.tasks import public_sets, suite
    from harena.azr.tasks.kinds import TaskKind

    args = setup.args
    items = public_sets.cruxeval(args.cruxeval)
    names = {TaskKind.DEDUCTION: "CRUXEval-O", TaskKind.ABDUCTION: "CRUXEval-I"}
    chosen = [item for kind in names for item in suite.thinned([one for one in items if one.kind is kind], args.items)]
    how = evaluate.How(profile=setup.trainer.form, max_new=args.solve_tokens, seed=0)
    found = evaluate.evaluate(setup.engine, setup.verifier, chosen, how, suite="cruxeval")
    rights: dict[str, dict[str, int]] = {}
    for item in chosen:
        rights.setdefault(names[item.kind], {})[item.id] = found.right[item.id]
    return {"cruxeval_rights": rights, "cruxeval_verdicts": found.verdicts, "cruxeval_s": found.seconds}


def all_rights(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    return found["rights"] | found.get("cruxeval_rights", {})


def shown(found: dict[str, Any]) -> str:
    parts = [f"{name} {sum(right.values())}/{len(right)}" for name, right in all_rights(found).items()]
    return ", ".join(parts) + f"; {found['seconds']:.0f} s"


# ---- self-play ----


def play(setup: Setup, started: float, *, reserve: float, log: Path) -> dict[str, Any]:
    args, trainer, config = setup.args, setup.trainer, setup.trainer.config
    longest = 0.0
    seconds: list[float] = []
    sampled = trained = 0
    with log.open("w", encoding="utf-8") as file:
        while trainer.number < args.steps:
            spent = time.perf_counter() - started
            if spent + longest * 1.2 + reserve > args.minutes * 60:
                break
            begun = time.perf_counter()
            if args.decay:
                trainer.config = slowed(config, 1.0 - spent / (args.minutes * 60))
            iteration = trainer.iterate()
            sampled += len(iteration.proposed) + len(iteration.solved)
            trained += int(iteration.metrics["rollouts"]["count"])
            line = {"iteration": trainer.number, "sampled": sampled, "trained": trained, **iteration.metrics}
            file.write(json.dumps(line, default=float) + "\n")
            file.flush()
            seconds.append(time.perf_counter() - begun)
            longest = max(longest * 0.9, seconds[-1])
            say(brief(line), f"{seconds[-1]:.1f} s")
    middle = sorted(seconds)[len(seconds) // 2] if seconds else 0.0
    return {"count": len(seconds), "median_s": middle, "rollouts": sampled, "trained": trained}


# ---- the table ----


def table(result: dict[str, Any]) -> str:
    from harena.azr.report.scores import wilson

    steps = result["steps"]
    lines = [
        f"{result['model']}, {result['device']}: {steps['count']} steps of {steps['median_s']:.1f} s, "
        f"{steps['rollouts']:,} rollouts, learning rate {result['learning_rate']:g}",
        "",
        "| what | items | before | after | gained | lost |",
        "|---|---|---|---|---|---|",
    ]
    after = all_rights(result["after"])
    for name, first in all_rights(result["before"]).items():
        last = after[name]
        cells = [str(wilson(sum(found.values()), len(found))) for found in (first, last)]
        gained = sum(last[item] > right for item, right in first.items())
        lost = sum(last[item] < right for item, right in first.items())
        lines.append(f"| {name} | {len(first)} | {cells[0]} | {cells[1]} | {gained} | {lost} |")
    for kind, count in result["before"]["distinct_programs"].items():
        now = result["after"]["distinct_programs"].get(kind, 0)
        lines.append(f"| different valid programs, {kind} | | {count} | {now} | | |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="Self-play with a real model, measured before and after.")
    top.add_argument("--model", required=True, help="a GGUF file, a transformers folder, or a checkpoint of ours")
    top.add_argument("--out", required=True)
    top.add_argument("--name", default="azr_real", help="of the files in --out")
    top.add_argument("--minutes", type=float, default=5.0, help="everything included")
    top.add_argument("--steps", type=int, default=100_000, help="at most")
    top.add_argument("--device", default="auto")
    top.add_argument("--dtype", default="auto")
    top.add_argument("--threads", type=int, default=0, help="of torch on a processor; 0: its own choice")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--form", choices=("compact", "paper"), default="compact")
    top.add_argument("--shots", type=int, default=4, help="examples of the compact form in every prompt")
    top.add_argument("--inputs", type=int, default=0, help="of an induction proposal; 0: by form and size")
    top.add_argument("--references", type=int, default=3)
    top.add_argument("--batch", type=int, default=64, help="samples of each role and kind")
    top.add_argument("--samples", type=int, default=8, help="solves that measure a task; learnt from, too")
    top.add_argument("--temperature", type=float, default=0.0, help="0: 0.8 below 0.5 billion parameters, then 1")
    top.add_argument("--propose-tokens", type=int, default=160)
    top.add_argument("--solve-tokens", type=int, default=64)
    top.add_argument("--seed-factor", type=int, default=2)
    top.add_argument("--seed-rounds", type=int, default=6)
    top.add_argument("--seed-tasks", type=int, default=0, help="tasks of our generator in each buffer at the start")
    top.add_argument("--algorithm", default="trr++", help="of the advantages; see config.py")
    top.add_argument("--learning-rate", type=float, default=0.0, help="0: 2e-5 below 0.5 billion parameters, then 3e-6")
    top.add_argument("--warmup-steps", type=int, default=4)
    top.add_argument("--mini-batch", type=int, default=512)
    top.add_argument("--entropy", type=float, default=0.001)
    top.add_argument("--kl", type=float, default=0.0, help="weight of the distance to the first policy")
    top.add_argument("--decay", action="store_true", help="the learning rate falls to zero with the minutes")
    top.add_argument("--loss", choices=("sequences", "tokens"), default="sequences", help="what it is a mean over")
    top.add_argument("--rows", type=int, default=768, help="sequences decoded side by side")
    top.add_argument("--max-places", type=int, default=1_024, help="room of a sequence on CUDA; grows when it must")
    top.add_argument("--micro-tokens", type=int, default=32_768, help="of one backward pass on CUDA")
    top.add_argument("--fuse", action="store_true", help="compile small kernels: pays in long runs")
    top.add_argument("--no-graph", action="store_true", help="no CUDA graphs")
    top.add_argument("--proposals", type=int, default=128, help="of each kind, for the validity before and after")
    top.add_argument("--cruxeval", help="path of cruxeval.jsonl")
    top.add_argument("--items", type=int, default=200, help="programs of CRUXEval, evenly spread")
    return top


if __name__ == "__main__":
    arguments = parser().parse_args()
    build()
    run(arguments)
