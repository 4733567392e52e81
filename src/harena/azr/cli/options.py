"""The options of `harena azr`, by command. Guarantees: imports nothing heavy, so that --help is quick; a number that
makes no sense is refused with the name of its option.
"""

from __future__ import annotations

import argparse
import math

from harena.azr.config import PROFILES, TrainConfig
from harena.azr.engines.registry import DEFAULT, ENGINES, GENERATING, TRAINING, listed
from harena.azr.tasks.forms import PROFILES as FORMS
from harena.azr.tasks.kinds import TaskKind

SUITES = ("tiny", "cruxeval", "humaneval", "mbpp")
KINDS = tuple(kind.value for kind in TaskKind)


def train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=_path, required=True, metavar="DIR", help="the folder of the run")
    command.add_argument("--profile", choices=PROFILES, help=f"where the settings start from ({TrainConfig().profile})")
    command.add_argument("--config", metavar="FILE", help="settings that differ from the profile, YAML or JSON")
    command.add_argument("--iterations", type=_count, metavar="N", help="of self-play, in all")
    command.add_argument("--seed", type=int, metavar="N", help="of everything random (0)")
    command.add_argument("--model", metavar="NAME", help="`default` is our own; else a folder, a file or a name")
    command.add_argument("--engine", choices=ENGINES, help=f"what writes and learns ({DEFAULT}). {listed(TRAINING)}")
    command.add_argument("--resume", action="store_true", help="go on with the run in --out")
    command.add_argument(
        "--eval-tasks",
        type=_count,
        metavar="N",
        help=f"held-out tasks of each kind and grade ({TrainConfig().evaluate_tasks}); 0 measures nothing",
    )
    command.add_argument("--tensorboard", action="store_true", help="also write TensorBoard's event files")
    command.add_argument("--wandb", metavar="PROJECT", help="also log to Weights & Biases, over the network")
    command.add_argument("--json", action="store_true", help="print the results as JSON")


def propose(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=_path, required=True, metavar="DIR", help="a new folder for the tasks")
    command.add_argument("--count", type=_some, default=64, metavar="N", help="tasks of each kind (64)")
    command.add_argument("--rounds", type=_some, default=20, metavar="N", help="at most so many rounds (20)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling (0)")
    command.add_argument("--json", action="store_true", help="print the results as JSON")
    model(command)


def model(command: argparse.ArgumentParser) -> None:
    """Which model is asked, and in which form."""
    command.add_argument("--model", metavar="NAME", help="`default` is our own; else a folder, a file or a name")
    command.add_argument(
        "--engine", choices=GENERATING, default=DEFAULT, help=f"what answers ({DEFAULT}). {listed(GENERATING)}"
    )
    command.add_argument("--server", metavar="URL", help="of the openai engine, e.g. http://127.0.0.1:8000/v1")
    command.add_argument("--chat", action="store_true", help="ask the server's chat interface")
    command.add_argument("--device", metavar="NAME", help="cpu, cuda (whichever there is)")
    command.add_argument("--dtype", metavar="NAME", help="float32 or bfloat16 (float32)")
    command.add_argument(
        "--prompt",
        choices=sorted(FORMS),
        help="code to continue, or instructions (compact; with --run as in training)",
    )
    command.add_argument("--shots", type=_count, metavar="N", help="solved examples before each question (0)")
    command.add_argument("--max-new", type=_some, metavar="N", help="tokens of a completion (by --prompt)")


def eval(command: argparse.ArgumentParser) -> None:
    command.add_argument("--suite", choices=SUITES, default="tiny", help="which tasks (tiny: our own)")
    command.add_argument("--path", metavar="FILE", help="the data of cruxeval or mbpp, or a copy of humaneval's")
    command.add_argument("--run", metavar="DIR", help="the model that a run has trained, as of its last checkpoint")
    command.add_argument(
        "--form",
        choices=("trained", "chat", "steps"),
        default="trained",
        help="ask as in training, or in words that training never uses: for the answer at once, or step by step",
    )
    model(command)
    group = command.add_argument_group("how many answers")
    group.add_argument("-k", type=_some, default=1, metavar="N", help="report pass@k (1)")
    group.add_argument("--samples", type=_some, metavar="N", help="answers to each task (k); one is greedy")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="of several answers (1.0)")
    group.add_argument("--limit", type=_some, metavar="N", help="tasks, evenly spread over their kinds (all)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling (0)")
    command.add_argument("--check", action="store_true", help="no model: see whether every gold answer is accepted")
    command.add_argument("--json", action="store_true", help="print the results as JSON")


def pretrain(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", type=_path, metavar="FILE", help="a new .safetensors file (where `default` is looked for)"
    )
    command.add_argument("--size", default="small", metavar="NAME", help="tiny, small or base (small)")
    command.add_argument("--minutes", type=_minutes, default=5.0, metavar="N", help="how long (5)")
    command.add_argument("--steps", type=_count, default=0, metavar="N", help="optimiser steps instead of minutes")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and documents (0)")
    command.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (cpu)")
    command.add_argument("--workers", type=_count, default=0, metavar="N", help="processes that write documents (0)")


def buffer_show(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="DIR", help="the --out folder of a run")
    command.add_argument("--kind", choices=KINDS, help="of this kind alone")
    command.add_argument("--limit", type=_count, default=5, metavar="N", help="so many of each kind (5)")
    command.add_argument("--json", action="store_true", help="print JSON lines, as they are kept")


def study(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=_path, required=True, metavar="DIR", help="the folder of the study")
    command.add_argument("--profile", choices=PROFILES, help=f"where the settings start from ({TrainConfig().profile})")
    command.add_argument("--config", metavar="FILE", help="settings that differ from the profile, YAML or JSON")
    command.add_argument("--variants", default="self-play,frozen-model", metavar="A,B", help="(self-play,frozen-model)")
    command.add_argument("--seeds", default="0,1,2", metavar="N,M", help="a run of each variant for each (0,1,2)")
    command.add_argument("--iterations", type=_some, metavar="N", help="of each run")
    command.add_argument("--model", metavar="NAME", help="`default` is our own; else a folder, a file or a name")
    command.add_argument("--engine", choices=ENGINES, help=f"what writes and learns ({DEFAULT})")
    command.add_argument("--eval-tasks", type=_some, metavar="N", help="held-out tasks of each kind and grade")


def export(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="DIR", help="the --out folder of a run")
    command.add_argument("-o", "--output", type=_path, required=True, metavar="FILE", help="a new file of JSON lines")
    command.add_argument("--kind", choices=KINDS, help="of this kind alone")
    command.add_argument("--prompt", choices=sorted(FORMS), default="compact", help="the form of the prompts (compact)")
    command.add_argument("--shots", type=_count, metavar="N", help="solved examples before each question (0)")


def report(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="DIR", help="the --out folder of a run")
    command.add_argument("-o", "--output", metavar="FILE", help="where to (DIR/report.html)")


# ---- kinds of values ----


def _count(text: str) -> int:
    return _whole(text, 0)


def _some(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from {least}")
    return number


def _minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0")
    return number


def _path(text: str) -> str:
    """An empty one is a shell's variable that was not set, and would be the folder one stands in."""
    if not text:
        raise argparse.ArgumentTypeError("a name is wanted")
    return text
