"""Studies, data sets and reward functions: for people who check our numbers or bring their own trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harena import cli
from harena.azr import config, run
from harena.azr.engines.reward_function import TaskReward
from harena.azr.report import journal, study
from harena.azr.tasks.kinds import TaskKind
from harena.errors import SpecError
from support.scripted import ScriptedEngine

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "batch": 2,
    "rollouts": 1,
    "seed_factor": 1,
    "seed_rounds": 1,
    "checkpoint_every": 1,
    "evaluate_every": 1,
    "prompt": {"propose_tokens": 24, "solve_tokens": 8},
    "engine": {"options": {"threads": 1}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("torch")
    from harena.azr.model import weights
    from harena.azr.model.decoder import DecoderModel
    from harena.azr.model.pretrain import config_for
    from harena.azr.model.tokenizer import ByteTokenizer

    codec = ByteTokenizer()
    path = tmp_path_factory.mktemp("model") / "random.safetensors"
    weights.save(path, DecoderModel(config_for("tiny", codec.vocab)).start(0), codec, form="f32")
    return str(path)


@pytest.mark.thorough
def test_a_study_runs_every_cell_once_and_goes_on_where_it_was(
    tmp_path: Path, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.json").write_text(json.dumps(SMALL))
    out = tmp_path / "study"
    words = ["azr", "study", "--out", str(out), "--config", str(tmp_path / "base.json"), "--model", model]
    words += ["--seeds", "1", "--iterations", "1", "--eval-tasks", "1", "--variants", "self-play,frozen-model"]
    interrupted = out / "self-play" / "seed-1"
    base = config.read(tmp_path / "base.json", iterations=1, evaluate_tasks=1)
    first = study.cells(out, run.with_options(base, model=model, engine=None), ["self-play"], [1])[0]
    run.start(interrupted, first.config)  # and no more: it ended before its first checkpoint
    (interrupted / journal.NAME).touch()
    assert cli.main(words) == 0
    page = (out / "study.md").read_text()
    assert capfd.readouterr().out.strip() == str(out / "study.md")
    results = json.loads((out / "study.json").read_text())
    assert [(one["variant"], one["seed"]) for one in results] == [
        ("self-play", 1),
        ("frozen-model", 1),
    ]
    assert all(one["tasks"] == 12 and len(one["curve"]) == 2 and one["learnt"] > 0 for one in results)
    assert all(one["before"] == one["after"] for one in results if one["variant"] == "frozen-model")
    assert f"--seed 1 --out {out / 'frozen-model' / 'seed-1'}" in page
    assert cli.main(words) == 0
    assert capfd.readouterr().err.count("done already") == 2
    assert (out / "study.md").read_text() == page
    assert cli.main([*words[:-4], "--eval-tasks", "2", *words[-2:]]) == 2
    assert "a study keeps its own" in capfd.readouterr().err


def cell(variant: str, seed: int, before: str, after: str) -> study.CellResult:
    return study.CellResult(
        variant=variant,
        seed=seed,
        tasks=10,
        before=frozenset(before),
        after=frozenset(after),
        curve=((0, len(before) / 10), (1, len(after) / 10)),
        seconds=1.0,
        learnt=4,
    )


def test_tables_pool_seeds_and_pair_tasks() -> None:
    results = [
        cell("a", 0, "ab", "abcd"),
        cell("a", 1, "ab", "bc"),
        cell("b", 0, "ab", "ab"),
        cell("b", 1, "ab", "cdef"),
    ]
    assert study._pooled(results) == [["a", "+0.100", "3, 1", "0.62"], ["b", "+0.100", "4, 2", "0.69"]]
    assert study._against_first(results) == [["b", "+0.000", "3, 3", "1"]]
    assert study._runs(results)[0][4:] == ["2, 0", "0.5", "1"]


def test_the_sign_test_is_the_binomials() -> None:
    assert study.sign_test(0, 0) == 1.0
    assert study.sign_test(5, 0) == pytest.approx(0.0625)
    assert study.sign_test(127, 96) == pytest.approx(0.0443, abs=1e-4)


@pytest.mark.parametrize(
    ("variants", "seeds", "said"),
    [(["cats"], [0], "variant 'cats'"), (["self-play"], [0, 0], "twice"), ([], [0], "needs variants")],
)
def test_a_study_of_nothing_is_refused(variants: list[str], seeds: list[int], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        study.cells(Path("x"), config.read(None), variants, seeds)


# ---- data sets and rewards ----


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "run"
    settings = config.read(None, batch=4, seed_factor=1, seed_rounds=2, evaluate_tasks=0)
    run.propose(folder, settings, ScriptedEngine(bad=0.0))
    return folder


def test_an_exported_data_set_is_graded_as_self_play_grades(
    tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tasks.jsonl"
    assert cli.main(["azr", "export", str(tasks), "-o", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"{len(rows)} tasks" in capfd.readouterr().out
    assert {row["kind"] for row in rows} == set(map(str, TaskKind))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    with TaskReward() as reward:
        gold = reward(
            prompts=columns["prompt"], completions=[row["completion"] + "more" for row in rows], **without(columns)
        )
        assert gold == [1.0] * len(rows)
        wrong = reward(completions=[[{"role": "assistant", "content": "[7, 'no']"}] for _ in rows], **without(columns))
        assert set(wrong) <= {-0.5, -1.0}
        with pytest.raises(SpecError, match="one of each"):
            reward(completions=["x"], **without(columns))
        with pytest.raises(SpecError, match="not the record of a task"):
            reward(completions=["1"], kind=["deduction"], task=["{}"])
    assert cli.main(["azr", "export", str(tasks), "-o", str(out)]) == 2
    assert "is there already" in capfd.readouterr().err


def without(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: column for name, column in columns.items() if name not in ("prompt", "completion")}


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_trl_trains_with_the_reward_function(tasks: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install trl")
    datasets = pytest.importorskip("datasets")
    from support import trl_worker

    out = tmp_path / "tasks.jsonl"
    assert cli.main(["azr", "export", str(tasks), "-o", str(out), "--kind", "deduction"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()][:4]
    seen: list[float] = []
    with TaskReward() as reward:

        def harena_reward(**columns: Any) -> list[float]:
            found = reward(**columns)
            seen.extend(found)
            return found

        trl.GRPOTrainer(
            model=trl_worker.model(),
            processing_class=trl_worker.tokenizer(),
            reward_funcs=[harena_reward],
            args=trl.GRPOConfig(
                output_dir=str(tmp_path / "trl"),
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=4,
                num_generations=2,
                max_completion_length=6,
                max_steps=1,
                report_to=[],
                save_strategy="no",
            ),
            train_dataset=datasets.Dataset.from_list(rows),
        ).train()
    assert len(seen) == 4
    assert set(seen) <= {1.0, -0.5, -1.0}


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_notebook_runs_from_top_to_bottom() -> None:
    pytest.importorskip("torch")
    notebook = json.loads((ROOT / "examples" / "notebooks" / "self_play.ipynb").read_text())
    source = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
