from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from harena.arena.db import database, migrations, models
from harena.arena.db.models import EnvironmentKind, State, StoreError
from harena.arena.db.store import Store
from harena.errors import SpecError
from support.entries import ENV, submit


def test_events_are_numbered_and_read_on_from_any_of_them(store):
    start = store.events.last()
    for n in range(5):
        store.events.publish("a" if n % 2 else "b", "tick", {"n": n})
    assert [notice.body["n"] for notice in store.events.after(start)] == [0, 1, 2, 3, 4]
    third = store.events.after(start)[2].number
    assert [notice.body["n"] for notice in store.events.after(third, topic="a")] == [3]
    assert store.events.last() == third + 2


def test_a_block_that_raises_leaves_no_trace_and_the_store_usable(store):
    before = store.events.last()
    with pytest.raises(ZeroDivisionError), store.begin():
        made = submit(store)
        assert store.submissions.get(made.id) == made
        _ = 1 / 0
    assert (store.submissions.of("ann"), store.events.last()) == ([], before)
    assert submit(store).version == 1


def test_readers_do_not_wait_for_the_writer(store):
    seen = []
    with store.begin():
        submit(store)
        reader = threading.Thread(target=lambda: seen.append(store.submissions.of("ann")))
        reader.start()
        reader.join(10)
    assert seen == [[]]


def test_a_database_that_stays_locked_is_said_to_be_and_the_store_recovers(store, url, monkeypatch):
    monkeypatch.setattr(database, "PRAGMAS", ("PRAGMA busy_timeout=20",))
    monkeypatch.setattr(database, "BUSY_S", 0.02)
    other = Store(url)
    with store.begin(), pytest.raises(StoreError, match=r"cannot be (written|used) now"):
        other.events.publish("x", "x", {})
    other.events.publish("x", "x", {})
    other.close()


KILLED = """
import os, signal, sys
import sqlalchemy as sa
from harena.arena.db.models import Event, SubmissionKind
from harena.arena.db.records import EvaluationOutcome, DefaultQuota
from harena.arena.db.store import Store

def work(url, left):
    store = Store(url)
    queue = store.jobs
    def executed(*_):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    sa.event.listen(store.database.engine, "after_cursor_execute", executed)
    while True:
        with store.begin():
            made = store.submissions.add("ann", "CartPole-v1", algorithm="A", digest="0" * 64, main_file="a.py", quota=DefaultQuota(per_day=None, at_once=None))
            store.submissions.check(made.id, SubmissionKind.VERIFIED)
            store.submissions.move(made.id, Event.QUEUE)
            queue.enqueue("evaluate", {"id": made.id}, key=made.id)
        job = queue.claim("evaluate", "w")
        store.submissions.move(made.id, Event.START)
        with store.begin():
            queue.finish(job)
            store.submissions.rank(made.id, EvaluationOutcome(score=float(made.version)))

for line in sys.stdin:
    url, left = line.split()
    if not (pid := os.fork()):
        try:
            work(url, int(left))
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def killed():
    """Starts processes that work on a database and are killed after a number of statements; says how each ended. They
    are forks of one process, which imported everything before and has opened nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:

        def run(url, statements):
            parent.stdin.write(f"{url} {statements}\n")
            parent.stdin.flush()
            return int(parent.stdout.readline())

        yield run
        parent.stdin.close()


@pytest.mark.parametrize("statements", [11, 16, 23, 24, 29, 31, 35, 38, 500])
def test_a_process_killed_in_the_middle_leaves_a_consistent_database(store, url, statements, killed):
    assert killed(url, statements) == -signal.SIGKILL
    queue = store.jobs
    with store.database.read() as connection:
        if url.startswith("sqlite"):
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        jobs, charges = (
            connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in (models.jobs, models.charges)
        )
    everything = store.submissions.in_states(list(State))
    assert len(everything) == jobs == charges
    assert sum(made.state is not State.RANKED for made in everything) <= 1
    for made in everything:
        evaluated = len(store.submissions.evaluations(made.id))
        assert evaluated == (made.state is State.RANKED) == (queue.find(made.id).state.value == "done")
    best = max((made.score for made in everything if made.score is not None), default=None)
    assert [entry.score for entry in store.boards.top(ENV)] == ([] if best is None else [best])
    submit(store)


OPENER = "import sys; from harena.arena.db.store import Store; Store(sys.argv[1]).close()"


def test_processes_may_open_a_new_database_at_once(empty_url):
    openers = [
        subprocess.Popen([sys.executable, "-c", OPENER, empty_url], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [opener.communicate(timeout=60)[1] for opener in openers] == ["", "", ""]


VERSIONS = "SELECT version FROM schema_version ORDER BY version"


def test_an_old_database_is_brought_up_to_date_and_a_newer_one_refused(empty_url, monkeypatch):
    Store(empty_url).close()
    known = models.SCHEMA_VERSION
    with monkeypatch.context() as newer:
        newer.setattr(models, "SCHEMA_VERSION", known + 2)
        for version, words in ((1, "CREATE TABLE two (x INTEGER)"), (2, "ALTER TABLE two ADD COLUMN y INTEGER")):
            step = migrations.Migration(up=lambda connection, words=words: connection.exec_driver_sql(words))
            newer.setitem(migrations.STEPS, known + version, step)
        for _ in range(2):
            store = Store(empty_url)
            with store.database.read() as connection:
                assert connection.exec_driver_sql("SELECT x, y FROM two").all() == []
                assert connection.exec_driver_sql(VERSIONS).scalars().all() == [known, known + 1, known + 2]
            store.close()
    with pytest.raises(StoreError, match="update Harena"):
        Store(empty_url)


def test_a_migration_that_fails_changes_nothing(empty_url, monkeypatch):
    Store(empty_url).close()

    def broken(connection):
        connection.exec_driver_sql("CREATE TABLE two (x INTEGER)")
        raise ZeroDivisionError

    with monkeypatch.context() as newer:
        newer.setattr(models, "SCHEMA_VERSION", models.SCHEMA_VERSION + 1)
        newer.setitem(migrations.STEPS, models.SCHEMA_VERSION, migrations.Migration(up=broken))
        with pytest.raises(ZeroDivisionError):
            Store(empty_url)
    store = Store(empty_url)
    with store.database.read() as connection:
        assert not sa.inspect(connection).has_table("two")
    store.close()


def test_a_folder_of_the_first_schema_opens_with_all_that_it_held(tmp_path):
    """The dump was written by the last version that had it."""
    with sqlite3.connect(tmp_path / "arena.db") as connection:
        connection.executescript((Path(__file__).parent / "data" / "schema-1.sql").read_text())
    store = Store(f"sqlite:///{tmp_path}/arena.db")
    ended, live = store.seasons.all(ENV)[::-1]
    assert (ended.ended_at is not None, live.ended_at) == (True, None)
    assert store.seasons.secret(live.id) == bytes(range(32, 64))
    assert store.seasons.final_secret(ended.id) is None
    second = store.seasons.final_secret(live.id)
    assert second is not None
    assert len(second) == 32
    (entry,) = store.boards.top(ENV)
    assert (entry.owner, entry.score, entry.low, entry.high) == ("ann", 20.0, 10.0, 30.0)
    assert store.submissions.evaluations(entry.submission_id)[0].metrics["returns"] == [10.0, 20.0, 30.0]
    assert submit(store, "bob").version == 2
    assert store.draws.tries(live.id, [store.owners.ensure("ann").id]) == {store.owners.ensure("ann").id: 1}
    store.close()
    again = Store(f"sqlite:///{tmp_path}/arena.db")
    assert again.seasons.final_secret(live.id) == second
    again.close()


NEW_OF_JOBS = ("share", "part", "turn", "cost_s", "yielded")


def test_today_s_schema_is_made_from_the_first_on_every_database(empty_url):
    store = Store(empty_url)
    store.environments.put(ENV, EnvironmentKind.VERIFIED)
    season = store.seasons.start(ENV, "season 1")
    with store.begin() as connection:
        migrations.migrate(connection, 0.0, to=3)
        for statement in (
            "DROP TABLE draws",
            "DROP TABLE practices",
            "DROP TABLE finalists",
            "ALTER TABLE seasons DROP COLUMN final_secret",
            "ALTER TABLE standings DROP COLUMN final",
            "DROP INDEX jobs_of_share",
            "DROP INDEX jobs_in_order",
            *(f"ALTER TABLE jobs DROP COLUMN {name}" for name in NEW_OF_JOBS),
            "CREATE INDEX jobs_in_order ON jobs (state, kind, priority DESC, id)",
            "UPDATE schema_version SET version = 1",
        ):
            connection.exec_driver_sql(statement)
    store.close()
    store = Store(empty_url)
    with store.database.read() as connection:
        assert connection.exec_driver_sql(VERSIONS).scalars().all() == list(range(1, models.SCHEMA_VERSION + 1))
        made = {
            table.name: {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
            for table in models.metadata.sorted_tables
        }
        indexes = {index["name"] for index in sa.inspect(connection).get_indexes("jobs")}
    assert made == {table.name: {column.name for column in table.c} for table in models.metadata.sorted_tables}
    assert {"jobs_in_order", "jobs_of_share"} <= indexes
    assert len(store.seasons.final_secret(season.id) or b"") == 32
    store.close()


def tables(store):
    with store.database.read() as connection:
        return {
            table: {column["name"] for column in sa.inspect(connection).get_columns(table)}
            for table in sa.inspect(connection).get_table_names()
        }


def test_a_schema_goes_back_a_version_and_forward_again_with_its_rows(empty_url):
    store = Store(empty_url)
    job_id, new = store.jobs.enqueue("evaluate", {"n": 1}), tables(store)
    with store.begin() as connection:
        migrations.migrate(connection, 0.0, to=3)
    assert {"place", "env_id", "deaths"}.isdisjoint(tables(store)["jobs"])
    store.close()
    store = Store(empty_url)
    assert tables(store) == new
    assert store.jobs.get(job_id).payload == {"n": 1}
    store.close()


def test_a_schema_with_a_private_environment_does_not_go_back_to_one_that_would_show_it(empty_url):
    store = Store(empty_url)
    store.environments.put("CartPole-v1", models.EnvironmentKind.VERIFIED, access=models.Access.PRIVATE)
    before = tables(store)
    with pytest.raises(SpecError, match="private"), store.begin() as connection:
        migrations.migrate(connection, 0.0, to=4)
    assert tables(store) == before
    store.environments.put("CartPole-v1", models.EnvironmentKind.VERIFIED, access=models.Access.PUBLIC)
    with store.begin() as connection:
        migrations.migrate(connection, 0.0, to=4)
    assert {"guests", "members"}.isdisjoint(tables(store))
    store.close()
    store = Store(empty_url)
    assert tables(store) == before
    assert store.environments.get("CartPole-v1").access is models.Access.PUBLIC
    store.close()


def test_a_way_back_that_does_not_exist_is_refused_and_changes_nothing(empty_url):
    store = Store(empty_url)
    before = tables(store)
    for to, why in ((1, "no way back"), (0, "no schema 0"), (models.SCHEMA_VERSION + 1, "no schema")):
        with pytest.raises(SpecError, match=why), store.begin() as connection:
            migrations.migrate(connection, 0.0, to=to)
    assert tables(store) == before
    store.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "no url", ""])
def test_a_database_that_cannot_serve_is_refused(url):
    with pytest.raises(SpecError):
        Store(url)


def test_the_schema_is_good_sql_for_postgresql_too():
    dialect = postgresql.dialect()
    for table in models.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        assert all(str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes)
