"""Engines by name. Guarantees: what an engine needs is imported when it is made; a missing package is named with the
line that installs it; an engine that cannot learn is refused before a run starts."""

from __future__ import annotations

import os
from typing import Any, cast

from harena.azr.config import Algorithm, Config, EngineConfig
from harena.azr.engines.protocol import Engine, Generator
from harena.errors import SpecError

NAMES = ("torch", "trl", "openai")
SPINS = "10000"
"""Rounds that a thread of torch waits before it sleeps, on CPU: about half a millisecond. Much less, and threads sleep
between one operation and the next; the usual thirty times as much stalls them wherever others use the cores."""
_DTYPES = {"float32": "f32", "bfloat16": "bf16", "f32": "f32", "bf16": "bf16"}


def learning(config: Config) -> Engine:
    """The engine of a training run that this process drives."""
    if config.engine.name == "openai":
        raise SpecError(
            "engine.name=openai: the weights are the server's and cannot be trained from here; train with torch or "
            "trl, and use openai with `harena azr eval`"
        )
    if config.engine.name == "trl":
        raise SpecError("engine.name=trl: TRL drives its own loop; see trl_engine.train, or `harena azr train`")
    return cast("Engine", _torch(config.engine, value_head=config.advantage.algorithm is Algorithm.PPO))


def generating(engine: EngineConfig) -> Generator:
    """An engine to ask only."""
    if engine.name == "openai":
        from harena.azr.engines import openai_engine

        known = {"url", "chat", "concurrency", "retries", "timeout_s", "logprobs", "token_ids"}
        options = _options(engine, known)
        if "url" not in options:
            raise SpecError("engine.name=openai: give the server's address, --server http://127.0.0.1:8000/v1")
        return openai_engine.OpenAIEngine(openai_engine.ServerSettings(model=engine.model, **options))
    return _torch(engine, value_head=False)


def _torch(engine: EngineConfig, *, value_head: bool) -> Any:
    if engine.name != "torch":
        raise SpecError(f"engine.name={engine.name!r}: one of {', '.join(NAMES)}")
    if engine.dtype != "auto" and engine.dtype not in _DTYPES:
        raise SpecError(f"engine.dtype={engine.dtype!r}: auto, float32 or bfloat16")
    wait_briefly()
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


def wait_briefly() -> None:
    """Torch's threads wait for each other by spinning for milliseconds. With boxes, or anything else, on the same cores
    that makes a step many times slower. Read when torch is loaded; what a person has set counts."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def _options(engine: EngineConfig, known: set[str]) -> dict[str, Any]:
    unknown = sorted(set(engine.options) - known)
    if unknown:
        raise SpecError(f"engine.options.{unknown[0]}: the {engine.name} engine knows {', '.join(sorted(known))}")
    return dict(engine.options)
