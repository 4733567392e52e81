"""What a box with a network reaches, and what not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harena import AsyncSandbox, BoxError, Network, NetworkReport, Sandbox, SandboxPool, Spec, SpecError, cli
from harena.network import connection as connections
from support.worlds import Names, Server, inside, online, value

Make = Callable[..., Server]


def reasons(report: NetworkReport | None) -> dict[str, str]:
    assert report is not None
    return {one.target: one.reason for one in report.denied}


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def test_a_box_without_a_network_reaches_nothing(serve: Make) -> None:
    server = serve()
    with Sandbox() as box:
        assert value(box, f"dial('127.0.0.1', {server.port})") == "ConnectionRefusedError"
        assert value(box, "dial('93.184.216.34', 80)") == "OSError"
        assert box.run("").network is None
        assert box.exec(["env"]).stdout.lower().count(b"proxy") == 0
        with pytest.raises(SpecError):
            box.set_network(Network())
    assert server.accepted == 0


def test_a_name_is_reached_by_programs_that_know_no_proxy(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    with online(f"a.example:{server.port}", f"127.0.0.1:{server.port}") as box:
        assert value(box, f"dial('a.example', {server.port}, b'hello')") == b"hello"
        assert value(box, f"dial('A.EXAMPLE.', {server.port}, b'hello')") == b"hello"
        assert value(box, "socket.gethostbyname('a.example')").startswith("198.18.")
        report = box.network_report()
    assert (report.connections, report.bytes_out, report.bytes_in, report.refused) == (2, 10, 10, 0)


def test_a_name_is_resolved_once_and_only_when_it_is_connected_to(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    with online(f"a.example:{server.port}", "*.example:81", f"127.0.0.1:{server.port}") as box:
        inside(box, "socket.gethostbyname('a.example'); socket.gethostbyname('secret.example')")
        assert value(box, "dial('evil.com', 80)") == "no such name"
        assert names.asked == []
        for _ in range(3):
            assert value(box, f"dial('a.example', {server.port}, b'x')") == b"x"
        assert names.asked == ["a.example"]  # and kept for a few seconds


def test_tools_use_the_proxy_of_the_environment(serve: Make, names: Names) -> None:
    def http(sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        seen.append(head)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

    seen: list[bytes] = []
    server = serve(http)
    names.addresses["web.example"] = ["127.0.0.1"]
    fetch = f"import urllib.request; print(urllib.request.urlopen('http://web.example:{server.port}/x').read())"
    with online(f"web.example:{server.port}", f"127.0.0.1:{server.port}") as box:
        result = box.exec(["python3", "-c", fetch])
        assert result.stdout == b"b'hello'\n", result.stderr
        assert result.network is not None
        assert result.network.connections == 1
        box.set_network(Network(allow=[f"other.example:{server.port}"]))
        result = box.exec(["python3", "-c", fetch])
        assert b"403" in result.stderr
        assert reasons(result.network) == {f"web.example:{server.port}": "no rule allows this name"}
    assert len(seen) == 1
    assert b"Connection: close" in seen[0]
    assert b"GET /x HTTP/1.1" in seen[0]


def test_a_tunnel_reaches_names_and_addresses_on_any_port_that_is_allowed(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    with online("a.example:*", "127.0.0.1:*") as box:
        assert value(box, f"proxied('a.example:{server.port}', b'hi')") == b"hi"
        assert value(box, f"proxied('127.0.0.1:{server.port}', b'hi')") == b"hi"
        assert value(box, f"proxied('b.example:{server.port}')") == 403
        assert value(box, "proxied('a.example:1')") == 502
        # Without the proxy there is no socket to dial.
        assert value(box, f"dial('a.example', {server.port})") == "ConnectionRefusedError"


def test_denied_attempts_are_in_the_result_of_their_execution(names: Names) -> None:
    names.addresses["a.example"] = ["127.0.0.1"]
    with online("a.example:80") as box:
        result = inside(box, "dial('evil.com', 80); dial('8.8.8.8', 80); dial('8.8.8.8', 80); dial('10.0.0.1', 80)")
        assert result.network is not None
        counts = {one.target: one.count for one in result.network.denied}
        assert counts.pop("evil.com") >= 1  # a resolver asks for IPv4 and IPv6
        assert counts == {"8.8.8.8:80": 2, "10.0.0.1:80": 1}
        assert inside(box, "").network == NetworkReport()
        assert box.exec(["true"]).network == NetworkReport()
        # Attempts of a program that does not wait for the answer are there, too.
        source = "import socket; s = socket.socket(); s.connect(('9.9.9.9', 80))"
        assert reasons(box.exec(["python3", "-c", source]).network).keys() == {"9.9.9.9:80"}
        assert reasons(box.call(f"def f():\n {source}", "f").network).keys() == {"9.9.9.9:80"}
        process = box.start(["python3", "-c", source])
        assert reasons(process.wait().network).keys() == {"9.9.9.9:80"}


def test_the_report_is_bounded_and_clean(names: Names) -> None:
    with online("a.example:80") as box:
        source = "for i in range(300): socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
        inside(
            box,
            source
            + ".sendto(b'\\0\\7\\1\\0\\0\\1' + bytes(6) + b'\\5\\x1b[2J%c' % (i % 256) + b'\\0\\0\\1\\0\\1', ('127.0.0.1', 53))",
        )
        report = box.network_report()
        assert 100 <= report.refused <= 300
        assert len(report.denied) <= 100
        assert all(one.target.isprintable() for one in report.denied)


def test_each_report_has_its_own_attempts_however_many_there_were_before() -> None:
    with online("a.example:80") as box:
        for _ in range(3):
            result = inside(box, "for i in range(150): dial('9.9.%d.9' % i, 80)")
            assert result.network is not None
            assert result.network.refused == 150
            assert [one.count for one in result.network.denied] == [1] * 100
        result = inside(box, "dial('8.8.8.8', 80)")
        assert reasons(result.network).keys() == {"8.8.8.8:80"}
        assert box.network_report().refused == 451


def test_attempts_of_a_program_that_does_not_wait_are_all_reported() -> None:
    with online("a.example:80") as box:
        source = "import socket\nfor i in range(40):\n s = socket.socket(); s.setblocking(False); s.connect_ex(('9.9.%d.9' % i, 80))"
        result = box.exec(["python3", "-c", source])
        assert result.network is not None
        assert result.network.refused == 40


def test_literal_addresses_need_a_rule(serve: Make) -> None:
    server, other = serve(), serve()
    with online(f"127.0.0.1:{server.port}", f"a.example:{other.port}") as box:
        assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") == b"x"
        for address in ("127.0.0.1", "127.0.0.2", "10.9.8.7", "93.184.216.34"):
            assert value(box, f"dial({address!r}, {other.port}, b'x')") in ("ConnectionResetError", b"")
        assert value(box, f"proxied('127.0.0.1:{other.port}')") == 403
    assert other.accepted == 0


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "10.9.8.7", "93.184.216.34", "127.0.0.1"])
def test_special_and_own_addresses_are_refused_however_they_are_reached(
    address: str, serve: Make, names: Names
) -> None:
    """A server listens there, and the host could connect to it."""
    server = serve(address=address)
    with socket.create_connection((address, server.port)) as direct:
        direct.sendall(b"x")
        assert direct.recv(1) == b"x"
    assert server.accepted == 1
    names.addresses |= {"a.example": [address], "b.example": [f"::ffff:{address}"] if ":" not in address else [address]}
    wide = [f"*.example:{server.port}", f"0.0.0.0/0:{server.port}", f"[::/0]:{server.port}"]
    shown = f"[{address}]" if ":" in address else address
    with online(*wide) as box:
        assert value(box, f"dial({address!r}, {server.port}, b'x')") in ("ConnectionResetError", b"")
        assert value(box, f"proxied('{shown}:{server.port}')") == 403
        assert value(box, f"proxied('a.example:{server.port}')") == 403
        for name in ("a.example", "b.example"):
            assert value(box, f"dial({name!r}, {server.port}, b'x')") in ("ConnectionResetError", b"")
        if ":" not in address:
            assert value(box, f"proxied('[::ffff:{address}]:{server.port}')") == 403
            mapped = f"dial('::ffff:{address}', {server.port}, b'x')"
            assert value(box, mapped) in ("ConnectionResetError", b"")
        assert server.accepted == 1
        assert len(reasons(box.network_report())) >= 3
        # Where the name leads is for the report, not for the guest.
        body = f"urllib.request.Request('http://a.example:{server.port}/')"
        told = inside(
            box,
            f"import urllib.error, urllib.request\ntry: urllib.request.urlopen({body})\nexcept urllib.error.HTTPError as e: print(e.code, e.read().decode())",
        ).stdout
        assert told.startswith(b"403")
        assert address.encode() not in told
        assert any(address in one.reason for one in box.network_report().denied)
        # Named, it is reached, also through a name.
        box.set_network(Network(allow=[*wide, f"{shown}:{server.port}"]))
        assert value(box, f"dial({address!r}, {server.port}, b'x')") == b"x"
        assert value(box, f"dial('a.example', {server.port}, b'x')") == b"x"


def test_a_name_that_changes_its_address_is_checked_each_time(
    serve: Make, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CACHE_S", 0.0)
    good, metadata = serve(), serve(address="169.254.169.254")
    port = good.port
    metadata_there = serve(address="169.254.169.254", port=port)
    with online(f"a.example:{port}", f"127.0.0.1:{port}") as box:
        names.addresses["a.example"] = ["127.0.0.1"]
        assert value(box, f"dial('a.example', {port}, b'x')") == b"x"
        names.addresses["a.example"] = ["169.254.169.254"]
        assert value(box, f"dial('a.example', {port}, b'x')") in ("ConnectionResetError", b"")
        names.addresses["a.example"] = ["169.254.169.254", "127.0.0.1"]
        assert value(box, f"dial('a.example', {port}, b'x')") == b"x"
        assert len(names.asked) == 3
    assert metadata.accepted == metadata_there.accepted == 0
    assert good.accepted == 2


def test_a_redirect_to_the_metadata_service_goes_nowhere(serve: Make, names: Names) -> None:
    def redirect(sock: socket.socket) -> None:
        sock.recv(4096)
        where = f"http://169.254.169.254:{port}/latest/meta-data/"
        sock.sendall(f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())

    web = serve(redirect)
    port = web.port
    metadata = serve(address="169.254.169.254", port=port)
    names.addresses["web.example"] = ["127.0.0.1"]
    with online(f"web.example:{port}", f"127.0.0.1:{port}") as box:
        fetch = f"import urllib.request; urllib.request.urlopen('http://web.example:{port}/')"
        for env in ({}, {"http_proxy": "", "HTTP_PROXY": ""}):
            result = box.exec(["python3", "-c", fetch], env=env)
            assert result.exit_code == 1
            assert reasons(result.network).keys() == {f"169.254.169.254:{port}"}
    assert web.accepted == 2
    assert metadata.accepted == 0


def hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ours, theirs, server_hostname=name).do_handshake()
    return theirs.read()


def test_tls_for_another_name_reaches_no_server(serve: Make, names: Names) -> None:
    received: list[bytes] = []

    def record(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            received.append(data)
            sock.sendall(b"hello")

    server = serve(record)
    names.addresses |= {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]}
    with online(f"*.example:{server.port}", f"127.0.0.1:{server.port}", "*.example:443") as box:
        good = hello("a.example")
        assert value(box, f"dial('a.example', {server.port}, {good!r})") == b"hello"
        assert value(box, f"proxied('a.example:{server.port}', {good!r})") == b"hello"
        count = len(received)
        for bad in (hello("b.example"), hello(None), hello("evil.com")):
            assert value(box, f"dial('a.example', {server.port}, {bad!r})") in ("ConnectionResetError", b"")
            assert value(box, f"proxied('a.example:{server.port}', {bad!r})") in ("ConnectionResetError", b"")
        # On the port of TLS nothing is connected before the name is known.
        for bad in (hello("b.example"), b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"):
            asked = len(names.asked)
            assert value(box, f"dial('a.example', 443, {bad!r})") in ("ConnectionResetError", b"")
            assert len(names.asked) == asked
        assert len(received) == count
        found = {one.reason for one in box.network_report().denied}
        assert {"TLS for another server name (b.example)", "TLS without a server name"} <= found


def test_https_works_with_and_without_the_proxy(serve: Make, names: Names) -> None:
    """The certificate is for a.example and b.example, so the guest itself would be content with either."""
    certificate = Path(__file__).parent / "certificate.pem"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    asked: list[str | None] = []
    context.sni_callback = lambda sock, name, context: asked.append(name)

    def https(sock: socket.socket) -> None:
        if not sock.recv(1, socket.MSG_PEEK):  # the guest's hello was refused
            return
        with context.wrap_socket(sock, server_side=True) as tls:
            tls.recv(4096)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

    server = serve(https)
    names.addresses |= {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]}
    with online(f"a.example:{server.port}", f"b.example:{server.port}", f"127.0.0.1:{server.port}") as box:
        text = certificate.read_text()
        box.write("ca.pem", text[text.index("-----BEGIN CERT") :])
        fetch = f"import urllib.request; print(urllib.request.urlopen('https://a.example:{server.port}/').read())"
        trust = {"SSL_CERT_FILE": "/workspace/ca.pem"}
        for env in (trust, {**trust, "https_proxy": "", "HTTPS_PROXY": ""}):
            result = box.exec(["python3", "-c", fetch], env=env)
            assert result.stdout == b"b'hello'\n", result.stderr
        assert asked == ["a.example", "a.example"]
        other = (
            "import socket, ssl\nc = ssl.create_default_context(cafile='/workspace/ca.pem')\n"
            f"c.wrap_socket(socket.create_connection(('a.example', {server.port})), server_hostname='b.example')"
        )
        result = box.exec(["python3", "-c", other])
        assert result.exit_code == 1
        assert reasons(result.network) == {f"a.example:{server.port}": "TLS for another server name (b.example)"}
        assert asked == ["a.example", "a.example"]


def test_plain_http_for_another_host_reaches_no_server(serve: Make, names: Names) -> None:
    received: list[bytes] = []

    def record(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            received.append(data)
            sock.sendall(b"hello")

    server = serve(record)
    names.addresses |= {"a.example": ["127.0.0.1"]}
    with online(f"a.example:{server.port}", f"127.0.0.1:{server.port}") as box:
        good = f"GET / HTTP/1.1\r\nHost: a.example:{server.port}\r\n\r\n".encode()
        bad = good.replace(b"a.example", b"b.example")
        assert value(box, f"dial('a.example', {server.port}, {good!r})") == b"hello"
        for data in (bad, good + bad):
            value(box, f"dial('a.example', {server.port}, {data!r})")
        value(box, f"dial('198.18.1.1', {server.port}, {bad!r})")
    assert b"b.example" not in b"".join(received)


def test_the_network_is_closed_and_opened_while_the_box_lives(serve: Make, names: Names) -> None:
    server, other = serve(), serve()
    names.addresses |= {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]}
    rules = [
        f"a.example:{server.port}",
        f"b.example:{other.port}",
        f"127.0.0.1:{server.port}",
        f"127.0.0.1:{other.port}",
    ]
    with online(*rules) as box:
        inside(
            box,
            f"one = socket.create_connection(('a.example', {server.port})); one.sendall(b'x'); one.recv(1)\n"
            f"two = socket.create_connection(('b.example', {other.port})); two.sendall(b'x'); two.recv(1)\n",
        )
        box.set_network(Network(allow=rules[:1] + rules[2:3]))
        inside(box, "one.sendall(b'y'); assert one.recv(1) == b'y'")
        cut = "\ntry:\n two.sendall(b'y'); got = two.recv(1)\nexcept OSError as e: got = b''\nassert got == b''"
        inside(box, cut)
        assert value(box, f"dial('b.example', {other.port})") == "no such name"
        box.set_network(None)
        inside(box, cut.replace("two", "one"))
        assert value(box, f"dial('127.0.0.1', {server.port})") == "ConnectionRefusedError"
        assert value(box, "dial('127.0.0.1', 3128)") == "ConnectionRefusedError"
        assert value(box, f"dial('a.example', {server.port})") == "no such name"
        box.set_network(Network(allow=rules))
        assert value(box, f"dial('a.example', {server.port}, b'z')") == b"z"


def test_the_next_address_of_a_name_is_checked_by_the_rules_of_that_moment(serve: Make, names: Names) -> None:
    full = socket.create_server(("93.184.216.34", 0), backlog=0)
    port: int = full.getsockname()[1]
    waiting = [socket.socket() for _ in range(4)]
    for one in waiting:  # the kernel answers nobody any more
        one.setblocking(False)
        one.connect_ex(("93.184.216.34", port))
    server = serve(address="10.9.8.7", port=port)
    names.addresses["a.example"] = ["93.184.216.34", "10.9.8.7"]
    rules = [f"a.example:{port}", f"93.184.216.34:{port}", f"10.9.8.7:{port}"]
    with online(*rules, connect_s=60) as box:
        process = box.start(
            ["python3", "-c", f"import socket; socket.create_connection(('a.example', {port})).recv(1)"]
        )
        until(lambda: bool(names.asked))
        until(lambda: any(one._server for one in box._box._gateway._connections))  # pyright: ignore
        box.set_network(Network(allow=rules[:2], connect_s=60))
        full.close()  # so the connection is refused when it is tried again
        assert process.wait(60).exit_code is not None
    assert server.accepted == 0
    for one in waiting:
        one.close()


def test_a_program_that_holds_a_port_of_the_network_is_named(serve: Make) -> None:
    with online() as box:
        inside(box, "own = socket.create_server(('127.0.0.1', 8123))")
        with pytest.raises(BoxError, match="port 8123"):
            box.set_network(Network(allow=["a.example:8123"]))
        assert value(box, "dial('127.0.0.1', 3128)") == "ConnectionRefusedError"  # it is closed, not half open
        inside(box, "own.close()")
        box.set_network(Network(allow=["a.example:8123"]))
        assert value(box, "socket.gethostbyname('a.example')").startswith("198.18.")


def test_a_guest_can_neither_take_over_nor_close_the_listening_sockets(serve: Make) -> None:
    server = serve()
    with online(f"127.0.0.1:{server.port}") as box:
        for port in (server.port, 53, 3128):
            for address in ("127.0.0.1", "0.0.0.0", "198.18.1.1"):
                source = (
                    "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
                    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
                    f"try: s.bind(({address!r}, {port})); s.listen()\nexcept OSError as e: print(e.errno)\nelse: print('took it')"
                )
                assert inside(box, source).stdout in (b"98\n", b"13\n")
        assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") == b"x"


def test_each_box_has_its_own_network(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    with online(f"a.example:{server.port}", f"127.0.0.1:{server.port}") as one, online("b.example:1") as other:
        inside(one, "import threading\nown = socket.create_server(('0.0.0.0', 8200))")
        assert value(other, "dial('127.0.0.1', 8200)") == "ConnectionRefusedError"
        assert value(other, f"dial('a.example', {server.port})") == "no such name"
        assert value(one, f"dial('a.example', {server.port}, b'x')") == b"x"
        fake = value(one, "socket.gethostbyname('a.example')")
        assert value(other, f"dial({fake!r}, {server.port})") == "ConnectionRefusedError"
        assert value(other, f"proxied('{fake}:{server.port}')") == 403


def test_a_fork_has_a_network_of_its_own_with_the_same_rules(serve: Make, names: Names) -> None:
    server = serve()
    names.addresses["a.example"] = ["127.0.0.1"]
    with online(f"a.example:{server.port}", f"127.0.0.1:{server.port}") as box:
        inside(box, "x = 1")
        [fork] = box.fork()
        with fork:
            assert value(fork, f"dial('a.example', {server.port}, b'x')") == b"x"
            assert fork.network_report().connections == 1
            assert box.network_report().connections == 0
            fork.set_network(None)
            assert value(fork, "dial('127.0.0.1', 3128)") == "ConnectionRefusedError"
            assert value(box, f"dial('a.example', {server.port}, b'x')") == b"x"
            box.set_network(None)
            [closed] = box.fork()
            with closed:
                assert value(closed, "dial('127.0.0.1', 3128)") == "ConnectionRefusedError"


def test_raw_and_packet_sockets_are_refused_with_a_network_too() -> None:
    with online("a.example:80") as box:
        source = "for f, k, p in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 0), (17, 2, 0), (16, 3, 0), (2, 2, 1), (2, 5, 132)):\n"
        source += " try: socket.socket(f, k, p)\n except OSError: pass\n else: print(f, k, p)"
        assert inside(box, source).stdout == b""
        assert value(box, "os.listdir('/sys/class/net') if os.path.exists('/sys/class/net') else []") == []


def test_ipv6_addresses_of_rules_are_reached(serve: Make) -> None:
    server = serve(address="::1")
    with online(f"[::1]:{server.port}") as box:
        assert value(box, f"dial('::1', {server.port}, b'x')") == b"x"
        assert value(box, f"dial('2001:db8::1', {server.port}, b'x')") in ("ConnectionResetError", b"")


def test_the_host_connects_to_a_port_of_a_box() -> None:
    for spec in (Spec(), Spec(network=Network())):
        with Sandbox(spec) as box:
            server = "import socket\ns = socket.create_server(('127.0.0.1', 8080))\nprint('on', flush=True)\nc = s.accept()[0]\nc.sendall(c.recv(100))"
            process = box.start(["python3", "-c", server])
            assert process.stdout.read(10, 10) == b"on\n"
            with box.connect(8080) as sock:
                sock.sendall(b"hello")
                assert sock.recv(100) == b"hello"
            with pytest.raises(ConnectionRefusedError):
                box.connect(8081)
            inside(box, "six = socket.create_server(('::1', 8082), family=socket.AF_INET6)")
            box.connect(8082).close()
            with pytest.raises(SpecError):
                box.connect(0)
            inside(box, "own = socket.create_server(('127.0.0.1', 8090))")
            [fork] = box.fork()
            with fork, pytest.raises(ConnectionRefusedError):
                fork.connect(8090)
            box.connect(8090).close()


def test_programs_of_a_map_and_conversations_have_no_sockets_to_the_network() -> None:
    with SandboxPool(Spec(network=Network(allow=["a.example:80"])), warm=1, max_live=2) as pool:
        [result] = pool.map(["import socket\ntry: socket.socket()\nexcept OSError as e: print(e.errno)"])
    assert result.stdout == b"97\n"


def test_the_report_of_a_result_is_json() -> None:
    with online("a.example:80") as box:
        data = inside(box, "dial('9.9.9.9', 80)").as_json()
    assert list(data["network"]["denied"]) == [
        {"target": "9.9.9.9:80", "reason": "no rule allows this address and port", "count": 1}
    ]
    with Sandbox() as box:
        assert "network" not in box.run("").as_json()


def test_a_network_is_data() -> None:
    network = Network(allow=["a.example:80"])
    assert dataclasses.replace(network, max_open=3).allow == ("a.example:80",)
    assert hash(network) == hash(Network(allow=("a.example:80",)))


def test_the_command_opens_a_network_and_says_what_was_refused(serve: Make, capfd: pytest.CaptureFixture[str]) -> None:
    server = serve()
    source = (
        f"import socket\ns = socket.create_connection(('127.0.0.1', {server.port})); s.sendall(b'hi'); print(s.recv(2))\n"
        "try: socket.gethostbyname('evil.com')\nexcept OSError: pass"
    )
    assert cli.main(["exec", "--allow", f"127.0.0.1:{server.port}", "--", "python3", "-c", source]) == 0
    out, err = capfd.readouterr()
    assert out == "b'hi'\n"
    assert err.startswith("harena: network: refused evil.com: no rule allows this name")
    assert cli.main(["run", "--allow", "nonsense", "-c", "pass"]) == cli.USAGE
    assert cli.main(["run", "--forward", "0", "-c", "pass"]) == cli.USAGE


def test_the_command_forwards_a_port(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = free.getsockname()[1]
    server = "import socket\ns = socket.create_server(('127.0.0.1', 8080)); c = s.accept()[0]; d = c.recv(9); c.sendall(d[::-1]); print(d)"
    got: list[bytes] = []

    def client() -> None:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", local)) as sock:
                sock.sendall(b"abc")
                if data := sock.recv(9):
                    return got.append(data)
            time.sleep(0.05)

    thread = threading.Thread(target=client)
    thread.start()
    assert cli.main(["exec", "--forward", f"{local}:8080", "--", "python3", "-c", server]) == 0
    thread.join()
    assert got == [b"cba"]
    assert capfd.readouterr().out == "b'abc'\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", local))


def test_the_async_box_has_the_same_verbs(serve: Make) -> None:
    server = serve()

    async def scenario() -> None:
        async with AsyncSandbox(Spec(network=Network())) as box:
            await box.set_network(Network(allow=[f"127.0.0.1:{server.port}"]))
            source = f"import socket\ns = socket.create_connection(('127.0.0.1', {server.port})); s.sendall(b'x'); s.recv(1)\n"
            assert (await box.run(source + "own = socket.create_server(('127.0.0.1', 8085))")).ok
            assert (await box.network_report()).connections == 1
            reader, writer = await asyncio.open_connection(sock=await box.connect(8085))
            assert (await box.run("own.accept()[0].sendall(b'hello')")).ok
            assert await reader.read(100) == b"hello"
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await box.connect(8086)

    asyncio.run(scenario())


def test_boxes_of_a_pool_have_the_network_of_its_spec(serve: Make) -> None:
    server = serve()
    spec = Spec(network=Network(allow=[f"127.0.0.1:{server.port}"]))
    with SandboxPool(spec, warm=1, max_live=2) as pool, pool.lease() as one, pool.lease() as other:
        for box in (one, other):
            assert value(box, f"dial('127.0.0.1', {server.port}, b'x')") == b"x"
            assert box.network_report().connections == 1
