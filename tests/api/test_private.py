"""Whoever is not invited gets the same answers about a private environment as about one that does not exist."""

from __future__ import annotations

import threading
import time

import pytest
from starlette.testclient import TestClient

from harena.api.app import create_app
from harena.arena.db.models import Access, Scope
from harena.arena.queue.kinds import BY_NAME
from harena.arena.work import handlers
from support.served import ENV, LADDER, bearer, submitted

SECRET, NOWHERE = "connect_four-v1", "nowhere-v1"
ALGORITHM = "Quietmouse"
AGENT = b"def act(observation):\n    return [i for i in range(7) if not observation[i]][0]\n"


@pytest.fixture(scope="module")
def world(new_arena):
    """A private ladder with two agents and a match, behind an app; a guest, the host, and people who are neither."""
    arena = new_arena(any_environment=True)
    arena.put_environment(SECRET, access=Access.PRIVATE, settings={"title": "Quiet games"})
    arena.hub.start()
    make = arena.store.keys.create
    keys = {
        "guest": make("guest", [Scope.READ, Scope.SUBMIT])[1],
        "second": make("second", [Scope.READ, Scope.SUBMIT])[1],
        "stranger": make("stranger", [Scope.READ, Scope.SUBMIT])[1],
        "worker": make("worker", [Scope.WORKER])[1],
        "host": make("host", [Scope.ADMIN])[1],
    }
    app = create_app(arena, loopback=False, allowed_hosts=["testserver"])
    with TestClient(app, client=("127.0.0.1", 50000)) as client:
        for name in ("guest", "second"):
            invited = client.post(
                "/v1/admin/guests", json={"env_id": SECRET, "owner": name}, headers=bearer(keys["host"])
            )
            assert invited.status_code == 200
        sent = [
            submitted(client, keys[name], data=AGENT, env_id=SECRET, algorithm=ALGORITHM)
            for name in ("guest", "second")
        ]
        play(arena, "enter")
        play(arena, "enter")
        made = arena.challenges.challenge(sent[0], sent[1], 1)
        play(arena, "match")
        found = {
            "submission": sent[0],
            "match": made[0].id,
            "season": arena.store.seasons.live(SECRET).id,
            "tournament": arena.tournaments.create(
                SECRET, "Quiet cup", "round-robin", top=None, participants=list(sent)
            ).id,
        }
        for place in (1, 2):
            arena.store.notices.replace_ranks(SECRET, {("guest", ALGORITHM): place}, 50)
        yield arena, client, keys, found


def play(arena, kind):
    job = arena.queue.claim(kind, "worker")
    commit = handlers.handler(arena, BY_NAME[kind])(job, lambda: False)
    with arena.store.begin():
        arena.queue.finish(job)
        commit()


ABOUT_IT = (
    "/v1/environments/{env}",
    "/v1/kits?env_id={env}",
    "/v1/boards?env_id={env}",
    "/v1/boards?env_id={env}&board=ladder&limit=3",
    "/v1/seasons?env_id={env}",
    "/v1/agents?env_id={env}&owner=guest&algorithm=Quietmouse",
    "/v1/matrix?env_id={env}",
    "/v1/feeds/results?env_id={env}",
    "/v1/feeds/matches?env_id={env}",
    "/v1/feeds/ranks?env_id={env}",
    "/v1/export/board?env_id={env}",
    "/v1/export/matches?env_id={env}&format=jsonl",
    "/v1/export/ratings?env_id={env}",
    "/v1/export/submissions?env_id={env}",
    "/leaderboard/{env}",
    "/api/leaderboard/?env_id={env}",
)
IN_IT = (
    "/v1/seasons/{season}",
    "/v1/submissions/{submission}",
    "/v1/submissions/{submission}/log",
    "/v1/submissions/{submission}/code",
    "/v1/submissions/{submission}/ratings",
    "/v1/submissions/{submission}/opponents",
    "/v1/submissions/{submission}/practice",
    "/v1/submissions/{submission}/replays",
    "/v1/matches/{match}",
    "/v1/matches/{match}/replay",
    "/v1/matches/{match}/replay?format=html",
    "/v1/matches/{match}/log?seat=0",
    "/v1/matches/{match}/live",
    "/embed/match/{match}",
    "/v1/tournaments/{tournament}",
    "/api/results/{submission}",
    "/submissions/{submission}",
)
LISTS = (
    "/v1/environments",
    "/v1/submissions?limit=200",
    "/v1/submissions?owner=guest",
    "/v1/matches?limit=200",
    "/v1/matches?submission={submission}",
    "/v1/tournaments",
    "/api/leaderboard/environments",
    "/v1/feeds/results",
    "/v1/feeds/matches",
    "/v1/feeds/matches?owner=guest",
    "/v1/feeds/ranks",
    "/v1/feeds/ranks?owner=guest",
    "/v1/search?q=connect",
    "/v1/search?q=mouse",
    "/v1/search?q=guest",
    "/v1/search?q={submission}",
    "/v1/search?q={match}",
    "/v1/environments/nowhere-v1",
    "/metrics",
    "/v1",
    "/openapi.json",
)
STRANGERS = ("stranger", "worker", None)
SECRETS = (SECRET, "Quiet", "Quietmouse")


def asked(client, keys, who, path):
    return client.get(path, headers=bearer(keys[who]) if who else {})


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("path", ABOUT_IT)
def test_a_private_environment_is_answered_as_one_that_is_not_there(world, who, path):
    _, client, keys, _ = world
    there = asked(client, keys, who, path.format(env=SECRET))
    nowhere = asked(client, keys, who, path.format(env=NOWHERE))
    if not path.startswith(("/leaderboard", "/api")):  # the contract answers installed games with an empty board
        assert there.status_code == nowhere.status_code == 404
        same = there.json()["detail"].replace(SECRET, NOWHERE) == nowhere.json()["detail"]
        assert same, (there.json(), nowhere.json())
    assert not any(secret in there.text.replace(SECRET, "") for secret in SECRETS)
    assert ALGORITHM not in there.text


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("path", IN_IT)
def test_what_is_in_it_is_answered_as_if_the_id_did_not_exist(world, who, path):
    _, client, keys, found = world
    there = asked(client, keys, who, path.format(**found))
    other = {name: value + 1000 if name == "season" else "f" * 32 for name, value in found.items()}
    nowhere = asked(client, keys, who, path.format(**other))
    assert there.status_code == nowhere.status_code == 404
    mine = there.json()["detail"]
    for name in ("submission", "match", "tournament", "season"):
        if f"{{{name}}}" in path:
            mine = mine.replace(str(found[name]), str(other[name]))
    assert mine == nowhere.json()["detail"]
    assert set(there.headers) == set(nowhere.headers)


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("path", LISTS)
def test_no_list_and_no_counter_names_it(world, who, path):
    _, client, keys, found = world
    text = asked(client, keys, who, path.format(**found)).text
    assert not any(secret in text for secret in (*SECRETS, found["submission"][:12], found["tournament"])), path


@pytest.mark.parametrize("who", ["guest", "host"])
def test_guests_and_hosts_see_all_of_it(world, who):
    _, client, keys, found = world
    for path in (*ABOUT_IT, *IN_IT):
        if not path.endswith(("/live", "/replays", "/log?seat=0")):
            assert asked(client, keys, who, path.format(env=SECRET, **found)).status_code == 200, path
    assert SECRET in asked(client, keys, who, "/v1/environments").text
    assert ALGORITHM in asked(client, keys, who, "/v1/submissions").text


def test_what_a_guest_has_read_is_not_in_a_cache_for_others(world):
    _, client, keys, found = world
    paths = (
        f"/v1/boards?env_id={SECRET}",
        f"/v1/export/matches?env_id={SECRET}",
        "/v1/environments",
        "/api/leaderboard/environments",
    )
    for path in paths:
        assert (
            SECRET in asked(client, keys, "guest", path).text
            or found["match"] in asked(client, keys, "guest", path).text
        )
        before = asked(client, keys, None, path)
        assert before.status_code == 404 or SECRET not in before.text, path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/submissions/{submission}/cancel", None),
        ("post", "/v1/submissions/{submission}/reevaluate", None),
        ("post", "/v1/submissions/{submission}/finalist", {"chosen": True}),
        ("delete", "/v1/submissions/{submission}", None),
        ("delete", "/submissions/{submission}", None),
        ("post", "/v1/challenges", {"submission_id": "{submission}", "opponent_id": "{submission}"}),
        ("get", "/v1/admin/guests?env_id=connect_four-v1", None),
        ("post", "/v1/admin/guests", {"env_id": SECRET, "owner": "stranger"}),
        ("put", "/v1/admin/environments", {"env_id": SECRET, "access": "public"}),
    ],
)
def test_strangers_change_nothing_and_cannot_let_themselves_in(world, method, path, body):
    arena, client, keys, found = world
    body = body and {name: value.format(**found) if isinstance(value, str) else value for name, value in body.items()}
    answer = client.request(method, path.format(**found), json=body, headers=bearer(keys["stranger"]))
    assert answer.status_code in (403, 404), answer.text
    assert arena.store.environments.get(SECRET).access is Access.PRIVATE
    assert arena.store.guests.of(SECRET) == ["guest", "second"]


@pytest.mark.parametrize("env_id", [SECRET, "connect_four"])
def test_a_stranger_cannot_submit_to_it_nor_open_it_again(world, env_id):
    arena, client, keys, _ = world
    for headers in (bearer(keys["stranger"]), {}):
        answer = client.post(
            "/v1/submissions", files={"file": ("agent.py", AGENT)}, data={"env_id": env_id}, headers=headers
        )
        assert answer.status_code == 404, answer.text
    assert arena.store.environments.get(SECRET).access is Access.PRIVATE


def test_events_of_it_reach_guests_only_and_stop_with_the_invitation(world, new_arena):
    arena, client, keys, found = world
    api = client.app.state.api
    heard = {}

    def listen(who, until):
        import asyncio

        from harena.api.auth import Principal
        from harena.api.routes import events

        key = None if who is None else arena.store.keys.authenticate(keys[who], Scope.READ)
        principal = Principal(key=key)
        topics = [f"board:{SECRET}", f"submission:{found['submission']}", f"match:{found['match']}", "queue"]

        async def run():
            stream = api.live.events(topics, f"address of {who}", None, lambda: events._visible(api, principal, topics))
            async for chunk in stream:
                heard.setdefault(who, []).append(chunk.decode())
                if until in chunk.decode():
                    return

        asyncio.run(run())

    threads = [threading.Thread(target=listen, args=(who, '"end"'), daemon=True) for who in ("guest", "stranger", None)]
    for thread in threads:
        thread.start()
    wait(lambda: len(heard) == 3)
    arena.store.events.publish(f"board:{SECRET}", "board", {"score": 1})
    arena.store.events.publish(f"submission:{found['submission']}", "state", {"state": "ranked"})
    wait(lambda: len(heard["guest"]) >= 3)
    arena.store.guests.remove(SECRET, "guest")
    try:
        arena.store.events.publish(f"match:{found['match']}", "late", {})
        arena.store.events.publish("queue", "queue", {"waiting": "end"})
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    finally:
        arena.store.guests.invite(SECRET, "guest")
    told = {who: "".join(chunks) for who, chunks in heard.items()}
    assert SECRET in told["guest"]
    assert found["submission"] in told["guest"]
    assert found["match"] not in told["guest"]
    for who in ("stranger", None):
        assert SECRET not in told[who]
        assert found["submission"] not in told[who]
        assert found["match"] not in told[who]


def wait(look, timeout_s=30.0):
    end = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_an_invited_board_is_seen_by_all_and_entered_by_guests(world):
    arena, client, keys, _ = world
    arena.put_environment(ENV, access=Access.INVITED)
    client.app.state.api.boards.forget()
    try:
        assert ENV in client.get("/v1/environments").text
        for headers, status in ((bearer(keys["stranger"]), 403), ({}, 401)):
            files = {"file": ("agent.py", b"def act(observation):\n    return 0\n")}
            answer = client.post("/v1/submissions", files=files, data={"env_id": ENV}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (status, "not_invited")
        arena.store.guests.invite(ENV, "stranger")
        assert submitted(client, keys["stranger"], env_id=ENV)
    finally:
        arena.put_environment(ENV, access=Access.PUBLIC)


def test_a_board_that_becomes_private_is_gone_for_strangers_at_once(world):
    _arena, client, keys, _ = world
    path = f"/v1/boards?env_id={LADDER}"
    assert client.get(path).status_code == 200
    put = client.put(
        "/v1/admin/environments", json={"env_id": LADDER, "access": "private"}, headers=bearer(keys["host"])
    )
    assert put.status_code == 200
    try:
        assert client.get(path).status_code == 404
        assert LADDER not in client.get("/v1/environments").text
    finally:
        client.put("/v1/admin/environments", json={"env_id": LADDER, "access": "public"}, headers=bearer(keys["host"]))
    assert client.get(path).status_code == 200
