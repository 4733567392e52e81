"""`harena azr study` and `harena azr export`: what they need of the command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

from harena.errors import SpecError


def study(args: argparse.Namespace, say: Callable[[str], None]) -> Path:
    from harena.azr import config as configs
    from harena.azr import run
    from harena.azr.engines import registry
    from harena.azr.report import study as studies

    path = Path(args.config) if args.config else None
    base = configs.read(path, profile=args.profile, iterations=args.iterations, evaluate_tasks=args.eval_tasks)
    base = run.with_options(base, model=args.model, engine=args.engine)
    registry.check(base.engine, trains=True)
    try:
        seeds = [int(word) for word in args.seeds.split(",")]
    except ValueError:
        raise SpecError(f"--seeds {args.seeds!r}: whole numbers with commas between them") from None
    return studies.perform(Path(args.out), base, args.variants.split(","), seeds, say=say)


def export(args: argparse.Namespace) -> str:
    from harena.azr import run
    from harena.azr.tasks import export as exports
    from harena.azr.tasks import prompts
    from harena.azr.tasks.kinds import TaskKind

    buffers = Path(args.run, run.BUFFERS)
    if not buffers.is_dir():
        raise SpecError(f"{args.run} holds no tasks: give the --out folder of a run")
    profile = dataclasses.replace(prompts.PROFILES[args.prompt], shots=args.shots or 0)
    kinds = [TaskKind(args.kind)] if args.kind else list(TaskKind)
    count = exports.write(Path(args.output), exports.rows(buffers, kinds, profile))
    return f"{args.output}: {count} tasks"
