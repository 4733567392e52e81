"""The settings of a training run and their defaults: closed dataclasses, read from YAML or JSON. Promises: a key that
nobody knows and a value of the wrong type or out of range are refused with the key's full name, before anything starts.

Profiles are starting points; a file, and then options such as --iterations, change single values:

laptop   our own small model on two processor cores: real self-play, seconds an iteration
small    the same model on a GPU; docs/azr.md says what its runs gained
brief    Qwen2.5-Coder-1.5B on one GPU, answering at once after examples; gains mostly in the form that is trained
gpu1     the same model with the paper's prompts, thinking before it answers
coder-3b the 3B model likewise on one large GPU (its licence is for research only)
coder-7b the 7B model likewise on several GPUs, by the trl engine
paper    the paper's numbers; they need several GPUs
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harena.azr import original
from harena.azr.check.rewards import Learnability
from harena.azr.engines.protocol import Update
from harena.azr.tasks import prompts
from harena.azr.tasks.kinds import TaskKind
from harena.azr.tasks.prompts import PromptProfile
from harena.errors import SpecError

if TYPE_CHECKING:
    from harena.azr.check import verify

MAX_FILE_BYTES = 1 << 20
LONG_TOKENS = 1_024
"""Tokens of a completion that is more than a value: in the paper's form, and of whole functions."""


def _at_least(name: str, value: float, low: float) -> None:
    if value < low:
        raise SpecError(f"{name}={value!r}: at least {low}")


class Algorithm(enum.StrEnum):
    TRR = "trr++"
    SINGLE = "single"
    RAE = "rae"
    HIERARCHICAL = "hierarchical"
    PPO = "ppo"


class Baseline(enum.StrEnum):
    SEQUENCE = "sequence"
    TOKEN = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig:
    profile: str = "compact"
    inputs: int = prompts.COMPACT.inputs
    """Inputs of an induction proposal."""
    shots: int = 0
    """Solved examples before a question (compact): for models that were not trained on this form."""
    propose_tokens: int = 160
    solve_tokens: int = 96
    """Tokens that a completion may have, by role."""

    def __post_init__(self) -> None:
        _at_least("prompt.propose_tokens", self.propose_tokens, 1)
        _at_least("prompt.solve_tokens", self.solve_tokens, 1)
        _at_least("prompt.inputs", self.inputs, 2)
        if not 0 <= self.shots <= len(prompts.SHOTS):
            raise SpecError(f"prompt.shots={self.shots!r}: from 0 to {len(prompts.SHOTS)}")
        self.form()

    def form(self) -> PromptProfile:
        if self.profile not in prompts.PROFILES:
            raise SpecError(f"prompt.profile={self.profile!r}: one of {', '.join(prompts.PROFILES)}")
        return dataclasses.replace(prompts.PROFILES[self.profile], inputs=self.inputs, shots=self.shots)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    learnability: Learnability = Learnability.PAPER
    repeat: float | None = None
    """The novelty guard: what a program earns that was seen before. None, as in the paper: what it would anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    algorithm: Algorithm = Algorithm.TRR
    baseline: Baseline = Baseline.SEQUENCE
    """Whether a sample counts once or as often as it has tokens (trr++ and single)."""
    decay: float = 0.95
    """How slowly a baseline follows the rewards (rae)."""
    discount: float = 1.0
    trace: float = 1.0
    """The λ of the advantage estimates (ppo)."""

    def __post_init__(self) -> None:
        for name in ("decay", "discount", "trace"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SpecError(f"advantage.{name}={getattr(self, name)!r}: from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig:
    capacity: int = 16_384
    references: int = 6
    """Tasks that a proposer is shown."""

    def __post_init__(self) -> None:
        _at_least("buffer.capacity", self.capacity, 2)
        _at_least("buffer.references", self.references, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    backend: str = "local"
    wall_s: float = 2.0
    cpu_s: float = 0.05
    patient: bool = True
    """These become the Bounds of executor.py, which says what each is."""
    memory_mb: int = 256
    output_chars: int = 1_000
    share: bool = True
    """Whether plain programs share processes; see executor.py."""
    forbidden: tuple[str, ...] = ()
    """Modules to forbid besides those that always are."""

    def __post_init__(self) -> None:
        for name in ("wall_s", "cpu_s"):
            if not getattr(self, name) > 0:
                raise SpecError(f"executor.{name}={getattr(self, name)!r}: above 0")
        _at_least("executor.memory_mb", self.memory_mb, 16)
        _at_least("executor.output_chars", self.output_chars, 1)

    def settings(self) -> verify.VerifierSettings:
        from harena.azr.check import executor, verify

        bounds = executor.Bounds(
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
            patient=self.patient,
            memory_mb=self.memory_mb,
            max_chars=self.output_chars,
            share=self.share,
        )
        return verify.VerifierSettings(
            bounds=bounds, forbidden=verify.FORBIDDEN | frozenset(self.forbidden), backend=self.backend
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    name: str = "torch"
    model: str = "default"
    """`default` is our own small model; else a folder, a GGUF file, or a name that the engine knows."""
    device: str = "auto"
    dtype: str = "auto"
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict[str, "str | int | float | bool"])
    """What only one engine knows; it refuses what it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    profile: str = "laptop"
    seed: int = 0
    iterations: int = 100
    batch: int = 32
    """Samples of each of the six pairs of role and kind in an iteration."""
    rollouts: int = 8
    """Sampled solves of each proposed task that tell how hard it is."""
    seed_factor: int = 4
    """Seeding goes on until each buffer holds batch x seed_factor tasks."""
    seed_rounds: int = 20
    """But not for more rounds than this: a weak model may never get there."""
    kinds: tuple[TaskKind, ...] = tuple(TaskKind)
    train_proposer: bool = True
    """False: proposals are made and judged, but not learnt from."""
    learn_rollouts: bool = False
    """True: the sampled solves that measure a task are learnt from, too. `hierarchical` needs it to compare."""
    anneal: bool = False
    """True: the learning rate falls with the iterations, along a line from all of it to a fiftieth."""
    temperature: float = 1.0
    top_p: float = 1.0
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    evaluate_every: int = 10
    """Iterations between looks at the held-out suite; 0: only before and after."""
    evaluate_tasks: int = 40
    """Its tasks of each kind and grade; 0 measures nothing."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    update: Update = field(default_factory=Update)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        for name, low in (
            ("seed", 0),
            ("iterations", 0),
            ("batch", 1),
            ("rollouts", 1),
            ("seed_factor", 0),
            ("seed_rounds", 0),
        ):
            _at_least(name, getattr(self, name), low)
        for name in ("checkpoint_every", "keep_checkpoints"):
            _at_least(name, getattr(self, name), 1)
        for name in ("evaluate_every", "evaluate_tasks"):
            _at_least(name, getattr(self, name), 0)
        _check_update(self.update)
        if not self.kinds or len(set(self.kinds)) != len(self.kinds):
            raise SpecError("kinds: at least one, none twice")
        if self.temperature <= 0:
            raise SpecError("temperature: above 0; greedy rollouts would all be the same")
        if not 0 < self.top_p <= 1:
            raise SpecError(f"top_p={self.top_p!r}: above 0, at most 1")
        algorithm = self.advantage.algorithm
        if algorithm is Algorithm.HIERARCHICAL and not self.learn_rollouts:
            raise SpecError("advantage.algorithm=hierarchical compares the solves of one task: set learn_rollouts=true")
        if algorithm is Algorithm.PPO and not self.update.value > 0:
            raise SpecError("advantage.algorithm=ppo: the value head learns nothing at update.value=0; try 0.5")


_CODER = "Qwen/Qwen2.5-Coder-1.5B-Instruct"


def _check_update(update: Update) -> None:
    for name in ("mini_batch", "epochs"):
        _at_least(f"update.{name}", getattr(update, name), 1)
    for name in ("learning_rate", "entropy", "kl", "value"):
        _at_least(f"update.{name}", getattr(update, name), 0)
    for name in ("clip", "max_grad_norm"):
        if getattr(update, name) <= 0:
            raise SpecError(f"update.{name}={getattr(update, name)!r}: above 0")


_THINKING = PromptConfig(
    profile="paper", inputs=prompts.PAPER.inputs, propose_tokens=LONG_TOKENS, solve_tokens=LONG_TOKENS
)
_TINY = Update(learning_rate=1e-4, mini_batch=192, entropy=0.001)

PROFILES: dict[str, TrainConfig] = {
    "laptop": TrainConfig(
        profile="laptop",
        iterations=20,
        batch=32,
        seed_factor=2,
        seed_rounds=4,
        reward=RewardConfig(repeat=-0.5),
        buffer=BufferConfig(references=2),
        executor=ExecutorConfig(wall_s=1.0, patient=False, output_chars=200),
        update=_TINY,
    ),
    "small": TrainConfig(
        profile="small",
        iterations=70,
        batch=128,
        seed_factor=2,
        seed_rounds=8,
        learn_rollouts=True,
        anneal=True,
        prompt=PromptConfig(propose_tokens=128),
        reward=RewardConfig(repeat=-0.5),
        advantage=AdvantageConfig(algorithm=Algorithm.HIERARCHICAL),
        buffer=BufferConfig(references=3),
        executor=ExecutorConfig(wall_s=1.0, patient=False, output_chars=200),
        update=Update(learning_rate=1e-4, mini_batch=1_024, kl=0.2, token_mean=False),
    ),
    "brief": TrainConfig(
        profile="brief",
        iterations=32,
        batch=64,
        seed_factor=2,
        seed_rounds=6,
        learn_rollouts=True,
        anneal=True,
        prompt=PromptConfig(shots=4, solve_tokens=64),
        reward=RewardConfig(repeat=-0.5),
        buffer=BufferConfig(references=3),
        executor=ExecutorConfig(output_chars=400),
        update=Update(learning_rate=5e-6, mini_batch=512, kl=0.05, token_mean=False),
        engine=EngineConfig(model=_CODER, device="cuda", dtype="bfloat16"),
    ),
    "gpu1": TrainConfig(
        profile="gpu1",
        iterations=100,
        batch=64,
        prompt=_THINKING,
        executor=ExecutorConfig(wall_s=4.0),
        engine=EngineConfig(model=_CODER, device="cuda", dtype="bfloat16"),
    ),
    "coder-3b": TrainConfig(
        profile="coder-3b",
        iterations=100,
        batch=64,
        prompt=_THINKING,
        executor=ExecutorConfig(wall_s=4.0),
        engine=EngineConfig(model="Qwen/Qwen2.5-Coder-3B-Instruct", device="cuda", dtype="bfloat16"),
    ),
    "coder-7b": TrainConfig(
        profile="coder-7b",
        iterations=100,
        batch=64,
        prompt=_THINKING,
        executor=ExecutorConfig(wall_s=4.0),
        engine=EngineConfig(
            name="trl", model="Qwen/Qwen2.5-Coder-7B-Instruct", device="cuda", options={"gradient_checkpointing": True}
        ),
    ),
    "paper": TrainConfig(
        profile="paper",
        iterations=500,
        batch=64,
        prompt=PromptConfig(profile="paper", inputs=prompts.PAPER.inputs, propose_tokens=8096, solve_tokens=8096),
        executor=ExecutorConfig(wall_s=10.0),
        engine=EngineConfig(model="Qwen/Qwen2.5-Coder-7B", device="cuda", dtype="bfloat16"),
    ),
}


def read(path: Path | None = None, *, profile: str | None = None, **options: object) -> TrainConfig:
    """A profile, changed by a file, changed by options; None is no option. Without `profile` the file's own counts."""
    data = original.translated(_file(path)) if path is not None else {}
    name = profile or data.get("profile") or "laptop"
    if name not in PROFILES:
        raise SpecError(f"profile={name!r}: one of {', '.join(PROFILES)}")
    given = {key: value for key, value in options.items() if value is not None}
    return from_dict({**data, "profile": name, **given}, PROFILES[name])


def from_dict(data: Mapping[str, Any], base: TrainConfig | None = None) -> TrainConfig:
    """`data` changes `base`; nested sections change only what they name."""
    return cast("TrainConfig", _changed(base or TrainConfig(), data, ""))


def as_dict(config: TrainConfig) -> dict[str, Any]:
    """JSON data that `from_dict` makes the same configuration of."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def _file(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SpecError(f"{path}: larger than a configuration can be")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    data = _json(path, text) if path.suffix == ".json" else _yaml(path, text)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in cast("dict[Any, Any]", data)):
        raise SpecError(f"{path}: a configuration is a mapping of names to values")
    return cast("dict[str, Any]", data)


def _json(path: Path, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not JSON: {error}") from None


def _yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise SpecError(f"{path}: YAML needs PyYAML: `pip install harena[azr]`, or write it as .json") from None
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def _changed(base: Any, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise SpecError(f"{where or 'configuration'}: a section of names and values belongs here")
    hints = typing.get_type_hints(cast("type[Any]", type(base)))
    changes: dict[str, object] = {}
    for key, value in cast("Mapping[str, Any]", data).items():
        name = f"{where}.{key}" if where else str(key)
        if key not in hints:
            raise SpecError(f"{name}: no such setting; there are {', '.join(hints)}")
        now = getattr(base, key)
        changes[key] = _changed(now, value, name) if dataclasses.is_dataclass(now) else fitting(value, hints[key], name)
    return dataclasses.replace(base, **changes)


def fitting(value: object, hint: Any, name: str) -> object:
    """The value as its field wants it, or SpecError that names the key."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, arguments, name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(fitting(item, arguments[0], f"{name}[{n}]") for n, item in enumerate(cast("list[Any]", value)))
    if origin is not None and origin is not tuple and isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return {str(key): fitting(item, arguments[1], f"{name}.{key}") for key, item in pairs}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum) and isinstance(value, str):
        if value not in list(hint):
            raise SpecError(f"{name}={value!r}: one of {', '.join(hint)}")
        return hint(value)
    if hint is float and type(value) in (int, float) and math.isfinite(cast("float", value)):
        return float(cast("float", value))
    if hint is float and isinstance(value, str):
        return _number(value, name)
    if hint in (int, bool, str, type(None)) and type(value) is hint:
        return value
    raise SpecError(f"{name}={value!r}: {_called(hint)} is wanted")


def _one_of(value: object, hints: tuple[Any, ...], name: str) -> object:
    for hint in hints:
        try:
            return fitting(value, hint, name)
        except SpecError:
            continue
    raise SpecError(f"{name}={value!r}: {' or '.join(map(_called, hints))} is wanted")


def _number(text: str, name: str) -> float:
    try:  # YAML 1.1 takes 1e-4 for a text
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SpecError(f"{name}={text!r}: a number is wanted")
    return number


def _called(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        type(None): "nothing (null)",
    }
    return names.get(hint, "a list" if typing.get_origin(hint) is tuple else "a section")
