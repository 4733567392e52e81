from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from sqlalchemy.dialects import postgresql

from harena.arena.db import jobs
from harena.arena.db.database import Database
from harena.arena.db.jobs import Queue
from harena.arena.db.models import JobState, LeaseLost, NotFound
from harena.errors import SpecError


@pytest.fixture
def queue(url, clock):
    database = Database(url, clock=clock)
    yield Queue(database)
    database.close()


def test_a_job_is_claimed_by_priority_then_in_order(queue):
    first = queue.enqueue("evaluate", {"n": 1})
    second = queue.enqueue("evaluate", {"n": 2})
    urgent = queue.enqueue("evaluate", {"n": 3}, priority=5)
    other = queue.enqueue("match", {"n": 4})
    claimed = [queue.claim("evaluate", "w") for _ in range(4)]
    assert [job and job.id for job in claimed] == [urgent, first, second, None]
    assert claimed[0].payload == {"n": 3}
    assert queue.claim("match", "w").id == other


def test_threads_never_get_the_same_job(queue):
    queue.enqueue_many("evaluate", [{"n": n} for n in range(400)])
    taken: list[int] = []

    def work(name):
        while job := queue.claim("evaluate", name):
            taken.append(job.id)
            queue.finish(job)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 400
    assert queue.counts() == {("evaluate", JobState.DONE): 400}


CLAIMER = """
import sys
from harena.arena.db.database import Database
from harena.arena.db.jobs import Queue
queue = Queue(Database(sys.argv[1]))
sys.stdin.readline()
while job := queue.claim("evaluate", sys.argv[2]):
    print(job.id, flush=True)
    if sys.argv[3:] == ["hold"]:
        sys.stdin.readline()
"""


def claimer(url, name, *more):
    return subprocess.Popen(
        [sys.executable, "-c", CLAIMER, url, name, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_never_get_the_same_job(url):
    database = Database(url)
    queue = Queue(database)
    queue.enqueue_many("evaluate", [{"n": n} for n in range(300)])
    workers = [claimer(url, f"w{n}") for n in range(3)]
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    taken = [int(line) for worker in workers for line in worker.communicate(timeout=60)[0].split()]
    assert len(taken) == len(set(taken)) == 300
    assert all(worker.returncode == 0 for worker in workers)
    database.close()


def test_a_killed_workers_job_is_given_out_again_after_its_lease(url):
    database = Database(url)
    queue = Queue(database)
    job_id = queue.enqueue("evaluate", {})
    worker = claimer(url, "doomed", "hold")
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert int(worker.stdout.readline()) == job_id
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()
    assert queue.sweep() == jobs.Swept(requeued=(), dead=())
    assert queue.claim("evaluate", "other") is None
    lease_until = queue.get(job_id).lease_until
    database.clock = lambda: lease_until + 1
    assert [job.id for job in queue.sweep().requeued] == [job_id]
    again = queue.claim("evaluate", "other")
    assert (again.id, again.attempts, again.deaths, again.worker) == (job_id, 1, 1, "other")
    assert "doomed stopped answering" in again.reason
    database.close()


def test_a_late_finish_is_refused_and_the_new_holders_counts(queue, clock):
    queue.enqueue("evaluate", {})
    late = queue.claim("evaluate", "slow", lease_s=10)
    clock.now += 11
    queue.sweep()
    with pytest.raises(LeaseLost):
        queue.finish(late)
    current = queue.claim("evaluate", "quick")
    for call in (queue.finish, queue.heartbeat, lambda job: queue.fail(job, "late")):
        with pytest.raises(LeaseLost):
            call(late)
    queue.finish(current)
    assert queue.get(current.id).state is JobState.DONE


def test_the_same_worker_cannot_finish_by_its_older_claim(queue, clock):
    queue.enqueue("evaluate", {})
    older = queue.claim("evaluate", "w", lease_s=1)
    clock.now += 2
    queue.sweep()
    newer = queue.claim("evaluate", "w")
    with pytest.raises(LeaseLost):
        queue.finish(older)
    queue.finish(newer)


def test_a_finish_counts_once(queue):
    queue.enqueue("evaluate", {})
    job = queue.claim("evaluate", "w")
    queue.finish(job)
    for call in (queue.finish, queue.heartbeat, lambda job: queue.fail(job, "again")):
        with pytest.raises(LeaseLost):
            call(job)


def test_of_many_threads_that_finish_one_job_one_succeeds(queue):
    queue.enqueue("evaluate", {})
    job, outcomes = queue.claim("evaluate", "w"), []

    def finish():
        try:
            queue.finish(job)
            outcomes.append("done")
        except LeaseLost:
            outcomes.append("lost")

    threads = [threading.Thread(target=finish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["done"] + ["lost"] * 7


def test_effects_and_finish_are_written_together_or_not_at_all(queue):
    queue.enqueue("evaluate", {})
    job = queue.claim("evaluate", "w")
    with pytest.raises(ZeroDivisionError), queue.database.begin():
        queue.enqueue("match", {"follows": job.id})
        queue.finish(job)
        _ = 1 / 0
    assert queue.get(job.id).state is JobState.RUNNING
    assert queue.claim("match", "w") is None


def test_a_heartbeat_keeps_the_lease(queue, clock):
    queue.enqueue("evaluate", {})
    job = queue.claim("evaluate", "w", lease_s=10)
    for _ in range(5):
        clock.now += 8
        queue.heartbeat(job, lease_s=10)
        assert queue.sweep().requeued == ()
    queue.finish(job)


def test_a_failed_job_waits_longer_each_time_and_ends_dead_with_its_reason(queue, clock):
    job_id = queue.enqueue("evaluate", {}, max_attempts=3)
    for attempt, wait_s in ((1, 2.0), (2, 4.0)):
        failed = queue.fail(queue.claim("evaluate", "w"), f"attempt {attempt}")
        assert (failed.state, failed.run_at) == (JobState.QUEUED, clock.now + wait_s)
        clock.now += wait_s - 0.1
        assert queue.claim("evaluate", "w") is None
        clock.now += 0.2
    assert queue.fail(queue.claim("evaluate", "w"), "the last\0 \ud800").state is JobState.DEAD
    assert [(job.id, job.reason) for job in queue.dead()] == [(job_id, "the last\ufffd ?")]
    assert queue.claim("evaluate", "w") is None
    assert queue.revive(job_id)
    assert not queue.revive(job_id)
    assert queue.claim("evaluate", "w").fence == 4


def test_what_no_retry_can_help_is_dead_at_once(queue):
    queue.enqueue("evaluate", {})
    assert queue.fail(queue.claim("evaluate", "w"), "no such environment", retry=False).state is JobState.DEAD


def lose(queue, clock, *, suspect=False):
    """A worker claims a job and is never heard of again."""
    assert queue.claim("evaluate", "w", lease_s=1, suspect=suspect)
    clock.now += 2
    return queue.sweep()


def test_a_lost_worker_costs_a_job_no_attempt_and_several_make_it_a_suspect(queue, clock):
    job_id = queue.enqueue("evaluate", {}, max_attempts=1)
    for _ in range(jobs.SUSPECT):
        assert [job.id for job in lose(queue, clock).requeued] == [job_id]
    assert queue.claim("evaluate", "w") is None
    assert (queue.due(), queue.due(suspects=True)) == ([], ["evaluate"])
    job = queue.claim("evaluate", "w", suspect=True)
    assert (job.id, job.attempts, job.suspect) == (job_id, 1, True)
    queue.finish(job)


def test_a_suspect_that_kills_every_worker_waits_longer_and_ends_dead(queue, clock):
    job_id, waits = queue.enqueue("evaluate", {}), []
    for deaths in range(jobs.MAX_DEATHS):
        swept = lose(queue, clock, suspect=deaths >= jobs.SUSPECT)
        waits.append(queue.get(job_id).run_at - clock.now)
        clock.now += jobs.MAX_DEATH_WAIT_S
    assert [job.id for job in swept.dead] == [job_id]
    assert f"lost {jobs.MAX_DEATHS} times" in swept.dead[0].reason
    assert waits[:5] == [0, 0, 2, 4, 8]
    assert queue.revive(job_id)
    assert queue.claim("evaluate", "w").deaths == 0


def test_a_job_for_one_process_is_claimed_by_that_alone_and_given_up_with_it(queue):
    job_id = queue.enqueue("desk", {}, place="here")
    assert (queue.claim("desk", "elsewhere"), queue.due("elsewhere"), queue.due("here")) == (None, [], ["desk"])
    assert [job.id for job in queue.release_all().dead] == [job_id]
    other = queue.enqueue("desk", {}, place="here")
    assert queue.claim("desk", "here").id == other
    assert [job.id for job in queue.release_all().dead] == [other]


def test_a_worker_gets_only_jobs_of_environments_that_it_has(queue):
    pong, cart = (queue.enqueue("evaluate", {}, env_id=env_id) for env_id in ("pong-v1", "CartPole-v1"))
    old = queue.enqueue("evaluate", {})
    claims = [queue.claim("evaluate", "w", environments=["CartPole-v1"]) for _ in range(3)]
    assert [job and job.id for job in claims] == [cart, old, None]
    assert queue.claim("evaluate", "w").id == pong


def test_workers_over_http_keep_their_jobs_when_the_arena_starts_anew(queue):
    kept, lost = queue.enqueue("evaluate", {}), queue.enqueue("evaluate", {})
    assert queue.claim("evaluate", f"{jobs.REMOTE}key/laptop").id == kept
    assert queue.claim("evaluate", "here").id == lost
    assert [job.id for job in queue.release_all().requeued] == [lost]


def test_backoff_is_capped():
    assert [jobs.backoff_s(n) for n in (1, 2, 3)] == [2.0, 4.0, 8.0]
    assert jobs.backoff_s(10**6) == jobs.MAX_BACKOFF_S


def test_cancel_takes_a_job_from_the_queue_and_from_its_worker(queue):
    waiting, held = queue.enqueue("evaluate", {}, priority=-1), queue.enqueue("evaluate", {})
    job = queue.claim("evaluate", "w")
    assert job.id == held
    assert queue.cancel(waiting)
    assert queue.cancel(held)
    assert not queue.cancel(held)
    with pytest.raises(LeaseLost):
        queue.heartbeat(job)
    assert queue.claim("evaluate", "w") is None


def test_a_key_makes_a_job_unique(queue):
    first = queue.enqueue("evaluate", {"n": 1}, key="submission:1")
    assert queue.enqueue("evaluate", {"n": 2}, key="submission:1") == first
    assert queue.find("submission:1").payload == {"n": 1}
    queue.finish(queue.claim("evaluate", "w"))
    assert queue.enqueue("evaluate", {}, key="submission:1") == first
    assert queue.claim("evaluate", "w") is None


def test_position_and_eta(queue, clock):
    ids = [queue.enqueue("evaluate", {}) for _ in range(6)]
    assert queue.place(ids[2]) == jobs.QueuePlace(position=2, eta_s=None)
    job = queue.claim("evaluate", "a")
    clock.now += 10
    queue.finish(job)
    assert queue.place(ids[0]) == jobs.QueuePlace(position=0, eta_s=0.0)
    queue.claim("evaluate", "a")
    queue.claim("evaluate", "b")
    clock.now += 4
    assert queue.place(ids[1]) == jobs.QueuePlace(position=0, eta_s=6.0)
    assert queue.place(ids[3]) == jobs.QueuePlace(position=0, eta_s=16.0)
    assert queue.place(ids[5]) == jobs.QueuePlace(position=2, eta_s=26.0)
    urgent = queue.enqueue("evaluate", {}, priority=1)
    assert queue.place(urgent).position == 0
    assert queue.place(ids[5]).position == 3
    assert queue.place(queue.enqueue("match", {})) == jobs.QueuePlace(position=0, eta_s=None)
    with pytest.raises(NotFound):
        queue.place(10**9)


def test_a_delayed_job_says_so_in_its_eta(queue, clock):
    queue.enqueue("evaluate", {})
    job = queue.claim("evaluate", "w")
    clock.now += 3
    queue.finish(job)
    assert queue.place(queue.enqueue("evaluate", {}, delay_s=60)).eta_s == 63.0


def test_prune_keeps_what_is_open_dead_or_recent(queue, clock):
    for _ in range(3):
        queue.enqueue("evaluate", {})
    queue.finish(queue.claim("evaluate", "w"))
    queue.fail(queue.claim("evaluate", "w"), "no", retry=False)
    clock.now += 100
    assert queue.prune(older_than_s=101) == 0
    assert queue.prune(older_than_s=99) == 1
    assert queue.counts() == {("evaluate", JobState.DEAD): 1, ("evaluate", JobState.QUEUED): 1}


@pytest.mark.parametrize("payload", [{"n": float("nan")}, {"n": b"x"}, {"n": "x" * (2 << 20)}, {1: {2}}])
def test_a_payload_that_is_no_json_is_refused(queue, payload):
    with pytest.raises(SpecError, match="JSON"):
        queue.enqueue("evaluate", payload)
    assert queue.counts() == {}


def test_claim_is_by_index_and_skips_locked_rows_on_postgresql(queue, url):
    search = (
        "SELECT id FROM jobs WHERE state='queued' AND kind='e' AND run_at<=1 ORDER BY priority DESC, turn, id LIMIT 1"
    )
    with queue.database.begin() as connection:
        if url.startswith("sqlite"):
            steps = " ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {search}"))
            assert "USING INDEX jobs_in_order" in steps
            assert "TEMP B-TREE" not in steps
        else:
            for other in ("seqscan", "bitmapscan", "sort"):  # of an empty table they would be the quickest
                connection.exec_driver_sql(f"SET LOCAL enable_{other} = off")
            steps = " ".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {search}"))
            assert "Index Scan using jobs_in_order" in steps
            assert "Sort" not in steps
    assert "FOR UPDATE SKIP LOCKED" in str(jobs.CLAIM.compile(dialect=postgresql.dialect()))
