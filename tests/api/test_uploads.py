"""Uploads that are too large, cut short, too slow or badly named: a clear refusal, and nothing left behind."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from harena.api.app import create_app
from harena.arena.db.models import submissions
from harena.http.limits import RequestLimits
from support.served import AGENT, Server, upload

PATHS = ("/v1/submissions", "/api/submit/", "/submissions/")
PART = b'--B\r\nContent-Disposition: form-data; name="file"; filename="agent.py"\r\n\r\n' + AGENT
WHOLE = PART + b"\r\n--B--\r\n"


@pytest.fixture(scope="module")
def small(new_arena):
    """Takes 100 kB at most, and half a second for a body."""
    arena = new_arena(max_upload_bytes=100_000, max_file_bytes=50_000)
    arena.hub.start()
    limits = RequestLimits(upload_slack_bytes=20_000, body_grace_s=0.5, body_rate=100_000.0)
    with Server(create_app(arena, loopback=True, limits=limits)) as server:
        server.arena = arena
        yield server


@pytest.fixture(autouse=True)
def nothing_left(request):
    """No row, no file, no open temporary file."""
    if "small" not in request.fixturenames:
        yield
        return
    arena = request.getfixturevalue("small").arena
    before = kept(arena)
    yield
    deadline = time.monotonic() + 5
    while kept(arena) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert kept(arena) == before


def kept(arena):
    rows = arena.store.database.rows(sa.select(submissions.c.id))
    files = sorted(path.name for path in arena.settings.files.rglob("*") if path.is_file())
    temporary = [link for link in map(_target, os.listdir("/proc/self/fd")) if "(deleted)" in link and "/tmp" in link]
    return len(rows), files, temporary


def _target(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def request_head(server, path, length, *, content_type="multipart/form-data; boundary=B", more=b""):
    length = b"" if length is None else b"Content-Length: %d\r\n" % length
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: {content_type}\r\n"
    return head.encode() + length + more + b"\r\n"


def answer(connection):
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("path", PATHS)
def test_a_form_that_ends_early_is_refused(small, path):
    body = PART[:-5]
    with small.connect() as connection:
        connection.sendall(request_head(small, path, len(body), more=b"Connection: close\r\n") + body)
        status, shape = answer(connection)
    assert (status, shape["code"]) == (422, "upload_refused")
    assert "ends before" in shape["detail"]


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_goes_away_in_the_middle_leaves_nothing(small, path):
    with small.connect() as connection:
        connection.sendall(request_head(small, path, len(WHOLE) + 1000) + WHOLE)


@pytest.mark.parametrize("path", PATHS)
def test_a_slow_body_is_refused(small, path):
    with small.connect() as connection:
        connection.sendall(request_head(small, path, len(WHOLE)) + WHOLE[:-20])
        status, shape = answer(connection)
    assert (status, shape["code"]) == (408, "too_slow")


def test_a_body_that_drips_is_refused(small):
    with small.connect() as connection:
        connection.sendall(request_head(small, PATHS[0], len(WHOLE)))
        with pytest.raises(OSError):
            for byte in WHOLE:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)


@pytest.mark.parametrize("path", PATHS)
def test_a_length_beyond_the_cap_is_refused_before_it_is_read(small, path):
    with small.connect() as connection:
        connection.sendall(request_head(small, path, 10_000_000_000, more=b"Expect: 100-continue\r\n"))
        status, shape = answer(connection)
    assert (status, shape["code"]) == (413, "too_large")


@pytest.mark.parametrize("path", PATHS)
def test_chunks_without_a_length_are_counted(small, path):
    with small.connect() as connection:
        connection.sendall(request_head(small, path, None, more=b"Transfer-Encoding: chunked\r\n"))
        chunk = b"x" * 65536
        try:
            connection.sendall(b"%x\r\n%b\r\n" % (len(PART), PART))
            for _ in range(64):
                connection.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            connection.sendall(b"0\r\n\r\n")
        except OSError:
            pass
        status, shape = answer(connection)
    assert (status, shape["code"]) == (413, "too_large")


def test_a_large_file_within_the_request_is_refused_in_words(small):
    with small.client() as client:
        refused = upload(client, data=b"#" * 60_000)
    assert (refused.status_code, refused.json()["code"]) == (422, "upload_refused")


def test_a_zip_bomb_is_refused(small):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("agent.py", b"#" * 20_000_000)
    with small.client() as client:
        assert upload(client, name="a.zip", data=packed.getvalue()).status_code == 422


def test_too_many_files_and_fields_are_refused(small):
    with small.client() as client:
        many = [("files", (f"f{number}.py", b"")) for number in range(1001)]
        assert client.post("/v1/submissions", files=many).status_code in (413, 422)
        fields = {f"field{number}": "x" for number in range(60)}
        refused = client.post("/v1/submissions", files={"file": ("a.py", AGENT)}, data=fields)
        assert (refused.status_code, refused.json()["code"]) == (422, "upload_refused")
        long = client.post("/v1/submissions", files={"file": ("a.py", AGENT)}, data={"algorithm": "x" * 5000})
        assert (long.status_code, long.json()["code"]) == (422, "upload_refused")


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "B" * 300,
        "application/json",
        "text/plain",
        "",
        "multipart/form-data; boundary=B; charset=undefined",
        "multipart/form-data; boundary=B; charset=idna",
        "multipart/form-data; boundary=B; charset=hex",
    ],
)
def test_what_is_no_form_is_refused(small, content_type):
    body = b'--B\r\nContent-Disposition: form-data; name="\xff\xfe"\r\n\r\n\xff\xff..\r\n--B--\r\n'
    with small.client() as client:
        refused = client.post("/v1/submissions", content=body, headers={"Content-Type": content_type})
    assert refused.status_code in (415, 422)
    assert refused.json().keys() == {"code", "detail", "hint", "request_id", "trace_id"}


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.py",
        "/etc/cron.d/evil.py",
        "..\\..\\evil.py",
        "C:\\evil.py",
        "a/../../evil.py",
        "evil\x00.py",
        "~/.ssh/evil.py",
    ],
)
def test_hostile_names_of_files_never_become_paths(client, arena, name):
    several = [("files", (name, AGENT)), ("files", ("agent.py", AGENT))]
    answer = client.post("/v1/submissions", files=several, data={"main_file": "agent.py"})
    assert not list(arena.settings.data.rglob("*evil*"))
    if answer.status_code != 422:  # taken as a name in the submission's own folder
        files = arena.submissions.code(arena.store.submissions.get(answer.json()["id"])).files
        assert all(not path.startswith("/") and ".." not in path.split("/") for path in files)


@pytest.mark.parametrize("main_file", ["../agent.py", "/etc/passwd", "..", "agent.py/..", "no.py", "\x00", "x" * 300])
def test_hostile_main_files_are_refused(small, main_file):
    with small.client() as client:
        files = [("files", ("agent.py", AGENT)), ("files", ("other.py", AGENT))]
        assert client.post("/v1/submissions", files=files, data={"main_file": main_file}).status_code == 422


@pytest.mark.parametrize("entry", ["../evil.py", "/evil.py", "a/../../evil.py", "evil\\..\\..\\x.py"])
def test_hostile_names_in_a_zip_are_refused(small, entry):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("agent.py", AGENT)
        archive.writestr(entry, b"x = 1")
    with small.client() as client:
        assert upload(client, name="a.zip", data=packed.getvalue()).status_code == 422


def test_a_file_under_another_field_is_not_silently_dropped(small):
    with small.client() as client:
        refused = client.post("/v1/submissions", files={"agent": ("agent.py", AGENT)})
    assert "`file` or `files`" in refused.json()["detail"]


def test_nothing_sent_is_refused(small):
    with small.client() as client:
        for files in ({}, {"file": ("", b"")}):
            assert client.post("/v1/submissions", files=files or None).status_code in (415, 422)
        assert upload(client, env_id="no-such-env").json()["code"] == "not_found"


def test_a_full_queue_says_come_back(new_arena):
    arena = new_arena(max_queued=1)
    client = TestClient(create_app(arena, loopback=True), base_url="http://localhost", client=("127.0.0.1", 1))
    assert upload(client).status_code == 201
    refused = upload(client)
    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    assert "retry-after" in refused.headers
    client.close()


# ---- images ----


def multipart(**fields):
    parts = "".join(
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    return parts.encode() + b"--B--\r\n"


@pytest.mark.parametrize("path", PATHS)
def test_an_image_is_refused_where_the_host_allows_none(small, path):
    client = TestClient(
        create_app(small.arena, loopback=True), base_url="http://127.0.0.1:8000", client=("127.0.0.1", 5)
    )
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    answer = client.post(path, content=multipart(docker_image="python:3", env_id="CartPole-v1"), headers=headers)
    assert answer.status_code == 422, answer.text
    assert "images are not taken here" in answer.text
    assert "HARENA_AGENT_IMAGES" in answer.text


def test_an_image_and_files_are_not_both_taken(small):
    client = TestClient(
        create_app(small.arena, loopback=True), base_url="http://127.0.0.1:8000", client=("127.0.0.1", 5)
    )
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    both = PART + b"\r\n" + multipart(docker_image="python:3")
    answer = client.post("/v1/submissions", content=both, headers=headers)
    assert answer.status_code == 422
    assert "send one of them" in answer.text
    long = client.post("/v1/submissions", content=multipart(docker_image="x" * 600), headers=headers)
    assert long.status_code == 422
    assert "longer than 512" in long.text
