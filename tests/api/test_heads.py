"""Connections before they are requests: slow, huge, many. Over real sockets on loopback, in small numbers."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time

import httpx
import pytest

from harena.api.app import create_app
from harena.http.limits import RequestLimits
from support.served import Server

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
LIMITS = RequestLimits(head_s=1.0, head_bytes=16 << 10, connections_of_loopback=20, write_s=1.0)


@pytest.fixture(scope="module")
def small(new_arena):
    with Server(create_app(new_arena(), loopback=True), LIMITS) as server:
        yield server


def answer(connection):
    """All that comes until the other side closes."""
    connection.settimeout(20)
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def status(data):
    return int(data.split(b" ", 2)[1]) if data else None


def test_a_huge_header_is_cut_off_after_a_little(small):
    with small.connect() as connection:
        connection.sendall(HEAD + b"X-Long: ")
        sent = 0
        with pytest.raises(OSError):
            while sent < 64 << 20:
                connection.sendall(b"x" * 65536)
                sent += 65536
        assert sent < 16 << 20  # what the kernel's buffers take


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X-Long: " + b"x" * (20 << 10) + b"\r\n\r\n",
        b"GET /" + b"x" * (20 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % number for number in range(200)) + b"\r\n",
    ],
    ids=["a long value", "a long path", "many headers"],
)
def test_a_head_that_is_too_large_is_refused_with_431(small, head):
    with small.connect() as connection:
        connection.sendall(head)
        assert status(answer(connection)) == 431


@pytest.mark.parametrize("start", [b"", b"GET", HEAD, HEAD + b"X-Slow: "], ids=["nothing", "a word", "lines", "a name"])
def test_a_head_that_does_not_come_is_given_up(small, start):
    began = time.monotonic()
    with small.connect() as connection:
        connection.sendall(start)
        assert status(answer(connection)) == (408 if start else None)
    assert time.monotonic() - began < 15


def test_a_head_that_trickles_is_given_up_too(small):
    with small.connect() as connection:
        connection.sendall(HEAD)
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 45:
                connection.sendall(b"X-A: 1\r\n")
                time.sleep(0.1)


def test_a_second_request_on_a_connection_has_the_same_limits(small):
    with small.connect() as connection:
        connection.sendall(HEAD + b"\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(HEAD)
        assert status(answer(connection)) == 408


def test_half_sent_requests_do_not_keep_others_out(small):
    half = [small.connect() for _ in range(60)]
    try:
        for connection in half:
            connection.sendall(HEAD)
        with small.client() as client:
            assert [client.get("/health").status_code for _ in range(20)] == [200] * 20
    finally:
        for connection in half:
            connection.close()


def test_connections_without_a_request_do_not_keep_others_out(small):
    idle = [small.connect() for _ in range(60)]
    try:
        for _ in range(5):
            with small.client() as client:
                assert client.get("/health").status_code == 200
    finally:
        for connection in idle:
            connection.close()


def test_a_long_line_of_pipelined_requests_is_refused(small):
    with small.connect() as connection:
        connection.sendall((HEAD + b"\r\n") * 200)
        data = answer(connection)
    assert b"429" in data
    assert data.count(b"200 OK") <= LIMITS.pipelined + 1


def test_a_few_pipelined_requests_are_answered(small):
    with small.connect() as connection:
        connection.sendall((HEAD + b"\r\n") * 7 + HEAD + b"Connection: close\r\n\r\n")
        assert answer(connection).count(b"200 OK") == 8


def test_trailers_are_dropped_and_bounded(small):
    head = (
        b"POST /v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nTrailer: X-Request-Id\r\n\r\n2\r\n{}\r\n0\r\n"
    )
    with small.connect() as connection:
        connection.sendall(head + b"X-Request-Id: from-the-trailer\r\nConnection: close\r\n\r\n")
        connection.settimeout(20)
        data = connection.recv(65536)
    assert status(data) == 422
    assert b"from-the-trailer" not in data
    with small.connect() as connection:
        connection.sendall(head + b"X-Long: " + b"x" * 20_000 + b"\r\n\r\n")
        assert b"431" in answer(connection)


def test_a_body_that_nobody_reads_holds_no_connection(small):
    began = time.monotonic()
    with small.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert b"200 OK" in answer(connection)
    assert time.monotonic() - began < 15


def test_a_client_that_stops_reading_is_dropped(new_arena):
    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            try:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            except BaseException:
                break
            if (await_disconnect := await poll(receive)) is not None:
                gone.set()
                return await_disconnect

    async def poll(receive):
        import asyncio

        try:
            message = await asyncio.wait_for(receive(), 0.001)
        except TimeoutError:
            return None
        return message if message["type"] == "http.disconnect" else None

    gone = threading.Event()
    app = create_app(new_arena(), loopback=True)
    endless.state = app.state
    with Server(endless, LIMITS) as server, server.connect() as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(100)
        assert gone.wait(20)


def test_one_address_does_not_take_anothers_connections(new_arena):
    """Of loopback's many addresses, two: one holds all the connections that it may, and more."""
    limits = dataclasses.replace(LIMITS, head_s=30.0)
    with Server(create_app(new_arena(), loopback=True), limits) as server:
        many = []
        for _ in range(40):
            connection = socket.create_connection(
                ("127.0.0.1", server.port), timeout=10, source_address=("127.0.0.7", 0)
            )
            connection.sendall(HEAD)
            many.append(connection)
        try:
            with small_client(server) as client:
                assert client.get("/health").status_code == 200
            ended = 0
            for connection in many:
                connection.settimeout(0.05)
                try:
                    ended += connection.recv(1) == b""
                except TimeoutError:
                    pass
                except ConnectionResetError:
                    ended += 1
            assert ended == 20  # the oldest of them
        finally:
            for connection in many:
                connection.close()


def small_client(server):
    return httpx.Client(base_url=server.url, timeout=20)
