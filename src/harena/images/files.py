"""Files of the store: locks that end with their process, and writes that are complete or absent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

from harena.images.errors import ImageStoreError

POLL_S = 0.05
REMOVE_TRIES = 20
MAX_JSON = 1 << 20
"""Bytes of a record."""


@contextlib.contextmanager
def explained(what: str) -> Generator[None]:
    """Turn errors of the operating system into ImageStoreError, with the fix."""
    try:
        yield
    except OSError as error:
        raise store_error(error, what) from None


def store_error(error: OSError, what: str) -> ImageStoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why = {errno.EDQUOT: "the disk quota is used up", errno.EFBIG: "files may not be that large"}
        reason = why.get(error.errno, "the disk is full")
        return ImageStoreError(
            f"{what}: {reason}; free space, run `harena image gc`, or set HARENA_IMAGES to another disk"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ImageStoreError(f"{what}: {error.strerror}; set HARENA_IMAGES to a folder of yours")
    return ImageStoreError(f"{what}: {error.strerror or error}")


def open_locked(path: Path, *, shared: bool = False, wait: bool = True, create: bool = False) -> int | None:
    """Return a file descriptor that holds a lock on the file that has this path.

    None: somebody else holds it (without `wait`), or the file is not there (without `create`). A file that was removed
    or replaced before the lock was granted does not count."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    while True:
        try:
            fd = os.open(path, flags, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            if create:
                raise
            return None
        try:
            fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
            if is_at(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def is_at(fd: int, path: Path) -> bool:
    """Whether the open file still has this path."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    mine = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def wait_locked(path: Path, *, is_over: Callable[[], bool], on_wait: Callable[[], None]) -> int | None:
    """Return the locked file, made if need be; None as soon as `is_over`. Waits for another process without blocking
    signals and cancellation, which `is_over` may raise."""
    pause_s = POLL_S / 10
    while not is_over():
        fd = open_locked(path, wait=False, create=True)
        if fd is not None:
            return fd
        on_wait()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, POLL_S)
    return None


def write_atomic(path: Path, data: bytes, *, scratch: Path) -> None:
    """Write a file that is complete or absent after a crash, whoever cut it. `scratch` is on the same disk."""
    temporary = scratch / f"file-{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # says that its writer lives
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_disk(path: Path) -> None:
    """Wait until everything that was written to the disk of `path` is on it."""
    import ctypes

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a folder and what is in it, also folders that their owner may not write to. Follows no link."""

    def allow(function: Any, name: str, exc: Any) -> None:
        parent = os.path.dirname(name)
        for folder in (parent, name):
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.lstat(folder).st_mode):
                    os.chmod(folder, 0o700)
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(name) and not os.path.islink(name):
                shutil.rmtree(name)
            else:
                os.unlink(name)

    try:
        for tries_left in range(REMOVE_TRIES, -1, -1):
            try:
                shutil.rmtree(path, onerror=allow)
                return
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                if error.errno != errno.ENOTEMPTY or not tries_left:  # a process that is just ending may still write
                    raise
                time.sleep(POLL_S)
    except RecursionError:  # deeper than Python's stack
        done = subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, check=False)
        if done.returncode != 0:
            raise OSError(errno.EIO, "cannot be removed", str(path)) from None


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            fields: object = json.loads(file.read(MAX_JSON))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None
