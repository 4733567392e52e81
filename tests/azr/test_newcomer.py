"""What a newcomer meets: how long it takes, whether it fits into memory, what was measured already, which key was wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harena.azr import config, original, run
from harena.azr.engines import registry
from harena.azr.engines.protocol import Completion, CompletionRequest, OnDone, Sampling
from harena.azr.report import evaluate, progress
from harena.azr.report.scores import Score
from harena.errors import SpecError
from support.scripted import ScriptedEngine

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "azr.md").read_text()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# ---- how long it takes ----


def test_the_time_that_is_left_follows_the_mean_of_what_was_done() -> None:
    clock = Clock()
    pace = progress.Pace(clock)
    clock.now = 6.0
    assert pace.left(10) == "60 s"
    clock.now = 18.0
    assert pace.left(100) == "15 min"
    assert pace.left(0) == ""
    assert progress.in_words(7200) == "2.0 h"


def test_every_iteration_but_the_last_says_how_long_the_rest_takes(tmp_path: Path) -> None:
    said: list[str] = []
    run.train(tmp_path / "run", settings(iterations=2), lambda _: ScriptedEngine(), say=said.append)
    first, second = (line for line in said if line.startswith("iteration"))
    assert " left" in first
    assert " left" not in second


def test_in_a_pipe_progress_is_a_line_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    show = progress.counter(stream, clock=clock)
    for done in range(1, 101):
        clock.now = done / 4
        show(done, 100)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "answered 1/100, about 25 s left"
    assert lines[-1] == "answered 100/100"
    assert len(lines) == 4  # at 0.25, 10.25, 20.25 and 25 s


def test_on_a_terminal_progress_is_one_line_that_goes_away() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    show = progress.counter(stream)
    show(1, 2)
    show(2, 2)
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\033[K")


# ---- measured once ----


class MeasuredEngine(ScriptedEngine):
    """Counts the questions of the held-out suite."""

    def __init__(self) -> None:
        super().__init__()
        self.measured = 0

    def generate(
        self, requests: list[CompletionRequest], sampling: Sampling, on_done: OnDone | None = None
    ) -> list[list[Completion]]:
        if not sampling.greedy:
            return super().generate(requests, sampling, on_done)
        self.measured += 1
        empty = Completion(prompt_ids=(1,), ids=(1,), logprobs=(0.0,), text="0", finished=True)
        return [[empty] for _ in requests]


def settings(**changes: Any) -> config.TrainConfig:
    small = {"batch": 4, "rollouts": 2, "seed_factor": 1, "seed_rounds": 1, "checkpoint_every": 1, "evaluate_tasks": 0}
    return config.read(None, **{"iterations": 1, "evaluate_every": 0, **small, **changes})


@pytest.mark.thorough
def test_a_resumed_run_measures_nothing_twice_and_tells_the_first_accuracy(tmp_path: Path) -> None:
    first, second, third = MeasuredEngine(), MeasuredEngine(), MeasuredEngine()
    begun = run.train(tmp_path / "run", settings(evaluate_tasks=1), lambda _: first)
    assert first.measured == 2
    assert begun.continued_after == 0
    more = settings(evaluate_tasks=1, iterations=3)
    done = run.train(tmp_path / "run", more, lambda _: second, resume=True)
    assert second.measured == 1  # at the end alone
    assert (done.continued_after, done.iterations) == (1, 3)
    assert done.before is not None
    assert begun.before is not None
    assert done.before.scores == begun.before.scores
    run.train(tmp_path / "run", more, lambda _: third, resume=True)
    assert third.measured == 0


@pytest.mark.parametrize("damage", [{"suites": 3}, {"suites": {}}, {"right": None}, {"seconds": "x"}])
def test_a_record_that_is_not_as_it_should_be_is_measured_again(damage: dict[str, Any]) -> None:
    score = Score(value=0.5, low=0.1, high=0.9, n=4).as_json()
    record = {"suites": {"tiny": {"all": score}}, "right": ["a"], "seconds": 1.0}
    assert evaluate.from_record(record) is not None
    assert evaluate.from_record({**record, **damage}) is None


# ---- whether it fits ----


def test_a_run_that_cannot_fit_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from harena.azr.engines import torch_driver
    from harena.azr.model import memory

    monkeypatch.setattr(memory, "available", lambda device: 20 << 30)
    folder = tmp_path / "coder"
    folder.mkdir()
    shape = {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1_536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8_960,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    brief = config.read(None, profile="brief", engine={"model": str(folder), "device": "cpu", "dtype": "float32"})
    with pytest.raises(SpecError, match=r"about 6\d\.\d GiB .*weights 5\.8.*reference 5\.8.* 20\.0 GiB are free"):
        torch_driver.engine_of(brief)
    allowed = config.from_dict({"engine": {"options": {"check_memory": False}}}, brief)
    with pytest.raises(SpecError, match="safetensors"):  # it goes on to the weights, which are not there
        torch_driver.engine_of(allowed)
    with pytest.raises(SpecError, match=r"engine\.options\.check_memory"):
        torch_driver.engine_of(config.from_dict({"engine": {"options": {"check_memory": 3}}}, brief))


def test_the_model_that_comes_with_harena_fits_anywhere() -> None:
    pytest.importorskip("torch")
    from harena.azr.engines import torch_driver, torch_engine
    from harena.azr.model import memory, weights

    laptop = config.read(None, profile="laptop")
    torch_driver.check_memory(laptop.engine, torch_engine.EngineOptions.of({}), laptop)
    shape = weights.shape_of("default")
    assert shape is not None
    model, _ = weights.load("default")
    assert memory.parameter_count(shape) == model.parameter_count()


MEASURED = """
import sys, resource
import torch
from harena.azr.engines.protocol import Completion, Rollout, Update
from harena.azr.learn.learner import LOGIT_ELEMENTS, LearnSettings, PolicyLearner
from harena.azr.model import memory
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.tasks.kinds import Role, TaskKind
torch.set_num_threads(1)
shape = ModelConfig(vocab=8_000, width=768, layers=8, heads=12, kv_heads=4, head_dim=64, feed=2_048)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
base = peak()
model = DecoderModel(shape).start(0)
learner = PolicyLearner(model, LearnSettings(), pad=0)
done = Completion(prompt_ids=(1,) * 8, ids=(2,) * 24, logprobs=(-1.0,) * 24, text="", finished=True)
rows = [Rollout(completion=done, role=Role.SOLVE, kind=TaskKind.DEDUCTION, reward=1.0, advantage=1.0)] * 2
learner.step(rows, Update(mini_batch=2, kl=0.1))
kept = learner.state()
learning = memory.Learning(micro_tokens=64, saves_memory=False, max_logits=LOGIT_ELEMENTS, has_reference=True)
wanted = memory.need(shape, weight_bytes=4, decoding=memory.Decoding(rows=0, places=0), learning=learning)
print((peak() - base) / wanted.total)
"""


@pytest.mark.thorough
def test_the_estimate_is_near_what_a_process_takes() -> None:
    pytest.importorskip("torch")
    found = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    assert 0.65 < float(found.stdout) < 1.5


# ---- a model that read too little ----


@pytest.mark.thorough
def test_pretraining_says_how_much_it_will_read_and_training_warns_of_too_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from harena import cli
    from harena.azr.model import pretrain, weights

    out = str(tmp_path / "few.safetensors")
    assert cli.main(["azr", "pretrain", "--size", "tiny", "--steps", "11", "--out", out]) == 0
    said = capsys.readouterr().err
    assert "at this speed 0." in said
    assert "warning: 0." in said
    tokens = weights.tokens_read(out)
    assert tokens is not None
    assert 0 < tokens < pretrain.FEW_TOKENS
    few = tmp_path / "few.json"
    few.write_text(json.dumps({"batch": 2, "rollouts": 1, "seed_rounds": 0, "prompt": {"propose_tokens": 8}}))
    words = ["--model", out, "--config", str(few), "--iterations", "0", "--eval-tasks", "0"]
    assert cli.main(["azr", "train", "--out", str(tmp_path / "run"), *words]) == 0
    assert "0.2M tokens are few" in capsys.readouterr().err
    assert weights.tokens_read("default") is None
    assert pretrain.few(pretrain.FEW_TOKENS) == ""


# ---- keys ----


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": "many"}, "engine.options.rows='many': a whole number is wanted"),
        ({"rows": 0}, "engine.options.rows=0: at least 1"),
        ({"graphs": 1}, "engine.options.graphs=1: true or false is wanted"),
        ({"beta1": 1.0}, "engine.options.beta1=1.0: below 1"),
        ({"save_memory": "yes"}, "engine.options.save_memory='yes'"),
        ({"warmup_steps": -1}, "engine.options.warmup_steps=-1: at least 0"),
        ({"cats": 1}, "engine.options.cats"),
    ],
)
def test_an_engine_option_is_refused_by_its_full_name(given: dict[str, Any], said: str) -> None:
    pytest.importorskip("torch")
    from harena.azr.engines import torch_engine

    with pytest.raises(SpecError) as refused:
        torch_engine.EngineOptions.of(given)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", registry.ENGINES)
def test_the_guide_has_every_option_of_every_engine(name: str) -> None:
    for option in registry.ENGINES[name].options:
        assert f"| `{option}` |" in GUIDE


def test_the_guide_has_every_profile_with_its_hardware() -> None:
    table = GUIDE.partition("### Hardware and time")[2]
    for name in config.PROFILES:
        assert f"| `{name}` |" in GUIDE
        assert f"| `{name}` |" in table


# ---- keys of the original ----

ORIGINAL = {
    "model": {"name": "Qwen/Qwen2.5-Coder-3B", "max_prompt_length": 6144, "max_response_length": 8096},
    "training": {
        "rl_algorithm": "TRR++",
        "optimizer": "AdamW",
        "learning_rate": 1e-6,
        "batch_size": 32,
        "ppo_epochs": 1,
        "use_kl": False,
        "entropy_coeff": 0.001,
        "rollout_temp": 1.0,
        "rollout_top_p": 1.0,
        "k_references": 6,
        "n_samples": 8,
        "format_penalty": {"formatted_wrong": -0.5, "format_error": -1.0},
        "seed_batch_factor": 4,
        "max_buffer_size": 16384,
        "checkpoint_interval": 50,
    },
    "executor": {"use_mock": True, "timeout": 15, "memory_limit": "1g", "forbidden_modules": ["os", "io"]},
    "task_types": ["abduction", "deduction", "induction"],
}


def test_a_file_of_the_original_is_read_as_ours(tmp_path: Path) -> None:
    (tmp_path / "original.json").write_text(json.dumps(ORIGINAL))
    found = config.read(tmp_path / "original.json", profile="gpu1")
    assert found.engine.model == "Qwen/Qwen2.5-Coder-3B"
    assert found.engine.options == {"max_prompt": 6144}
    assert (found.prompt.propose_tokens, found.prompt.solve_tokens) == (8096, 8096)
    assert (found.batch, found.rollouts, found.seed_factor, found.checkpoint_every) == (32, 8, 4, 50)
    assert (found.executor.backend, found.executor.wall_s, found.executor.memory_mb) == ("local", 15.0, 1024)
    assert found.executor.forbidden == ("os", "io")
    assert [str(kind) for kind in found.kinds] == ["abduction", "deduction", "induction"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"executor": {"use_mock": 1}}, "executor.use_mock=1: true or false is wanted; ours is executor.backend"),
        ({"executor": {"cpu_limit": "1.0"}}, "executor.cpu_limit: .*executor.cpu_s"),
        ({"executor": {"memory_limit": "lots"}}, "executor.memory_limit='lots': a size"),
        ({"executor": {"timeout": 3, "wall_s": 4}}, "executor.timeout is executor.wall_s here"),
        ({"training": {"use_kl": True}}, "training.use_kl=True: .*update.kl"),
        ({"training": {"format_penalty": {"format_error": 0}}}, "training.format_penalty.format_error=0"),
        ({"training": {"rl_algorithm": "GRPO"}}, "training.rl_algorithm='GRPO'"),
        ({"training": {"cats": 1}}, "training.cats: no such setting"),
        ({"logging": {"use_wandb": True}}, "logging.use_wandb: use --wandb PROJECT"),
        ({"paths": {"buffer_dir": "/x"}}, "paths.buffer_dir: use --out DIR"),
    ],
)
def test_a_key_of_the_original_is_answered_with_ours(tmp_path: Path, data: dict[str, Any], said: str) -> None:
    (tmp_path / "original.json").write_text(json.dumps(data))
    with pytest.raises(SpecError, match=said):
        config.read(tmp_path / "original.json")


def test_the_originals_ppo_has_a_value_head_that_learns(tmp_path: Path) -> None:
    (tmp_path / "original.json").write_text(json.dumps({"training": {"rl_algorithm": "PPO"}}))
    assert config.read(tmp_path / "original.json").update.value == 0.5


def test_the_guide_maps_every_key_of_the_original() -> None:
    for key, mapped in original.MAPPED.items():
        row = next(line for line in GUIDE.splitlines() if line.startswith(f"| `{key}` |"))
        assert all(f"`{name}`" in row for name in mapped.to)
    for key in (*original.FIXED, *original.ELSEWHERE):
        assert f"| `{key}` |" in GUIDE
