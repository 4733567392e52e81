"""Builds of an ordinary user: with one id, and with the ids of /etc/subuid. Runs the tests of builds again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from support.ordinary_user import SOME_IDS, copy_project, run_tests_with_ids

pytestmark = [pytest.mark.thorough, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
COPIED = ("images/test_build.py", "images/test_build_hostile.py")
SUPPORT = ("support",)
WITH_ALL_IDS = "owner or stages or copy or whiteouts or odd or links or imported or workdir"


@pytest.mark.parametrize(("granted", "which"), [("", ""), (SOME_IDS, WITH_ALL_IDS)])
def test_an_ordinary_user_builds(granted: str, which: str) -> None:
    with tempfile.TemporaryDirectory(prefix="harena-build-user-") as name:
        copy_project(Path(name), *COPIED, *SUPPORT)
        run_tests_with_ids(Path(name), granted, "-k", which, "tests", timeout_s=580)
