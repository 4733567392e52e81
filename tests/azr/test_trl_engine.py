"""The TRL engine on CPU, with a random model of a few thousand weights: groups are task-roles, and TRL's advantages are
TRR++'s."""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harena.azr.engines import trl_engine, trl_writer
from harena.azr.engines.protocol import Completion, CompletionRequest, Rollout, Sampling
from harena.azr.learn import advantages
from harena.azr.report import journal
from harena.azr.tasks.kinds import Role, TaskKind
from harena.errors import SpecError
from support import trl_worker
from support.trl_worker import settings

pytest.importorskip("trl", reason="trl is not installed: pip install trl")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("default")]  # TRL and what it imports warn


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return trl_worker.tokenizer()


class Shell:
    """As much of a GRPOTrainer as writing needs."""

    def __init__(self, own: Any) -> None:
        import accelerate

        self.model_wrapped, self.accelerator, self.eos_token_ids = own, accelerate.Accelerator(cpu=True), [1]


@pytest.fixture(scope="module")
def engine(tokenizer: Any) -> trl_engine.TrlEngine:
    return trl_engine.TrlEngine(tokenizer, rows=4, trainer=Shell(trl_worker.model()))


def test_writing_keeps_order_limits_and_seeds(engine: trl_engine.TrlEngine) -> None:
    requests = [CompletionRequest(prompt="def f(" + "a" * n, n=1 + n % 2, max_new=3 + 4 * (n % 3)) for n in range(6)]
    seen: list[int] = []
    first = engine.generate(requests, Sampling(seed=3), lambda index, _: seen.append(index))
    assert [len(group) for group in first] == [request.n for request in requests]
    assert all(
        1 <= len(one.ids) <= request.max_new for request, group in zip(requests, first, strict=True) for one in group
    )
    assert sorted(seen) == list(range(6))
    assert first == engine.generate(requests, Sampling(seed=3))
    assert first != engine.generate(requests, Sampling(seed=4))


def test_log_probabilities_are_those_of_the_model(engine: trl_engine.TrlEngine) -> None:
    import torch

    requests = [CompletionRequest(prompt="x = 1", max_new=6), CompletionRequest(prompt="assert f(12345) ==", max_new=6)]
    for (one,) in engine.generate(requests, Sampling(seed=1, temperature=0.7)):
        ids = torch.tensor([[*one.prompt_ids, *one.ids]])
        with torch.no_grad():
            chances = torch.log_softmax(engine.trainer.model_wrapped(ids).logits.float() / 0.7, -1)
        places = range(len(one.prompt_ids) - 1, ids.shape[1] - 1)
        expected = [float(chances[0, place, ids[0, place + 1]]) for place in places]
        assert one.logprobs == pytest.approx(expected, abs=1e-4)
        assert 0 < one.entropy <= math.log(len(engine.tokenizer))


@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_top_p_leaves_the_likeliest_tokens(engine: trl_engine.TrlEngine, top_p: float) -> None:
    import torch

    recorder = trl_writer.LogprobRecorder(Sampling(seed=0, top_p=top_p))
    scores = torch.log(torch.tensor([[0.5, 0.1, 0.25, 0.15]]))
    kept = torch.isfinite(recorder(torch.zeros(1, 1, dtype=torch.long), scores))[0].tolist()
    assert kept == ([True, False, False, False] if top_p == 0.3 else [True, False, True, True])


def test_a_stop_string_ends_a_completion(tokenizer: Any) -> None:
    row = [*tokenizer("ab\n\n")["input_ids"], 0, 0]
    assert trl_writer.end_of(tokenizer, row, ("\n\n",), ends=[1]) == (4, True)
    assert trl_writer.end_of(tokenizer, row[:3], ("\n\n",), ends=[1]) == (3, False)
    assert trl_writer.end_of(tokenizer, [5, 1, 0, 0], ("\n\n",), ends=[1]) == (2, True)


def rollout(role: Role, kind: TaskKind, reward: float) -> Rollout:
    completion = Completion(prompt_ids=(1,), ids=(2,), logprobs=(-1.0,), text="", finished=True)
    return Rollout(completion=completion, role=role, kind=kind, reward=reward, advantage=0.0)


def test_rows_go_back_in_the_order_of_the_dataset() -> None:
    config = settings(batch=2)
    pairs = trl_engine.groups(config)
    given = [rollout(*pair, reward=number) for number, pair in enumerate([*pairs, *pairs])]
    assert trl_engine.columns(given, config)["azr_reward"] == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    with pytest.raises(SpecError, match="11 rollouts"):
        trl_engine.columns(given[1:], config)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"advantage": {"algorithm": "rae"}}, "trr"),
        ({"advantage": {"baseline": "token"}}, "trr"),
        ({"update": {"mini_batch": 7}}, "mini_batch"),
        ({"learn_rollouts": True}, "learn_rollouts"),
        ({"batch": 1, "update": {"mini_batch": 6}}, "at least 2"),
    ],
)
def test_what_trl_cannot_express_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        trl_engine.check(settings(**changes))


def test_a_run_learns_and_its_advantages_are_those_of_trr(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import trl

    own = trl_worker.model()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    kept: list[tuple[list[float], list[float]]] = []
    original = trl.GRPOTrainer._generate_and_score_completions

    def spied(self: Any, inputs: Any) -> Any:
        # A random model earns -1 with everything: rewards of very different scales, so that there is something to compare.
        scored = original(self, inputs)
        kept.append((list(given), list(self._logs["advantages"])[-len(given) :]))
        return scored

    rng = np.random.default_rng(0)
    given: list[float] = []

    def rewards(azr_reward: list[float], **_: object) -> list[float]:
        assert azr_reward == [-1.0] * 24
        given[:] = [float(10.0**group * rng.normal()) for group in range(6) for _ in range(4)]
        return given

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", spied)
    monkeypatch.setattr(trl_engine, "rewards_of", rewards)
    outcome = trl_engine.train(tmp_path / "run", settings(evaluate_tasks=1), model=own, tokenizer=tokenizer)

    assert outcome.iterations == 2
    assert len(kept) == 2
    for earned, found in kept:
        names = [number // 4 for number in range(24)]
        assert found == pytest.approx(advantages.trr(earned, names), abs=1e-4)
    assert any(not torch.equal(value, before[name]) for name, value in own.state_dict().items())
    records = journal.read(tmp_path / "run")
    assert [record["iteration"] for record in records if record["kind"] == "step"] == [1, 2]
    assert [record["iteration"] for record in records if record["kind"] == "eval"] == [0, 1, 2]
    assert json.loads((tmp_path / "run" / trl_engine.MODEL / "config.json").read_text())["hidden_size"] == 16
    assert (tmp_path / "run" / "report.html").exists()


def test_a_run_that_goes_on_ends_where_the_other_did(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def rewards(azr_reward: list[float], completion_ids: list[list[int]], **_: object) -> list[float]:
        return [float(sum(ids) % 7) for ids in completion_ids]  # so that what was sampled decides what is learnt

    def trained(folder: Path, iterations: int, *, resume: bool = False) -> Any:
        own = trl_worker.model()
        config = settings(iterations=iterations, checkpoint_every=1, evaluate_every=0, evaluate_tasks=0)
        trl_engine.train(folder, config, model=own, tokenizer=tokenizer, resume=resume)
        return own.state_dict()

    monkeypatch.setattr(trl_engine, "rewards_of", rewards)
    whole = trained(tmp_path / "whole", 3)
    half = trained(tmp_path / "half", 2)
    gone_on = trained(tmp_path / "half", 3, resume=True)
    assert any(not torch.equal(whole[name], half[name]) for name in whole)
    assert all(torch.equal(whole[name], gone_on[name]) for name in whole)
    records = journal.read(tmp_path / "half")
    assert [record["iteration"] for record in records if record["kind"] == "step"] == [1, 2, 3]

    with pytest.raises(SpecError, match="--iterations"):
        trained(tmp_path / "half", 3, resume=True)
    shutil.rmtree(tmp_path / "half" / trl_engine.CHECKPOINTS)
    with pytest.raises(SpecError, match="is gone"):
        trained(tmp_path / "half", 4, resume=True)


class Vllm:
    """As much of TRL's vLLM as writing needs: repeats the last token of a prompt, and then ends."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float, int, object]] = []
        self.synced = 0

    def generate(self, *, prompts: list[list[int]], images: None, num_generations: int) -> Any:
        assert num_generations == 1
        self.asked.append((self.temperature, self.top_p, self.max_completion_length, self.generation_kwargs))
        rows = [[prompt[-1]] * (self.max_completion_length - 1) + [1] for prompt in prompts]
        return prompts, rows, [[[None if at == 0 else -0.5] for at, _ in enumerate(row)] for row in rows], None

    def sync_weights(self) -> None:
        self.synced += 1


def test_vllm_is_asked_as_trl_keeps_it(tokenizer: Any) -> None:
    shell = Shell(None)
    shell.use_vllm, shell.vllm_generation = True, Vllm()
    own = trl_engine.TrlEngine(tokenizer, rows=8, trainer=shell)
    requests = [
        CompletionRequest(prompt="x =a", max_new=4),
        CompletionRequest(prompt="=b", max_new=3, n=2),
        CompletionRequest(prompt="=\n", max_new=4),
    ]
    found = own.generate(requests, Sampling(seed=1, temperature=0.7, stop=("\n\n",)))
    assert shell.vllm_generation.asked == [(0.7, 1.0, 4, {"stop": ["\n\n"]})]
    assert [[one.text for one in group] for group in found] == [["aaa"], ["bbb", "bbb"], [""]]
    assert [[one.finished for one in group] for group in found] == [[True], [False, False], [True]]
    assert math.isnan(found[0][0].logprobs[0])
    assert found[0][0].logprobs[1:] == (-0.5, -0.5, -0.5)
    assert len(found[2][0].ids) == 2
    trl_writer.of(shell, tokenizer).refresh()
    assert shell.vllm_generation.synced == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"vllm": "colocate"}, "not installed"),
        ({"vllm": "yes"}, "colocate or server"),
        ({"vllm_tensor_parallel_size": 2}, "set vllm"),
        ({"vllm": "colocate", "vllm_cats": 2}, "vllm_cats"),
        ({"threads": 2}, "knows gradient_checkpointing, micro_batch, rows, vllm"),
        ({"micro_batch": 5}, "micro_batch=5"),
        ({"rows": "many"}, "rows='many'"),
        ({"rows": 0}, "rows >= 1"),
    ],
)
def test_options_that_cannot_be_had_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(SpecError, match=text):
        trl_engine.arguments(tmp_path, settings(engine={"options": options}))


def test_processes_must_divide_the_mini_batch() -> None:
    trl_engine.check(settings(), processes=4)
    with pytest.raises(SpecError, match="5 processes"):
        trl_engine.check(settings(), processes=5)


def test_rows_that_trl_shares_out_otherwise_are_refused() -> None:
    rows = {"row": ["a", "a", "b", "b"], "azr_reward": [1.0, 2.0, 3.0, 4.0]}
    assert trl_engine.share_of(rows, ["b", "b"], 1) == {"azr_reward": [3.0, 4.0]}
    with pytest.raises(trl_engine.TrlMismatch):
        trl_engine.share_of(rows, ["a", "b"], 0)


def test_the_command_trains_resumes_and_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # libraries of other tests print log lines to stdout
    import torch

    from harena import cli
    from harena.azr.model import weights
    from harena.azr.model.decoder import DecoderModel, ModelConfig
    from harena.azr.model.tokenizer import ByteTokenizer

    torch.manual_seed(0)
    codec = ByteTokenizer()
    shape = ModelConfig(vocab=codec.vocab, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, feed=16)
    own = DecoderModel(shape)
    for value in own.parameters():
        torch.nn.init.normal_(value, std=0.3)
    weights.save(tmp_path / "own.safetensors", own, codec)
    small = trl_worker.SETTINGS | {
        "engine": {"name": "trl", "device": "cpu", "model": str(tmp_path / "own.safetensors")},
        "evaluate_tasks": 1,
    }
    (tmp_path / "small.json").write_text(json.dumps(small))
    out = ["--out", str(tmp_path / "run")]
    assert cli.main(["azr", "train", "--config", str(tmp_path / "small.json"), "--iterations", "1", *out]) == 0
    first = capsys.readouterr().out
    assert cli.main(["azr", "train", "--resume", "--iterations", "2", "--json", *out]) == 0
    assert "1 iterations" in first
    assert json.loads(capsys.readouterr().out)["iterations"] == 2
    assert cli.main(["azr", "eval", "--run", str(tmp_path / "run"), "--limit", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["suite"] == "tiny"
