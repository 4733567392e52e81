"""How a game is found by its id, and what an id or a config from a stranger cannot do."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from harena.errors import SpecError
from harena.match import registry, variables
from harena.match.check import check_game
from harena.match.game import GameError
from harena.match.games.pong import Pong
from harena.match.games.tictactoe import TicTacToe


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("pong", "pong-v1"),
        ("Pong-v1", "pong-v1"),
        ("connect-four", "connect_four-v1"),
        ("connect_four-v1", "connect_four-v1"),
        ("connect-four-v1", "connect_four-v1"),
        ("connectx", "connect_four-v1"),
        ("connect4", "connect_four-v1"),
        ("tic-tac-toe", "tictactoe-v1"),
        ("rock paper scissors", "rps-v1"),
    ],
)
def test_bare_names_and_aliases_mean_the_newest_version(name, full):
    assert registry.resolve(name) == full
    assert registry.make(name).id == full


@pytest.mark.parametrize(
    ("name", "near"), [("pomg", "pong-v1"), ("tictacto", "tictactoe-v1"), ("conect_four", "connect_four-v1")]
)
def test_an_unknown_id_suggests_the_nearest_names(name, near):
    with pytest.raises(registry.UnknownGame, match=near):
        registry.make(name)


@pytest.mark.parametrize("name", ["", "x" * 201, None, 7, "pong-v2", "pong-v", "../pong", "pong\0", "pong-v1\n:x"])
def test_nonsense_is_an_unknown_game(name):
    with pytest.raises(registry.UnknownGame):
        registry.resolve(name)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("rps", {"round": 3}, "no config 'round'; allowed: rounds"),
        ("pong", {"points": 3}, "allowed: none"),
        ("rps", {"rounds": 0}, "from 1 to 10000"),
        ("rps", {"rounds": True}, "whole number"),
        ("rps", {"rounds": 10**9}, "from 1 to 10000"),
        ("tron", {"seats": 5}, "from 2 to 4"),
        ("tron", {"size": "16"}, "whole number"),
        ("pong", [1], "not a mapping"),
        ("pong", {1: 2}, "not a mapping"),
    ],
)
def test_the_config_is_closed_and_checked(name, config, message):
    with pytest.raises(SpecError, match=message):
        registry.make(name, config)


def test_infos_list_every_built_in_game_with_its_spaces():
    infos = {info.id: info for info in registry.infos()}
    assert set(registry.BUILT_IN) <= set(infos)
    assert infos["pong-v1"].simultaneous
    assert infos["leduc-v1"].hidden
    assert infos["pong-v1"].observation == {"kind": "box", "shape": [8], "dtype": "float32", "low": -1.0, "high": 11.0}
    assert all(info.summary for info in infos.values())


# --- by module and by entry point


def test_the_game_of_the_documentation_is_sound(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "games.md").read_text()
    (tmp_path / "nim.py").write_text(text.split("```python\n# nim.py\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(variables.GAMES, "nim:Nim")
    try:
        assert check_game(lambda: registry.make("nim:Nim", {"heap": 15})) == []
    finally:
        sys.modules.pop("nim", None)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the operator's in the current folder, imported by nobody yet."""
    (tmp_path / "operators_own_game.py").write_text(
        "from harena.match.games.rps import RockPaperScissors\n"
        "def make(rounds: int = 3):\n    return RockPaperScissors(rounds=rounds)\n"
        "def broken():\n    raise RuntimeError('no luck')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(variables.GAMES, "")
    yield "operators_own_game"
    sys.modules.pop("operators_own_game", None)


def test_a_factory_is_not_imported_unless_the_operator_said_so(module):
    for name in (f"{module}:make", f"gymnasium/{module}:Env-v0", f"pettingzoo/{module}:make", f"{module}:make-v1"):
        with pytest.raises(registry.UnknownGame):
            registry.make(name)
    assert module not in sys.modules


def test_a_trusted_factory_is_made_from_the_current_folder_with_a_closed_config(module):
    registry.trust(f"{module}:make")
    game = registry.make(f"{module}:make", {"rounds": 5})
    assert game.max_steps == 5
    assert game.id == f"{module}:make", "a replay must find the game again"
    with pytest.raises(SpecError, match="allowed: rounds"):
        registry.make(f"{module}:make", {"size": 1})
    with pytest.raises(registry.UnknownGame, match="only the operator"):
        registry.make(f"{module}:broken")


def test_the_variable_trusts_factories_too_and_their_failure_is_told(module, monkeypatch):
    monkeypatch.setenv(variables.GAMES, f"other:game, {module}:broken,{module}:nothing")
    with pytest.raises(GameError, match="no luck"):
        registry.make(f"{module}:broken")
    with pytest.raises(registry.UnknownGame, match="could not be imported"):
        registry.make(f"{module}:nothing")


@pytest.mark.parametrize("name", ["os:system('x')", "a b:c", ":x", "x:", "a:b,c:d", "a/b:c"])
def test_what_is_no_module_and_factory_cannot_be_trusted(module, name):
    with pytest.raises(registry.UnknownGame):
        registry.trust(name)


@pytest.fixture
def entry_points(monkeypatch):
    points = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [p for p in points if p.group == group])
    registry._entry_points.cache_clear()
    yield lambda name, value: points.append(importlib.metadata.EntryPoint(name, value, registry.ENTRY_POINTS))
    registry._entry_points.cache_clear()


def test_entry_points_add_games_and_newer_versions(entry_points):
    entry_points("duel-v1", "harena.match.games.rps:RockPaperScissors")
    entry_points("duel-v10", "harena.match.games.tictactoe:TicTacToe")
    entry_points("duel-v9", "harena.match.games.rps:RockPaperScissors")
    assert registry.resolve("duel") == "duel-v10"
    assert isinstance(registry.make("duel"), TicTacToe)
    assert registry.make("duel-v1", {"rounds": 4}).max_steps == 4


def test_entry_points_cannot_replace_what_is_built_in_or_lack_a_version(entry_points):
    entry_points("pong-v1", "harena.match.games.rps:RockPaperScissors")
    entry_points("unversioned", "harena.match.games.rps:RockPaperScissors")
    assert isinstance(registry.make("pong-v1"), Pong)
    with pytest.raises(registry.UnknownGame):
        registry.resolve("unversioned")


def test_an_entry_point_that_fails_does_not_hide_the_other_games(entry_points):
    entry_points("gone-v1", "no_such_module_here:Game")
    with pytest.warns(RuntimeWarning, match="gone-v1"):
        names = [info.id for info in registry.infos()]
    assert "pong-v1" in names
    assert "gone-v1" not in names
    with pytest.raises(GameError, match="no_such_module_here:Game, which does not load"):
        registry.make("gone")


@pytest.mark.parametrize("path", ["docs/executor.md", "proto/executor.proto"])
def test_the_config_of_the_executors_example_is_taken(path: str) -> None:
    text = (Path(__file__).parents[2] / path).read_text()
    config, game = re.findall(r"(\{\"[^{}]*\})`? for `?(\w+)", text)[0]
    assert registry.make(game, json.loads(config)).max_steps == 100
