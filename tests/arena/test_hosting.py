"""What hosts do on the command line: environments of their own, backups of a running arena, and restoring them."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import sys
import tarfile
import threading

import pytest

from harena import cli
from harena.arena import audit, backup
from harena.arena.arena import Arena
from harena.arena.db.store import Store
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.errors import SpecError

NIM = """
from harena.match.games.tictactoe import TicTacToe


class Nim(TicTacToe):
    "A game of the host's own."
"""


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    Store(Settings.from_env(folder, {}).database_url).close()
    return folder


@pytest.fixture
def nim(tmp_path, monkeypatch):
    name = f"nim{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(NIM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARENA_GAMES", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return f"{name}:Nim"


def test_a_game_of_the_hosts_own_is_added_and_played(data, nim, capsys, monkeypatch):
    options = ["--data", str(data), "--title", "Nim", "--set", "games_target=4", "--set", "owners_meet=true"]
    assert cli.main(["envs", "add", nim, *options]) == 0
    assert "ladder, open" in capsys.readouterr().out
    monkeypatch.setenv("HARENA_GAMES", "")  # another process trusts what is stored
    with Arena(Settings.from_env(data, {"HARENA_WORKERS": "1"})) as arena:
        assert arena.store.environments.get(nim).settings["games_target"] == 4
        code = b"def act(observation):\n    return [c for c in range(9) if observation[c] == 0][0]\n"
        for owner in ("ann", "bob"):
            arena.submissions.submit([Upload(name="a.py", data=code)], owner=owner, env_id=nim)
        done = threading.Event()
        for _ in range(1200):
            if arena.store.matches.where(env_id=nim, limit=1) and arena.standings.count(nim):
                break
            done.wait(0.05)
        assert arena.standings.count(nim) == 2
    assert audit.latest(data, 10)[0]["what"] == f"envs add {nim}"


def test_an_environment_is_shown_closed_and_opened(data, capsys):
    assert cli.main(["envs", "add", "CartPole-v1", "--data", str(data)]) == 0
    assert cli.main(["envs", "close", "CartPole-v1", "--data", str(data)]) == 0
    capsys.readouterr()
    assert cli.main(["envs", "show", "CartPole-v1", "--data", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["enabled"] is False
    for wrong in (["add"], ["add", "Nowhere-v0"], ["add", "os:system"], ["add", "CartPole-v1", "--set", "episodes=0"]):
        assert cli.main(["envs", *wrong, "--data", str(data)]) != 0
        assert capsys.readouterr().err.count("\n") == 1


def test_a_backup_of_an_arena_that_runs_is_one_state_and_can_be_restored(data, tmp_path):
    archive, again = tmp_path / "arena.tar.gz", tmp_path / "restored"
    with Arena(Settings.from_env(data, {"HARENA_WORKERS": "1"})) as arena:
        arena.put_environment("CartPole-v1", enabled=True)
        stop = threading.Event()

        def submit():
            number = 0
            while not stop.is_set():
                code = f"def act(observation):\n    return {number % 2}  # {number}\n".encode()
                arena.submissions.submit(
                    [Upload(name="a.py", data=code)], owner=f"o{number}", env_id="CartPole-v1", algorithm="A"
                )
                number += 1
                stop.wait(0.02)

        busy = threading.Thread(target=submit)
        busy.start()
        try:
            assert cli.main(["backup", str(archive), "--data", str(data)]) == 0
        finally:
            stop.set()
            busy.join()
    assert archive.stat().st_mode & 0o077 == 0
    assert cli.main(["restore", str(archive), "--data", str(again)]) == 0
    with sqlite3.connect(again / "arena.db") as database:
        digests = [row[0] for row in database.execute("SELECT digest FROM submissions")]
    database.close()
    assert all((again / "files" / digest[:2] / digest[2:]).is_file() for digest in digests)
    assert (again / "secret.key").read_bytes() == (data / "secret.key").read_bytes()
    Arena(Settings.from_env(again, {})).stop()


def test_a_backup_replaces_nothing_and_a_restore_overwrites_nothing(data, tmp_path):
    taken = tmp_path / "mine.tar.gz"
    taken.write_text("mine")
    with pytest.raises(SpecError, match="exists already"):
        backup.backup(data, taken)
    archive = tmp_path / "arena.tar.gz"
    backup.backup(data, archive)
    with pytest.raises(SpecError, match="not empty"):
        backup.restore(archive, data)
    assert taken.read_text() == "mine"


def members(*names, kind=tarfile.REGTYPE, link=""):
    made = [("harena-backup.json", b'{"format": 1}', tarfile.REGTYPE, "")]
    return [*made, *((name, b"x", kind, link) for name in names)]


@pytest.mark.parametrize(
    "content",
    [
        members("../outside"),
        members("/etc/passwd"),
        members("files/../../outside"),
        members("files/./x"),
        members("authorized_keys"),
        members("files/a", kind=tarfile.SYMTYPE, link="/etc"),
        members("files/a", kind=tarfile.LNKTYPE, link="/etc/passwd"),
        members("files/a", kind=tarfile.FIFOTYPE),
        members("files/a", "files/a"),
        [("arena.db", b"x", tarfile.REGTYPE, "")],
        [("harena-backup.json", b'{"format": 99}', tarfile.REGTYPE, "")],
        [("harena-backup.json", b"[" * 50_000, tarfile.REGTYPE, "")],
        members("arena.db"),
    ],
)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, content):
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for name, data, kind, link in content:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(data))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(Exception) as refused:
        backup.restore(archive, tmp_path / "new" / "data")
    assert "harena" in type(refused.value).__module__
    (tmp_path / "new").rmdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_cut_archive_is_refused(data, tmp_path):
    archive = tmp_path / "arena.tar.gz"
    backup.backup(data, archive)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(SpecError, match="damaged"):
        backup.restore(cut, tmp_path / "new")
    assert not (tmp_path / "new").exists()
