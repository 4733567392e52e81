"""Jobs are done by threads, each decision counts once, and what the platform fails at is tried again or given up."""

from __future__ import annotations

import threading
import time

import pytest

from harena.arena.db import jobs as jobs_module
from harena.arena.db.models import Conflict, JobState
from harena.arena.db.store import Store
from harena.arena.queue import workers as module
from harena.arena.queue.workers import JobWorkers, TryAgain
from harena.arena.submissions.evaluate import EvaluationCancelled, EvaluationVoid
from harena.errors import BoxLost, HarenaError, Retry, SpecError

SOON_S = 15.0


@pytest.fixture
def store(url):
    store = Store(url)
    yield store
    store.close()


@pytest.fixture
def queue(store):
    return store.jobs


@pytest.fixture
def crew(store, queue):
    """Makes workers that are stopped in the end."""
    made = []

    def make(handler, *, slots=1, start=True, **more):
        seen = {"dead": [], "requeued": []}
        workers = JobWorkers(
            store,
            queue,
            handlers={"work": handler},
            slots={"work": slots},
            on_dead=seen["dead"].append,
            on_requeued=seen["requeued"].append,
            **more,
        )
        workers.seen = seen
        made.append(workers)
        if start:
            workers.start()
        return workers

    yield make
    for workers in made:
        workers.stop(0)


def until(what, timeout_s=SOON_S):
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def state(queue, job_id):
    return queue.get(job_id).state


# ---- doing ----


def test_what_a_job_decides_is_written_with_its_end(store, queue, crew):
    def handler(job, cancelled):
        return lambda: store.events.publish(
            "queue", "done", {"n": job.payload["n"], "state": queue.get(job.id).state.value}
        )

    crew(handler, slots=3)
    for n in range(50):
        queue.enqueue("work", {"n": n})
    until(lambda: queue.counts() == {("work", JobState.DONE): 50})
    told = [notice.body for notice in store.events.after(0, topic="queue")]
    assert sorted(body["n"] for body in told) == list(range(50))
    assert {body["state"] for body in told} == {"done"}


def test_a_new_job_is_taken_up_at_once(queue, crew, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 60.0)
    took = threading.Event()
    crew(lambda job, cancelled: took.set)
    time.sleep(0.05)
    queue.enqueue("work", {})
    assert took.wait(SOON_S), "it waited until it looked by itself"


def test_jobs_of_another_process_are_found(queue, crew, url):
    took = threading.Event()
    crew(lambda job, cancelled: took.set)
    other = Store(url)
    other.jobs.enqueue("work", {})
    other.close()
    assert took.wait(SOON_S)


def test_never_more_than_the_slots(queue, crew):
    at_work, most, lock = 0, 0, threading.Lock()

    def handler(job, cancelled):
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.01)
        with lock:
            at_work -= 1
        return lambda: None

    crew(handler, slots=2)
    queue.enqueue_many("work", [{}] * 20)
    until(lambda: queue.counts() == {("work", JobState.DONE): 20})
    assert most == 2


def test_idle_workers_write_nothing(store, queue, crew, monkeypatch):
    looks, look = [], queue.due
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(queue, "due", lambda *args, **options: looks.append(1) or look(*args, **options))
    written = []
    crew(lambda job, cancelled: lambda: None, slots=3)
    until(lambda: len(looks) > 2)  # the first one sweeps and prunes
    begin, store.begin = store.begin, lambda: written.append(1) or begin()
    until(lambda: len(looks) > 20)
    store.begin = begin
    assert written == []


# ---- failing ----


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (EvaluationVoid("void", retry=Retry.SAFE), True),
        (BoxLost("lost"), True),
        (TryAgain("later"), True),
        (Conflict("busy"), True),
        (OSError(28, "No space left on device"), True),
        (ZeroDivisionError("a bug"), True),
        (EvaluationVoid("the game is broken", retry=Retry.NEVER), False),
        (SpecError("bad"), False),
        (HarenaError("no"), False),
    ],
)
def test_what_is_worth_another_attempt(queue, crew, error, again):
    def handler(job, cancelled):
        raise error

    workers = crew(handler)
    job_id = queue.enqueue("work", {})
    until(lambda: queue.get(job_id).reason)
    after = queue.get(job_id)
    assert after.state is (JobState.QUEUED if again else JobState.DEAD)
    assert str(error) in after.reason
    assert [job.id for job in workers.seen["requeued" if again else "dead"]] == [job_id]
    if again:
        assert after.run_at > time.time() + jobs_module.BACKOFF_S / 2


def test_a_job_that_keeps_failing_is_given_up_once(queue, crew, monkeypatch):
    monkeypatch.setattr(jobs_module, "BACKOFF_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    attempts = []

    def handler(job, cancelled):
        attempts.append(job.attempts)
        raise BoxLost("again")

    workers = crew(handler, slots=2)
    job_id = queue.enqueue("work", {})
    until(lambda: state(queue, job_id) is JobState.DEAD)
    assert attempts == [1, 2, 3]
    assert [job.id for job in workers.seen["dead"]] == [job_id]
    assert len(workers.seen["requeued"]) == 2


def test_a_decision_that_cannot_be_written_leaves_nothing_and_is_tried_again(store, queue, crew, monkeypatch):
    monkeypatch.setattr(jobs_module, "BACKOFF_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    def handler(job, cancelled):
        def commit():
            store.events.publish("queue", "decided", {"attempt": job.attempts})
            if job.attempts == 1:
                raise RuntimeError("the disk")

        return commit

    crew(handler)
    job_id = queue.enqueue("work", {})
    until(lambda: state(queue, job_id) is JobState.DONE)
    assert [notice.body for notice in store.events.after(0, topic="queue")] == [{"attempt": 2}]


def test_what_follows_from_a_dead_job_is_written_with_it(store, queue, crew):
    def handler(job, cancelled):
        raise SpecError("no")

    workers = crew(handler, start=False)
    workers._on_dead = lambda job: store.events.publish("queue", "dead", {"state": queue.get(job.id).state.value})
    workers.start()
    job_id = queue.enqueue("work", {})
    until(lambda: state(queue, job_id) is JobState.DEAD)
    assert [notice.body for notice in store.events.after(0, topic="queue")] == [{"state": "dead"}]


def test_a_job_ends_though_what_follows_from_it_cannot_be_written(queue, crew):
    def handler(job, cancelled):
        raise SpecError("no")

    def on_dead(job):
        raise Conflict("it has gone")

    workers = crew(handler, start=False)
    workers._on_dead = on_dead
    workers.start()
    job_id = queue.enqueue("work", {})
    until(lambda: state(queue, job_id) is JobState.DEAD)


# ---- cancelling ----


def waits(began):
    def handler(job, cancelled):
        began.set()
        end = time.monotonic() + SOON_S
        while not cancelled():
            assert time.monotonic() < end
            time.sleep(0.005)
        raise EvaluationCancelled("called off")

    return handler


def test_a_running_job_learns_soon_that_it_was_cancelled(queue, crew):
    began = threading.Event()
    workers = crew(waits(began))
    job_id = queue.enqueue("work", {})
    assert began.wait(SOON_S)
    assert queue.cancel(job_id)
    until(lambda: not workers.running)
    assert state(queue, job_id) is JobState.CANCELLED
    assert workers.seen == {"dead": [], "requeued": []}


def test_it_also_learns_when_another_process_cancelled_it(queue, crew, url):
    began = threading.Event()
    workers = crew(waits(began))
    job_id = queue.enqueue("work", {})
    assert began.wait(SOON_S)
    other = Store(url)
    other.jobs.cancel(job_id)
    other.close()
    until(lambda: not workers.running)


def test_a_job_that_does_not_listen_decides_nothing(store, queue, crew):
    began, go = threading.Event(), threading.Event()

    def handler(job, cancelled):
        began.set()
        assert go.wait(SOON_S)
        return lambda: store.events.publish("queue", "decided", {})

    workers = crew(handler)
    job_id = queue.enqueue("work", {})
    assert began.wait(SOON_S)
    queue.cancel(job_id)
    go.set()
    until(lambda: not workers.running)
    assert store.events.after(0, topic="queue") == []
    assert state(queue, job_id) is JobState.CANCELLED


# ---- dying and stopping ----


def test_a_lease_is_kept_while_the_work_goes_on(queue, crew, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.02)
    began = threading.Event()
    crew(waits(began))
    job_id = queue.enqueue("work", {})
    assert began.wait(SOON_S)
    first = queue.get(job_id).lease_until
    until(lambda: queue.get(job_id).lease_until > first + 0.05)
    queue.cancel(job_id)


def test_a_machine_that_slept_keeps_its_own_jobs_and_takes_those_of_the_dead(store, queue, crew, monkeypatch):
    gone = queue.enqueue("work", {})
    queue.claim("work", "gone")
    began = threading.Event()
    workers = crew(waits(began))
    mine = queue.enqueue("work", {})
    assert began.wait(SOON_S)
    monkeypatch.setattr(store.database, "clock", lambda: time.time() + 3600)
    workers._sweep(store.clock())
    assert [job.id for job in workers.seen["requeued"]] == [gone]
    assert (state(queue, mine), state(queue, gone)) == (JobState.RUNNING, JobState.QUEUED)
    queue.cancel(mine)
    queue.cancel(gone)


def test_who_works_alone_takes_up_at_once_what_a_dead_worker_held(store, queue, crew):
    job_id = queue.enqueue("work", {})
    assert queue.claim("work", "gone").id == job_id
    workers = crew(lambda job, cancelled: lambda: None, alone=True)
    until(lambda: state(queue, job_id) is JobState.DONE)
    assert [job.id for job in workers.seen["requeued"]] == [job_id]
    assert (queue.get(job_id).attempts, queue.get(job_id).deaths) == (1, 1)


def test_who_is_not_alone_leaves_others_their_jobs(queue, crew):
    mine, theirs = queue.enqueue("work", {}), queue.enqueue("work", {})
    assert queue.claim("work", "busy").id == mine
    crew(lambda job, cancelled: lambda: None)
    until(lambda: state(queue, theirs) is JobState.DONE)
    assert state(queue, mine) is JobState.RUNNING


def test_a_job_that_takes_the_process_with_it_each_time_is_given_up(store, queue, crew, monkeypatch):
    job_id = queue.enqueue("work", {})
    for deaths in range(jobs_module.MAX_DEATHS - 1):
        monkeypatch.setattr(store.database, "clock", lambda deaths=deaths: time.time() + deaths * 60)
        queue.claim("work", "gone", suspect=deaths >= jobs_module.SUSPECT)
        queue.release_all()
    monkeypatch.setattr(store.database, "clock", lambda: time.time() + jobs_module.MAX_DEATHS * 60)
    queue.claim("work", "gone", suspect=True)
    workers = crew(lambda job, cancelled: lambda: None, alone=True)
    assert [job.id for job in workers.seen["dead"]] == [job_id]
    assert state(queue, job_id) is JobState.DEAD


def test_a_suspect_runs_while_nothing_else_does_and_all_the_rest_is_done(queue, crew, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    suspect = queue.enqueue("work", {"suspect": True})
    for _ in range(jobs_module.SUSPECT):
        assert queue.claim("work", "gone").id == suspect
        queue.release_all()
    at_work, beside, lock = set(), [], threading.Lock()

    def handler(job, cancelled):
        with lock:
            at_work.add(job.id)
            if suspect in at_work:
                beside.append(len(at_work))
        time.sleep(0.02)
        with lock:
            at_work.discard(job.id)
        return lambda: None

    queue.enqueue_many("work", [{}] * 20)
    crew(handler, slots=3)
    until(lambda: queue.counts() == {("work", JobState.DONE): 21})
    assert beside == [1]


def test_a_suspect_is_not_kept_waiting_by_work_that_never_ends(queue, crew, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "SUSPECT_PATIENCE_S", 0.1)
    suspect = queue.enqueue("work", {})
    for _ in range(jobs_module.SUSPECT):
        queue.claim("work", "gone")
        queue.release_all()

    def handler(job, cancelled):
        time.sleep(0.005)
        return lambda: job.id == suspect or queue.enqueue("work", {})

    queue.enqueue_many("work", [{}] * 4)
    crew(handler, slots=2)
    until(lambda: state(queue, suspect) is JobState.DONE)


def test_a_clean_stop_finishes_what_it_can(queue, crew):
    began = threading.Event()

    def handler(job, cancelled):
        began.set()
        time.sleep(0.1)
        return lambda: None

    workers = crew(handler)
    first, second = queue.enqueue("work", {}), queue.enqueue("work", {})
    assert began.wait(SOON_S)
    workers.stop(SOON_S)
    assert (state(queue, first), state(queue, second)) == (JobState.DONE, JobState.QUEUED)


def test_a_clean_stop_gives_back_the_rest_and_counts_no_attempt(queue, crew):
    began = threading.Event()
    workers = crew(waits(began))
    job_id = queue.enqueue("work", {})
    assert began.wait(SOON_S)
    workers.stop(0.05)
    workers.stop(0.05)
    given_back = queue.get(job_id)
    assert (given_back.state, given_back.attempts, given_back.worker) == (JobState.QUEUED, 0, None)
    assert [job.id for job in workers.seen["requeued"]] == [job_id]
    again = crew(lambda job, cancelled: lambda: None)
    until(lambda: state(queue, job_id) is JobState.DONE)
    assert again.seen == {"dead": [], "requeued": []}


def test_what_is_long_over_is_forgotten(store, queue, crew, monkeypatch):
    monkeypatch.setattr(module, "KEEP_JOBS", 2)
    monkeypatch.setattr(module, "KEEP_EVENTS", 3)
    waiting = queue.enqueue("other", {})
    done = [queue.enqueue("work", {}) for _ in range(5)]
    while job := queue.claim("work", "w"):
        queue.finish(job)
    for number in range(9):
        store.events.publish("queue", "n", {"n": number})
    crew(lambda job, cancelled: lambda: None)
    until(lambda: [notice.body["n"] for notice in store.events.after(0)] == [6, 7, 8])
    assert queue.counts() == {("other", JobState.QUEUED): 1, ("work", JobState.DONE): 2}
    assert queue.get(waiting)
    assert queue.get(done[-2])
