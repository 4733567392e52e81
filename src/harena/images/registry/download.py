"""Downloads of blobs: resumed after a cut, verified, and made once by processes that want the same one.

Guarantees: the file is the blob's lock, so that one process downloads and the others wait; what is handed on has the
size and the digest that the manifest named; bytes beyond that size are never stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable

from harena.images.errors import BadImage, ImageCancelled, ImageError, RegistryError
from harena.images.files import store_error
from harena.images.manifest import Descriptor
from harena.images.registry.client import BlobSource, Registry
from harena.images.registry.transport import Response, Transient, TransportPatience

CHUNK = 1 << 20
PROGRESS = 1 << 20
"""Bytes after which earlier failures no longer count."""
SLOWEST = 32 << 10
"""Bytes per second by which the time of a whole download is bounded."""
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class Download:
    """A blob that is being written to an open file."""

    def __init__(
        self,
        source: BlobSource,
        repository: str,
        blob: Descriptor,
        fd: int,
        *,
        patience: TransportPatience,
        check: Callable[[], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        """`check` raises when the pull is cancelled. `on_bytes` gets the number of bytes that are there."""
        self._source, self._repository, self._blob, self._fd = source, repository, blob, fd
        self._patience, self._check, self._on_bytes = patience, check, on_bytes
        self._ends_at = time.monotonic() + 600 + blob.size / SLOWEST
        self._have = 0
        self._hash = hashlib.new(blob.digest.algorithm)

    def run(self) -> None:
        """Complete the file. Raise BadImage or RegistryError, and ImageStoreError if it cannot be written."""
        try:
            self._take_up()
            *mirrors, last = self._source.registries
            for mirror in mirrors:
                try:
                    return self._from(mirror)
                except ImageCancelled:
                    raise
                except ImageError as error:
                    self._source.give_up(mirror, error)
            self._from(last)
        except OSError as error:
            # A full disk must not stay full because of what was begun.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            raise store_error(error, "a layer cannot be stored") from None

    def _take_up(self) -> None:
        """Hash what an earlier process left."""
        if os.fstat(self._fd).st_size > self._blob.size:
            os.ftruncate(self._fd, 0)
        while data := os.pread(self._fd, CHUNK, self._have):
            self._check()
            self._hash.update(data)
            self._have += len(data)
        self._on_bytes(self._have)

    def _start_over(self) -> None:
        os.ftruncate(self._fd, 0)
        self._have, self._hash = 0, hashlib.new(self._blob.digest.algorithm)
        self._on_bytes(0)

    def _from(self, registry: Registry) -> None:
        failures, may_restart = 0, self._have > 0
        while True:
            mark = self._have
            if self._have < self._blob.size:
                try:
                    self._receive(registry)
                except Transient as error:
                    failures = 1 if self._have - mark >= PROGRESS else failures + 1
                    registry.wait(failures, error)
                    continue
            if self._hash.hexdigest() == self._blob.digest.hex:
                return
            self._start_over()
            if not may_restart:
                raise BadImage(
                    f"{registry.host} sent a layer without its digest {self._blob.digest.short}…: nothing was kept"
                )
            may_restart = False  # what lay there may have been damaged; what comes now is fresh

    def _receive(self, registry: Registry) -> None:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise RegistryError(f"{registry.host} sends too slowly: try later, or set a mirror")
        with registry.open_blob(self._repository, self._blob, self._have, total_s=left_s) as response:
            if response.status == 416:
                self._start_over()
                raise Transient(f"{registry.host} cannot resume a download")
            if response.header("Content-Encoding").lower() not in ("", "identity"):
                raise RegistryError(f"{registry.host} sent an encoded layer, which was not asked for")
            if response.status == 206:
                self._check_range(response, registry)
            elif self._have:
                self._start_over()
            wanted = self._blob.size - self._have
            if response.length is not None and response.length != wanted:
                raise BadImage(
                    f"{registry.host} announced {response.length} bytes of a layer of which {wanted} are missing"
                )
            self._copy(response, registry)

    def _check_range(self, response: Response, registry: Registry) -> None:
        found = _RANGE.fullmatch(response.header("Content-Range").strip())
        size = self._blob.size
        if not found or int(found[1]) != self._have or int(found[2]) != size - 1 or found[3] not in (str(size), "*"):
            raise RegistryError(f"{registry.host} sent another part of a layer than was asked for")

    def _copy(self, response: Response, registry: Registry) -> None:
        while self._have < self._blob.size:
            self._check()
            data = response.read_some(min(CHUNK, self._blob.size - self._have))
            if not data:
                raise Transient(f"{registry.host} closed the connection within a layer")
            view = memoryview(data)
            while view:
                view = view[os.pwrite(self._fd, view, self._have + len(data) - len(view)) :]
            self._hash.update(data)
            self._have += len(data)
            self._on_bytes(self._have)
        if response.read_some(1):
            self._start_over()
            raise BadImage(f"{registry.host} sent more bytes of a layer than its manifest names")
