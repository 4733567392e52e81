"""A process is killed while it brings a database up to date: the version that was there is whole, and the next start
finishes."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from harena.arena.db import migrations, models
from harena.arena.db.models import EnvironmentKind
from harena.arena.db.store import Store
from support.entries import ENV, ranked

SOON_S = 100.0
OLD = 3
"""The oldest version that there is a way back to."""

KILLED = """
import os, signal, sys
import sqlalchemy as sa
from harena.arena.db.store import Store

left = int(sys.argv[2])

@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def before(connection, cursor, statement, *more):
    global left
    if not statement.lstrip().startswith(("ALTER", "CREATE", "DROP", "INSERT", "UPDATE", "DELETE")):
        return
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

@sa.event.listens_for(sa.Engine, "commit")
def commit(connection):
    if left == 0:  # all of it is written, and nothing is committed
        os.kill(os.getpid(), signal.SIGKILL)

Store(sys.argv[1]).close()
"""


def upgrade(url, statements):
    """Open the database in a process that is killed before it makes one more change than this. Returns whether it was
    killed."""
    command = [sys.executable, "-c", KILLED, url, str(statements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def look(url):
    """Every table's columns, the versions that were noted, and the job that is there."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        columns = {
            table: sorted(column["name"] for column in inspector.get_columns(table))
            for table in inspector.get_table_names()
        }
        versions = connection.execute(sa.text("SELECT version FROM schema_version ORDER BY version")).scalars().all()
        rows = connection.execute(sa.text("SELECT payload FROM jobs")).scalars().all()
    engine.dispose()
    return columns, list(versions), list(rows)


@pytest.fixture
def old(empty_url):
    """A database of an older Harena, with rows in it."""
    store = Store(empty_url)
    store.environments.put(ENV, EnvironmentKind.VERIFIED)
    store.jobs.enqueue("evaluate", {"n": 1})
    ranked(store, 7.0)
    with store.begin() as connection:
        migrations.migrate(connection, 0.0, to=OLD)
    store.close()
    return empty_url


@pytest.mark.slow
def test_a_migration_that_is_killed_at_any_change_leaves_the_old_version_and_the_next_start_finishes(old):
    before = look(old)
    assert before[1][-1] == OLD
    killed = 0
    for statements in (0, 1, 3, 5, 8, 13, 21):
        if not upgrade(old, statements):
            break
        killed += 1
        assert look(old) == before
    assert killed >= 5
    store = Store(old)
    assert [entry.score for entry in store.boards.top(ENV)] == [7.0]
    store.close()
    columns, versions, rows = look(old)
    assert columns == {
        table.name: sorted(column.name for column in table.c) for table in models.metadata.sorted_tables
    } | {name: found for name, found in columns.items() if name not in models.metadata.tables}
    assert versions[-1] == models.SCHEMA_VERSION
    assert rows == before[2]


@pytest.mark.slow
def test_a_new_database_whose_first_start_is_killed_is_made_by_the_next(empty_url):
    for statements in (0, 7, 40):
        assert upgrade(empty_url, statements)
    store = Store(empty_url)
    store.environments.put(ENV, EnvironmentKind.VERIFIED)
    assert ranked(store, 1.0).version == 1
    store.close()


@pytest.mark.slow
def test_the_first_schema_survives_kills_on_its_way_to_today_s(tmp_path):
    """It has no way back, and every step up to today's runs."""
    url = f"sqlite:///{tmp_path}/arena.db"
    with sqlite3.connect(tmp_path / "arena.db") as connection:
        connection.executescript((Path(__file__).parent / "data" / "schema-1.sql").read_text())
    connection.close()
    before = look(url)
    for statements in (1, 6, 12, 24):
        assert upgrade(url, statements)
        assert look(url) == before
    store = Store(url)
    assert [entry.score for entry in store.boards.top(ENV)] == [20.0]
    store.close()


def test_what_waits_for_a_killed_migration_of_postgresql_is_not_left_waiting(postgres):
    """The lock that migrations take ends with the connection of the process."""
    url = postgres.emptied()
    assert upgrade(url, 3)
    Store(url).close()
    assert look(url)[1] == [models.SCHEMA_VERSION]
