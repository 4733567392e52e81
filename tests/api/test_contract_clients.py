"""A client written only from the leaderboard's contract: its paths, its fields and its words, and nothing of ours."""

from __future__ import annotations

import json
import time
import uuid

import httpx
import pytest

AGENT = "class Agent:\n    def act(self, observation):\n        return 0\n"
SCRIPT = 'import json, sys\nprint(json.dumps({"score": 12.5, "env": sys.argv[1], "metrics": METRICS}))\n'
OVER = ("completed", "failed")


class Leaderboard:
    """Everything that the contract names."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def submit(self, code=None, *, files=None, path="/api/submit/", name="submission.py", **fields):
        parts = [("file", (name, code))] if files is None else [("files", one) for one in files.items()]
        return self.http.post(path, data=fields, files=parts)

    def result(self, submission_id, path="/api/results"):
        return self.http.get(f"{path}/{submission_id}")

    def finished(self, submission_id):
        deadline = time.monotonic() + 60
        while (found := self.result(submission_id).json())["status"] not in OVER:
            assert found["status"] in ("pending", "processing")
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def board(self, **query):
        return self.http.get("/api/leaderboard/", params=query).json()


@pytest.fixture(scope="module")
def board(playing):
    client = Leaderboard(playing.url)
    yield client
    client.http.close()


def test_a_file_alone_has_the_contracts_defaults(board):
    made = board.submit(AGENT).json()
    assert {"id", "status", "env_id", "algorithm"} <= made.keys()
    assert (made["status"], made["env_id"], made["algorithm"]) == ("queued", "CartPole-v1", "Custom")
    assert made["board"] == "verified"
    done = board.finished(made["id"])
    assert {"id", "status", "score", "env_id", "algorithm", "created_at", "error"} <= done.keys()
    assert (done["status"], done["error"]) == ("completed", None)
    assert done["score"] > 0
    assert any(one["id"] == made["id"] and one["user_id"] == "anonymous" for one in board.board(limit=100))


@pytest.mark.parametrize("hyphens", [True, False])
def test_a_client_id_is_the_submissions_id_at_once(board, hyphens):
    chosen = uuid.uuid4()
    text = str(chosen) if hyphens else chosen.hex
    made = board.submit(AGENT, client_id=text).json()
    assert uuid.UUID(made["id"]) == chosen
    for shown in (str(chosen), chosen.hex, str(chosen).upper()):
        assert board.result(shown).json()["id"] == made["id"]
    assert board.finished(str(chosen))["status"] == "completed"


def test_a_client_id_that_is_none_or_taken_is_refused(board):
    chosen = str(uuid.uuid4())
    for wrong in ("my-own-id", "1234", f"{{{chosen}}}", f"urn:uuid:{chosen}", chosen[:-1], chosen.replace("-", "", 1)):
        assert board.submit(AGENT, client_id=wrong).status_code == 400, wrong
    assert board.submit(AGENT, client_id=chosen).status_code == 200
    assert board.submit(AGENT, client_id=chosen).status_code == 409
    assert board.submit(AGENT, client_id=chosen.replace("-", "")).status_code == 409
    board.finished(chosen)


def test_whoever_knows_the_id_reads_error_and_log_of_what_was_sent_without_a_key(board):
    chosen = str(uuid.uuid4())
    board.submit("import sys\nprint('before the end')\nsys.exit(3)\n", client_id=chosen)
    failed = board.finished(chosen)
    assert failed["status"] == "failed"
    assert "3" in failed["error"]
    assert "before the end" in failed["log"]
    assert failed["score"] is None


def test_json_with_the_code_and_the_older_paths(board):
    body = {"user_id": "jason", "algorithm": "DQN", "env_id": "CartPole-v1", "agent_file": "dqn.py", "code": AGENT}
    made = board.http.post("/submissions/", json=body).json()
    assert (made["status"], made["algorithm"]) == ("queued", "DQN")
    assert board.finished(made["id"])["user_id"] == "jason"
    assert board.result(made["id"], "/submissions").json()["status"] == "completed"
    rows = board.http.get("/leaderboard/CartPole-v1", params={"limit": 100}).json()
    assert made["id"] in [one["id"] for one in rows]
    assert board.http.delete(f"/submissions/{made['id']}").status_code == 200
    assert board.result(made["id"]).status_code == 404
    assert made["id"] not in [one["id"] for one in board.board(limit=100)]


def test_a_multipart_agent_file(board):
    answer = board.http.post("/submissions/", data={"user_id": "old"}, files={"agent_file": ("dqn.py", AGENT)})
    assert board.finished(answer.json()["id"])["status"] == "completed"


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b'{"code": 3}', b'{"agent_file": "dqn.py"}', b'{"code": "x", "path": "/etc"}', b"[" * 100_000],
)
def test_json_that_is_no_submission_is_refused_in_words(board, body):
    answer = board.http.post("/submissions/", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "upload_refused"


def test_a_file_elsewhere_is_not_deleted_by_others(board, playing):
    """Without a key, only the address that sent it may delete it; with X-Client-Id, only who shows that."""
    made = board.http.post("/api/submit/", files={"file": ("a.py", AGENT)}, headers={"X-Client-Id": "secret-1"}).json()
    assert board.http.delete(f"/submissions/{made['id']}").status_code == 401
    other = {"X-Client-Id": made["id"]}
    assert board.http.delete(f"/submissions/{made['id']}", headers=other).status_code == 401
    assert board.http.delete(f"/submissions/{made['id']}", headers={"X-Client-Id": "secret-1"}).status_code == 200


def test_filters_and_orders(board):
    first = board.submit(AGENT, user_id="filter-one", algorithm="Alpha").json()["id"]
    second = board.submit(AGENT, user_id="filter-two", algorithm="Beta").json()["id"]
    score = board.finished(first)["score"]
    assert board.finished(second)["score"] == score

    def ids(**query):
        return [one["id"] for one in board.board(env_id="CartPole-v1", limit=100, **query)]

    assert ids(user="filter-one") == [first]
    assert ids(algorithm="Beta") == [second]
    assert {first, second} <= set(ids(score_min=score, score_max=score))
    assert ids(score_min=score + 1e6) == []
    assert {first, second} <= set(ids(date_from="2020-01-01"))
    assert ids(date_to="2020-01-01") == []
    newest, oldest = ids(sort="date_desc"), ids(sort="date_asc")
    assert newest.index(second) < newest.index(first)
    assert oldest.index(first) < oldest.index(second)
    scores = [one["score"] for one in board.board(sort="score_desc", limit=100)]
    assert scores == sorted(scores, reverse=True)
    assert len(board.board(limit=1)) == 1
    assert board.http.get("/api/leaderboard/", params={"limit": 101}).status_code == 422
    assert "CartPole-v1" in [one["env_id"] for one in board.http.get("/api/leaderboard/environments").json()]


def test_any_registered_gymnasium_id_can_be_submitted_to(board):
    assert board.board(env_id="Blackjack-v1") == []
    assert board.http.get("/leaderboard/Blackjack-v1").json() == []
    made = board.submit(AGENT, env_id="Blackjack-v1", user_id="far").json()
    assert board.finished(made["id"])["status"] == "completed"
    assert [one["id"] for one in board.board(env_id="Blackjack-v1")] == [made["id"]]
    for unknown in ("Nowhere-v0", "os:system", "openspiel/kuhn_poker"):
        assert board.submit(AGENT, env_id=unknown).status_code == 404
        assert board.http.get("/api/leaderboard/", params={"env_id": unknown}).status_code == 404


def test_a_script_reports_its_own_score_and_metrics(board):
    for metrics in ("[9.0, 10.0, 11.0]", '{"mean": 10.0, "rewards": [9.0, 11.0], "note": "ok"}'):
        made = board.submit(SCRIPT.replace("METRICS", metrics), user_id="scripted").json()
        assert made["board"] == "self-reported"
        done = board.finished(made["id"])
        assert (done["status"], done["score"], done["kind"]) == ("completed", 12.5, "self-reported")
        assert made["id"] not in [one["id"] for one in board.board(limit=100)]
        kept = board.http.get(f"/v1/submissions/{made['id']}").json()["evaluation"]
        if metrics.startswith("["):
            assert kept["returns"] == [9.0, 10.0, 11.0]
        else:
            assert kept["metrics"] == json.loads(metrics)


def test_several_files_lie_side_by_side_and_the_main_one_is_run_as_submission(board):
    main = (
        'import json, os, sys, helper\nprint(os.path.basename(__file__))\nprint(json.dumps({"score": helper.SCORE}))\n'
    )
    made = board.submit(files={"train.py": main, "helper.py": "SCORE = 7\n"}, main_file="train.py").json()
    done = board.finished(made["id"])
    assert (done["status"], done["score"]) == ("completed", 7)
    assert done["log"].startswith("submission.py")


def test_kind_decides_and_an_agents_name_in_a_script_does_not_fail_it(board):
    both = AGENT.replace("self, observation", "self") + SCRIPT.replace("METRICS", "{}")
    assert board.submit(both, kind="robot").status_code == 422
    chosen = board.submit(both, kind="script").json()
    assert chosen["board"] == "self-reported"
    assert board.finished(chosen["id"])["score"] == 12.5
    untold = board.finished(board.submit(both, user_id="both").json()["id"])
    assert (untold["status"], untold["score"], untold["kind"]) == ("completed", 12.5, "self-reported")
    agent = board.finished(board.submit(both, kind="agent").json()["id"])
    assert (agent["status"], agent["kind"]) == ("failed", "verified")
    assert board.submit("print(1)\n", kind="agent").status_code == 422


def test_what_is_neither_an_agent_nor_prints_a_score_fails_in_words(board):
    silent = board.finished(board.submit("x = 1\n").json()["id"])
    assert silent["error"].startswith(
        "No `class Agent` or `act()` found, so it ran as a script, and that printed no score."
    )
    wrong = "class Agent:\n    def act(self):\n        return 0  # no score\n"
    failed = board.finished(board.submit(wrong).json()["id"])
    assert (failed["status"], failed["kind"]) == ("failed", "verified")
    assert "act" in failed["error"]


def test_anonymous_users_do_not_share_a_quota(new_arena):
    from starlette.testclient import TestClient

    from harena.api.app import create_app
    from harena.arena.db.records import DefaultQuota

    arena = new_arena(quota=DefaultQuota(per_day=1, at_once=1))
    with TestClient(create_app(arena, loopback=True), client=("127.0.0.1", 1), base_url="http://localhost") as client:
        for _ in range(3):
            assert client.post("/api/submit/", files={"file": ("a.py", AGENT)}).status_code == 200
        named = [
            client.post("/api/submit/", files={"file": ("a.py", AGENT)}, data={"user_id": "ann"}) for _ in range(2)
        ]
        assert [answer.status_code for answer in named] == [200, 429]


def test_a_host_may_restrict_the_environments(new_arena):
    from starlette.testclient import TestClient

    from harena.api.app import create_app

    arena = new_arena(any_environment=False)
    with TestClient(create_app(arena, loopback=True), client=("127.0.0.1", 1), base_url="http://localhost") as client:
        refused = client.post("/api/submit/", files={"file": ("a.py", AGENT)}, data={"env_id": "Blackjack-v1"})
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


def test_health_metrics_and_documentation(board):
    assert board.http.get("/health").json()["status"] == "healthy"
    assert board.http.get("/docs").status_code == 200
    assert board.submit(AGENT, kind="robot").status_code == 422
    assert board.finished(board.submit("raise SystemExit(1)\n").json()["id"])["status"] == "failed"
    assert board.finished(board.submit(AGENT).json()["id"])["status"] == "completed"
    board.board(env_id="CartPole-v1")
    text = board.http.get("/metrics").text
    for name in (
        "submissions_received_total{mode=",
        "submissions_validation_failures_total{reason=",
        "submissions_upload_bytes_total",
        "evaluation_started_total",
        'evaluation_completed_total{env_id="CartPole-v1"}',
        "evaluation_failed_total{reason=",
        'evaluation_duration_seconds_count{env_id="CartPole-v1"}',
        'leaderboard_queries_total{env_id="CartPole-v1",sort=',
        "leaderboard_query_duration_seconds_count",
    ):
        assert f"\n{name}" in text, name
