"""Files by what is in them, in a folder. Guarantees: a name is the sha256 of the bytes and nothing else, so no name
from outside becomes a path; a file is there as a whole or not at all, also after a loss of power; what is read is what
was written, or an error. Does not know who may read what.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path

from harena.arena.db import integrity
from harena.arena.db.models import digest_text
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


class FileStore:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._incoming = self.root / "incoming"
        self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
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
            handle = os.open(self._path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
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

    def delete(self, digest: str) -> bool:
        """Whether it was there. Other rows may name the same digest: ask the database first."""
        try:
            self._path(digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, digest: str) -> Path:
        digest_text(digest)
        return self.root / digest[:2] / digest[2:]

    def _intact(self, digest: str, size: int) -> bool:
        try:
            self.get(digest, max_bytes=size)
        except (FileMissing, FileDamaged, FileTooLarge):
            return False
        return True

    def _remove_stale(self) -> None:
        for entry in os.scandir(self._incoming):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < time.time() - STALE_S:
                    os.unlink(entry.path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
