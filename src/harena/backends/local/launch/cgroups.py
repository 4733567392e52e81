"""Finds the cgroups this process may write, and creates cgroups for each box.

If none can be written (an ordinary user without a delegated subtree), native/watch.c and rlimits give the same
verdicts. Each box has its own folder and creates one below it for each execution.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from pathlib import Path

from harena.backends.local import variables
from harena.backends.local.launch import users
from harena.errors import IsolationUnavailable

ROOT = Path("/sys/fs/cgroup")
PREFIX = "harena-"


@dataclass(frozen=True, slots=True)
class Place:
    version: int
    """0: no cgroups, 1: separate memory and pids hierarchies, 2: the unified hierarchy."""
    parents: tuple[Path, ...] = ()

    def describe(self) -> str:
        return {0: "none writable", 1: "cgroup v1 memory and pids", 2: "cgroup v2"}[self.version]


@functools.cache
def find() -> Place:
    if variables.without_cgroups():
        return Place(0)
    own = _own_groups()
    unified = _v2(own.get("", "/"))
    if unified is not None:
        return Place(2, (unified,))
    parents = tuple(ROOT / name / own[name].lstrip("/") for name in ("memory", "pids") if name in own)
    if len(parents) == 2 and all(_can_make(parent) for parent in parents):
        return Place(1, parents)
    return Place(0)


def make(place: Place, box: str, uid: int | None) -> list[Path]:
    """Create the box's folders, owned by the guest's user so that the box can create its own below. Those of version 2
    do not delegate controllers yet: the keeper does that once no process is left in them."""
    folders: list[Path] = []
    try:
        for parent in place.parents:
            folder = parent / f"{PREFIX}{box}"
            folder.mkdir()
            folders.append(folder)
            if place.version == 2:
                (folder / "init").mkdir()
            for path in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control")[: 2 * place.version - 1]:
                if uid is not None:
                    os.chown(path, uid, uid)
    except OSError as error:
        for folder in folders:
            remove(folder)
        raise IsolationUnavailable(
            f"no cgroup could be made for a box: {error}", fix="HARENA_CGROUPS=off does without them"
        ) from None
    return folders


def words(place: Place, folders: list[Path]) -> list[str]:
    """Plan words for the keeper."""
    told: list[str] = []
    for folder in folders:
        told += ["cgroup", str(folder)]
        if place.version == 2:
            own = ROOT / _own_groups().get("", "/").lstrip("/")
            told += [
                "home",
                str(folder),
                "join",
                str(folder / "init" / "cgroup.procs"),
                "back",
                str(own / "cgroup.procs"),
            ]
    return told


def remove(folder: Path) -> None:
    """Remove a dead box's folder. A keeper that is still running may remove it first."""
    for path in (*folder.glob("*/"), folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def _own_groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}  # no cgroups in this kernel, or no /proc
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            groups[name] = path
    return groups


def _v2(path: str) -> Path | None:
    """A folder of the unified hierarchy where memory and pids can be given to children, if this process owns one."""
    if not (ROOT / "cgroup.controllers").exists():
        return None
    own = ROOT / path.lstrip("/")
    for folder in (own, own.parent):
        try:
            controllers = (folder / "cgroup.controllers").read_text().split()
            enabled = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            continue
        if {"memory", "pids"} <= set(enabled) and _can_make(folder):
            return folder
        if {"memory", "pids"} <= set(controllers) and _enable(folder) and _can_make(folder):
            return folder
    return None


def _enable(folder: Path) -> bool:
    try:
        (folder / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError:
        return False
    return True


def _can_make(parent: Path) -> bool:
    """Whether this process can create a folder there and give it to a guest."""
    probe = parent / f"{PREFIX}probe-{os.getpid()}"
    uid = users.choose()
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        os.chown(probe, os.geteuid() if uid is None else uid, os.getegid() if uid is None else uid)
    except OSError:
        return False
    finally:
        probe.rmdir()
    return True
