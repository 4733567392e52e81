"""One process serves a data folder that holds the database. Guarantees: the second is refused and told who has it; the
lock ends with the process, however that ends. Processes whose database is a server's share a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from harena.errors import SpecError

NAME = "lock"


class FolderInUse(SpecError):
    """Another process serves this data folder: stop it, or choose another folder."""


class FolderLock:
    def __init__(self, data: Path, *, shared: bool = False) -> None:
        """`shared`: with others that share it. Raises FolderInUse."""
        self.path = data / NAME
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._handle, 32).decode("ascii", "replace").strip()
            os.close(self._handle)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise FolderInUse(f"{data} is served by {who} already: stop it, or choose another folder") from None
        if shared:
            return
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Again does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with contextlib.suppress(OSError):
                os.truncate(handle, 0)
            os.close(handle)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
