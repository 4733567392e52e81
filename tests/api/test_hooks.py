"""Webhooks and mail addresses over the API: an owner's own, and confirmed by whoever reads the mail."""

from __future__ import annotations

import pytest

from harena.arena.db.models import HookKind
from support.served import ENV, bearer


@pytest.fixture
def hook(arena, new_key):
    """A mail address that waits for its code, with its owner's token."""
    owner, token = new_key()
    return arena.store.notices.add_hook(owner, HookKind.MAIL, "ann@example.org"), token


def test_what_the_host_does_not_allow_is_refused_in_words(client, new_key):
    headers = bearer(new_key()[1])
    for body, word in (
        ({"kind": "webhook", "target": "https://hooks.example.org/"}, "HARENA_WEBHOOKS"),
        ({"kind": "mail", "target": "ann@example.org"}, "HARENA_SMTP_URL"),
    ):
        answer = client.post("/v1/hooks", json=body, headers=headers)
        assert answer.status_code == 422, answer.text
        assert word in answer.json()["detail"]
    assert client.post("/v1/hooks", json={"kind": "mail", "target": "a@x.org"}).status_code == 401


def test_a_code_confirms_and_a_few_wrong_ones_remove(arena, client, hook):
    made, token = hook
    path = f"/v1/hooks/{made.id}"
    wrong = f"{(int(made.secret) + 1) % 10**8:08d}"
    assert client.post(f"{path}/confirm", json={"code": wrong}, headers=bearer(token)).status_code == 403
    done = client.post(f"{path}/confirm", json={"code": made.secret}, headers=bearer(token))
    assert done.json()["confirmed"] is True
    other = arena.store.notices.add_hook(made.owner, HookKind.MAIL, "bob@example.org")
    answers = [
        client.post(f"/v1/hooks/{other.id}/confirm", json={"code": "x"}, headers=bearer(token)).status_code
        for _ in range(6)
    ]
    assert answers == [403] * 5 + [404]


def test_a_hook_is_its_owners_alone_and_its_secret_is_never_shown_again(client, new_key, hook):
    made, token = hook
    stranger = bearer(new_key()[1])
    nowhere = "f" * 32
    for method, rest, body in (
        ("post", "/confirm", {"code": made.secret}),
        ("get", "/deliveries", None),
        ("delete", "", None),
    ):
        there = client.request(method, f"/v1/hooks/{made.id}{rest}", json=body, headers=stranger)
        missing = client.request(method, f"/v1/hooks/{nowhere}{rest}", json=body, headers=stranger)
        assert there.status_code == missing.status_code == 404
    listed = client.get("/v1/hooks", headers=bearer(token))
    assert [one["id"] for one in listed.json()["hooks"]] == [made.id]
    assert made.secret not in listed.text
    assert client.get("/v1/hooks", headers=stranger).json()["hooks"] == []
    assert client.delete(f"/v1/hooks/{made.id}", headers=bearer(token)).status_code == 200
    assert client.get("/v1/hooks", headers=bearer(token)).json()["hooks"] == []


def test_changes_of_rank_are_a_feed(arena, client):
    arena.store.notices.replace_ranks(ENV, {("ann", "a"): 1}, 50)
    arena.store.notices.replace_ranks(ENV, {("ann", "a"): 2, ("bob", "<b>"): 1}, 50)
    text = client.get(f"/v1/feeds/ranks?env_id={ENV}").text
    assert f"&lt;b&gt; of bob in {ENV}: from outside the best to rank 1" in text
    assert "<entry>" not in client.get("/v1/feeds/ranks?owner=nobody").text
