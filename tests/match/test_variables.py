"""Environment variables of matches and of the client: each is read in one module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harena.match import variables

ROOT = Path(__file__).parents[2]


def test_the_docs_have_the_table_of_variables():
    assert variables.table() in (ROOT / "docs" / "executor.md").read_text()


@pytest.mark.parametrize(("package", "reader"), [("match", "variables.py"), ("client", "config.py")])
def test_one_module_reads_the_environment(package, reader):
    readers = {
        path.name
        for path in (ROOT / "src" / "harena" / package).rglob("*.py")
        if re.search(r"os\.(environ\b(?!\[name\] = value)|getenv)", path.read_text())
    }
    assert readers == {reader}


def test_a_variable_that_is_not_in_the_table_is_not_read():
    with pytest.raises(KeyError):
        variables.text("HARENA_ODD", {"HARENA_ODD": "1"})
