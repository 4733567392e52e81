"""Keys and sessions: scopes, expiry, rotation, cookies, CSRF, and who may speak for whom."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from harena.api.app import create_app
from harena.api.auth import COOKIE
from harena.arena.db.models import Scope
from support.served import bearer, submitted, upload


def code(answer):
    return answer.status_code, answer.json()["code"]


def test_a_key_works_in_both_headers(client, new_key):
    owner, token = new_key()
    for headers in (bearer(token), {"X-API-Key": token}):
        me = client.get("/v1/me", headers=headers).json()
        assert (me["owner"], me["scopes"], me["csrf"]) == (owner, ["read", "submit"], None)
        assert me["quota"].keys() == {"per_day", "at_once", "used_today", "active"}


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer hrn_00_x", "Basic abc", "Bearer ", "Bearer hrn_é_x"])
def test_a_bad_key_is_refused_and_not_taken_for_nobody(client, header):
    answer = client.get("/v1/environments", headers={"Authorization": header.encode()})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/boards?env_id=CartPole-v1").status_code == 200
    assert client.get("/v1/boards?env_id=CartPole-v1", headers={"Authorization": header.encode()}).status_code == 401


def test_scopes_are_needed_and_admin_has_them_all(client, new_key, admin):
    reader, submitter = new_key(Scope.READ)[1], new_key(Scope.SUBMIT)[1]
    assert code(upload(client, reader)) == (403, "scope_missing")
    assert upload(client, submitter).status_code == 201
    assert code(client.get("/v1/admin/queue", headers=bearer(reader))) == (403, "scope_missing")
    assert code(client.get("/v1/admin/queue")) == (401, "unauthorized")
    assert client.get("/v1/admin/queue", headers=bearer(admin)).status_code == 200


def test_a_key_ends_when_it_expires_or_is_revoked(client, arena, new_key):
    _, short = new_key(lifetime_s=0.0)
    assert code(client.get("/v1/me", headers=bearer(short))) == (401, "key_refused")
    _, token = new_key()
    key_id = client.get("/v1/keys", headers=bearer(token)).json()["keys"][0]["id"]
    assert client.delete(f"/v1/keys/{key_id}", headers=bearer(token)).status_code == 200
    assert client.get("/v1/me", headers=bearer(token)).status_code == 401


def test_rotation_gives_a_new_token_and_ends_the_old_one(client, new_key):
    owner, token = new_key()
    key_id = client.get("/v1/keys", headers=bearer(token)).json()["keys"][0]["id"]
    made = client.post(f"/v1/keys/{key_id}/rotate", headers=bearer(token), json={}).json()
    assert made["key"]["owner"] == owner
    assert client.get("/v1/me", headers=bearer(made["token"])).json()["owner"] == owner
    assert client.get("/v1/me", headers=bearer(token)).status_code == 401


def test_nobody_gives_a_key_more_than_they_have(client, new_key, admin):
    owner, token = new_key()
    assert client.post("/v1/keys", headers=bearer(token), json={"scopes": ["read"]}).status_code == 201
    assert code(client.post("/v1/keys", headers=bearer(token), json={"scopes": ["host"]})) == (403, "scope_missing")
    assert code(client.post("/v1/keys", headers=bearer(token), json={"owner": "other"})) == (403, "not_you")
    _, short = new_key(lifetime_s=60.0)
    assert code(client.post("/v1/keys", headers=bearer(short), json={})) == (403, "key_expires")
    made = client.post(
        "/v1/keys", headers=bearer(admin), json={"owner": "other", "scopes": ["host"], "expires_in_s": 9}
    )
    assert made.json()["key"]["expires_at"] is not None
    listed = client.get("/v1/keys", headers=bearer(token)).json()["keys"]
    assert {key["owner"] for key in listed} == {owner}
    assert "token" not in str(listed)


def test_a_weak_key_cannot_take_over_a_stronger_one_of_its_owner(client, arena, new_key):
    owner, weak = new_key(Scope.READ)
    strong = arena.store.keys.create(owner, [Scope.ADMIN])[0]
    assert code(client.post(f"/v1/keys/{strong.id}/rotate", headers=bearer(weak))) == (403, "scope_missing")
    assert code(client.delete(f"/v1/keys/{strong.id}", headers=bearer(weak))) == (403, "scope_missing")


def test_others_keys_look_as_if_they_were_not_there(client, arena, new_key):
    _, token = new_key()
    other = arena.store.keys.create("somebody", [Scope.READ])[0]
    for key_id in (other.id, "0" * 16, "..%2f..", "%00"):
        assert client.delete(f"/v1/keys/{key_id}", headers=bearer(token)).status_code == 404


# ---- sessions ----


def login(client, token):
    answer = client.post("/v1/login", json={"token": token})
    assert answer.status_code == 200, answer.text
    return answer


def test_a_login_sets_a_cookie_that_scripts_cannot_read(client, new_key):
    _, token = new_key()
    cookie = login(client, token).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert token not in cookie


def test_the_cookie_is_secure_on_https(app, new_key):
    client = TestClient(app, base_url="https://testserver", client=("127.0.0.1", 1))
    assert "Secure" in login(client, new_key()[1]).headers["set-cookie"]
    client.close()


def test_a_session_reads_and_writes_only_with_its_csrf_token(client, new_key):
    owner, token = new_key()
    csrf = login(client, token).json()["csrf"]
    assert client.get("/v1").json()["me"] == {"owner": owner, "scopes": ["read", "submit"], "csrf": csrf}
    assert code(upload(client)) == (403, "csrf")
    assert code(upload(client, headers={"X-CSRF-Token": "x" * 43})) == (403, "csrf")
    assert upload(client, headers={"X-CSRF-Token": csrf}).json()["owner"] == owner
    assert client.post("/v1/logout").status_code == 200
    assert client.get("/v1").json()["me"] is None


def test_another_sessions_csrf_token_does_not_fit(client, app, new_key):
    other = TestClient(app, client=("127.0.0.1", 1))
    theirs = login(other, new_key()[1]).json()["csrf"]
    other.close()
    login(client, new_key()[1])
    assert code(upload(client, headers={"X-CSRF-Token": theirs})) == (403, "csrf")


def test_a_forged_or_changed_cookie_is_nobody(client, app, arena, new_key):
    _, token = new_key()
    login(client, token)
    good = client.cookies[COOKIE]
    key_id, ends, rest = good.split(".", 2)
    for bad in (good[:-1], f"{key_id}.9999999999.{rest}", "a.b.c.d", "....", "x" * 5000, f"{'0' * 16}.{ends}.{rest}"):
        fresh = TestClient(app, client=("127.0.0.1", 1), cookies={COOKIE: bad})
        assert fresh.get("/v1/me").status_code == 401, bad
        assert code(fresh.post("/v1/challenges", json={}, headers={"X-CSRF-Token": "x"}))[0] in (401, 422)
        fresh.close()


def test_a_session_dies_with_its_key_and_with_time(client, arena, new_key):
    _, token = new_key()
    login(client, token)
    arena.store.keys.revoke(client.get("/v1/keys").json()["keys"][0]["id"])
    assert client.get("/v1/me").status_code == 401
    sessions = client.app.state.api.sessions
    _, other = new_key()
    cookie = sessions.cookie(arena.store.keys.authenticate(other, Scope.READ))
    later = type(sessions)(arena.settings.secret_key, lambda: arena.store.clock() + 13 * 3600)
    assert sessions.key_id(cookie) is not None
    assert later.key_id(cookie) is None
    assert type(sessions)(b"another secret of this length", arena.store.clock).key_id(cookie) is None


def test_logins_are_throttled_and_come_back(arena):
    now = [0.0]
    client = TestClient(create_app(arena, loopback=True, clock=lambda: now[0]), base_url="http://localhost")
    answers = [client.post("/v1/login", json={"token": "hrn_00_guess"}).status_code for _ in range(11)]
    assert answers == [401] * 10 + [429]
    assert int(client.post("/v1/login", json={"token": "x"}).headers["retry-after"]) >= 1
    now[0] += 10.0
    assert client.post("/v1/login", json={"token": "x"}).status_code == 401
    client.close()


# ---- names ----


SPELLINGS = {
    "the same": lambda name: name,
    "with spaces": lambda name: f" {name} ",
    "in capitals": str.upper,
    "with a wide letter": lambda name: name.replace("o", "\uff4f"),
    "with a space inside": lambda name: f"{name[:3]} {name[3:]}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_name_with_a_key_cannot_be_used_without_it(client, new_key, spelling):
    owner, _ = new_key()
    for path in ("/v1/submissions", "/api/submit/", "/submissions/"):
        assert code(upload(client, path=path, user_id=SPELLINGS[spelling](owner))) == (401, "unauthorized")


def test_the_name_stays_taken_when_its_key_is_gone(client, arena, new_key):
    owner, token = new_key()
    arena.store.keys.revoke(client.get("/v1/keys", headers=bearer(token)).json()["keys"][0]["id"])
    assert upload(client, user_id=owner).status_code == 401


def test_a_key_does_not_submit_under_another_name(client, new_key):
    owner, token = new_key()
    assert code(upload(client, token, user_id="somebody-else")) == (403, "not_you")
    assert upload(client, token, user_id=owner).json()["owner"] == owner
    assert upload(client, token, user_id="anonymous").json()["owner"] == owner


@pytest.mark.parametrize("name", ["a\u200bb", "a\nb", "a\u202eb", "\x07"])
def test_names_that_cannot_be_seen_are_refused(client, name):
    assert upload(client, user_id=name).status_code == 422


def test_submitting_without_a_key_needs_the_hosts_word(new_arena):
    arena = new_arena(anonymous_submit=False)
    client = TestClient(create_app(arena, loopback=True), base_url="http://localhost", client=("127.0.0.1", 1))
    assert code(upload(client)) == (401, "unauthorized")
    client.close()


def test_on_loopback_nobody_from_elsewhere_submits_without_a_key(arena):
    """However the request got here."""
    app = create_app(arena, loopback=True)
    for address, headers in (
        ("192.0.2.7", {}),
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}),
        ("127.0.0.1", {"Forwarded": "for=192.0.2.7"}),
    ):
        client = TestClient(app, base_url="http://localhost", client=(address, 1))
        assert code(upload(client, headers=headers)) == (401, "unauthorized")
        client.close()


def test_reading_needs_a_key_where_the_host_says_so(new_arena):
    arena = new_arena(anonymous_read=False)
    client = TestClient(create_app(arena, loopback=True), base_url="http://localhost", client=("127.0.0.1", 1))
    token = arena.store.keys.create("ann", [Scope.READ])[1]
    submission_id = submitted(client)
    for path in (
        "/v1/environments",
        "/v1/boards?env_id=CartPole-v1",
        "/api/leaderboard/",
        "/leaderboard/CartPole-v1",
        f"/v1/submissions/{submission_id}",
        f"/api/results/{submission_id}",
        "/v1/matches",
        "/metrics",
        "/v1/events?topics=queue",
        "/v1/export/board?env_id=CartPole-v1",
    ):
        assert client.get(path).status_code == 401, path
        if "events" not in path:
            assert client.get(path, headers=bearer(token)).status_code == 200, path
            assert client.get(path).status_code == 401, path  # also when it is in the cache
    assert client.get("/v1").status_code == 200
    client.close()
