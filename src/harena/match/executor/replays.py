"""The folder of replays: JSON and HTML files by match and game, and their URLs. Guarantees: a match_id is a client's
word and never a path; a file is complete or not there; what is older than keep_days goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import msgspec

from harena.match import viewer
from harena.match.executor import config
from harena.match.replay import Replay

DAY_S = 86400.0
SWEEP_EVERY_S = 3600.0


def as_json(compact: bytes) -> bytes:
    return msgspec.json.encode(Replay.load(compact).to_json())


class Store:
    def __init__(self, settings: config.Replay) -> None:
        self.folder = (settings.folder or _default_folder()).absolute()
        self._settings = settings
        self._lock = threading.Lock()
        self._swept_at = 0.0

    def write(self, match_id: str, game: int, compact: bytes) -> tuple[str, str]:
        """The URLs of the JSON and of the HTML. Raises OSError, and ReplayError."""
        self._sweep()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = file_name(match_id, game)
        replay = Replay.load(compact)
        self._put(f"{name}.json", msgspec.json.encode(replay.to_json()))
        self._put(f"{name}.html", viewer.html(replay).encode())
        return self._url(f"{name}.json"), self._url(f"{name}.html")

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

    def _url(self, name: str) -> str:
        base = self._settings.base_url
        return f"{base}/{urllib.parse.quote(name)}" if base else (self.folder / name).as_uri()

    def _sweep(self) -> None:
        now = time.time()
        with self._lock:
            if not self._settings.keep_days or now - self._swept_at < SWEEP_EVERY_S:
                return
            self._swept_at = now
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                # Only what was named here: the folder may hold other things.
                ours = FILE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
                if ours and now - entry.stat(follow_symlinks=False).st_mtime > self._settings.keep_days * DAY_S:
                    os.unlink(entry.path)


FILE_NAME = re.compile(r"[\w.-]{1,100}\.[0-9a-f]{8}\.\d{1,7}\.(json|html)", re.ASCII)


def file_name(match_id: str, game: int) -> str:
    """Readable, and different for different ids, whatever is in them."""
    words = re.sub(r"[^\w-]+", "-", match_id, flags=re.ASCII).strip("-")[:80] or "match"
    return f"{words}.{hashlib.sha256(match_id.encode()).hexdigest()[:8]}.{game}"


def _default_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "harena" / "replays"
