"""The processes of a run on TRL, as test_trl_processes.py starts them: `trl_worker.py OUT`; and the tiny model that
tests of the TRL engine share. They are forks of one process that has imported TRL: the import takes longer than the run.

What a process saw goes to OUT/seen-RANK.json, and its weights to OUT/weights-RANK.pt.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harena.azr import config as configs
from harena.azr.config import TrainConfig
from harena.azr.engines import trl_engine, trl_writer
from harena.azr.loop import Trainer

SETTINGS: dict[str, Any] = {
    "iterations": 2,
    "batch": 4,
    "rollouts": 2,
    "seed_factor": 1,
    "seed_rounds": 1,
    "evaluate_every": 1,
    "prompt": {"propose_tokens": 10, "solve_tokens": 6},
    "update": {"mini_batch": 12, "learning_rate": 1e-3},
    "engine": {"name": "trl", "model": "random", "device": "cpu", "options": {"micro_batch": 6, "rows": 16}},
}


def settings(**changes: Any) -> TrainConfig:
    return configs.from_dict(SETTINGS | changes, configs.PROFILES["laptop"])


def tokenizer() -> Any:
    import tokenizers
    import transformers

    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocab = {"<pad>": 0, "<end>": 1} | {letter: 2 + number for number, letter in enumerate(sorted(letters))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def model() -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = transformers.Qwen2Config(
        vocab_size=258,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=1,
        pad_token_id=0,
    )
    return transformers.Qwen2ForCausalLM(shape)


def uneven(number: int) -> list[float]:
    """Rewards of an iteration whose groups have very different scales: there is something to normalise."""
    rng = np.random.default_rng(number)
    return [float(10.0**group * rng.normal()) for group in range(6) for _ in range(4)]


def given(number: int, config: TrainConfig) -> dict[str, list[Any]]:
    """Rows that do not depend on what was sampled, so that any number of processes learns from the same."""
    rng = np.random.default_rng(100 + number)
    rows = [f"{role} {kind}" for role, kind in trl_engine.groups(config) for _ in range(config.batch)]
    sizes = [int(size) for size in rng.integers(1, 7, len(rows))]
    return {
        "row": rows,
        "prompt_ids": [rng.integers(2, 258, 5).tolist() for _ in rows],
        "completion_ids": [rng.integers(2, 258, size).tolist() for size in sizes],
        "logprobs": [[-5.5] * size for size in sizes],
        "azr_reward": uneven(number),
    }


def learn(model: Any, tokenizer: Any, out: Path, **options: Any) -> dict[str, Any]:
    """A run with rows of ours; what TRL made of them in this process."""
    import trl

    seen: dict[str, Any] = {"advantages": [], "wrote": []}
    original = trl.GRPOTrainer._generate_and_score_completions
    write = trl_writer.Transformers.write

    def spied(self: Any, inputs: Any) -> Any:
        scored = original(self, inputs)
        seen["advantages"].append(list(self._logs["advantages"])[-24:])
        return scored

    def counted(self: Any, prompts: Any, *rest: Any, **named: Any) -> Any:
        seen["wrote"].append(len(prompts))
        return write(self, prompts, *rest, **named)

    numbers = iter(range(100))
    trl.GRPOTrainer._generate_and_score_completions = spied
    trl_writer.Transformers.write = counted
    columns = trl_engine.columns
    trl_engine.columns = lambda rollouts, config: columns(rollouts, config) and given(next(numbers), config)
    try:
        # TRL's entropy bonus is a mean over each small batch, and those differ with the number of processes.
        config = settings(update={"mini_batch": 24, "learning_rate": 1e-3, "entropy": 0.0}, evaluate_tasks=1)
        outcome = trl_engine.train(out / "run", config, model=model, tokenizer=tokenizer, **options)
    finally:
        trl.GRPOTrainer._generate_and_score_completions = original
        trl_writer.Transformers.write = write
        trl_engine.columns = columns
    return seen | {"iterations": outcome and outcome.iterations}


def failure_of(train: Callable[[], object]) -> str:
    try:
        train()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def failures(out: Path) -> dict[str, str]:
    """How a run ends for this process when another cannot write any more, and when the loop of the first breaks."""
    write, reward = trl_writer.Transformers.write, Trainer._reward
    calls = iter(range(1_000))

    def full(self: Any, *rest: Any, **named: Any) -> Any:
        if os.environ["RANK"] == "1" and next(calls):
            raise MemoryError("no room left to write")
        return write(self, *rest, **named)

    def broken(self: Any, *rest: Any) -> None:
        raise OSError("the boxes are gone")

    def train(name: str) -> None:
        trl_engine.train(out / name, settings(evaluate_tasks=0), model=model(), tokenizer=tokenizer())

    trl_writer.Transformers.write = full
    second = failure_of(lambda: train("second"))
    trl_writer.Transformers.write, Trainer._reward = write, broken
    first = failure_of(lambda: train("first"))
    Trainer._reward = reward
    return {"second": second, "first": first, "taken": failure_of(lambda: train("run"))}


def main(out: Path) -> int:
    import torch

    own, rank = model(), os.environ["RANK"]
    seen = learn(own, tokenizer(), out)
    torch.save(own.state_dict(), out / f"weights-{rank}.pt")
    (out / f"seen-{rank}.json").write_text(json.dumps(seen | {"failures": failures(out)}))
    return 0


def fork_ranks(out: Path, ranks: int) -> int:
    """Return 0 when every rank ended well."""
    import transformers
    import trl

    _ = trl.GRPOTrainer, trl.GRPOConfig, transformers.Qwen2ForCausalLM, transformers.PreTrainedTokenizerFast
    children: list[int] = []
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        code = 1
        try:
            code = main(out)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return 0 if [os.waitpid(child, 0)[1] for child in children] == [0] * ranks else 1


if __name__ == "__main__":
    sys.exit(fork_ranks(Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])))
