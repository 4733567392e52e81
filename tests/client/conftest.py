"""One real arena for all tests of the client, behind a real server on a free port. Each test is a client of its own."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from harena.api.app import create_app
from harena.arena.arena import Arena
from harena.arena.db.models import Scope
from harena.arena.settings import Settings
from harena.client import ArenaClient
from support.client_world import CARTPOLE, FIRST_FREE, LAST_FREE, LEFT, SLOW, TICTACTOE, Served


class Receiver(http.server.ThreadingHTTPServer):
    """Where webhooks of the arena go. It answers /gone with an error."""

    def __init__(self):
        self.got = []
        super().__init__(("127.0.0.1", 0), ReceivedWebhook)
        self.url = f"http://127.0.0.1:{self.server_port}/"


class ReceivedWebhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        self.send_response(410 if self.path == "/gone" else 204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def receiver():
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def served(tmp_path_factory, receiver):
    free = {"HARENA_ANONYMOUS_SUBMIT": "1", "HARENA_PER_DAY": "0", "HARENA_AT_ONCE": "0"}
    webhooks = {"HARENA_WEBHOOKS": f"127.0.0.1:{receiver.server_port}"}
    settings = Settings.from_env(tmp_path_factory.mktemp("arena"), {"HARENA_WORKERS": "2", **free, **webhooks})
    with Arena(settings) as arena:
        arena.put_environment(CARTPOLE, settings={"episodes": 2, "rules": "Keep it up.", "sample_agent": LEFT})
        arena.put_environment(TICTACTOE, settings={"games_target": 2, "upkeep_s": 3600.0, "provisional_games": 1})
        _, admin = arena.store.keys.create("root", [Scope.ADMIN])
        _, alice = arena.store.keys.create("alice", [Scope.READ, Scope.SUBMIT])
        app = create_app(arena, loopback=True)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            yield Served(url=f"http://127.0.0.1:{port}", arena=arena, admin=admin, alice=alice)
        finally:
            app.state.api.live.close()
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def me(monkeypatch, tmp_path):
    """Nothing of this machine's user."""
    for name in ("HARENA_URL", "HARENA_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARENA_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def client(served):
    with ArenaClient(served.url) as client:
        yield client


@pytest.fixture
def host(served):
    with ArenaClient(served.url, key=served.admin) as client:
        yield client


@pytest.fixture
def write(tmp_path):
    def write(source: str, name: str = "agent.py") -> Path:
        (tmp_path / name).write_text(source)
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def players(served, tmp_path_factory):
    """Two agents of different owners on the ladder's board, and the client that owns them."""
    folder = tmp_path_factory.mktemp("players")
    with ArenaClient(served.url, client_id="players-of-all-tests") as client:
        ids = []
        for name, source in (("first", FIRST_FREE), ("last", LAST_FREE)):
            (folder / f"{name}.py").write_text(source)
            sent = client.submit(folder / f"{name}.py", TICTACTOE, algorithm=name, owner=f"of-{name}")
            ids.append(client.wait(sent.id, 60).id)
        deadline = time.monotonic() + 60
        while not set(ids) <= {entry.submission_id for entry in client.leaderboard(TICTACTOE).entries}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield client, ids


@pytest.fixture(scope="session")
def slow(players):
    """An agent of the same client whose matches can be watched."""
    client, _ = players
    sent = client.submit(SLOW.encode(), TICTACTOE, algorithm="thinking", owner="slow")
    return client.wait(sent.id, 60).id
