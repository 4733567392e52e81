"""Keeps installed sets of requirements: one folder for each, complete or absent.

    KEY/lib        what boxes show, read-only
    KEY/lock.txt   exact versions and hashes of the wheels, as pip's --require-hashes reads them
    KEY/set.json   what was asked for
    KEY.lock       locked exclusively by the installer and by `remove`, shared by every live box that shows the set
    KEY.partial    being installed; removed by the next installer if this one was killed

A set appears by one rename. Its files are hostile: they are mounted into boxes, and never imported or run by the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.errors import BoxError, IsolationUnavailable, Retry

KEY = re.compile(r"[0-9a-f]{32}")
MAX_ATTEMPTS = 5
MAX_NOTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSet:
    """An installed set."""

    key: str
    requirements: tuple[str, ...]
    python: str
    index: str
    packages: tuple[str, ...]
    """Exact versions, as name==version."""
    size_bytes: int
    used_at: float
    """Time of the last box that showed it, in seconds since 1970."""

    def as_json(self) -> dict[str, Any]:
        names = ("key", "requirements", "python", "index", "packages", "size_bytes", "used_at")
        return {name: getattr(self, name) for name in names}


class Held:
    """A complete set that nobody removes until `close`."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    @property
    def lib(self) -> Path:
        return self.folder / "lib"

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class PackageStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, key: str, install: Callable[[Path], None]) -> Held:
        """Return a set, installed by `install` into the folder that it is given if there is none yet.

        One process installs; others that want the same set wait for it."""
        self._prepare()
        for _ in range(MAX_ATTEMPTS):
            lock = self._open_lock(key)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if not (self.folder / key).is_dir():
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not (self.folder / key).is_dir():
                        self._install(key, install)
                    # The lock is let go of for a moment here, so the set is looked for once more.
                    fcntl.flock(lock, fcntl.LOCK_SH)
                if (self.folder / key).is_dir():
                    os.utime(lock)
                    return Held(self.folder / key, lock)
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
        raise BoxError("requirements: another process keeps removing them", retry=Retry.SAFE)

    def _install(self, key: str, install: Callable[[Path], None]) -> None:
        partial = self.folder / f"{key}.partial"
        discard(partial)
        partial.mkdir(mode=0o755)
        try:
            install(partial)
            seal(partial)
            partial.rename(self.folder / key)
        finally:
            discard(partial)

    def sets(self) -> list[PackageSet]:
        """Installed sets, the one used last first."""
        found: list[PackageSet] = []
        for entry in self._entries():
            if KEY.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):  # another process removes it
                    found.append(self._read(entry.name))
        return sorted(found, key=lambda one: -one.used_at)

    def remove(self, key: str) -> bool:
        """Remove a set. Returns False if a box shows it, or a process installs it."""
        lock = self._open_lock(key)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial = self.folder / f"{key}.partial"
            discard(partial)
            with contextlib.suppress(FileNotFoundError):
                # By a rename, so that a half-removed set is never found.
                (self.folder / key).rename(partial)
            discard(partial)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def collect(self, *, max_bytes: int = 0, unused_s: float = 0.0) -> list[PackageSet]:
        """Remove sets unused for longest, until `max_bytes` are left; none that was used within `unused_s`. What a
        killed installer left behind is removed as well."""
        for entry in self._entries():
            key = entry.name.removesuffix(".partial")
            if KEY.fullmatch(key) and key != entry.name and not (self.folder / key).exists():
                self.remove(key)
        left = self.sets()
        removed: list[PackageSet] = []
        total = sum(one.size_bytes for one in left)
        for one in reversed(left):
            if total <= max_bytes or time.time() - one.used_at < unused_s:
                break
            if self.remove(one.key):
                removed.append(one)
                total -= one.size_bytes
        return removed

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self.folder))
        except FileNotFoundError:
            return []

    def _read(self, key: str) -> PackageSet:
        folder = self.folder / key
        note: Mapping[str, Any] = {}
        with contextlib.suppress(OSError, ValueError), open(folder / "set.json", "rb") as file:
            note = json.loads(file.read(MAX_NOTE))
        try:
            used_at = (self.folder / f"{key}.lock").stat().st_mtime
        except FileNotFoundError:
            used_at = 0.0
        return PackageSet(
            key=key,
            requirements=tuple(map(str, note.get("requirements", ()))),
            python=str(note.get("python", "")),
            index=str(note.get("index", "")),
            packages=tuple(map(str, note.get("packages", ()))),
            size_bytes=sum(info.st_size for _, info in walk(folder)),
            used_at=used_at,
        )

    def _prepare(self) -> None:
        """Make the folder. One that others may write to is refused: they could replace what boxes import."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        info = self.folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise IsolationUnavailable(
                f"others may write to {self.folder}, or it is not a folder of this user",
                fix="set HARENA_PACKAGES to a folder of yours (chmod go-w)",
            )

    def _open_lock(self, key: str) -> int:
        return os.open(self.folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def write_note(folder: Path, *, requirements: Sequence[str], python: str, index: str, packages: Sequence[str]) -> None:
    note = {"requirements": [*requirements], "python": python, "index": index, "packages": [*packages]}
    (folder / "set.json").write_text(json.dumps(note))


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a folder, deepest last. Links are never followed."""
    pending = [str(folder)]
    while pending:
        for entry in os.scandir(pending.pop()):
            yield entry.path, entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)


def open_folders(folder: Path) -> None:
    """Let the owner enter every folder: modes come from a box."""
    pending = [str(folder)]
    while pending:
        path = pending.pop()
        os.chmod(path, 0o755)
        pending += [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]


def seal(folder: Path) -> None:
    """Leave plain files and folders that everybody may read and nobody may write."""
    open_folders(folder)
    folders = [str(folder)]
    for path, info in list(walk(folder)):
        if stat.S_ISDIR(info.st_mode):
            folders.append(path)
        elif stat.S_ISREG(info.st_mode):
            os.chmod(path, 0o555 if info.st_mode & 0o100 else 0o444)
        else:
            os.unlink(path)
    for path in folders:
        os.chmod(path, 0o555)


def discard(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    open_folders(folder)
    shutil.rmtree(folder)
