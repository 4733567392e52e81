"""Files of a box, read and written by a server inside it with the guest's own rights, and snapshots of them.

A snapshot is plain data on the host: the metadata of each path, and contents by digest. Taking one reads all metadata
and the contents of files that changed since the last one; restoring sends only differences. Data larger than one
message is sent in pieces, and holes of sparse files are neither sent nor filled.

One file, however long: reading, writing and snapshots use the same pieces, sizes and checks of paths.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from harena.errors import BoxFileError, SpecError, WireError, file_error
from harena.sandbox.spec import MB, WORKSPACE, FileInfo, workspace_path

MAX_FILE = 1 << 36
"""Upper bound of `max_bytes`, more than the memory of any host."""
MAX_ENTRIES = 200_000
MAX_DEPTH = 200
"""Maximum depth of folders to upload: each level holds a descriptor while it is read."""
BATCH = 16 * MB
"""Bytes of contents in one message; a larger file is sent in pieces of this size."""
MAX_FETCH = 32 * MB
TRIES = 3
RACY_NS = 50_000_000
"""A file changed this shortly before a scan may change again without its times showing it; it is read again."""
KINDS = frozenset({"file", "dir", "symlink", "other"})


Ranges = tuple[tuple[int, int], ...]
"""Start and end of each, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    info: FileInfo
    digest: str | None
    """SHA-256 of a file's contents, holes left out."""
    ranges: Ranges | None = None
    """Ranges with data of a sparse file; None for a file without holes."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Snapshot:
    """The workspace at one moment. It can be restored into any box, also after its own box is closed."""

    entries: Mapping[str, Entry]
    blobs: Mapping[str, bytes]

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        size = sum(map(len, self.blobs.values()))
        return f"<Snapshot of {len(self)} entries, {size} bytes of contents>"


@dataclass(frozen=True, slots=True)
class Seen:
    info: FileInfo
    inode: int
    changed_ns: int
    allocated: int

    @property
    def has_holes(self) -> bool:
        return self.info.kind == "file" and self.allocated < self.info.size


class Known(NamedTuple):
    """A file of the last snapshot."""

    inode: int
    changed_ns: int
    size: int
    digest: str
    ranges: Ranges | None


class Room:
    """Number of bytes that a call may still transfer to the host."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = self.left = max_bytes

    def take(self, count: int, path: str) -> None:
        self.left -= count
        if self.left < 0:
            raise file_error(errno.EFBIG, path, f"more than the {self.max_bytes} bytes asked for")


Ask = Callable[[Mapping[str, Any], bytes], tuple[dict[str, Any], bytes]]
"""Sends a message and bytes to the file server of a box and returns its untrusted answer."""


class Files:
    """Host side of the file server."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._tokens = itertools.count(1)
        self._known: dict[str, Known] = {}
        self._blobs: dict[str, bytes] = {}

    def read(self, path: str, max_bytes: int) -> bytes:
        if not 0 <= max_bytes <= MAX_FILE:
            raise SpecError(f"max_bytes={max_bytes}: from 0 to {MAX_FILE}")
        return self._read(workspace_path(path), Room(max_bytes), path)

    def head(self, path: str, max_bytes: int) -> bytes:
        """Return the beginning of a file."""
        parts: list[bytes] = []
        for start in range(0, max_bytes, BATCH):
            end = min(max_bytes, start + BATCH)
            _, data = self._read_ranges(workspace_path(path), [(start, end)], path, insist=False)
            parts.append(data)
            if len(data) < end - start:
                break
        return b"".join(parts)

    def write(self, path: str, data: bytes, mode: int) -> None:
        where, token = workspace_path(path), next(self._tokens)
        for offset, piece in _pieces(data):
            last = offset + len(piece) == len(data)
            message = {"op": "write", "path": where, "mode": mode & 0o777, "token": token, "offset": offset}
            self._call(message | {"last": last}, piece, path=path)

    def list(self, path: str, *, recursive: bool, max_entries: int) -> list[FileInfo]:
        return [seen.info for seen in self._scan(workspace_path(path), recursive, max_entries)[0]]

    def sha256(self, path: str) -> str:
        answer, _ = self._call({"op": "sha256", "path": workspace_path(path)}, path=path)
        digest = answer.get("sha256")
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise WireError("the box sent something else than a digest")
        return digest

    def remove(self, path: str) -> None:
        self._call({"op": "remove", "path": workspace_path(path)}, path=path)

    # ---- folders ----

    def upload(self, source: Path, path: str) -> int:
        """Copy a folder of the host into the box: files, folders, links and modes. Returns the number of entries.
        Opens paths step by step and follows no link, because a guest may change the folder at the same time."""
        changes = Changes(workspace_path(path))
        try:
            folder = os.open(source, FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            raise SpecError(f"{source}: not a folder") from None
        try:
            self._upload_folder(changes, folder, changes.top, str(source), 0)
        finally:
            os.close(folder)
        self._apply(changes)
        return changes.count

    def _upload_folder(self, changes: Changes, folder: int, where: str, shown: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SpecError(f"{shown}: folders are nested more than {MAX_DEPTH} deep")
        for name in sorted(os.listdir(folder)):
            try:
                self._upload_entry(changes, folder, name, f"{where}/{name}", f"{shown}/{name}", depth)
            except OSError as error:
                if isinstance(error, BoxFileError) or error.errno not in SWAPPED:
                    raise
                raise SpecError(f"{shown}/{name}: was changed while it was uploaded") from None

    def _upload_entry(self, changes: Changes, folder: int, name: str, where: str, shown: str, depth: int) -> None:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if stat.S_ISLNK(info.st_mode):
            changes.make(where, "symlink", mode, info.st_mtime_ns, os.readlink(name, dir_fd=folder))
        elif stat.S_ISDIR(info.st_mode):
            changes.make(where, "dir", mode, info.st_mtime_ns)
            with _opened(name, FOLDER | os.O_NOFOLLOW, folder) as deeper:
                self._upload_folder(changes, deeper, where, shown, depth + 1)
        elif stat.S_ISREG(info.st_mode):
            with _opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, folder) as file:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise SpecError(f"{shown}: was changed while it was uploaded")
                self._put(changes, where, mode, info.st_mtime_ns, _read_pieces(file))
        else:
            raise SpecError(f"{shown}: neither a file, a folder nor a link")
        if changes.size > BATCH:
            self._apply(changes)

    def _put(
        self,
        changes: Changes,
        where: str,
        mode: int,
        mtime_ns: int,
        pieces: Iterator[tuple[int, bytes]],
        size: int | None = None,
    ) -> None:
        """Write a file from pieces with holes between them; `size` is needed if it may end in a hole."""
        offset, data = next(pieces, (0, b""))
        following = next(pieces, None)
        if following is None and offset == 0 and size in (None, len(data)):
            return changes.make(where, "file", mode, mtime_ns, data=data)
        token = next(self._tokens)
        changes.part(where, token, offset, data)
        end = offset + len(data)
        for offset, data in itertools.chain([following] if following else [], pieces):
            if changes.size > BATCH:
                self._apply(changes)
            changes.part(where, token, offset, data)
            end = offset + len(data)
        return changes.whole(where, mode, mtime_ns, token, end if size is None else size)

    def download(self, path: str, target: Path, max_bytes: int) -> int:
        """Copy a folder of the box to the host. Links are created as links and never followed. A name or a target that
        leads out of the folder is refused before anything is written."""
        top = workspace_path(path)
        found, _ = self._scan(top, True, MAX_ENTRIES)
        infos = [seen.info for seen in found]
        for info in infos:
            _check_name(info)
        _check_tree(infos)
        total = sum(info.size for info in infos if info.kind == "file")
        if total > max_bytes:
            raise file_error(27, path, f"holds {total} bytes, more than max_bytes={max_bytes}")
        target.mkdir(parents=True, exist_ok=True)
        root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        try:
            folders = [info for info in infos if info.kind == "dir"]
            for info in folders:
                _make_folder(root, info.path)
            for info, data in self._contents(top, [info for info in infos if info.kind == "file"], Room(max_bytes)):
                _write_beneath(root, info, data)
            for info in infos:
                if info.kind == "symlink":
                    _link_beneath(root, info)
            for info in reversed(folders):
                _set_mode(root, info)
        finally:
            os.close(root)
        return len(infos)

    # ---- snapshots ----

    def snapshot(self, max_bytes: int) -> Snapshot:
        with self._lock:
            found, now = self._scan(WORKSPACE, True, MAX_ENTRIES, insist=True)
            fresh = [seen for seen in found if seen.info.kind == "file" and not self._unchanged(seen)]
            read: dict[str, tuple[str, Ranges | None]] = {}
            blobs = dict(self._blobs)
            room = Room(max_bytes)
            for info, data, ranges in self._with_holes(fresh, room):
                digest = hashlib.sha256(data).hexdigest()
                read[info.path] = digest, ranges
                blobs[digest] = data
            entries: dict[str, Entry] = {}
            known: dict[str, Known] = {}
            for seen in found:
                path = seen.info.path
                if seen.info.kind != "file":
                    if seen.info.kind != "other":
                        entries[path] = Entry(info=seen.info, digest=None)
                    continue
                if self._unchanged(seen):
                    digest, ranges = self._known[path].digest, self._known[path].ranges
                elif path in read:
                    digest, ranges = read[path]
                else:
                    continue  # it vanished between the listing and the reading
                entries[path] = Entry(info=seen.info, digest=digest, ranges=ranges)
                if seen.changed_ns < now - RACY_NS:
                    known[path] = Known(seen.inode, seen.changed_ns, seen.info.size, digest, ranges)
            used = {entry.digest for entry in entries.values()}
            self._blobs = {digest: data for digest, data in blobs.items() if digest in used}
            self._known = known
            return Snapshot(entries=entries, blobs=self._blobs)

    def restore(self, snapshot: Snapshot, max_bytes: int) -> None:
        """Restore the workspace: remove what was added later and bring back what was removed."""
        now = self.snapshot(max_bytes)
        changes = Changes(WORKSPACE)
        for path, entry in now.entries.items():
            wanted = snapshot.entries.get(path)
            if wanted is None or wanted.info.kind != entry.info.kind:
                changes.remove(f"{WORKSPACE}/{path}")
        for path in self.others:
            changes.remove(f"{WORKSPACE}/{path}")
        for path, entry in snapshot.entries.items():
            info, where = entry.info, f"{WORKSPACE}/{path}"
            present = now.entries.get(path)
            if present == entry:
                if info.kind == "dir":
                    changes.make(where, "dir", info.mode, info.mtime_ns)  # its time moves with what happens inside
                continue
            if info.kind == "file" and entry.digest is not None:
                if present is not None and _same_contents(present, entry):
                    changes.make(where, "file", info.mode, info.mtime_ns)
                else:
                    pieces = _pieces(snapshot.blobs[entry.digest], entry.ranges)
                    size = None if entry.ranges is None else info.size
                    self._put(changes, where, info.mode, info.mtime_ns, pieces, size)
            else:
                changes.make(where, info.kind, info.mode, info.mtime_ns, info.target)
            if changes.size > BATCH:
                self._apply(changes)
        self._apply(changes)

    others: tuple[str, ...] = ()
    """Sockets, pipes and other special files found by the last scan. They are not kept, and a restore removes them."""

    # ---- the wire ----

    def _unchanged(self, seen: Seen) -> bool:
        known = self._known.get(seen.info.path)
        return known is not None and known[:3] == (seen.inode, seen.changed_ns, seen.info.size)

    def _read(self, where: str, room: Room, path: str, *, insist: bool = False) -> bytes:
        """Read a whole file in pieces. Start again if it is replaced by another file meanwhile."""
        for _ in range(TRIES):
            parts: list[bytes] = []
            read, left, file = 0, room.left, None
            while True:
                want = min(BATCH, left + 1 - read)
                number, data = self._read_ranges(where, [(read, read + want)], path, insist=insist)
                if number != file and file is not None:
                    break
                file = number
                parts.append(data)
                read += len(data)
                if len(data) < want:
                    room.take(read, path)
                    return b"".join(parts)
                if read > left:
                    room.take(read, path)
        raise file_error(errno.EBUSY, path, "was replaced again and again while it was read")

    def _read_ranges(self, where: str, ranges: list[tuple[int, int]], path: str, *, insist: bool) -> tuple[int, bytes]:
        """Read ranges of a file, with a number that shows if another file took its place."""
        answer, data = self._call({"op": "read", "path": where, "ranges": ranges, "insist": insist}, path=path)
        number = answer.get("file")
        if not isinstance(number, int) or len(data) > sum(end - start for start, end in ranges):
            raise WireError("the box sent more of a file than was asked for")
        return number, data

    def _with_holes(self, found: list[Seen], room: Room) -> Iterator[tuple[FileInfo, bytes, Ranges | None]]:
        """Contents of files of the workspace, with the data ranges of sparse files."""
        dense = [seen.info for seen in found if not seen.has_holes]
        for info, data in self._contents(WORKSPACE, dense, room, insist=True):
            yield info, data, None
        for seen in found:
            if seen.has_holes:
                with _unless_gone():
                    yield seen.info, *self._read_sparse(seen.info, room)

    def _read_sparse(self, info: FileInfo, room: Room) -> tuple[bytes, Ranges]:
        where = f"{WORKSPACE}/{info.path}"
        answer, _ = self._call({"op": "ranges", "path": where}, path=info.path)
        ranges = _parse_ranges(answer.get("ranges"))
        file = answer.get("file")
        parts: list[bytes] = []
        for batch in _batches(ranges):
            number, data = self._read_ranges(where, batch, info.path, insist=True)
            if number != file or len(data) != sum(end - start for start, end in batch):
                raise file_error(errno.EBUSY, info.path, "was changed while it was read")
            room.take(len(data), info.path)
            parts.append(data)
        return b"".join(parts), ranges

    def _scan(self, top: str, recursive: bool, max_entries: int, *, insist: bool = False) -> tuple[list[Seen], int]:
        """List the workspace. With `insist`, here and below, paths that the guest made unreadable are opened for a
        moment."""
        request = {"op": "list", "path": top, "recursive": recursive, "max_entries": max_entries, "insist": insist}
        answer, _ = self._call(request, path=top)
        rows, now = answer.get("entries"), answer.get("now")
        if not isinstance(rows, list) or not isinstance(now, int):
            raise WireError("the box sent something else than a listing")
        found = [_seen(row) for row in cast("list[Any]", rows)]
        self.others = tuple(seen.info.path for seen in found if seen.info.kind == "other")
        return found, now

    def _contents(
        self, top: str, infos: list[FileInfo], room: Room, *, insist: bool = False
    ) -> Iterator[tuple[FileInfo, bytes]]:
        """Contents of files; small ones are fetched in batches. Files that no longer exist are left out."""
        for info in infos:
            if info.size > BATCH:
                with _unless_gone():
                    yield info, self._read(f"{top}/{info.path}", room, info.path, insist=insist)
        infos = [info for info in infos if info.size <= BATCH]
        while infos:
            batch, size = [infos[0]], infos[0].size
            for info in infos[1:]:
                if size + info.size > BATCH or len(batch) >= 4096:
                    break
                batch.append(info)
                size += info.size
            infos = infos[len(batch) :]
            paths = [f"{top}/{info.path}" for info in batch]
            most = min(room.left, MAX_FETCH)
            answer, data = self._call({"op": "fetch", "paths": paths, "insist": insist, "max_bytes": most}, path=top)
            sizes = answer.get("sizes")
            if not isinstance(sizes, list) or len(cast("list[Any]", sizes)) != len(batch):
                raise WireError("the box sent something else than the files that were asked for")
            if len(data) > most:
                raise WireError("the box sent more than was asked for")
            room.take(len(data), top)
            at = 0
            for info, count in zip(batch, cast("list[Any]", sizes), strict=True):
                if not isinstance(count, int) or count > len(data) - at:
                    raise WireError("the box's files do not add up")
                if count >= 0:
                    yield info, data[at : at + count]
                    at += count

    def _apply(self, changes: Changes) -> None:
        if changes.removals or changes.makes:
            message = {"op": "apply", "remove": changes.removals, "make": changes.makes}
            self._call(message, b"".join(changes.parts), path=changes.top)
        changes.clear()

    def _call(self, message: dict[str, Any], blob: bytes = b"", *, path: str) -> tuple[dict[str, Any], bytes]:
        answer, data = self._ask(message, blob)
        number = answer.get("errno")
        if number is not None:
            detail = answer.get("detail")
            if not isinstance(number, int) or not isinstance(detail, str):
                raise WireError("the file server sent a malformed error")
            raise file_error(number, path, detail[:500])
        return answer, data


class Changes:
    """Collects the changes of one `apply`."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.count = 0
        self.clear()

    def clear(self) -> None:
        self.removals: list[str] = []
        self.makes: list[list[Any]] = []
        self.parts: list[bytes] = []
        self.size = 0

    def remove(self, path: str) -> None:
        self.removals.append(path)

    def make(
        self, path: str, kind: str, mode: int, mtime_ns: int, target: str | None = None, data: bytes | None = None
    ) -> None:
        self.makes.append([path, kind, mode, mtime_ns, target, -1 if data is None else len(data)])
        if data is not None:
            self.parts.append(data)
            self.size += len(data)
        self.size += 100
        self.count += 1

    def part(self, path: str, token: int, offset: int, data: bytes) -> None:
        """Add a piece of a file; `whole` completes the file."""
        self.makes.append([path, "part", 0, offset, token, len(data)])
        self.parts.append(data)
        self.size += len(data) + 100

    def whole(self, path: str, mode: int, mtime_ns: int, token: int, size: int) -> None:
        self.makes.append([path, "whole", mode, mtime_ns, [token, size], -1])
        self.size += 100
        self.count += 1


FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
SWAPPED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""Errors of opening a name that was something else a moment ago."""
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO})


@contextlib.contextmanager
def _unless_gone() -> Generator[None]:
    """Ignore a file of the box that is gone or no longer a file."""
    try:
        yield
    except BoxFileError as error:
        if error.errno not in GONE:
            raise


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int) -> Generator[int]:
    fd = os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _pieces(data: bytes, ranges: Ranges | None = None) -> Iterator[tuple[int, bytes]]:
    """Offsets and bytes for one message each; at least one, unless the whole file is a hole."""
    at = 0
    for start, end in ((0, len(data)),) if ranges is None else ranges:
        for offset in range(start, max(end, start + 1), BATCH):
            count = min(BATCH, end - offset)
            yield offset, data[at : at + count] if count < len(data) else data
            at += count


def _read_pieces(file: int) -> Iterator[tuple[int, bytes]]:
    """Read a file of the host in pieces. It may grow meanwhile; the receiver limits the size."""
    offset = 0
    while True:
        parts, size = [b""], 0
        while size < BATCH and (chunk := os.read(file, BATCH - size)):
            parts.append(chunk)
            size += len(chunk)
        if size or offset == 0:
            yield offset, b"".join(parts)
        if size < BATCH:
            return
        offset += size


def _parse_ranges(value: Any) -> Ranges:
    """Parse ranges from an untrusted box."""
    ranges: list[tuple[int, int]] = []
    last = 0
    for row in cast("list[Any]", value) if isinstance(value, list) else [None]:
        match row:
            case [int(start), int(end)] if last <= start < end < 1 << 62:
                ranges.append((start, end))
                last = end
            case _:
                raise WireError("the box sent malformed ranges of a file")
    return tuple(ranges)


def _batches(ranges: Ranges) -> Iterator[list[tuple[int, int]]]:
    """Group ranges into messages: large ones are split, small ones are combined."""
    batch: list[tuple[int, int]] = []
    size = 0
    for start, end in ranges:
        while start < end:
            stop = min(end, start + BATCH - size)
            batch.append((start, stop))
            size += stop - start
            start = stop
            if size == BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _same_contents(one: Entry, other: Entry) -> bool:
    return one.info.kind == other.info.kind and (one.digest, one.ranges, one.info.size) == (
        other.digest,
        other.ranges,
        other.info.size,
    )


def _seen(row: Any) -> Seen:
    """Parse one line of a listing from an untrusted box."""
    match row:
        case [
            str(path),
            str(kind),
            int(size),
            int(mode),
            int(mtime),
            str() | None as target,
            int(inode),
            int(changed),
            int(allocated),
        ] if kind in KINDS and size >= 0 and path and len(path) <= 100_000:
            info = FileInfo(path=path, kind=kind, size=size, mode=mode & 0o7777, mtime_ns=mtime, target=target)
            return Seen(info, inode, changed, allocated)
        case _:
            raise WireError("the box sent a malformed listing")


# ---- writing below a folder of the host, with names that hostile code chose ----


def _check_name(info: FileInfo) -> None:
    parts = info.path.split("/")
    if "" in parts or "." in parts or ".." in parts or not _usable(info.path) or not all(map(_usable_part, parts)):
        raise WireError(f"the box named a file {info.path[:80]!r}")
    if info.target is not None and not _usable(info.target):
        raise WireError(f"the box made a link to {info.target[:80]!r}")
    if info.kind == "symlink":
        target = info.target or ""
        steps = [step for step in target.split("/") if step not in {"", "."}]
        up = steps.count("..")
        # A name may itself be a link, so a ".." behind one can lead anywhere: all of them must come first.
        if not target or target.startswith("/") or up >= len(parts) or ".." in steps[up:] or "\0" in target:
            raise file_error(40, info.path, f"a link that leads out of the folder ({target[:80]!r}) is not downloaded")


def _usable(text: str) -> bool:
    try:
        return len(os.fsencode(text)) < 4000 and "\0" not in text
    except UnicodeEncodeError:
        return False


def _usable_part(part: str) -> bool:
    return _usable(part) and len(os.fsencode(part)) <= 255


def _check_tree(infos: list[FileInfo]) -> None:
    """Check that each name is unique and below a folder that was listed before it, so that entries cannot conflict."""
    kinds: dict[str, str] = {"": "dir"}
    for info in infos:
        parent = info.path.rpartition("/")[0]
        if info.path in kinds or kinds.get(parent) != "dir":
            raise WireError(f"the box's listing is no tree at {info.path[:80]!r}")
        kinds[info.path] = info.kind


def _open_parent(root: int, path: str) -> tuple[int, str]:
    """Open the folder that holds a path, step by step without following a link."""
    *folders, name = path.split("/")
    fd = os.dup(root)
    for folder in folders:
        try:
            deeper = os.open(folder, FOLDER | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = deeper
    return fd, name


def _make_folder(root: int, path: str) -> None:
    parent, name = _open_parent(root, path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    finally:
        os.close(parent)


def _write_beneath(root: int, info: FileInfo, data: bytes) -> None:
    parent, name = _open_parent(root, info.path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), info.mode & 0o777)
    finally:
        os.close(parent)


def _set_mode(root: int, info: FileInfo) -> None:
    """Set a folder's mode through a descriptor: by now its name may be a link to something else."""
    parent, name = _open_parent(root, info.path)
    try:
        with _opened(name, FOLDER | os.O_NOFOLLOW, parent) as folder:
            os.fchmod(folder, info.mode & 0o777)
    finally:
        os.close(parent)


def _link_beneath(root: int, info: FileInfo) -> None:
    parent, name = _open_parent(root, info.path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        os.symlink(info.target or "", name, dir_fd=parent)
    finally:
        os.close(parent)
