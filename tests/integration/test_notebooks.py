"""Notebooks run from top to bottom and show what their text promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import notebooks

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"


def test_notebooks_are_kept_without_output() -> None:
    for path in FOLDER.glob("*.ipynb"):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert [cell["outputs"] for cell in cells] == [[]] * len(cells), path.name
        assert {cell["execution_count"] for cell in cells} == {None}, path.name


def test_the_notebook_about_boxes_runs(tmp_path: Path) -> None:
    first, verdicts, forks, _, squares = notebooks.shown(FOLDER / "sandbox_basics.ipynb", tmp_path)
    assert first == "(<Verdict.OK: 'ok'>, b'42\\n')"
    assert verdicts == "(<Verdict.TIME: 'time'>, <Verdict.MEMORY: 'memory'>)"
    assert forks == "(b'41\\n', b'40\\n', b'hi')"
    assert squares == "['0', '1', '4', '9', '16', '25', '36', '49']"


def test_the_notebook_about_matches_shows_tables_the_match_and_a_position(tmp_path: Path) -> None:
    _, result, replay, position, _, table = notebooks.shown(FOLDER / "matches_and_replays.ipynb", tmp_path)
    assert "<td>left</td>" in result
    assert replay.startswith('<iframe title="replay" sandbox="allow-scripts"')
    assert position.startswith("<pre>")
    assert "connect_four-v1, 20 games</caption>" in table


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_notebook_about_a_ladder_shows_a_board_and_a_match(tmp_path: Path) -> None:
    *_, board, replay, ended = notebooks.shown(FOLDER / "ladder.ipynb", tmp_path)
    assert all(f"<td>{name}</td>" in board for name in ("first", "last", "centre"))
    assert replay.startswith("<iframe")
    assert ended == "0"
