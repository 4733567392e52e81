"""Folder of replays: JSON and HTML files by match and game, and their URLs. Guarantees: a match_id comes from a client
and is never used as a path; a file is complete or does not exist; files older than keep_days are removed, and so are
the oldest files if there are more than max_files or max_mb.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harena.match import variables
from harena.match.executor import config
from harena.match.executor.orders import Entrant
from harena.match.replay import viewer
from harena.match.replay.replay import Replay

DAY_S = 86400.0
SWEEP_EVERY_S = 3600.0
ROOM = 0.9
"""Share of the limit that is kept when a full folder is cleaned."""


def as_json(compact: bytes, settings: config.ReplaySection, entrants: Sequence[Entrant]) -> bytes:
    """The JSON replay, with what the client said about each seat's agent and as much as the settings keep."""
    document = Replay.load(compact).to_json()
    for agent, entrant in zip(document["metadata"]["agents"], entrants, strict=True):
        agent |= {"version": entrant.version, "metadata": dict(entrant.metadata)}
    frames: list[dict[str, Any]] = document["frames"]
    if settings.max_frames is not None and len(frames) > settings.max_frames:
        document["metadata"]["frames_left_out"] = len(frames) - settings.max_frames
        del frames[settings.max_frames :]
    if not settings.include_observations:
        for frame in [document["initial"], *frames]:
            frame["observations"] = {}
    return msgspec.json.encode(document)


class ReplayStore:
    def __init__(self, settings: config.ReplaySection) -> None:
        self.folder = (settings.folder or _default_folder()).absolute()
        self._settings = settings
        self._lock = threading.Lock()
        self._swept_at = -SWEEP_EVERY_S
        self._files = 0
        self._bytes = 0
        """Total size at the last scan of the folder, plus what was written since."""

    def write(self, name: str, document: bytes, compact: bytes) -> tuple[str, str]:
        """Write the JSON replay and its page, and return their URLs. Raises OSError and ReplayError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        json_name, page_name = f"{name}.json", f"{name}.html"
        if self._settings.compress:
            json_name, document = f"{json_name}.gz", gzip.compress(document, mtime=0)
        self._put(json_name, document)
        self._put(page_name, viewer.html(Replay.load(compact)).encode())
        self._sweep()
        return self._url(json_name), self._url(page_name)

    def _put(self, name: str, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, self.folder / name)
            except BaseException:
                os.unlink(file.name)
                raise
        with self._lock:
            self._files += 1
            self._bytes += len(data)

    def _url(self, name: str) -> str:
        base = self._settings.base_url
        return f"{base}/{urllib.parse.quote(name)}" if base else (self.folder / name).as_uri()

    def _sweep(self) -> None:
        """Remove files that are too old, and the oldest ones if there are too many."""
        settings = self._settings
        with self._lock:
            now = time.monotonic()
            over = self._files > settings.max_files or self._bytes > settings.max_mb << 20
            if not over and now - self._swept_at < SWEEP_EVERY_S:
                return
            self._swept_at = now
            found = sorted(self._ours())
            oldest = time.time() - settings.keep_days * DAY_S if settings.keep_days else 0.0
            self._files, self._bytes = len(found), sum(size for _, size, _ in found)
            # Some more than has to go: the next look at a full folder is not at the next write.
            most_files, most_bytes = settings.max_files, settings.max_mb << 20
            if self._files > most_files or self._bytes > most_bytes:
                most_files, most_bytes = int(most_files * ROOM), int(most_bytes * ROOM)
            for at, size, path in found:
                if at >= oldest and self._files <= most_files and self._bytes <= most_bytes:
                    return
                with contextlib.suppress(OSError):
                    os.unlink(path)
                self._files -= 1
                self._bytes -= size

    def _ours(self) -> list[tuple[float, int, str]]:
        """Time, size and path of our own files; the folder may contain others."""
        found: list[tuple[float, int, str]] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                if FILE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, entry.path))
        return found


FILE_NAME = re.compile(r"[\w.-]{1,100}\.[0-9a-f]{8}\.\d{1,7}\.(json|json\.gz|html)", re.ASCII)


def file_name(match_id: str, game: int, *, caller: str = "") -> str:
    """Readable file name, different for different ids and callers."""
    words = re.sub(r"[^\w-]+", "-", match_id, flags=re.ASCII).strip("-")[:80] or "match"
    whose = f"{caller}\0{match_id}" if caller else match_id
    return f"{words}.{hashlib.sha256(whose.encode()).hexdigest()[:8]}.{game}"


def _default_folder() -> Path:
    return variables.state_folder() / "replays"
