"""Clients that were written from the contract alone: curl lines for each endpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import uuid

import pytest

from support.served import AGENT, SCRIPT

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="host: no curl")


@pytest.fixture
def curl(playing, tmp_path):
    (tmp_path / "agent.py").write_bytes(AGENT)
    (tmp_path / "helper.py").write_bytes(b"MOVE = 1\n")
    (tmp_path / "main.py").write_bytes(b"import helper\n\ndef act(observation):\n    return helper.MOVE\n")
    (tmp_path / "submission.py").write_bytes(SCRIPT)

    def run(line):
        argv = ["curl", "-sS", "--max-time", "20", *line.replace("HOST", playing.url).split()]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode()

    return run


def wait(curl, submission_id, path="api/results"):
    deadline = time.monotonic() + 60
    while (result := json.loads(curl(f"HOST/{path}/{submission_id}")))["status"] in ("pending", "processing"):
        assert time.monotonic() < deadline, result
        time.sleep(0.05)
    return result


def test_submit_one_file_and_poll_its_result(curl):
    answer = json.loads(
        curl("-F file=@agent.py -F env_id=CartPole-v1 -F algorithm=Zero -F user_id=ann HOST/api/submit/")
    )
    assert answer == {
        "id": answer["id"],
        "status": "queued",
        "env_id": "CartPole-v1",
        "algorithm": "Zero",
        "board": "verified",
    }
    result = wait(curl, answer["id"])
    assert result["status"] == "completed"
    assert result["error"] is None
    assert result["score"] > 1
    assert {"id", "status", "score", "env_id", "algorithm", "created_at", "error"} <= result.keys()

    (entry,) = json.loads(curl("-G HOST/api/leaderboard/ -d env_id=CartPole-v1 -d limit=10 -d user=ann"))
    assert (entry["id"], entry["user_id"], entry["kind"]) == (answer["id"], "ann", "verified")
    assert {"rank", "env_id", "algorithm", "score", "low", "high", "created_at"} <= entry.keys()


def test_the_defaults_of_the_contract(curl):
    answer = json.loads(curl("-F file=@agent.py HOST/api/submit/"))
    assert (answer["env_id"], answer["algorithm"]) == ("CartPole-v1", "Custom")
    wait(curl, answer["id"])
    users = [entry["user_id"] for entry in json.loads(curl("HOST/api/leaderboard/"))]
    assert "anonymous" in users


def test_several_files_with_a_main_file_and_a_client_id(curl):
    client_id = uuid.uuid4()
    answer = json.loads(
        curl(
            f"-F files=@main.py -F files=@helper.py -F main_file=main.py -F user_id=two -F client_id={client_id} HOST/api/submit/"
        )
    )
    assert wait(curl, answer["id"])["status"] == "completed"


def test_a_script_is_self_reported_and_not_on_the_verified_board(curl):
    answer = json.loads(curl("-F file=@submission.py -F user_id=boaster HOST/api/submit/"))
    result = wait(curl, answer["id"])
    assert (result["status"], result["score"], result["kind"]) == ("completed", 1e9, "self-reported")
    assert all(entry["kind"] == "verified" for entry in json.loads(curl("HOST/api/leaderboard/?limit=100")))
    told = json.loads(curl("-G HOST/api/leaderboard/ -d kind=self-reported"))
    assert [entry["user_id"] for entry in told] == ["boaster"]


def test_filters_and_sorting_of_the_leaderboard(curl):
    for line in (
        "-d sort=score_desc",
        "-d sort=date_desc",
        "-d sort=date_asc",
        "-d algorithm=Zero",
        "-d score_min=0",
        "-d score_max=1e6",
        "-d date_from=2020-01-01",
        "-d date_to=2090-01-01T00:00:00Z",
    ):
        assert isinstance(json.loads(curl(f"-G HOST/api/leaderboard/ -d env_id=CartPole-v1 {line}")), list)
    assert json.loads(curl("-G HOST/api/leaderboard/ -d date_to=2020-01-01")) == []
    assert json.loads(curl("-G HOST/api/leaderboard/ -d limit=101"))["code"] == "invalid"
    listed = json.loads(curl("HOST/api/leaderboard/environments"))
    assert {"CartPole-v1", "tictactoe-v1"} <= {env["env_id"] for env in listed}


def test_the_older_paths(curl):
    answer = json.loads(curl("-F file=@agent.py -F user_id=old -H X-Client-Id:my-own-id HOST/submissions/"))
    assert answer["status"] == "queued"
    assert wait(curl, answer["id"], "submissions")["status"] == "completed"
    assert any(entry["user_id"] == "old" for entry in json.loads(curl("HOST/leaderboard/CartPole-v1?limit=100")))
    assert json.loads(curl(f"-X DELETE HOST/submissions/{answer['id']}"))["code"] == "not_yours"
    gone = json.loads(curl(f"-X DELETE -H X-Client-Id:my-own-id HOST/submissions/{answer['id']}"))
    assert gone["id"] == answer["id"]
    assert json.loads(curl(f"HOST/submissions/{answer['id']}"))["code"] == "not_found"
    assert not any(entry["user_id"] == "old" for entry in json.loads(curl("HOST/leaderboard/CartPole-v1?limit=100")))


def test_a_failure_says_why_to_who_has_only_the_id(curl, tmp_path):
    (tmp_path / "bad.py").write_text("def act(observation):\n    raise ValueError('oh no')\n")
    answer = json.loads(curl("-F file=@bad.py -F user_id=unlucky HOST/api/submit/"))
    result = wait(curl, answer["id"])
    assert result["status"] == "failed"
    assert "oh no" in result["error"]


def test_health_metrics_and_docs(curl, tmp_path):
    (tmp_path / "bad.py").write_text("def act(observation):\n    raise ValueError('oh no')\n")
    (tmp_path / "broken.py").write_text("def act(observation:\n")
    sent = [
        json.loads(curl(f"{files} -F user_id=counted HOST/api/submit/"))
        for files in (
            "-F file=@agent.py",
            "-F files=@main.py -F files=@helper.py",
            "-F file=@bad.py",
            "-F file=@broken.py",
        )
    ]
    assert sent[3]["code"] == "upload_refused"
    for answer in sent[:3]:
        wait(curl, answer["id"])
    curl("HOST/api/leaderboard/")
    assert json.loads(curl("HOST/health"))["status"] == "healthy"
    text = curl("HOST/metrics")
    for name in (
        'submissions_received_total{mode="file"}',
        'submissions_received_total{mode="files"}',
        "submissions_upload_bytes_total",
        "evaluation_started_total",
        'evaluation_completed_total{env_id="CartPole-v1"}',
        'evaluation_failed_total{reason="crash"}',
        'evaluation_duration_seconds_bucket{env_id="CartPole-v1"',
        'leaderboard_queries_total{env_id="CartPole-v1",sort="score_desc"}',
        "leaderboard_query_duration_seconds_bucket",
        'submissions_validation_failures_total{reason="code"}',
    ):
        assert name in text, name
    assert "/api/submit/" in json.loads(curl("HOST/openapi.json"))["paths"]
    assert "<title>" in curl("HOST/docs")
