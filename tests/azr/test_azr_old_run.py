"""Runs that an earlier Harena wrote still open: their settings, tasks and journal are read, and training resumes."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.scripted import ScriptedEngine

torch = pytest.importorskip("torch")

from harena import cli
from harena.azr import checkpoint, run
from harena.azr.engines.torch_engine import TorchEngine
from harena.azr.model.decode import DecodeSettings
from harena.azr.model.decoder import DecoderModel, ModelConfig
from harena.azr.model.tokenizer import ByteTokenizer

OLD = Path(__file__).parents[1] / "data" / "schema-1" / "azr.tar.gz"
CODEC = ByteTokenizer()
SHAPE = ModelConfig(vocab=CODEC.vocab, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, feed=16)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with tarfile.open(OLD) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(tmp_path, filter="data")
        else:  # Debian 12's Python 3.11.2
            packed.extractall(tmp_path)
    return tmp_path


def small_engine(_: Any) -> TorchEngine:
    return TorchEngine(DecoderModel(SHAPE).start(1), CODEC, decode=DecodeSettings(rows=8))


@pytest.mark.parametrize(
    ("name", "make"), [("azr", small_engine), ("azr-scripted", lambda _: ScriptedEngine())], ids=["torch", "scripted"]
)
def test_an_old_run_is_resumed_from_its_checkpoint(runs: Path, name: str, make: Any) -> None:
    folder = runs / name
    assert run.where(folder) == "after iteration 2"
    config = replace(run.settings_of(folder), iterations=3)
    assert run.train(folder, config, make, resume=True).iterations == 3
    assert run.where(folder) == "after iteration 3"
    assert (folder / "report.html").exists()


def test_the_old_weights_are_those_that_are_loaded(runs: Path) -> None:
    place = checkpoint.latest(runs / "azr" / run.CHECKPOINTS)
    assert place is not None
    engine = small_engine(None)
    before = engine.model.state_dict()["embed.weight"].clone()
    engine.load(checkpoint.load(place).learner)
    assert not torch.equal(engine.model.state_dict()["embed.weight"], before)


def test_the_old_tasks_are_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "azr-scripted"
    kept = [json.loads(line) for line in (folder / run.BUFFERS / "deduction.jsonl").read_text().splitlines()]
    assert len(kept) > 1
    assert cli.main(["azr", "buffer", "show", str(folder), "--kind", "deduction"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"deduction: {len(kept)} tasks")
    assert kept[-1]["program"] in said
