"""What boxes could leave behind on this machine, and how to look for it. Sees only what one host process made."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harena.backends.local.launch import cgroups, registry

T = TypeVar("T")


def settle(look: Callable[[], T], wanted: T, within_s: float = 60.0) -> T:
    """Looks until it sees what is wanted, or the time is over; what it saw last."""
    end = time.monotonic() + within_s
    while (seen := look()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return seen


def descriptors() -> list[str]:
    """What this process has open."""
    found: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0])
    return sorted(found)


def leaked(before: list[str], within_s: float = 60.0) -> list[str]:
    """What is open now and was not before, also after a moment; shows what leaked and not only how much."""

    def look() -> list[str]:
        found = sorted((Counter(descriptors()) - Counter(before)).elements())
        if found:
            gc.collect()
        return found

    return settle(look, [], within_s)


def boxes_of(pid: int) -> list[str]:
    """The boxes on record for a host process."""
    found: list[str] = []
    for path in registry.folder().iterdir():
        with contextlib.suppress(OSError):
            if path.read_text().split()[:1] == [str(pid)]:
                found.append(path.name)
    return found


def descendants(pid: int) -> set[tuple[int, str]]:
    """Every process below this one, with the time it was started: a number may be given again."""
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(entry.name)], started[int(entry.name)] = int(fields[1]), fields[19]
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return {(child, started[child]) for child in below - {pid}}


def alive(processes: set[tuple[int, str]]) -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for pid, started in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            if fields[19] == started and fields[0] not in "ZX":
                found.add((pid, started))
    return found


def keepers() -> int:
    """Children of this process that keep a box: one for each, until it is closed. Other tests' servers do not count."""
    own = os.getpid()
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                keeps = b"harena-box" in words or b"keeper.py" in words
                found += keeps and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == own
    return found


def traces(boxes: list[str]) -> list[str]:
    """Records, cgroups and mounts of these boxes that are still there."""
    found = [str(registry.folder() / box) for box in boxes if (registry.folder() / box).exists()]
    for parent in cgroups.find().parents:
        found += [
            str(parent / f"{cgroups.PREFIX}{box}") for box in boxes if (parent / f"{cgroups.PREFIX}{box}").exists()
        ]
    mounts = Path("/proc/self/mountinfo").read_text()
    return found + [f"mount {box}" for box in boxes if box in mounts]


def with_marker(marker: str) -> int:
    """How many processes of this machine carry a marker in their command line."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                found += marker.encode() in (entry / "cmdline").read_bytes()
    return found


def new_marker() -> str:
    """An argument for `sleep` that no other process has."""
    return f"{40000 + int.from_bytes(os.urandom(3))}.{os.getpid()}"


def resident_mb(processes: set[tuple[int, str]]) -> float:
    total = 0
    for pid, _ in processes:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return total / 2**20
