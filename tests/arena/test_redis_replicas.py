"""Two replicas behind HTTP on one PostgreSQL and one Redis, which is killed, emptied and lied in."""

from __future__ import annotations

import contextlib
import struct

import pytest

from harena.access import Rate
from harena.api.app import create_app
from harena.arena.arena import Arena, Roles
from harena.arena.db.models import SubmissionKind
from harena.arena.redis import boards as boards_module
from harena.arena.settings import Settings
from harena.http.limits import RequestLimits
from support.entries import ENV, ranked, started
from support.killable import until
from support.served import Server

pytestmark = pytest.mark.services

SECRET = "only for tests, and 16 bytes at least"
FEW = RequestLimits(read=Rate(per_s=0.01, burst=6), spare_loopback=False)


@pytest.fixture
def environ(postgres_url, redis):
    with redis.client() as client:
        client.flushall()
    return {"DATABASE_URL": postgres_url, "SECRET_KEY": SECRET, "REDIS_URL": redis.url}


@pytest.fixture
def serve(tmp_path, environ, monkeypatch):
    monkeypatch.setattr(boards_module, "LOOK_S", 0.05)
    with contextlib.ExitStack() as stack:

        def start(limits=None, **more):
            settings = Settings.from_env(tmp_path, {**environ, **more})
            arena = Arena(settings, Roles(workers=False, matchmaker=False))
            stack.callback(arena.stop, 0)
            if arena.redis is not None:
                arena.redis.boards._smallest = 1
            if not arena.store.environments.all():
                arena.put_environment(ENV)
            arena.start()
            server = stack.enter_context(Server(create_app(arena, loopback=True, limits=limits)))
            server.arena = arena
            return stack.enter_context(server.client()), arena

        yield start


def test_replicas_refuse_together_and_each_by_itself_when_redis_is_killed(serve, redis):
    (one, _), (two, _) = serve(FEW), serve(FEW)
    answers = [client.get("/health").status_code for client in (one, two) * 6]
    assert answers == [200] * 6 + [429] * 6
    (three, _), (four, here) = serve(FEW), serve(FEW)
    redis.kill()
    try:
        assert [three.get("/health").status_code for _ in range(7)] == [200] * 6 + [429]
    finally:
        redis.start()
    until(lambda: here.redis.link.usable)
    assert four.get("/health").status_code == 200  # what was counted is lost with the server


def lines(client, query):
    answer = client.get(f"/v1/boards?env_id={ENV}&{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def entry_of(submission_id, score):
    """What a set would hold of it."""
    return {struct.pack(">d", 1.0).hex() + submission_id: -score}


WHOLE = ["limit=5", "limit=5&offset=7", "limit=200", "offset=1000"]
QUERIES = [*WHOLE, "user=owner3", "algorithm=A4", "sort=date_desc"]


def test_boards_are_the_same_with_redis_without_it_and_after_it_was_emptied_or_lied_in(serve, redis):
    (with_redis, arena), (without, plain) = serve(), serve(REDIS_URL="")
    assert plain.redis is None
    for number in range(25):
        ranked(arena.store, float(number % 6), f"owner{number % 4}", f"A{number}")
    hidden = started(arena.store, "secret", "hidden")
    other = ranked(arena.store, 1e6, "script", "S", kind=SubmissionKind.SELF_REPORTED)
    boards = arena.redis.boards

    def ready():
        return boards.page(ENV, SubmissionKind.VERIFIED, offset=0, limit=1) is not None

    def compare(queries=QUERIES):
        arena.store.events.publish(f"board:{ENV}", "board", {"kind": "verified", "owner": "x", "algorithm": "x"})
        for hub in (arena.hub, plain.hub):
            until(lambda hub=hub: hub._seen == arena.store.events.last())
        for query in queries:
            assert lines(with_redis, query) == lines(without, query), query

    until(ready)
    compare()
    with redis.client() as client:
        client.flushall()
        compare()
        until(ready)
        state, members, places = boards._board(ENV, SubmissionKind.VERIFIED).keys
        for submission, score in ((hidden, 99.0), (other, 1e6)):  # which are not on this board
            client.zadd(members, entry_of(submission.id, score))
            client.hset(places, submission.id, "x")
            client.hset(state, "count", client.zcard(members))
            compare(["limit=5"])
        client.zadd(members, {client.zrange(members, 5, 5)[0]: -2e6})
        until(lambda: client.zcard(members) == 25 or compare(["limit=5"]))  # what stays wrong is rebuilt
        compare()
    redis.kill()
    try:
        compare()
    finally:
        redis.start()
    until(ready)
    compare()
