"""Who waits for a topic is woken when something of it is committed, and is never left behind without being told."""

from __future__ import annotations

import threading
import time

import pytest

from harena.arena.db.models import Event
from harena.arena.db.store import Store
from harena.arena.events import bus as module
from harena.arena.events.bus import Hub
from support.entries import ENV, submit

SOON_S = 30.0


@pytest.fixture
def hub(store):
    hub = Hub(store)
    hub.start()
    yield hub
    hub.close()


def test_a_commit_wakes_who_waits_for_its_topic_and_nobody_else(store, hub):
    with hub.subscribe(["board:a", "queue"]) as ours, hub.subscribe(["board:b"]) as others:
        store.events.publish("board:a", "board", {"score": 1})
        came = ours.get(SOON_S)
        assert [(notice.topic, notice.kind, notice.body) for notice in came] == [("board:a", "board", {"score": 1})]
        store.events.publish("board:b", "board", {})
        assert [notice.topic for notice in others.get(SOON_S)] == ["board:b"]
        assert ours.get(0) == []


def test_a_transaction_that_is_rolled_back_is_not_heard_of(store, hub):
    with hub.subscribe(["queue"]) as ours:
        with pytest.raises(RuntimeError), store.begin():
            store.events.publish("queue", "queue", {"n": 1})
            raise RuntimeError
        store.events.publish("queue", "queue", {"n": 2})
        assert [notice.body for notice in ours.get(SOON_S)] == [{"n": 2}]


def test_nothing_is_heard_before_it_can_be_read(store, hub):
    with hub.subscribe(["queue"]) as ours, store.begin():
        store.events.publish("queue", "queue", {})
        assert ours.get(2 * module.POLL_S) == []


def test_events_of_another_process_are_heard(store, hub, url):
    with hub.subscribe(["queue"]) as ours:
        other = Store(url)
        other.events.publish("queue", "queue", {})
        other.close()
        assert len(ours.get(SOON_S)) == 1


def test_every_event_once_and_in_order_with_many_writers(store, hub):
    heard = []
    remove = hub.add_listener(heard.append)
    with hub.subscribe(["queue"]) as ours:
        threads = [
            threading.Thread(target=lambda: [store.events.publish("queue", "queue", {}) for _ in range(30)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        came = []
        end = time.monotonic() + SOON_S
        while len(came) < 120 and time.monotonic() < end:
            came += ours.get(0.5)
        for thread in threads:
            thread.join()
    numbers = [notice.number for notice in came]
    assert len(numbers) == 120
    assert numbers == sorted(set(numbers)) == [notice.number for notice in heard]
    remove()
    store.events.publish("queue", "queue", {})
    assert len(heard) == 120


def test_a_slow_reader_is_told_to_read_again(store, hub, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    with hub.subscribe(["queue"]) as slow, hub.subscribe(["last"]) as last:
        for _ in range(7):
            store.events.publish("queue", "queue", {})
        store.events.publish("last", "last", {})
        assert last.get(SOON_S)
        came = slow.get(SOON_S)
        assert [notice.kind for notice in came] == ["reset", "queue"]
        assert came[-1].number == store.events.last() - 1


def test_a_listener_that_fails_harms_nobody(store, hub):
    def fails(notice):
        raise RuntimeError("no")

    hub.add_listener(fails)
    with hub.subscribe(["queue"]) as ours:
        store.events.publish("queue", "queue", {})
        store.events.publish("queue", "queue", {})
        assert ours.get(SOON_S)


def test_closing_the_hub_ends_every_wait(store):
    hub = Hub(store)
    hub.start()
    waiting = hub.subscribe(["queue"])
    threading.Timer(0.05, hub.close).start()
    began = time.monotonic()
    assert waiting.get(SOON_S) == []
    assert time.monotonic() - began < SOON_S
    assert hub.subscribe(["queue"]).get(SOON_S) == []


# ---- versions ----


def test_a_topics_version_changes_with_its_events_and_with_no_others(store, hub):
    first = hub.version("board:a")
    with hub.subscribe(["board:a", "board:b"]) as ours:
        store.events.publish("board:b", "board", {})
        ours.get(SOON_S)
        assert hub.version("board:a") == first
        store.events.publish("board:a", "board", {})
        ours.get(SOON_S)
        assert hub.version("board:a") > first


def test_a_version_is_new_after_events_that_came_while_nobody_ran(store, hub):
    before = hub.version("board:a")
    store.events.publish("board:a", "board", {})
    assert Hub(store).version("board:a") > before
    store.events.prune(older_than_s=-1, keep=0)
    assert Hub(store).version("board:a") > before


def test_versions_that_were_forgotten_never_go_back(store, hub, monkeypatch):
    monkeypatch.setattr(module, "MAX_TOPICS", 3)
    with hub.subscribe(["t9"]) as last:
        for number in range(10):
            store.events.publish(f"t{number}", "t", {})
        last.get(SOON_S)
    last_of = {notice.topic: notice.number for notice in store.events.after(0)}
    assert all(hub.version(f"t{number}") >= last_of[f"t{number}"] for number in range(10))
    assert hub.version("t9") == last_of["t9"]


# ---- frames ----


def test_frames_of_a_match_are_kept_until_it_ends_and_no_longer(hub):
    with hub.subscribe(["frames:m"]) as ours:
        hub.frame("m", {"step": 1})
        hub.frame("m", {"step": 2})
        assert hub.frames("m") == [{"step": 1}, {"step": 2}]
        assert [(notice.number, notice.body["step"]) for notice in ours.get(SOON_S)] == [(1, 1), (2, 2)]
        hub.end_frames("m")
        assert [notice.kind for notice in ours.get(SOON_S)] == ["end"]
    assert hub.frames("m") == []


def test_frames_are_bounded(hub, monkeypatch):
    for number in range(module.MAX_FRAMES + 10):
        hub.frame("m", {"step": number})
    assert len(hub.frames("m")) == module.MAX_FRAMES
    assert hub.frames("m")[-1] == {"step": module.MAX_FRAMES + 9}
    for number in range(module.MAX_LIVE):
        hub.frame(f"m{number}", {})
    assert hub.frames("m") == []


# ---- what everybody may hear ----


def test_events_hold_nothing_that_is_its_owners(store, hub):
    heard = []
    hub.add_listener(heard.append)
    made = submit(store, client_id="SECRET-client", warnings=["SECRET warning"])
    store.submissions.move(made.id, Event.CANCEL, reason="SECRET reason")
    with hub.subscribe(["end"]) as end:
        store.events.publish("end", "end", {})
        end.get(SOON_S)
    bodies = [notice.body for notice in heard if notice.topic == f"submission:{made.id}"]
    assert bodies == [{"id": made.id, "state": state, "env_id": ENV} for state in ("received", "cancelled")]
    assert "SECRET" not in str(heard)
