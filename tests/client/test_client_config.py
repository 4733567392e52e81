"""Where the arena is and who asks: arguments, variables, and the file that keeps a client's name."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from harena.client import config
from harena.errors import SpecError


@pytest.fixture
def folder(me, tmp_path):
    return tmp_path / "config"


def test_the_url_comes_from_the_argument_then_the_variable_then_the_default(monkeypatch):
    assert config.arena_url() == "http://127.0.0.1:8000"
    monkeypatch.setenv("HARENA_URL", "https://arena.example.org/")
    assert config.arena_url() == "https://arena.example.org"
    assert config.arena_url("localhost:9000") == "http://localhost:9000"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://a:b@host",
        "http://user@host",
        "http://x:99999",
        "http://[::1",
        "http://x/?q=1",
        "file:///etc",
    ],
)
def test_what_is_no_url_of_an_arena_is_refused(url):
    with pytest.raises(SpecError):
        config.arena_url(url)


def test_an_origin_is_scheme_host_and_port():
    assert config.origin("http://a/x") == config.origin("http://A:80/y")
    assert config.origin("http://a") != config.origin("https://a")
    assert config.origin("http://a:1") != config.origin("http://a:2")
    assert config.origin("http://a") != config.origin("http://a.evil")


@pytest.mark.parametrize("key", ["a b", "a\nX-Evil: 1", "ключ", "x" * 600])
def test_a_key_that_could_not_be_a_header_is_refused(key):
    with pytest.raises(SpecError):
        config.api_key(key)


def test_a_key_comes_from_the_argument_or_the_variable(monkeypatch):
    assert config.api_key() is None
    monkeypatch.setenv("HARENA_KEY", " hrn_1 ")
    assert config.api_key() == "hrn_1"
    assert config.api_key("hrn_2") == "hrn_2"


def test_the_name_is_made_on_first_use_kept_and_private(folder):
    assert config.client_id("http://127.0.0.1:8000", make=False) is None
    assert not folder.exists()
    made = config.client_id("http://127.0.0.1:8000", make=True)
    assert made == config.client_id("http://localhost:8000/", make=False)
    assert made != config.client_id("http://127.0.0.1:9000", make=False)
    assert stat.S_IMODE((folder / "client_id").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["client_id"]


def test_many_that_make_it_at_once_agree(folder):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(config.client_id("http://a", make=True))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 64, b"a" * 64 + b"\n" + b"b" * 100])
def test_a_file_that_we_did_not_write_is_refused_by_name(folder, content):
    folder.mkdir()
    (folder / "client_id").write_bytes(content)
    with pytest.raises(SpecError, match="client_id"):
        config.client_id("http://a", make=True)


def test_a_link_or_a_pipe_in_its_place_is_refused(folder):
    folder.mkdir()
    (folder / "client_id").symlink_to("/etc/hostname")
    with pytest.raises(SpecError, match="cannot be read"):
        config.client_id("http://a", make=True)
    (folder / "client_id").unlink()
    os.mkfifo(folder / "client_id")
    with pytest.raises(SpecError, match="client_id"):
        config.client_id("http://a", make=True)


@pytest.mark.parametrize("given", ["short", "with space 1", "a" * 65, "a\r\nX: 12345"])
def test_a_client_id_that_could_not_be_a_header_is_refused(given):
    with pytest.raises(SpecError):
        config.checked_client_id(given)


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARENA_CONFIG", str(tmp_path / "file" / "below"))
    with pytest.raises(SpecError, match="HARENA_CONFIG"):
        config.client_id("http://a", make=True)
