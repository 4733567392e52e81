"""What only a database server does, and a whole arena on one. What both databases do alike is in the other tests, which
run on both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from support.entries import ENV, started, submit
from support.killable import Server, until

pytest.importorskip("gymnasium")

from harena.arena.db import database
from harena.arena.db.database import DatabaseInUse
from harena.arena.db.files import FileStore
from harena.arena.db.models import EnvironmentKind, JobState, MatchState, State, StoreError
from harena.arena.db.records import EvaluationOutcome
from harena.arena.db.store import Store
from harena.arena.ladder.rebuild import rebuild
from harena.arena.ladder.standings import Standings
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.service import Submissions
from harena.errors import BackendUnavailable, SpecError

SOON_S = 30.0
SECRET = "only for tests, and 16 bytes at least"


@pytest.fixture
def url(postgres_url):
    return postgres_url


@pytest.fixture
def other(url, store):
    """The same database, as another process would open it."""
    other = Store(url, clock=store.clock)
    yield other
    other.close()


# ---- writers and claims ----


def test_a_claim_waits_for_no_writer_and_passes_over_what_it_changes(store, other):
    queue, claimers = store.jobs, other.jobs
    changed, free = queue.enqueue("work", {}), queue.enqueue("work", {})
    with store.begin():
        queue.cancel(changed)
        assert claimers.claim("work", "w").id == free
        assert claimers.claim("work", "w") is None
    assert queue.get(changed).state is JobState.CANCELLED


@pytest.mark.parametrize("scores", [(1.0, 2.0), (2.0, 1.0)])
def test_of_two_that_are_ranked_at_once_the_better_is_on_the_board(store, other, scores):
    first, second = started(store), started(store)
    later = threading.Thread(target=other.submissions.rank, args=(second.id, EvaluationOutcome(score=scores[1])))
    with store.begin():
        store.submissions.rank(first.id, EvaluationOutcome(score=scores[0]))
        later.start()
        later.join(0.2)  # a chance to come between, which it must not take
    later.join(SOON_S)
    assert [entry.score for entry in store.boards.top(ENV)] == [2.0]


def test_an_event_that_is_committed_late_is_not_missed(store, other):
    start = store.events.last()
    later = threading.Thread(target=other.events.publish, args=("topic", "second", {}))
    with store.begin():
        store.events.publish("topic", "first", {})
        later.start()
        later.join(0.2)
        seen = other.events.after(start)
    assert seen == []
    later.join(SOON_S)
    assert [notice.kind for notice in store.events.after(start)] == ["first", "second"]


PUBLISHER = """
import sys
from harena.arena.db.store import Store
store = Store(sys.argv[1])
sys.stdin.readline()
for n in range(30):
    with store.begin():
        store.events.publish("topic", "kind", {"n": n})
        store.events.publish("topic", "kind", {"n": n})
store.close()
"""


def test_who_reads_on_while_processes_write_sees_every_event_once_and_in_order(store, url):
    seen = [store.events.last()]
    writers = [
        subprocess.Popen([sys.executable, "-c", PUBLISHER, url], stdin=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        seen += [notice.number for notice in store.events.after(seen[-1])]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for writer in writers:
        writer.stdin.close()
    while came := store.events.after(seen[-1]):
        seen += [notice.number for notice in came]
    assert seen[1:] == [notice.number for notice in store.events.after(seen[0], limit=1000)]
    assert len(seen) == 1 + 3 * 60


# ---- a server that is away, or cannot serve ----


def test_a_server_that_was_restarted_is_used_again_and_meanwhile_said_to_be_away(store, postgres):
    queue = store.jobs
    queue.enqueue("work", {})
    postgres.stop()
    try:
        for use in (
            store.events.last,
            lambda: store.events.publish("topic", "kind", {}),
            lambda: queue.claim("work", "w"),
        ):
            with pytest.raises(StoreError, match="cannot be used now: connection"):
                use()
        with pytest.raises(StoreError, match="cannot be used now: connection"):
            Store(postgres.url("postgres"))
    finally:
        postgres.start()
    before = store.events.last()
    store.events.publish("topic", "kind", {})
    assert store.events.last() == before + 1
    assert queue.claim("work", "w") is not None


def test_a_block_whose_connection_is_lost_has_written_nothing(store, postgres):
    before = store.events.last()
    with pytest.raises(StoreError, match="cannot be used now"), store.begin():
        submit(store)
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        submit(store)
    assert (store.submissions.of("ann"), store.events.last()) == ([], before)
    assert submit(store).version == 1


def test_a_database_of_another_encoding_is_refused(postgres):
    postgres.sql("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(SpecError, match="SQL_ASCII: make one"):
        Store(postgres.url("bytes"))


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg2://db/arena", "postgresql+asyncpg://db/arena", "postgres://db/arena"]
)
def test_another_driver_is_refused(url):
    with pytest.raises(SpecError, match=r"use .*postgresql"):
        Store(url)


def test_a_missing_driver_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'harena\[postgres\]'"):
        Store("postgresql://db/arena")


def test_a_text_that_no_row_can_have_is_the_callers_error(store):
    with pytest.raises(SpecError):
        store.owners.find("nul\0")
    assert store.owners.find("ann") is None


# ---- who serves it ----

HOLDER = """
import sys
from harena.arena.db.store import Store
store = Store(sys.argv[1])
store.hold()
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_leads_on_a_database_until_it_ends_however_it_does(store, url, monkeypatch):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with monkeypatch.context() as hasty:
        hasty.setattr(database, "LEAD_S", 0.0)
        with pytest.raises(DatabaseInUse, match="an arena makes matches"):
            store.hold()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    store.hold()
    store.close()
    again = Store(url)
    again.hold()
    again.close()


# ---- a whole arena ----

LADDER = "tictactoe-v1"
GAMES = 6
AGENT = b"def act(observation): return int(observation[2] + observation[3] > 0)\n"
PLAYER = """
def act(observation):
    free = [cell for cell, mark in enumerate(observation.ravel()) if mark == 0]
    return free[{number} % len(free)]
"""


@pytest.mark.slow
def test_an_arena_is_killed_and_the_next_one_ranks_and_plays_on_at_once(tmp_path, url):
    environ = {"DATABASE_URL": url, "SECRET_KEY": SECRET, "HARENA_WORKERS": "2"}
    settings = Settings.from_env(tmp_path, environ)
    store = Store(url)
    queue = store.jobs
    store.environments.put(ENV, EnvironmentKind.VERIFIED, settings={"episodes": 2})
    store.environments.put(LADDER, EnvironmentKind.LADDER, settings={"games_target": GAMES, "upkeep_s": 86400})
    seasons = {env_id: store.seasons.start(env_id, "season 1") for env_id in (ENV, LADDER)}
    taking = Submissions(store, queue, FileStore(settings.files), settings)
    sent = [
        *(
            taking.submit([Upload(name="a.py", data=AGENT)], owner="ann", env_id=ENV, algorithm=f"A{n}")
            for n in range(4)
        ),
        *(
            taking.submit([Upload(name="a.py", data=PLAYER.format(number=n).encode())], owner=f"o{n}", env_id=LADDER)
            for n in range(3)
        ),
    ]

    def ended():
        return store.matches.where(env_id=LADDER, state=MatchState.FINISHED, limit=1000)

    server = Server(tmp_path, environ)
    until(lambda: len(ended()) >= 2 and queue.running())
    server.kill()
    lost = queue.running()
    server = Server(tmp_path, environ)
    until(lambda: all(queue.get(job.id).fence > job.fence for job in lost))  # long before their leases are over
    until(lambda: all(store.submissions.get(one.id).state is State.RANKED for one in sent))
    until(lambda: len(ended()) * 2 >= 3 * GAMES and not store.matches.open())
    server.stop()

    board = store.boards.top(ENV)
    assert sorted(entry.algorithm for entry in board) == ["A0", "A1", "A2", "A3"]
    assert [entry.score for entry in board] == sorted((entry.score for entry in board), reverse=True)
    assert [len(store.submissions.evaluations(one.id)) for one in sent] == [1, 1, 1, 1, 0, 0, 0]
    found = rebuild(store, LADDER, seasons[LADDER].id, check=True)
    assert (found.same, found.matches, found.behind) == (True, len(ended()), 0)
    lines = Standings(store).standings(LADDER)
    assert [line.place for line in lines] == [1, 2, 3]
    assert sum(line.games for line in lines) == 2 * len(ended())
    store.close()
