"""Files of a session that take several requests: uploads in pieces, and downloads that continue.

An uploaded file appears under its name only when all of it has arrived with the right digest. Until then its pieces are
kept in the server's memory, out of reach of the box, and count as bytes kept by the owner. Sending a piece again does
no harm, and an upload id writes its file once.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from harena.errors import BoxError, BoxFileTooLarge, Retry, SpecError, WireError
from harena.sandbox.spec import MB, workspace_path
from harena.sessions.errors import Conflict, NotFound

if TYPE_CHECKING:
    from harena.sessions.session import Session

DIGEST = "X-Content-SHA256"
SHA256 = "[0-9a-f]{64}"
MAX_FILE = 256 * MB
PIECE = 4 * MB
"""Bytes of a piece that clients send. A server accepts this many from an owner in any case."""
CHUNK = 1 << 16
"""Bytes that a client reads at once. A connection that brought fewer counts as a failure."""
MAX_UPLOADS = 8
"""Unfinished uploads of a session."""
MAX_COMPLETE = 64
"""Ids of complete uploads that a session remembers."""
ABANDONED_S = 600.0
"""An upload without a piece for this long makes room for others."""
CAPS = (16 * MB, 64 * MB, MAX_FILE)


def read_file(session: Session, path: str) -> bytes:
    """Read a file. Beyond the first cap, the memory that it takes counts as bytes kept by the owner meanwhile."""
    for cap in CAPS[:-1]:
        try:
            return _read_within(session, path, cap)
        except BoxFileTooLarge:
            pass
    return _read_within(session, path, MAX_FILE)


def _read_within(session: Session, path: str, cap: int) -> bytes:
    counted = 2 * cap if cap > CAPS[0] else 0  # pieces are joined
    session.account(counted)
    try:
        return session.read(path, cap)
    finally:
        session.account(-counted)


class Piece(NamedTuple):
    """A part of a file, and what the whole file will be."""

    path: str
    sha256: str
    size: int
    start: int
    data: bytes


class FileUpload:
    def __init__(self, piece: Piece) -> None:
        self.path_digest = _path_digest(piece.path)  # paths can be long, and ids are remembered
        self.sha256, self.size = piece.sha256, piece.size
        self.received = 0
        self.data = bytearray()
        self.touched_at = time.monotonic()
        self.is_gone = False
        self.lock = threading.Lock()

    @property
    def is_complete(self) -> bool:
        return self.received == self.size

    def matches(self, piece: Piece) -> bool:
        wanted = self.path_digest, self.sha256, self.size
        return wanted == (_path_digest(piece.path), piece.sha256, piece.size)

    def view(self) -> dict[str, str | int]:
        return {"sha256": self.sha256, "received": self.received, "size": self.size}


class Uploads:
    """Uploads of one session. Thread-safe. The lock of an upload may be held when that of all is taken, never the other
    way round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: dict[str, FileUpload] = {}

    def find(self, upload_id: str) -> FileUpload:
        with self._lock:
            upload = self._uploads.get(upload_id)
        if upload is None:
            raise _unknown(upload_id)
        return upload

    def put(self, session: Session, upload_id: str, piece: Piece) -> FileUpload:
        """Add a piece; the last one writes the file. Raises Conflict for a gap, or for an id of another file."""
        if not re.fullmatch(SHA256, piece.sha256):
            raise SpecError(f"{DIGEST}: give the SHA-256 of the whole file in hexadecimal")
        if not 0 < piece.size <= MAX_FILE:
            raise SpecError(f"{piece.size} bytes: a file that is uploaded in pieces has from 1 to {MAX_FILE}")
        if not piece.data or piece.start + len(piece.data) > piece.size:
            raise SpecError(f"{len(piece.data)} bytes at {piece.start}: not a piece of {piece.size} bytes")
        workspace_path(piece.path)
        with session.used():
            upload = self._begin(session, upload_id, piece)
            with upload.lock:
                self._add(session, upload_id, upload, piece)
        return upload

    def _begin(self, session: Session, upload_id: str, piece: Piece) -> FileUpload:
        now, abandoned = time.monotonic(), list[FileUpload]()
        with self._lock:
            upload = self._uploads.get(upload_id)
            if upload is None:
                if piece.start:
                    raise Conflict(f"upload {upload_id}: nothing of it is here; begin at byte 0, not at {piece.start}")
                abandoned = self._make_room(now)
                upload = self._uploads[upload_id] = FileUpload(piece)
            elif not upload.matches(piece):
                raise Conflict(f"upload {upload_id}: it began with another path, size or digest")
            upload.touched_at = now
        for other in abandoned:
            _discard(session, other)
        return upload

    def _make_room(self, now: float) -> list[FileUpload]:
        """Forget uploads that were abandoned, and return them; forget the oldest ids of complete ones."""
        complete = [name for name, upload in self._uploads.items() if upload.is_complete]
        for name in complete[: max(0, len(complete) - MAX_COMPLETE + 1)]:
            del self._uploads[name]
        open_ones = {name: upload for name, upload in self._uploads.items() if not upload.is_complete}
        abandoned = [name for name, upload in open_ones.items() if now - upload.touched_at > ABANDONED_S]
        if len(open_ones) - len(abandoned) >= MAX_UPLOADS:
            raise BoxError(f"a session has at most {MAX_UPLOADS} unfinished uploads at once", retry=Retry.SAFE)
        return [self._uploads.pop(name) for name in abandoned]

    def _add(self, session: Session, upload_id: str, upload: FileUpload, piece: Piece) -> None:
        known = upload.received - piece.start
        if upload.is_gone:
            raise _unknown(upload_id)
        if known < 0:
            raise Conflict(
                f"upload {upload_id}: {upload.received} bytes are here; continue there, not at {piece.start}"
            )
        if upload.is_complete:
            return
        if not upload.data.startswith(piece.data[:known], piece.start):
            raise Conflict(f"upload {upload_id}: bytes from {piece.start} on differ from those that came before")
        fresh = piece.data[known:]
        is_last = upload.received + len(fresh) == upload.size
        session.account(len(fresh) + (upload.size if is_last else 0))  # the last piece makes a copy of the whole
        upload.data += fresh
        if not is_last:
            upload.received += len(fresh)
            return
        try:
            session.write(piece.path, bytes(upload.data), upload.sha256)
            upload.received = upload.size
        except BaseException:
            upload.is_gone = True
            with self._lock:
                self._uploads.pop(upload_id, None)
            raise
        finally:
            upload.data = bytearray()
            session.account(-2 * upload.size)

    def drop(self, session: Session, upload_id: str) -> None:
        """Forget an upload. A file that is complete stays."""
        with self._lock:
            upload = self._uploads.pop(upload_id, None)
        if upload is None:
            raise _unknown(upload_id)
        _discard(session, upload)

    def clear(self) -> None:
        """Forget all of them when their session has ended, which has given back what they took."""
        with self._lock:
            self._uploads.clear()


def _discard(session: Session, upload: FileUpload) -> None:
    with upload.lock:
        session.account(-len(upload.data))
        upload.data, upload.is_gone = bytearray(), True


def _path_digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()


def _unknown(upload_id: str) -> NotFound:
    return NotFound(f"no upload {upload_id[:80]!r} of this session")


def read_body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Read up to `max_bytes`. Raises IncompleteRead if the connection was lost, also in the headers, where
    `http.client` sees an answer that is only shorter."""
    data = response.read(max_bytes)
    if not response.chunked and (response.length is None or (response.length and len(data) < max_bytes)):
        raise http.client.IncompleteRead(data)
    return data


class FileDownload:
    """Client's side: what has come of a file. The server's headers are checked."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._sha256 = ""
        self._size = -1
        self.data = bytearray()

    @property
    def is_complete(self) -> bool:
        return len(self.data) == self._size

    def headers(self) -> dict[str, str]:
        """Ask for what is missing, if the file is still the same."""
        return {"Range": f"bytes={len(self.data)}-", "If-Match": f'"{self._sha256}"'} if self.data else {}

    def receive(self, response: http.client.HTTPResponse) -> None:
        length = response.length
        piece = response.read(CHUNK)
        if length is None or (length and not piece):
            raise http.client.IncompleteRead(b"")
        self._begin(response)
        while piece:
            if len(self.data) + len(piece) > self._size:
                raise WireError(f"{self._path}: the server sent more than it announced")
            self.data += piece
            piece = response.read(CHUNK)
        if not self.is_complete:
            raise http.client.IncompleteRead(b"")

    def _begin(self, response: http.client.HTTPResponse) -> None:
        sha256, length = response.getheader(DIGEST, ""), response.getheader("Content-Length", "")
        if not self.data:
            if not re.fullmatch("[0-9]{1,18}", length) or int(length) > self._max_bytes:
                raise WireError(f"{self._path}: the server sent an answer that is too long")
            if response.status != 200 or not re.fullmatch(SHA256, sha256):
                raise WireError(f"{self._path}: the server sent something else than a file with its digest")
            self._sha256, self._size = sha256, int(length)
        wanted = f"bytes {len(self.data)}-{self._size - 1}/{self._size}"
        if self.data and (response.status, response.getheader("Content-Range"), sha256) != (206, wanted, self._sha256):
            raise WireError(f"{self._path}: the server continued with something else than {wanted}")

    def checked(self) -> bytes:
        if hashlib.sha256(self.data).hexdigest() != self._sha256:
            raise WireError(f"{self._path}: what came does not have the digest that the server named")
        return bytes(self.data)
