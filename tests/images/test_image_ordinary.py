"""Images of an ordinary user: with one id, and with the ids of /etc/subuid."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from support.ordinary_user import SOME_IDS, copy_project, python_of_everybody, run_with_ids

COPIED = ("images/ordinary.py", "support/__init__.py", "support/registries.py")

pytestmark = [pytest.mark.thorough, pytest.mark.root]


@pytest.mark.parametrize(("granted", "kind"), [("", "single-65534"), (SOME_IDS, "full-65534-3000000")])
def test_an_ordinary_user_pulls_and_removes(granted: str, kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="harena-image-user-") as name:
        folder = Path(name)
        copy_project(folder, *COPIED, packages=())
        command = [python_of_everybody(), "-B", "tests/images/ordinary.py", str(folder / "home" / "store")]
        done = run_with_ids(folder, granted, command, timeout_s=100)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == kind
