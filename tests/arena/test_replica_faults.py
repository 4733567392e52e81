"""Evaluations and a ladder on several processes while a worker, an API replica, Redis and PostgreSQL are killed with -9
and brought back: every submission ends once, no rating moves twice, no quota is lost, nothing is stuck.

`HARENA_FAULT_EVALUATIONS=1000 pytest -m soak tests/arena/test_replica_faults.py` is the long run.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
import uuid

import httpx
import pytest
import sqlalchemy as sa

from support import servers
from support.entries import ENV

pytest.importorskip("gymnasium")
pytest.importorskip("redis")

from harena.arena.db.files import FileStore
from harena.arena.db.models import (
    EnvironmentKind,
    JobState,
    MatchState,
    State,
    StoreError,
    charges,
    evaluations,
    ratings,
    submissions,
)
from harena.arena.db.store import Store
from harena.arena.ladder.rebuild import rebuild
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.service import Submissions

LADDER = "tictactoe-v1"
FINAL = {State.RANKED, State.REJECTED, State.FAILED, State.CANCELLED}
SECRET = "only for tests, and 16 bytes at least"
AGENT = "def act(observation): return int(observation[2] + observation[3] > 0)\n# {number}\n"
PLAYER = """
def act(observation):
    free = [cell for cell, mark in enumerate(observation.ravel()) if mark == 0]
    return free[{number} % len(free)]
"""
GAMES = 4
NAMES = ("worker 1", "api", "redis", "postgres", "worker 2")


class Site:
    """Every process of an arena, each of which can be killed and brought back."""

    def __init__(self, folder):
        self.postgres = servers.Postgres(servers.programs())
        self.redis = servers.Redis()
        self.port = servers.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {
            "DATABASE_URL": self.postgres.url("postgres"),
            "REDIS_URL": self.redis.url,
            "SECRET_KEY": SECRET,
            "HARENA_WORKERS": "1",
            "HARENA_AT_ONCE": "0",
            "HARENA_PER_DAY": "100000",
        }
        self.folder = folder
        self.store = Store(self.environ["DATABASE_URL"])
        self.processes = {}

    def run(self, name):
        ports = [part for port in ("--ui-port", "--grpc-port", "--metrics-port") for part in (port, "off")]
        command = {
            "api": ["up", "--no-workers", "--no-demo", "--port", str(self.port), *ports],
            "worker 1": ["worker", "--metrics-port", "off"],
            "worker 2": ["worker", "--metrics-port", "off"],
        }[name]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "harena", *command, "--data", self.folder / "data"],
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, name):
        if name == "redis":
            self.redis.kill()
        elif name == "postgres":
            self.postgres.process.kill()
            self.postgres.process.wait()
        else:
            self.processes[name].kill()
            self.processes[name].wait()

    def back(self, name):
        if name == "redis":
            self.redis.start()
        elif name == "postgres":
            # What it left behind keeps its folder until it has seen that it is alone.
            end = time.monotonic() + 120.0
            while True:
                try:
                    self.postgres.start()
                    return
                except AssertionError:
                    assert time.monotonic() < end
                    time.sleep(0.5)
        else:
            self.run(name)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.store.close()
        self.redis.close()
        self.postgres.close()


@pytest.fixture
def site(tmp_path):
    if servers.programs() is None or shutil.which(servers.Redis.PROGRAM) is None:
        pytest.skip("no PostgreSQL or Redis here: apt-get install postgresql redis-server")
    site = Site(tmp_path)
    yield site
    site.close()


def prepare(site):
    site.store.environments.put(ENV, EnvironmentKind.VERIFIED, settings={"episodes": 2, "practice_episodes": 1})
    site.store.environments.put(LADDER, EnvironmentKind.LADDER, settings={"games_target": GAMES, "upkeep_s": 86400})
    seasons = {env_id: site.store.seasons.start(env_id, "season 1") for env_id in (ENV, LADDER)}
    settings = Settings.from_env(site.folder / "data", site.environ)
    taking = Submissions(site.store, site.store.jobs, FileStore(settings.files), settings)
    for number in range(3):
        upload = Upload(name="a.py", data=PLAYER.format(number=number).encode())
        taking.submit([upload], owner=f"player{number}", env_id=LADDER)
    return seasons


def send(site, number, client_id, end):
    """Until the server has it: whoever sends with an id of their own may send again."""
    while time.monotonic() < end:
        try:
            answer = httpx.post(
                f"{site.url}/api/submit/",
                files={"file": ("agent.py", AGENT.format(number=number).encode())},
                data={"env_id": ENV, "algorithm": f"A{number}", "client_id": client_id, "user_id": f"u{number % 9}"},
                timeout=30,
            )
        except httpx.HTTPError:
            time.sleep(0.5)
            continue
        if answer.status_code in (200, 201, 409):
            return
        assert answer.status_code in (429, 503), answer.text
        time.sleep(0.5)
    raise AssertionError("it was never taken")


def asked(look):
    """Ask the database until it is there."""
    while True:
        try:
            return look()
        except StoreError:
            time.sleep(0.2)


def ranked(site):
    of = sa.select(sa.func.count().label("n")).select_from(submissions)
    return site.store.database.row(of.where(submissions.c.env_id == ENV, submissions.c.state == State.RANKED))["n"]


def play(site, evaluations_wanted, rounds, limit_s):
    end = time.monotonic() + limit_s
    seasons = prepare(site)
    for name in ("api", "worker 1", "worker 2"):
        site.run(name)
    ids = [uuid.uuid4().hex for _ in range(evaluations_wanted)]
    failed = []

    def sender(part):
        try:
            for number in part:
                send(site, number, ids[number], end)
        except BaseException as error:
            failed.append(error)

    senders = [threading.Thread(target=sender, args=(range(n, len(ids), 3),)) for n in range(3)]
    for thread in senders:
        thread.start()
    rng = random.Random(16)
    names = [name for _ in range(rounds) for name in rng.sample(NAMES, len(NAMES))]
    for number, name in enumerate(names):
        wanted = number * evaluations_wanted // len(names) + 1
        while asked(lambda: ranked(site)) < wanted:  # spread over the work, however quick it is
            assert time.monotonic() < end, failed
            time.sleep(0.2)
        site.kill(name)
        time.sleep(rng.uniform(0.0, 2.0))
        site.back(name)
    for thread in senders:
        thread.join()
    assert not failed, failed

    def open_jobs():
        counts = site.store.jobs.counts()
        return sum(n for (_, state), n in counts.items() if state in (JobState.QUEUED, JobState.RUNNING))

    def settled():
        found = [site.store.submissions.get(one).state for one in ids]
        return all(state in FINAL for state in found) and not open_jobs() and not site.store.matches.open()

    while not asked(settled):
        assert time.monotonic() < end, asked(lambda: (site.store.jobs.counts(), site.store.jobs.running()))
        time.sleep(0.5)
    return ids, seasons


def check(site, ids, seasons):
    store = site.store
    assert {store.submissions.get(one).state for one in ids} == {State.RANKED}
    assert [len(store.submissions.evaluations(one)) for one in ids] == [1] * len(ids)
    total = sa.select(sa.func.count().label("n"))
    count = {
        table.name: store.database.row(total.select_from(table))["n"] for table in (submissions, evaluations, charges)
    }
    assert count == {"submissions": len(ids) + 3, "evaluations": len(ids), "charges": len(ids) + 3}
    refunded = store.database.row(total.select_from(charges).where(charges.c.refunded_at.is_not(None)))["n"]
    assert refunded == 0
    found = rebuild(store, LADDER, seasons[LADDER].id, check=True)
    played = store.matches.where(env_id=LADDER, state=MatchState.FINISHED, limit=1000)
    assert (found.same, found.matches, found.behind) == (True, len(played), 0)
    assert store.database.row(total.select_from(ratings))["n"] == 2 * len(played)
    assert len(store.boards.top(ENV, limit=1000)) == len(ids)
    assert not store.jobs.dead()


@pytest.mark.services
@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_every_submission_ends_once_while_each_process_is_killed_and_brought_back(site):
    check(site, *play(site, 60, 1, 1200.0))


@pytest.mark.services
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_submissions_end_once_while_processes_are_killed_again_and_again(site):
    wanted = int(os.environ.get("HARENA_FAULT_EVALUATIONS", "1000"))
    check(site, *play(site, wanted, max(1, wanted // 50), 7000.0))
