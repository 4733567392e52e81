from __future__ import annotations

import hashlib
import os
import threading

import pytest

from harena.arena.db import files
from harena.arena.db.files import FileDamaged, FileMissing, FileStore, FileTooLarge
from harena.arena.db.models import StorageFull
from harena.errors import SpecError


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "files")


@pytest.mark.parametrize("data", [b"", b"\0", b"import os\n", bytes(range(256)) * 1000])
def test_what_was_put_comes_back_under_its_sha256(store, data):
    digest = store.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert store.get(digest) == data
    assert store.has(digest)


def test_the_same_bytes_are_kept_once(store):
    assert store.put(b"twice") == store.put(b"twice")
    kept = [name for _, _, names in os.walk(store.root) for name in names]
    assert len(kept) == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a" * 63,
        "a" * 65,
        "A" * 64,
        "g" * 64,
        "a" * 63 + "\n",
        "a" * 64 + "\n",
        "a" * 63 + "\0",
        "../" + "a" * 61,
        "aa/" + "a" * 61,
        "٠" * 64,
        "incoming",
        None,
        7,
        b"a" * 64,
        ["a" * 64],
    ],
)
def test_nothing_but_a_digest_is_a_name(store, name):
    for call in (store.get, store.has, store.retire, store.restore, store.purge):
        with pytest.raises(SpecError):
            call(name)


def test_more_than_the_cap_is_neither_taken_nor_given(store):
    digest = store.put(b"x" * 100)
    assert store.get(digest, max_bytes=100) == b"x" * 100
    with pytest.raises(FileTooLarge, match="100 bytes; at most 99"):
        store.get(digest, max_bytes=99)
    with pytest.raises(FileTooLarge):
        store.put(b"y" * 101, max_bytes=100)
    assert not store.has(hashlib.sha256(b"y" * 101).hexdigest())


def test_a_missing_file_is_said_to_be_missing(store):
    with pytest.raises(FileMissing):
        store.get("0" * 64)
    with pytest.raises(FileMissing):
        store.size_bytes("0" * 64)
    assert not store.has("0" * 64)


def test_damage_is_noticed_and_repaired_by_putting_again(store):
    digest = store.put(b"good bytes")
    (store.root / digest[:2] / digest[2:]).write_bytes(b"evil bytes")
    with pytest.raises(FileDamaged):
        store.get(digest)
    store.put(b"good bytes")
    assert store.get(digest) == b"good bytes"


def test_links_and_folders_in_place_of_a_file_are_not_followed(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    place = store.root / digest[:2] / digest[2:]
    place.parent.mkdir()
    place.symlink_to(secret)
    with pytest.raises(FileDamaged):
        store.get(digest)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(FileDamaged):
        store.get(digest)


def test_a_write_that_fails_leaves_nothing_behind(store, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(StorageFull):
            store.put(b"no room")
    assert [name for _, _, names in os.walk(store.root) for name in names] == []
    assert store.get(store.put(b"no room")) == b"no room"


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_writes_is_not(store):
    stale, fresh = store.root / "incoming" / "stale", store.root / "incoming" / "fresh"
    stale.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(stale, (0, 0))
    FileStore(store.root)
    assert not stale.exists()
    assert fresh.exists()


def test_threads_that_put_the_same_file_agree(store):
    digests = []
    threads = [threading.Thread(target=lambda: digests.append(store.put(b"same" * 10000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 8
    assert len(set(digests)) == 1
    assert store.get(digests[0]) == b"same" * 10000


def test_others_on_the_host_cannot_read_the_files(store):
    digest = store.put(b"an owner's code")
    assert (store.root / digest[:2] / digest[2:]).stat().st_mode & 0o077 == 0
    assert (store.root / digest[:2]).stat().st_mode & 0o077 == 0
