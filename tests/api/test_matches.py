"""A ladder that plays: matches, replays, seats' secrets, challenges, tournaments, the bench."""

from __future__ import annotations

import time

import pytest

from harena import schema
from harena.api.answers.openapi import listed, model
from harena.arena.db.models import Scope
from harena.arena.submissions import evaluate
from harena.match.replay.replay import Replay
from support.served import LADDER, bearer, events, submitted

PLAYER = b"""
import random

def act(observation):
    print("the secret of this seat")
    return random.choice([cell for cell, taken in enumerate(observation) if not taken])
"""


@pytest.fixture(scope="module")
def players(playing):
    """Two agents on the ladder, of ann and ben, once they have met."""
    arena = playing.arena
    tokens = {name: arena.store.keys.create(name, [Scope.READ, Scope.SUBMIT])[1] for name in ("ann", "ben")}
    tokens["host"] = arena.store.keys.create("the host", [Scope.READ, Scope.HOST])[1]
    with playing.client() as client:
        ids = {name: submitted(client, tokens[name], env_id=LADDER, data=PLAYER) for name in ("ann", "ben")}
        for submission_id in ids.values():
            state = until(
                lambda one=submission_id: client.get(f"/v1/submissions/{one}").json(),
                lambda s: s["state"] not in ("queued", "running"),
            )
            assert state["state"] == "ranked", state
        until(lambda: client.get(f"/v1/boards?env_id={LADDER}").json(), lambda board: len(board["entries"]) == 2)
    return tokens, ids


def until(read, done, timeout_s=40.0):
    deadline = time.monotonic() + timeout_s
    while not done(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def finished(client, **query):
    found = client.get("/v1/matches", params={"env_id": LADDER, "state": "finished", **query}).json()["matches"]
    assert found
    return found


def test_a_ladder_board_has_games_intervals_and_sparks(playing, players):
    with playing.client() as client:
        board = client.get(f"/v1/boards?env_id={LADDER}").json()
        assert board["board"] == "ladder"
        for entry in board["entries"]:
            assert entry["games"] >= 1
            assert entry["games"] == entry["wins"] + entry["draws"] + entry["losses"]
            assert entry["spark"]
            assert entry["provisional"] is True
        contract = client.get(f"/leaderboard/{LADDER}").json()
        assert {entry["kind"] for entry in contract} == {"ladder"}


def test_an_agents_page_has_versions_ratings_and_opponents(playing, players):
    _, ids = players
    with playing.client() as client:
        agent = client.get(f"/v1/agents?owner=ann&algorithm=Custom&env_id={LADDER}").json()
        assert [version["id"] for version in agent["versions"]] == [ids["ann"]]
        assert agent["versions"][0]["standing"]["games"] >= 1
        points = client.get(f"/v1/submissions/{ids['ann']}/ratings").json()["points"]
        assert points[0].keys() == {"match", "at", "rating", "sigma"}
        (opponent,) = client.get(f"/v1/submissions/{ids['ann']}/opponents").json()["opponents"]
        assert (opponent["submission_id"], opponent["owner"]) == (ids["ben"], "ben")


def test_a_replay_comes_in_three_forms_and_without_what_is_the_owners(playing, players):
    with playing.client() as client:
        match = finished(client)[0]
        path = f"/v1/matches/{match['id']}/replay"
        compact = client.get(path, params={"format": "compact"})
        replay = Replay.load(compact.content)
        assert replay.verify().ok
        assert all(reason == "" for _, reason in replay.seats)
        document = client.get(path).json()
        assert document["metadata"]["match_id"] == match["id"]
        page = client.get(path, params={"format": "html"})
        policy = page.headers["content-security-policy"]
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "sha256-" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        again = client.get(path, params={"format": "html"}, headers={"If-None-Match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for answer in (compact, page, client.get(path)):
            assert b"secret of this seat" not in answer.content


def test_the_log_of_a_seat_is_its_owners(playing, players):
    tokens, ids = players
    with playing.client() as client:
        match = finished(client)[0]
        seat = next(seat["seat"] for seat in match["seats"] if seat["submission_id"] == ids["ann"])
        path = f"/v1/matches/{match['id']}/log?seat={seat}"
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer(tokens["ben"])).status_code == 403
        for name in ("ann", "host"):
            assert "secret of this seat" in client.get(path, headers=bearer(tokens[name])).text
        assert client.get(f"/v1/matches/{match['id']}/log?seat=7", headers=bearer(tokens["ann"])).status_code == 404
        shown = client.get(f"/v1/matches/{match['id']}", headers=bearer(tokens["ann"])).json()
        assert ["has_log" in seat for seat in shown["seats"]] == [seat["owner"] == "ann" for seat in shown["seats"]]
        assert all("reason" not in seat for seat in match["seats"])


def test_matches_come_in_pages_and_by_agent(playing, players):
    _, ids = players
    with playing.client() as client:
        newest = finished(client, limit=1)[0]
        older = client.get("/v1/matches", params={"env_id": LADDER, "before": newest["number"]}).json()["matches"]
        assert all(match["number"] < newest["number"] for match in older)
        assert finished(client, submission=ids["ann"])
        assert client.get("/v1/matches", params={"submission": "0" * 32}).json()["matches"] == []


def test_a_challenge_is_for_owners_and_moves_no_rating(playing, players):
    tokens, ids = players
    order = {"submission_id": ids["ann"], "opponent_id": ids["ben"], "games": 2}
    with playing.client() as client:
        assert client.post("/v1/challenges", json=order).status_code == 401
        assert client.post("/v1/challenges", json=order, headers=bearer(tokens["ben"])).status_code == 403
        made = client.post("/v1/challenges", json=order, headers=bearer(tokens["ann"]))
        assert made.status_code == 201
        for match in made.json()["matches"]:
            assert (match["kind"], match["rated"]) == ("challenge", False)
            path = f"/v1/matches/{match['id']}"
            with client.stream("GET", f"{path}/live") as answer:
                assert [kind for _, kind, _ in events(answer.iter_lines())][-1] == "finished"
            assert until(lambda p=path: client.get(p).json(), lambda m: m["finished_at"])["state"] == "finished"
        assert (
            client.post("/v1/challenges", json=order | {"games": 11}, headers=bearer(tokens["ann"])).status_code == 422
        )


def test_a_running_match_has_a_page_to_watch(playing, players):
    _, ids = players
    arena = playing.arena
    match = arena.store.matches.create(LADDER, list(ids.values()), seed=1)
    with playing.client() as client:
        assert client.get(f"/v1/matches/{match.id}/replay").status_code == 404
        page = client.get(f"/v1/matches/{match.id}/replay?format=html")
        assert page.status_code == 200
        assert match.id in page.text
        assert client.get(f"/v1/matches/{match.id}").json()["has_replay"] is False
        assert '"seed"' not in client.get(f"/v1/matches/{match.id}").text
    arena.matches.void(match.id, "the test is over")


def test_a_host_runs_a_tournament(playing, players):
    tokens, ids = players
    order = {"env_id": LADDER, "name": "cup", "participants": list(ids.values()), "games": 2}
    with playing.client() as client:
        assert client.post("/v1/tournaments", json=order, headers=bearer(tokens["ann"])).status_code == 403
        made = client.post("/v1/tournaments", json=order, headers=bearer(tokens["host"]))
        assert made.status_code == 201
        path = f"/v1/tournaments/{made.json()['id']}"
        over = until(lambda: client.get(path).json(), lambda cup: cup["state"] == "finished")
        assert [line["rank"] for line in over["standings"]]
        assert {one["owner"] for one in over["participants"]} == {"ann", "ben"}
        played = [match for tie in over["rounds"][0]["ties"] for match in tie["matches"]]
        assert len(played) == 2
        assert over["id"] in [one["id"] for one in client.get(f"/v1/tournaments?env_id={LADDER}").json()["tournaments"]]
        assert client.post(f"{path}/cancel", headers=bearer(tokens["host"])).status_code == 409


def test_a_host_benches_an_agent_and_only_its_owner_learns_why(playing, players):
    tokens, ids = players
    order = {"submission_id": ids["ben"], "reason": "a private word"}
    with playing.client() as client:
        assert client.post("/v1/admin/bench", json=order, headers=bearer(tokens["ann"])).status_code == 403
        assert client.post("/v1/admin/bench", json=order, headers=bearer(tokens["host"])).status_code == 200
        path = f"/v1/submissions/{ids['ben']}"
        assert client.get(path).json()["benched"] is True
        assert client.get(path, headers=bearer(tokens["ben"])).json()["benched"] == "a private word"
        (bench,) = client.get("/v1/admin/benched", headers=bearer(tokens["host"])).json()["benched"]
        assert (bench["owner"], bench["reason"]) == ("ben", "a private word")
        entries = client.get(f"/v1/boards?env_id={LADDER}").json()["entries"]
        assert {entry["owner"]: entry["benched"] for entry in entries} == {"ann": False, "ben": True}
        assert (
            client.post(
                "/v1/admin/unbench", json={"submission_id": ids["ben"]}, headers=bearer(tokens["host"])
            ).status_code
            == 200
        )
        assert client.get(path).json()["benched"] is None


def test_exports_of_matches_and_ratings(playing, players):
    with playing.client() as client:
        matches = client.get(f"/v1/export/matches?env_id={LADDER}").text.splitlines()
        assert len(matches) > 1
        assert "secret" not in "".join(matches)
        ratings = client.get(f"/v1/export/ratings?env_id={LADDER}&format=jsonl").text.splitlines()
        assert len(ratings) >= 2


def test_answers_are_as_the_document_says(playing, players):
    tokens, ids = players
    paths = {
        "/v1": model(schema.About),
        "/v1/me": model(schema.Me),
        "/v1/keys": listed(schema.Key, "keys"),
        "/v1/environments": listed(schema.Environment, "environments"),
        f"/v1/environments/{LADDER}": model(schema.EnvironmentDetails),
        f"/v1/boards?env_id={LADDER}": model(schema.Board),
        f"/v1/seasons?env_id={LADDER}": listed(schema.Season, "seasons"),
        "/v1/submissions": listed(schema.Submission, "submissions"),
        f"/v1/submissions/{ids['ann']}": model(schema.Submission),
        f"/v1/agents?owner=ann&algorithm=Custom&env_id={LADDER}": model(schema.AgentVersions),
        f"/v1/submissions/{ids['ann']}/ratings": listed(schema.RatingPoint, "points"),
        f"/v1/submissions/{ids['ann']}/opponents": listed(schema.Opponent, "opponents"),
        "/v1/matches": listed(schema.Match, "matches"),
        "/v1/tournaments": listed(schema.Tournament, "tournaments"),
        "/v1/admin/queue": model(schema.JobQueue),
        "/v1/admin/benched": listed(schema.BenchedAgent, "benched"),
        "/v1/admin/owners": listed(schema.OwnerSummary, "owners"),
        "/v1/admin/environments": listed(schema.EnvironmentWithSettings, "environments"),
        f"/api/results/{ids['ann']}": model(schema.ContractResult),
        "/health": model(schema.Health),
    }
    with playing.client(**bearer(tokens["host"])) as client:
        client.post("/v1/tournaments", json={"env_id": LADDER, "name": "shapes", "participants": list(ids.values())})
        for path, shape in paths.items():
            data = client.get(path).json()
            assert shape.model_validate(data).model_dump(exclude_unset=True) == data, path
        latest = client.get("/v1/tournaments").json()["tournaments"][0]
        over = until(
            lambda: client.get(f"/v1/tournaments/{latest['id']}").json(), lambda cup: cup["state"] == "finished"
        )
        assert model(schema.Tournament).model_validate(over).model_dump(exclude_unset=True) == over
        for path, shape in (
            (f"/api/leaderboard/?env_id={LADDER}", model(schema.ContractEntry)),
            ("/api/leaderboard/environments", model(schema.ContractEnvironment)),
        ):
            for data in client.get(path).json():
                assert shape.model_validate(data).model_dump(exclude_unset=True) == data, path


def test_the_end_of_a_season_reveals_its_replays_and_their_seeds(playing, players):
    tokens, _ = players
    env_id = "FrozenLake-v1"
    playing.arena.put_environment(env_id, settings={"episodes": 3, "final_episodes": 4})
    with playing.client(**bearer(tokens["host"])) as client:
        submission_id = submitted(client, tokens["ann"], env_id=env_id)
        path = f"/v1/submissions/{submission_id}"
        done = until(lambda: client.get(path).json(), lambda one: one["state"] not in ("queued", "running"))
        assert done["evaluation"]["hidden"]
        assert client.get(f"{path}/replays").json()["code"] == "season_runs"
        of_season = f"/v1/seasons/{done['season_id']}"
        assert client.post(f"{of_season}/end").status_code == 409
        client.post(f"{of_season}/freeze", json={"frozen": True})
        assert client.post(f"{of_season}/finalists", json={}).json()["finals"]["total"] == 1
        until(lambda: client.get(of_season).json(), lambda one: one["finals"]["done"] == 1)
        assert client.get(path).json()["final_result"] is None
        season = client.post(f"{of_season}/end").json()
        over = client.get(path).json()
        assert (len(over["evaluation"]["returns"]), len(over["final_result"]["returns"])) == (3, 4)
        assert model(schema.Submission).model_validate(over).model_dump(exclude_unset=True) == over
        (line,) = client.get("/v1/boards", params={"env_id": env_id, "season": season["id"]}).json()["entries"]
        assert (line["final"], line["score"]) == (True, over["final_result"]["score"])
        assert evaluate.commitment(bytes.fromhex(season["final_secret"])) == season["final_commitment"]
        listed = client.get(f"{path}/replays").json()["replays"]
        assert "first" in listed[0]["roles"]
        hidden = evaluate.seeds(bytes.fromhex(season["secret"]), env_id, 3)
        assert evaluate.commitment(bytes.fromhex(season["secret"])) == season["commitment"]
        for one in listed:
            replay = Replay.load(client.get(one["url"], params={"format": "compact"}).content)
            assert replay.seed == hidden[one["episode"]]
        assert client.get(f"{path}/replays/{listed[0]['episode']}", params={"format": "html"}).status_code == 200
        assert client.get(f"{path}/replays/99").status_code == 404


def test_a_matrix_counts_each_game_once_for_each_side(playing, players):
    _, ids = players
    with playing.client() as client:
        found = client.get(f"/v1/matrix?env_id={LADDER}").json()
        assert {agent["submission_id"] for agent in found["agents"]} == set(ids.values())
        tallies = {(one["one"], one["other"]): one for one in found["meetings"]}
        ann, ben = tallies[ids["ann"], ids["ben"]], tallies[ids["ben"], ids["ann"]]
        assert (ann["wins"], ann["draws"], ann["losses"]) == (ben["losses"], ben["draws"], ben["wins"])
        (met,) = client.get(f"/v1/submissions/{ids['ann']}/opponents").json()["opponents"]
        assert {name: met[name] for name in ("wins", "draws", "losses")} == {
            name: ann[name] for name in ("wins", "draws", "losses")
        }
        assert client.get("/v1/matrix?env_id=CartPole-v1").status_code == 409


def test_only_the_embed_page_may_be_framed_by_other_sites(playing, players):
    with playing.client() as client:
        match = next(one for one in finished(client) if one["has_replay"])
        page = client.get(f"/embed/match/{match['id']}")
        assert page.status_code == 200
        assert page.headers["content-security-policy"].endswith("frame-ancestors *")
        assert "x-frame-options" not in page.headers
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        again = client.get(f"/embed/match/{match['id']}", headers={"If-None-Match": page.headers["etag"]})
        assert again.status_code == 304
        assert again.headers["content-security-policy"] == policy
        for path in ("/", "/login", f"/match/{match['id']}", f"/v1/matches/{match['id']}/replay?format=html", "/v1"):
            other = client.get(path)
            assert "frame-ancestors *" not in other.headers["content-security-policy"], path
            assert other.headers["x-frame-options"] in ("DENY", "SAMEORIGIN")
        missing = client.get("/embed/match/" + "f" * 32)
        assert (missing.status_code, missing.headers["x-frame-options"]) == (404, "DENY")


def test_matches_are_a_feed_too(playing, players):
    with playing.client() as client:
        match = finished(client)[0]
        text = client.get(f"/v1/feeds/matches?env_id={LADDER}&owner=ann").text
        assert f"/match/{match['id']}" in text
        assert "<entry>" not in client.get("/v1/feeds/matches?owner=nobody").text
