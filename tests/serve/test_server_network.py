"""Networks of boxes on a server, and connections to their ports. Everything stays on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena import Network, Sandbox, SandboxSession, Spec, SpecError
from harena.node.rules import Rules
from harena.sessions.errors import NotFound
from harena.testing.boxserver import BoxServer, box_server
from support.wire_client import raw_client

FIRST, SECOND = "a" * 30, "b" * 30


@contextlib.contextmanager
def greeter() -> Iterator[int]:
    """A server on loopback that says hello to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.sendall(b"hello\n")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BoxServer, int]]:
    folder = tmp_path_factory.mktemp("network")
    (folder / "tokens").write_text(f"first {FIRST}\nsecond {SECOND}\n")
    os.chmod(folder / "tokens", 0o600)
    with greeter() as port:
        options = [f"127.0.0.1:{port}", "*.example.org:443", "10.0.0.0/8:5432"]
        with box_server(folder, *(word for one in options for word in ("--allow-network", one))) as server:
            yield server, port


def dial(port: int) -> str:
    return (
        f"import socket; s = socket.create_connection(('127.0.0.1', 3128), 30); "
        f"s.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n'); "
        "data = b''\n"
        "while True:\n"
        "    piece = s.recv(999)\n"
        "    if not piece: break\n"
        "    data += piece\n"
        "print(data[-6:])"
    )


def test_box_reaches_what_its_server_allows_until_it_is_closed(world: tuple[BoxServer, int]) -> None:
    server, port = world
    allowed = Network(allow=[f"127.0.0.1:{port}"])
    with Sandbox(Spec(network=allowed), backend=server.url, token=FIRST) as box:
        assert box.exec(["python3", "-c", dial(port)]).stdout == b"b'hello\\n'\n"
        assert box.network_report().connections == 1
        box.set_network(Network())
        assert b"hello" not in box.exec(["python3", "-c", dial(port)]).stdout
        report = box.network_report()
        assert (report.connections, report.refused) == (1, 1)
        assert report.denied[0].target == f"127.0.0.1:{port}"
        box.set_network(allowed)
        assert box.exec(["python3", "-c", dial(port)]).stdout == b"b'hello\\n'\n"
        with pytest.raises(SpecError, match="--allow-network"):
            box.set_network(Network(allow=["127.0.0.1:22"]))
        box.set_network(None)


def test_session_changes_its_network_live(world: tuple[BoxServer, int]) -> None:
    server, port = world
    step = {"command": ["python3", "-c", dial(port)]}
    with SandboxSession(spec=Spec(network=Network()), server=server.url, token=FIRST) as session:
        assert "hello" not in session.execute([step])["status"]["stdout"]
        session.set_network(Network(allow=[f"127.0.0.1:{port}"]))
        assert "hello" in session.execute([step])["status"]["stdout"]
        assert session.network_report().connections == 1
        for wrong in ("127.0.0.1:22", "example.org:443", "*:443", "0.0.0.0/0:443"):
            with pytest.raises(SpecError):
                session.set_network(Network(allow=[wrong]))
        thief = SandboxSession(server=server.url, token=SECOND)
        thief.sandbox = session.sandbox
        for attempt in (lambda: thief.set_network(None), thief.network_report):
            with pytest.raises(NotFound):
                attempt()
        session.set_network(None)
        assert "hello" not in session.execute([step])["status"]["stdout"]
    with SandboxSession(server=server.url, token=FIRST) as session, pytest.raises(SpecError, match="without one"):
        session.set_network(Network(allow=[f"127.0.0.1:{port}"]))


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        (["a.example.org:443"], True),
        (["*.example.org:443"], True),
        (["*.deep.example.org:443"], True),
        (["10.0.0.0/8:5432"], True),
        ([], True),
        (["example.org:443"], False),
        (["example.org.evil:443"], False),
        (["notexample.org:443"], False),
        (["a.example.org:80"], False),
        (["a.example.org:*"], False),
        (["*:443"], False),
        (["*.org:443"], False),
        (["10.1.2.3:5432"], False),  # a part of a block may be special, or the host's own
        (["10.0.0.0/9:5432"], False),
        (["0.0.0.0/0:5432"], False),
        (["169.254.169.254:80"], False),
        (["a.example.org:443", "127.0.0.1:22"], False),
    ],
    ids=str,
)
def test_rules_cover_names_and_exact_addresses(asked: list[str], right: bool) -> None:
    rules = Rules(network=("*.example.org:443", "10.0.0.0/8:5432"))
    with contextlib.nullcontext() if right else pytest.raises(SpecError, match="--allow-network"):
        rules.check_network(Network(allow=asked))


def test_rules_refuse_private_names_many_connections_and_every_network_by_default() -> None:
    rules = Rules(network=("*:443",))
    rules.check_network(Network(allow=["a.b:443", "*:443"]))
    for network in (Network(private_names=True), Network(max_open=1024)):
        with pytest.raises(SpecError):
            rules.check_network(network)
    with pytest.raises(SpecError, match="opens none"):
        Rules().check_network(Network())


def test_wrong_entry_of_the_operator_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="did not start"), box_server(tmp_path, "--allow-network", "nonsense"):
        pass


# ---- connections to ports of a box ----

ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 7000))
open("ready", "w").close()
while True:
    client, _ = server.accept()
    while data := client.recv(65536):
        client.sendall(data)
    client.close()
"""


def test_port_of_a_box_on_a_server_is_reached(world: tuple[BoxServer, int]) -> None:
    server, _ = world
    data = os.urandom(3_000_000)
    with Sandbox(server.url, token=FIRST) as box, box.start(["python3", "-c", ECHO]):
        assert box.exec(["sh", "-c", "until [ -e ready ]; do sleep 0.02; done"]).ok
        for _ in range(2):
            with box.connect(7000, timeout_s=30) as sock:
                sock.settimeout(60)

                def send(sock: socket.socket = sock) -> None:
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)

                threading.Thread(target=send).start()
                received = b""
                while piece := sock.recv(1 << 20):
                    received += piece
                assert received == data
        with pytest.raises(OSError):
            box.connect(7001, timeout_s=30)


def test_sockets_of_others_are_unknown(world: tuple[BoxServer, int]) -> None:
    server, _ = world
    with raw_client(BoxServer(server.url, FIRST, server.process)) as owner:
        handle = owner.box()
        with raw_client(BoxServer(server.url, SECOND, server.process)) as thief:
            fields: dict[str, dict[str, Any]] = {
                "connect": {"port": 80, "timeout_s": 1},
                "pull": {"timeout_s": 1},
                "push": {},
                "shut": {},
                "network_report": {},
                "set_network": {"network": None},
            }
            for verb, more in fields.items():
                assert thief.ask(verb, handle=handle, **more)["error"]["kind"] == "BoxLost"
        for verb in ("pull", "push", "shut"):  # a box is no socket
            assert owner.ask(verb, handle=handle, **fields[verb])["error"]["kind"] == "BoxLost"
