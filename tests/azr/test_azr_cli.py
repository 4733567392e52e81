"""harena azr: what its commands print, write and refuse. Real boxes, a model of random weights."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from harena.azr import run
from harena.azr.check.verify import TaskVerifier
from harena.azr.cli import commands as cli
from harena.azr.engines.protocol import Completion, CompletionRequest, Sampling
from harena.azr.report import evaluate, journal, show
from harena.azr.report.scores import Score
from harena.azr.tasks import buffer, suite
from harena.azr.tasks.buffer import BufferEntry
from harena.azr.tasks.kinds import InductionTask, Proposal, TaskKind, Triplet

torch = pytest.importorskip("torch")
Capture = pytest.CaptureFixture[str]

SMALL: dict[str, Any] = {
    "batch": 3,
    "rollouts": 2,
    "seed_factor": 1,
    "seed_rounds": 1,
    "checkpoint_every": 1,
    "evaluate_every": 1,
    "prompt": {"propose_tokens": 24, "solve_tokens": 12},
    "engine": {"options": {"threads": 1}},
}
HOSTILE = "def f(a):\n\treturn '\x1b[2J\u202e' + a"


def harena(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="harena")
    parts = parser.add_subparsers(required=True)
    cli.fill("azr", parts.add_parser("azr"))
    args = parser.parse_args(["azr", *words])
    args.rest = []
    return args.action(args)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from harena.azr.model import weights
    from harena.azr.model.decoder import DecoderModel
    from harena.azr.model.pretrain import config_for
    from harena.azr.model.tokenizer import ByteTokenizer

    codec = ByteTokenizer()
    path = tmp_path_factory.mktemp("model") / "random.safetensors"
    weights.save(path, DecoderModel(config_for("tiny", codec.vocab)).start(0), codec, form="f32")
    return str(path)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "small.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, model: str, settings: str) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["--out", str(folder), "--config", settings, "--model", model, "--iterations", "2", "--eval-tasks", "1"]
    assert harena("train", *words, "--seed", "5") == 0
    return folder


# ---- train ----


def test_a_run_leaves_settings_journal_tasks_checkpoints_and_a_report(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        "buffers",
        "checkpoints",
        "config.json",
        "journal.jsonl",
        "report.html",
    }
    assert json.loads((trained / "config.json").read_text())["seed"] == 5
    kinds = [record["kind"] for record in journal.read(trained)]
    assert kinds[0] == "run"
    assert kinds.count("step") == 2
    assert kinds.count("eval") == 3
    assert "Held-out accuracy" in (trained / "report.html").read_text()


def test_progress_goes_to_stderr_and_the_table_to_stdout(
    capfd: Capture, tmp_path: Path, model: str, settings: str
) -> None:
    words = ["--out", str(tmp_path / "run"), "--config", settings, "--model", model, "--iterations", "1"]
    assert harena("train", *words, "--eval-tasks", "1", "--tensorboard") == 0
    out, err = capfd.readouterr()
    assert "held out before" in out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == [*map(str, TaskKind), "all"]
    assert "report.html" in out
    assert "iteration 1/1" in err
    assert "held out after 1" in err
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_resumed_run_is_the_run_that_was_never_ended(
    capfd: Capture, tmp_path: Path, model: str, settings: str, trained: Path
) -> None:
    words = ["--config", settings, "--model", model, "--eval-tasks", "1", "--seed", "5", "--iterations", "1"]
    assert harena("train", "--out", str(tmp_path / "run"), *words) == 0
    capfd.readouterr()
    assert harena("train", "--out", str(tmp_path / "run"), "--resume", "--iterations", "2") == 0
    out, err = capfd.readouterr()
    assert "iteration 2/2" in err
    assert "1 iterations (2 in all)" in out
    assert [record["iteration"] for record in journal.read(tmp_path / "run") if record["kind"] == "eval"] == [0, 1, 2]
    whole, parts = (steps_of(folder) for folder in (trained, tmp_path / "run"))
    assert whole == parts
    for kind in TaskKind:
        name = f"buffers/{kind}.jsonl"
        assert (trained / name).read_text() == (tmp_path / "run" / name).read_text()


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """Without what the clock says."""
    steps = [record for record in journal.read(folder) if record["kind"] == "step"]
    for step in steps:
        del step["at"], step["time"]
        step["update"].pop("seconds", None)
    return steps


def test_json_holds_everything_a_script_needs(capfd: Capture, tmp_path: Path, model: str, settings: str) -> None:
    words = ["--out", str(tmp_path / "run"), "--config", settings, "--model", model, "--iterations", "1"]
    assert harena("train", *words, "--eval-tasks", "0", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["iterations"], said["before"], said["after"]) == (1, None, None)
    assert set(said["last"]["propose"]) == set(map(str, TaskKind))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--engine", "openai"], "cannot be trained from here"),
        (["--model", "/no/such.safetensors"], "no model at /no/such.safetensors"),
        (["--resume"], "holds no run"),
        (["--model", __file__], "a model is a .safetensors file of ours"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    capfd: Capture, tmp_path: Path, words: list[str], said: str
) -> None:
    assert harena("train", "--out", str(tmp_path / "run"), *words) == cli.USAGE
    err = capfd.readouterr().err
    assert err.startswith("harena: ")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_never_written_over(capfd: Capture, trained: Path, model: str, settings: str) -> None:
    before = (trained / "journal.jsonl").read_bytes()
    assert harena("train", "--out", str(trained), "--config", settings, "--model", model) == cli.USAGE
    assert "--resume" in capfd.readouterr().err
    assert (trained / "journal.jsonl").read_bytes() == before


def test_a_resumed_run_keeps_its_settings(capfd: Capture, trained: Path) -> None:
    for option in (["--seed", "6"], ["--eval-tasks", "0"]):
        assert harena("train", "--out", str(trained), "--resume", *option) == cli.USAGE
        err = capfd.readouterr().err
        assert option[0] in err
        assert "only --iterations" in err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--out", ""],
        ["train", "--out", "x", "--iterations", "-1"],
        ["eval", "--limit", "0"],
        ["eval", "-k", "0"],
        ["pretrain", "--minutes", "0"],
        ["pretrain", "--minutes", "nan"],
        ["propose", "--out", "x", "--count", "0"],
        ["propose", "--out", "x", "--count", "many"],
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_option(capfd: Capture, words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        harena(*words)
    assert f"argument {words[-2]}: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"update": {"learning_rate": -1}}, "update.learning_rate"),
        ({"update": {"mini_batch": 0}}, "update.mini_batch"),
        ({"update": {"clip": 0}}, "update.clip"),
        ({"engine": {"options": {"threads": "many"}}}, "engine.options.threads"),
        ({"evaluate_tasks": -1}, "evaluate_tasks"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    capfd: Capture, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    (tmp_path / "own.json").write_text(json.dumps(settings))
    assert harena("train", "--out", str(tmp_path / "run"), "--config", str(tmp_path / "own.json")) == cli.USAGE
    assert said in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_place_that_may_not_be_read_is_a_mistake_like_others(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", denied)
    assert harena("train", "--out", str(tmp_path / "run")) == cli.USAGE
    assert "Permission denied: choose another --out" in capfd.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        harena("train", "--out", str(tmp_path / "run"))
    assert "--resume" in capfd.readouterr().err


def test_a_missing_package_is_named_with_its_extra(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "harena.azr.engines.torch_engine", None)
    assert harena("train", "--out", str(tmp_path / "run")) == cli.UNAVAILABLE
    assert "pip install 'harena[azr]'" in capfd.readouterr().err


def test_a_package_that_no_extra_brings_is_missing_like_others(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert harena("train", "--out", str(tmp_path / "run"), "--tensorboard") == cli.UNAVAILABLE
    assert "pip install tensorboard" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


# ---- eval ----


def test_eval_measures_the_model_of_a_run(capfd: Capture, trained: Path) -> None:
    assert harena("eval", "--run", str(trained), "--limit", "12", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["scores"]["all"]["n"] == 12
    assert 0 <= said["scores"]["all"]["low"] <= said["scores"]["all"]["high"] <= 1


def test_eval_draws_samples_for_pass_at_k(capfd: Capture, model: str) -> None:
    assert harena("eval", "--model", model, "--limit", "3", "-k", "2", "--samples", "3", "--max-new", "8") == 0
    out = capfd.readouterr().out
    assert "pass@2 of 3" in out
    assert "95 % interval" in out


def test_eval_reads_cruxeval_from_a_path(capfd: Capture, tmp_path: Path, model: str) -> None:
    path = tmp_path / "crux.jsonl"
    path.write_text(json.dumps({"code": "def f(a):\n    return a + 1", "input": "1", "output": "2", "id": "s"}) + "\n")
    assert harena("eval", "--model", model, "--suite", "cruxeval", "--path", str(path), "--max-new", "8") == 0
    out = capfd.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["CRUXEval-O", "CRUXEval-I", "all"]
    assert harena("eval", "--suite", "cruxeval", "--path", str(path), "--check") == 0
    assert "2 of 2 gold answers" in capfd.readouterr().out


def test_a_gold_answer_that_fails_is_named(capfd: Capture, tmp_path: Path) -> None:
    path = tmp_path / "crux.jsonl"
    path.write_text(json.dumps({"code": "def f(a):\n    return a", "input": "1", "output": "2", "id": "s\x1b"}) + "\n")
    assert harena("eval", "--suite", "cruxeval", "--path", str(path), "--check") == cli.NO
    out, err = capfd.readouterr()
    assert "1 of 2 gold answers" in out
    assert "-i: wrong" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "mbpp"], "--path"),
        (["--suite", "cruxeval", "--path", "/no/such"], "No such file"),
        (["--engine", "openai"], "--server"),
        (["--engine", "openai", "--server", "nonsense", "--model", "m"], "http://127.0.0.1"),
        (["-k", "4", "--samples", "2"], "pass@4"),
        (["--run", "/no/such"], "holds no run"),
        (["--run", "x", "--model", "y"], "leave out --model"),
        (["--prompt", "compact", "--shots", "99"], "shots"),
        (["--path", "x.jsonl"], "--suite"),
        (["--model", __file__], "a model is"),
    ],
)
def test_eval_says_what_is_missing(capfd: Capture, words: list[str], said: str) -> None:
    assert harena("eval", *words) == cli.USAGE
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1


# ---- propose, buffer, report, pretrain ----


def test_tasks_can_be_collected_from_a_server_without_learning(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = "def f(x):\n    return [x, x * 3]\nf(4)"

    def said(
        self: object, requests: list[CompletionRequest], sampling: Sampling, on_done: Any = None
    ) -> list[list[Completion]]:
        del self, sampling
        groups: list[list[Completion]] = []
        for index, _ in enumerate(requests):
            groups.append(
                [Completion(prompt_ids=(), ids=(), logprobs=(), text=wanted.replace("3", str(index)), finished=True)]
            )
            on_done(index, groups[-1])
        return groups

    monkeypatch.setattr("harena.azr.engines.openai_engine.OpenAIEngine.generate", said)
    server = ["--engine", "openai", "--server", "http://127.0.0.1:9/v1", "--model", "m"]
    assert harena("propose", "--out", str(tmp_path / "tasks"), "--count", "4", "--rounds", "2", *server) == 0
    out = capfd.readouterr().out
    assert [line.split() for line in out.splitlines()[1:4]] == [
        ["deduction", "4", "100%", "4"],
        ["abduction", "4", "100%", "4"],
        ["induction", "8", "0%", "1"],
    ]
    assert re.search(r"no task because .*\n.*were asked for +8$", out, flags=re.M)
    assert harena("buffer", "show", str(tmp_path / "tasks"), "--kind", "abduction") == 0
    assert "f(4) == [4, 4]" in capfd.readouterr().out
    assert harena("propose", "--out", str(tmp_path / "tasks"), *server) == cli.USAGE


def test_buffer_show_prints_what_is_being_proposed(capfd: Capture, trained: Path) -> None:
    assert harena("buffer", "show", str(trained)) == 0
    out = capfd.readouterr().out
    assert all(f"{kind}: " in out for kind in TaskKind)
    assert "f('Hello world') == 'Hello world'" in out
    assert harena("buffer", "show", str(trained), "--kind", "deduction", "--limit", "1", "--json") == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["kind"] == "deduction"
    assert harena("buffer", "show", str(trained / "none")) == cli.USAGE


def test_a_file_that_may_not_be_opened_is_one_line(
    capfd: Capture, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", denied)
    assert harena("buffer", "show", str(trained)) == cli.USAGE
    assert capfd.readouterr().err == f"harena: {trained}/buffers: Permission denied\n"


def test_tasks_of_models_are_made_safe_for_the_terminal(capfd: Capture, tmp_path: Path) -> None:
    folder = tmp_path / run.BUFFERS
    folder.mkdir()
    entry = BufferEntry(
        task=Triplet(program=HOSTILE, input="'\x1b]0;x\x07'", output="'y'"), step=1, id="0" * 32, share=0.5
    )
    (folder / "deduction.jsonl").write_text(json.dumps(buffer.record_of(entry)) + "\n")
    assert harena("buffer", "show", str(tmp_path)) == 0
    out = capfd.readouterr().out
    assert "solved 50%" in out
    assert all(letter.isprintable() or letter == "\n" for letter in out)


def test_report_can_be_written_anew(capfd: Capture, trained: Path, tmp_path: Path) -> None:
    assert harena("report", str(trained), "-o", str(tmp_path / "page.html")) == 0
    assert capfd.readouterr().out.strip() == str(tmp_path / "page.html")
    assert harena("report", str(tmp_path)) == cli.USAGE


def test_pretraining_makes_a_model_that_eval_reads(capfd: Capture, tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    assert harena("pretrain", "--out", path, "--size", "tiny", "--steps", "1") == 0
    assert "loss" in capfd.readouterr().err
    assert harena("eval", "--model", path, "--limit", "3", "--max-new", "4") == 0
    assert harena("pretrain", "--out", f"{path}2", "--size", "huge", "--steps", "1") == cli.USAGE


def test_pretraining_writes_over_nothing_and_looks_for_room_first(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for out, said in (("mine", "is there already"), ("mine/m.safetensors", "File exists: give another --out")):
        assert harena("pretrain", "--out", str(tmp_path / out), "--size", "tiny", "--steps", "1") == cli.USAGE
        assert said in capfd.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"
    assert harena("pretrain") == cli.USAGE  # the model that comes with Harena stays
    assert harena("pretrain", "--out", str(tmp_path / "m.safetensors"), "--device", "qpu") == cli.USAGE


def test_a_file_that_is_no_model_is_called_so(capfd: Capture, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_text("hi")
    assert harena("eval", "--model", str(tmp_path / "m.safetensors"), "--limit", "3") == cli.USAGE
    assert "no safetensors file, or a damaged one" in capfd.readouterr().err


def test_a_trained_model_is_asked_as_it_was_trained(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[evaluate.How] = []

    def measured(*words: Any, **_: object) -> evaluate.ModelEvaluation:
        asked.append(words[3])
        return evaluate.ModelEvaluation(suite="tiny", scores={}, k=1, samples=1, verdicts={}, seconds=0)

    monkeypatch.setattr(evaluate, "evaluate", measured)
    shutil.copytree(trained, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    kept["prompt"] |= {"profile": "paper", "solve_tokens": 77}
    (tmp_path / "run" / "config.json").write_text(json.dumps(kept))
    run_of = ["--run", str(tmp_path / "run")]
    assert (
        harena("eval", *run_of) == harena("eval", *run_of, "--prompt", "compact") == harena("eval", "--limit", "3") == 0
    )
    assert [(how.profile.name, how.max_new) for how in asked] == [("paper", 77), ("compact", 96), ("compact", 96)]


# ---- the run itself ----


def test_programs_of_the_held_out_suite_are_no_valid_proposals() -> None:
    items = [item for item in suite.tiny(per_cell=1) if item.kind is TaskKind.DEDUCTION]
    proposals = [
        Proposal(
            kind=TaskKind.DEDUCTION, program=item.task.program.replace("def f(", "def g("), inputs=(item.task.input,)
        )
        for item in items
        if isinstance(item.task, Triplet)
    ]
    with TaskVerifier(held_out=suite.digests(items)) as verifier:
        found = verifier.submit_validate(
            [*proposals, Proposal(kind=TaskKind.DEDUCTION, program="def f(q):\n    return [q, 7, q]", inputs=("1",))]
        ).result()
    assert [one.ok for one in found] == [False] * len(items) + [True]
    assert {one.detail for one in found[:-1]} == {"held out for evaluation"}


def test_kinds_are_apart_from_grades_in_the_journal() -> None:
    score = Score(value=0.5, low=0.4, high=0.6, n=10)
    found = evaluate.ModelEvaluation(
        suite="tiny",
        scores={"deduction": score, "deduction 1 op": score, "all": score},
        k=1,
        samples=1,
        verdicts={},
        seconds=0,
    )
    assert {name: list(parts) for name, parts in run.suites_of(found).items()} == {
        "tiny": ["deduction", "all"],
        "tiny by operations": ["deduction 1 op"],
    }


def test_induction_tasks_are_shown_with_message_and_pairs() -> None:
    task = InductionTask(program="def f(x):\n    return x", message="same\nagain", pairs=(("1", "1"), ("2", "2")))
    text = show.entry(TaskKind.INDUCTION, BufferEntry(task=task, step=3, id="a" * 32))
    assert text.splitlines()[1:] == ["def f(x):", "    return x", "# same", "# again", "f(1) == 1", "f(2) == 2"]


# ---- the page about it ----

ROOT = Path(__file__).parents[2]


def test_the_documentation_names_tests_and_files_that_are_there() -> None:
    text = (ROOT / "docs" / "azr.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "tests" / "azr").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 30
    assert not {name for name in named if f"def {name}(" not in sources}
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert not {
        name for name in files if not any((place / name).is_file() for place in (ROOT / "src/harena/azr", ROOT))
    }


def test_every_requirement_has_its_row() -> None:
    rows = re.findall(
        r"^\| FR(\d\d) \|.*`[\w/]+\.py`.*`test_\w+`.*\|$", (ROOT / "docs" / "azr.md").read_text(), flags=re.M
    )
    assert [int(number) for number in rows] == list(range(1, 24))


def test_the_commands_of_the_documentation_are_understood() -> None:
    parser = argparse.ArgumentParser(prog="harena")
    cli.fill("azr", parser.add_subparsers(required=True).add_parser("azr"))
    lines = re.findall(r"^harena (azr .*?)(?:\s+#.*)?$", (ROOT / "docs" / "azr.md").read_text(), flags=re.M)
    assert len(lines) >= 8
    for line in [*lines, *re.findall(r"^  harena (azr .*)$", cli.EXAMPLES, flags=re.M)]:
        parser.parse_args(line.split())
