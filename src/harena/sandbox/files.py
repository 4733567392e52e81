"""Files of a box, read and written by a server inside it with the guest's own rights, and snapshots of them.

A snapshot is plain data on the host: what each path was, and the contents by digest. Taking one reads the metadata of
everything and the contents of what changed since the last; restoring sends only what differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harena.errors import SpecError, WireError, file_error
from harena.sandbox import wire
from harena.sandbox.channel import Channel
from harena.sandbox.spec import MB, WORKSPACE, FileInfo, workspace_path

MAX_READ = 32 * MB
MAX_ENTRIES = 200_000
BATCH = 16 * MB
ANSWER_S = 60.0
RACY_NS = 50_000_000
"""A file changed this shortly before a scan may change again without its times showing it; it is read again."""
KINDS = frozenset({"file", "dir", "symlink", "other"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    info: FileInfo
    digest: str | None
    """SHA-256 of a file's contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The workspace at one moment. Holds for any box, also after the one it was taken from is closed."""

    entries: Mapping[str, Entry]
    blobs: Mapping[str, bytes]

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True)
class Seen:
    info: FileInfo
    inode: int
    changed_ns: int


class Files:
    """The host's side of the file server."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, int, int, str]] = {}
        self._blobs: dict[str, bytes] = {}

    def close(self) -> None:
        self._channel.close()

    def read(self, path: str, max_bytes: int) -> bytes:
        if not 0 <= max_bytes <= MAX_READ:
            raise SpecError(f"max_bytes={max_bytes}: at most {MAX_READ} in one call; `download` takes more")
        _, data = self._call({"op": "read", "path": workspace_path(path), "max_bytes": max_bytes}, path=path)
        if len(data) > max_bytes:
            raise WireError("the box sent more of a file than was asked for")
        return data

    def write(self, path: str, data: bytes, mode: int) -> None:
        if len(data) > MAX_READ:
            raise SpecError(f"{len(data)} bytes: at most {MAX_READ} in one call; `upload` takes more")
        self._call({"op": "write", "path": workspace_path(path), "mode": mode & 0o777}, data, path=path)

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
        """Copies a folder of the host into the box: files, folders, links and modes. Returns the number of entries."""
        if not source.is_dir():
            raise SpecError(f"{source}: not a folder")
        top = workspace_path(path)
        changes = Changes(top)
        for folder, names, files in os.walk(source):
            relative = os.path.relpath(folder, source)
            prefix = "" if relative == "." else relative + "/"
            for name in sorted([*names, *files]):
                found = Path(folder, name)
                info = found.lstat()
                where = f"{top}/{prefix}{name}"
                mode = stat.S_IMODE(info.st_mode) & 0o777
                if stat.S_ISLNK(info.st_mode):
                    changes.make(where, "symlink", mode, info.st_mtime_ns, os.readlink(found))
                elif stat.S_ISDIR(info.st_mode):
                    changes.make(where, "dir", mode, info.st_mtime_ns)
                elif stat.S_ISREG(info.st_mode):
                    changes.make(where, "file", mode, info.st_mtime_ns, data=found.read_bytes())
                else:
                    raise SpecError(f"{found}: neither a file, a folder nor a link")
                if changes.size > BATCH:
                    self._apply(changes)
        self._apply(changes)
        return changes.count

    def download(self, path: str, target: Path, max_bytes: int) -> int:
        """Copies a folder of the box to the host. Links are made as links and never followed; a name or a target that
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
            for info, data in self._contents(top, [info for info in infos if info.kind == "file"], max_bytes):
                _write_beneath(root, info, data)
            for info in infos:
                if info.kind == "symlink":
                    _link_beneath(root, info)
            for info in reversed(folders):
                parent, name = _open_parent(root, info.path)
                try:
                    os.chmod(name, info.mode & 0o777, dir_fd=parent)
                finally:
                    os.close(parent)
        finally:
            os.close(root)
        return len(infos)

    # ---- snapshots ----

    def snapshot(self, max_bytes: int) -> Snapshot:
        with self._lock:
            found, now = self._scan(WORKSPACE, True, MAX_ENTRIES, insist=True)
            fresh = [seen for seen in found if seen.info.kind == "file" and not self._unchanged(seen)]
            digests: dict[str, str] = {}
            blobs = dict(self._blobs)
            for info, data in self._contents(WORKSPACE, [seen.info for seen in fresh], max_bytes, insist=True):
                digest = hashlib.sha256(data).hexdigest()
                digests[info.path] = digest
                blobs[digest] = data
            entries: dict[str, Entry] = {}
            known: dict[str, tuple[int, int, int, str]] = {}
            for seen in found:
                path = seen.info.path
                if seen.info.kind == "other":
                    continue
                digest = digests.get(path) or (self._known[path][3] if self._unchanged(seen) else None)
                if seen.info.kind == "file" and digest is None:
                    continue  # it vanished between the listing and the reading
                entries[path] = Entry(info=seen.info, digest=digest if seen.info.kind == "file" else None)
                if seen.info.kind == "file" and digest is not None and seen.changed_ns < now - RACY_NS:
                    known[path] = (seen.inode, seen.changed_ns, seen.info.size, digest)
            used = {entry.digest for entry in entries.values()}
            self._blobs = {digest: data for digest, data in blobs.items() if digest in used}
            self._known = known
            return Snapshot(entries=entries, blobs=self._blobs)

    def restore(self, snapshot: Snapshot) -> None:
        """Makes the workspace what it was: what came later is removed, what went is back."""
        now = self.snapshot(1 << 40)
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
            same = present is not None and present.info.kind == info.kind
            if same and present is not None and present.info == info and present.digest == entry.digest:
                if info.kind == "dir":
                    changes.make(where, "dir", info.mode, info.mtime_ns)  # its time moves with what happens inside
                continue
            if info.kind == "file" and entry.digest is not None:
                kept = same and present is not None and present.digest == entry.digest
                changes.make(
                    where, "file", info.mode, info.mtime_ns, data=None if kept else snapshot.blobs[entry.digest]
                )
            else:
                changes.make(where, info.kind, info.mode, info.mtime_ns, info.target)
            if changes.size > BATCH:
                self._apply(changes)
        self._apply(changes)

    others: tuple[str, ...] = ()
    """Sockets, pipes and the like, found by the last scan: not kept, and removed by a restore."""

    # ---- the wire ----

    def _unchanged(self, seen: Seen) -> bool:
        known = self._known.get(seen.info.path)
        return known is not None and known[:3] == (seen.inode, seen.changed_ns, seen.info.size)

    def _scan(self, top: str, recursive: bool, max_entries: int, *, insist: bool = False) -> tuple[list[Seen], int]:
        """`insist`, here and below: what the guest shut to itself is opened for a moment, and seen all the same."""
        request = {"op": "list", "path": top, "recursive": recursive, "max_entries": max_entries, "insist": insist}
        answer, _ = self._call(request, path=top)
        rows, now = answer.get("entries"), answer.get("now")
        if not isinstance(rows, list) or not isinstance(now, int):
            raise WireError("the box sent something else than a listing")
        found = [_seen(row) for row in cast("list[Any]", rows)]
        self.others = tuple(seen.info.path for seen in found if seen.info.kind == "other")
        return found, now

    def _contents(
        self, top: str, infos: list[FileInfo], max_bytes: int, *, insist: bool = False
    ) -> Iterable[tuple[FileInfo, bytes]]:
        """The files' bytes, fetched in batches. One that is gone by now is left out."""
        left = max_bytes
        while infos:
            batch, size = [infos[0]], infos[0].size
            for info in infos[1:]:
                if size + info.size > BATCH or len(batch) >= 4096:
                    break
                batch.append(info)
                size += info.size
            infos = infos[len(batch) :]
            request: dict[str, Any] = {
                "op": "fetch",
                "paths": [f"{top}/{info.path}" for info in batch],
                "insist": insist,
            }
            answer, data = self._call(request | {"max_bytes": min(left, MAX_READ)}, path=top)
            sizes = answer.get("sizes")
            if not isinstance(sizes, list) or len(cast("list[Any]", sizes)) != len(batch):
                raise WireError("the box sent something else than the files that were asked for")
            if len(data) > min(left, MAX_READ):
                raise WireError("the box sent more than was asked for")
            left -= len(data)
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
        frame = self._channel.request(wire.Op.CALL, wire.encode_call(message, blob), timeout_s=ANSWER_S)
        if frame.op != wire.Op.ANSWER:
            raise WireError("the file server sent something else than an answer")
        answer, data = wire.parse_answer(frame.body)
        number = answer.get("errno")
        if number is not None:
            detail = answer.get("detail")
            if not isinstance(number, int) or not isinstance(detail, str):
                raise WireError("the file server sent a malformed error")
            raise file_error(number, path, detail[:500])
        return answer, data


class Changes:
    """What one `apply` will do, collected."""

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
        if data is not None and len(data) > MAX_READ:
            raise SpecError(f"{path}: {len(data)} bytes, more than the {MAX_READ} of one file")
        self.makes.append([path, kind, mode, mtime_ns, target, -1 if data is None else len(data)])
        if data is not None:
            self.parts.append(data)
            self.size += len(data)
        self.size += 100
        self.count += 1


def _seen(row: Any) -> Seen:
    """One line of a listing, as a hostile box sent it."""
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
        ] if kind in KINDS and size >= 0 and path and len(path) <= 100_000:
            info = FileInfo(path=path, kind=kind, size=size, mode=mode & 0o7777, mtime_ns=mtime, target=target)
            return Seen(info, inode, changed)
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
    """Each name once, each below a folder that was listed before it: then nothing can be in the way of anything."""
    kinds: dict[str, str] = {"": "dir"}
    for info in infos:
        parent = info.path.rpartition("/")[0]
        if info.path in kinds or kinds.get(parent) != "dir":
            raise WireError(f"the box's listing is no tree at {info.path[:80]!r}")
        kinds[info.path] = info.kind


def _open_parent(root: int, path: str) -> tuple[int, str]:
    """The folder that holds a path, opened step by step without following a link."""
    *folders, name = path.split("/")
    fd = os.dup(root)
    for folder in folders:
        try:
            deeper = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
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


def _link_beneath(root: int, info: FileInfo) -> None:
    parent, name = _open_parent(root, info.path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        os.symlink(info.target or "", name, dir_fd=parent)
    finally:
        os.close(parent)
