"""The wall clock jumps by an hour, as after a suspend or a wrong time server: no job is lost or stuck, no share or quota
is charged for the hour, and sessions stay."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from harena.api.auth import Sessions
from harena.arena.db import jobs as jobs_module
from harena.arena.db.accounts.keys import KeyRecord
from harena.arena.db.models import HookKind, JobState, QuotaExceeded, Scope
from harena.arena.db.records import DefaultQuota
from harena.arena.queue import workers as workers_module
from harena.arena.queue.workers import JobWorkers
from support import preloads
from support.entries import ENV, submit

HOUR = 3600
SOON_S = 60.0
JUMPS = pytest.mark.parametrize("offset_s", [HOUR, -HOUR], ids=["ahead", "back"])


def until(look, within_s=SOON_S):
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


@pytest.fixture
def jumping(store, monkeypatch):
    """The store on the machine's clock, which jumps when the test says so."""
    moved = [0.0]
    monkeypatch.setattr(store.database, "clock", lambda: time.time() + moved[0])
    monkeypatch.setattr(store.database, "steady", time.monotonic)

    def jump(by_s):
        moved[0] += by_s

    return jump


@pytest.fixture
def crew(store, monkeypatch):
    monkeypatch.setattr(workers_module, "LOOK_S", 0.01)
    made = []

    def start(handler):
        crew = JobWorkers(store, store.jobs, handlers={"work": handler}, slots={"work": 1}, on_dead=lambda job: None)
        crew.start()
        made.append(crew)
        return crew

    yield start
    for one in made:
        one.stop(grace_s=0.1)


# ---- leases and waits ----


@JUMPS
def test_a_job_that_runs_while_the_clock_jumps_is_done_once_and_by_its_holder(store, jumping, crew, offset_s):
    began, go_on, done = threading.Event(), threading.Event(), []

    def handler(job, cancelled):
        began.set()
        assert go_on.wait(SOON_S)
        return lambda: done.append(job.fence)

    workers = crew(handler)
    job_id = store.jobs.enqueue("work", {}, share="ann")
    assert began.wait(SOON_S)
    jumping(offset_s)
    until(lambda: abs(workers._offset_s - (time.time() + offset_s - time.monotonic())) < 60)  # it has seen the jump
    workers._sweep(store.clock())
    go_on.set()
    until(lambda: store.jobs.get(job_id).state is JobState.DONE)
    job = store.jobs.get(job_id)
    assert (done, job.fence, job.deaths) == ([1], 1, 0)
    assert 0 <= job.finished_at - job.started_at < SOON_S  # not an hour


def test_what_was_queued_before_the_clock_went_back_is_done_at_once(store, jumping, crew):
    waits = store.jobs.enqueue("work", {})
    store.jobs.fail(store.jobs.claim("work", "w"), "once")  # and waits for its next attempt
    jumping(-HOUR)
    assert store.jobs.due("w") == []
    crew(lambda job, cancelled: lambda: None)
    until(lambda: store.jobs.get(waits).state is JobState.DONE)


def test_a_running_crew_sees_that_the_clock_went_back(store, jumping, crew):
    crew(lambda job, cancelled: lambda: None)
    until(lambda: not store.jobs.late(0.0))
    first = store.jobs.enqueue("work", {})
    until(lambda: store.jobs.get(first).state is JobState.DONE)
    with store.begin():
        job_id = store.jobs.enqueue("work", {})
        jumping(-HOUR)
    until(lambda: store.jobs.get(job_id).state is JobState.DONE)


def test_the_job_of_a_worker_that_died_before_the_clock_went_back_waits_for_no_more_than_a_lease(store, jumping):
    job_id = store.jobs.enqueue("work", {})
    store.jobs.claim("work", "gone")
    jumping(-HOUR)
    assert store.jobs.mend_times() == 1
    now = store.clock()
    assert now < store.jobs.get(job_id).lease_until <= now + jobs_module.LEASE_S
    jumping(jobs_module.LEASE_S + 1)
    assert [job.id for job in store.jobs.sweep().requeued] == [job_id]


def test_other_workers_may_renew_their_leases_after_the_clock_went_forward(store, jumping, crew):
    theirs = store.jobs.enqueue("work", {})
    held = store.jobs.claim("work", "elsewhere")
    workers = crew(lambda job, cancelled: lambda: None)
    mine = store.jobs.enqueue("work", {})
    until(lambda: store.jobs.get(mine).state is JobState.DONE)
    jumping(HOUR)
    until(lambda: workers._patient_until)
    time.sleep(2 * workers_module.SWEEP_S)  # so long that it would have been swept
    assert store.jobs.get(theirs).fence == held.fence
    store.jobs.heartbeat(held)
    store.jobs.finish(held)
    assert store.jobs.get(theirs).deaths == 0


def test_a_share_is_not_charged_for_an_hour_that_did_not_pass(store, jumping):
    first = store.jobs.enqueue("work", {}, share="ann")
    second = store.jobs.enqueue("work", {}, share="ann")
    job = store.jobs.claim("work", "w")
    assert job.id == first
    before = store.jobs.get(second).turn
    jumping(HOUR)
    store.jobs.finish(job)
    assert abs(store.jobs.get(second).turn - before) < SOON_S
    third = store.jobs.enqueue("work", {}, share="ann")
    assert store.jobs.get(third).turn < before + SOON_S


# ---- notices, quotas, sessions ----


def test_a_notice_is_sent_also_when_the_clock_went_back(store, jumping):
    hook = store.notices.add_hook("ann", HookKind.WEBHOOK, "https://example.org/")
    made = store.notices.add_delivery(hook.id, "result", {})
    jumping(-HOUR)
    claimed = store.notices.claim(60.0)
    assert claimed is not None
    assert claimed.id == made
    assert store.notices.claim(60.0) is None


def test_the_quota_of_a_day_that_comes_twice_is_given_once(store, clock):
    quota = DefaultQuota(per_day=2, at_once=None)
    clock.now = 86400.0 * 20_000 - 60  # a minute before midnight

    def fill():
        for _ in range(2):
            submit(store, quota=quota)
        with pytest.raises(QuotaExceeded):
            submit(store, quota=quota)

    fill()
    clock.now += HOUR
    fill()
    for offset_s in (-HOUR, HOUR):
        clock.now += offset_s
        with pytest.raises(QuotaExceeded):
            submit(store, quota=quota)
    assert len(store.submissions.of("ann")) == 4


@JUMPS
def test_a_session_outlives_a_jump_and_ends_by_its_own_time(offset_s):
    now = [1_000_000.0]
    key = KeyRecord(
        id="0123456789abcdef",
        owner_id="0",
        owner="ann",
        scopes=frozenset({Scope.READ}),
        label="",
        created_at=0.0,
        expires_at=None,
        revoked_at=None,
    )
    sessions = Sessions(b"only for tests " * 3, lambda: now[0])
    cookie = sessions.cookie(key)
    now[0] += offset_s
    assert sessions.key_id(cookie) == key.id
    now[0] += 13 * HOUR
    assert sessions.key_id(cookie) is None


# ---- a whole arena ----

AGENT = b"def act(observation):\n    return int(observation[2] + observation[3] > 0)\n# %d\n"
PORTS = ["--port", "0", "--ui-port", "off", "--grpc-port", "off", "--metrics-port", "off"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_an_arena_ranks_all_that_is_sent_while_its_clock_jumps_ahead_and_back(tmp_path):
    pytest.importorskip("gymnasium")
    clock = preloads.WallClock(tmp_path)
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "harena", "up", *PORTS, "--no-demo", "--data", str(tmp_path / "data")],
            env={**os.environ, **clock.environ, "HARENA_WORKERS": "1"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        said = ""
        for line in up.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        url = re.search(r"http://127\.0\.0\.1:\d+", said)[0]
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:

            def send(number):
                fields = {"env_id": ENV, "algorithm": f"A{number}", "user_id": "ann"}
                return client.post("/api/submit/", files={"file": ("a.py", AGENT % number)}, data=fields).json()["id"]

            def shown_hour():
                return client.get("/v1").json()["time"][:13]

            sent, start = [], shown_hour()
            for number, offset_s in enumerate((HOUR, -HOUR)):
                sent.append(send(2 * number))
                clock.jump_to(offset_s)
                sent.append(send(2 * number + 1))
                assert shown_hour() != start  # the server sees the jump

            def states():
                return {client.get(f"/api/results/{one}").json()["status"] for one in sent}

            until(lambda: states() == {"completed"}, within_s=200.0)
            board = client.get("/api/leaderboard/", params={"env_id": ENV}).json()
            assert len(board) == len(sent)
        up.send_signal(signal.SIGTERM)
        assert up.wait(SOON_S) == 0
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        if up.poll() is None:
            up.kill()
        up.communicate()
