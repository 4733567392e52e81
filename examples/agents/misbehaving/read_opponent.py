"""Looks for the other's files, processes, memory, sockets and descriptors. Fails if it finds any."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

MINE = {Path(__file__).resolve().parent, Path(sys.prefix), Path(sys.base_prefix)}


def files():
    for top in ("/workspace", "/tmp", "/dev/shm", "/home", "/root", "/var", "/run"):
        for folder, below, names in os.walk(top):
            below[:] = [name for name in below if Path(folder, name) not in MINE]
            yield from (f"file {folder}/{name}" for name in names)


def processes():
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (os.getpid(), 1):
            continue
        yield f"process {name}"
    for name in ("mem", "environ", "maps"):
        with contextlib.suppress(OSError), open(f"/proc/1/{name}", "rb") as file:
            if file.read(16):
                yield f"/proc/1/{name} can be read"


def environment():
    for name, value in os.environ.items():
        if "HARENA" in name or "opponent" in value.lower():
            yield f"environment {name}"


def descriptors():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            mode = os.fstat(int(name)).st_mode
            if stat.S_ISDIR(mode):
                yield f"an open folder {name}: {os.readlink(f'/proc/self/fd/{name}')}"
    with contextlib.suppress(OSError), open("/proc/net/unix") as table:
        if any("/" in line.split()[-1] or "@" in line.split()[-1] for line in list(table)[1:]):
            yield "a named socket"


class Agent:
    def __init__(self):
        self.look()

    def look(self):
        for find in (*files(), *processes(), *environment(), *descriptors()):
            raise RuntimeError(f"FOUND {find}")

    def act(self, observation):
        self.look()
        return next(column for column in (3, 2, 4, 1, 5, 0, 6) if observation[column] == 0)
