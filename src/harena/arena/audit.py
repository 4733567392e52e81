"""Audit log: what hosts have changed, one JSON object a line, in the data folder. Guarantees: lines are only ever
appended, each as a whole; tokens and passwords are in none. Does not decide who may do what.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path
from typing import Any

NAME = "audit.log"
MAX_TEXT = 2000
TAIL_BYTES = 1 << 20
"""The end of the log that is read to show it."""


def record(data: Path, who: str, what: str, **more: Any) -> None:
    """Appends a line: who did what."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"at": at, "who": who[:MAX_TEXT], "what": what[:MAX_TEXT], **more}
    line = json.dumps(entry, default=str).encode() + b"\n"
    handle = os.open(data / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def command_line() -> str:
    """Whoever runs a command on this machine."""
    try:
        return f"command line, {getpass.getuser()}"
    except (KeyError, OSError):
        return f"command line, user {os.getuid()}"


def latest(data: Path, limit: int) -> list[dict[str, Any]]:
    """The newest lines first. A line that was cut by a full disk is left out."""
    try:
        with open(data / NAME, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    for line in reversed(lines):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
        if len(found) == limit:
            break
    return found
