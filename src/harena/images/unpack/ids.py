"""User and group ids of image layers: who owns their files on disk, and the user namespace that sees them.

A layer is unpacked inside the user namespace that will later mount it. `Ids` names that namespace:

- **full**: 65,536 ids are mapped, so every file keeps the owner that the image gave it. Root takes a fixed range that
  belongs to nobody else. An ordinary user needs ranges in /etc/subuid and /etc/subgid, and newuidmap and newgidmap.
- **single**: one id is mapped. Root of the container is the calling user, and owns every file on disk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harena.errors import IsolationUnavailable

COUNT = 65536
"""Ids of a full map. A namespace that has itself only 65,536 gives away one less, because its root stays apart."""

BASE = 0x78000000
"""First host id of layers that root unpacked: above the users of boxes, below the ids that systemd reserves."""

_CAP_CHOWN, _CAP_SETGID, _CAP_SETUID = 0, 6, 7


@dataclass(frozen=True)
class IdMap:
    """One line of a uid_map or gid_map."""

    inside: int
    outside: int
    count: int

    def __str__(self) -> str:
        return f"{self.inside} {self.outside} {self.count}"


@dataclass(frozen=True)
class Ids:
    """The ids of a user namespace. Layers unpacked with one `Ids` are mounted with an equal one."""

    kind: Literal["full", "single"]
    uids: tuple[IdMap, ...]
    gids: tuple[IdMap, ...]
    helpers: bool = False
    """Maps are written by newuidmap and newgidmap, because the caller may not write them."""

    @property
    def name(self) -> str:
        """Name for folders: layers of different ids cannot be shared."""
        return "-".join([self.kind, *(str(line.outside) for line in self.uids)])

    @property
    def uid_map(self) -> str:
        return "".join(f"{line}\n" for line in self.uids)

    @property
    def gid_map(self) -> str:
        return "".join(f"{line}\n" for line in self.gids)

    @property
    def owner(self) -> tuple[int, int]:
        """Host uid and gid of the container's root."""
        return self.uids[0].outside, self.gids[0].outside

    @property
    def count(self) -> int:
        """Ids from 0 to this number, exclusive, exist inside, for users and groups."""
        return min(sum(line.count for line in self.uids), sum(line.count for line in self.gids))

    def write(self, pid: int) -> None:
        """Map the ids of a process that has just made its user namespace and still waits."""
        if self.helpers:
            for program, lines in (("newuidmap", self.uids), ("newgidmap", self.gids)):
                numbers = " ".join(map(str, lines)).split()
                done = subprocess.run(
                    [program, str(pid), *numbers], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
                )
                if done.returncode:
                    raise IsolationUnavailable(
                        f"{program} failed: {done.stderr.strip()[:200]}", fix="check /etc/subuid and /etc/subgid"
                    )
            return
        folder = Path(f"/proc/{pid}")
        try:
            if self.kind == "single":
                (folder / "setgroups").write_text("deny")
            # One write each: the kernel takes a map in a single call, and only once.
            (folder / "uid_map").write_text(self.uid_map)
            (folder / "gid_map").write_text(self.gid_map)
        except OSError as error:
            raise IsolationUnavailable(f"the ids of a user namespace cannot be mapped: {error.strerror}") from error

    @classmethod
    def single(cls) -> Ids:
        """One id: the caller becomes the container's root."""
        return cls("single", (IdMap(0, os.geteuid(), 1),), (IdMap(0, os.getegid(), 1),))

    @classmethod
    def full(cls) -> Ids | None:
        """All ids, where this host grants them to the caller, else None."""
        found = _of_root() if os.geteuid() == 0 else _of_user()
        return found if found and _works(found) else None

    @classmethod
    def of_host(cls) -> Ids:
        """Full where the host grants it, else single."""
        return cls.full() or cls.single()


@functools.cache
def _works(ids: Ids) -> bool:
    """Try the ids on a process: helpers without their setuid bit, or a container, may forbid what files promise."""
    code = "import ctypes, sys; print(ctypes.CDLL(None).unshare(0x10000000), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        if process.stdout.readline() != "0\n":
            return False
        try:
            ids.write(process.pid)
        except IsolationUnavailable:
            return False
    return True


def _of_root() -> Ids | None:
    needed = 1 << _CAP_CHOWN | 1 << _CAP_SETUID | 1 << _CAP_SETGID
    if _capabilities() & needed != needed:
        return None
    uids, gids = _range("uid"), _range("gid")
    if uids is None or gids is None:
        return None
    return Ids("full", (uids,), (gids,))


def _range(kind: str) -> IdMap | None:
    """Ids of this namespace for the container: the fixed range, or in a smaller namespace all but its root."""
    lines = [tuple(map(int, line.split())) for line in Path(f"/proc/self/{kind}_map").read_text().splitlines()]
    for first, _, count in lines:
        if first <= BASE and first + count >= BASE + COUNT:
            return IdMap(0, BASE, COUNT)
    # Adjacent lines are one range: rootless podman maps 0 to the user and 1 to 65535 to the user's further ids.
    start = stop = 0
    best = range(0)
    for first, _, count in sorted(lines):
        if first != stop:
            start = first
        stop = first + count
        usable = range(max(start, 1), stop)
        best = max(best, usable, key=len)
    if len(best) < COUNT - 1:
        return None
    return IdMap(0, best[-COUNT] if len(best) >= COUNT else best.start, min(len(best), COUNT))


def _of_user() -> Ids | None:
    if not shutil.which("newuidmap") or not shutil.which("newgidmap"):
        return None
    uids, gids = _granted("/etc/subuid"), _granted("/etc/subgid")
    if uids is None or gids is None:
        return None
    return Ids(
        "full",
        (IdMap(0, os.geteuid(), 1), IdMap(1, uids, COUNT - 1)),
        (IdMap(0, os.getegid(), 1), IdMap(1, gids, COUNT - 1)),
        helpers=True,
    )


def _granted(path: str) -> int | None:
    """First id of a range in /etc/subuid or /etc/subgid that is large enough; both files name the user."""
    uid = os.geteuid()
    names = {str(uid)}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(uid).pw_name)
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if name in names and first.isdecimal() and count.isdecimal() and int(count) >= COUNT - 1:
            return int(first)
    return None


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
