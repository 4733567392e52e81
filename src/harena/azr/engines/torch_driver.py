"""How runs and commands use the torch engine. Torch is imported when an engine is made, after its threads were told
how to wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harena.azr import environment, run
from harena.azr.config import Algorithm, EngineConfig, TrainConfig
from harena.azr.report.journal import Sink
from harena.azr.run import RunOutcome, Say
from harena.errors import SpecError

if TYPE_CHECKING:
    from harena.azr.engines.torch_engine import TorchEngine

_DTYPES = {"float32": "f32", "bfloat16": "bf16", "f32": "f32", "bf16": "bf16"}


class TorchDriver:
    def train(self, folder: Path, config: TrainConfig, *, sinks: Sequence[Sink], resume: bool, say: Say) -> RunOutcome:
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
    return _built(config.engine, value_head=config.advantage.algorithm is Algorithm.PPO)


def _built(engine: EngineConfig, *, value_head: bool) -> TorchEngine:
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
    if value_head:
        options["value_head"] = True
    return torch_engine.build(
        model=engine.model,
        device=engine.device,
        dtype=_DTYPES.get(engine.dtype, "auto"),
        options=options,
    )


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
            f"engine.device={device}: torch {torch.__version__} finds no CUDA GPU here. On a processor: a file with "
            "`engine: {device: cpu, dtype: float32}` as --config, or --profile laptop"
        )
