"""A store of its own for each test, with a clock that only tests move. Tests that ask for a `url` or for the `store`
run on both databases."""

from __future__ import annotations

import shutil

import pytest

from harena.arena.db.models import EnvironmentKind
from harena.arena.db.store import Store
from harena.match.run.runner import Runner
from support import servers
from support.entries import ENV, Clock, prepared_sqlite


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL that lives as long as the tests do."""
    programs = servers.programs()
    if programs is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="no psycopg here: pip install 'harena[postgres]'")
    server = servers.Postgres(programs)
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres):
    return postgres.prepared()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database with tables and nothing in them."""
    if request.param == "sqlite":
        return prepared_sqlite(tmp_path)
    return request.getfixturevalue("postgres_url")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request, tmp_path):
    """A database that nobody has opened."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/arena.db"
    return request.getfixturevalue("postgres").emptied()


@pytest.fixture
def store(url, clock):
    store = Store(url, clock=clock)
    store.environments.put(ENV, EnvironmentKind.VERIFIED)
    yield store
    store.close()


@pytest.fixture(scope="module")
def redis():
    """A Redis that a test may kill, if it starts it again."""
    pytest.importorskip("redis", reason="no redis-py here: pip install 'harena[redis]'")
    if shutil.which(servers.Redis.PROGRAM) is None:
        pytest.skip("no Redis here: apt-get install redis-server")
    server = servers.Redis()
    yield server
    server.close()


@pytest.fixture(scope="module")
def two_workers():
    """Processes that could play; tests that only count them do not let them."""
    with Runner(2) as runner:
        yield runner
