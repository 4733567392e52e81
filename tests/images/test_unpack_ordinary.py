"""The unpacker works for an ordinary user too, with one id, and with the ids of /etc/subuid."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ordinary_user import SOME_IDS, TESTS, copy_project, run_tests_with_ids

pytestmark = [pytest.mark.thorough, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="harena-unpack-user-") as name:
        tests = [str(path.relative_to(TESTS)) for path in (TESTS / "images").glob("*unpack*.py")]
        copy_project(Path(name), *tests, "support/__init__.py", "support/unpack_tools.py")
        yield Path(name)


@pytest.mark.parametrize("granted", ["", SOME_IDS], ids=["none", "granted"])
@pytest.mark.parametrize("names", ["", "_hostile", "_overlay", "_faults"])
def test_the_tests_of_the_unpacker_pass(project: Path, names: str, granted: str) -> None:
    # With one id only half of the tests are left; with the ids of /etc/subuid only those need to run.
    which = ["-m", "not root", "-k", "not single" if granted else "not full"]
    shown = run_tests_with_ids(project, granted, *which, f"tests/images/test_unpack{names}.py", timeout_s=580)
    assert "skipped" not in shown, shown[-2000:]
