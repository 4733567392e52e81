"""Records of live boxes on this machine: one small file each, removed by the box's keeper when the box ends.

A box whose host process was killed ends by itself, and its keeper cleans up. Only when both were killed at once does
something stay behind (an empty cgroup, the record); the next start sweeps it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
from pathlib import Path

from harena.backends.local import variables
from harena.backends.local.launch import cgroups
from harena.errors import IsolationUnavailable

BOX_FOLDER = "harena-box-"
"""What the name of a restricted box's folder begins with."""


@functools.cache
def folder() -> Path:
    uid = os.geteuid()
    runtime = variables.runtime_folder()
    if uid == 0 and os.access("/run", os.W_OK):
        path = Path("/run/harena")
    elif runtime and os.access(runtime, os.W_OK):
        path = Path(runtime, "harena")
    else:
        path = Path("/tmp", f"harena-{uid}")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise _unwritable(path, error) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != uid or info.st_mode & 0o077:
        raise IsolationUnavailable(
            f"{path} belongs to somebody else", fix="remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    return path


def record(box: str, cgroups: list[Path]) -> Path:
    """Write the owner of the box and the paths of its cgroups and its folder, which a later sweep may not find
    otherwise."""
    path = folder() / box
    try:
        path.write_text("\n".join([f"{os.getpid()} {_started(os.getpid())}", *map(str, cgroups)]) + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> IsolationUnavailable:
    return IsolationUnavailable(
        f"{path}, where live boxes are recorded, cannot be written: {error.strerror}",
        fix="set XDG_RUNTIME_DIR to a folder of yours that can be written, or mount a tmpfs there",
    )


def sweep() -> int:
    """Remove leftovers of boxes whose owner and keeper were killed. Returns the number of boxes."""
    swept = 0
    if _started(os.getpid()) == "gone":
        return 0  # without /proc every owner looks gone
    for path in folder().iterdir():
        try:
            owner, *groups = path.read_text().splitlines()
            pid, started = owner.split()
        except (OSError, ValueError):
            continue
        if _started(int(pid)) == started:
            continue
        for group in groups:
            if os.path.basename(group).startswith(BOX_FOLDER):
                with contextlib.suppress(RecursionError):  # folders in folders; nobody is left who could add one
                    shutil.rmtree(group, ignore_errors=True)
            else:
                cgroups.remove(Path(group))
        if not any(map(os.path.exists, groups)):
            path.unlink(missing_ok=True)
            swept += 1
    return swept


def owners() -> tuple[list[int], int]:
    """The process of each recorded box that it belongs to, and how many boxes have lost theirs."""
    living: list[int] = []
    lost = 0
    for path in folder().iterdir():
        try:
            pid, started = path.read_text().splitlines()[0].split()
        except (OSError, ValueError, IndexError):
            continue
        if _started(int(pid)) == started:
            living.append(int(pid))
        else:
            lost += 1
    return living, lost


def _started(pid: int) -> str:
    """Start time of a process, because its pid may have been reused."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return "gone"
