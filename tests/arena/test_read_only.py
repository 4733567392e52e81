"""The database becomes read-only while an arena serves: it says so, reads go on, and nothing that was sent is lost.

SQLite: the kernel has made the disk read-only after an error. PostgreSQL: the server was told to, as a standby is.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from harena.arena.db.models import ReadOnly
from harena.arena.db.store import Store
from support import preloads
from support.entries import ENV, submit

SOON_S = 100.0
SECRET = "only for tests, and 16 bytes at least"
PORTS = ["--port", "0", "--ui-port", "off", "--grpc-port", "off", "--metrics-port", "off"]
AGENT = b"def act(observation):\n    return int(observation[2] + observation[3] > 0)\n# %d\n"


class PostgresSwitch:
    def __init__(self, postgres):
        self.environ = {}
        self._postgres = postgres

    def _set(self, value):
        self._postgres.sql(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        self._postgres.sql("SELECT pg_reload_conf()")
        end = time.monotonic() + SOON_S
        while self._postgres.sql("SHOW default_transaction_read_only").fetchone()[0] != value:
            assert time.monotonic() < end
            time.sleep(0.01)

    def make_read_only(self):
        self._set("on")

    def make_writable(self):
        self._set("off")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", "postgresql"])
def switch(request, tmp_path):
    if request.param == "sqlite":
        yield preloads.Disk(tmp_path, tmp_path / "data")
        return
    made = PostgresSwitch(request.getfixturevalue("postgres"))
    yield made
    made.make_writable()


@pytest.fixture
def database(request, switch, data):
    if isinstance(switch, PostgresSwitch):
        return request.getfixturevalue("postgres").emptied()
    return f"sqlite:///{data}/arena.db"


class Server:
    def __init__(self, data, database, switch):
        self.log = data.parent / "log"
        environ = {
            **os.environ,
            **switch.environ,
            "DATABASE_URL": database,
            "SECRET_KEY": SECRET,
            "HARENA_WORKERS": "1",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harena", "up", *PORTS, "--no-demo", "--data", str(data)],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        said = ""
        for line in self.process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found, said + self.log.read_text()
        self.url = found[0]

    def stop(self):
        """What it said on stderr from start to end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=SOON_S)
        said = self.log.read_text()
        assert self.process.returncode == 0, said
        return said


@pytest.fixture
def server(data, database, switch):
    pytest.importorskip("gymnasium")
    server = Server(data, database, switch)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()


def until(look):
    end = time.monotonic() + SOON_S
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def send(client, number):
    fields = {"env_id": ENV, "algorithm": f"A{number}", "user_id": "ann"}
    return client.post("/api/submit/", files={"file": ("agent.py", AGENT % number)}, data=fields)


def status(client, submission_id):
    answer = client.get(f"/api/results/{submission_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["status"]


@pytest.mark.slow
def test_a_read_only_database_is_503_with_the_reason_and_all_that_was_sent_is_ranked_afterwards(server, switch):
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        first = send(client, 0).json()["id"]
        until(lambda: status(client, first) == "completed")
        sent = [send(client, number).json()["id"] for number in range(1, 3)]
        until(lambda: "processing" in {status(client, one) for one in sent})
        switch.make_read_only()
        refused = until(lambda: answer if (answer := send(client, 9)).status_code != 200 else None)
        assert (refused.status_code, refused.json()["code"]) == (503, "read_only"), refused.text
        assert "read-only" in refused.json()["detail"].lower()
        assert int(refused.headers["Retry-After"]) > 0
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert "read-only" in " ".join(health.json()["problems"]).lower()
        assert "A0" in {entry["algorithm"] for entry in client.get("/api/leaderboard/", params={"env_id": ENV}).json()}
        assert status(client, first) == "completed"
        time.sleep(2)  # so long that whoever holds a job tries to end it
        switch.make_writable()
        until(lambda: {status(client, one) for one in sent} == {"completed"})
        assert client.get("/health").json()["status"] == "healthy"
        last = send(client, 3).json()["id"]
        until(lambda: status(client, last) == "completed")
        board = [entry["algorithm"] for entry in client.get("/api/leaderboard/", params={"env_id": ENV}).json()]
        assert sorted(set(board) - {"A9"}) == ["A0", "A1", "A2", "A3"]
    said = server.stop()
    assert "Traceback" not in said, said
    assert "read-only" in said.lower()


def test_a_write_to_a_read_only_server_writes_nothing_and_works_again_later(postgres):
    store = Store(postgres.emptied())
    store.environments.put(ENV, "verified")
    job = store.jobs.enqueue("work", {})
    switch = PostgresSwitch(postgres)
    switch.make_read_only()
    try:
        for write in (lambda: submit(store), lambda: store.jobs.claim("work", "w"), lambda: store.jobs.cancel(job)):
            with pytest.raises(ReadOnly, match="read-only"):
                write()
        assert store.database.problem()
        assert store.submissions.of("ann") == []
        Store(store.database.engine.url.render_as_string(hide_password=False)).close()  # reading needs no more
    finally:
        switch.make_writable()
    assert not store.database.problem()
    assert submit(store).version == 1
    assert store.jobs.claim("work", "w").id == job
    store.close()


ORDINARY = """
import os, sys
folder = sys.argv[1]
from harena.arena.db.models import ReadOnly
from harena.arena.db.store import Store
from support.entries import ENV, submit

store = Store(f"sqlite:///{folder}/arena.db")
store.environments.put(ENV, "verified")
store.close()
if os.geteuid() == 0:  # which may write to every file; after the imports, which may be in root's home
    os.chown(folder, 65534, 65534)
    os.chown(f"{folder}/arena.db", 65534, 65534)
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
os.chmod(f"{folder}/arena.db", 0o444)
store = Store(f"sqlite:///{folder}/arena.db")
for _ in range(2):
    try:
        submit(store)
        raise SystemExit("it was written")
    except ReadOnly:
        assert store.submissions.of("ann") == []
assert "read-only" in store.database.problem()
for name in os.listdir(folder):  # SQLite has made two more of the same mode
    os.chmod(f"{folder}/{name}", 0o644)
assert store.database.problem() == ""
assert submit(store).version == 1
store.close()
"""


def test_a_file_that_may_not_be_written_is_read_and_is_written_once_it_may_be():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # pytest's own is root's alone
        command = [sys.executable, "-c", ORDINARY, folder]
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode == 0, done.stderr


def test_a_connection_that_takes_no_changes_is_read_only(tmp_path):
    """SQLite's own switch, which answers as a file does that may not be written."""
    store = Store(f"sqlite:///{tmp_path}/arena.db")
    store.environments.put(ENV, "verified")
    with store.begin() as connection:
        driver = connection.connection.dbapi_connection
    driver.execute("PRAGMA query_only=1")
    with pytest.raises(ReadOnly, match="read-only"):
        submit(store)
    assert store.submissions.of("ann") == []
    assert submit(store).version == 1  # by a new connection
    store.close()
    with sqlite3.connect(tmp_path / "arena.db") as connection:
        assert connection.execute("SELECT count(*) FROM submissions").fetchone() == (1,)
    connection.close()
