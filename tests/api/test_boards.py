"""Boards over HTTP: ranks, kinds that never mix, caching that is never stale, ETags."""

from __future__ import annotations

import re
import time

import pytest

from harena.api.answers import boards
from harena.arena.db.models import Event, unmarked
from harena.arena.db.records import EvaluationOutcome
from support.served import SCRIPT, bearer, rank, ranked, submitted

ENV = "Acrobot-v1"


@pytest.fixture(scope="module", autouse=True)
def environment(arena):
    arena.put_environment(ENV)


@pytest.fixture(autouse=True)
def empty(arena, app):
    arena.store.boards.clear(ENV)
    app.state.api.boards.forget()


def board(client, **query):
    answer = client.get("/v1/boards", params={"env_id": ENV, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def owners(client, **query):
    return [entry["owner"] for entry in board(client, **query)["entries"]]


def settled(read, expected):
    """The hub hears of a commit in a moment."""
    deadline = time.monotonic() + 5
    while (found := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.005)
    assert found == expected


def test_a_board_is_in_order_and_equal_scores_share_a_rank(client, arena):
    for name, score in (("a", -90.0), ("b", -70.0), ("c", -90.0), ("d", -100.0)):
        ranked(arena, client, user_id=f"rank-{name}", env_id=ENV, score=score)
    settled(lambda: owners(client), ["rank-b", "rank-a", "rank-c", "rank-d"])
    shown = board(client)
    assert [entry["rank"] for entry in shown["entries"]] == [1, 2, 2, 4]
    assert (shown["total"], shown["board"], shown["live"]) == (4, "verified", True)
    first = shown["entries"][0]
    assert (first["version"], first["anonymous"], first["benched"], first["spark"]) == (1, True, False, [])
    # On any page, and whatever the filter, a rank is that of the whole board.
    assert [entry["rank"] for entry in board(client, offset=2)["entries"]] == [2, 4]
    assert [entry["rank"] for entry in board(client, user="rank-d")["entries"]] == [4]
    assert [entry["rank"] for entry in board(client, sort="date_asc")["entries"]] == [2, 1, 2, 4]
    assert [entry["rank"] for entry in board(client, score_max=-80)["entries"]] == [2, 2, 4]
    assert [entry["rank"] for entry in board(client, score_max=-80, offset=1)["entries"]] == [2, 4]
    assert [entry["rank"] for entry in board(client, score_max=-95)["entries"]] == [4]
    assert [entry["rank"] for entry in board(client, score_min=-95, offset=1)["entries"]] == [2, 2]
    assert board(client, offset=9)["entries"] == []
    assert board(client, user="rank-d")["total"] == 1
    assert [entry["rank"] for entry in client.get(f"/api/leaderboard/?env_id={ENV}&limit=2").json()] == [1, 2]


def test_a_self_reported_billion_never_outranks_a_verified_score(client, arena):
    honest = ranked(arena, client, user_id="honest", env_id=ENV, score=-500.0)
    boast = submitted(client, user_id="boaster", env_id=ENV, data=SCRIPT, name="submission.py")
    rank(arena, boast, 1e9)
    settled(lambda: owners(client, board="self-reported"), ["boaster"])
    assert owners(client) == ["honest"]
    for path in (
        f"/api/leaderboard/?env_id={ENV}",
        f"/leaderboard/{ENV}",
        f"/api/leaderboard/?env_id={ENV}&sort=date_desc",
    ):
        assert [entry["id"] for entry in client.get(path).json()] == [honest], path
    told = client.get(f"/api/leaderboard/?env_id={ENV}&kind=self-reported").json()
    assert [(entry["id"], entry["kind"]) for entry in told] == [(boast, "self-reported")]
    assert "boaster" not in client.get(f"/v1/export/board?env_id={ENV}").text
    assert client.get(f"/v1/submissions/{boast}").json()["kind"] == "self-reported"


def test_an_open_board_is_new_as_soon_as_the_hub_knows(client, arena):
    assert owners(client) == []
    ranked(arena, client, user_id="newcomer", env_id=ENV)
    settled(lambda: owners(client), ["newcomer"])


def test_what_was_deleted_is_gone_at_once(client, arena):
    mine = {"X-Client-Id": "me"}
    submission_id = ranked(arena, client, user_id="leaver", env_id=ENV, client_id="me")
    settled(lambda: [unmarked(name) for name in owners(client)], ["leaver"])
    assert client.delete(f"/v1/submissions/{submission_id}", headers=mine).status_code == 200
    assert owners(client) == []


def test_an_etag_saves_the_body_until_the_board_changes(client, arena):
    submission_id = ranked(arena, client, user_id="tagged", env_id=ENV)
    settled(lambda: owners(client), ["tagged"])
    for path in (f"/v1/boards?env_id={ENV}", f"/api/leaderboard/?env_id={ENV}", f"/leaderboard/{ENV}"):
        first = client.get(path)
        tag = {"If-None-Match": first.headers["etag"]}
        assert first.headers["cache-control"] == "no-cache"
        again = client.get(path, headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    with arena.store.begin():
        arena.store.submissions.move(submission_id, Event.REEVALUATE)
        arena.store.submissions.move(submission_id, Event.START)
        arena.store.submissions.rank(submission_id, EvaluationOutcome(score=77.0))
    settled(lambda: client.get(f"/v1/boards?env_id={ENV}", headers=tag).status_code, 200)


def counted(client):
    """How many reads of boards were counted, by the counters that a host sees."""
    found = re.search(r'http_requests_total{method="GET",route="/v1/boards",status="200"} (\S+)', metrics(client))
    return float(found[1]) if found else 0.0


def metrics(client):
    return client.app.state.api.metrics.text().decode()


@pytest.fixture
def kept(client, app):
    """The path of a board that the gate answers by itself."""
    path = f"/v1/boards?env_id={ENV}"
    client.get(path)
    assert app.state.api.boards.kept("/v1/boards", f"env_id={ENV}".encode()) is not None
    return path


def test_a_kept_board_passes_the_gate_as_every_answer_does(client, kept):
    before = counted(client)
    found = client.get(kept)
    assert counted(client) == before + 1
    other = client.get("/v1/environments")
    assert {*other.headers} <= {*found.headers} | {"etag", "cache-control"}
    assert client.get(kept, headers={"Host": "evil.example"}).status_code == 421
    assert client.get(kept, headers=bearer("hrn_" + "x" * 40)).status_code == 401
    assert client.get(f"{kept}&unknown=1").status_code == 422


def test_a_kept_board_that_is_made_private_is_gone_at_once(client, admin, kept):
    def make(access):
        body = {"env_id": ENV, "access": access}
        assert client.put("/v1/admin/environments", json=body, headers=bearer(admin)).status_code == 200

    make("private")
    try:
        assert client.get(kept).status_code == 404
    finally:
        make("public")
    assert client.get(kept).status_code == 200


def test_dates_are_moments_or_whole_days(client, arena):
    ranked(arena, client, user_id="today", env_id=ENV)
    settled(lambda: owners(client), ["today"])
    day = board(client)["entries"][0]["at"][:10]
    assert owners(client, date_from=day, date_to=day) == ["today"]
    assert owners(client, date_to=f"{day}T00:00:00Z") == []
    assert owners(client, date_from="2090-01-01") == []


def test_the_name_without_a_version_is_enough(client):
    assert board(client, env_id="Acrobot")["env_id"] == ENV
    assert client.get("/v1/environments/tictactoe").json()["env_id"] == "tictactoe-v1"


def test_an_ended_season_keeps_its_board_and_reveals_its_secret(client, arena, host):
    env_id = "MountainCar-v0"
    arena.put_environment(env_id)
    submission_id = ranked(arena, client, user_id="champion", env_id=env_id, score=-110.0)
    season = client.get("/v1/seasons", params={"env_id": env_id}).json()["seasons"][0]
    assert season["secret"] is None
    path = f"/v1/seasons/{season['id']}"
    assert client.post(f"{path}/end").status_code == 401
    assert client.post(f"{path}/freeze", headers=bearer(host), json={"frozen": True}).json()["frozen"] is True
    frozen = client.post(
        "/v1/submissions", files={"file": ("agent.py", b"def act(o): return 0")}, data={"env_id": env_id}
    )
    assert (frozen.status_code, frozen.json()["code"]) == (409, "conflict")
    refused = client.post(f"{path}/end", headers=bearer(host))
    assert (refused.status_code, "finals" in refused.json()["detail"]) == (409, True)
    ended = client.post(f"{path}/end", headers=bearer(host), json={"without_finals": True}).json()
    assert len(bytes.fromhex(ended["secret"])) == 32
    assert ended["commitment"] == season["commitment"]
    old = board(client, env_id=env_id, season=season["id"])
    assert ([entry["owner"] for entry in old["entries"]], old["live"]) == (["champion"], False)
    assert board(client, env_id=env_id)["entries"] == []
    assert client.get(f"/v1/submissions/{submission_id}/replays").json() == {"replays": []}
    started = client.post("/v1/seasons", headers=bearer(host), json={"env_id": env_id, "name": "season 2"})
    assert (started.status_code, started.json()["secret"]) == (201, None)


def test_lists_and_exports_come_from_the_cache_until_something_changes(client, arena, app, monkeypatch):
    monkeypatch.setattr(boards, "KEEP_S", 3600.0)
    app.state.api.boards.forget()
    listed = client.get("/v1/environments").json()
    exported = client.get(f"/v1/export/board?env_id={ENV}").content
    queries = app.state.api.queries
    with monkeypatch.context() as unread:
        unread.setattr(queries, "environment_counts", None)
        assert client.get("/v1/environments").json() == listed
        etag = client.get("/v1/environments").headers["etag"]
        assert client.get("/v1/environments", headers={"If-None-Match": etag}).status_code == 304
        assert client.get(f"/v1/export/board?env_id={ENV}").content == exported
    ranked(arena, client, user_id="cached", env_id=ENV, score=-1.0)

    def entries():
        return {env["env_id"]: env["entries"] for env in client.get("/v1/environments").json()["environments"]}[ENV]

    settled(entries, 1)
    assert b"cached" in client.get(f"/v1/export/board?env_id={ENV}").content


def test_the_list_of_environments_shows_a_change_of_the_host_at_once(client, host):
    headers = {"Authorization": f"Bearer {host}"}
    client.get("/v1/environments")
    body = {"env_id": "MountainCar-v0", "settings": {"title": "A hill"}}
    assert client.put("/v1/admin/environments", json=body, headers=headers).status_code == 200
    titles = [env["title"] for env in client.get("/v1/environments").json()["environments"]]
    assert "A hill" in titles


def test_a_private_list_is_never_kept_for_others(client, arena, new_key):
    headers = bearer(new_key()[1])
    code = {"file": ("a.py", b"def act(o):\n    return 0\n")}
    sent = client.post("/v1/submissions", files=code, data={"env_id": ENV}, headers=headers)
    mine = client.get(f"/v1/export/submissions?env_id={ENV}", headers=headers).text
    assert sent.json()["id"] in mine
    assert sent.json()["id"] not in client.get(f"/v1/export/submissions?env_id={ENV}").text
