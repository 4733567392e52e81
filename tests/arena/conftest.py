"""A store in a folder of its own, with a clock that only tests move."""

from __future__ import annotations

import pytest
from entries import ENV, Clock

from harena.arena.models import EnvironmentKind
from harena.arena.store import Store


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
