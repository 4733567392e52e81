from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from harena.azr import config
from harena.azr.cli import options
from harena.azr.config import Algorithm, TrainConfig
from harena.azr.tasks.kinds import TaskKind
from harena.errors import SpecError


@pytest.mark.parametrize("name", config.PROFILES)
def test_a_profile_survives_being_written_and_read(name: str) -> None:
    made = config.read(profile=name)
    assert made.profile == name
    assert config.from_dict(json.loads(json.dumps(config.as_dict(made)))) == made


def test_the_command_offers_every_profile() -> None:
    command = argparse.ArgumentParser()
    options.train(command)
    for name in config.PROFILES:
        assert command.parse_args(["--out", "x", "--profile", name]).profile == name


def test_the_papers_numbers_are_the_papers() -> None:
    paper = config.read(profile="paper")
    assert (paper.batch, paper.rollouts, paper.seed_factor, paper.iterations) == (64, 8, 4, 500)
    assert (paper.buffer.references, paper.prompt.inputs, paper.temperature) == (6, 10, 1.0)
    update = paper.update
    assert (update.learning_rate, update.mini_batch, update.epochs, update.clip, update.entropy, update.kl) == (
        1e-6,
        128,
        1,
        0.2,
        0.001,
        0,
    )
    assert paper.advantage.algorithm is Algorithm.TRR
    assert paper.reward.repeat is None


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_file_changes_what_it_names_and_options_win(tmp_path: Path, suffix: str) -> None:
    data = {
        "profile": "gpu1",
        "batch": 8,
        "update": {"learning_rate": 1e-4},
        "kinds": ["deduction"],
        "reward": {"repeat": -0.5},
    }
    path = tmp_path / f"run{suffix}"
    path.write_text(json.dumps(data))  # which is YAML, too
    found = config.read(path, iterations=3, seed=None)
    assert (found.profile, found.batch, found.iterations, found.seed) == ("gpu1", 8, 3, 0)
    assert (found.update.learning_rate, found.update.mini_batch) == (1e-4, 128)
    assert found.kinds == (TaskKind.DEDUCTION,)
    assert found.reward.repeat == -0.5
    assert config.read(path, profile="laptop").engine.device == "auto"


def test_yaml_may_write_a_number_as_people_do(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "update:\n  learning_rate: 1e-4\n  value: 0.5\nadvantage: {algorithm: ppo}\nengine:\n  options: {value_head: true, layers: 3}\n"
    )
    found = config.read(path)
    assert found.update.learning_rate == 1e-4
    assert found.advantage.algorithm is Algorithm.PPO
    assert found.engine.options == {"value_head": True, "layers": 3}


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"bacth": 3}, "bacth"),
        ({"update": {"lr": 1}}, "update.lr"),
        ({"batch": "many"}, "batch"),
        ({"batch": 2.5}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 0}, "batch"),
        ({"train_proposer": 1}, "train_proposer"),
        ({"temperature": 0}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"kinds": ["guessing"]}, r"kinds\[0\]"),
        ({"kinds": []}, "kinds"),
        ({"kinds": "deduction"}, "kinds"),
        ({"reward": 3}, "reward"),
        ({"reward": {"repeat": "x"}}, "reward.repeat"),
        ({"reward": {"learnability": "steep"}}, "reward.learnability"),
        ({"advantage": {"algorithm": "grpo"}}, "advantage.algorithm"),
        ({"advantage": {"decay": 2}}, "advantage.decay"),
        ({"advantage": {"algorithm": "hierarchical"}}, "learn_rollouts"),
        ({"advantage": {"algorithm": "ppo"}}, "update.value"),
        ({"seed": -1}, "seed"),
        ({"prompt": {"profile": "long"}}, "prompt.profile"),
        ({"prompt": {"inputs": 1}}, "prompt.inputs"),
        ({"prompt": {"shots": 99}}, "prompt.shots"),
        ({"executor": {"wall_s": 0}}, "executor.wall_s"),
        ({"executor": {"cpu_s": -1}}, "executor.cpu_s"),
        ({"executor": {"memory_mb": 1}}, "executor.memory_mb"),
        ({"executor": {"output_chars": 0}}, "executor.output_chars"),
        ({"prompt": {"solve_tokens": 0}}, "prompt.solve_tokens"),
        ({"buffer": {"capacity": 1}}, "buffer.capacity"),
        ({"update": {"learning_rate": "nan"}}, "update.learning_rate"),
        ({"engine": {"options": {"a": [1]}}}, "engine.options.a"),
    ],
)
def test_a_mistake_is_refused_with_the_name_of_its_key(data: dict[str, object], key: str) -> None:
    with pytest.raises(SpecError, match=key):
        config.from_dict(data)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "- 1"),
        ("a.yaml", "a: ["),
        ("a.json", "{"),
        ("a.yaml", "!!python/object/apply:os.getcwd []"),
        ("a.json", "[1]"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=name):
        config.read(tmp_path / name)


def test_a_missing_file_and_an_unknown_profile_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no\.yaml"):
        config.read(tmp_path / "no.yaml")
    with pytest.raises(SpecError, match="laptop, small, brief, gpu1, coder-3b, coder-7b, paper"):
        config.read(profile="phone")


def test_executor_settings_reach_the_verifier() -> None:
    settings = config.from_dict(
        {"executor": {"wall_s": 3, "output_chars": 77, "forbidden": ["numpy"], "share": False}}, TrainConfig()
    ).executor.settings()
    assert (settings.bounds.wall_s, settings.bounds.max_chars, settings.bounds.share) == (3.0, 77, False)
    assert {"numpy", "os"} <= settings.forbidden
