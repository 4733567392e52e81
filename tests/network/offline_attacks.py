"""Attacks on the host's side of a network: floods, slow and half-open connections, caps, and ends at bad moments."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable

import pytest

from harena import Limits, Network, Verdict
from harena.network import connection as connections
from harena.network import gateway as gateways
from support.worlds import Names, Server, echo, inside, online, value

Make = Callable[..., Server]


def until(condition: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("limit", [1, 1000, 65536, 200_001])
def test_the_cap_on_bytes_is_exact(limit: int, serve: Make) -> None:
    received: list[int] = []

    def count(sock: socket.socket) -> None:
        try:
            while data := sock.recv(65536):
                received.append(len(data))
        except OSError:
            pass

    server = serve(count)
    with online(f"127.0.0.1:{server.port}", max_bytes=limit) as box:
        inside(
            box,
            f"s = socket.create_connection(('127.0.0.1', {server.port}))\n"
            "try:\n while True: s.sendall(bytes(10_000))\nexcept OSError: pass",
        )
        until(lambda: sum(received) == limit)
        report = box.network_report()
        assert report.bytes_out == limit
        assert {one.reason for one in report.denied} == {"max_bytes is used up"}
        assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") in ("ConnectionResetError", b"")
        box.set_network(Network(allow=[f"127.0.0.1:{server.port}"], max_bytes=5))
        value(box, f"dial('127.0.0.1', {server.port}, b'12345', wait=0.2)")
        until(lambda: sum(received) == limit + 5)


def test_the_cap_on_bytes_counts_both_directions_and_lets_exactly_so_many_pass(serve: Make) -> None:
    server = serve()
    with online(f"127.0.0.1:{server.port}", max_bytes=2000) as box:
        got = value(box, f"dial('127.0.0.1', {server.port}, bytes(1000))")
        assert len(got) == 1000
        assert box.network_report().refused == 0

    def flood(sock: socket.socket) -> None:
        sock.sendall(bytes(100_000))
        echo(sock)

    server = serve(flood)
    with online(f"127.0.0.1:{server.port}", max_bytes=77_777) as box:
        source = (
            f"s = socket.create_connection(('127.0.0.1', {server.port})); n = 0\n"
            "try:\n while d := s.recv(1000): n += len(d)\nexcept OSError: pass\nprint(n)"
        )
        assert 0 < int(inside(box, source).stdout) <= 77_777  # the end may be lost with the connection
        assert box.network_report().bytes_in + box.network_report().bytes_out == 77_777


def test_the_cap_on_connections_in_all_counts_refused_ones(serve: Make) -> None:
    server = serve()
    with online(f"127.0.0.1:{server.port}", max_connections=5) as box:
        for _ in range(3):
            assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") == b"x"
        for _ in range(2):
            value(box, f"dial('8.8.8.8', {server.port}, b'x')")
        assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") in ("ConnectionResetError", b"")
        assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") == "ConnectionRefusedError"
        assert "max_connections is used up" in {one.reason for one in box.network_report().denied}
    assert server.accepted == 3


def test_half_open_connections_take_only_places_of_their_own_box(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    rules = [f"a.example:{server.port}", f"127.0.0.1:{server.port}"]
    with online("a.example:443", *rules, max_open=8, connect_s=1.0) as hostile, online(*rules) as other:
        before = descriptors()
        result = hostile.run(
            "import socket\nheld = []\n"
            "for i in range(200):\n s = socket.socket(); s.setblocking(False); s.connect_ex(('198.18.1.1', 443)); held.append(s)\n",
            limits=Limits(open_files=256),
        )
        assert result.ok, result.stderr
        assert descriptors() - before <= 2 * 8 + 4
        start = time.monotonic()
        assert value(other, f"dial('a.example', {server.port}, b'x')") == b"x"
        assert time.monotonic() - start < 2.0
        inside(hostile, "for s in held: s.close()")


def test_places_of_silent_connections_are_free_again(names: Names) -> None:
    with online("a.example:443", max_open=4, connect_s=0.3) as box:
        inside(
            box,
            "socket.gethostbyname('a.example')\nheld = [socket.create_connection(('a.example', 443)) for _ in range(4)]",
        )
        until(lambda: box.network_report().refused == 4)
        assert {one.reason for one in box.network_report().denied} == {"the first bytes took too long"}
        assert value(box, "dial('a.example', 443, b'xx')") in ("ConnectionResetError", b"")


def test_a_slow_drip_of_first_bytes_ends_in_time(names: Names) -> None:
    with online("a.example:443", "a.example:80", connect_s=0.5) as box:
        for port, byte in ((443, b"\x16\x03\x01\x10\x00" + bytes([1]) + bytes(500)), (80, b"GET /" + b"a" * 500)):
            source = (
                f"s = socket.create_connection(('a.example', {port})); t = time.monotonic()\n"
                f"try:\n for b in {byte!r}: s.send(bytes([b])); time.sleep(0.05)\nexcept OSError: pass\nprint(time.monotonic() - t)"
            )
            assert float(inside(box, source).stdout) < 3
        assert box.network_report().refused == 2


def test_an_idle_connection_is_cut(serve: Make) -> None:
    server = serve()
    with online(f"127.0.0.1:{server.port}", idle_s=0.4) as box:
        source = f"s = socket.create_connection(('127.0.0.1', {server.port})); s.settimeout(5)\n"
        source += "try: print(s.recv(1))\nexcept TimeoutError: print('alive')\nexcept OSError: print('cut')"
        assert inside(box, source).stdout in (b"cut\n", b"b''\n")


def test_a_server_that_does_not_answer_ends_in_time(serve: Make, names: Names) -> None:
    names.addresses["a.example"] = ["127.0.0.1"]
    names.wait = threading.Event()
    with online("a.example:*", connect_s=0.5) as box:
        start = time.monotonic()
        assert value(box, "proxied('a.example:9')") == 504
        assert time.monotonic() - start < 5
        # A name server of the attacker may never answer: a few lookups wait, and the others are refused.
        source = "ss = []\nfor i in range(20):\n s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT a.example:9 HTTP/1.1\\r\\n\\r\\n'); ss.append(s)\n"
        inside(box, source + "print([s.recv(20) for s in ss].count(b''))")
        assert len(names.asked) <= 1 + connections.MAX_LOOKUPS
        names.addresses.clear()
        names.wait.set()
        until(lambda: value(box, "proxied('a.example:9')") == 502)


def test_a_flood_of_queries_is_bounded_and_others_are_served(serve: Make, names: Names) -> None:
    names.addresses["a.example"] = ["127.0.0.1"]
    server = serve()
    rules = [f"a.example:{server.port}", f"127.0.0.1:{server.port}"]
    with online(*rules, "*.flood.example:1") as hostile, online(*rules) as other:
        process = hostile.start(
            [
                "python3",
                "-c",
                "import socket, os\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nprint('on', flush=True)\n"
                "while True:\n try: s.sendto(b'\\0\\7\\1\\0\\0\\1' + bytes(6) + b'\\x08' + os.urandom(4).hex().encode() + b'\\5flood\\7example\\0\\0\\1\\0\\1', ('127.0.0.1', 53))\n except OSError: pass",
            ]
        )
        assert process.stdout.read(10, 10) == b"on\n"
        spent = time.process_time()
        time.sleep(1.5)
        spent = time.process_time() - spent
        for _ in range(5):
            assert value(other, f"dial('a.example', {server.port}, b'x')") == b"x"
        process.kill()
        assert spent < 1.0
        assert set(names.asked) == {"a.example"}
        names_given = hostile._box._gateway._names._addresses  # pyright: ignore
        assert len(names_given) <= 4096


def test_hostile_queries_over_tcp_are_cut() -> None:
    with online("a.example:1", connect_s=1.0) as box:
        for data in (b"\xff\xff" + bytes(100), b"\0\0", b"\0\x05abcde", b"\0\x0c" + bytes(12) + b"\0\x0c" * 100):
            got = value(box, f"dial('127.0.0.1', 53, {data!r}, wait=3)")
            assert got in ("ConnectionResetError", b"") or len(got) < 300  # format errors
        query = b"\0\7\1\0\0\1" + bytes(6) + b"\1a\7example\0\0\1\0\1"
        answer = value(box, f"dial('9.9.9.9', 53, {len(query).to_bytes(2, 'big') + query!r})")
        assert answer[-4:-2] == b"\xc6\x12"  # 198.18, whoever was asked


def test_the_host_is_not_scanned_through_a_box() -> None:
    server = Server()
    with online("a.example:80", "a.example:*") as box:
        source = (
            f"print([p for p in [22, 80, 3128, {server.port}, *range(1, 200)] if proxied('127.0.0.1:%d' % p) != 403])"
        )
        assert inside(box, source).stdout == b"[]\n"
        source = f"print([p for p in [22, {server.port}, *range(1000, 1500)] if dial('127.0.0.1', p) != 'ConnectionRefusedError'])"
        assert inside(box, source).stdout == b"[]\n"
    assert server.accepted == 0
    server.close()


def test_closing_while_data_flows_leaves_nothing(serve: Make) -> None:
    def pour(sock: socket.socket) -> None:
        while True:
            sock.sendall(bytes(65536))

    server = serve(pour)
    before = descriptors()
    for way in ("set", "close", "drop", "kill"):
        with online(f"127.0.0.1:{server.port}") as box:
            process = box.start(
                [
                    "python3",
                    "-c",
                    f"import socket\ns = socket.create_connection(('127.0.0.1', {server.port}))\nprint('on', flush=True)\nwhile s.recv(65536): pass",
                ]
            )
            assert process.stdout.read(10, 10) == b"on\n"
            until(lambda box=box: box.network_report().bytes_in > 1_000_000)
            if way == "set":
                box.set_network(None)
                assert process.wait().verdict is not Verdict.TIME
            elif way == "close":
                box.close()
            elif way == "kill":
                process.kill()
                until(lambda box=box: not box._box._gateway._connections)  # pyright: ignore
            del process
        del box
        gc.collect()
        until(lambda: all(sock.fileno() < 0 for sock in server.peers), 5)
    until(lambda: descriptors() <= before, 5)


def test_a_client_that_is_killed_ends_its_connection(serve: Make) -> None:
    ended = threading.Event()

    def wait(sock: socket.socket) -> None:
        try:
            echo(sock)
        finally:
            ended.set()

    server = serve(wait)
    with online(f"127.0.0.1:{server.port}") as box:
        limits = Limits(wall_s=1.0)
        box.exec(
            [
                "python3",
                "-c",
                f"import socket, time\ns = socket.create_connection(('127.0.0.1', {server.port}))\ntime.sleep(60)",
            ],
            limits=limits,
        )
        assert ended.wait(60)


def test_half_closed_connections_carry_on_in_the_other_direction(serve: Make) -> None:
    def answer_at_the_end(sock: socket.socket) -> None:
        data = b""
        while part := sock.recv(65536):
            data += part
        sock.sendall(data[::-1])

    server = serve(answer_at_the_end)
    with online(f"127.0.0.1:{server.port}") as box:
        source = f"s = socket.create_connection(('127.0.0.1', {server.port})); s.sendall(b'abc'); s.shutdown(socket.SHUT_WR); print(s.recv(10))"
        assert inside(box, source).stdout == b"b'cba'\n"


def test_much_data_arrives_whole_in_both_directions(serve: Make) -> None:
    server = serve()
    with online(f"127.0.0.1:{server.port}") as box:
        source = (
            f"import threading, hashlib\ns = socket.create_connection(('127.0.0.1', {server.port})); data = os.urandom(8_000_000)\n"
            "t = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))); t.start()\n"
            "h = hashlib.sha256()\nwhile d := s.recv(100_000): h.update(d)\n"
            "assert h.digest() == hashlib.sha256(data).digest(); t.join()"
        )
        inside(box, source)
        report = box.network_report()
        assert (report.bytes_in, report.bytes_out) == (8_000_000, 8_000_000)


def test_a_forked_child_of_the_host_neither_holds_nor_cuts_connections(serve: Make) -> None:
    server = serve()
    with online(f"127.0.0.1:{server.port}") as box:
        inside(box, f"s = socket.create_connection(('127.0.0.1', {server.port})); s.sendall(b'x'); s.recv(1)")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        inside(box, "s.sendall(b'y'); assert s.recv(1) == b'y'")
        assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") == b"x"
        box.set_network(None)
        inside(box, "\ntry: got = s.recv(1)\nexcept OSError: got = b''\nassert got == b''")
        until(lambda: all(sock.fileno() < 0 for sock in server.peers), 5)  # the child holds no copy
        os.close(write)
        os.waitpid(pid, 0)


def test_a_bug_in_one_connection_ends_that_one_alone(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server, other = serve(), serve()
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    with online(f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}") as box:
        whole = connections.GuestConnection._from_client  # pyright: ignore

        def broken(self: connections.GuestConnection, data: bytes) -> None:  # pyright: ignore
            if data == b"bug":
                raise ZeroDivisionError
            whole(self, data)

        monkeypatch.setattr(connections.GuestConnection, "_from_client", broken)  # pyright: ignore
        inside(box, f"s = socket.create_connection(('127.0.0.1', {other.port})); s.sendall(b'x'); s.recv(1)")
        assert value(box, f"dial('127.0.0.1', {server.port}, b'bug')") in ("ConnectionResetError", b"")
        inside(box, "s.sendall(b'y'); assert s.recv(1) == b'y'")
    assert len(seen) == 1


def test_boxes_together_leave_descriptors_to_the_host(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setattr(gateways, "most_open", lambda: 10)
    with online(f"127.0.0.1:{server.port}") as one, online(f"127.0.0.1:{server.port}") as other:
        inside(one, "")
        inside(other, "")
        before = descriptors()
        hold = f"held = []\nfor i in range(30):\n s = socket.socket(); s.setblocking(False); s.connect_ex(('127.0.0.1', {server.port})); held.append(s)"
        inside(one, hold)
        inside(other, hold)
        time.sleep(0.5)
        assert descriptors() - before <= 2 * 10 + 10  # and what the server itself has
        inside(one, "for s in held: s.close()")
        inside(other, "for s in held: s.close()")
        assert value(other, f"dial('127.0.0.1', {server.port}, b'x')") == b"x"


def test_any_bytes_to_any_listener_leave_the_network_working(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    with online(
        f"a.example:{server.port}", f"127.0.0.1:{server.port}", "a.example:80", "a.example:443", connect_s=1.0
    ) as box:
        source = (
            "import random\nr = random.Random(7); a = socket.gethostbyname('a.example')\n"
            "starts = [b'', b'\\x16\\x03\\x01', b'GET / HTTP/1.1\\r\\n', b'CONNECT a.example:80 HTTP/1.1\\r\\n\\r\\n', b'GET http://a.example/ HTTP/1.1\\r\\n', b'\\0\\x20', b'POST / HTTP/1.1\\r\\nHost: a.example\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n']\n"
            "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for i in range(300):\n"
            " data = r.choice(starts) + r.randbytes(r.choice([0, 1, 5, 50, 500, 5000]))\n"
            f" where = r.choice([(a, 80), (a, 443), (a, {server.port}), ('127.0.0.1', 3128), ('127.0.0.1', 53), ('127.0.0.1', {server.port})])\n"
            " s = socket.create_connection(where, timeout=3); s.settimeout(0.02)\n"
            " try:\n  s.sendall(data)\n  if i % 3 == 0: s.shutdown(socket.SHUT_WR)\n  if i % 2: s.recv(100)\n except OSError: pass\n"
            " if i % 5 == 0: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\\1\\0\\0\\0\\0\\0\\0\\0')\n"
            " s.close(); u.sendto(data[:1200], ('127.0.0.1', 53))\n"
        )
        inside(box, source)
        assert value(box, f"dial('a.example', {server.port}, b'x')") == b"x"
        until(lambda: not box._box._gateway._connections)  # pyright: ignore
        assert gateways.loop.shared().open == 0
