"""A host's choices are checked before anything is opened, and no two arenas share a secret that nobody chose."""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harena.api import cli as api_cli
from harena.arena import variables
from harena.arena.lock import FolderInUse, FolderLock
from harena.arena.settings import EnvironmentSettings, Settings
from harena.errors import SpecError
from harena.match.result import Clock

# ---- the host's ----


ROOT = Path(__file__).parents[2]


def test_the_embedded_default_makes_its_secret_once_and_keeps_it_to_itself(tmp_path):
    one, two = Settings.from_env(tmp_path / "a", {}), Settings.from_env(tmp_path / "a", {})
    other = Settings.from_env(tmp_path / "b", {})
    assert one == two
    assert one.secret_key != other.secret_key
    assert stat.S_IMODE((tmp_path / "a" / "secret.key").stat().st_mode) == 0o600
    assert one.database_url == f"sqlite:///{tmp_path}/a/arena.db"
    assert (one.anonymous_submit, one.anonymous_read) == (False, True)
    assert one.secret_key.decode() not in repr(one)


def test_a_database_of_ones_own_needs_a_secret_of_ones_own(tmp_path):
    elsewhere = {"DATABASE_URL": "postgresql+psycopg://db/arena"}
    with pytest.raises(SpecError, match="SECRET_KEY is not set"):
        Settings.from_env(tmp_path, elsewhere)
    assert not (tmp_path / "secret.key").exists()
    given = Settings.from_env(tmp_path, elsewhere | {"SECRET_KEY": "s" * 32})
    assert (given.secret_key, given.database_url) == (b"s" * 32, elsewhere["DATABASE_URL"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SECRET_KEY", "short"),
        ("HARENA_PER_DAY", "-1"),
        ("HARENA_PER_DAY", "1e9"),
        ("HARENA_WORKERS", "two"),
        ("HARENA_ANONYMOUS_READ", "perhaps"),
        ("HARENA_MAX_QUEUED", "9" * 30),
        ("SECRET_KEY", "s" * 5000),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path, name, value):
    with pytest.raises(SpecError, match=name):
        Settings.from_env(tmp_path, {name: value})


def test_the_hosts_numbers(tmp_path):
    chosen = Settings.from_env(
        tmp_path,
        {"HARENA_PER_DAY": "5", "HARENA_AT_ONCE": "0", "HARENA_ANONYMOUS_SUBMIT": "yes", "HARENA_WORKERS": "1"},
    )
    assert (chosen.quota.per_day, chosen.quota.at_once, chosen.anonymous_submit, chosen.workers) == (5, None, True, 1)


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    Settings.from_env(tmp_path, {})
    (tmp_path / "secret.key").chmod(0o644)
    with pytest.raises(SpecError, match="chmod 600"):
        Settings.from_env(tmp_path, {})


def test_a_link_in_place_of_the_secret_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("s" * 64)
    (tmp_path / "secret.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        Settings.from_env(tmp_path, {})


# ---- an environment's ----


def test_settings_of_an_environment_come_back_as_they_were():
    settings = EnvironmentSettings.parse({"title": "Pole", "episodes": 3, "move_s": 1, "model": "elo"})
    assert (settings.episodes, settings.clock) == (3, Clock(start_s=30, move_s=1, bank_s=0, match_s=300))
    assert EnvironmentSettings.parse(settings.as_json()) == settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("episodes", 0),
        ("episodes", 10**6),
        ("episodes", "20"),
        ("move_s", 0),
        ("move_s", float("nan")),
        ("bank_s", float("nan")),
        ("upkeep_s", float("nan")),
        ("match_s", 1e9),
        ("upkeep_s", float("inf")),
        ("memory_mb", 1),
        ("title", "t" * 201),
        ("title", None),
        ("owners_meet", 1),
        ("model", "glicko"),
        ("episode", 3),
    ],
)
def test_a_field_that_cannot_be_is_named(field, value):
    with pytest.raises(SpecError, match=field):
        EnvironmentSettings.parse({field: value})


# ---- one process for a folder ----

HOLDER = """
import sys
from pathlib import Path
from harena.arena.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_serves_the_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=f"process {holder.pid} "):
            FolderLock(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    with FolderLock(tmp_path):  # the kernel has let it go
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_that_was_released_can_be_taken_again(tmp_path):
    lock = FolderLock(tmp_path)
    lock.release()
    lock.release()
    FolderLock(tmp_path).release()


def test_the_docs_have_the_table_of_variables():
    assert variables.table() in (ROOT / "docs" / "arena.md").read_text()


@pytest.mark.parametrize("package", ["arena", "api"])
def test_one_module_reads_the_environment(package):
    readers = {
        path.name
        for path in (ROOT / "src" / "harena" / package).rglob("*.py")
        if re.search(r"os\.(environ\b(?!\.setdefault)|getenv)", path.read_text())
    }
    assert readers <= {"variables.py"}


def test_a_variable_that_is_not_in_the_table_cannot_be_read():
    with pytest.raises(KeyError, match="HARENA_ODD"):
        variables.Environ({"HARENA_ODD": "1"}).text("HARENA_ODD")


def test_help_names_every_variable_and_takes_the_executors_port(monkeypatch):
    monkeypatch.setenv("EXECUTOR_PORT", "50999")
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    api_cli.fill("up", parser)
    assert all(name in parser.format_help() for name in variables.VARIABLES)
    assert parser.parse_args([]).grpc_port == 50999
    assert parser.parse_args(["--grpc-port", "off"]).grpc_port is None
    monkeypatch.setenv("EXECUTOR_PORT", "many")
    refused = argparse.ArgumentParser()
    api_cli.fill("up", refused)
    with pytest.raises(SystemExit):
        refused.parse_args([])
