"""docs/architecture.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import harena

SOURCE = Path(harena.__file__).parent
TEXT = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
WAYS = re.findall(r"^\| (.+?) \| (.+→.+) \| (\d+) \|$", TEXT, re.MULTILINE)
ROOTS = (SOURCE, SOURCE / "backends" / "local")


def test_there_are_four_ways_through_the_code() -> None:
    assert len(WAYS) == 4


@pytest.mark.parametrize(("what", "files", "count"), WAYS, ids=[what for what, _, _ in WAYS])
def test_a_way_through_the_code_names_files_that_exist_and_their_number(what: str, files: str, count: str) -> None:
    named = re.findall(r"`([\w/]+\.(?:py|c))`", files)
    assert len(named) == len(files.split("→")) == int(count)
    assert [path for path in named if not any((root / path).is_file() for root in ROOTS)] == []


def test_the_rooms_exist() -> None:
    rooms = TEXT.split("## Where things are")[1]
    cells = re.findall(r"^\| (`.+?) \|", rooms, re.MULTILINE)
    named = [path for cell in cells for path in re.findall(r"`([\w/.]+)`", cell)]
    assert len(named) > 30
    first = {cell: re.findall(r"`([\w/.]+)`", cell)[0] for cell in cells}
    missing = [
        path
        for cell in cells
        for path in re.findall(r"`([\w/.]+)`", cell)
        if not (SOURCE / path).exists() and not ((SOURCE / first[cell]).parent / path).exists()
    ]
    assert missing == []
