"""Boxes from images of an ordinary user: with one id, and with the ids of /etc/subuid. Runs test_image_boxes.py again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from support.ordinary_user import SOME_IDS, copy_project, run_tests_with_ids

DEBIAN = os.environ.get("HARENA_TEST_DEBIAN", "")
COPIED = ("images/test_image_boxes.py", *(("images/test_image_debian.py",) if DEBIAN else ()))
SUPPORT = ("support",)

pytestmark = [pytest.mark.thorough, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("granted", "kind"), [("", "single"), (SOME_IDS, "full")])
def test_boxes_of_an_ordinary_user(granted: str, kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="harena-image-boxes-") as name:
        copy_project(Path(name), *COPIED, *SUPPORT)
        env = {"HARENA_TEST_IDS": kind, "HARENA_TEST_DEBIAN": DEBIAN}
        run_tests_with_ids(Path(name), granted, "--timeout", "100", "tests", timeout_s=380, **env)
