"""The TRL engine on CPU, with a random model of a few thousand weights: groups are task-roles, and TRL's advantages are
TRR++'s."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harena.azr import advantages, journal, trl_engine
from harena.azr import config as configs
from harena.azr.config import Config
from harena.azr.engine import Completion, Request, Rollout, Sampling
from harena.azr.tasks import Kind, Role
from harena.errors import SpecError

pytest.importorskip("trl", reason="trl is not installed: pip install trl")
pytestmark = pytest.mark.filterwarnings("default")  # TRL and what it imports warn about themselves

SMALL: dict[str, Any] = {
    "iterations": 2, "batch": 4, "rollouts": 2, "seed_factor": 1, "seed_rounds": 1, "evaluate_every": 1,
    "prompt": {"propose_tokens": 10, "solve_tokens": 6}, "update": {"mini_batch": 12, "learning_rate": 1e-3},
    "engine": {"name": "trl", "model": "random", "device": "cpu", "options": {"micro_batch": 6, "rows": 16}},
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    import tokenizers
    import transformers

    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocab = {"<pad>": 0, "<end>": 1} | {letter: 2 + number for number, letter in enumerate(sorted(letters))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def model(tokenizer: Any) -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(shape)


def settings(**changes: Any) -> Config:
    return configs.from_dict(SMALL | changes, configs.PROFILES["laptop"])


class Shell:
    """As much of a GRPOTrainer as writing needs."""

    def __init__(self, own: Any) -> None:
        import accelerate

        self.model_wrapped, self.accelerator, self.eos_token_ids = own, accelerate.Accelerator(cpu=True), [1]


@pytest.fixture(scope="module")
def engine(tokenizer: Any) -> trl_engine.TrlEngine:
    return trl_engine.TrlEngine(tokenizer, rows=4, trainer=Shell(model(tokenizer)))


def test_writing_keeps_order_limits_and_seeds(engine: trl_engine.TrlEngine) -> None:
    requests = [Request(prompt="def f(" + "a" * n, n=1 + n % 2, max_new=3 + 4 * (n % 3)) for n in range(6)]
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

    requests = [Request(prompt="x = 1", max_new=6), Request(prompt="assert f(12345) ==", max_new=6)]
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

    recorder = trl_engine._Recorder(Sampling(seed=0, top_p=top_p))
    scores = torch.log(torch.tensor([[0.5, 0.1, 0.25, 0.15]]))
    kept = torch.isfinite(recorder(torch.zeros(1, 1, dtype=torch.long), scores))[0].tolist()
    assert kept == ([True, False, False, False] if top_p == 0.3 else [True, False, True, True])


def test_a_stop_string_ends_a_completion(engine: trl_engine.TrlEngine, tokenizer: Any) -> None:
    row = [*tokenizer("ab\n\n")["input_ids"], 0, 0]
    assert engine._end(row, ("\n\n",)) == (4, True)
    assert engine._end(row[:3], ("\n\n",)) == (3, False)
    assert engine._end([5, 1, 0, 0], ("\n\n",)) == (2, True)


def rollout(role: Role, kind: Kind, reward: float) -> Rollout:
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
        ({"advantage": {"algorithm": "rae"}}, "trr"), ({"advantage": {"baseline": "token"}}, "trr"),
        ({"update": {"mini_batch": 7}}, "mini_batch"), ({"learn_rollouts": True}, "learn_rollouts"),
        ({"batch": 1, "update": {"mini_batch": 6}}, "at least 2"),
    ],
)  # fmt: skip
def test_what_trl_cannot_express_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        trl_engine.check(settings(**changes))


def test_a_run_learns_and_its_advantages_are_those_of_trr(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import trl

    own = model(tokenizer)
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
    outcome = trl_engine.train(tmp_path / "run", settings(), per_cell=1, model=own, tokenizer=tokenizer)

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
