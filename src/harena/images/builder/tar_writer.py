"""Writes tar archives in the form of OCI layers, with holes, hard links and extended attributes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

BLOCK = 512
CHUNK = 1 << 20
SPARSE_FROM = 1 << 16
"""A file is written with holes when they have at least this many bytes."""
MAX_PARTS = 60_000
FILE, HARD, SYMLINK, FOLDER, FIFO = b"0", b"1", b"2", b"5", b"6"


class PackError(Exception):
    """What was to be packed cannot be a layer."""


@dataclass(slots=True)
class Meta:
    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])


class TarWriter:
    """Writes members of an archive. `key` is a hash of everything but the times."""

    def __init__(self, write: Callable[[bytes], object], *, most_bytes: int) -> None:
        self._write, self._left = write, most_bytes
        self._ahead = bytearray()
        self._key = hashlib.sha256()
        self.count = 0

    @property
    def key(self) -> str:
        return self._key.hexdigest()

    def add(self, name: bytes, kind: bytes, meta: Meta, *, link: bytes = b"", size: int = 0, real: int = -1) -> None:
        """Write a header. `size` bytes of body must follow; `real` is the size of a file with holes."""
        extended: dict[bytes, bytes] = {}
        if real >= 0:
            extended |= {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": name}
            extended[b"GNU.sparse.realsize"] = b"%d" % real
        elif len(name) > 100 or b"\n" in name:
            extended[b"path"] = name
        if len(link) > 100:
            extended[b"linkpath"] = link
        for key, value in ((b"uid", meta.uid), (b"gid", meta.gid)):
            if value > 0o7777777:
                extended[key] = b"%d" % value
        if size >= 1 << 33:
            extended[b"size"] = b"%d" % size
        seconds, fraction = divmod(max(0, meta.mtime_ns), 10**9)
        if fraction or seconds >= 1 << 33:
            extended[b"mtime"] = b"%d.%09d" % (seconds, fraction)
        extended |= {b"SCHILY.xattr." + key: meta.xattrs[key] for key in sorted(meta.xattrs)}
        identity = (name, kind, meta.mode, meta.uid, meta.gid, link, size, real, sorted(meta.xattrs.items()))
        self._key.update(repr(identity).encode())
        if extended:
            body = b"".join(_record(key, value) for key, value in extended.items())
            self._put(_header(b"PaxHeaders/" + name[-80:], b"x", Meta(0o644), len(body)))
            self._put(body + b"\0" * (-len(body) % BLOCK))
        plain = Meta(meta.mode, meta.uid & 0o7777777, meta.gid & 0o7777777, min(seconds, (1 << 33) - 1) * 10**9)
        self._put(_header(name[:100], kind, plain, min(size, (1 << 33) - 1), link[:100]))
        self.count += 1

    def body(self, data: bytes) -> None:
        self._key.update(data)
        self._put(data)

    def pad(self, size: int) -> None:
        self._put(b"\0" * (-size % BLOCK))

    def end(self) -> None:
        self._put(b"\0" * 2 * BLOCK)
        self._write(bytes(self._ahead))
        self._ahead.clear()

    def file(self, name: bytes, path: bytes, meta: Meta) -> None:
        """Write a regular file with its content."""
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                raise PackError("it has changed while it was read")
            parts = _parts(file, info)
            if parts is None:
                self.add(name, FILE, meta, size=info.st_size)
                self._content(file, 0, info.st_size)
                self.pad(info.st_size)
                return
            numbers = [len(parts), *(number for part in parts for number in part)]
            table = b"".join(b"%d\n" % number for number in numbers)
            table += b"\0" * (-len(table) % BLOCK)
            size = len(table) + sum(length for _, length in parts)
            self.add(name, FILE, meta, size=size, real=info.st_size)
            self.body(table)
            for offset, length in parts:
                self._content(file, offset, length)
            self.pad(size)
        finally:
            os.close(file)

    def _content(self, file: int, offset: int, length: int) -> None:
        while length:
            data = os.pread(file, min(length, CHUNK), offset)
            if not data:
                raise PackError("it became shorter while it was read")
            self.body(data)
            offset += len(data)
            length -= len(data)

    def _put(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise PackError("the layer is larger than allowed")
        self._ahead += data
        if len(self._ahead) >= CHUNK:
            self._write(bytes(self._ahead))
            self._ahead.clear()


def _header(name: bytes, kind: bytes, meta: Meta, size: int, link: bytes = b"") -> bytes:
    head = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            b"%07o\0%07o\0%07o\0" % (meta.mode, meta.uid, meta.gid),
            b"%011o\0%011o\0" % (size, meta.mtime_ns // 10**9),
            b" " * 8,
            kind,
            link.ljust(100, b"\0"),
            b"ustar\x0000",
        )
    ).ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) != len(str(rest)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _parts(file: int, info: os.stat_result) -> list[tuple[int, int]] | None:
    """Parts of a file that are not holes; None: it has none that are worth it."""
    if info.st_size - info.st_blocks * 512 < SPARSE_FROM:
        return None
    parts: list[tuple[int, int]] = []
    at = 0
    while at < info.st_size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                break
            return None
        at = min(os.lseek(file, start, os.SEEK_HOLE), info.st_size)
        parts.append((start, at - start))
        if len(parts) > MAX_PARTS:
            raise PackError(f"it has more than {MAX_PARTS} holes")
    if not parts or sum(parts[-1]) < info.st_size:
        parts.append((info.st_size, 0))
    return parts


def file_meta(path: bytes, info: os.stat_result, owner: tuple[int, int] | None = None) -> Meta:
    """Meta data of a file, with the extended attributes that layers keep."""
    xattrs: dict[bytes, bytes] = {}
    uid, gid = owner if owner is not None else (info.st_uid, info.st_gid)
    meta = Meta(stat.S_IMODE(info.st_mode), uid, gid, info.st_mtime_ns, xattrs)
    if stat.S_ISLNK(info.st_mode):
        return meta
    with contextlib.suppress(OSError):
        for name in os.listxattr(path, follow_symlinks=False):
            if (name.startswith("user.") and not name.startswith("user.overlay.")) or name == "security.capability":
                xattrs[os.fsencode(name)] = os.getxattr(path, name, follow_symlinks=False)
    return meta
