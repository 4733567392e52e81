"""Contents that journals of one folder refer to, stored once by their SHA-256 in `blobs/` beside them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from harena.errors import JournalBroken


class Blobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "blobs"

    def put(self, digest: str, data: bytes, *, sync: bool) -> int:
        """Store contents, and return how many bytes that took. A file is complete as soon as it has its name."""
        path = self._path(digest)
        with contextlib.suppress(OSError):
            if os.lstat(path).st_size == len(data):
                return 0
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{secrets.token_hex(8)}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        return len(data)

    def get(self, digest: str, size: int) -> bytes:
        """Return contents. Raises JournalBroken if they are missing or were changed."""
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise JournalBroken(f"the contents {digest} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size != size:
                raise JournalBroken(f"the contents {digest} have another size than recorded")
            data = file.read(size + 1)
        if hashlib.sha256(data).hexdigest() != digest:
            raise JournalBroken(f"the contents {digest} were changed")
        return data

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest
