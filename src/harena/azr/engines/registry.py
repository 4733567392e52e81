"""Training engines by name: one line for each, which the command's help, its options and its errors are made of.

Guarantees: an engine is imported when it is used; an engine that cannot do what is asked, and an option that it does
not know, are refused before anything is loaded. Imports nothing heavy.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from harena.errors import SpecError

if TYPE_CHECKING:
    from harena.azr.config import EngineConfig
    from harena.azr.engines.protocol import Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    name: str
    path: str
    """module:Class of its Driver."""
    help: str
    extra: str
    """What to install: harena[extra]."""
    packages: tuple[str, ...]
    """What the extra brings, by the names that are imported."""
    options: tuple[str, ...]
    """What engine.options may say."""
    passed_on: str = ""
    """Options that begin with this go to the library behind the engine, which knows them."""
    trains: bool = True
    generates: bool = True
    """Whether it can answer without training: `eval` and `propose`."""


ENGINES: Mapping[str, EngineEntry] = {
    one.name: one
    for one in (
        EngineEntry(
            name="torch",
            path="harena.azr.engines.torch_driver:TorchDriver",
            help="our own decoder and learner, CPU or one GPU",
            extra="azr",
            packages=("numpy", "torch", "safetensors", "yaml"),
            options=(
                *(
                    "threads",
                    "check_memory",
                    "max_prompt",
                    "rows",
                    "check_every",
                    "graphs",
                    "fuse",
                    "kernel",
                    "max_places",
                ),
                *(
                    "value_head",
                    "micro_tokens",
                    "save_memory",
                    "share_prompts",
                    "keep_prompts",
                    "warmup_steps",
                    "beta1",
                    "beta2",
                    "weight_decay",
                ),
            ),
        ),
        EngineEntry(
            name="trl",
            path="harena.azr.engines.trl_engine:TrlDriver",
            help="TRL's GRPOTrainer, one process or several",
            extra="trl",
            packages=("trl", "datasets", "transformers", "accelerate"),
            options=("rows", "micro_batch", "gradient_checkpointing", "vllm"),
            passed_on="vllm_",
            generates=False,
        ),
        EngineEntry(
            name="openai",
            path="harena.azr.engines.openai_engine:OpenAIDriver",
            help="an OpenAI-compatible server",
            extra="azr",
            packages=(),
            options=("url", "chat", "concurrency", "retries", "timeout_s", "logprobs", "token_ids"),
            trains=False,
        ),
    )
}
DEFAULT = "torch"
EXTRAS: Mapping[str, str] = {package: one.extra for one in ENGINES.values() for package in one.packages}
"""What to install for a package that is missing."""
TRAINING = tuple(one.name for one in ENGINES.values() if one.trains)
GENERATING = tuple(one.name for one in ENGINES.values() if one.generates)


def entry(name: str) -> EngineEntry:
    if name not in ENGINES:
        raise SpecError(f"engine.name={name!r}: one of {', '.join(ENGINES)}")
    return ENGINES[name]


def listed(names: tuple[str, ...]) -> str:
    """These engines in words, for a help text."""
    return "; ".join(f"{name}: {ENGINES[name].help}" for name in names)


def check(engine: EngineConfig, *, trains: bool) -> None:
    """SpecError unless the engine exists, can train (or answer without training), and knows its options."""
    one = entry(engine.name)
    if trains and not one.trains:
        raise SpecError(
            f"engine.name={one.name}: the weights are the server's and cannot be trained from here; train with "
            f"{' or '.join(TRAINING)}, and use {one.name} with `harena azr eval`"
        )
    if not trains and not one.generates:
        raise SpecError(f"engine.name={one.name}: it only trains; ask its model with {' or '.join(GENERATING)}")
    check_options(one, engine.options)


def check_options(one: EngineEntry, options: Mapping[str, object]) -> None:
    passed_on = {name for name in options if one.passed_on and name.startswith(one.passed_on)}
    unknown = sorted(set(options) - set(one.options) - passed_on)
    if unknown:
        rest = f" and those that begin with {one.passed_on}" if one.passed_on else ""
        raise SpecError(
            f"engine.options.{unknown[0]}: the {one.name} engine knows {', '.join(sorted(one.options))}{rest}"
        )


def driver(engine: EngineConfig, *, trains: bool) -> Driver:
    """The engine's driver, for training or for answers alone."""
    check(engine, trains=trains)
    module, _, name = entry(engine.name).path.partition(":")
    return cast("Driver", getattr(importlib.import_module(module), name)())
