"""Query parameters that a path does not know."""

from __future__ import annotations

import pytest

POLE = "CartPole-v1"


@pytest.mark.parametrize(
    ("path", "odd", "known"),
    [
        (f"/v1/boards?env_id={POLE}&usr=ann", "usr", "score_min"),
        ("/v1/matches?environment=pong", "environment", "env_id"),
        ("/v1/submissions?ownr=ann", "ownr", "owner"),
        ("/v1/me?x", "x", "none"),
    ],
)
def test_a_filter_that_is_not_known_is_refused_by_name(client, path, odd, known):
    answer = client.get(path)
    assert answer.status_code == 422, answer.text
    refused = answer.json()
    assert refused["code"] == "unknown_parameter"
    assert repr(odd) in refused["detail"]
    assert known in refused["detail"]
    assert refused["request_id"]


def test_what_a_path_knows_is_taken(client):
    assert client.get(f"/v1/boards?env_id={POLE}&user=ann&limit=1").status_code == 200


def test_clients_of_the_older_contract_may_send_more(client):
    assert client.get(f"/api/leaderboard/?env_id={POLE}&page=1&_=123").status_code == 200
    assert client.get("/health?from=probe").status_code == 200
