"""Does self-play teach anything? Pretraining and self-play runs that end by themselves, as tables and curves.

    python benchmarks/azr_train.py pretrain --minutes 7 --out OUT/small.safetensors
    python benchmarks/azr_train.py many --init OUT/small.safetensors --minutes 9 --out OUT \\
        --runs azr:0,azr:1,azr:2,rlvr:0,frozen-proposer:0,single-baseline:0,no-novelty:0
    python benchmarks/azr_train.py selfplay --init MODEL --variant azr --seed 0 --minutes 8 --work DIR
    python benchmarks/azr_train.py table --out OUT

Progress is the held-out suite, greedy, before and after, on the same items; the self-play solve rate is logged, never
reported as progress. Every check runs in a box. A run started again with the same --work goes on where it stood.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from azr_many import VARIANTS, many, results_table, say, score_table

# ---- pretraining ----


def pretrain(args: argparse.Namespace) -> None:
    import torch

    from harena.azr.model import pretrain as p
    from harena.azr.tasks import corpus

    device = pick_device(args.device)
    is_cuda = device == "cuda"
    settings = p.PretrainSettings(
        seed=args.seed,
        size=args.size,
        device=device,
        minutes=args.minutes,
        steps=args.steps,
        workers=args.workers if args.workers >= 0 else max(1, len(os.sched_getaffinity(0)) - 2),
        micro_tokens=args.micro_tokens or (65_536 if is_cuda else 8_192),
        micro_batches=args.micro_batches,
        learning_rate=args.learning_rate,
        mix=corpus.Mix(solve_ops=shares(args.solve_ops), propose_ops=shares(args.propose_ops)),
        save_every_s=60.0,
    )
    out = Path(args.out)
    log = out.with_suffix(".pretrain.jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    say("pretrain", settings)
    with log.open("w", encoding="utf-8") as file:

        def report(progress: p.PretrainProgress) -> None:
            file.write(json.dumps(dataclasses.asdict(progress)) + "\n")
            file.flush()
            rate = progress.tokens / max(1e-9, progress.seconds)
            say(f"step {progress.step} loss {progress.loss:.4f} tokens {progress.tokens / 1e6:.1f}M {rate:,.0f} tok/s")

        p.pretrain(settings, out, report=report, report_every=args.report_every)
    if is_cuda:
        torch.cuda.empty_cache()
    say(f"saved {out}: {out.stat().st_size:,} bytes")
    if args.per_cell:
        from harena.azr.check.verify import TaskVerifier
        from harena.azr.engines import torch_engine

        engine = torch_engine.build(model=str(out), device=device, dtype=dtype_of(args, device))
        with TaskVerifier() as verifier:
            scores = held_out(engine, verifier, args.per_cell, args.seed)
        print(score_table({"pretrained": scores}))
        out.with_suffix(".scores.json").write_text(json.dumps(scores, indent=1))


def shares(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split("/"))


# ---- self-play ----


def selfplay(args: argparse.Namespace) -> None:
    """One run. Writes curve.jsonl, result.json, checkpoints and final.safetensors into its --work."""
    started = time.perf_counter()
    import torch

    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    torch.set_num_threads(max(1, min(args.threads, len(os.sched_getaffinity(0)))))
    from harena.azr import checkpoint
    from harena.azr.check.verify import TaskVerifier
    from harena.azr.engines import torch_engine
    from harena.azr.model import weights
    from harena.azr.model.tokenizer import ByteTokenizer
    from harena.azr.tasks import suite

    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    device = pick_device(args.device)
    config = config_of(args)
    options: dict[str, Any] = {"graphs": not args.no_graph, "rows": args.rows, "warmup_steps": args.warmup_steps}
    if device == "cuda":
        options["max_places"] = args.max_places
    engine = torch_engine.build(model=args.init, device=device, dtype=dtype_of(args, device), options=options)
    say(args.variant, args.seed, f"{engine.model.parameter_count():,} parameters on {device}")
    budget = args.minutes * 60
    held_back = suite.digests(suite.tiny(per_cell=args.per_cell, seed=args.suite_seed))
    with TaskVerifier(config.executor.settings(), held_out=held_back) as verifier:
        learner = Frozen(engine) if args.variant == "frozen" else engine
        trainer = trainer_of(args.variant, learner, verifier, config)
        place = checkpoint.latest(work / "checkpoints")
        before: dict[str, Any]
        if place is not None and (work / "before.json").is_file():
            kept = checkpoint.load(place)
            trainer.load(kept.state)
            learner.load(kept.learner)
            before = json.loads((work / "before.json").read_text())
            say(f"goes on from iteration {trainer.number}")
        else:
            before = held_out(engine, verifier, args.per_cell, 0, args)
            (work / "before.json").write_text(json.dumps(before))
            (work / "curve.jsonl").unlink(missing_ok=True)
            note(work, {"iteration": 0, "sampled": 0, "trained": 0, "held_out": values(before)})
            if not args.variant.startswith("rlvr"):
                say(f"seeded in {trainer.seed()} rounds: {sizes(trainer)}")
        reserve = before["seconds"] * 1.5 + 10
        rollouts, trained = taken_up(work, trainer.number)
        longest = 0.0
        while trainer.number < args.iterations and time.perf_counter() - started + longest * 1.3 + reserve < budget:
            begun = time.perf_counter()
            if args.decay:
                trainer.config = slowed(config, 1.0 - (begun - started) / budget)
            iteration = trainer.iterate()
            rollouts += len(iteration.proposed) + len(iteration.solved)
            trained += int(iteration.metrics["rollouts"]["count"])
            line = {"iteration": trainer.number, "sampled": rollouts, "trained": trained, **iteration.metrics}
            if args.evaluate_every and trainer.number % args.evaluate_every == 0:
                line["held_out"] = values(held_out(engine, verifier, args.quick_per_cell, 0, args))
            note(work, line)
            longest = max(longest * 0.9, time.perf_counter() - begun)
            if trainer.number % args.report_every == 0 or trainer.number <= 2:
                say(args.variant, args.seed, brief(line))
            if trainer.number % args.checkpoint_every == 0:
                save(work, trainer, learner)
        save(work, trainer, learner)
        after = held_out(engine, verifier, args.per_cell, 0, args)
        last = {"iteration": trainer.number, "sampled": rollouts, "trained": trained, "held_out": values(after)}
        note(work, {**last, "final": True})
    result = {
        "variant": args.label or args.variant,
        "seed": args.seed,
        "iterations": trainer.number,
        "rollouts": rollouts,
        "trained": trained,
        "seconds": time.perf_counter() - started,
        "before": before,
        "after": after,
        "held_out_programs_learnt_from": contamination(trainer, held_back),
        "tokens": engine.totals,
    }
    (work / "result.json").write_text(json.dumps(result))
    if isinstance(engine.codec, ByteTokenizer):
        note_text = f"self-play {args.variant}, seed {args.seed}, {trainer.number} iterations, {rollouts} rollouts"
        weights.save(work / "final.safetensors", engine.model, engine.codec, form="int8", note=note_text)
    print(score_table({"before": before, "after": after}))


def slowed(config: Any, share: float) -> Any:
    """The same settings with a share of their learning rate."""
    update = dataclasses.replace(config.update, learning_rate=config.update.learning_rate * max(0.02, share))
    return dataclasses.replace(config, update=update)


class Frozen:
    """Generates, and forgets what it is told to learn."""

    def __init__(self, engine: Any) -> None:
        self.generate = engine.generate

    def step(self, rollouts: Any, update: Any) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"steps": 0}

    def load(self, state: Any) -> None:
        return


def trainer_of(variant: str, engine: Any, verifier: Any, config: Any) -> Any:
    from random import Random

    from harena.azr.learn import metrics
    from harena.azr.loop import Iteration, PhaseClock, Question, Trainer
    from harena.azr.tasks import corpus, programs
    from harena.azr.tasks.kinds import TaskKind

    if not variant.startswith("rlvr"):
        return Trainer(engine, verifier, config)

    class OnGenerated(Trainer):
        """The same solving, grading and learning; the tasks come from our generator, none of them held out."""

        def iterate(self) -> Iteration:
            self.number += 1
            clock = PhaseClock()
            rng = Random(self.config.seed * 1_000_003 + self.number)
            questions = [
                Question(kind=kind, task=self._drawn(kind, rng), samples=self.config.rollouts)
                for kind in self.config.kinds
                for _ in range(self.config.batch)
            ]
            solved = self._solve(questions, clock)
            self._reward([], solved)
            rollouts = self._rollouts([], solved)
            clock.lap("reward")
            learnt = self._engine.step(rollouts, self.config.update)
            clock.lap("update")
            numbers = metrics.measure([], solved, rollouts, self.buffers, seed=self.number)
            numbers["solve"] = {
                str(kind): {
                    "right": sum(one.right for one in solved if one.kind is kind) * len(self.config.kinds) / len(solved)
                }
                for kind in self.config.kinds
            }
            numbers |= {"update": learnt, "time": clock.seconds | {"total": sum(clock.seconds.values())}}
            return Iteration(number=self.number, metrics=numbers, proposed=[], solved=solved)

        def _drawn(self, kind: TaskKind, rng: Random) -> Any:
            inputs = self.form.inputs if kind is TaskKind.INDUCTION else 1
            return corpus.as_task(kind, programs.draw(rng, ops=rng.randint(1, programs.MAX_OPS), inputs=inputs))

    return OnGenerated(engine, verifier, config)


def config_of(args: argparse.Namespace) -> Any:
    from harena.azr import config as c

    shape: dict[str, Any] = {
        "seed": args.seed,
        "batch": args.batch,
        "rollouts": args.samples,
        "learn_rollouts": True,
        "seed_factor": 2,
        "seed_rounds": 8,
        "iterations": args.iterations,
        "buffer": {"references": args.references},
        "reward": {"repeat": -0.5},
        "prompt": {"shots": args.shots, "propose_tokens": args.propose_tokens, "solve_tokens": args.solve_tokens},
        "update": {
            "learning_rate": args.learning_rate,
            "mini_batch": args.mini_batch,
            "entropy": args.entropy,
            "kl": args.kl,
            "token_mean": args.loss_mean == "token",
        },
    }
    if args.learnability:
        shape["reward"]["learnability"] = args.learnability
    if args.algorithm:
        shape["advantage"] = {"algorithm": args.algorithm}
    for name, value in VARIANTS[args.variant][1].items():
        shape[name] = {**shape.get(name, {}), **value} if isinstance(value, dict) else value
    return c.read(profile="laptop", **shape)


def held_out(engine: Any, verifier: Any, per_cell: int, seed: int, args: Any = None) -> dict[str, Any]:
    """Greedy, one answer a task; with --cruxeval also that set."""
    from harena.azr.report import evaluate
    from harena.azr.tasks import prompts, public_sets, suite

    shots = getattr(args, "shots", 0)
    form = dataclasses.replace(prompts.COMPACT, shots=shots)
    how = evaluate.How(profile=form, max_new=96, seed=seed)
    items = suite.tiny(per_cell=per_cell, seed=getattr(args, "suite_seed", suite.SEED))
    found = evaluate.evaluate(engine, verifier, items, how).as_json()
    path = getattr(args, "cruxeval", None)
    if path:
        items = suite.thinned(public_sets.cruxeval(path), args.cruxeval_items)
        extra = evaluate.evaluate(engine, verifier, items, how, suite="cruxeval").as_json()
        found["scores"] |= {f"cruxeval {name}": score for name, score in extra["scores"].items()}
        found["seconds"] += extra["seconds"]
    return found


def contamination(trainer: Any, held_back: frozenset[str]) -> int:
    """Programs of the held-out suite that are in the buffers: there must be none."""
    from harena.azr.tasks.kinds import program_digest

    buffers = trainer.buffers
    return len({program_digest(e.task.program) for kind in trainer.config.kinds for e in buffers[kind]} & held_back)


def save(work: Path, trainer: Any, learner: Any) -> None:
    from harena.azr import checkpoint

    kept = checkpoint.Checkpoint(step=trainer.number, state=trainer.state(), learner=learner.state())
    checkpoint.save(work / "checkpoints", kept, keep=1)


def note(work: Path, line: dict[str, Any]) -> None:
    with (work / "curve.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=float) + "\n")


def taken_up(work: Path, number: int) -> tuple[int, int]:
    """Drops what a broken-off run wrote beyond its checkpoint; returns the counts where that stood."""
    path = work / "curve.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line["iteration"] <= number and not line.get("final")]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    return kept[-1]["sampled"], kept[-1]["trained"]


def values(found: dict[str, Any]) -> dict[str, float]:
    return {name: score["value"] for name, score in found["scores"].items()}


def sizes(trainer: Any) -> dict[str, int]:
    return {str(kind): len(trainer.buffers[kind]) for kind in trainer.config.kinds}


def brief(line: dict[str, Any]) -> str:
    parts = [f"it {line['iteration']} sampled {line['sampled']} trained {line['trained']}"]
    for kind, numbers in line.get("propose", {}).items():
        parts.append(f"{kind[:3]} valid {numbers.get('valid', 0):.2f} share {numbers.get('share', 0):.2f}")
    parts += [f"solve {kind[:3]} {numbers.get('right', 0):.2f}" for kind, numbers in line.get("solve", {}).items()]
    parts += [f"{phase} {seconds:.1f}s" for phase, seconds in line["time"].items() if seconds >= 0.1]
    if "held_out" in line:
        parts.append(f"held-out {line['held_out']['all']:.3f}")
    return " ".join(parts)


def pick_device(name: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def dtype_of(args: argparse.Namespace, device: str) -> str:
    return args.dtype if args.dtype != "auto" else "bf16" if device == "cuda" else "f32"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="Pretraining and self-play runs with held-out scores.")
    commands = top.add_subparsers(required=True)

    one = commands.add_parser("pretrain", help="a fresh small model on documents from our generator")
    one.add_argument("--out", required=True)
    one.add_argument("--minutes", type=float, default=7.0)
    one.add_argument("--steps", type=int, default=0)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--size", default="small")
    one.add_argument("--device", default="auto")
    one.add_argument("--dtype", default="auto")
    one.add_argument("--workers", type=int, default=-1, help="document writers; -1: all cores but two")
    one.add_argument("--micro-tokens", type=int, default=0)
    one.add_argument("--micro-batches", type=int, default=2)
    one.add_argument("--learning-rate", type=float, default=2e-3)
    one.add_argument("--solve-ops", default="0.40/0.35/0.17/0.08", help="shares of 1 to 4 operations to solve")
    one.add_argument("--propose-ops", default="0.25/0.25/0.25/0.25", help="the same to propose")
    one.add_argument("--report-every", type=int, default=200)
    one.add_argument("--per-cell", type=int, default=100, help="held-out tasks of each kind and grade; 0: none")
    one.set_defaults(call=pretrain)

    for name, call, help_text in (
        ("selfplay", selfplay, "one run"),
        ("many", many, "several runs side by side, and their table"),
    ):
        two = commands.add_parser(name, help=help_text)
        two.add_argument("--init", required=True, help="a checkpoint, a GGUF file or a transformers folder")
        two.add_argument("--minutes", type=float, default=8.0, help="everything included")
        two.add_argument("--work", default="/tmp/harena-azr-runs", help="checkpoints and logs; the same folder resumes")
        two.add_argument("--device", default="auto")
        two.add_argument("--dtype", default="auto")
        two.add_argument("--iterations", type=int, default=100_000)
        two.add_argument("--batch", type=int, default=128, help="samples of each role and kind")
        two.add_argument("--samples", type=int, default=8, help="solves that measure a task")
        two.add_argument("--references", type=int, default=3)
        two.add_argument(
            "--shots", type=int, default=0, help="solved examples in a prompt, for models not pretrained here"
        )
        two.add_argument("--propose-tokens", type=int, default=128)
        two.add_argument("--solve-tokens", type=int, default=96)
        two.add_argument("--learning-rate", type=float, default=1e-4)
        two.add_argument("--decay", type=int, default=0, help="1: the learning rate falls to zero with the minutes")
        two.add_argument("--mini-batch", type=int, default=1_024)
        two.add_argument("--loss-mean", choices=["token", "sequence"], default="sequence")
        two.add_argument("--learnability", choices=["paper", "authors", "quadratic"])
        two.add_argument("--algorithm", help="of the advantages, instead of the variant's")
        two.add_argument("--warmup-steps", type=int, default=10)
        two.add_argument("--entropy", type=float, default=0.001)
        two.add_argument("--kl", type=float, default=0.0, help="weight of the distance to the first policy")
        two.add_argument("--rows", type=int, default=1_024, help="sequences decoded side by side")
        two.add_argument("--max-places", type=int, default=768, help="room of a sequence on CUDA; grows when it must")
        two.add_argument("--no-graph", action="store_true", help="no CUDA graphs")
        two.add_argument("--per-cell", type=int, default=150, help="held-out tasks of each kind and grade")
        two.add_argument(
            "--suite-seed",
            type=int,
            default=20_250_506,
            help="another one: other held-out tasks, to choose settings by",
        )
        two.add_argument("--quick-per-cell", type=int, default=40, help="the same for looks on the way")
        two.add_argument("--evaluate-every", type=int, default=20)
        two.add_argument("--cruxeval", help="path of cruxeval.jsonl, evaluated before and after")
        two.add_argument("--cruxeval-items", type=int, default=200)
        if name == "selfplay":
            two.add_argument("--variant", choices=list(VARIANTS), default="azr")
            two.add_argument("--seed", type=int, default=0)
            two.add_argument("--label", help="what the run is called in tables")
            two.add_argument("--cores", help="processors to stay on, by number, comma-separated")
            two.add_argument("--threads", type=int, default=2)
            two.add_argument("--report-every", type=int, default=10)
            two.add_argument("--checkpoint-every", type=int, default=20)
        else:
            two.add_argument("--out", required=True)
            two.add_argument(
                "--runs", required=True, help="VARIANT:SEED, or LABEL=VARIANT:SEED:OPTION=VALUE; comma-separated"
            )
            two.add_argument("--parallel", type=int, default=6)
        two.set_defaults(call=call)

    last = commands.add_parser("table", help="the table of a folder that `many` wrote")
    last.add_argument("--out", required=True)
    last.set_defaults(call=lambda args: print(results_table(Path(args.out))))
    return top


def build() -> None:
    """The C part of the boxes, where a source is newer than it."""
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-IS", "setup.py", "native"], cwd=root, check=True)


if __name__ == "__main__":
    arguments = parser().parse_args()
    if not getattr(arguments, "cores", None):  # a run that `many` started finds it built
        build()
    arguments.call(arguments)
