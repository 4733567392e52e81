"""Learning with and without the tree of prefixes, on the same rollouts: tokens computed, seconds, gradients.

    python benchmarks/azr_tree.py [--tasks 16] [--solves 8] [--shots 4] [--width 256] [--device cpu]

The rollouts are tasks of our generator in the compact form. Half of the answers to a task are equal, as a model's are.
Both ways get the same rollouts, one after the other: the median of --repeat updates. On a busy machine look at the
processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from random import Random
from typing import Any

import torch

from harena.azr.engines.protocol import Completion, Rollout, Update
from harena.azr.learn.learner import LearnSettings, PolicyLearner
from harena.azr.model import weights
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.model.tokenizer import ByteTokenizer
from harena.azr.tasks import prompts, suite
from harena.azr.tasks.kinds import Role


def rollouts(codec: ByteTokenizer, *, tasks: int, solves: int, shots: int) -> list[Rollout]:
    rng = Random(0)
    form = prompts.PromptProfile(name="compact", ends=prompts.COMPACT.ends, inputs=6, shots=shots)
    items = suite.thinned(suite.tiny(), 3 * tasks, by=lambda item: item.kind)
    found: list[Rollout] = []
    for item in items:
        prompt = tuple(codec.encode(prompts.render_solve(item.kind, item.task, profile=form)))
        gold = codec.encode(prompts.completion_for_solve(item.kind, item.task))
        for _ in range(solves):
            ids = gold if rng.random() < 0.5 else [*gold[:-1], rng.randrange(codec.vocab), gold[-1]]
            done = Completion(prompt_ids=prompt, ids=tuple(ids), logprobs=(-1.0,) * len(ids), text="", finished=True)
            found.append(
                Rollout(completion=done, role=Role.SOLVE, kind=item.kind, reward=0.0, advantage=rng.gauss(0, 1))
            )
    return found


def measured(
    model: DecoderModel, given: list[Rollout], mini_batch: int, repeat: int, **settings: Any
) -> dict[str, Any]:
    learner = PolicyLearner(model, LearnSettings(**settings), pad=0)
    update = Update(learning_rate=0.0, mini_batch=mini_batch)
    seconds: list[float] = []
    cpu: list[float] = []
    numbers: dict[str, float] = {}
    for _ in range(repeat):
        started, used = time.perf_counter(), time.process_time()
        numbers = learner.step(given, update)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return {
        "seconds": round(statistics.median(seconds), 3),
        "cpu_seconds": round(statistics.median(cpu), 3),
        "tokens": int(numbers["tokens"]),
        "tokens_computed": int(numbers["tokens_computed"]),
        "grad_norm": numbers["grad_norm"],
    }


def main() -> None:
    top = argparse.ArgumentParser()
    top.add_argument("--tasks", type=int, default=16, help="of each kind")
    top.add_argument("--solves", type=int, default=8)
    top.add_argument("--shots", type=int, default=4)
    top.add_argument("--mini-batch", type=int, default=512)
    top.add_argument("--repeat", type=int, default=3)
    top.add_argument("--device", default="cpu")
    top.add_argument("--width", type=int, default=0, help="of random weights; 0: the model that comes with Harena")
    top.add_argument("--threads", type=int, default=0, help="of torch (all cores)")
    args = top.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    codec = ByteTokenizer()
    if args.width:
        shape = ModelConfig(
            vocab=codec.vocab, width=args.width, layers=6, heads=args.width // 64, kv_heads=max(1, args.width // 256),
            head_dim=64, feed=args.width * 4,
        )  # fmt: skip
        model = DecoderModel(shape).start(0).to(args.device)
    else:
        model, _ = weights.load("default", device=args.device)
    given = rollouts(codec, tasks=args.tasks, solves=args.solves, shots=args.shots)
    report = {
        name: measured(model, given, args.mini_batch, args.repeat, **settings)
        for name, settings in (
            ("plain", {"share_prompts": False}),
            ("tree", {"share_prompts": True}),
            ("tree, prompts kept together", {"share_prompts": True, "keep_prompts": True}),
        )
    }
    print(json.dumps({"rows": len(given), "threads": torch.get_num_threads(), **report}, indent=1))


if __name__ == "__main__":
    main()
