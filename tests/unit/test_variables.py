"""The environment variables of a backend are read in one place, and documented from there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harena.backends.docker import variables as docker_variables
from harena.backends.local import variables

ROOT = Path(__file__).parents[2]
BACKENDS = ROOT / "src" / "harena" / "backends"


@pytest.mark.parametrize("table", [variables.table(), docker_variables.table()], ids=["local", "docker"])
def test_the_docs_have_the_table_of_a_backend_s_variables(table: str) -> None:
    assert table in (ROOT / "docs" / "backends.md").read_text()


@pytest.mark.parametrize(("name", "modules"), [("local", 10), ("docker", 4)])
def test_no_other_module_of_a_backend_reads_the_host_s_environment(name: str, modules: int) -> None:
    outside = [path for path in (BACKENDS / name).rglob("*.py") if "guest" not in path.parts]
    outside = [path for path in outside if path.name != "variables.py"]
    assert len(outside) > modules
    assert [path.name for path in outside if re.search(r"os\.(environ|getenv)", path.read_text())] == []
