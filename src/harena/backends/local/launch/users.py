"""Chooses the host user of a box: never root, and for boxes of root a user that owns nothing else.

The kernel keeps quotas (inotify, queued signals, timers) per user, so each box of root gets its own user. Inside a user
namespace, as in a rootless container, only the users of its map exist.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from harena.errors import IsolationUnavailable

FIRST, COUNT = 0x70000000, 1 << 27
"""Range of user ids for boxes of root, far above those of people and services."""


def choose() -> int | None:
    """Return the user of a box. None means the user who starts it, who is not root or is alone in a user namespace."""
    if os.geteuid() != 0:
        return None
    users, groups = _mapped("uid"), _mapped("gid")
    if sum(map(len, users)) == 1:
        return None
    both = [_overlap(a, b) for a in users for b in groups]
    wanted = [_overlap(ids, range(FIRST, FIRST + COUNT)) for ids in both]
    found = max(wanted, key=len) or max((_overlap(ids, range(1, 1 << 32)) for ids in both), key=len)
    if not found:
        raise IsolationUnavailable(
            "this user namespace has no user and group beside root for a guest to be",
            fix="map more of them (/etc/subuid, /etc/subgid), or run as an ordinary user",
        )
    return found[len(found) // 2 + secrets.randbelow(len(found) - len(found) // 2)]


def _mapped(kind: str) -> list[range]:
    try:
        lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    except OSError as error:
        fix = "mount it: mount -t proc proc /proc"
        raise IsolationUnavailable(f"/proc cannot be read: {error.strerror}", fix=fix) from None
    numbers = [tuple(map(int, line.split())) for line in lines]
    return [range(first, first + count) for first, _, count in numbers]


def _overlap(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))
