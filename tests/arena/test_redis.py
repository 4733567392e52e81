"""Redis is a cache and a bell: emptied, killed, frozen or lying, the database answers and everything is rebuilt."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time

import pytest

from harena.arena.db.database import Database
from harena.arena.db.models import SubmissionKind
from harena.arena.db.store import Store
from harena.arena.events import bus
from harena.arena.events.bus import Hub
from harena.arena.redis import bell as bell_module
from harena.arena.redis import boards as boards_module
from harena.arena.redis.bell import RedisBell
from harena.arena.redis.boards import RankedBoards
from harena.arena.redis.link import RedisLink
from harena.arena.redis.rates import SharedRates
from harena.arena.settings import Settings
from harena.errors import BackendUnavailable, SpecError
from support.entries import ENV, ranked
from support.killable import until

pytestmark = pytest.mark.services

SECRET = b"only for tests, and 16 bytes at least"
SOON_S = 60.0
VERIFIED = SubmissionKind.VERIFIED


@pytest.fixture
def link(redis):
    with redis.client() as client:
        client.flushall()
    link = RedisLink(redis.url, SECRET)
    yield link
    link.close()


@pytest.mark.parametrize("url", ["http://x", "redis:x", "localhost:6379", "redis://x:port"])
def test_another_url_is_refused(url):
    with pytest.raises(SpecError, match="REDIS_URL"):
        RedisLink(url, SECRET)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(BackendUnavailable, match=r"harena\[redis\]"):
        RedisLink("redis://127.0.0.1", SECRET)


def test_the_url_is_read_from_the_environment_and_kept_out_of_what_is_printed(tmp_path):
    settings = Settings.from_env(tmp_path, {"REDIS_URL": "redis://:password@host/0"})
    assert settings.redis_url == "redis://:password@host/0"
    assert "password" not in repr(settings)


# ---- the bell ----


@pytest.fixture
def two_processes(tmp_path, redis, link):
    """Two openings of one SQLite file, which has no notices: only Redis can tell the one of the other."""
    url = f"sqlite:///{tmp_path}/arena.db"
    databases, bells, heard = [Database(url) for _ in range(2)], [], ([], [])
    for database, came in zip(databases, heard, strict=True):
        database.on_commit(came.append)
        bells.append(RedisBell(link, database))
        bells[-1].start()
    until(lambda: all(bell.listening.is_set() for bell in bells))
    yield databases, heard, bells
    for bell in bells:
        bell.close()
    for database in databases:
        database.close()


def tell(database, change):
    with database.begin():
        database.note(change)


def test_a_commit_of_one_process_is_heard_by_another_once_and_not_doubled_here(two_processes):
    (one, _), (mine, theirs), _ = two_processes
    mine.clear()
    theirs.clear()
    tell(one, "jobs:evaluate")
    until(lambda: frozenset({"jobs:evaluate"}) in theirs)
    tell(one, "events")
    until(lambda: frozenset({"events"}) in theirs)
    assert mine == theirs == [frozenset({"jobs:evaluate"}), frozenset({"events"})]


def test_a_killed_redis_holds_up_no_commit_and_after_it_everything_is_read_again(two_processes, redis, link):
    (one, _), (_, theirs), bells = two_processes
    redis.kill()
    try:
        began = time.monotonic()
        for _ in range(50):
            tell(one, "events")
        assert time.monotonic() - began < 10.0
        until(lambda: not any(bell.listening.is_set() for bell in bells))
        theirs.clear()
    finally:
        redis.start()
    until(lambda: frozenset({"*"}) in theirs)
    until(lambda: link.usable and tell(one, "events") is None and frozenset({"events"}) in theirs)


def test_what_others_write_to_the_channel_is_of_our_form_or_dropped(two_processes, redis, link):
    _, (_, theirs), _ = two_processes
    theirs.clear()
    hostile = [
        b"",
        b"\xff" * 100,
        b"x" * 100_000,
        b"0123456789abcdef",
        b"0123456789abcdef rm -rf",
        b"0" * 16 + b" ../x",
    ]
    hostile += [b"0123456789abcdef jobs:" + b"a" * 33, b"0123456789abcdef " + b"\n".join([b"events"] * 65)]
    with redis.client() as client:
        for words in hostile:
            client.publish(f"{link.prefix}:changes", words)
        client.publish(f"{link.prefix}:changes", b"0123456789abcdef events")
    until(lambda: theirs)
    assert theirs == [frozenset({"events"})]
    assert all(bell_module.parse(words, "x") == frozenset() for words in [*hostile, None, 7, "text"])


def test_a_stream_of_another_process_gets_an_event_without_a_poll(two_processes, tmp_path, monkeypatch):
    monkeypatch.setattr(bus, "POLL_S", 3600.0)
    (one, two), _, _ = two_processes
    stores = [Store(f"sqlite:///{tmp_path}/arena.db") for _ in range(2)]
    stores[1].events._database = two
    hub = Hub(stores[1])
    hub._store.database = two
    hub.start()
    with hub.subscribe(["topic"]) as news:
        stores[0].events._database = one
        stores[0].events.publish("topic", "kind", {"n": 1})
        assert [notice.body for notice in news.get(SOON_S)] == [{"n": 1}]
    hub.close()
    for store in stores:
        store.close()


# ---- boards ----


@pytest.fixture
def hub(store):
    hub = Hub(store)
    hub.start()
    yield hub
    hub.close()


@pytest.fixture
def boards(link, store, hub, monkeypatch):
    monkeypatch.setattr(boards_module, "LOOK_S", 0.05)
    boards = RankedBoards(link, store, hub, smallest=1)
    yield boards
    boards.close()


def fill(store, count, rng):
    for number in range(count):
        store.database.clock.now += rng.choice([0.0, 1.0])
        ranked(store, float(rng.randrange(-3, 4)), f"owner{number % 7}", f"A{number}")


def seen(store, hub):
    until(lambda: hub._seen == store.events.last())


def from_set(boards):
    """The whole board; waits until Redis has it."""
    until(lambda: boards.page(ENV, VERIFIED, offset=0, limit=1) is not None)
    return boards.page(ENV, VERIFIED, offset=0, limit=1000)


def same(store, part):
    top = store.boards.top(ENV, limit=1000)
    return part is not None and (
        (part.submission_ids, part.scores) == (tuple(e.submission_id for e in top), tuple(e.score for e in top))
        and part.total == len(top)
    )


def test_a_set_has_the_boards_order_also_among_equals_and_follows_every_change(boards, store, hub):
    rng = random.Random(1)
    fill(store, 40, rng)
    seen(store, hub)
    assert same(store, from_set(boards))
    for number in range(30):
        choice = rng.random()
        if choice < 0.5:
            ranked(store, float(rng.randrange(-3, 4)), f"owner{number % 7}", f"A{number}")
        elif choice < 0.8:
            ranked(store, float(rng.randrange(-3, 4)), "new", f"N{number}")
        else:
            store.submissions.delete(store.boards.top(ENV)[number % 5].submission_id)
        seen(store, hub)
        assert same(store, boards.page(ENV, VERIFIED, offset=0, limit=1000)), number
    part = boards.page(ENV, VERIFIED, offset=10, limit=5)
    top = store.boards.top(ENV, limit=1000)
    assert part.submission_ids == tuple(e.submission_id for e in top[10:15])
    assert part.above == sum(e.score > part.scores[0] for e in top)
    scores = [-100.0, -1.0, 0.5, 3.0, 100.0]
    assert boards.ranks(ENV, VERIFIED, scores).better == tuple(sum(e.score > s for e in top) for s in scores)


def test_a_set_is_never_older_than_what_this_process_has_heard_of(boards, store, hub):
    fill(store, 5, random.Random(2))
    seen(store, hub)
    from_set(boards)
    for number in range(20):
        made = ranked(store, 100.0 + number, "best", f"B{number}")
        seen(store, hub)
        assert boards.page(ENV, VERIFIED, offset=0, limit=1).submission_ids == (made.id,)


def test_several_readers_at_once_catch_up_to_the_same_set(boards, store, hub, link):
    fill(store, 10, random.Random(3))
    seen(store, hub)
    from_set(boards)
    others = [RankedBoards(link, store, hub, smallest=1) for _ in range(4)]
    wrong = []

    def read(of):
        for _ in range(20):
            part = of.page(ENV, VERIFIED, offset=0, limit=100)
            if part is not None and list(part.scores) != sorted(part.scores, reverse=True):
                wrong.append(part)

    threads = [threading.Thread(target=read, args=(of,)) for of in others]
    for thread in threads:
        thread.start()
    for number in range(20):
        ranked(store, float(number), "ann", f"C{number}")
    for thread in threads:
        thread.join()
    seen(store, hub)
    assert not wrong
    assert all(same(store, of.page(ENV, VERIFIED, offset=0, limit=1000)) for of in others)
    for of in others:
        of.close()


def test_an_emptied_redis_is_filled_again_and_a_killed_one_when_it_is_back(boards, store, hub, redis):
    fill(store, 10, random.Random(4))
    seen(store, hub)
    assert same(store, from_set(boards))
    with redis.client() as client:
        client.flushall()
        assert boards.page(ENV, VERIFIED, offset=0, limit=10) is None  # the database answers
    assert same(store, from_set(boards))
    redis.kill()
    try:
        assert boards.page(ENV, VERIFIED, offset=0, limit=10) is None
        ranked(store, 50.0, "ann", "while it was away")
    finally:
        redis.start()
    seen(store, hub)
    assert same(store, from_set(boards))


def test_a_frozen_redis_costs_one_wait_and_no_more(boards, store, hub, redis):
    fill(store, 3, random.Random(5))
    seen(store, hub)
    from_set(boards)
    redis.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert [boards.page(ENV, VERIFIED, offset=0, limit=10) for _ in range(100)] == [None] * 100
        assert time.monotonic() - began < 20.0
    finally:
        redis.process.send_signal(signal.SIGCONT)
    assert same(store, from_set(boards))


def test_a_new_season_empties_the_set_and_a_pruned_log_has_it_rebuilt(boards, store, hub):
    fill(store, 10, random.Random(6))
    seen(store, hub)
    from_set(boards)
    store.boards.clear(ENV)
    ranked(store, 1.0, "ann", "first of the season")
    seen(store, hub)
    assert same(store, from_set(boards))
    ranked(store, 2.0, "ann", "second")
    seen(store, hub)
    store.events.prune(older_than_s=0.0, keep=1)
    assert same(store, from_set(boards))


LIES = {
    "state of another type": lambda c, state, members, places: (c.delete(state), c.set(state, "x")),
    "set of another type": lambda c, state, members, places: (c.delete(members), c.set(members, "x" * 1000)),
    "a member too long": lambda c, state, members, places: (
        c.zadd(members, {"a" * 100_000: -1e9}),
        c.hincrby(state, "count", 1),
    ),
    "a member that is no id": lambda c, state, members, places: (
        c.zadd(members, {"'; DROP TABLE jobs; --".ljust(48): -1e9}),
        c.hincrby(state, "count", 1),
    ),
    "numbers that are none": lambda c, state, members, places: c.hset(state, mapping={"number": "many", "at": "nan"}),
    "a state too long": lambda c, state, members, places: c.hset(state, "at", "1" * 100_000),
    "an infinite score": lambda c, state, members, places: (
        c.zadd(members, {"0" * 48: float("-inf")}),
        c.hincrby(state, "count", 1),
    ),
    "a set that was evicted": lambda c, state, members, places: c.delete(members),
    "members without places": lambda c, state, members, places: c.delete(places),
    "another history": lambda c, state, members, places: c.hset(state, "at", "12.5"),
    "a future": lambda c, state, members, places: c.hset(state, "number", 10**9),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_set_that_lies_is_rebuilt_and_meanwhile_not_believed(lie, boards, store, hub, link, redis):
    fill(store, 4, random.Random(7))
    seen(store, hub)
    from_set(boards)
    with redis.client() as client:
        LIES[lie](client, *boards._board(ENV, VERIFIED).keys)
        boards._checked.clear()  # as in a process that has just started
        ranked(store, 77.0, "ann", "after the lie")
        seen(store, hub)
        part = boards.page(ENV, VERIFIED, offset=0, limit=1000)
        assert part is None or same(store, part)
        until(lambda: same(store, boards.page(ENV, VERIFIED, offset=0, limit=1000)))


def test_no_address_name_or_id_of_an_owner_is_in_redis(boards, store, hub, redis):
    ranked(store, 1.0, "a-name-to-look-for", "an-algorithm-to-look-for")
    seen(store, hub)
    from_set(boards)
    with redis.client() as client:
        everything = repr([(key, client.dump(key)) for key in client.keys("*")])
    assert "look-for" not in everything
    assert ENV not in everything


# ---- shared rates ----


def take(rates, count, address="192.0.2.1", **rate):
    async def ask():
        found = [await one.take("login", address, **{"per_s": 0.5, "burst": 4} | rate) for one in rates * count]
        for one in rates:
            await one.close()
        return found

    return asyncio.run(ask())


def test_replicas_allow_together_what_one_may(link):
    waits = take([SharedRates(link) for _ in range(3)], 4)
    assert [bool(wait) for wait in waits] == [False] * 4 + [True] * 8
    assert all(0.0 < wait <= 2.0 for wait in waits[4:])
    assert take([SharedRates(link)], 1, "192.0.2.2") == [0.0]


def test_an_address_is_let_in_again_when_its_time_has_come(link):
    assert [bool(wait) for wait in take([SharedRates(link)], 3, per_s=5.0, burst=1)] == [False, True, True]
    time.sleep(0.3)
    assert take([SharedRates(link)], 1, per_s=5.0, burst=1) == [0.0]


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-inf", "1e308", "9" * 30, "-1", ""])
def test_a_rate_that_somebody_else_wrote_lets_in_or_makes_wait_as_the_rate_says(link, redis, value):
    key = f"{link.prefix}:rate:{link.digest('login', '192.0.2.1')}"
    with redis.client() as client:
        client.set(key, value)
    assert all(0.0 <= wait <= 2.0 for wait in take([SharedRates(link)], 2))


def test_a_rate_of_another_type_is_replaced(link, redis):
    key = f"{link.prefix}:rate:{link.digest('login', '192.0.2.1')}"
    with redis.client() as client:
        client.rpush(key, "x")
    assert [bool(wait) for wait in take([SharedRates(link)], 5)] == [False] * 4 + [True]


def test_without_redis_nothing_is_refused_and_with_it_again_it_is(link, redis):
    redis.kill()
    try:
        assert take([SharedRates(link)], 10) == [0.0] * 10
    finally:
        redis.start()
    until(lambda: link.usable)
    assert any(take([SharedRates(link)], 10))
