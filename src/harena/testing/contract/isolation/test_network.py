"""A network that the spec names: what it opens is reached, nothing else is, and a backend without it says so."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from harena import Network, SpecError
from harena.errors import Unsupported
from harena.sandbox import backend
from harena.testing.contract.conftest import MakeBox, Variant

DIAL = """
import socket
def dial(host, port):
    try:
        with socket.create_connection((host, port), timeout=5) as s:
            s.sendall(b"hello")
            return s.recv(100)
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server on the host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), peer:
                    peer.sendall(peer.recv(100))

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def make_online(variant: Variant, make_box: MakeBox) -> MakeBox:
    if not backend.load(variant.backend).capabilities().network:
        pytest.skip(f"{variant.name} has no network")
    return make_box


def test_a_backend_without_a_network_refuses_to_make_such_a_box(variant: Variant, make_box: MakeBox) -> None:
    if backend.load(variant.backend).capabilities().network:
        make_box(network=Network()).ping()
        return
    with pytest.raises((Unsupported, SpecError)):
        make_box(network=Network())
    with pytest.raises((Unsupported, OSError)):  # a node may reach ports of a box that has no network
        make_box().connect(80)


def test_a_box_without_a_network_reaches_no_server_of_the_host(make_box: MakeBox, echo: int) -> None:
    box = make_box()
    result = box.run(f"{DIAL}\nprint(dial('127.0.0.1', {echo}))")
    assert result.stdout in (b"ConnectionRefusedError\n", b"PermissionError\n", b"OSError\n"), result.stderr
    assert result.network is None
    with pytest.raises(SpecError):
        box.set_network(Network())


def test_online_what_a_rule_names_is_reached_and_nothing_else(make_online: MakeBox, echo: int) -> None:
    box = make_online(network=Network(allow=[f"127.0.0.1:{echo}"]))
    for result in (
        box.run(f"{DIAL}\nprint(dial('127.0.0.1', {echo}))"),
        box.exec(["python3", "-c", f"{DIAL}\nprint(dial('127.0.0.1', {echo}))"]),
    ):
        assert result.stdout == b"b'hello'\n", result.stderr
        assert result.network is not None
        assert (result.network.connections, result.network.bytes_out, result.network.bytes_in) == (1, 5, 5)
        assert result.network.refused == 0
    result = box.run(f"print(dial('198.51.100.7', {echo}), dial('127.0.0.1', 9))")
    assert b"hello" not in result.stdout
    assert result.network is not None
    assert [one.target for one in result.network.denied] == [f"198.51.100.7:{echo}"]
    result = box.run("try: socket.gethostbyname('example.com')\nexcept OSError: print('none')")
    assert result.stdout == b"none\n"
    assert result.network is not None
    assert [one.target for one in result.network.denied] == ["example.com"]


def test_online_a_network_is_closed_and_opened_again(make_online: MakeBox, echo: int) -> None:
    box = make_online(network=Network())
    dial = f"{DIAL}\nprint(dial('127.0.0.1', {echo}))"
    assert box.run(dial).stdout == b"ConnectionRefusedError\n"
    box.set_network(Network(allow=[f"127.0.0.1:{echo}"]))
    assert box.run(dial).stdout == b"b'hello'\n"
    box.run(f"held = socket.create_connection(('127.0.0.1', {echo}))")
    box.set_network(None)
    assert box.run(dial).stdout == b"ConnectionRefusedError\n"
    cut = "try: print(held.recv(1))\nexcept OSError: print('cut')"
    assert box.run(cut).stdout in (b"b''\n", b"cut\n")
    assert box.network_report().connections == 2


def test_online_the_host_reaches_a_port_of_the_box(make_online: MakeBox) -> None:
    box = make_online()
    source = "import socket, threading\nserver = socket.create_server(('127.0.0.1', 8080))\n"
    source += "def serve():\n while True:\n  peer, _ = server.accept()\n  peer.sendall(peer.recv(100)); peer.close()\n"
    assert box.run(source + "threading.Thread(target=serve, daemon=True).start()").ok
    with box.connect(8080) as sock:
        sock.sendall(b"hello")
        assert sock.recv(100) == b"hello"
    with pytest.raises(ConnectionRefusedError):
        box.connect(8081)
