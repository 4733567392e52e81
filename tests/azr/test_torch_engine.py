from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tests run side by side, and threads that wait for each other are slower than one

from harena.azr import environment
from harena.azr.config import EngineConfig
from harena.azr.engines import registry, torch_engine, trl_engine
from harena.azr.engines.openai_engine import ServerSettings
from harena.azr.engines.protocol import Completion, CompletionRequest, Rollout, Sampling, Update
from harena.azr.engines.torch_engine import TorchEngine
from harena.azr.learn.learner import LearnSettings, token_stats
from harena.azr.learn.optimizer import MasterAdamW
from harena.azr.model import decode, flash, kernels
from harena.azr.model.decode import DecodeSettings
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.model.stops import Stops
from harena.azr.model.tokenizer import ByteTokenizer
from harena.azr.tasks.kinds import Role, TaskKind
from harena.errors import SpecError

CODEC = ByteTokenizer()
SHAPE = ModelConfig(vocab=CODEC.vocab, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, feed=48)
PROMPTS = [
    "def f(a):\n    return a",
    "x",
    "assert f(1) ==",
    "",
    "def f(s, n):\n    return s[:n] * 2\nassert f('ab', 2) ==",
]


def model(seed: int = 0, *, sharp: float = 6.0) -> DecoderModel:
    made = DecoderModel(SHAPE).start(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(sharp)
    return made


def engine(seed: int = 0, *, rows: int = 8, learn: LearnSettings | None = None, **more: Any) -> TorchEngine:
    settings = decode.DecodeSettings(rows=rows, **{"check_every": 3, **more})
    return TorchEngine(model(seed), CODEC, decode=settings, learn=learn)


def requests(n: int = 5, max_new: int = 20) -> list[CompletionRequest]:
    return [CompletionRequest(prompt=prompt, n=n, max_new=max_new + k) for k, prompt in enumerate(PROMPTS)]


def logprobs(made: DecoderModel, done: Completion, temperature: float = 1.0) -> list[float]:
    ids = torch.tensor([[*done.prompt_ids, *done.ids]])
    with torch.no_grad():
        logp = torch.log_softmax(made(ids)[0] / temperature, dim=-1)
    return [float(logp[len(done.prompt_ids) - 1 + n, token]) for n, token in enumerate(done.ids)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_whole_model(temperature: float) -> None:
    made = engine()
    groups = made.generate(requests(), Sampling(seed=1, temperature=temperature))
    assert [len(group) for group in groups] == [5] * 5
    for group in groups:
        for done in group:
            assert done.logprobs == pytest.approx(logprobs(made.model, done, temperature), abs=2e-4)


def test_the_batch_does_not_change_what_greedy_says() -> None:
    """Rows are refilled, moved and bucketed; each completion is still the one that it would be alone."""
    asked = requests(n=1)
    together = engine(rows=2).generate(asked, Sampling(seed=0, greedy=True))
    for request, group in zip(asked, together, strict=True):
        alone = engine(rows=8, check_every=1).generate([request], Sampling(seed=9, greedy=True))
        assert alone[0][0].ids == group[0].ids


def test_the_same_seed_gives_the_same_completions() -> None:
    a, b, c = (engine().generate(requests(), Sampling(seed=seed, stop=("\n\n",))) for seed in (4, 4, 5))
    assert a == b
    assert a != c


def test_samples_follow_the_distribution() -> None:
    made = engine(rows=256)
    group = made.generate([CompletionRequest(prompt="x", n=3000, max_new=1)], Sampling(seed=2))[0]
    with torch.no_grad():
        p = torch.softmax(made.model(torch.tensor([CODEC.encode("x")]))[0, -1], -1).numpy()
    counts = np.bincount([done.ids[0] for done in group], minlength=CODEC.vocab) / 3000
    expected = np.sqrt(2 / np.pi * p * (1 - p) / 3000).sum() / 2
    assert np.abs(counts - p).sum() / 2 < 1.5 * expected + 0.02
    top = int(p.argmax())
    assert counts[top] == pytest.approx(p[top], abs=float(4 * (p[top] * (1 - p[top]) / 3000) ** 0.5))


def test_a_nucleus_holds_only_the_likely_tokens() -> None:
    made = engine(rows=64)
    group = made.generate([CompletionRequest(prompt="x", n=200, max_new=1)], Sampling(seed=2, top_p=0.3))[0]
    with torch.no_grad():
        p = torch.softmax(made.model(torch.tensor([CODEC.encode("x")]))[0, -1], -1).numpy()
    order = np.argsort(-p)
    size = int(np.searchsorted(np.cumsum(p[order]), 0.3)) + 1
    assert {done.ids[0] for done in group} <= set(order[:size].tolist())


def test_every_request_is_reported_once_and_early() -> None:
    seen: list[int] = []
    asked = requests(n=3)
    made = engine(rows=4)
    groups = made.generate(asked, Sampling(seed=1), lambda index, done: seen.append(index) or assert_len(done, 3))
    assert sorted(seen) == list(range(len(asked)))
    assert made.totals["new_tokens"] == sum(len(done.ids) for group in groups for done in group)


def assert_len(done: Sequence[Completion], count: int) -> None:
    assert len(done) == count


def test_a_completion_ends_with_its_stop_and_not_after() -> None:
    stop = ("e", "\n\n", "12")
    groups = engine(rows=4, check_every=5).generate(requests(n=12, max_new=30), Sampling(seed=3, stop=stop))
    ended = [done for group in groups for done in group if done.finished]
    assert ended
    for done in ended:
        if done.ids[-1] in CODEC.eos:
            continue
        whole, before = CODEC.decode(done.ids), CODEC.decode(done.ids[:-1])
        assert any(s in whole for s in stop)
        assert not any(s in before for s in stop)
        assert whole.startswith(done.text)
        assert not any(s in done.text for s in stop)
    for group in groups:
        for done in group:
            assert done.finished or len(done.ids) >= 30
            assert len(done.ids) == len(done.logprobs)


def test_cutting_finds_the_first_stop_across_tokens() -> None:
    stops = Stops(CODEC, ("ab",), vocab=CODEC.vocab)
    a, b, x = (CODEC.encode(letter)[0] for letter in "abx")
    assert stops.cut([x, a, b, x, a, b]) == (3, True)
    assert stops.cut([x, a, x]) == (3, False)
    assert stops.cut([x, CODEC.eos[0], a, b]) == (2, True)
    assert stops.cut([]) == (0, False)
    assert stops.text([x, a, b]) == "x"
    assert stops.closing_tokens[b]
    assert not stops.closing_tokens[a]


def rollouts(made: TorchEngine, seed: int = 1) -> list[Rollout]:
    groups = made.generate(requests(), Sampling(seed=seed))
    return [
        Rollout(
            completion=done,
            role=Role.SOLVE,
            kind=TaskKind.DEDUCTION,
            reward=1.0,
            advantage=1.0 if len(set(done.ids)) % 2 else -1.0,
        )
        for group in groups
        for done in group
    ]


def test_learning_raises_what_was_good() -> None:
    made = engine()
    batch = rollouts(made)
    before = [sum(logprobs(made.model, one.completion)) for one in batch]
    metrics = made.step(batch, Update(learning_rate=3e-3, mini_batch=100, entropy=0.0))
    after = [sum(logprobs(made.model, one.completion)) for one in batch]
    gain = sum((b - a) * float(one.advantage) for a, b, one in zip(before, after, batch, strict=True))
    assert gain > 0
    assert metrics["drift"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["optimizer_steps"] == 1
    assert made.generate(requests(), Sampling(seed=1)) != made.generate(requests(), Sampling(seed=2))


@pytest.mark.parametrize("token_mean", [True, False])
def test_micro_batches_change_no_gradient(token_mean: bool) -> None:
    found = []
    for micro in (10_000, 40):
        made = engine(learn=LearnSettings(micro_tokens=micro))
        made.step(rollouts(made), Update(learning_rate=1e-3, mini_batch=100, token_mean=token_mean))
        found.append(made.model.embed.weight.detach().clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=2e-5)


def test_the_clip_stops_what_has_moved_enough() -> None:
    made = engine()
    batch = rollouts(made)
    update = Update(learning_rate=3e-2, mini_batch=100, epochs=6, entropy=0.0)
    assert made.step(batch, update)["clip_fraction"] > 0.05


def test_resuming_goes_on_bit_for_bit() -> None:
    update = Update(learning_rate=1e-3, mini_batch=8, kl=0.01)
    straight = engine()
    for seed in range(3):
        straight.step(rollouts(straight, seed), update)
    first = engine()
    for seed in range(2):
        first.step(rollouts(first, seed), update)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = engine(seed=7)
    second.load(torch.load(file, weights_only=True))
    second.step(rollouts(second, 2), update)
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert straight.state().keys() == second.state().keys()


def test_half_precision_weights_have_float32_masters() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = MasterAdamW([("weight", weight)], betas=(0.9, 0.99), weight_decay=0.0)
    for _ in range(10):
        optimizer.zero_grad()
        for _ in range(2):
            (weight * 3.0).sum().backward()
        assert float(optimizer.clip(1e9)) == pytest.approx(6.0 * 4)
        optimizer.step(1e-4)
    # Each step is far smaller than bfloat16 can show next to 1; in the master they add up.
    state = optimizer.state()
    assert state["master/weight"].dtype == torch.float32
    assert float(state["master/weight"][0, 0]) == pytest.approx(1 - 1e-3, abs=1e-5)
    other = MasterAdamW([("weight", weight)], betas=(0.9, 0.99), weight_decay=0.0)
    other.load(state)
    assert torch.equal(other.state()["master/weight"], state["master/weight"])


def test_a_value_head_says_one_value_a_token_and_learns() -> None:
    made = engine(learn=LearnSettings(value_head=True))
    groups = made.generate(requests(n=2), Sampling(seed=1))
    batch = [
        Rollout(
            completion=done,
            role=Role.SOLVE,
            kind=TaskKind.DEDUCTION,
            reward=1.0,
            advantage=(0.1,) * len(done.ids),
            returns=(1.0,) * len(done.ids),
        )
        for group in groups
        for done in group
    ]
    assert all(len(one.completion.values) == len(one.completion.ids) for one in batch)
    losses = [made.step(batch, Update(learning_rate=3e-3, mini_batch=100, value=0.5))["value_loss"] for _ in range(5)]
    assert losses[-1] < losses[0]
    assert made.generate(requests(n=1), Sampling(seed=1))[0][0].values != groups[0][0].values


def test_logits_in_turns_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from harena.azr.learn import learner

    made = model()
    hidden = made.hidden(torch.arange(30)[None])[0]
    whole = token_stats(made, hidden, torch.arange(30), 1.0)
    monkeypatch.setattr(learner, "LOGIT_ELEMENTS", 7 * CODEC.vocab)
    parts = token_stats(made, hidden, torch.arange(30), 1.0)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)


def test_wrong_calls_are_refused() -> None:
    made = engine()
    with pytest.raises(SpecError, match="n >= 1"):
        made.generate([CompletionRequest(prompt="x", n=0, max_new=4)], Sampling(seed=0))
    with pytest.raises(SpecError, match="temperature"):
        made.generate([CompletionRequest(prompt="x", max_new=4)], Sampling(seed=0, temperature=0.0))
    with pytest.raises(SpecError, match="value head"):
        made.step(rollouts(made), Update(value=0.5))
    with pytest.raises(SpecError, match="another model"):
        made.load({"steps": 1, "temperature": 1.0})
    with pytest.raises(SpecError, match="max_prompt"):
        TorchEngine(model(), CODEC, max_prompt=3).generate(
            [CompletionRequest(prompt="hello world", max_new=1)], Sampling(seed=0)
        )
    with pytest.raises(SpecError, match="tokens"):
        TorchEngine(
            DecoderModel(ModelConfig(vocab=9, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, feed=8)), CODEC
        )
    assert made.generate([], Sampling(seed=0)) == []
    assert made.step([], Update()) == {"skipped": 1.0}


def test_an_engine_is_built_from_names(tmp_path: Any) -> None:
    from harena.azr.model import weights

    weights.save(tmp_path / "m.safetensors", model(), CODEC, form="bf16")
    made = torch_engine.build(
        model=str(tmp_path / "m.safetensors"), device="cpu", options={"rows": 16, "warmup_steps": 3}
    )
    assert made.decoder.settings.rows == 16
    with pytest.raises(SpecError, match="speed"):
        torch_engine.build(model=str(tmp_path / "m.safetensors"), device="cpu", options={"speed": 9})


def test_without_a_gpu_attention_is_the_plain_one() -> None:
    from harena.azr.model.decoder import attend_row

    assert flash.best(SHAPE, torch.device("cpu"), torch.bfloat16) is attend_row


def test_the_learner_compares_at_the_temperature_of_the_samples() -> None:
    made = engine()
    groups = made.generate(requests(n=2), Sampling(seed=1, temperature=0.6))
    batch = [
        Rollout(completion=done, role=Role.SOLVE, kind=TaskKind.DEDUCTION, reward=1.0, advantage=1.0)
        for group in groups
        for done in group
    ]
    made.generate(requests(n=1), Sampling(seed=1, greedy=True))
    assert made.step(batch, Update(learning_rate=0.0, mini_batch=100))["drift"] == pytest.approx(0.0, abs=1e-4)


class Replayed:
    """Stands in for a recorded graph: replaying it is the step it was recorded from."""

    def __init__(self, step: Any, *arguments: Any) -> None:
        self.replay = lambda: step(*arguments)


def test_the_sizes_that_graphs_are_recorded_for_change_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduling of CUDA (few batch sizes, few depths, one graph for each), with steps replayed on the CPU."""
    asked = requests(n=7, max_new=40)
    wanted = engine().generate(asked, Sampling(seed=0, greedy=True, stop=("e",)))
    made = engine(rows=16, check_every=5)
    decoder = made.decoder
    monkeypatch.setattr(decoder, "is_cuda", True)
    monkeypatch.setattr(kernels, "is_there", lambda: False)  # as on CUDA
    monkeypatch.setattr(decoder, "_use_graphs", True)
    monkeypatch.setattr(decoder, "_seed", lambda seed: None)
    monkeypatch.setattr(decoder, "_record", lambda *key: Replayed(decoder._step, *key))
    found = made.generate(asked, Sampling(seed=0, greedy=True, stop=("e",)))
    assert [[done.ids for done in group] for group in found] == [[done.ids for done in group] for group in wanted]
    assert {rows for rows, *_ in decoder._graphs} <= {8, 16}
    assert decoder.graphs_recorded == len(decoder._graphs)


def test_a_graph_that_cannot_be_recorded_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    decoder = made.decoder

    def refuse(*key: Any) -> Any:
        raise RuntimeError("no capture here")

    monkeypatch.setattr(kernels, "is_there", lambda: False)  # as on CUDA
    monkeypatch.setattr(decoder, "_use_graphs", True)
    monkeypatch.setattr(decoder, "_record", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    asked = requests(n=2)
    assert made.generate(asked, Sampling(seed=3)) == engine().generate(asked, Sampling(seed=3))


def test_the_pool_of_dropped_graphs_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives a pool back with the last graph in it, and fails an assertion of its own when its name comes again."""
    made = engine()
    decoder = made.decoder
    pools: list[Any] = []

    class Replayed:
        def __init__(self, *key: Any) -> None:
            self.key = key

        def replay(self) -> None:
            decoder._step(*self.key)

    def record(*key: Any) -> Any:
        pools.append(decoder._pool)
        monkeypatch.setattr(decoder, "_pool", object())
        return Replayed(*key)

    monkeypatch.setattr(kernels, "is_there", lambda: False)  # as on CUDA
    monkeypatch.setattr(decoder, "_use_graphs", True)
    monkeypatch.setattr(decoder, "_record", record)
    made.generate(requests(n=2), Sampling(seed=3))
    longer = [replace(one, max_new=one.max_new + 100) for one in requests(n=2)]
    made.generate(longer, Sampling(seed=3))
    assert pools[0] is None
    assert pools.count(None) == 2  # the longer answers needed more memory: everything recorded was dropped


def test_threads_wait_briefly_unless_a_person_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "1")  # so that what was there before comes back
    for given, wanted in (
        ({}, environment.SPINS),
        ({"OMP_WAIT_POLICY": "active"}, None),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
    ):
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        environment.wait_briefly()
        assert os.environ.get("GOMP_SPINCOUNT") == wanted


@pytest.mark.parametrize(
    ("device", "words"), [("cuda", "finds no CUDA GPU here"), ("tpu", "auto, cpu or cuda"), ("", "auto, cpu or cuda")]
)
def test_a_device_that_is_not_there_is_refused(device: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpecError, match=words):
        registry.driver(EngineConfig(device=device), trains=False).generator(EngineConfig(device=device))


def test_the_registry_knows_the_options_of_every_engine() -> None:
    ours = {
        "threads",
        "check_memory",
        "max_prompt",
        *(one.name for settings in (DecodeSettings, LearnSettings) for one in fields(settings)),
    }
    assert set(registry.ENGINES["torch"].options) == ours
    assert set(registry.ENGINES["trl"].options) == {one.name for one in fields(trl_engine.TrlOptions)}
    assert {"model", *registry.ENGINES["openai"].options} == {one.name for one in fields(ServerSettings)}


@pytest.mark.parametrize("name", registry.ENGINES)
def test_an_option_that_an_engine_does_not_know_is_refused_by_name(name: str) -> None:
    engine = EngineConfig(name=name, options={"cats": 1})
    with pytest.raises(SpecError, match=f"engine.options.cats: the {name} engine knows"):
        registry.check(engine, trains=registry.ENGINES[name].trains)


def test_an_engine_is_refused_for_what_it_cannot_do() -> None:
    for name, trains, words in (("openai", True, "train with torch or trl"), ("trl", False, "torch or openai")):
        with pytest.raises(SpecError, match=words):
            registry.driver(EngineConfig(name=name), trains=trains)
    with pytest.raises(SpecError, match="one of torch, trl, openai"):
        registry.driver(EngineConfig(name="cats"), trains=True)
