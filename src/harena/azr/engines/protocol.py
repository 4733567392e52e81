"""What the loop asks of a model: to write (Generator) and to learn (Learner). Protocols and data; nothing here acts.

An engine promises: completions in the order of the requests, `n` for each; the log probabilities are those of the
policy that sampled, at the temperature it sampled with; the same seed, requests and weights give the same completions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from harena.azr.tasks.kinds import Role, TaskKind

if TYPE_CHECKING:
    from pathlib import Path

    from harena.azr.config import EngineConfig, TrainConfig
    from harena.azr.report.journal import Sink
    from harena.azr.run import RunOutcome, Say


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    prompt: str
    max_new: int
    """Tokens that a completion may have."""
    n: int = 1
    """Completions wanted, each sampled on its own."""
    is_chat: bool = False
    """The prompt is what a user says: the engine puts the model's chat template around it, where it knows one."""
    tag: object = None
    """The caller's; an engine does not look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    greedy: bool = False
    """The likeliest token each time: for evaluation only. Rollouts that are rewarded or counted are sampled."""
    stop: tuple[str, ...] = ()
    """A completion ends with the first of these that it writes; the text keeps what came before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Every token that was sampled, those of the stop string or end token included: what is learnt from."""
    logprobs: tuple[float, ...]
    """One for each of `ids`."""
    text: str
    """The text without the stop string."""
    finished: bool
    """False when `max_new` cut it short."""
    entropy: float = 0.0
    """Mean over the tokens, in nats, where the engine knows it."""
    values: tuple[float, ...] = ()
    """What a value head expected at each of `ids`; empty without one."""


OnDone = Callable[[int, list[Completion]], None]
"""Called with the index of a request and its completions as soon as they are all there."""


class Generator(Protocol):
    def generate(
        self, requests: Sequence[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        """`on_done` is called once for each request, from the calling thread; others can work on it meanwhile."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """What an engine has besides if it refuses long prompts: the loop then asks none that it would refuse."""

    def fits(self, prompt: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sample to learn from."""

    completion: Completion
    role: Role
    kind: TaskKind
    reward: float
    advantage: float | tuple[float, ...]
    """One value for the whole completion, or one for each token."""
    returns: tuple[float, ...] = ()
    """What the value head should have expected at each token (PPO); empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How to learn from a batch: one epoch of clipped policy gradient, as in the paper, unless it says otherwise."""

    learning_rate: float = 1e-6
    mini_batch: int = 128
    """Samples for one optimiser step."""
    epochs: int = 1
    clip: float = 0.2
    entropy: float = 0.001
    """Weight of the entropy bonus."""
    kl: float = 0.0
    """Weight of the KL term to the first policy; 0 needs no reference model."""
    value: float = 0.0
    """Weight of the value head's loss; above 0 only with PPO."""
    max_grad_norm: float = 1.0
    skip_flat: bool = False
    """Samples whose advantage is 0 are not learnt from at all: they lose their entropy bonus and KL term, and cost no
    time. Without these terms such samples have no gradient and are left out anyway."""
    token_mean: bool = True
    """The loss is a mean over all tokens of a mini-batch; False: over samples, each the mean of its own tokens."""


class Learner(Protocol):
    def step(self, rollouts: Sequence[Rollout], update: Update) -> dict[str, float]:
        """One update from a batch; the numbers that are worth logging."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs to go on bit for bit: tensors by name, and plain numbers, texts and lists."""
        ...

    def load(self, state: Mapping[str, Any]) -> None: ...


class Engine(Generator, Learner, Protocol):
    """Both in one: the weights that write are those that learn."""


class Driver(Protocol):
    """How runs and commands use an engine; registry.py finds it by name, and refuses what it cannot do."""

    def train(
        self, folder: Path, config: TrainConfig, *, sinks: Sequence[Sink], resume: bool, say: Say
    ) -> RunOutcome | None:
        """A training run in a folder; None in all processes of it but the first."""
        ...

    def generator(self, engine: EngineConfig) -> Generator:
        """An engine to ask only."""
        ...

    def trained(self, folder: Path, config: TrainConfig, learnt: Mapping[str, Any]) -> Generator:
        """The model that the run in `folder` has trained; `learnt` is its learner's state at the last checkpoint."""
        ...
