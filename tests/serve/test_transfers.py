"""Files of sessions in several requests: what continues, what is refused, and what must not be left behind."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harena import BoxError, Sandbox, SandboxSession, Spec, SpecError, WireError
from harena.node.rules import OwnerQuota, Rules
from harena.sessions import transfers
from harena.sessions.engines import remote
from harena.sessions.engines.remote import RemoteEngine
from harena.sessions.errors import Conflict, FileChanged, NotFound
from harena.sessions.session import Session
from harena.sessions.transfers import Piece
from harena.testing.boxserver import BoxServer
from support.proxies import cutting_proxy

FIRST, SECOND = "a" * 30, "b" * 30
DATA = b"0123456789"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def session(owners: BoxServer) -> Iterator[SandboxSession]:
    with SandboxSession(server=owners.url, token=FIRST, spec=Spec(workspace_mb=128)) as made:
        yield made


def ask(
    server: BoxServer, method: str, path: str, data: bytes | None = None, token: str = FIRST, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, data, {"Authorization": f"Bearer {token}", **named})
    response = connection.getresponse()
    answer = response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    connection.close()
    return answer


def put(server: BoxServer, session: SandboxSession, where: str, data: bytes, span: str, **more: str) -> tuple[int, Any]:
    headers = {"Content_Range": f"bytes {span}", "X_Content_SHA256": sha256(DATA), **more}
    status, text, _ = ask(server, "PUT", f"/v1/sessions/{session.session_id}/files?path={where}", data, **headers)
    answer = json.loads(text)
    return status, answer["error"]["kind"] if status >= 400 else answer["received"]


def test_download_continues_after_lost_connections(owners: BoxServer, session: SandboxSession) -> None:
    data = os.urandom(3_000_000)
    session.upload("large", data)
    with cutting_proxy(owners.url, [0, 1_000_000, 100, 700_000]) as proxy:
        assert RemoteEngine(proxy.url, FIRST).read(session.session_id, "large") == data
        assert proxy.connections == 5
    with (
        cutting_proxy(owners.url, [1_000, 1_000, 1_000]) as proxy,
        pytest.raises(BoxError, match="connection was lost"),
    ):
        RemoteEngine(proxy.url, FIRST).read(session.session_id, "large")


def test_download_of_a_file_that_changes_meanwhile_is_refused(
    owners: BoxServer, session: SandboxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.upload("changing", os.urandom(1_000_000))
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: session.upload("changing", b"new"))
    with cutting_proxy(owners.url, [500_000]) as proxy, pytest.raises(FileChanged, match="has changed"):
        RemoteEngine(proxy.url, FIRST).read(session.session_id, "changing")


@pytest.mark.parametrize(
    ("asked", "status", "span"),
    [
        ("bytes=0-", 206, (0, 10)),
        ("bytes=4-", 206, (4, 10)),
        ("bytes=4-6", 206, (4, 7)),
        ("bytes=9-999999999999999", 206, (9, 10)),
        ("bytes=10-", 416, None),
        ("bytes=6-4", 416, None),
        ("bytes=-5", 416, None),
        ("bytes=--5", 416, None),
        ("bytes=0-1,4-5", 416, None),
        ("bytes=" + "9" * 5000 + "-", 416, None),
        ("items=0-", 416, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_range_is_answered_exactly_or_refused(
    owners: BoxServer, session: SandboxSession, asked: str, status: int, span: tuple[int, int] | None
) -> None:
    session.upload("ten", DATA)
    found, data, headers = ask(owners, "GET", f"/v1/sessions/{session.session_id}/files?path=ten", Range=asked)
    assert found == status
    if span is None:
        assert (json.loads(data)["error"]["kind"], headers["content-range"]) == ("OutOfRange", "bytes */10")
    else:
        assert data == DATA[slice(*span)]
        assert headers["content-range"] == f"bytes {span[0]}-{span[1] - 1}/10"
        assert (headers["x-content-sha256"], headers["etag"]) == (sha256(DATA), f'"{sha256(DATA)}"')


def test_digest_that_no_longer_matches_is_refused(owners: BoxServer, session: SandboxSession) -> None:
    session.upload("ten", DATA)
    path = f"/v1/sessions/{session.session_id}/files?path=ten"
    assert ask(owners, "GET", path, Range="bytes=4-", If_Match=f'"{sha256(DATA)}"')[0] == 206
    status, text, _ = ask(owners, "GET", path, Range="bytes=4-", If_Match=f'"{"0" * 64}"')
    assert (status, json.loads(text)["error"]["kind"]) == (412, "FileChanged")


def test_file_of_more_than_one_body_arrives_over_lost_connections(owners: BoxServer, session: SandboxSession) -> None:
    """Answers are lost in their headers or bodies, so that pieces are sent twice."""
    data = os.urandom(1_000_003) * 68
    with cutting_proxy(owners.url, [10, 100, 500]) as proxy:
        assert RemoteEngine(proxy.url, FIRST).write(session.session_id, "big", data) == sha256(data)
        assert proxy.connections == 4
    assert session.download("big") == data
    session.execute([{"command": ["rm", "big"]}])


def test_file_appears_only_when_it_is_complete(owners: BoxServer, session: SandboxSession) -> None:
    status = f"/v1/sessions/{session.session_id}/uploads/one"
    session.execute([{"command": ["sh", "-c", "mkdir new; ln -s /etc/passwd new/file"]}])
    assert put(owners, session, "new/file&upload=one", DATA[:4], "0-3/10") == (200, 4)
    assert put(owners, session, "new/file&upload=one", DATA[:4], "0-3/10") == (200, 4)
    assert json.loads(ask(owners, "GET", status)[1]) == {"sha256": sha256(DATA), "received": 4, "size": 10}
    found = session.execute([{"command": ["sh", "-c", "ls -A new; readlink new/file"]}])
    assert found["status"]["stdout"] == "file\n/etc/passwd\n", "nothing that the box could replace"
    assert put(owners, session, "new/file&upload=one", DATA[2:], "2-9/10") == (200, 10)
    assert session.download("new/file") == DATA
    found = session.execute([{"command": ["sh", "-c", "test ! -L new/file && echo changed > new/file"]}])
    assert found["status"]["exitCode"] == 0, "the link was replaced, not followed"
    assert put(owners, session, "new/file&upload=one", DATA[2:], "2-9/10") == (200, 10)
    assert session.download("new/file") == b"changed\n", "an id writes its file once"


@pytest.mark.parametrize(
    ("where", "data", "span", "wanted"),
    [
        ("x&upload=open", DATA[5:], "5-9/10", (409, "Conflict")),
        ("x&upload=open", b"zz", "0-1/10", (409, "Conflict")),
        ("x&upload=open", DATA[4:], "4-9/11", (409, "Conflict")),
        ("x&upload=open", DATA[4:] + b"x", "4-10/11", (409, "Conflict")),
        ("y&upload=open", DATA[4:], "4-9/10", (409, "Conflict")),
        ("x&upload=open", DATA[4:], "4-9/9", (400, "SpecError")),
        ("x&upload=open", b"zzzzzz", "4-9/10", (400, "SpecError")),
        ("x&upload=open", DATA, "-1-9/10", (400, "SpecError")),
        ("x&upload=open", DATA, "9-0/10", (400, "SpecError")),
        ("x&upload=open", DATA, "*/10", (400, "SpecError")),
        ("x&upload=open", b"", "4-3/10", (400, "SpecError")),
        ("x&upload=other", DATA[4:], "4-9/10", (409, "Conflict")),
        ("x&upload=other", DATA, "0-9/999999999999999", (400, "SpecError")),
        ("x&upload=other", b"z", "999999999999998-999999999999998/999999999999999", (400, "SpecError")),
        ("x&upload=other", DATA, "0-9/" + "9" * 5000, (400, "SpecError")),
        ("x&upload=../../a", DATA, "0-9/10", (400, "SpecError")),
        ("x", DATA, "0-9/10", (400, "SpecError")),
        ("a%00b&upload=other", DATA, "0-9/10", (400, "SpecError")),
        ("/usr/x&upload=other", DATA, "0-9/10", (409, "BoxFileError")),
        ("../../proc/1/x&upload=other", DATA, "0-9/10", (404, "BoxFileError")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_piece_is_refused_and_nothing_is_written(
    owners: BoxServer, session: SandboxSession, where: str, data: bytes, span: str, wanted: tuple[int, str]
) -> None:
    path = f"/v1/sessions/{session.session_id}/uploads"
    assert put(owners, session, "x&upload=open", DATA[:4], "0-3/10") == (200, 4)
    try:
        assert put(owners, session, where, data, span) == wanted
        assert session.execute([{"command": ["ls", "x", "y"]}])["status"]["stdout"] == ""
        assert ask(owners, "GET", f"{path}/other")[0] == 404
    finally:
        ask(owners, "DELETE", f"{path}/open")
    assert ask(owners, "GET", f"{path}/open")[0] == 404


def test_upload_of_another_owner_is_not_there(owners: BoxServer, session: SandboxSession) -> None:
    path = f"/v1/sessions/{session.session_id}"
    assert put(owners, session, "x&upload=mine", DATA[:4], "0-3/10") == (200, 4)
    headers = {"Content_Range": "bytes 4-9/10", "X_Content_SHA256": sha256(DATA)}
    assert ask(owners, "PUT", f"{path}/files?path=x&upload=mine", DATA[4:], SECOND, **headers)[0] == 404
    assert ask(owners, "GET", f"{path}/files?path=x", token=SECOND, Range="bytes=0-")[0] == 404
    for method in ("GET", "DELETE"):
        assert ask(owners, method, f"{path}/uploads/mine", token=SECOND)[0] == 404
    assert ask(owners, "DELETE", f"{path}/uploads/mine")[0] == 200


def test_pieces_count_for_the_owner_until_they_are_written_or_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = OwnerQuota(Rules(kept_mb=1))
    size = 400_000
    data = os.urandom(size)
    whole, half = Piece("a", sha256(data), size, 0, data), Piece("a", sha256(data), size, 0, data[: size // 2])
    session = Session(Sandbox(), quota=quota)
    uploads = session.uploads
    uploads.put(session, "whole", whole)
    assert (session.read("a"), quota.held("bytes kept")) == (data, 0)
    uploads.put(session, "half", half)
    with pytest.raises(SpecError, match="SHA-256"):
        uploads.put(session, "half", whole._replace(data=data[:-1] + b"?" if data[-1:] != b"?" else data[:-1] + b"!"))
    with pytest.raises(NotFound):
        uploads.find("half")
    assert quota.held("bytes kept") == 0

    for number in range(4):
        uploads.put(session, f"half-{number}", half)
    with pytest.raises(BoxError, match="the server allows each owner"):
        uploads.put(session, "half-0", whole)
    uploads.drop(session, "half-1")
    uploads.drop(session, "half-2")
    assert quota.held("bytes kept") == size
    uploads.put(session, "half-0", whole)
    assert quota.held("bytes kept") == size // 2

    tiny = Piece("b", sha256(DATA), 10, 0, DATA[:1])
    for number in range(transfers.MAX_UPLOADS - 1):
        uploads.put(session, f"tiny-{number}", tiny)
    with pytest.raises(BoxError, match="unfinished uploads"):
        uploads.put(session, "more", tiny)
    monkeypatch.setattr(transfers, "ABANDONED_S", -1.0)
    uploads.put(session, "more", tiny)
    assert quota.held("bytes kept") == 1, "the others were abandoned"
    monkeypatch.undo()
    for number in range(transfers.MAX_COMPLETE + 1):
        uploads.put(session, f"done-{number}", tiny._replace(data=DATA))
    with pytest.raises(Conflict):
        uploads.put(session, "done-0", tiny._replace(start=1))
    session.end()
    assert quota.held("bytes kept") == 0
    with pytest.raises(BoxError):
        uploads.put(session, "late", tiny)
    assert uploads._uploads == {}


@pytest.mark.parametrize(
    "answers",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n Evil: 1\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n\r\nabc"],
        [b"HTTP/1.1 206 OK\r\nContent-Length: 3\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n\r\nabc"],
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n\r\nabcdefghi",
        ],
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Content-SHA256: " + b"0" * 64 + b"\r\n\r\nabc",
            b"HTTP/1.1 206 OK\r\nContent-Length: 8\r\nContent-Range: bytes 3-8/9\r\nX-Content-SHA256: "
            + b"0" * 64
            + b"\r\n\r\ndefghijk",
        ],
    ],
    ids=["wrong digest", "no digest", "folded digest", "endless", "piece", "start again", "more than announced"],
)
def test_server_that_lies_about_a_file_is_found_out(answers: list[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                client, _ = server.accept()
                with client:
                    client.recv(65536)
                    client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(WireError):
            RemoteEngine(f"http://127.0.0.1:{server.getsockname()[1]}", FIRST).read("0" * 24, "file")
