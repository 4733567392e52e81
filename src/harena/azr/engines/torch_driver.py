"""How runs and commands use the torch engine. Torch is imported when an engine is made, after its threads were told
how to wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harena.azr import environment, run
from harena.azr.config import Algorithm, EngineConfig, PromptConfig, TrainConfig
from harena.azr.report.journal import Sink
from harena.azr.run import RunOutcome, Say
from harena.errors import SpecError

if TYPE_CHECKING:
    from harena.azr.engines import torch_engine
    from harena.azr.engines.torch_engine import TorchEngine

_DTYPES = {"float32": "f32", "bfloat16": "bf16", "f32": "f32", "bf16": "bf16"}


class TorchDriver:
    def train(self, folder: Path, config: TrainConfig, *, sinks: Sequence[Sink], resume: bool, say: Say) -> RunOutcome:
        from harena.azr.model import pretrain, weights

        tokens = weights.tokens_read(config.engine.model)
        if tokens is not None and pretrain.few(tokens):
            say(f"{config.engine.model}: {pretrain.few(tokens)}")
        return run.train(folder, config, engine_of, sinks=sinks, resume=resume, say=say)

    def generator(self, engine: EngineConfig) -> TorchEngine:
        return _built(engine, value_head=False)

    def trained(self, folder: Path, config: TrainConfig, learnt: Mapping[str, Any]) -> TorchEngine:
        del folder
        engine = engine_of(config)
        engine.load(learnt)
        return engine


def engine_of(config: TrainConfig) -> TorchEngine:
    """The engine of a training run that this process drives."""
    return _built(config.engine, value_head=config.advantage.algorithm is Algorithm.PPO, run=config)


def _built(engine: EngineConfig, *, value_head: bool, run: TrainConfig | None = None) -> TorchEngine:
    if engine.dtype != "auto" and engine.dtype not in _DTYPES:
        raise SpecError(f"engine.dtype={engine.dtype!r}: auto, float32 or bfloat16")
    environment.wait_briefly()
    check_device(engine.device)
    import torch

    from harena.azr.engines import torch_engine

    options = dict(engine.options)
    threads = options.pop("threads", None)
    if threads is not None:
        if not isinstance(threads, int) or threads < 1:
            raise SpecError(f"engine.options.threads={threads!r}: a whole number from 1")
        torch.set_num_threads(threads)  # results on CPU are the same only for the same number
    checks_memory = options.pop("check_memory", True)
    if not isinstance(checks_memory, bool):
        raise SpecError(f"engine.options.check_memory={checks_memory!r}: true or false is wanted")
    if value_head:
        options["value_head"] = True
    if checks_memory:
        check_memory(engine, torch_engine.EngineOptions.of(options), run)
    return torch_engine.build(
        model=engine.model,
        device=engine.device,
        dtype=_DTYPES.get(engine.dtype, "auto"),
        options=options,
    )


USUAL_PROMPTS = {"compact": 256, "paper": 1_024}
"""Tokens of a prompt, for an estimate. Examples before a compact one double it."""


def check_memory(engine: EngineConfig, options: torch_engine.EngineOptions, run: TrainConfig | None = None) -> None:
    """SpecError with the figures when the model of `engine` cannot fit: to be trained as `run` says, or to be asked."""
    import torch

    from harena.azr.engines import torch_engine
    from harena.azr.learn import learner
    from harena.azr.model import memory, weights

    shape = weights.shape_of(engine.model)
    if shape is None:  # the hub has it: its shape comes with its weights
        return
    has_gpu = engine.device != "cpu" and torch.cuda.is_available()
    device = ("cuda" if has_gpu else "cpu") if engine.device == "auto" else engine.device
    is_half = engine.dtype in ("bfloat16", "bf16") or (engine.dtype == "auto" and has_gpu)
    size = memory.parameter_count(shape)
    decode = dataclasses.replace(torch_engine.decode_defaults(size, is_cuda=has_gpu), **options.decode)
    form = run.prompt if run else PromptConfig()
    read = USUAL_PROMPTS[form.profile] * (2 if form.shots else 1)
    new = max(form.propose_tokens, form.solve_tokens)
    most = run.batch * len(run.kinds) * (1 + run.rollouts) if run else decode.rows
    learning = None
    if run is not None:
        learning = memory.Learning(
            micro_tokens=options.learn.tokens_at_once(size, is_cuda=has_gpu),
            saves_memory=options.learn.saves_memory(size),
            max_logits=learner.LOGIT_ELEMENTS,
            has_reference=run.update.kl > 0,
        )
    wanted = memory.need(
        shape,
        weight_bytes=2 if is_half else memory.FLOAT,
        decoding=memory.Decoding(rows=min(decode.rows, most), places=max(decode.max_places, read + new)),
        learning=learning,
    )
    memory.check(wanted, device=device, free=memory.available(device), model=engine.model)


def check_device(device: str) -> None:
    """SpecError unless torch can compute there."""
    import torch

    try:
        kind = "cuda" if device == "auto" else torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise SpecError(f"engine.device={device!r}: auto, cpu or cuda")
    if kind == "cuda" and device != "auto" and not torch.cuda.is_available():
        raise SpecError(
            f"engine.device={device}: torch {torch.__version__} finds no CUDA GPU here. --profile laptop trains the "
            "small model on a processor"
        )
