"""Data that an earlier Harena wrote still opens. `tests/data/schema-1` was written by the last version whose database
had schema 1: an arena's folder, what its boards showed, replays, and an answer of its executor. The keys in it belong
to that folder alone."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from harena import cli
from harena.api.app import create_app
from harena.arena.arena import Arena
from harena.arena.db import models
from harena.arena.settings import Settings
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.replay import viewer
from harena.match.replay.replay import Replay

OLD = Path(__file__).parents[1] / "data" / "schema-1"
SHOWN = json.loads((OLD / "shown.json").read_text())
REPLAYS = sorted((OLD / "replays").iterdir())
LADDERS = ("pong-v1", "connect_four-v1")
ANN = {"Authorization": f"Bearer {SHOWN['token']}"}


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(OLD / "arena.tar.gz") as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(tmp_path, filter="data")
        else:  # Debian 12's Python 3.11.2
            packed.extractall(tmp_path)
    return tmp_path / "data"


def opened(folder):
    return Arena(Settings.from_env(folder, {"HARENA_WORKERS": "1"}))


def client_of(arena):
    return TestClient(create_app(arena, loopback=True), base_url="http://localhost", client=("127.0.0.1", 50000))


def fetched(client, path, headers=None):
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_old_arena_shows_the_boards_matches_and_replays_that_it_had(folder):
    arena = opened(folder)
    try:
        with client_of(arena) as client:
            for env_id, entries in SHOWN["boards"].items():
                now = fetched(client, f"/v1/boards?env_id={env_id}")["entries"]
                assert [{name: entry[name] for name in entries[0]} for entry in now] == entries
                assert env_id in [found["env_id"] for found in fetched(client, "/v1/environments")["environments"]]
            matches = [
                match
                for env_id in LADDERS
                for match in fetched(client, f"/v1/matches?env_id={env_id}&state=finished")["matches"]
            ]
            assert len(matches) == 38
            (challenge,) = (match for match in matches if match["kind"] == "challenge")
            for match in [challenge, *matches[::6]]:
                replay = client.get(f"/v1/matches/{match['id']}/replay")
                verified = Replay.load(replay.content).verify()
                assert verified.ok, str(verified)
                assert verified.steps == match["steps"]
            assert "<html" in client.get(f"/v1/matches/{matches[0]['id']}/replay?format=html").text
            for env_id, entries in SHOWN["boards"].items():
                for mine in [entry for entry in entries if entry["owner"] == "ann"]:
                    found = fetched(client, f"/v1/submissions/{mine['submission_id']}", ANN)
                    assert (found["env_id"], found["owner"], found["state"]) == (env_id, "ann", "ranked")
    finally:
        arena.stop(0.0)


def test_an_old_arena_carries_on(folder):
    arena = opened(folder)
    for env_id in LADDERS:  # they would play on all the while
        arena.put_environment(env_id, enabled=False)
    with arena:
        client = client_of(arena)
        answer = client.post(
            "/v1/submissions",
            files={"file": ("agent.py", b"def act(observation):\n    return 0\n")},
            data={"env_id": "CartPole-v1", "algorithm": "Mine"},
            headers=ANN,
        )
        assert answer.status_code == 201, answer.text
        assert answer.json()["version"] == 2
        end = time.monotonic() + 60
        while (state := fetched(client, f"/v1/submissions/{answer.json()['id']}", ANN)["state"]) != "ranked":
            assert time.monotonic() < end, state
            time.sleep(0.02)
        with arena.store.database.read() as connection:
            versions = connection.exec_driver_sql("SELECT version FROM schema_version ORDER BY version").scalars().all()
            assert versions == list(range(1, models.SCHEMA_VERSION + 1))
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        client.close()


def test_a_score_of_an_old_arena_is_the_same_when_it_is_evaluated_again(folder, capsys):
    (mine,) = (entry["submission_id"] for entry in SHOWN["boards"]["CartPole-v1"] if entry["owner"] == "ann")
    assert cli.main(["arena", "verify", "--data", str(folder), "--submission", mine]) == 0
    assert capsys.readouterr().out.startswith("same")


@pytest.mark.parametrize("path", REPLAYS, ids=[path.name for path in REPLAYS])
def test_an_old_replay_is_verified_played_and_shown(path, capsys):
    assert cli.main(["replay", "verify", str(path)]) == 0
    assert "the same game and the same result" in capsys.readouterr().out
    old = Replay.load(path)
    frames = list(old.frames())
    assert len(frames) == old.verify().steps + 1
    assert "<html" in viewer.html(old)
    assert Replay.load(json.dumps(old.to_json()).encode()).verify().ok


def test_an_old_answer_of_the_executor_is_read_and_its_replay_verified():
    answer = pb.MatchResponse.FromString((OLD / "executor-response.bin").read_bytes())
    assert (answer.match_id, answer.winner_agent_id, answer.total_steps) == ("old", "agent-0", 7)
    assert [result.status for result in answer.agent_results] == ["ok", "ok"]
    assert Replay.load(answer.replay).verify().ok
