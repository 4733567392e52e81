"""A store in a folder of its own, with a clock that only tests move."""

from __future__ import annotations

import pytest
from entries import ENV, Clock

from harena.arena.models import EnvironmentKind
from harena.arena.store import Store
from harena.match.runner import Runner


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/arena.db"


@pytest.fixture
def store(url, clock):
    store = Store(url, clock=clock)
    store.put_environment(ENV, EnvironmentKind.VERIFIED)
    yield store
    store.close()


@pytest.fixture(scope="module")
def two_workers():
    """Processes that could play; tests that only count them do not let them."""
    with Runner(2) as runner:
        yield runner
