"""The file server: reads, writes and lists files with the guest's own rights, which are all it has."""

from __future__ import annotations

import errno
import os
import stat
import time

from .program import write_all

MAX_RANGES = 100_000
GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)


def safe_kind(mode):
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def entry_of(path, name):
    info = os.lstat(path)
    kind = safe_kind(info.st_mode)
    target = os.readlink(path) if kind == "symlink" else None
    return [
        name,
        kind,
        info.st_size,
        stat.S_IMODE(info.st_mode),
        info.st_mtime_ns,
        target,
        info.st_ino,
        info.st_ctime_ns,
        info.st_blocks * 512,
    ]


class Opened:
    """Paths that their owner shut to himself, opened for as long as a snapshot or a restore needs them. Leaving gives
    each its mode back, or the one that was wanted for it meanwhile."""

    def __init__(self):
        self.modes, self.times = {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.modes:
            path = max(self.modes, key=len)  # what lies inside comes first
            try:
                self.insist(path, os.chmod, path, self.modes[path])
                if path in self.times:
                    os.utime(path, ns=(self.times[path], self.times[path]))
            except FileNotFoundError:
                pass
            del self.modes[path]

    def want(self, folder, mode, mtime_ns):
        self.modes[folder], self.times[folder] = mode & 0o1777, mtime_ns

    def open(self, path):
        info = os.lstat(path)
        mode = stat.S_IMODE(info.st_mode)
        need = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o400}.get(stat.S_IFMT(info.st_mode), 0)
        if mode & need != need and info.st_uid == os.getuid():
            self.modes.setdefault(path, mode)
            os.chmod(path, mode | need)

    def open_way(self, path):
        """Opens the folders that lead to a path."""
        end = path.find("/", 1)
        while end > 0:
            self.open(path[:end])
            end = path.find("/", end + 1)

    def insist(self, path, action, *arguments):
        """Does it, on the second try with the way opened."""
        try:
            return action(*arguments)
        except PermissionError:
            self.open_way(path)
            return action(*arguments)

    def open_file(self, path):
        """Open a file for reading, on the second try with everything opened."""
        try:
            return open_file(path, os.O_NOFOLLOW)
        except PermissionError:
            self.open_way(path)
            self.open(path)
            return open_file(path, os.O_NOFOLLOW)


def walk(top, prefix="", depth=0, opened=None):
    if depth > 200:
        raise OSError(errno.ELOOP, "folders are nested more than 200 deep", top)
    try:
        if opened:
            opened.open(top)
        with os.scandir(top) as entries:
            names = sorted(entry.name for entry in entries)
    except FileNotFoundError:
        if depth:
            return  # it went while we looked
        raise
    for name in names:
        path, shown = f"{top}/{name}", f"{prefix}{name}"
        try:
            entry = entry_of(path, shown)
        except FileNotFoundError:
            continue
        yield entry
        if entry[1] == "dir":
            yield from walk(path, shown + "/", depth + 1, opened)


def open_file(path, flags=0):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "is a folder", path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_at(fd, offset, size):
    """Up to size bytes; fewer only at the file's end."""
    parts = []
    while size > 0:
        chunk = os.pread(fd, min(size, 1 << 20), offset)
        if not chunk:
            break
        parts.append(chunk)
        offset += len(chunk)
        size -= len(chunk)
    return b"".join(parts)


def data_ranges(fd, size):
    """Where a file with holes has data: [start, end] each."""
    ranges, at = [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole to the end
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < at:
            ranges.append([start, at])
        if len(ranges) > MAX_RANGES:
            raise OSError(errno.EFBIG, f"a file with more than {MAX_RANGES} holes")
    return ranges


def part_of(path, token):
    """Where a file is put together. Its name is short: the file's own may be as long as names can be."""
    return f"{os.path.dirname(path)}/.{os.getpid()}.{token}.part"


def write_part(path, token, offset, data):
    """One piece of a file that comes in several; `finish_part` puts it in its place."""
    beside = part_of(path, token)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        write_all(fd, data)
    except BaseException:
        os.unlink(beside)
        raise
    finally:
        os.close(fd)


def finish_part(path, token, size, mode):
    """Replaces in one step, so that a reader never sees half of it."""
    beside = part_of(path, token)
    try:
        os.truncate(beside, size)
        os.chmod(beside, mode & 0o1777)
        os.replace(beside, path)
    except BaseException:
        os.chmod(beside, 0o600)  # in a folder that is shut it stays, for a second try
        os.unlink(beside)
        raise


def write_file(path, data, mode):
    write_part(path, 0, 0, data)
    finish_part(path, 0, len(data), mode)


def check_writable(path):
    """A file is replaced, which its folder's rights decide; its own shall count as well, as where it is opened."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise OSError(errno.EISDIR, "is a folder", path)
    if os.path.isfile(path) and not os.path.islink(path) and not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, "not writable", path)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        try:
            shutil.rmtree(path)
        except PermissionError:
            open_folders(path)
            shutil.rmtree(path)
    else:
        os.unlink(path)


def open_folders(top):
    """Lets the owner into folders that he made read-only."""
    os.chmod(top, 0o700)
    with os.scandir(top) as entries:
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        open_folders(folder)


def make(path, kind, mode, mtime_ns, target, data):
    """One entry of a described state. Without data a file keeps what it has. Modes and times of folders come last."""
    if kind == "part":
        return write_part(path, target, mtime_ns, data)
    if kind == "whole":
        kind, (token, size) = "file", target
        finish_part(path, token, size, mode)
    if kind == "dir":
        os.makedirs(path, exist_ok=True)
        return
    if kind == "symlink":
        if os.path.lexists(path):
            remove(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    elif data is None:
        os.chmod(path, mode & 0o1777)
    else:
        write_file(path, data, mode)
    os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


class FileServer:
    """File operations with the guest's own rights: a link leads nowhere that the guest could not go itself."""

    def __init__(self, settings):
        os.umask(0o022)

    def handle(self, request, blob):
        return getattr(self, "do_" + request["op"])(request, blob)

    def do_read(self, request, blob):
        """Ranges of a file, and which file it was: a second call may find another one."""
        with Opened() as opened:
            fd = opened.open_file(request["path"]) if request["insist"] else open_file(request["path"])
            try:
                data = [read_at(fd, start, end - start) for start, end in request["ranges"]]
                info = os.fstat(fd)
            finally:
                os.close(fd)
        return {"file": info.st_ino, "size": info.st_size}, b"".join(data)

    def do_ranges(self, request, blob):
        with Opened() as opened:
            fd = opened.open_file(request["path"])
            try:
                info = os.fstat(fd)
                return {"ranges": data_ranges(fd, info.st_size), "file": info.st_ino, "size": info.st_size}, b""
            finally:
                os.close(fd)

    def do_write(self, request, blob):
        path, token = request["path"], request["token"]
        if request["offset"] == 0:
            check_writable(path)
        write_part(path, token, request["offset"], blob)
        if request["last"]:
            finish_part(path, token, request["offset"] + len(blob), request["mode"])
        return {}, b""

    def do_list(self, request, blob):
        entries = []
        now = time.time_ns()
        top = request["path"]
        with Opened() as opened:
            for entry in (
                walk(top, opened=opened if request["insist"] else None)
                if request["recursive"]
                else (entry_of(f"{top}/{n}", n) for n in sorted(os.listdir(top)))
            ):
                entries.append(entry)
                if len(entries) > request["max_entries"]:
                    raise OSError(errno.EFBIG, f"more than {request['max_entries']} entries", top)
        return {"entries": entries, "now": now}, b""

    def do_sha256(self, request, blob):
        import hashlib

        digest = hashlib.sha256()
        fd = open_file(request["path"])
        try:
            while chunk := os.read(fd, 1 << 20):
                digest.update(chunk)
        finally:
            os.close(fd)
        return {"sha256": digest.hexdigest()}, b""

    def do_remove(self, request, blob):
        remove(request["path"])
        return {}, b""

    def do_fetch(self, request, blob):
        """Several files, one after the other; -1 for one that is gone or no longer a file."""
        sizes, parts, room = [], [], request["max_bytes"]
        with Opened() as opened:
            for path in request["paths"]:
                try:
                    fd = opened.open_file(path) if request["insist"] else open_file(path)
                except OSError as error:
                    if error.errno not in GONE:
                        raise
                    sizes.append(-1)
                    continue
                try:
                    data = read_at(fd, 0, room + 1)
                finally:
                    os.close(fd)
                if len(data) > room:
                    raise OSError(errno.EFBIG, f"larger than the {request['max_bytes']} bytes asked for", path)
                sizes.append(len(data))
                parts.append(data)
                room -= len(data)
        return {"sizes": sizes}, b"".join(parts)

    def do_apply(self, request, blob):
        """Brings the folder to a described state: removals, then folders, files, links, then modes and times."""
        at = 0
        with Opened() as opened:
            for path in request["remove"]:
                try:
                    opened.insist(path, remove, path)
                except FileNotFoundError:
                    pass
            for path, kind, mode, mtime_ns, target, size in request["make"]:
                data = blob[at : at + size] if size >= 0 else None
                at += max(0, size)
                opened.insist(path, make, path, kind, mode, mtime_ns, target, data)
                if kind == "dir":
                    opened.want(path, mode, mtime_ns)
        return {}, b""
