"""Several processes on one PostgreSQL: each hears of the others at once, one makes the matches, and nobody pays for a
process that died."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from support.entries import ENV
from support.killable import Server, until

pytest.importorskip("gymnasium")

from harena.arena.arena import Arena, Roles
from harena.arena.db import database, jobs
from harena.arena.db.files import FileStore
from harena.arena.db.models import EnvironmentKind, State
from harena.arena.db.store import Store
from harena.arena.events import bus
from harena.arena.ladder import matchmaker
from harena.arena.queue import workers as workers_module
from harena.arena.queue.workers import JobWorkers
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.service import Submissions

pytestmark = pytest.mark.services

SOON_S = 60.0
SECRET = "only for tests, and 16 bytes at least"
AGENT = b"def act(observation): return int(observation[2] + observation[3] > 0)\n"


@pytest.fixture
def url(postgres_url):
    return postgres_url


@pytest.fixture
def environ(url):
    return {"DATABASE_URL": url, "SECRET_KEY": SECRET, "HARENA_WORKERS": "1"}


@pytest.fixture
def replica(tmp_path, environ):
    """Starts arenas of this process as if they were several, without workers unless asked for."""
    made = []

    def make(**roles):
        arena = Arena(Settings.from_env(tmp_path, environ), Roles(**{"workers": False, "matchmaker": False} | roles))
        made.append(arena)
        arena.start()
        return arena

    yield make
    for arena in made:
        arena.stop(0)


def test_an_event_of_one_process_reaches_the_streams_of_another_without_a_poll(replica, monkeypatch):
    monkeypatch.setattr(bus, "POLL_S", 3600.0)
    here, there = replica(), replica()
    with there.hub.subscribe(["topic"]) as news:
        here.store.events.publish("topic", "kind", {"n": 1})
        assert [notice.body for notice in news.get(SOON_S)] == [{"n": 1}]


def test_a_job_of_one_process_wakes_the_workers_of_another_without_a_poll(replica, url, monkeypatch):
    monkeypatch.setattr(workers_module, "LOOK_S", 3600.0)
    here, there = replica(), Store(url)
    there.database.join()
    took = threading.Event()
    workers = JobWorkers(
        there, there.jobs, handlers={"work": lambda job, cancelled: took.set}, slots={"work": 1}, on_dead=print
    )
    workers.start()
    there.database.settle()
    time.sleep(0.2)
    here.queue.enqueue("work", {})
    assert took.wait(SOON_S)
    workers.stop(0)
    there.close()


def test_what_was_committed_while_the_connection_was_lost_is_seen_after_it(replica, postgres, monkeypatch):
    monkeypatch.setattr(bus, "POLL_S", 3600.0)
    here, there = replica(), replica()
    with there.hub.subscribe(["topic"]) as news:
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'harena' "
            "AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
        )
        here.store.events.publish("topic", "kind", {"n": 2})
        assert [notice.body for notice in news.get(SOON_S)] == [{"n": 2}]


def test_one_process_makes_matches_and_another_takes_over_when_it_stops(replica, monkeypatch):
    monkeypatch.setattr(matchmaker, "TICK_S", 0.05)
    first = replica(matchmaker=True)
    until(lambda: first.matchmaker.leads)
    second = replica(matchmaker=True)
    time.sleep(0.3)
    assert (first.matchmaker.leads, second.matchmaker.leads) == (True, False)
    first.stop(0)
    until(lambda: second.matchmaker.leads)


LEADER = """
import sys
from harena.arena.db.store import Store
store = Store(sys.argv[1])
print(store.database.leadership.lead(), flush=True)
sys.stdin.read()
"""


def test_a_killed_leader_is_followed_and_one_that_lost_its_connection_gives_way(replica, url, postgres, monkeypatch):
    monkeypatch.setattr(matchmaker, "TICK_S", 0.05)
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    arena = replica(matchmaker=True)
    time.sleep(0.3)
    assert not arena.matchmaker.leads
    process.kill()
    process.communicate()
    until(lambda: arena.matchmaker.leads)
    other = Store(url)
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    until(lambda: other.database.leadership.lead() is not arena.matchmaker.leads)  # one of them, never both
    other.close()
    until(lambda: arena.matchmaker.leads)


def test_the_second_process_leaves_the_first_its_jobs(replica):
    first = replica()
    first.queue.enqueue("work", {})
    job = first.queue.claim("work", "first")
    replica()
    assert first.queue.get(job.id).fence == job.fence
    assert first.queue.get(job.id).deaths == 0


def test_a_process_waits_for_one_that_is_starting_and_says_so_when_that_takes_too_long(url, monkeypatch):
    first, second = Store(url), Store(url)
    assert first.database.join()
    monkeypatch.setattr(database, "JOIN_S", 0.2)
    with pytest.raises(database.DatabaseInUse, match="is starting"):
        second.database.join()
    first.database.settle()
    assert second.database.join() is False
    second.close()
    first.close()


WORKER = """
import json, sys
from harena.arena.arena import Arena, Roles
from harena.arena.settings import Settings
settings = Settings.from_env(sys.argv[1], json.loads(sys.argv[2]))
with Arena(settings, Roles(matchmaker=False)):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_workers_of_several_processes_share_a_queue_and_none_evaluates_twice(tmp_path, replica, environ):
    arena = replica(matchmaker=True)
    arena.put_environment(ENV, settings={"episodes": 2, "practice_episodes": 1})
    sent = [
        arena.submissions.submit(
            [Upload(name="a.py", data=AGENT + b"# %d\n" % n)], owner="ann", env_id=ENV, algorithm=f"A{n}"
        )
        for n in range(6)
    ]
    crew = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, tmp_path, json.dumps(environ)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for worker in crew:
        assert worker.stdout.readline() == "ready\n"
    until(lambda: all(arena.store.submissions.get(one.id).state is State.RANKED for one in sent))
    for worker in crew:
        worker.communicate()
        assert worker.returncode == 0
    assert [len(arena.store.submissions.evaluations(one.id)) for one in sent] == [1] * 6
    holders = {arena.queue.get(arena.store.submissions.get(one.id).job_id).worker for one in sent}
    assert holders.isdisjoint({arena.workers.name})


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_ten_deaths_of_the_whole_arena_charge_nobody(tmp_path, environ, url):
    settings = Settings.from_env(tmp_path, environ)
    store = Store(url)
    store.environments.put(ENV, EnvironmentKind.VERIFIED, settings={"episodes": 3, "practice_episodes": 1})
    store.seasons.start(ENV, "season 1")
    taking = Submissions(store, store.jobs, FileStore(settings.files), settings)
    sent = [
        taking.submit([Upload(name="a.py", data=AGENT + b"#%d\n" % n)], owner="ann", env_id=ENV, algorithm=f"A{n}")
        for n in range(8)
    ]
    for _ in range(10):
        server = Server(tmp_path, environ)
        end = time.monotonic() + 20.0
        while not store.jobs.running() and time.monotonic() < end:
            time.sleep(0.005)
        server.kill()
    server = Server(tmp_path, environ)
    end = time.monotonic() + 100.0
    while any(store.submissions.get(one.id).state is not State.RANKED for one in sent):
        assert time.monotonic() < end, [(store.submissions.get(one.id).state, one.id) for one in sent]
        time.sleep(0.05)
    server.stop()
    assert [len(store.submissions.evaluations(one.id)) for one in sent] == [1] * 8
    assert jobs.MAX_DEATHS > 10
    store.close()
