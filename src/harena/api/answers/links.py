"""Download links with a signature that ends soon, and whether the store of files answers.

Guarantees: a link opens one file and nothing else, for LIFETIME_S; whoever has it needs no key. Where the store has an
address of its own for clients, it signs; otherwise this server does, and serves the file itself.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from urllib.parse import urlencode

from harena.api.http.errors import ApiError
from harena.arena.db.files import ObjectStore

LIFETIME_S = 300
LOOK_S = 5.0


class Links:
    def __init__(self, files: ObjectStore, secret_key: bytes, clock: Callable[[], float]) -> None:
        self._files = files
        self._key = hmac.digest(secret_key, b"harena download", "sha256")
        self._clock = clock

    def make(self, digest: str, name: str) -> str:
        """Raises FileMissing."""
        self._files.size_bytes(digest)
        direct = self._files.link(digest, name, lifetime_s=LIFETIME_S) if self._files.has(digest) else None
        if direct is not None:
            return direct
        until = int(self._clock()) + LIFETIME_S
        query = urlencode({"name": name, "until": until, "signature": self._signature(digest, name, until)})
        return f"/v1/files/{digest}?{query}"

    def check(self, digest: str, name: str, until: int, signature: str) -> None:
        """Raises ApiError for a link that was not made here, was changed or is over."""
        right = hmac.compare_digest(self._signature(digest, name, until).encode(), signature.encode())
        if not right or until < self._clock():
            raise ApiError(403, "link_over", "this download link is over, or was changed", hint="ask for a new one")

    def _signature(self, digest: str, name: str, until: int) -> str:
        return hmac.digest(self._key, f"{digest}\n{until}\n{name}".encode("utf-8", "replace"), "sha256").hex()


class FilesWatch:
    """Asks the store at most every LOOK_S: whoever calls /health often must not load it."""

    def __init__(self, files: ObjectStore) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._looked_at = -LOOK_S
        self._problem = ""

    def problem(self) -> str:
        with self._lock:
            if time.monotonic() - self._looked_at >= LOOK_S:
                self._problem = self._files.problem()
                self._looked_at = time.monotonic()
            return self._problem
