"""Settings of the original implementation's configuration file (`model`, `training`, `executor`, …) as ours.

Guarantees: a key of the original is either mapped to ours, or refused with the name of what to use instead; a setting
that is given under both names is refused. docs/azr.md has the table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from harena.errors import SpecError


@dataclass(frozen=True, slots=True)
class Mapped:
    to: tuple[str, ...]
    """Our keys that get the value."""
    change: Callable[[str, object], object] = lambda key, value: value


def _algorithm(key: str, value: object) -> object:
    known = {"TRR++": "trr++", "PPO": "ppo"}
    if value not in known:
        raise SpecError(f"{key}={value!r}: TRR++ or PPO; ours is advantage.algorithm, which knows more")
    return known[cast("str", value)]


def _megabytes(key: str, value: object) -> object:
    """Docker's sizes: 512m, 1g."""
    text = str(value).lower().removesuffix("b")
    factor = {"m": 1, "g": 1024}.get(text[-1:])
    if factor is None or not text[:-1].isdecimal():
        raise SpecError(f"{key}={value!r}: a size such as 512m or 1g; ours is executor.memory_mb, a number")
    return int(text[:-1]) * factor


def _backend(key: str, value: object) -> object:
    """Both executors of the original are boxes here; the mock ran programs in the trainer's process."""
    if not isinstance(value, bool):
        raise SpecError(f"{key}={value!r}: true or false is wanted; ours is executor.backend")
    return "local"


MAPPED: Mapping[str, Mapped] = {
    "model.name": Mapped(("engine.model",)),
    "model.max_prompt_length": Mapped(("engine.options.max_prompt",)),
    "model.max_response_length": Mapped(("prompt.propose_tokens", "prompt.solve_tokens")),
    "training.rl_algorithm": Mapped(("advantage.algorithm",), _algorithm),
    "training.learning_rate": Mapped(("update.learning_rate",)),
    "training.batch_size": Mapped(("batch",)),
    "training.ppo_epochs": Mapped(("update.epochs",)),
    "training.entropy_coeff": Mapped(("update.entropy",)),
    "training.rollout_temp": Mapped(("temperature",)),
    "training.rollout_top_p": Mapped(("top_p",)),
    "training.k_references": Mapped(("buffer.references",)),
    "training.n_samples": Mapped(("rollouts",)),
    "training.seed_batch_factor": Mapped(("seed_factor",)),
    "training.max_buffer_size": Mapped(("buffer.capacity",)),
    "training.checkpoint_interval": Mapped(("checkpoint_every",)),
    "executor.use_mock": Mapped(("executor.backend",), _backend),
    "executor.timeout": Mapped(("executor.wall_s",)),
    "executor.memory_limit": Mapped(("executor.memory_mb",), _megabytes),
    "executor.forbidden_modules": Mapped(("executor.forbidden",)),
    "task_types": Mapped(("kinds",)),
}

FIXED: Mapping[str, tuple[object, str]] = {
    "training.optimizer": ("AdamW", "there is no other optimiser"),
    "training.use_kl": (False, "set the weight of the KL term with update.kl"),
    "training.format_penalty.formatted_wrong": (-0.5, "the reward of a wrong answer in good form is fixed"),
    "training.format_penalty.format_error": (-1.0, "the reward of a bad form is fixed"),
}
"""Keys with one value that means what is done here anyway, and what to say of others."""

ELSEWHERE: Mapping[str, str] = {
    "executor.cpu_limit": "a program has one core; executor.cpu_s limits its processor time",
    "logging.level": "progress goes to stderr, and everything to journal.jsonl in --out",
    "logging.use_wandb": "use --wandb PROJECT",
    "logging.wandb_project": "use --wandb PROJECT",
    "logging.log_dir": "use --out DIR, which gets the journal",
    "paths.buffer_dir": "use --out DIR, which gets the buffers",
    "paths.checkpoint_dir": "use --out DIR, which gets the checkpoints",
    "paths.log_dir": "use --out DIR, which gets the journal",
}
"""Keys that are no settings of a run here, and what to use."""

OUR_SECTIONS = frozenset({"executor"})
"""Sections that both have."""
_FOREIGN = {*MAPPED, *FIXED, *ELSEWHERE}
_SECTIONS = {key.rpartition(".")[0] for key in _FOREIGN} - {""}


def translated(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration with our names; what is ours already stays as it is."""
    ours: dict[str, Any] = {}
    theirs: dict[str, object] = {}
    _split(data, "", ours, theirs)
    for key, value in theirs.items():
        if key in ELSEWHERE:
            raise SpecError(f"{key}: {ELSEWHERE[key]}")
        if key in FIXED:
            if FIXED[key][0] != value:
                raise SpecError(f"{key}={value!r}: {FIXED[key][1]}")
            continue
        for name in MAPPED[key].to:
            _put(ours, name, MAPPED[key].change(key, value), key)
    if ours.get("advantage", {}) == {"algorithm": "ppo"} and "training.rl_algorithm" in theirs:
        _put(ours, "update.value", 0.5, "training.rl_algorithm")
    return ours


def _split(data: Mapping[str, Any], where: str, ours: dict[str, Any], theirs: dict[str, object]) -> None:
    for name, value in data.items():
        key = f"{where}.{name}" if where else str(name)
        if key in _FOREIGN:
            theirs[key] = value
        elif key in _SECTIONS and isinstance(value, Mapping):
            rest: dict[str, Any] = {}
            _split(cast("Mapping[str, Any]", value), key, rest, theirs)
            if rest:
                ours[name] = rest
        elif where and where.partition(".")[0] not in OUR_SECTIONS:
            raise SpecError(f"{key}: no such setting, neither of ours nor of the original")
        else:
            ours[name] = value


def _put(ours: dict[str, Any], name: str, value: object, key: str) -> None:
    *sections, last = name.split(".")
    for section in sections:
        inner = ours.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SpecError(f"{section}: a section of names and values belongs here")
        ours = cast("dict[str, Any]", inner)
    if last in ours:
        raise SpecError(f"{key} is {name} here, and the file has both: leave out one")
    ours[last] = value
