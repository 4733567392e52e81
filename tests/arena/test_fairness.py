"""Who is served next: shares take turns by the time they take, whatever they have queued, and slots are given up."""

from __future__ import annotations

import threading
import time

import pytest

from harena.arena.db.database import Database
from harena.arena.db.jobs import Queue, share_of
from harena.arena.db.models import JobState
from harena.arena.db.store import Store
from harena.arena.queue import workers as module
from harena.arena.queue.workers import JobWorkers, WorkerLane
from harena.arena.submissions.evaluate import EvaluationCancelled

KIND = "evaluate"


@pytest.fixture
def queue(url, clock):
    database = Database(url, clock=clock)
    yield Queue(database)
    database.close()


def served(queue, clock, seconds, *, slots=1, until_s=1000.0, arrivals=()):
    """Serves the queue as workers would, on the test's clock. When each job began, by the name in its payload."""
    began: dict[str, float] = {}
    running: list[tuple[float, object]] = []
    waiting = sorted(arrivals, key=lambda one: one[0])
    start = clock.now
    while clock.now - start < until_s:
        while waiting and waiting[0][0] <= clock.now - start:
            waiting.pop(0)[1]()
        for end, job in [one for one in running if one[0] <= clock.now]:
            queue.finish(job)
            running.remove((end, job))
        while len(running) < slots and (job := queue.claim(KIND, "w")) is not None:
            name = job.payload["name"]
            began[name] = clock.now - start
            running.append((clock.now + seconds(name), job))
        if not running and not waiting:
            break
        clock.now += 0.5
    return began


def put(queue, name, share, part=""):
    return queue.enqueue(KIND, {"name": name}, share=share, part=part)


def test_a_newcomer_does_not_wait_for_all_that_another_has_queued(queue, clock):
    for number in range(50):
        put(queue, f"slow {number}", "slow")
    began = served(
        queue,
        clock,
        lambda name: 20.0 if name.startswith("slow") else 1.0,
        until_s=60,
        arrivals=[(5.0, lambda: put(queue, "new", "new"))],
    )
    assert began["new"] == 20.0  # when the job that runs has ended


def test_shares_get_the_same_time_not_the_same_number_of_jobs(queue, clock):
    for number in range(40):
        put(queue, f"slow {number}", "slow")
        put(queue, f"quick {number}", "quick")
    took = {"slow": 10.0, "quick": 1.0}
    began = served(queue, clock, lambda name: took[name.split()[0]], until_s=100)
    quick, slow = (sum(name.startswith(kind) for name in began) for kind in ("quick", "slow"))
    assert quick >= 35
    assert 3 <= slow <= 7


def test_names_from_one_address_have_one_share_together(queue, clock):
    """Without client ids, and with one for each of them."""
    for parts in (lambda number: "", lambda number: f"client {number}"):
        for number in range(40):
            put(queue, f"name {number}", "address", parts(number))
        began = served(
            queue,
            clock,
            lambda name: 5.0 if name.startswith("name") else 1.0,
            until_s=300,
            arrivals=[(7.0, lambda: put(queue, "key", "owner"))],
        )
        assert began["key"] <= 15.0


def test_clients_of_one_address_take_turns_in_it(queue, clock):
    for number in range(40):
        put(queue, f"many {number}", "address", "one client")
    began = served(
        queue,
        clock,
        lambda name: 5.0,
        until_s=100,
        arrivals=[(7.0, lambda: put(queue, "other", "address", "other client"))],
    )
    assert began["other"] <= 20.0


def test_who_was_away_has_saved_nothing_up(queue, clock):
    served(queue, clock, lambda name: 1.0, arrivals=[(0.0, lambda: put(queue, "once", "away"))])
    for number in range(20):
        put(queue, f"busy {number}", "busy")
    served(queue, clock, lambda name: 5.0, until_s=50)
    for number in range(5):
        put(queue, f"away {number}", "away")
    put(queue, "third", "third")
    began = served(queue, clock, lambda name: 5.0, until_s=300)
    assert began["third"] <= 15.0
    assert sorted(began, key=began.__getitem__)[:4] != [f"away {number}" for number in range(4)]


def test_the_eta_counts_what_is_before_a_job_in_the_fair_order(queue, clock):
    queue.slots[KIND] = 1
    put(queue, "first", "slow")
    served(queue, clock, lambda name: 20.0)
    slow = [put(queue, f"slow {number}", "slow") for number in range(8)]
    queue.claim(KIND, "w")
    clock.now += 5
    new = put(queue, "new", "new")
    place = queue.place(new)
    assert place.position == 0
    assert place.eta_s == pytest.approx(15.0 + 20.0)  # nothing is known of it: as others took
    last = queue.place(slow[-1])
    assert last.position == 7
    assert last.eta_s == pytest.approx(15.0 + 6 * 20.0 + 20.0 + 20.0)


def test_a_key_an_address_and_a_client_are_told_apart_and_none_is_kept_as_it_is():
    key = share_of("ann")
    names = share_of("ann", address="192.0.2.1")
    client = share_of("ann", address="192.0.2.1", client_id="browser")
    assert len({key[0], names[0]}) == 2
    assert names[0] == client[0] == share_of("bob", address="192.0.2.1")[0]
    assert names[1] != client[1]
    assert "192" not in names[0]
    assert "browser" not in client[1]


# ---- slots ----


@pytest.fixture
def crew(url, monkeypatch):
    """Workers whose jobs last until they are told, over a queue of their own."""
    monkeypatch.setattr(module, "QUANTUM_S", 0.3)
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    store = Store(url)
    made = []

    class Crew:
        def __init__(self, slots=2, firm=frozenset()):
            self.queue = store.jobs
            self.began: list[str] = []
            self.yielded: list[str] = []
            self.done = threading.Event()
            lane = WorkerLane(kinds=("evaluate", "enter", "match"), slots=slots, first="match", firm=firm)
            handlers = dict.fromkeys(lane.kinds, self.work)
            self.workers = JobWorkers(
                store,
                self.queue,
                handlers=handlers,
                lanes=[lane],
                on_dead=lambda job: None,
                on_requeued=lambda job: self.yielded.append(job.payload["name"]),
            )
            made.append(self)

        def work(self, job, cancelled):
            self.began.append(job.payload["name"])
            end = time.monotonic() + job.payload["lasts_s"]
            while time.monotonic() < end and not self.done.is_set():
                if cancelled():
                    raise EvaluationCancelled("called off")
                time.sleep(0.005)
            return lambda: None

        def put(self, name, share, *, kind="evaluate", lasts_s=60.0):
            return self.queue.enqueue(kind, {"name": name, "lasts_s": lasts_s}, share=share)

        def wait_for(self, name):
            start = time.monotonic()
            while name not in self.began:
                assert time.monotonic() - start < 20, self.began
                time.sleep(0.005)
            return time.monotonic() - start

    yield Crew
    for one in made:
        one.done.set()
        one.workers.stop(5)
    store.close()


def test_endless_jobs_of_one_owner_make_room_for_a_newcomer_and_for_the_ladder(crew):
    one = crew()
    for number in range(20):
        one.put(f"slow {number}", "slow")
    one.workers.start()
    one.wait_for("slow 1")
    one.put("ladder", "ladder", kind="match", lasts_s=0.01)
    one.wait_for("ladder")
    one.put("new", "new", lasts_s=0.01)
    one.wait_for("new")
    one.put("enters", "third", kind="enter", lasts_s=0.01)
    one.wait_for("enters")
    assert set(one.yielded) <= {f"slow {number}" for number in range(20)}


def test_a_job_that_yielded_has_twice_the_time_before_it_yields_again(crew):
    one = crew(slots=1)
    job = one.put("slow", "slow", lasts_s=1.5)
    one.workers.start()
    one.wait_for("slow")
    for number in range(40):  # a newcomer every 0.1 s, for as long as it takes
        one.put(f"new {number}", f"owner {number}", lasts_s=0.01)
        if one.queue.get(job).state is JobState.DONE:
            break
        time.sleep(0.1)
    end = time.monotonic() + 30
    while one.queue.get(job).state is not JobState.DONE:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert 1 <= one.queue.get(job).yielded <= 3
    assert one.queue.get(job).attempts == 1


def test_the_last_slot_of_the_ladder_is_not_taken_by_submissions_nor_theirs_by_it(crew):
    one = crew()
    for number in range(4):
        one.put(f"match {number}", "ladder", kind="match")
        one.put(f"slow {number}", f"owner {number}")
    one.workers.start()
    one.wait_for("match 0")
    one.wait_for("slow 0")
    kinds = {job.kind for job in one.workers.running}
    for _ in range(100):
        kinds &= {job.kind for job in one.workers.running} or kinds
        time.sleep(0.01)
    assert "match" in kinds


def test_with_one_slot_the_ladder_and_submissions_alternate(crew):
    one = crew(slots=1)
    for number in range(6):
        one.put(f"match {number}", "ladder", kind="match", lasts_s=0.02)
        one.put(f"sent {number}", f"owner {number}", lasts_s=0.02)
    one.workers.start()
    one.wait_for("match 5")
    one.wait_for("sent 5")
    assert [name.split()[0] for name in one.began[:8]] in (["match", "sent"] * 4, ["sent", "match"] * 4)


def test_what_is_firm_does_not_yield_and_leaves_a_slot(crew):
    one = crew(firm=frozenset({"enter"}))
    for number in range(3):
        one.put(f"firm {number}", "caller", kind="enter")
    one.workers.start()
    one.wait_for("firm 0")
    one.put("new", "new")
    one.wait_for("new")
    time.sleep(0.6)
    assert one.began.count("firm 0") == 1
    assert "firm 1" not in one.began
