"""Whose is what: code, logs, reasons and changes are the owner's, by key or by client id."""

from __future__ import annotations

import io
import re
import zipfile

import pytest
from starlette.testclient import TestClient

from harena.api.app import create_app
from harena.arena.db.models import Event
from harena.arena.db.records import DefaultQuota
from support.served import AGENT, ENV, bearer, failed, ranked, submitted, upload

PRIVATE = {"reason", "warnings", "main_file", "has_log"}
CLIENT = {"X-Client-Id": "3f0e6d54-client"}


def others(new_key):
    """Headers of everybody who is not the owner."""
    return [{}, bearer(new_key()[1]), {"X-Client-Id": "another"}, {**bearer(new_key()[1]), **CLIENT}]


def test_a_keyed_submission_is_its_owners(client, arena, new_key):
    _, token = new_key()
    submission_id = failed(arena, client, token, client_id=CLIENT["X-Client-Id"])
    for headers in (*others(new_key), CLIENT):
        shown = client.get(f"/v1/submissions/{submission_id}", headers=headers)
        assert not PRIVATE & shown.json().keys()
        assert shown.json()["mine"] is False
        for path in ("log", "code"):
            assert client.get(f"/v1/submissions/{submission_id}/{path}", headers=headers).status_code in (401, 403)
        assert "secret" not in client.get(f"/api/results/{submission_id}", headers=headers).text
        for method, path in (("POST", "/cancel"), ("POST", "/reevaluate"), ("DELETE", "")):
            answer = client.request(method, f"/v1/submissions/{submission_id}{path}", headers=headers)
            assert answer.json()["code"] == "not_yours"
        assert client.delete(f"/submissions/{submission_id}", headers=headers).status_code in (401, 403)
        assert submission_id not in client.get("/v1/submissions?limit=200", headers=headers).text
    mine = client.get(f"/v1/submissions/{submission_id}", headers=bearer(token)).json()
    assert mine["reason"] == "crash: the secret reason"
    assert "secret log" in client.get(f"/v1/submissions/{submission_id}/log", headers=bearer(token)).text
    assert "secret reason" in client.get(f"/api/results/{submission_id}", headers=bearer(token)).json()["error"]


def test_an_anonymous_submission_is_whose_client_id_it_is(client, arena, new_key):
    submission_id = failed(arena, client, user_id="nokey", client_id=CLIENT["X-Client-Id"])
    _, token = new_key()
    for headers in ({}, bearer(token), {"X-Client-Id": "another"}, {"X-Client-Id": ""}):
        assert not PRIVATE & client.get(f"/v1/submissions/{submission_id}", headers=headers).json().keys()
        assert client.get(f"/v1/submissions/{submission_id}/log", headers=headers).status_code in (401, 403)
        assert "secret" not in client.get(f"/api/results/{submission_id}", headers=headers).text
        assert client.delete(f"/v1/submissions/{submission_id}", headers=headers).status_code in (401, 403)
    assert client.get(f"/v1/submissions/{submission_id}", headers=CLIENT).json()["mine"] is True
    assert "secret log" in client.get(f"/v1/submissions/{submission_id}/log", headers=CLIENT).text
    assert submission_id in client.get("/v1/submissions?limit=200", headers=CLIENT).text
    assert client.delete(f"/v1/submissions/{submission_id}", headers=CLIENT).status_code == 200


def test_a_key_made_later_for_a_name_does_not_inherit_what_was_sent_without(client, arena, new_key):
    submission_id = failed(arena, client, user_id="latecomer")
    _, token = new_key(owner="latecomer")
    assert client.get(f"/v1/submissions/{submission_id}/log", headers=bearer(token)).status_code == 403


def test_without_a_client_id_logs_and_code_are_nobodys(client, arena, new_key, host):
    submission_id = failed(arena, client, user_id="careless")
    for headers in others(new_key):
        for path in ("log", "code"):
            assert client.get(f"/v1/submissions/{submission_id}/{path}", headers=headers).status_code in (401, 403)
    assert "secret log" in client.get(f"/v1/submissions/{submission_id}/log", headers=bearer(host)).text
    assert client.get(f"/api/results/{submission_id}").json()["error"] == "crash: the secret reason"


def test_the_error_of_a_client_that_identified_itself_is_not_told_by_id(client, arena):
    submission_id = ranked(arena, client, user_id="fallen", client_id=CLIENT["X-Client-Id"])
    with arena.store.begin():
        arena.store.submissions.move(submission_id, Event.REEVALUATE)
        arena.store.submissions.move(submission_id, Event.START)
        arena.store.submissions.fail(submission_id, "crash: the secret reason", platform=False)
    assert "secret" not in client.get(f"/api/results/{submission_id}").json()["error"]


def test_the_client_id_is_never_shown(client, arena, host):
    submission_id = ranked(arena, client, user_id="shy", client_id=CLIENT["X-Client-Id"])
    for path in (
        f"/v1/submissions/{submission_id}",
        f"/api/results/{submission_id}",
        "/v1/submissions",
        "/v1/admin/owners",
        f"/v1/export/submissions?env_id={ENV}",
        f"/v1/boards?env_id={ENV}&user=shy",
        "/v1/admin/queue",
        f"/v1/agents?owner=shy&algorithm=Custom&env_id={ENV}",
    ):
        answer = client.get(path, headers={**bearer(host), **CLIENT})
        assert answer.status_code == 200, path
        assert CLIENT["X-Client-Id"] not in answer.text


def test_the_owner_gets_the_code_back(client, new_key):
    _, token = new_key()
    submission_id = submitted(client, token)
    answer = client.get(f"/v1/submissions/{submission_id}/code", headers=bearer(token))
    assert answer.headers["content-type"] == "application/zip"
    assert "attachment" in answer.headers["content-disposition"]
    assert zipfile.ZipFile(io.BytesIO(answer.content)).read("agent.py") == AGENT


def test_cancel_reevaluate_and_delete(client, new_key):
    _, token = new_key()
    submission_id = submitted(client, token)
    path = f"/v1/submissions/{submission_id}"
    assert client.post(f"{path}/cancel", headers=bearer(token)).json()["state"] == "cancelled"
    assert client.post(f"{path}/cancel", headers=bearer(token)).json()["code"] == "conflict"
    again = client.post(f"{path}/reevaluate", headers=bearer(token)).json()
    assert (again["state"], again["position"] is None) == ("queued", False)
    assert client.delete(path, headers=bearer(token)).json() == {"ok": True}
    for later in (path, f"{path}/log", f"{path}/ratings", f"/api/results/{submission_id}"):
        assert client.get(later, headers=bearer(token)).status_code == 404


def test_a_read_only_key_changes_nothing(client, arena, new_key):
    owner, token = new_key()
    submission_id = submitted(client, token)
    reading = arena.store.keys.create(owner, ["read"])[1]
    assert client.get(f"/v1/submissions/{submission_id}", headers=bearer(reading)).json()["mine"] is True
    for method, path in (("POST", "/cancel"), ("POST", "/reevaluate"), ("DELETE", "")):
        answer = client.request(method, f"/v1/submissions/{submission_id}{path}", headers=bearer(reading))
        assert answer.json()["code"] == "scope_missing"


def test_quotas_are_the_hosts_and_shown_to_the_owner(client, new_key, host):
    owner, token = new_key()
    order = {"owner": owner, "per_day": 3, "at_once": 1}
    assert client.put("/v1/admin/quotas", headers=bearer(host), json=order).status_code == 200
    submitted(client, token)
    assert client.get("/v1/me", headers=bearer(token)).json()["quota"] == {
        "per_day": 3,
        "at_once": 1,
        "used_today": 1,
        "active": 1,
    }
    refused = upload(client, token)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert "retry-after" in refused.headers


def test_hidden_replays_are_not_shown_while_the_season_runs(client, arena, new_key):
    _, token = new_key()
    submission_id = ranked(arena, client, token)
    answer = client.get(f"/v1/submissions/{submission_id}/replays", headers=bearer(token))
    assert (answer.status_code, answer.json()["code"]) == (403, "season_runs")
    assert client.get(f"/v1/submissions/{submission_id}/replays/0", headers=bearer(token)).status_code == 403


@pytest.mark.parametrize(
    "path", ["/v1/submissions/{}", "/api/results/{}", "/submissions/{}", "/v1/matches/{}", "/v1/tournaments/{}"]
)
@pytest.mark.parametrize(
    "bad", ["0" * 32, "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%00", "a" * 500, "é", "'; DROP TABLE--"]
)
def test_ids_that_are_none_are_not_found(client, path, bad):
    answer = client.get(path.format(bad))
    assert answer.status_code == 404
    assert answer.json().keys() == {"code", "detail", "hint", "request_id", "trace_id"}


def test_two_strangers_of_one_name_have_rows_and_quotas_of_their_own(new_arena):
    arena = new_arena(quota=DefaultQuota(per_day=2, at_once=None))
    client = TestClient(create_app(arena, loopback=True, allowed_hosts=["testserver"]), client=("127.0.0.1", 50000))
    for number in range(2):
        ranked(arena, client, score=1.0 + number, user_id="ann", algorithm="DQN", client_id="one")
    ranked(arena, client, score=5.0, user_id="ann", algorithm="DQN", client_id="two")
    assert upload(client, user_id="ann", algorithm="DQN", client_id="one").status_code == 429
    entries = client.get(f"/v1/boards?env_id={ENV}").json()["entries"]
    assert [entry["score"] for entry in entries] == [5.0, 2.0]
    assert len({entry["owner"] for entry in entries}) == 2
    assert all(re.fullmatch(r"ann#[0-9a-f]{8}", entry["owner"]) for entry in entries)
    old = client.get(f"/api/leaderboard/?env_id={ENV}&user=ann").json()
    assert [(entry["user_id"], entry["score"]) for entry in old] == [("ann", 5.0), ("ann", 2.0)]
    assert upload(client, user_id=entries[0]["owner"], client_id="three").status_code == 422
    assert upload(client, user_id="ann\u202e", client_id="three").status_code == 422
    assert upload(client, user_id="bob", algorithm="x\u202e", client_id="three").status_code == 422
