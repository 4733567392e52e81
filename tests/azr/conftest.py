"""One verifier for all tests of the module: boxes are started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harena.azr.check.executor import Bounds
from harena.azr.check.verify import TaskVerifier, VerifierSettings


@pytest.fixture(scope="module")
def verifier() -> Iterator[TaskVerifier]:
    with TaskVerifier(settings=VerifierSettings(bounds=Bounds(wall_s=0.8, memory_mb=128, max_chars=500))) as made:
        yield made
