"""Content-addressed files: what every store of them offers (`ObjectStore`), and the store in a folder (`FileStore`).

Guarantees: a name is the sha256 of the bytes and nothing else, so no name from outside becomes a path; a file is there
as a whole or not at all, also after a loss of power; what is read is what was written, or an error. A file that is
retired can still be read until it is purged. Does not know who may read what.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harena.arena.db import integrity
from harena.arena.db.models import StoreError, digest_text, is_digest
from harena.errors import HarenaError

MAX_BYTES = 64 << 20
STALE_S = 3600.0
"""A temporary file this old was left by a process that died."""


class FileMissing(HarenaError):
    """Nothing is stored under that digest."""


class FileTooLarge(HarenaError):
    """More bytes than the cap of the call."""


class FileDamaged(HarenaError):
    """The stored bytes are not those that were put: restore the folder from a backup, or put the file again."""


class FilesUnavailable(StoreError):
    """The store of files does not answer or refuses us. What it keeps is not lost: try again later."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    digest: str
    size_bytes: int
    changed_at: float
    """When it was stored, or retired; seconds since 1970 by the clock of the store."""


class ObjectStore(Protocol):
    """Every method raises FilesUnavailable when the store cannot be reached, and StorageFull when it is full."""

    def put(self, data: bytes, *, max_bytes: int = MAX_BYTES) -> str:
        """Store the data and return its sha256. Raises FileTooLarge."""
        ...

    def get(self, digest: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        """Raises FileMissing, FileTooLarge, FileDamaged."""
        ...

    def has(self, digest: str) -> bool: ...

    def size_bytes(self, digest: str) -> int:
        """Raises FileMissing."""
        ...

    def link(self, digest: str, name: str, *, lifetime_s: int) -> str | None:
        """A signed URL that downloads the file from the store itself, under this name, for so long. None: the store
        has no address that clients could use."""
        ...

    def problem(self) -> str:
        """Why nothing can be stored now; empty: it can."""
        ...

    def kept(self) -> Iterator[KeptFile]: ...

    def retired(self) -> Iterator[KeptFile]: ...

    def retire(self, digest: str) -> None:
        """Set a file aside. It can still be read; `purge` deletes it and `restore` takes it back."""
        ...

    def restore(self, digest: str) -> None: ...

    def purge(self, digest: str) -> None:
        """Delete a retired file."""
        ...


class FileStore:
    """Files in a folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._incoming = self.root / "incoming"
        self._retired = self.root / "retired"
        self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._retired.mkdir(mode=0o700, exist_ok=True)
        self._remove_stale()

    def put(self, data: bytes, *, max_bytes: int = MAX_BYTES) -> str:
        """The sha256 of the data, under which it can be read from now on."""
        if len(data) > max_bytes:
            raise FileTooLarge(f"{len(data)} bytes; at most {max_bytes} are taken")
        digest = hashlib.sha256(data).hexdigest()
        if self._intact(digest, len(data)):
            return digest
        with integrity.writing("a file of the arena"):
            self._write(self._path(digest), data)
        return digest

    def _write(self, target: Path, data: bytes) -> None:
        if not target.parent.exists():
            target.parent.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(self.root)
        handle, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
        _sync_folder(target.parent)

    def get(self, digest: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        try:
            return self._read(self._path(digest), digest, max_bytes)
        except FileMissing:
            return self._read(self._retired / digest, digest, max_bytes)

    def _read(self, path: Path, digest: str, max_bytes: int) -> bytes:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise FileMissing(f"no file {digest}") from error
        except OSError as error:
            raise FileDamaged(f"{digest} cannot be read: {error.strerror}") from error
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileDamaged(f"{digest} is not a file")
            if status.st_size > max_bytes:
                raise FileTooLarge(f"{digest} has {status.st_size} bytes; at most {max_bytes} were asked for")
            data = file.read(max_bytes + 1)
        if hashlib.sha256(data).hexdigest() != digest:
            raise FileDamaged(f"{digest} has other bytes than were put")
        return data

    def has(self, digest: str) -> bool:
        return self._path(digest).is_file()

    def size_bytes(self, digest: str) -> int:
        for path in (self._path(digest), self._retired / digest):
            with contextlib.suppress(FileNotFoundError):
                return path.lstat().st_size
        raise FileMissing(f"no file {digest}")

    def link(self, digest: str, name: str, *, lifetime_s: int) -> str | None:
        return None

    def problem(self) -> str:
        return integrity.writable(self._incoming)

    # ---- garbage ----

    def kept(self) -> Iterator[KeptFile]:
        for folder in sorted(self.root.iterdir()):
            if len(folder.name) == 2 and folder.is_dir():
                yield from _listed(folder, folder.name)

    def retired(self) -> Iterator[KeptFile]:
        yield from _listed(self._retired)

    def retire(self, digest: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(digest))  # before the move: it is retired from now on
            os.replace(self._path(digest), self._retired / digest)

    def restore(self, digest: str) -> None:
        path = self._path(digest)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._retired / digest, path)
            _sync_folder(path.parent)

    def purge(self, digest: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._retired / digest_text(digest)).unlink()

    def _path(self, digest: str) -> Path:
        digest_text(digest)
        return self.root / digest[:2] / digest[2:]

    def _intact(self, digest: str, size: int) -> bool:
        try:
            self._read(self._path(digest), digest, size)
        except (FileMissing, FileDamaged, FileTooLarge):
            return False
        return True

    def _remove_stale(self) -> None:
        for entry in os.scandir(self._incoming):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < time.time() - STALE_S:
                    os.unlink(entry.path)


def _listed(folder: Path, prefix: str = "") -> Iterator[KeptFile]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            digest = prefix + entry.name
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and is_digest(digest):
                    yield KeptFile(digest, status.st_size, status.st_mtime)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
