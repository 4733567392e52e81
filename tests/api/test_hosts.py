"""What hosts do over the API, and the log that it leaves."""

from __future__ import annotations

from harena.arena.db.models import State
from support.served import ENV, bearer, upload


def test_many_submissions_are_cancelled_at_once_and_the_log_says_who_did_it(client, arena, host, new_key):
    owner, token = new_key()
    sent = [upload(client, token, env_id=ENV, algorithm=f"A{n}").json()["id"] for n in range(3)]
    other = upload(client, new_key()[1], env_id=ENV).json()["id"]
    assert client.post("/v1/admin/cancel", json={"owner": owner}, headers=bearer(token)).status_code == 403
    answer = client.post("/v1/admin/cancel", json={"owner": owner}, headers=bearer(host))
    assert answer.json() == {"cancelled": 3}
    assert {arena.store.submissions.get(one).state for one in sent} == {State.CANCELLED}
    assert arena.store.submissions.get(other).state is State.QUEUED
    assert client.get("/v1/admin/audit", headers=bearer(token)).status_code == 403
    entry = client.get("/v1/admin/audit", headers=bearer(host)).json()["entries"][0]
    assert entry["what"] == "POST /v1/admin/cancel"
    assert entry["status"] == 200
    assert owner in entry["body"]
    assert host not in str(entry)


def test_the_page_adds_no_code_that_the_operator_has_not_trusted(client, host):
    answer = client.put("/v1/admin/environments", json={"env_id": "os:system"}, headers=bearer(host))
    assert answer.status_code == 422
    assert "harena envs add os:system" in answer.json()["hint"]


def test_every_setting_of_an_environment_is_in_the_form():
    from importlib import resources

    from harena.arena.settings import EnvironmentSettings

    form = resources.files("harena.api").joinpath("web", "admin_environments.js").read_text()
    missing = [name for name in EnvironmentSettings.__struct_fields__ if f'"{name}"' not in form]
    assert missing == []
