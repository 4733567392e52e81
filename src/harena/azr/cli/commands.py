"""The part of the `harena` command that is about training: `harena azr`. Guarantees: a mistake is one line on stderr
that says what to do; text of models is made safe for terminals. What a command needs is imported when it runs, and a
missing package is named with the line that installs it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harena.azr.cli import options, study
from harena.azr.engines import registry
from harena.azr.errors import TrainingError
from harena.command import UNAVAILABLE, USAGE, Action, guarded, print_json
from harena.errors import BackendUnavailable, HarenaError, IsolationUnavailable, SpecError
from harena.terminal import safe

if TYPE_CHECKING:
    from harena.azr.config import EngineConfig, TrainConfig
    from harena.azr.engines.protocol import Generator
    from harena.azr.loop import Iteration
    from harena.azr.report.evaluate import How, ModelEvaluation
    from harena.azr.report.journal import Sink
    from harena.azr.tasks.public_sets import CodeItem
    from harena.azr.tasks.suite import Item

OK, NO = 0, 1

TRAIN_TEXT = """\
Self-play: the model proposes tasks, solves them, and learns from both; every check runs in a box. Writes settings,
journal, tasks, checkpoints and an HTML report into --out. Progress is measured on a held-out suite."""

STUDY_TEXT = """\
Runs each variant with each seed for the same number of iterations and writes study.md: held-out accuracy before and
after with intervals, paired sign tests, learning curves, and the commands. What is complete is not run again. Variants:
self-play, frozen-model (learns nothing), frozen-proposer, no-novelty, single-baseline, six-baselines."""

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

    options.train(add("train", "let a model propose tasks, solve them and learn", _train, TRAIN_TEXT))
    options.eval(add("eval", "measure a model on tasks that training never sees", _eval))
    options.propose(add("propose", "collect valid tasks that a model proposes; learns nothing", _propose))
    buffer = parts.add_parser("buffer", help="read what is being proposed", formatter_class=raw)
    shows = buffer.add_subparsers(title="what to do", metavar="WHAT", required=True)
    show = shows.add_parser("show", help="print the newest tasks of a run", epilog=EPILOG, formatter_class=raw)
    show.set_defaults(action=_guarded(_buffer_show))
    options.buffer_show(show)
    options.pretrain(add("pretrain", "make the small model, from programs that we generate", _pretrain))
    options.study(add("study", "train variants with several seeds and compare them", _study, STUDY_TEXT))
    options.export(add("export", "write the tasks of a run as a data set for other trainers", _export))
    options.report(add("report", "write the HTML report of a run anew", _report))


def _guarded(action: Action) -> Action:
    def told(args: argparse.Namespace) -> int:
        try:
            return action(args)
        except OSError as error:
            if error.filename is None or isinstance(error, ConnectionError):  # of no file that a person named
                raise
            raise SpecError(f"{error.filename}: {error.strerror}") from error

    return guarded(told, extras=registry.EXTRAS, code_of=_code, before_dashes="options come before it")


def _code(error: HarenaError) -> int | None:
    package_is_missing = isinstance(error.__cause__ or error.__context__, ImportError)
    if package_is_missing or isinstance(error, BackendUnavailable | IsolationUnavailable):
        return UNAVAILABLE
    return USAGE if isinstance(error, TrainingError | ValueError) else None


def _say(text: str) -> None:
    """Progress: on stderr, so that results can be piped."""
    print(safe(text), file=sys.stderr, flush=True)


def _print_json(data: object) -> None:
    from harena.azr.report.journal import plain

    print_json(plain(data))


# ---- train ----


def _train(args: argparse.Namespace) -> int:
    from harena.azr import environment, run
    from harena.azr.report import show

    folder = Path(args.out)
    config = _train_config(args, folder)
    sinks = _sinks(args, folder, config) if environment.is_first_process() else []
    outcome: run.RunOutcome | None
    try:
        driver = registry.driver(config.engine, trains=True)
        outcome = driver.train(folder, config, sinks=sinks, resume=args.resume, say=_say)
    except KeyboardInterrupt:
        _say(f"interrupted: `harena azr train --out {folder} --resume` goes on {run.where(folder)}")
        raise
    if outcome is None:  # one of several processes, and the first has it
        return OK
    if args.json:
        _print_json(
            {
                "folder": str(folder),
                "iterations": outcome.iterations,
                "continued_after": outcome.continued_after,
                "seconds": outcome.seconds,
                "before": outcome.before.as_json() if outcome.before else None,
                "after": outcome.after.as_json() if outcome.after else None,
                "last": outcome.last.metrics if outcome.last else None,
            }
        )
        return OK
    print(show.training(outcome.before, outcome.after, outcome.last))
    done = outcome.iterations - outcome.continued_after
    in_all = f" ({outcome.iterations} in all)" if outcome.continued_after else ""
    print(f"\n{done} iterations{in_all}, {outcome.seconds:.0f} s{_waiting(outcome.last)}")
    print(f"report: {folder / 'report.html'}")
    return OK


def _waiting(last: Iteration | None) -> str:
    if last is None:
        return ""
    times = last.metrics["time"]
    share = (times.get("wait_validate", 0.0) + times.get("wait_grade", 0.0)) / max(times["total"], 1e-9)
    return f"; the last one took {times['total']:.1f} s, {share:.0%} of it waiting for boxes"


def _train_config(args: argparse.Namespace, folder: Path) -> TrainConfig:
    from harena.azr import config as configs
    from harena.azr import run

    if args.resume:
        fixed = ("profile", "config", "seed", "model", "engine", "eval_tasks")
        given = [f"--{name.replace('_', '-')}" for name in fixed if getattr(args, name) is not None]
        if given:
            raise SpecError(f"{given[0]} with --resume: a run keeps its settings; only --iterations can change")
        kept = run.settings_of(folder)
        return configs.from_dict({} if args.iterations is None else {"iterations": args.iterations}, kept)
    path = Path(args.config) if args.config else None
    config = configs.read(
        path, profile=args.profile, iterations=args.iterations, seed=args.seed, evaluate_tasks=args.eval_tasks
    )
    config = run.with_options(config, model=args.model, engine=args.engine)
    registry.check(config.engine, trains=True)  # refuses, before a folder is made
    return config


def _sinks(args: argparse.Namespace, folder: Path, config: TrainConfig) -> list[Sink]:
    from harena.azr import config as configs
    from harena.azr import run
    from harena.azr.report import journal

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
    from harena.azr.report import evaluate, progress, show

    how = _how(args)
    tasks, code = _tasks(args)
    if args.check:
        return _check(args.suite, tasks, code)
    generator = _generator(args)
    found: ModelEvaluation
    if args.form != "trained":
        found = _eval_chat(args, generator, tasks, code, how)
    elif code:
        from harena.sandbox.pool import SandboxPool

        with SandboxPool() as pool:
            found = evaluate.evaluate_code(
                generator, pool, code, how, suite=args.suite, progress=progress.counter(sys.stderr)
            )
    else:
        from harena.azr.check.verify import TaskVerifier

        with TaskVerifier() as verifier:
            found = evaluate.evaluate(
                generator, verifier, tasks, how, suite=args.suite, progress=progress.counter(sys.stderr)
            )
    if args.json:
        _print_json(found.as_json())
    else:
        print(show.evaluation(found))
    return OK


def _eval_chat(
    args: argparse.Namespace, generator: Generator, tasks: list[Item], code: list[CodeItem], how: How
) -> ModelEvaluation:
    from harena.azr.report import chat_forms, progress
    from harena.sandbox.pool import SandboxPool

    form = chat_forms.ChatForm(args.form)
    counter = progress.counter(sys.stderr)
    with SandboxPool() as pool:
        if code:
            how = dataclasses.replace(how, max_new=args.max_new or how.max_new)
            return chat_forms.evaluate_code(generator, pool, code, how, form, suite=args.suite, progress=counter)
        how = dataclasses.replace(how, max_new=args.max_new or chat_forms.USUAL_TOKENS[form])
        return chat_forms.evaluate_tasks(generator, pool, tasks, how, form, suite=args.suite, progress=counter)


def _how(args: argparse.Namespace) -> How:
    from harena.azr import run
    from harena.azr.config import LONG_TOKENS, PromptConfig
    from harena.azr.report import evaluate
    from harena.azr.tasks import prompts

    if args.run and (args.model or args.engine != registry.DEFAULT):
        raise SpecError("--run brings its own model and engine: leave out --model and --engine")
    trained = run.settings_of(Path(args.run)).prompt if args.run else None
    name = args.prompt or (trained.profile if trained else "compact")
    as_trained = trained if trained and trained.profile == name else None
    shots = as_trained.shots if as_trained and args.shots is None else args.shots or 0
    short = args.suite in ("tiny", "cruxeval")
    usual = LONG_TOKENS
    if short and (as_trained or name == "compact"):
        usual = (as_trained or PromptConfig()).solve_tokens
    samples = args.samples or args.k
    return evaluate.How(
        profile=dataclasses.replace(prompts.PROFILES[name], shots=shots),
        max_new=args.max_new or usual,
        samples=samples,
        k=args.k,
        greedy=samples == 1,
        temperature=args.temperature,
        seed=args.seed,
    )


def _tasks(args: argparse.Namespace) -> tuple[list[Item], list[CodeItem]]:
    from harena.azr.tasks import public_sets, suite

    if args.suite in ("cruxeval", "mbpp") and not args.path:
        raise SpecError(f"--suite {args.suite}: give the set's file with --path")
    match args.suite:
        case "tiny":
            if args.path:
                raise SpecError("--path with --suite tiny: its tasks are drawn, not read; choose the file's --suite")
            return suite.thinned(suite.tiny(), args.limit, by=_cell), []
        case "cruxeval":
            return suite.thinned(public_sets.cruxeval(args.path), args.limit, by=_cell), []
        case "humaneval":
            return [], suite.thinned(public_sets.humaneval(args.path), args.limit)
        case _:
            return [], suite.thinned(public_sets.mbpp(args.path), args.limit)


def _cell(item: Item) -> tuple[str, ...]:
    return (str(item.kind), *item.groups)


def _generator(args: argparse.Namespace) -> Generator:
    from harena.azr import run

    if args.run:
        config, learnt = run.trained(Path(args.run))
        return registry.driver(config.engine, trains=True).trained(Path(args.run), config, learnt)
    asked = _engine_config(args)
    return registry.driver(asked, trains=False).generator(asked)


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    from harena.azr.config import EngineConfig

    if args.engine == "openai" and not (args.model and args.server):
        raise SpecError("--engine openai: give --server URL and --model NAME")
    options: dict[str, str | int | float | bool] = {}
    if args.engine == "openai":
        options = {"url": args.server, "chat": args.chat}
    return EngineConfig(
        name=args.engine,
        model=args.model or "default",
        device=args.device or "auto",
        dtype=args.dtype or "auto",
        options=options,
    )


def _propose(args: argparse.Namespace) -> int:
    from harena.azr import config as configs
    from harena.azr import run
    from harena.azr.report import show
    from harena.azr.tasks import prompts

    name = args.prompt or "compact"
    batch = min(32, max(1, args.count))
    few = configs.PromptConfig()
    prompt = {
        "profile": name,
        "inputs": prompts.PROFILES[name].inputs,
        "shots": args.shots or 0,
        "propose_tokens": args.max_new or (few.propose_tokens if name == "compact" else configs.LONG_TOKENS),
    }
    config = configs.read(
        None,
        profile="laptop",
        seed=args.seed,
        batch=batch,
        seed_factor=-(-args.count // batch),
        seed_rounds=args.rounds,
        prompt=prompt,
    )
    config = dataclasses.replace(config, engine=_engine_config(args))
    run.check_free(Path(args.out))  # before a model is loaded
    try:
        generator = registry.driver(config.engine, trains=False).generator(config.engine)
        found = run.propose(Path(args.out), config, generator, say=_say)
    except KeyboardInterrupt:
        _say(f"interrupted: what was valid so far is in {args.out}/{run.BUFFERS}")
        raise
    seen = found.seeding
    if args.json:
        _print_json(
            {
                "folder": args.out,
                "tasks": found.tasks,
                "proposals": seen.proposals,
                "valid": seen.valid,
                "invalid": seen.invalid,
            }
        )
        return OK
    rows = [
        (kind, str(seen.proposals[kind]), f"{seen.valid[kind] / max(1, seen.proposals[kind]):.0%}", str(count))
        for kind, count in found.tasks.items()
    ]
    print(show.table(("", "proposals", "valid", "tasks kept"), rows))
    whys = show.invalid({kind: seen.invalid.get(kind, {}) for kind in found.tasks})
    print((f"\n{whys}\n" if whys else "") + f"\ntasks: {args.out}/{run.BUFFERS}")
    return OK


def _check(name: str, tasks: list[Item], code: list[CodeItem]) -> int:
    """Whether the suite's own answers are accepted."""
    from harena.azr.report import evaluate

    if code:
        from harena.sandbox.pool import SandboxPool

        with SandboxPool() as pool:
            failing = evaluate.failing_code_golds(pool, code)
    else:
        from harena.azr.check.verify import TaskVerifier

        with TaskVerifier() as verifier:
            failing = evaluate.failing_golds(verifier, tasks)
    for where, verdict in failing.items():
        _say(f"{where}: {verdict}")
    count = len(tasks) + len(code)
    print(f"{name}: {count - len(failing)} of {count} gold answers are accepted")
    return NO if failing else OK


# ---- the short commands ----


def _buffer_show(args: argparse.Namespace) -> int:
    from harena.azr import run
    from harena.azr.report import show
    from harena.azr.tasks import buffer
    from harena.azr.tasks.kinds import TaskKind

    folder = Path(args.run, run.BUFFERS)
    if not folder.is_dir():
        raise SpecError(f"{args.run} holds no tasks: give the --out folder of a run")
    for kind in [TaskKind(args.kind)] if args.kind else TaskKind:
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
    from harena.azr.engines import torch_driver
    from harena.azr.model import pretrain, weights

    out = Path(args.out) if args.out else weights.SMALL
    _check_writable(out.parent)
    if out.exists():
        raise SpecError(f"{out} is there already: remove it, or give another --out")
    torch_driver.check_device(args.device)
    settings = pretrain.PretrainSettings(
        seed=args.seed,
        size=args.size,
        device=args.device,
        minutes=args.minutes,
        steps=args.steps,
        workers=args.workers,
        **_gpu_sizes(args.device),
    )

    def told(now: pretrain.PretrainProgress) -> None:
        rate = now.tokens / max(now.seconds, 1e-9)
        _say(f"step {now.step}: loss {now.loss:.4f}, {now.tokens / 1e6:.1f}M tokens, {rate:,.0f} tokens/s")
        if now.step == pretrain.FIRST_REPORT:
            expected = pretrain.expected_tokens(settings, now)
            _say(f"at this speed {expected / 1e6:.1f}M tokens will be read")
            if warning := pretrain.few(expected):
                _say(f"warning: {warning}")

    pretrain.pretrain(settings, out, report=told)
    print(f"{out}: use it with --model {args.out or 'default'}")
    return OK


def _check_writable(folder: Path) -> None:
    """Before minutes of work, not after them."""

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SpecError(f"{folder}: {error.strerror}: give another --out") from error


def _gpu_sizes(device: str) -> dict[str, Any]:
    return {"micro_tokens": 65_536} if device.startswith("cuda") else {}


def _study(args: argparse.Namespace) -> int:
    try:
        print(study.study(args, _say))
    except KeyboardInterrupt:
        _say("interrupted: the same command goes on")
        raise
    return OK


def _export(args: argparse.Namespace) -> int:
    print(study.export(args))
    return OK


def _report(args: argparse.Namespace) -> int:
    from harena.azr.report import html as report

    print(report.write(args.run, args.output))
    return OK
