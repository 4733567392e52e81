"""A disk that is full, a database that is damaged, a folder that is none: said in one sentence, and nothing is changed."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

import httpx
import pytest

from harena import cli
from harena.arena.arena import Arena
from harena.arena.settings import Settings

SOON_S = 120.0
PORTS = ["--port", "0", "--ui-port", "off", "--grpc-port", "off", "--metrics-port", "off"]
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]
INSIDE = ["nsenter", "--user", "--mount", "--preserve-credentials"]
AGENT = b"def act(observation):\n    return 0\n"


@pytest.fixture
def refused(capfd):
    """Starts it in this process, which it must not come to serve in."""

    def run(folder):
        code = cli.main(["up", *PORTS, "--no-demo", "--data", str(folder)])
        return code, capfd.readouterr().err

    return run


@pytest.fixture
def stored(tmp_path):
    """The folder of an arena that was stopped."""
    folder = tmp_path / "data"
    arena = Arena(Settings.from_env(folder, {}))
    arena.put_environment("CartPole-v1")
    arena.stop()
    with sqlite3.connect(folder / "arena.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return folder


def overwritten(file):
    with open(file, "r+b") as database:
        database.seek(4096 * 3)
        database.write(b"\xa5" * 4096 * 8)


def truncated(file):
    with open(file, "r+b") as database:
        database.truncate(file.stat().st_size // 2)


def replaced(file):
    file.write_bytes(b"no database at all" * 100)


def without_a_column(file):
    with sqlite3.connect(file) as connection:
        connection.execute("ALTER TABLE matches DROP COLUMN reason")
    connection.close()


def without_a_table(file):
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TABLE ratings")
    connection.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (overwritten, "is damaged"),
        (truncated, "is cut short"),
        (replaced, "is not an SQLite database"),
        (without_a_column, "the table matches lacks the column reason"),
        (without_a_table, "the database lacks the table ratings"),
    ],
)
def test_a_damaged_database_is_refused_in_one_sentence_and_left_as_it_is(refused, stored, damage, words):
    database = stored / "arena.db"
    damage(database)
    before = hashlib.sha256(database.read_bytes()).hexdigest()
    code, said = refused(stored)
    assert code != 0
    assert words in said
    assert said.count("\n") == 1, said
    assert hashlib.sha256(database.read_bytes()).hexdigest() == before


def test_data_that_is_a_file_or_below_one_is_refused(refused, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "data"):
        code, said = refused(path)
        assert code == 2
        assert "--data names a folder" in said
        assert said.count("\n") == 1
    assert file.read_text() == "mine"


def in_a_mount(options, folder, *command):
    """Runs the command where `folder` is a file system of its own."""
    mount = f"mount -t tmpfs -o {options} none {folder}"
    return [*NAMESPACES, "sh", "-c", f'{mount} && exec "$@"', "sh", *command]


def mountable():
    try:
        return subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not mountable(), reason="host: user namespaces are off")


@needs_mounts
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    command = [sys.executable, "-m", "harena.cli", "up", *PORTS, "--data", str(folder)]
    done = subprocess.run(in_a_mount("ro", folder, *command), capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode == 2, done.stderr
    assert "Read-only file system" in done.stderr
    assert done.stderr.count("\n") == 1


class Started:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ""
        for line in self.process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        self.url = re.search(r"http://127\.0\.0\.1:\d+", said)[0]

    def stopped(self):
        """What it said on stderr from start to end."""
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=SOON_S)[1]
        assert self.process.returncode == 0, said
        return said


@pytest.fixture
def started():
    made = []

    def start(command):
        made.append(Started(command))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@needs_mounts
def test_a_full_disk_is_507_with_the_reason_and_a_degraded_health(started, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    harena = [sys.executable, "-m", "harena.cli", "up", *PORTS, "--no-demo", "--data", str(folder)]
    up = started(in_a_mount("size=12m", folder, *harena))
    with httpx.Client(base_url=up.url, timeout=60, trust_env=False) as client:
        assert client.get("/health").json() == {"status": "healthy", "version": "0.1.0", "problems": []}
        refused = None
        for number in range(30):
            weights = number.to_bytes(2, "big") * 1_000_000
            files = [("files", ("agent.py", AGENT)), ("files", ("weights.bin", weights))]
            answer = client.post("/api/submit/", files=files)
            if answer.status_code != 200:
                refused = answer
                break
        assert refused is not None
        assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
        assert "space" in refused.json()["detail"] or "full" in refused.json()["detail"]
        fill = subprocess.run(
            [*INSIDE, f"--target={up.process.pid}", "sh", "-c", f"cat /dev/zero > {folder}/filler"], capture_output=True
        )
        assert b"No space left" in fill.stderr
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert "No space left on device" in health.json()["problems"][0]
        assert client.get("/api/leaderboard/").json() == []
    up.process.kill()
    said = up.process.communicate()[1]
    assert "Traceback" not in said, said


def test_stopping_during_an_upload_prints_no_traceback(started, tmp_path):
    harena = [sys.executable, "-m", "harena.cli", "up", *PORTS, "--no-demo", "--data", str(tmp_path / "data")]
    up = started(harena)
    host, port = up.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sender:
        head = "POST /api/submit/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        sender.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n".encode())
        time.sleep(0.3)
        said = up.stopped()
    assert "Traceback" not in said, said
    assert "Error" not in said, said


@pytest.fixture(autouse=True)
def _tools():
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("host: no unshare")
