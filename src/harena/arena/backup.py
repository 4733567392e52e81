"""Backups of an arena while it runs, and restoring them.

Guarantees: a backup is one consistent state of the database with every file that it refers to, because the database is
copied first and files are only ever added; a folder is restored as a whole, into an empty place, or not at all. The
archive holds secrets (the season's seeds, the digests of keys, the host's key): only its owner may read it. Does not
back up a PostgreSQL database: pg_dump does, and this keeps its files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import harena
from harena.arena.db import integrity
from harena.errors import SpecError

DATABASE = "arena.db"
MANIFEST = "harena-backup.json"
KEPT = ("secret.key", "host.key", "audit.log")
FOLDERS = ("files", "replays")
INCOMING = "incoming"
FORMAT = 1
MAX_MEMBERS = 20_000_000
MAX_MANIFEST = 64 << 10


def backup(data: Path, target: Path) -> dict[str, int]:
    """Writes the archive, which is there as a whole or not at all. Returns how many files and bytes are in it."""
    if target.exists():
        raise SpecError(f"{target} exists already: choose another name")
    if not target.parent.is_dir():
        raise SpecError(f"{target.parent} is no folder")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    counted = {"files": 0, "bytes": 0}
    try:
        with os.fdopen(handle, "wb") as out, integrity.writing(str(target)):
            with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
                _fill(archive, data, counted)
            out.flush()
            os.fsync(out.fileno())
        os.link(name, target)  # does not replace what somebody else has put there
    except FileExistsError:
        raise SpecError(f"{target} exists already: choose another name") from None
    finally:
        os.unlink(name)
    return counted


def _fill(archive: tarfile.TarFile, data: Path, counted: dict[str, int]) -> None:
    embedded = (data / DATABASE).exists()
    about = {
        "format": FORMAT,
        "harena": harena.__version__,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "database": embedded,
    }
    _add_bytes(archive, MANIFEST, json.dumps(about).encode())
    if embedded:
        with tempfile.TemporaryDirectory(dir=data, prefix=".backup-") as place:
            copy = Path(place) / DATABASE
            _copy_database(data / DATABASE, copy)
            _add(archive, copy, DATABASE, counted)
    for path in _files(data):
        with contextlib.suppress(FileNotFoundError):  # what nothing refers to may go while this runs
            _add(archive, path, str(path.relative_to(data)), counted)


def _copy_database(source: Path, copy: Path) -> None:
    """By SQLite itself: one state, while others write."""
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=60)) as live,
        contextlib.closing(sqlite3.connect(copy)) as made,
    ):
        live.backup(made)
        made.execute("PRAGMA journal_mode=DELETE")


def _files(data: Path) -> Iterator[Path]:
    for name in KEPT:
        if (data / name).is_file():
            yield data / name
    for folder in FOLDERS:
        for root, folders, names in os.walk(data / folder):
            if Path(root) == data / folder and INCOMING in folders:
                folders.remove(INCOMING)
            for name in names:
                path = Path(root) / name
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def _add(archive: tarfile.TarFile, path: Path, name: str, counted: dict[str, int]) -> None:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o600, int(time.time())
        archive.addfile(info, file)
    counted["files"] += 1
    counted["bytes"] += size


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    archive.addfile(info, io.BytesIO(data))


def restore(source: Path, data: Path) -> dict[str, int]:
    """Unpacks an archive into a folder that is missing or empty. The database is checked before it counts."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise SpecError(f"{data} is not empty: restore into a new folder, then start the arena with --data")
    data.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=data.parent, prefix=f".{data.name}."))
    counted = {"files": 0, "bytes": 0}
    try:
        try:
            with integrity.writing(str(data)), tarfile.open(source, "r:gz") as archive:
                _unpack(archive, place, counted)
        except FileNotFoundError:
            raise SpecError(f"{source}: no such file") from None
        except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
            raise SpecError(f"{source} is no backup of an arena, or it is damaged: {error}") from None
        integrity.check_file(place / DATABASE)
        if data.exists():
            data.rmdir()
        os.rename(place, data)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return counted


def _unpack(archive: tarfile.TarFile, place: Path, counted: dict[str, int]) -> None:
    """Only plain files with names that a backup has. Somebody may have made the archive for us."""
    first = archive.next()
    if first is None or first.name != MANIFEST or first.size > MAX_MANIFEST:
        raise ValueError("it does not begin with a manifest")
    manifest = archive.extractfile(first)
    about = json.loads(manifest.read() if manifest else b"")
    if not isinstance(about, dict) or about.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise ValueError("this Harena does not know its format")
    while (member := archive.next()) is not None:
        if counted["files"] > MAX_MEMBERS or not member.isreg() or not _expected(member.name):
            raise ValueError(f"it has {member.name!r:.80}, which no backup has")
        target = place / member.name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = archive.extractfile(member)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            if content is not None:
                shutil.copyfileobj(content, out)
        counted["files"] += 1
        counted["bytes"] += member.size


def _expected(name: str) -> bool:
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts) and len(parts) <= 4
    return plain and (name in (DATABASE, *KEPT) or (len(parts) > 1 and parts[0] in FOLDERS))
