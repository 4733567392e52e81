"""Other sites, other hosts, scripts in names: what a browser must not be tricked into."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from harena.api.app import create_app
from harena.api.http.middleware import PAGE_CSP
from support.served import ENV, LADDER, bearer, ranked, upload

XSS = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
SHAPE = {"code", "detail", "hint", "request_id", "trace_id"}


# ---- other sites ----

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://testserver.evil.example"},
    {"Origin": "http://testserver:8001"},
    {"Origin": "file://"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", ["/v1/submissions", "/api/submit/", "/v1/login", "/v1/challenges", "/nowhere"])
def test_another_sites_page_cannot_write(client, headers, path):
    answer = client.post(path, headers=headers, files={"file": ("agent.py", b"def act(o): return 0")})
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://testserver"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}]
)
def test_our_own_page_and_programs_can(client, headers):
    assert upload(client, headers=headers).status_code == 201


def test_another_sites_page_may_not_read_answers(client):
    answer = client.get("/v1/environments", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


# ---- other hosts ----


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8000",
        "",
        "localhost@evil",
        "[::1",
        "a b",
    ],
)
def test_a_name_that_is_not_ours_is_misdirected(client, name):
    answer = client.get("/v1", headers={"Host": name})
    assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3", "testserver", "localhost."]
)
def test_our_names_and_numbers_are_answered(client, name):
    assert client.get("/v1", headers={"Host": name}).status_code == 200


def test_a_star_allows_every_name(arena):
    client = TestClient(create_app(arena, loopback=False, allowed_hosts=["*"]), base_url="http://any.example")
    assert client.get("/v1").status_code == 200
    client.close()


# ---- scripts in what users give ----


def test_scripts_in_every_text_come_back_as_json_only(client, arena, new_key, host):
    client_id = f"client{XSS}"
    submission_id = ranked(arena, client, user_id=XSS, algorithm=XSS, client_id=client_id, name=f"{XSS}.py")
    season = client.post("/v1/seasons", headers=bearer(host), json={"env_id": ENV, "name": XSS})
    assert season.status_code == 409
    for path in (
        f"/v1/submissions/{submission_id}",
        f"/api/results/{submission_id}",
        f"/v1/boards?env_id={ENV}",
        "/api/leaderboard/?limit=100",
        f"/leaderboard/{ENV}?limit=100",
        "/v1/submissions",
        f"/v1/matches?env_id={XSS}",
        f"/v1/boards?env_id={XSS}",
        f"/v1/environments/{XSS}",
        f"/{XSS}",
        f"/v1/submissions/{XSS}",
        f"/static/{XSS}",
        f"/v1/events?topics={XSS}",
        f"/v1/boards?env_id={ENV}&sort={XSS}",
        f"/v1/agents?owner={XSS}&algorithm=x&env_id={ENV}",
    ):
        answer = client.get(path, headers={"X-Client-Id": client_id})
        assert answer.headers["content-type"] == "application/json", path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["x-frame-options"] == "DENY"


def test_logs_are_plain_text_whatever_they_hold(client, arena, new_key):
    _, token = new_key()
    submission_id = ranked(arena, client, token)
    answer = client.get(f"/v1/submissions/{submission_id}/log", headers=bearer(token))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_request_id_from_outside_is_taken_only_if_it_is_one(client):
    assert client.get("/v1", headers={"X-Request-Id": "my-request-17"}).headers["x-request-id"] == "my-request-17"
    for bad in ("short", "x" * 100, "with space in it", "<script>alert(1)</script>"):
        made = client.get("/v1/nothing", headers={"X-Request-Id": bad})
        assert made.headers["x-request-id"] != bad
        assert made.json()["request_id"] == made.headers["x-request-id"]


# ---- files ----


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "..%5capp.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "index.html%00.js",
        ".hidden.js",
        "",
        ".",
        "..",
        "sub/index.html",
        "index.html/",
        "app.py",
        "no-such.js",
        "x" * 3000 + ".js",
    ],
)
def test_static_paths_do_not_leave_their_folder(server, name):
    with server.connect() as connection:
        connection.sendall(f"GET /static/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    assert data.split()[1] in (b"404", b"400"), data[:200]
    assert b"def " not in data


def test_pages_have_the_strict_policy(client):
    for path in (
        "/",
        f"/env/{ENV}",
        "/submission/abc",
        "/match/abc",
        "/submit",
        "/login",
        "/admin",
        "/agent?owner=x",
        "/seasons/1",
        "/tournament/x",
    ):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == PAGE_CSP
        assert "unsafe" not in PAGE_CSP
    again = client.get("/", headers={"If-None-Match": client.get("/").headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_loads_nothing_from_elsewhere(client):
    for path in ("/", "/docs"):
        text = client.get(path).text
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text
        assert "<script>" not in text
        assert " style=" not in text


# ---- one shape ----


def test_every_refusal_has_one_shape(client, host):
    answers = [
        client.get("/nothing"),
        client.get("/v1/nothing"),
        client.delete("/v1/boards"),
        client.post("/health"),
        client.get("/v1/boards"),
        client.get(f"/v1/boards?env_id={ENV}&limit=0"),
        client.get(f"/v1/boards?env_id={ENV}&score_min=nan"),
        client.get(f"/v1/boards?env_id={ENV}&date_from=yesterday"),
        client.get(f"/v1/boards?env_id={ENV}&season=99999"),
        client.get(f"/v1/boards?env_id={LADDER}&season=1"),
        client.get("/v1/me"),
        client.post("/v1/login", content=b"{"),
        client.post("/v1/login", content=b"\xff", headers={"Content-Type": "application/json"}),
        client.post("/v1/login", json={"token": "x", "more": 1}),
        client.post("/v1/login", json={"token": 5}),
        client.post("/v1/login", content=b"x" * 600_000),
        client.post("/v1/login", content=b'{"token": "\\ud800"}', headers={"Content-Type": "application/json"}),
        client.post("/v1/login", content=b"[" * 100_000, headers={"Content-Type": "application/json"}),
        client.put("/v1/admin/environments", headers=bearer(host), json={"env_id": "os:system"}),
        client.put("/v1/admin/environments", headers=bearer(host), json={"env_id": "no-such-game"}),
        client.put("/v1/admin/environments", headers=bearer(host), json={"env_id": ENV, "settings": {"tile": "x"}}),
        client.request("BREW", "/v1"),
        client.get("/v1/seasons/0"),
        client.get("/v1/seasons/99999999999999999999999"),
        client.post("/v1/admin/jobs/123456/revive", headers=bearer(host)),
        client.get("/v1/events?topics=nonsense"),
        client.get("/v1/events?topics=" + ",".join(["queue:"] * 60)),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500, (answer.url, answer.status_code, answer.text)
        assert answer.json().keys() == SHAPE
        assert all(isinstance(value, str) for value in answer.json().values())
        assert answer.json()["detail"]
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_what_breaks_inside_is_told_without_internals(client, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("/secret/path and a password")

    monkeypatch.setattr(client.app.state.api.queries, "environment_counts", broken)
    answer = client.get("/v1/environments")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["request_id"] in caplog.text
    assert "a password" in caplog.text
