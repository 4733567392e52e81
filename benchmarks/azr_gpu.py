"""How fast the torch engine decodes and learns on one GPU, next to transformers' generate in the same run.

    python benchmarks/azr_gpu.py --out OUT --minutes 9             random weights in the shape of Qwen2.5-1.5B
    python benchmarks/azr_gpu.py --out OUT --minutes 4 --only real --init qwen2.5-coder-1.5b.gguf
    python benchmarks/azr_gpu.py --shape tiny --device cpu --minutes 1

Parts: check (do the fast paths agree with the plain one?), decode (prompt 512, 128 new tokens, batch 256), transformers
(the same through its generate, plain and with a static cache, compiled), learn (tokens a second), step (6 × 64 samples,
8 measuring solves, every answer 1,024 tokens: random weights never stop; no boxes in it), real (with --init: whole
iterations of the loop with that model, the paper's prompts, boxes and learning, answers of up to 1,024 tokens). Each
part is skipped when too few of the minutes are left; what was measured is written after every part.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab": 512, "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "feed": 128},
    "smollm2-135m": {
        "vocab": 49_152,
        "width": 576,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "feed": 1_536,
        "qkv_bias": False,
        "rope_theta": 100_000.0,
    },
    "qwen2.5-1.5b": {
        "vocab": 151_936,
        "width": 1_536,
        "layers": 28,
        "heads": 12,
        "kv_heads": 2,
        "head_dim": 128,
        "feed": 8_960,
        "rope_theta": 1_000_000.0,
    },
}


GOALS = {"decode": (20_000, 60_000), "full step": (90, 30)}
"""Must and aim by how a row's name starts: tokens a second, and seconds."""


class Numbers:
    """A tokenizer for random weights: a token is a number. The end token is one of many, and seldom comes up."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.pad = 0
        self.eos: tuple[int, ...] = (0,)

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def chat(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Any) -> str:
        return " ".join(map(str, ids))

    def pieces(self) -> list[str]:
        return [f"{number} " for number in range(self.vocab)]


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from harena.azr.model.decoder import DecoderModel, ModelConfig

        self.args = args
        self.torch = torch
        self.device = torch.device(
            args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        )
        self.is_cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.is_cuda else torch.float32
        self.deadline = time.perf_counter() + args.minutes * 60
        self.rows: list[dict[str, Any]] = []
        self.out = Path(args.out) if args.out else None
        config = ModelConfig(**SHAPES[args.shape])
        with torch.device(self.device):
            torch.manual_seed(0)
            self.model = DecoderModel(config).to(self.dtype)
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.03)
        self.codec = Numbers(config.vocab)
        self.config = config

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def sync(self) -> None:
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def note(self, name: str, value: float, unit: str, **more: Any) -> None:
        row = {"what": name, "value": value, "unit": unit, **more}
        for start, (must, aim) in GOALS.items() if self.is_cuda and self.args.shape == "qwen2.5-1.5b" else ():
            if name.startswith(start) and unit:
                row |= {"must": must, "aim": aim}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "azr_gpu.json").write_text(json.dumps({"machine": self.machine(), "rows": self.rows}, indent=1))

    def machine(self) -> dict[str, Any]:
        torch = self.torch
        name = torch.cuda.get_device_name() if self.is_cuda else "CPU"
        return {"device": name, "torch": torch.__version__, "shape": self.args.shape, "command": " ".join(sys.argv)}

    def part(self, name: str, need_s: float, work: Callable[[], None]) -> None:
        """One part; a failure is printed and does not end the others."""
        if self.args.only and name not in self.args.only.split(","):
            return
        if self.left() < need_s:
            print(f"skipped {name}: {self.left():.0f} s left, {need_s:.0f} wanted", flush=True)
            return
        started = time.perf_counter()
        if self.is_cuda:
            self.torch.cuda.reset_peak_memory_stats()
        try:
            work()
        except Exception:
            traceback.print_exc()
            self.note(f"{name} failed", 1.0, "")
        if self.is_cuda:
            self.torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)

    # ---- parts ----

    def ceilings(self) -> None:
        """A large copy and a large product: what the device gives at all."""
        torch = self.torch
        size = 1 << 30 if self.is_cuda else 1 << 24
        a = torch.randn(size, device=self.device, dtype=self.dtype)
        b = torch.empty_like(a)
        seconds = self.timed(lambda: b.copy_(a), 10)
        self.note("copy", 2 * a.numel() * a.element_size() / seconds / 1e12, "TB/s")
        side = 8_192 if self.is_cuda else 512
        m = torch.randn(side, side, device=self.device, dtype=self.dtype)
        seconds = self.timed(lambda: m @ m, 10)
        self.note("product", 2 * side**3 / seconds / 1e12, "TFLOP/s")

    def timed(self, work: Callable[[], Any], times: int) -> float:
        """Median seconds of one call, after two that do not count."""
        for _ in range(2):
            work()
        found: list[float] = []
        for _ in range(times):
            self.sync()
            started = time.perf_counter()
            work()
            self.sync()
            found.append(time.perf_counter() - started)
        return sorted(found)[len(found) // 2]

    def check(self) -> None:
        """Greedy tokens of the fast paths against those of the plain one, and log probabilities against a full pass."""
        torch = self.torch
        from harena.azr.engines.protocol import CompletionRequest, Sampling
        from harena.azr.learn.learner import token_stats
        from harena.azr.model import flash

        if self.is_cuda and flash.triton is not None:
            off = flash.disagreement(self.config, self.device, self.dtype)
            self.note("attention kernel, relative error", off, "")
        prompts = [" ".join(str(1 + (7 * n + k) % (self.config.vocab - 1)) for k in range(20 + n)) for n in range(40)]
        requests = [CompletionRequest(prompt=prompt, n=1, max_new=24) for prompt in prompts]
        variants = {"plain": {"graphs": False, "kernel": False, "fuse": False}}
        if self.is_cuda:
            variants |= {
                "graph": {"graphs": True, "kernel": False, "fuse": False},
                "graph+kernel": {"kernel": True, "fuse": False},
            }
        first: list[Any] = []
        for name, options in variants.items():
            engine = self.engine(rows=32, **options)
            done = [one[0] for one in engine.generate(requests, Sampling(seed=1, temperature=1.0))]
            ids = [torch.tensor([*one.prompt_ids, *one.ids], device=self.device) for one in done]
            worst = 0.0
            with torch.no_grad():
                for one, row in zip(done, ids, strict=True):
                    hidden = self.model.hidden(row[None])[0, len(one.prompt_ids) - 1 : -1]
                    logp, _ = token_stats(self.model, hidden, row[len(one.prompt_ids) :], 1.0)
                    old = torch.tensor(one.logprobs, device=self.device)
                    worst = max(worst, float((logp - old).abs().mean()))
            greedy = [one[0].ids for one in engine.generate(requests, Sampling(seed=1, greedy=True))]
            first = first or greedy
            same = sum(a == b for x, y in zip(first, greedy, strict=True) for a, b in zip(x, y, strict=False))
            total = sum(len(x) for x in first)
            self.note(f"check {name}: log probability off by", worst, "nats, mean of the worst sample")
            self.note(f"check {name}: greedy tokens as plain", same / total, "share")

    def engine(self, **options: Any) -> Any:
        from harena.azr.engines.torch_engine import TorchEngine
        from harena.azr.learn.learner import LearnSettings
        from harena.azr.model.decode import DecodeSettings

        micro = options.pop("micro_tokens", 0)
        save = options.pop("save_memory", None)
        return TorchEngine(
            self.model,
            self.codec,
            decode=DecodeSettings(**{"graphs": not self.args.no_graph, **options}),
            learn=LearnSettings(micro_tokens=micro, save_memory=save),
        )

    def decode(self) -> None:
        """The anchor's form: every sequence has 512 prompt tokens and 128 new ones."""
        rows, prompt, new = self.args.batch, self.args.prompt, self.args.new
        configurations: list[tuple[str, dict[str, Any]]] = [
            ("graph + kernel", {}),
            ("graph + kernel + fused", {"fuse": True}),
            ("graph, plain attention", {"kernel": False}),
            ("no graph", {"graphs": False}),
        ]
        for name, options in configurations if self.is_cuda else configurations[-1:]:
            if self.left() < 40:
                return
            try:
                self.decode_with(name, options, rows, prompt, new)
            except Exception:  # one way that does not work must not hide the others
                traceback.print_exc()
                self.note(f"decode, {name} failed", 1.0, "")
            if self.is_cuda:
                self.torch.cuda.empty_cache()

    def decode_with(self, name: str, options: dict[str, Any], rows: int, prompt: int, new: int) -> None:
        engine = self.engine(rows=rows, check_every=16, max_places=_up(prompt + new + 16, 128), **options)
        self.generate_timed(engine, self.requests(rows, prompt, new), f"decode, {name}, batch {rows}")
        if name.startswith("graph"):
            self.one_step(engine, name, rows, prompt + new)

    def one_step(self, engine: Any, name: str, rows: int, places: int) -> None:
        """Replays of one recorded step at full depth, without the host's part."""
        from harena.azr.model.decode import Sampler

        sampler = Sampler(temperature=1.0, top_p=1.0, greedy=False)
        state = engine.decoder.state
        state.at.fill_(places - 1)
        state.live.zero_()
        look_at = engine.decoder.places_for(places)
        seconds = self.timed(lambda: engine.decoder.step(rows, look_at, sampler), 50)
        self.note(f"one step, {name}, batch {rows}, context {places}", seconds * 1e3, "ms", tokens_s=rows / seconds)

    def requests(self, rows: int, prompt: int, new: int, n: int = 1) -> list[Any]:
        from harena.azr.engines.protocol import CompletionRequest

        torch = self.torch
        ids = torch.randint(1, self.config.vocab, (rows, prompt), generator=torch.Generator().manual_seed(0)).tolist()
        return [CompletionRequest(prompt=" ".join(map(str, row)), n=n, max_new=new) for row in ids]

    def generate_timed(self, engine: Any, requests: list[Any], name: str, **more: Any) -> None:
        from harena.azr.engines.protocol import Sampling

        engine.generate(requests, Sampling(seed=1))
        self.sync()
        started = time.perf_counter()
        done = engine.generate(requests, Sampling(seed=2))
        self.sync()
        seconds = time.perf_counter() - started
        tokens = sum(len(one.ids) for group in done for one in group)
        self.note(name, tokens / seconds, "tok/s", seconds=seconds, tokens=tokens, **more)
        every = engine.decoder.settings.check_every
        if requests[0].max_new < 4 * every:
            return
        # The same with as few steps as there are between two looks: the difference is decoding and nothing else.
        short = [dataclasses.replace(one, max_new=every) for one in requests]
        engine.generate(short, Sampling(seed=3))
        self.sync()
        started = time.perf_counter()
        fewer = sum(len(one.ids) for group in engine.generate(short, Sampling(seed=3)) for one in group)
        self.sync()
        rest = seconds - (time.perf_counter() - started)
        self.note(f"{name}, prompts not counted", (tokens - fewer) / rest, "tok/s", seconds=rest, tokens=tokens - fewer)

    def transformers_generate(self) -> None:
        """The anchor itself, same shape and batch, sampling."""
        torch = self.torch
        import transformers

        c = self.config
        settings = transformers.Qwen2Config(
            vocab_size=c.vocab,
            hidden_size=c.width,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            intermediate_size=c.feed,
            tie_word_embeddings=True,
            max_position_embeddings=4_096,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        with torch.device(self.device):
            made: Any = transformers.Qwen2ForCausalLM(settings)
            theirs = made.to(self.dtype).eval()
        self.theirs(theirs, "plain", {}, warm_new=8)
        if self.is_cuda and self.left() < 120:
            print(f"skipped their static cache: {self.left():.0f} s left, 120 wanted to compile it", flush=True)
            return
        static = {"cache_implementation": "static"} | ({} if self.is_cuda else {"disable_compile": True})
        # The static cache is made for the whole length, and compiled for it.
        self.theirs(theirs, "static cache" + ", compiled" * self.is_cuda, static, warm_new=self.args.new)

    def theirs(self, model: Any, name: str, options: dict[str, Any], *, warm_new: int) -> None:
        torch = self.torch
        rows, prompt, new = self.args.batch, self.args.prompt, self.args.new
        ids = torch.randint(1, self.config.vocab, (rows, prompt), device=self.device)
        mask = torch.ones_like(ids)
        more = {"do_sample": True, "top_k": 0, "pad_token_id": 0, **options}

        def generate(count: int) -> float:
            self.sync()
            started = time.perf_counter()
            with torch.no_grad():
                made = model.generate(ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, **more)
            self.sync()
            assert made.shape[1] == prompt + count, made.shape
            return time.perf_counter() - started

        generate(warm_new)
        seconds = generate(new)
        self.note(f"transformers generate, {name}, batch {rows}", rows * new / seconds, "tok/s", seconds=seconds)

    def learn(self) -> None:
        sequences, length = (64, 1_024) if self.is_cuda else (4, 64)
        choices = [(32_768, True), (16_384, False), (65_536, True)] if self.is_cuda else [(256, True)]
        for micro, save in choices:
            if self.left() < 40:
                return
            try:
                engine = self.engine(rows=8, micro_tokens=micro, save_memory=save)
                completions = self.random_completions(sequences, length)
                self.update_timed(engine, completions[: max(2, sequences // 4)], sequences)
                seconds = self.update_timed(engine, completions, sequences)
                name = f"learn, micro-batch {micro} tokens, {'recomputed' if save else 'kept'} activations"
                self.note(name, sequences * length / seconds, "tok/s", seconds=seconds)
            except self.torch.OutOfMemoryError:
                self.note(f"learn, micro-batch {micro} tokens: out of memory", 0.0, "tok/s")
            engine = None
            self.forget()

    def forget(self) -> None:
        """The learner's hooks hold its masters: take them off the shared weights."""
        for parameter in self.model.parameters():
            parameter.grad = None
            parameter._post_accumulate_grad_hooks = None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        if self.is_cuda:
            self.torch.cuda.empty_cache()

    def random_completions(self, count: int, length: int) -> list[Any]:
        from harena.azr.engines.protocol import Completion

        ids = self.torch.randint(1, self.config.vocab, (count, length)).tolist()
        half = length // 2
        return [
            Completion(
                prompt_ids=tuple(row[:half]),
                ids=tuple(row[half:]),
                logprobs=(-11.0,) * (length - half),
                text="",
                finished=True,
            )
            for row in ids
        ]

    def update_timed(self, engine: Any, completions: list[Any], mini_batch: int) -> float:
        from harena.azr.engines.protocol import Rollout, Update
        from harena.azr.tasks.kinds import Role, TaskKind

        learnt = [
            Rollout(
                completion=one, role=Role.SOLVE, kind=TaskKind.DEDUCTION, reward=1.0, advantage=1.0 if k % 2 else -1.0
            )
            for k, one in enumerate(completions)
        ]
        started = time.perf_counter()
        engine.step(learnt, Update(learning_rate=1e-8, mini_batch=mini_batch))
        self.sync()
        return time.perf_counter() - started

    def step(self) -> None:
        """One iteration's model work: propose 3 × 64, solve 3 × 64 × (8 + 1), learn from 6 × 64; no text ends early."""
        from harena.azr.engines.protocol import Sampling

        batch, n, longest, prompt = (64, 8, 1_024, 512) if self.is_cuda else (2, 1, 8, 8)
        engine = self.engine(
            rows=self.args.rows, check_every=16, max_places=_up(prompt + longest + 16, 128), fuse=self.args.fuse
        )
        propose = self.requests(3 * batch, prompt, longest)
        solve = self.requests(3 * batch, prompt, longest, n=1 + n)
        # Graphs are recorded, and kernels compiled, once in a run of any length.
        engine.generate([dataclasses.replace(one, max_new=32) for one in solve], Sampling(seed=3))
        self.sync()
        started = time.perf_counter()
        proposed = engine.generate(propose, Sampling(seed=1))
        self.sync()
        after_propose = time.perf_counter()
        tokens = sum(len(one.ids) for group in proposed for one in group)
        expected = (1 + n) * (after_propose - started) * 1.2
        if self.left() < expected:
            print(f"skipped the rest of the step: {self.left():.0f} s left, {expected:.0f} wanted", flush=True)
            return
        solved = engine.generate(solve, Sampling(seed=2))
        self.sync()
        after_solve = time.perf_counter()
        tokens += sum(len(one.ids) for group in solved for one in group)
        learn_s = self.update_timed(engine, [group[0] for group in (*proposed, *solved)], 128 if self.is_cuda else 4)
        ended = time.perf_counter()
        self.note(
            f"full step, 6 x {batch}, n={n}, every answer {longest} tokens",
            ended - started,
            "s",
            propose_s=after_propose - started,
            solve_s=after_solve - after_propose,
            learn_s=learn_s,
            new_tokens=tokens,
            rows=self.args.rows,
            graphs=engine.decoder.graphs_recorded,
            decode_tok_s=tokens / (after_solve - started),
            memory_gb=self.peak_gb(),
        )
        del engine
        self.forget()

    def peak_gb(self) -> float:
        return self.torch.cuda.max_memory_allocated() / 1e9 if self.is_cuda else 0.0

    def real(self) -> None:
        """Whole iterations of the loop: proposing, boxes, solving, learning, measuring."""
        from azr_train import build

        from harena.azr import config as settings
        from harena.azr.check.verify import TaskVerifier
        from harena.azr.engines import torch_engine
        from harena.azr.loop import Trainer

        build()
        small = {} if self.is_cuda else {"batch": 2, "rollouts": 1, "prompt": {"solve_tokens": 8, "propose_tokens": 8}}
        config = settings.read(profile="gpu1", **small)
        # Six references can be long: the cache may have to grow to prompts of 8,192 tokens, and has to fit then.
        options = {"rows": min(256, self.args.rows), "fuse": self.args.fuse, "check_every": 16}
        if self.is_cuda:
            options |= {"max_places": 4_096}
        started = time.perf_counter()
        dtype = "bf16" if self.is_cuda else "f32"
        engine = torch_engine.build(model=self.args.init, device=self.device.type, dtype=dtype, options=options)
        self.note("loading the model", time.perf_counter() - started, "s")
        longest = 0.0
        with TaskVerifier(settings=config.executor.settings()) as verifier:
            trainer = Trainer(engine, verifier, config)
            for number in range(1, self.args.steps + 1):
                if self.left() < max(longest * 1.3, 30.0 if self.is_cuda else 1.0):
                    print(f"{number - 1} steps: {self.left():.0f} s left", flush=True)
                    break
                before = engine.totals["new_tokens"]
                found = trainer.iterate()
                longest = max(longest, found.metrics["time"]["total"])
                self.note(
                    f"full step, real model, iteration {number}, 6 x {config.batch}, n={config.rollouts}, answers of "
                    f"up to {config.prompt.solve_tokens} tokens",
                    found.metrics["time"]["total"],
                    "s",
                    time=found.metrics["time"],
                    rollouts=len(found.proposed) + len(found.solved),
                    new_tokens=engine.totals["new_tokens"] - before,
                    **{f"valid_{kind}": one.get("valid", 0.0) for kind, one in found.metrics["propose"].items()},
                    **{f"right_{kind}": one.get("right", 0.0) for kind, one in found.metrics["solve"].items()},
                    **{f"length_{kind}": one.get("length", 0.0) for kind, one in found.metrics["propose"].items()},
                    memory_gb=self.peak_gb(),
                )

    def table(self) -> str:
        lines = ["| what | value | unit | must | aim |", "|---|---|---|---|---|"]
        for row in self.rows:
            goals = f"{row['must']:,} | {row['aim']:,}" if "must" in row else " | "
            lines.append(f"| {row['what']} | {row['value']:,.4g} | {row['unit']} | {goals} |")
        return "\n".join(lines)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode and learning speed of the torch engine.")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen2.5-1.5b")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rows", type=int, default=864, help="sequences decoded side by side in a step")
    parser.add_argument("--init", help="a model for the part `real`: a GGUF file or a transformers folder")
    parser.add_argument("--steps", type=int, default=4, help="iterations of the part `real`, at most")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", help="folder for azr_gpu.json and table.txt")
    parser.add_argument("--only", help="parts, comma-separated: ceilings,check,decode,transformers,learn,step,real")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--fuse", action="store_true", help="compile small kernels in the full step, too")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    bench = Bench(args)
    bench.part("ceilings", 10, bench.ceilings)
    bench.part("check", 20, bench.check)
    bench.part("decode", 40, bench.decode)
    bench.part("transformers", 40, bench.transformers_generate)
    bench.part("learn", 30, bench.learn)
    bench.part("step", 110 if bench.is_cuda else 5, bench.step)
    if args.init:
        bench.part("real", 60 if bench.is_cuda else 5, bench.real)
    print(bench.table())
    if bench.out:
        (bench.out / "azr_gpu.md").write_text(bench.table() + "\n")


if __name__ == "__main__":
    main()
