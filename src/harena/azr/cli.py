"""The part of the `harena` command that is about training: `harena azr`. Guarantees: a mistake is one line on stderr
that says what to do; text of models is made safe for terminals. What a command needs is imported when it runs, and a
missing package is named with the line that installs it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harena.command import UNAVAILABLE, USAGE, Action, guarded, print_json
from harena.errors import BackendUnavailable, HarenaError, IsolationUnavailable
from harena.terminal import safe

if TYPE_CHECKING:
    from harena.azr.config import Config, EngineConfig
    from harena.azr.engine import Generator
    from harena.azr.evaluate import Evaluation, How
    from harena.azr.journal import Sink
    from harena.azr.loop import Iteration
    from harena.azr.public_sets import CodeItem
    from harena.azr.suite import Item

OK, NO = 0, 1
PROFILES = ("laptop", "small", "brief", "gpu1", "paper")
ENGINES = ("torch", "trl", "openai")
SUITES = ("tiny", "cruxeval", "humaneval", "mbpp")
KINDS = ("deduction", "abduction", "induction")
EXTRAS = {
    "numpy": "azr", "torch": "azr", "safetensors": "azr", "yaml": "azr", "trl": "trl", "datasets": "trl",
    "transformers": "trl", "accelerate": "trl",
}  # fmt: skip

TRAIN_TEXT = """\
Self-play: the model proposes tasks, solves them, and learns from both; every check runs in a box. Writes settings,
journal, tasks, checkpoints and an HTML report into --out. Progress is measured on a held-out suite."""

EPILOG = """\
exit codes:
  0    done
  1    eval --check: a gold answer was not accepted
  2    a wrong argument, a file that is not what it should be, a server that refuses
  3    this host cannot isolate, or a package is missing; says what to install
  130  interrupted by Ctrl-C; `train --resume` goes on from the last checkpoint"""

EXAMPLES = """\
examples:
  harena azr train --profile laptop --iterations 5 --out run
  harena azr train --out run --resume --iterations 20
  harena azr eval --run run --suite tiny
  harena azr eval --model default --suite cruxeval --path cruxeval.jsonl -k 5 --samples 20
  harena azr eval --engine openai --server http://127.0.0.1:8000/v1 --model NAME --suite humaneval --prompt paper
  harena azr propose --engine openai --server http://127.0.0.1:8000/v1 --model NAME --prompt paper --out tasks
  harena azr buffer show run --kind induction --limit 3
  harena azr report run"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    """Gives the command `azr` its parts."""
    if name != "azr":
        raise ValueError(name)
    command.epilog = f"{EXAMPLES}\n\n{EPILOG}"
    parts = command.add_subparsers(title="what to do", metavar="WHAT", required=True)
    raw = argparse.RawDescriptionHelpFormatter

    def add(part: str, text: str, action: Action, more: str = "") -> argparse.ArgumentParser:
        made = parts.add_parser(part, help=text, description=more or text, epilog=EPILOG, formatter_class=raw)
        made.set_defaults(action=_guarded(action))
        return made

    _fill_train(add("train", "let a model propose tasks, solve them and learn", _train, TRAIN_TEXT))
    _fill_eval(add("eval", "measure a model on tasks that training never sees", _eval))
    _fill_propose(add("propose", "collect valid tasks that a model proposes; learns nothing", _propose))
    buffer = parts.add_parser("buffer", help="read what is being proposed", formatter_class=raw)
    shows = buffer.add_subparsers(title="what to do", metavar="WHAT", required=True)
    show = shows.add_parser("show", help="print the newest tasks of a run", epilog=EPILOG, formatter_class=raw)
    show.set_defaults(action=_guarded(_buffer_show))
    show.add_argument("run", metavar="DIR", help="the --out folder of a run")
    show.add_argument("--kind", choices=KINDS, help="of this kind alone")
    show.add_argument("--limit", type=_count, default=5, metavar="N", help="so many of each kind (5)")
    show.add_argument("--json", action="store_true", help="print JSON lines, as they are kept")
    _fill_pretrain(add("pretrain", "make the small model, from programs that we generate", _pretrain))
    report = add("report", "write the HTML report of a run anew", _report)
    report.add_argument("run", metavar="DIR", help="the --out folder of a run")
    report.add_argument("-o", "--output", metavar="FILE", help="where to (DIR/report.html)")


# ---- options ----


def _fill_train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", required=True, metavar="DIR", help="the folder of the run")
    command.add_argument("--profile", choices=PROFILES, help="where the settings start from (laptop)")
    command.add_argument("--config", metavar="FILE", help="settings that differ from the profile, YAML or JSON")
    command.add_argument("--iterations", type=_count, metavar="N", help="of self-play, in all")
    command.add_argument("--seed", type=int, metavar="N", help="of everything random (0)")
    command.add_argument("--model", metavar="NAME", help="`default` is our own; else a folder, a file or a name")
    command.add_argument("--engine", choices=ENGINES, help="what writes and learns (torch)")
    command.add_argument("--resume", action="store_true", help="go on with the run in --out")
    command.add_argument(
        "--eval-tasks", type=_count, default=None, metavar="N",
        help="held-out tasks of each kind and grade (40); 0 measures nothing",
    )  # fmt: skip
    command.add_argument("--tensorboard", action="store_true", help="also write TensorBoard's event files")
    command.add_argument("--wandb", metavar="PROJECT", help="also log to Weights & Biases, over the network")
    command.add_argument("--json", action="store_true", help="print the results as JSON")


def _fill_propose(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tasks")
    command.add_argument("--count", type=_count, default=64, metavar="N", help="tasks of each kind (64)")
    command.add_argument("--rounds", type=_count, default=20, metavar="N", help="at most so many rounds (20)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling (0)")
    _fill_model(command)


def _fill_model(command: argparse.ArgumentParser) -> None:
    """Which model is asked, and in which form."""
    command.add_argument("--model", metavar="NAME", help="`default` is our own; else a folder, a file or a name")
    command.add_argument("--engine", choices=("torch", "openai"), default="torch", help="what answers (torch)")
    command.add_argument("--server", metavar="URL", help="of the openai engine, e.g. http://127.0.0.1:8000/v1")
    command.add_argument("--chat", action="store_true", help="ask the server's chat interface")
    command.add_argument("--device", metavar="NAME", help="cpu, cuda (whichever there is)")
    command.add_argument("--dtype", metavar="NAME", help="float32 or bfloat16 (float32)")
    command.add_argument("--prompt", choices=("compact", "paper"), help="code to continue, or instructions (compact)")
    command.add_argument("--shots", type=_count, metavar="N", help="solved examples before each question (0)")
    command.add_argument("--max-new", type=_count, metavar="N", help="tokens of a completion (by --prompt)")


def _fill_eval(command: argparse.ArgumentParser) -> None:
    command.add_argument("--suite", choices=SUITES, default="tiny", help="which tasks (tiny: our own)")
    command.add_argument("--path", metavar="FILE", help="the data of cruxeval or mbpp, or a copy of humaneval's")
    command.add_argument("--run", metavar="DIR", help="the model that a run has trained, as of its last checkpoint")
    _fill_model(command)
    group = command.add_argument_group("how many answers")
    group.add_argument("-k", type=_count, default=1, metavar="N", help="report pass@k (1)")
    group.add_argument("--samples", type=_count, metavar="N", help="answers to each task (k); one is greedy")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="of several answers (1.0)")
    group.add_argument("--limit", type=_count, metavar="N", help="tasks, evenly spread (all)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling (0)")
    command.add_argument("--check", action="store_true", help="no model: see whether every gold answer is accepted")
    command.add_argument("--json", action="store_true", help="print the results as JSON")


def _fill_pretrain(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", metavar="FILE", help="a .safetensors file (where `default` is looked for)")
    command.add_argument("--size", default="small", metavar="NAME", help="tiny, small or base (small)")
    command.add_argument("--minutes", type=float, default=5.0, metavar="N", help="how long (5)")
    command.add_argument("--steps", type=_count, default=0, metavar="N", help="optimiser steps instead of minutes")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and documents (0)")
    command.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (cpu)")
    command.add_argument("--workers", type=_count, default=0, metavar="N", help="processes that write documents (0)")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 0")
    return number


def _guarded(action: Action) -> Action:
    return guarded(action, extras=EXTRAS, code_of=_code, before_dashes="options come before it")


def _code(error: HarenaError) -> int | None:
    if isinstance(error, BackendUnavailable | IsolationUnavailable):
        return UNAVAILABLE
    ours = type(error).__module__.startswith("harena.azr.")
    return USAGE if ours or isinstance(error, ValueError) else None


def _say(text: str) -> None:
    """Progress: on stderr, so that results can be piped."""
    print(safe(text), file=sys.stderr, flush=True)


def _print_json(data: object) -> None:
    from harena.azr.journal import plain

    print_json(plain(data))


# ---- train ----


def _train(args: argparse.Namespace) -> int:
    from harena.azr import engines, ranks, run, show, suite

    folder = Path(args.out)
    config = _train_config(args, folder)
    per_cell = suite.PER_CELL if args.eval_tasks is None else args.eval_tasks
    sinks = _sinks(args, folder, config) if ranks.is_first() else []
    outcome: run.Outcome | None
    try:
        if config.engine.name == "trl":
            from harena.azr import trl_engine

            outcome = trl_engine.train(folder, config, sinks=sinks, per_cell=per_cell, resume=args.resume, say=_say)
        else:
            make = engines.learning
            outcome = run.train(folder, config, make, sinks=sinks, per_cell=per_cell, resume=args.resume, say=_say)
    except KeyboardInterrupt:
        _say(f"interrupted: `harena azr train --out {folder} --resume` goes on from the last checkpoint")
        raise
    if outcome is None:  # one of several processes, and the first has it
        return OK
    if args.json:
        _print_json(
            {
                "folder": str(folder), "iterations": outcome.iterations, "seconds": outcome.seconds,
                "before": outcome.before.as_json() if outcome.before else None,
                "after": outcome.after.as_json() if outcome.after else None,
                "last": outcome.last.metrics if outcome.last else None,
            }
        )  # fmt: skip
        return OK
    print(show.training(outcome.before, outcome.after, outcome.last))
    print(f"\n{outcome.iterations} iterations, {outcome.seconds:.0f} s{_waiting(outcome.last)}")
    print(f"report: {folder / 'report.html'}")
    return OK


def _waiting(last: Iteration | None) -> str:
    if last is None:
        return ""
    times = last.metrics["time"]
    share = (times.get("wait_validate", 0.0) + times.get("wait_grade", 0.0)) / max(times["total"], 1e-9)
    return f"; the last one took {times['total']:.1f} s, {share:.0%} of it waiting for boxes"


def _train_config(args: argparse.Namespace, folder: Path) -> Config:
    from harena.azr import config as configs
    from harena.azr import engines, run
    from harena.errors import SpecError

    if args.resume:
        fixed = ("profile", "config", "seed", "model", "engine")
        given = [f"--{name}" for name in fixed if getattr(args, name) is not None]
        if given:
            raise SpecError(f"{given[0]} with --resume: a run keeps its settings; only --iterations can change")
        kept = run.settings_of(folder)
        return configs.from_dict({} if args.iterations is None else {"iterations": args.iterations}, kept)
    path = Path(args.config) if args.config else None
    config = configs.read(path, profile=args.profile, iterations=args.iterations, seed=args.seed)
    config = run.with_options(config, model=args.model, engine=args.engine)
    if config.engine.name == "openai":
        engines.learning(config)  # refuses, before a folder is made
    return config


def _sinks(args: argparse.Namespace, folder: Path, config: Config) -> list[Sink]:
    from harena.azr import config as configs
    from harena.azr import journal, run

    sinks: list[Sink] = []
    if not args.resume:
        run.check_free(folder)  # before anything is started elsewhere
    if args.tensorboard:
        sinks.append(journal.TensorBoard(folder))
    if args.wandb:
        sinks.append(journal.Wandb(folder, project=args.wandb, config=configs.as_dict(config)))
    return sinks


# ---- eval ----


def _eval(args: argparse.Namespace) -> int:
    from harena.azr import evaluate, show

    how = _how(args)
    tasks, code = _tasks(args)
    if args.check:
        return _check(args.suite, tasks, code)
    generator = _generator(args)
    found: Evaluation
    if code:
        from harena.sandbox.pool import SandboxPool

        with SandboxPool() as pool:
            found = evaluate.evaluate_code(generator, pool, code, how, suite=args.suite, progress=_counter())
    else:
        from harena.azr.verify import Verifier

        with Verifier() as verifier:
            found = evaluate.evaluate(generator, verifier, tasks, how, suite=args.suite, progress=_counter())
    if args.json:
        _print_json(found.as_json())
    else:
        print(show.evaluation(found))
    return OK


def _how(args: argparse.Namespace) -> How:
    from harena.azr import evaluate, prompts

    name = args.prompt or "compact"
    profile = dataclasses.replace(prompts.PROFILES[name], shots=args.shots or 0)
    samples = args.samples or args.k
    return evaluate.How(
        profile=profile,
        max_new=args.max_new or (96 if name == "compact" and args.suite in ("tiny", "cruxeval") else 1024),
        samples=samples,
        k=args.k,
        greedy=samples == 1,
        temperature=args.temperature,
        seed=args.seed,
    )


def _tasks(args: argparse.Namespace) -> tuple[list[Item], list[CodeItem]]:
    from harena.azr import public_sets, suite
    from harena.errors import SpecError

    if args.suite in ("cruxeval", "mbpp") and not args.path:
        raise SpecError(f"--suite {args.suite}: give the set's file with --path")
    match args.suite:
        case "tiny":
            return suite.thinned(suite.tiny(), args.limit), []
        case "cruxeval":
            return suite.thinned(public_sets.cruxeval(args.path), args.limit), []
        case "humaneval":
            return [], suite.thinned(public_sets.humaneval(args.path), args.limit)
        case _:
            return [], suite.thinned(public_sets.mbpp(args.path), args.limit)


def _generator(args: argparse.Namespace) -> Generator:
    from harena.azr import engines, run
    from harena.errors import SpecError

    if args.run:
        if args.model or args.engine != "torch":
            raise SpecError("--run brings its own model and engine: leave out --model and --engine")
        config, learnt = run.trained(Path(args.run))
        if config.engine.name == "trl":
            return engines.generating(
                dataclasses.replace(config.engine, name="torch", model=f"{args.run}/model", options={})
            )
        engine = engines.learning(config)
        engine.load(learnt)
        return engine
    return engines.generating(_engine_config(args))


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    from harena.azr.config import EngineConfig
    from harena.errors import SpecError

    if args.engine == "openai" and not (args.model and args.server):
        raise SpecError("--engine openai: give --server URL and --model NAME")
    options: dict[str, str | int | float | bool] = {}
    if args.engine == "openai":
        options = {"url": args.server, "chat": args.chat}
    return EngineConfig(
        name=args.engine, model=args.model or "default", device=args.device or "auto", dtype=args.dtype or "auto",
        options=options,
    )  # fmt: skip


def _propose(args: argparse.Namespace) -> int:
    from harena.azr import config as configs
    from harena.azr import engines, prompts, run

    name = args.prompt or "compact"
    batch = min(32, max(1, args.count))
    prompt = {
        "profile": name,
        "inputs": prompts.PROFILES[name].inputs,
        "shots": args.shots or 0,
        "propose_tokens": args.max_new or (160 if name == "compact" else 1024),
    }
    config = configs.read(
        None, profile="laptop", seed=args.seed, batch=batch, seed_factor=-(-args.count // batch),
        seed_rounds=args.rounds, prompt=prompt,
    )  # fmt: skip
    config = dataclasses.replace(config, engine=_engine_config(args))
    found = run.propose(Path(args.out), config, engines.generating(config.engine), say=_say)
    print(", ".join(f"{count} {kind}" for kind, count in found.items()) + f" tasks in {args.out}/{run.BUFFERS}")
    return OK


def _check(name: str, tasks: list[Item], code: list[CodeItem]) -> int:
    """Whether the suite's own answers are accepted."""
    from harena.azr import evaluate

    if code:
        from harena.sandbox.pool import SandboxPool

        with SandboxPool() as pool:
            failing = evaluate.failing_code_golds(pool, code)
    else:
        from harena.azr.verify import Verifier

        with Verifier() as verifier:
            failing = evaluate.failing_golds(verifier, tasks)
    for where, verdict in failing.items():
        _say(f"{where}: {verdict}")
    count = len(tasks) + len(code)
    print(f"{name}: {count - len(failing)} of {count} gold answers are accepted")
    return NO if failing else OK


def _counter() -> Callable[[int, int], None] | None:
    """A line that counts, on a terminal and nowhere else."""
    if not sys.stderr.isatty():
        return None
    shown_at = 0.0

    def show(done: int, total: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > 0.1 or done == total:
            shown_at = time.monotonic()
            end = "\r\033[K" if done == total else ""
            print(f"\ranswered {done}/{total} {end}", end="", file=sys.stderr, flush=True)

    return show


# ---- the short commands ----


def _buffer_show(args: argparse.Namespace) -> int:
    from harena.azr import buffer, run, show
    from harena.azr.tasks import Kind
    from harena.errors import SpecError

    folder = Path(args.run, run.BUFFERS)
    if not folder.is_dir():
        raise SpecError(f"{args.run} holds no tasks: give the --out folder of a run")
    for kind in [Kind(args.kind)] if args.kind else Kind:
        path = folder / f"{kind}.jsonl"
        entries = buffer.read(path) if path.exists() else []
        if args.json:
            for one in entries[len(entries) - min(args.limit, len(entries)) :]:
                print(json.dumps({"kind": str(kind), **buffer.record_of(one)}))
            continue
        print(f"{kind}: {len(entries)} tasks\n")
        for one in entries[::-1][: args.limit]:
            print(show.entry(kind, one) + "\n")
    return OK


def _pretrain(args: argparse.Namespace) -> int:
    from harena.azr import pretrain, weights

    out = Path(args.out) if args.out else weights.SMALL
    settings = pretrain.PretrainSettings(
        seed=args.seed, size=args.size, device=args.device, minutes=args.minutes, steps=args.steps,
        workers=args.workers, **_gpu_sizes(args.device),
    )  # fmt: skip

    def told(now: pretrain.Progress) -> None:
        rate = now.tokens / max(now.seconds, 1e-9)
        _say(f"step {now.step}: loss {now.loss:.4f}, {now.tokens / 1e6:.1f}M tokens, {rate:,.0f} tokens/s")

    pretrain.pretrain(settings, out, report=told)
    print(f"{out}: use it with --model {args.out or 'default'}")
    return OK


def _gpu_sizes(device: str) -> dict[str, Any]:
    return {"micro_tokens": 65_536} if device.startswith("cuda") else {}


def _report(args: argparse.Namespace) -> int:
    from harena.azr import report

    print(report.write(args.run, args.output))
    return OK
