"""While a season runs, no door tells anything of its hidden episodes but a score with its interval, or a kind of fault."""

from __future__ import annotations

import json
import time

import pytest
from starlette.testclient import TestClient

from support.served import bearer, submitted

pytest.importorskip("gymnasium")

from harena.api.app import create_app
from harena.arena.db.models import Scope
from harena.arena.queue.kinds import BY_NAME
from harena.arena.submissions import evaluate
from harena.arena.work import handlers, perform

LAKE = "FrozenLake-v1"
# Prints and shows how long it was in each episode.
TALKER = b"""
import time
print("TOLD BY THE AGENT")
def act(observation):
    print("SAW", int(observation))
    return 1
"""


@pytest.fixture(scope="module")
def hidden(new_arena):
    """A submission that was evaluated, and a client of its owner, of the host and of nobody."""
    arena = new_arena(workers=1)
    arena.put_environment(LAKE, settings={"episodes": 6, "practice_episodes": 2, "final_episodes": 4})
    keys = {
        "owner": arena.store.keys.create("owner", [Scope.READ, Scope.SUBMIT])[1],
        "host": arena.store.keys.create("host", [Scope.ADMIN])[1],
    }
    app = create_app(arena, loopback=False, allowed_hosts=["testserver"])
    with TestClient(app, client=("127.0.0.1", 50000)) as client:
        sent = submitted(client, keys["owner"], data=TALKER, env_id=LAKE)
        play(arena, "evaluate")
        yield arena, client, keys, sent


def play(arena, kind):
    job = arena.queue.claim(kind, "worker")
    commit = handlers.handler(arena, BY_NAME[kind])(job, lambda: False)
    with arena.store.begin():
        arena.queue.finish(job)
        commit()


DOORS = (
    "/v1/submissions/{0}",
    "/v1/submissions",
    "/v1/submissions/{0}/log",
    "/v1/submissions/{0}/replays",
    "/v1/submissions/{0}/replays/0",
    "/api/results/{0}",
    "/submissions/{0}",
    "/v1/boards?env_id=FrozenLake-v1",
    "/api/leaderboard/?env_id=FrozenLake-v1",
    "/leaderboard/FrozenLake-v1",
    "/v1/environments/FrozenLake-v1",
    "/v1/agents?owner=owner&algorithm=Custom&env_id=FrozenLake-v1",
    "/v1/matches?env_id=FrozenLake-v1",
    "/v1/export/board?env_id=FrozenLake-v1&format=jsonl",
    "/v1/export/submissions?env_id=FrozenLake-v1&format=jsonl",
    "/v1/seasons?env_id=FrozenLake-v1",
    "/v1/submissions/{0}/practice",
    "/v1/submissions/{0}/ratings",
)


@pytest.mark.parametrize("who", ["owner", "host", "nobody"])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_shows_returns_steps_times_seeds_or_logs(hidden, who, door):
    arena, client, keys, sent = hidden
    answer = client.get(door.format(sent), headers=bearer(keys[who]) if who in keys else {})
    assert answer.status_code < 500
    (stored,) = arena.store.submissions.evaluations(sent)
    secret = arena.store.seasons.secret(stored.metrics["season"] and arena.store.submissions.get(sent).season_id)
    secrets = {secret.hex(), arena.store.seasons.final_secret(arena.store.submissions.get(sent).season_id).hex()}
    secrets |= {str(seed) for seed in evaluate.seeds(secret, LAKE, 6)}
    secrets |= {stored.metrics["digest"], *(one["digest"] for one in stored.metrics["replays"])}
    assert not any(word in answer.text for word in secrets)
    for found in evaluations_in(answer):
        assert found["hidden"]
        shown = {name: value for name, value in found.items() if value and name not in ("hidden", "episodes")}
        assert shown == {}


def evaluations_in(answer):
    """Wherever they are in it."""
    if "json" not in answer.headers["content-type"] or "\n" in answer.text.strip():
        return []
    found, todo = [], [json.loads(answer.text)]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if value.get("evaluation"):
                found.append(value["evaluation"])
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return found


def test_events_tell_the_score_and_nothing_else(hidden):
    arena, _, _, sent = hidden
    bodies = [notice.body for notice in arena.store.events.after(0, topic=f"submission:{sent}")]
    assert [body["state"] for body in bodies] == ["received", "checked", "queued", "running", "ranked"]
    assert all(body.keys() <= {"id", "state", "env_id", "score"} for body in bodies)


def test_how_long_it_took_is_told_in_steps(hidden):
    _, client, _, _ = hidden
    (line,) = [
        line for line in client.get("/metrics").text.splitlines() if line.startswith("evaluation_duration_seconds_sum")
    ]
    took = float(line.split()[-1])
    assert took == pytest.approx(perform.release_s(took - 1e-6))


def test_the_log_is_that_of_the_practice_and_the_owners(hidden):
    arena, client, keys, sent = hidden
    path = f"/v1/submissions/{sent}"
    log = client.get(f"{path}/log", headers=bearer(keys["owner"])).text
    report = client.get(f"{path}/practice", headers=bearer(keys["owner"])).json()
    assert log.startswith("TOLD BY THE AGENT\n")
    assert log.count("SAW") == report["episodes"][0]["steps"]
    assert [one["episode"] for one in report["episodes"]] == [0, 1]
    public = evaluate.practice_seeds(LAKE, 2)
    for one in report["episodes"]:
        assert one["seed"] == str(public[one["episode"]])
        assert client.get(one["url"], headers=bearer(keys["owner"])).status_code == 200
        told = client.get(f"{one['url']}/log", headers=bearer(keys["owner"]))
        assert told.text.count("SAW") == one["steps"]
    assert client.get(f"{path}/practice/7", headers=bearer(keys["owner"])).status_code == 404
    for door in ("/practice", "/practice/0", "/practice/0/log", "/log"):
        assert client.get(path + door).status_code == 401
    _, stranger = arena.store.keys.create("stranger", [Scope.READ, Scope.SUBMIT])
    assert client.get(f"{path}/practice", headers=bearer(stranger)).status_code == 403
    assert client.post(f"{path}/finalist", headers=bearer(stranger), json={"chosen": True}).status_code == 403


def test_the_board_says_of_how_many_tries_a_score_is_the_best(hidden):
    arena, client, keys, _ = hidden
    for note in (b"# two\n", b"# three\n"):
        submitted(client, keys["owner"], data=TALKER + note, env_id=LAKE)
        play(arena, "evaluate")
    deadline = time.monotonic() + 30  # a cached board is replaced when the hub has heard of the change
    while (line := client.get("/v1/boards", params={"env_id": LAKE}).json()["entries"][0])["tries"] != 3:
        assert time.monotonic() < deadline, line
        time.sleep(0.02)
    assert line["discounted"] is None or line["discounted"] <= line["score"]
