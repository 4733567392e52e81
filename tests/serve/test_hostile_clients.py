"""Clients that attack the server: forged handles, wrong types, floods, and what a spec may not name."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from harena import BackendUnavailable, BoxError, Limits, Mount, Retry, Sandbox, Spec, SpecError
from harena.node import link, messages, verbs
from harena.node.link import HEAD
from harena.testing.boxserver import BoxServer
from support.leaks import settle
from support.wire_client import raw_client

LIMITS = messages.limits_out(Limits())


def serves(server: BoxServer) -> bool:
    """The control of every attack here: somebody else still gets a box."""
    with Sandbox(server.url, token=server.token) as box:
        return box.exec(["echo", "hi"]).stdout == b"hi\n"


@pytest.mark.parametrize("token", [None, "", "wrong" * 10])
def test_no_box_without_the_token(server: BoxServer, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARENA_TOKEN", raising=False)
    with pytest.raises(BackendUnavailable, match="does not accept the token"):
        Sandbox(server.url, token=token)


def test_half_of_the_token_is_not_enough(server: BoxServer) -> None:
    with pytest.raises(BackendUnavailable):
        Sandbox(server.url, token=server.token[:-1])


def test_page_of_a_browser_is_refused(server: BoxServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(
            f"GET /v1/boxes HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: http://evil\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n"
            f"Authorization: Bearer {server.token}\r\n\r\n".encode()
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 403")


def test_handle_of_another_client_is_unknown(server: BoxServer) -> None:
    with raw_client(server) as owner, raw_client(server) as thief:
        handles = [owner.box() for _ in range(2)]
        for handle in [*handles, *range(1, 20)]:
            for verb in ("ping", "alive", "programs", "warm_up", "read_log", "write"):
                assert thief.ask(verb, handle=handle)["error"]["kind"] == "BoxLost"
            stolen = thief.ask("exec", handle=handle, argv=["true"], env={}, cwd="", limits=LIMITS)
            assert stolen["error"]["kind"] == "BoxLost"
        assert all("value" in owner.ask("ping", handle=handle) for handle in handles)


@pytest.mark.parametrize(
    "verb", ["", "shutdown", "__init__", "take", "keep", None, 7, ["exec"], {"a": 1}, "x" * 10_000]
)
def test_unknown_verb_is_refused(server: BoxServer, verb: Any) -> None:
    with raw_client(server) as client:
        assert client.ask(verb)["error"]["kind"] == "WireError"
        assert "value" in client.ask("capabilities")


def test_verbs_of_the_schema_are_those_of_the_node() -> None:
    from harena.node.node import VERBS

    assert {*VERBS, "give"} == set(verbs.REQUESTS)
    assert set(verbs.SPEC) == set(Spec.__dataclass_fields__)


WRONG = [None, True, -1, 1 << 70, 1.5, "x", "\0", [], [None], [1], {}, {"a": 1}, [[]] * 5, "é" * 70_000]


def right_fields(verb: str) -> dict[str, Any]:
    task = {"sizes": [0], "grouped": False, "limits": LIMITS, "more": 1}
    values = {
        "spec": messages.spec_out(Spec()),
        "limits": LIMITS,
        "start_s": 30,
        "target": 1,
        "handle": 999,
        "argv": ["true"],
        "env": {},
        "cwd": "",
        "name": "f",
        "given": {"args": [], "kwargs": {}},
        "message": {},
        "count": 1,
        "pty": False,
        "rows": 1,
        "cols": 1,
        "stream": "stdout",
        "timeout_s": 0,
        "number": 0,
        "key": 1,
        "task": task,
        "wait_s": 0,
        "cpus": [0],
        "cpu_ns": 0,
        "patience_s": 0,
        "network": None,
        "port": 80,
    }
    return {name: values[name] for name in verbs.REQUESTS[verb]}


@pytest.mark.parametrize("verb", sorted(verbs.REQUESTS))
def test_wrong_type_in_any_field_is_refused(server: BoxServer, verb: str) -> None:
    fields = right_fields(verb)
    with raw_client(server) as client:
        for name in fields:
            for value in WRONG:
                if verbs.REQUESTS[verb][name](value):
                    continue
                assert client.ask(verb, **{**fields, name: value})["error"]["kind"] in ("WireError", "SpecError")
            missing = {key: value for key, value in fields.items() if key != name}
            assert client.ask(verb, **missing)["error"]["kind"] == "WireError"
        assert client.ask(verb, **fields, more_than_that=1)["error"]["kind"] == "WireError"
        assert "value" in client.ask("capabilities")


@pytest.mark.parametrize("name", sorted(verbs.SPEC))
def test_wrong_type_in_any_field_of_a_spec_is_refused(server: BoxServer, name: str) -> None:
    with raw_client(server) as client:
        for value in WRONG:
            if not verbs.SPEC[name](value):
                assert client.create(**{name: value})["error"]["kind"] in ("WireError", "SpecError")
        assert client.create(extra=1)["error"]["kind"] == "WireError"


@pytest.mark.parametrize("name", sorted(LIMITS))
@pytest.mark.parametrize("value", ["1", True, [], {}, -1, 1 << 60])
def test_wrong_limits_are_refused(server: BoxServer, name: str, value: Any) -> None:
    with raw_client(server) as client:
        answer = client.ask("create", spec=messages.spec_out(Spec()), limits={**LIMITS, name: value}, start_s=30)
        assert answer["error"]["kind"] == "SpecError"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_schema_survives_any_json(data: st.DataObject) -> None:
    """Whatever passes has exactly the fields of the verb; whatever does not raises our own errors and no other."""
    verb = data.draw(st.sampled_from(sorted(verbs.REQUESTS)) | json_values)
    fields = right_fields(verb) if isinstance(verb, str) and verb in verbs.REQUESTS else {}
    for name in data.draw(st.lists(st.sampled_from([*fields, "other"]), max_size=3)):
        fields[name] = data.draw(json_values)
    try:
        verbs.check(verb, fields, data.draw(st.binary(max_size=10)))
    except (link.WireError, SpecError):
        return
    assert set(fields) == set(verbs.REQUESTS[verb])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 50))
def test_decoder_survives_any_bytes(noise: bytes, cut: int) -> None:
    decoder = link.RequestDecoder(1000)
    try:
        decoder.feed(noise[:cut])
        decoder.feed(noise[cut:])
    except link.WireError:
        pass


def nested(depth: int) -> bytes:
    return b'{"request":1,"verb":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "frame",
    [
        HEAD.pack(link.MAX_TEXT + 1, 0),
        HEAD.pack(2, link.MAX_REQUEST + 1),
        HEAD.pack(0xFFFFFFFF, 0xFFFFFFFF),
        HEAD.pack(0, 0),
        HEAD.pack(4, 0) + b"null",
        HEAD.pack(2, 0) + b"[]",
        HEAD.pack(2, 0) + b"{}",
        HEAD.pack(4, 0) + b"\xff\xfe{}",
        HEAD.pack(len(nested(100_000)), 0) + nested(100_000),
        HEAD.pack(16, 0) + b'{"request": NaN}',
        HEAD.pack(8_000_009, 0) + b'{"a":[' + b"0," * 4_000_000 + b"0]}",
    ],
    ids=["text", "data", "both", "empty", "null", "list", "no-number", "not-utf8", "nested", "nan", "items"],
)
def test_message_that_is_none_ends_the_connection(server: BoxServer, frame: bytes) -> None:
    with raw_client(server) as client:
        for start in range(0, len(frame), 1 << 19):
            client.connection.send(frame[start : start + (1 << 19)])
        assert client.ends()
    assert serves(server)


def test_text_and_large_pieces_end_the_connection(server: BoxServer) -> None:
    with raw_client(server) as client:
        client.connection.send("hello")
        assert client.ends()
    with raw_client(server) as client:
        with contextlib.suppress(ConnectionClosed):  # it may be closed while this is being sent
            client.connection.send(b"x" * (2 << 20))
        client.ends()  # or a timeout fails the test
    assert serves(server)


@pytest.mark.parametrize(
    "fields",
    [
        {"mounts": (Mount(source="/etc", target="/x"),)},
        {"mounts": (Mount(source="/", target="/x", writable=True),)},
        {"mounts": (Mount(source="relative", target="/x"),)},
        {"rootfs": "/"},
        {"python": "/usr/bin/python3"},
        {"python": "python3"},
        {"packages": ("pytest",)},
        {"requirements": ("six",)},
        {"gpus": 1},
        {"gpus": "all"},
        {"gpus": ("0",)},
        {"image": "python:3.12-slim"},
        {"allow": ("ptrace",)},
        {"isolation": "restricted"},
        {"isolation": "best"},
        {"workspace_mb": 100_000},
        {"root_mb": 100_000},
    ],
    ids=str,
)
def test_host_in_a_spec_is_refused(server: BoxServer, fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="the server"):
        Sandbox(Spec(**fields), backend=server.url, token=server.token)


def test_missing_path_of_the_host_gets_the_same_answer(server: BoxServer) -> None:
    texts: list[str] = []
    for path in ("/etc/passwd", "/etc/no-such-file"):
        with pytest.raises(SpecError) as error:
            Sandbox(Spec(rootfs=path), backend=server.url, token=server.token)
        texts.append(str(error.value).replace(path, "PATH"))
    assert texts[0] == texts[1]


def test_more_memory_than_allowed_is_refused_for_every_execution(server: BoxServer) -> None:
    much = Limits(memory_mb=2000)
    with pytest.raises(SpecError, match="--max-memory"):
        Sandbox(server.url, token=server.token, limits=much)
    with Sandbox(server.url, token=server.token) as box:
        for run in (
            lambda: box.exec(["true"], limits=much),
            lambda: box.start(["true"], limits=much),
            lambda: box.run("1", limits=much),
            lambda: box.call("def f(): pass", "f", limits=much),
            lambda: box.converse("1", limits=much),
            lambda: box.converse_with(["true"], limits=much, cpus={0}),
        ):
            with pytest.raises(SpecError, match="--max-memory"):
                run()


def test_batch_with_more_memory_than_allowed_is_refused(server: BoxServer) -> None:
    from harena import SandboxPool

    pool = SandboxPool(server.url, token=server.token, warm=1, max_live=1)
    with pool, pytest.raises(SpecError, match="--max-memory"):
        pool.map(["print(1)"], limits=Limits(memory_mb=2000))


def test_only_so_many_boxes(small: BoxServer) -> None:
    with raw_client(small) as client:
        assert all("value" in client.create() for _ in range(4))
        refused = client.create()["error"]
        assert (refused["kind"], refused["retry"]) == ("BoxError", "safe")
        assert client.ask("fork", handle=1, count=1)["error"]["kind"] == "BoxError"
        assert "value" in client.ask("close", handle=1)
        assert "value" in client.create()


def test_boxes_of_all_connections_count(small: BoxServer) -> None:
    with raw_client(small) as first, raw_client(small) as second:
        handles = [first.box() for _ in range(3)]
        assert "value" in second.create()
        assert second.create()["error"]["retry"] == "safe"
        for _ in range(3):  # closing twice gives nothing back twice
            first.ask("close", handle=handles[0])
        assert "value" in second.create()
        assert second.create()["error"]["retry"] == "safe"
        assert first.create(rootfs="/")["error"]["kind"] == "SpecError"
    assert settle(lambda: serves_four(small), True, within_s=60)


def serves_four(server: BoxServer) -> bool:
    """Everything was given back when the clients had gone."""
    with raw_client(server) as client:
        return all("value" in client.create() for _ in range(4))


def threads(server: BoxServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def memory_mb(server: BoxServer) -> float:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4 / 1024


@pytest.mark.thorough
def test_flood_of_requests_is_bounded(server: BoxServer) -> None:
    before = threads(server)
    with raw_client(server) as client:
        handle = client.box()
        fields = {"handle": handle, "argv": ["sleep", "5"], "env": {}, "cwd": "", "limits": LIMITS}
        for number in range(2, 4002):
            client.send({"request": number, "verb": "exec", **fields})
        refused = 0
        end = time.monotonic() + 60
        while refused < 1000 and time.monotonic() < end:
            for message, _ in client.receive():
                refused += message.get("error", {}).get("retry") == "safe"
        assert refused >= 1000
        assert threads(server) - before < 700
        assert serves(server)
    assert settle(lambda: threads(server) < before + 100, True, within_s=40)


@pytest.mark.thorough
def test_client_that_does_not_read_holds_a_bounded_amount(server: BoxServer) -> None:
    """Outputs that nobody reads stop at a bound, and the others are served."""
    before = memory_mb(server)
    limits = messages.limits_out(Limits(output_bytes=30_000_000, memory_mb=1000))
    with raw_client(server) as client:
        handle = client.box()
        fields = {"handle": handle, "argv": ["head", "-c", "29000000", "/dev/zero"], "env": {}, "cwd": ""}
        for number in range(2, 62):  # 1.7 GB together
            client.send({"request": number, "verb": "exec", **fields, "limits": limits})
        time.sleep(5)
        assert memory_mb(server) - before < 700
        assert serves(server)


def test_unfinished_head_does_not_hold_a_client_up(server: BoxServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    lines = [socket.create_connection((host, int(port))) for _ in range(50)]
    for sock in lines:
        sock.sendall(b"GET /v1/boxes HTTP/1.1\r\nHo")
    assert serves(server)
    for sock in lines:
        sock.close()


def test_error_of_the_server_names_no_file(server: BoxServer) -> None:
    error = FileNotFoundError(2, "No such file or directory", "/root/secret")
    assert "secret" not in json.dumps(messages.error_out(error))
    assert "secret" not in json.dumps(messages.error_out(KeyError("/root/secret")))


def test_paths_of_the_server_are_answered_clearly(server: BoxServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")

    def get(path: str, method: str = "GET") -> bytes:
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            parts = []
            while part := sock.recv(4096):
                parts.append(part)
            return b"".join(parts)

    assert get("/healthz").startswith(b"HTTP/1.1 200")
    assert b"healthy" in get("/healthz")
    assert get("/readyz").startswith(b"HTTP/1.1 200")
    assert get("/v1/nothing").startswith(b"HTTP/1.1 401")
    assert get("/healthz", "DELETE").startswith(b"HTTP/1.1 405")


def test_refused_box_may_be_tried_again(small: BoxServer) -> None:
    boxes = [Sandbox(small.url, token=small.token) for _ in range(4)]
    try:
        with pytest.raises(BoxError) as error:
            Sandbox(small.url, token=small.token)
        assert error.value.retry is Retry.SAFE
    finally:
        for box in boxes:
            box.close()
