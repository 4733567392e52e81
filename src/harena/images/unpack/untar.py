"""Program that unpacks a layer, or removes one, in a jail of its own. `jail` starts it.

It parses what strangers wrote, so before the first byte it gives up what it does not need: its root is the layer's
folder and nothing else is mounted; it is alone in its user, mount, pid, network, IPC and UTS namespaces; of its
capabilities, which count only for the ids of the layer, those over files are left; it can start no program. A mistake
in the parser reaches that folder and no further. Nothing is imported after the jail is closed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harena.images.unpack import seal
from harena.images.unpack.tar import FIFO, FILE, FOLDER, HARD, SYMLINK, TarArchive, TarError, TarMember

if TYPE_CHECKING:
    from harena.images.unpack.caps import Caps

OWNERS_BYTES = 1 << 16
DIRECT_BYTES = 1 << 18
"""The body of a file of this size or more goes from the stream to the disk without passing through this process."""

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = (b".wh..wh.aufs", b".wh..wh.orph", b".wh..wh.plnk")
"""Bookkeeping of an old storage driver. Other programs skip it too."""
_LINKS = 40
"""Symbolic links on the way to one file, as in the kernel."""

_Meta = tuple[int, int, int, int, "dict[bytes, bytes] | None"]
_IMPLIED: _Meta = (0o755, 0, 0, 0, None)


class LayerWriter:
    """Creates the members of a layer below the current folder, which nothing else changes meanwhile.

    Folders get their owner, mode and time at the end, so that the modes of the archive never stand in the way and
    times stay. Links are never followed by the kernel: a path is used only when each of its folders was made here.
    """

    def __init__(self, archive: TarArchive, caps: Caps, *, ids: int, owners: int) -> None:
        self._archive, self._caps = archive, caps
        self._ids, self._owners = ids, owners
        self._owned = bytearray()
        self._folders: dict[bytes, _Meta] = {b"": _IMPLIED}
        self._opaque: set[bytes] = set()
        self.files = self.bytes = 0

    def run(self) -> dict[str, Any]:
        archive = self._archive
        while (member := archive.next()) is not None:
            self._count()
            self._add(member)
        archive.name = b""
        archive.drain()
        for path, meta in self._folders.items():
            archive.name = path
            self._finish(path, meta)
        if self._owned:
            _write(self._owners, memoryview(self._owned))
        implied = sum(meta is _IMPLIED for path, meta in self._folders.items() if path)
        return {"files": self.files, "bytes": self.bytes, "opaque": b"" in self._opaque, "implied": implied}

    def _add(self, member: TarMember) -> None:
        name = member.name
        if name.startswith((b"./", b"/")):
            name = name.lstrip(b"/") if name.startswith(b"/") else name[2:]
        if name.endswith(b"/"):
            name = name.rstrip(b"/")
        parent, _, base = name.rpartition(b"/")
        # Whatever is in _folders is clean, so a parent found there needs no further look.
        if parent not in self._folders or base in (b"", b".", b"..") or len(base) > 255:
            found = self._locate(name)
            if found is None:
                return
            parent, base = found
            if not base:
                if member.kind is not FOLDER:
                    raise TarError("only a folder can be the root of a layer")
                self._folders[b""] = self._meta(member, b"")
                return
        if base.startswith(_WHITEOUT):
            self._white_out(parent, base)
            return
        path = parent + b"/" + base if parent else base
        if len(path) > self._caps.name_bytes:
            raise TarError(f"its path is longer than {self._caps.name_bytes} bytes")
        kind = member.kind
        if kind is FILE:
            self._file(path, member)
        elif kind is FOLDER:
            if path not in self._folders:
                self._folder(path)
            self._folders[path] = self._meta(member, path)
        elif kind is SYMLINK:
            self._replacing(os.symlink, member.link, path, at=path)
            self._own(path, member)
            os.utime(path, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=False)
        elif kind is HARD:
            self._hard_link(path, member.link)
        elif kind is FIFO:
            self._replacing(os.mkfifo, path, member.mode, at=path)
            self._own(path, member)
            os.chmod(path, member.mode)
            os.utime(path, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=False)
        else:  # a device: no box may use it, and overlayfs would take 0/0 for a whiteout
            self._forget(path)

    def _file(self, path: bytes, member: TarMember) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = member.mode
        size = member.size
        self.bytes += size
        if self.bytes > self._caps.bytes:
            raise TarError(f"the layer is larger than {self._caps.bytes} bytes")
        try:
            file = os.open(path, flags, mode & 0o777)
        except FileExistsError:
            self._clear(path)
            file = os.open(path, flags, mode & 0o777)
        try:
            archive = self._archive
            if member.parts is not None:
                self._sparse(file, member.parts, size)
            elif size:
                if archive.buffered >= size:
                    chunk = archive.take(size)
                    done = os.write(file, chunk)
                    if done != size:
                        _write(file, chunk[done:])
                else:
                    self._body(file, archive.left)
            if member.uid or member.gid:
                self._own(path, member, file)
            if mode & 0o7000:  # after the owner, whose change takes these bits away
                os.fchmod(file, mode)
            if member.xattrs:
                self._attributes(file, member.xattrs)
            os.utime(file, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            os.close(file)

    def _body(self, file: int, count: int) -> None:
        archive = self._archive
        end = archive.left - count
        while archive.left > end:
            wanted = archive.left - end
            if wanted >= DIRECT_BYTES and not archive.buffered:
                archive.passed(_move(file, wanted))
            else:
                _write(file, archive.take(wanted))

    def _sparse(self, file: int, parts: list[tuple[int, int]], size: int) -> None:
        os.ftruncate(file, size)
        for offset, length in parts:
            os.lseek(file, offset, os.SEEK_SET)
            self._body(file, length)

    def _folder(self, path: bytes) -> None:
        if path.count(b"/") >= self._caps.depth:
            raise TarError(f"it is deeper than {self._caps.depth} folders")
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            # A whiteout, or a file: either hides what lower layers have here, and so must the folder.
            os.unlink(path)
            os.mkdir(path, 0o700)
            self._opaque.add(path)

    def _hard_link(self, path: bytes, link: bytes) -> None:
        found = self._locate(link, create=False)
        missing = "it is a hard link to a file that this layer does not have"
        if found is None or not found[1]:
            raise TarError(missing)
        source = b"/".join(found).lstrip(b"/")
        if source == path:
            raise TarError("it is a hard link to itself")
        try:
            mode = os.lstat(source).st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise TarError(missing) from None
        if stat.S_ISDIR(mode) or stat.S_ISCHR(mode):  # whiteouts are the only devices here
            raise TarError("it is a hard link to something that is not a file")
        if path in self._folders and source.startswith(path + b"/"):
            raise TarError("it is a hard link into the folder that it replaces")
        try:
            os.link(source, path, follow_symlinks=False)
        except FileExistsError:
            self._clear(path)
            os.link(source, path, follow_symlinks=False)

    def _white_out(self, parent: bytes, base: bytes) -> None:
        if base == _OPAQUE:
            self._opaque.add(parent)
            return
        if base in _AUFS:
            return
        hidden = base[len(_WHITEOUT) :]
        if hidden in (b"", b".", b"..") or hidden.startswith(_WHITEOUT):
            raise TarError("it is not a valid whiteout")
        path = parent + b"/" + hidden if parent else hidden
        if path in self._folders:
            self._opaque.add(path)
            return
        # A whiteout hides what lower layers have, never what its own layer has.
        with contextlib.suppress(FileExistsError):
            os.mknod(path, stat.S_IFCHR, 0)

    def _locate(self, name: bytes, *, create: bool = True) -> tuple[bytes, bytes] | None:
        """Return the folder of a path and its last component; both are empty for the root.

        A link on the way is followed within the layer, as containerd and umoci do. Missing folders are made, or with
        `create=False` the path is reported as missing: None. None also stands for a path that is to be skipped.
        """
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise TarError("its path has '..'")
        if not parts:
            return b"", b""
        if len(parts) - 1 > self._caps.depth:
            raise TarError(f"it is deeper than {self._caps.depth} folders")
        if any(len(part) > 255 for part in parts):
            raise TarError("a part of its path is longer than 255 bytes")
        base = parts.pop()
        for part in parts:
            if part.startswith(_WHITEOUT):
                if part in _AUFS:
                    return None
                raise TarError("a folder has the name of a whiteout")
        parent = self._walk(parts, create=create)
        return None if parent is None else (parent, base)

    def _walk(self, parts: list[bytes], *, create: bool) -> bytes | None:
        folder = b""
        ahead = parts[::-1]
        links = 0
        while ahead:
            part = ahead.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":  # of a link
                folder = folder.rpartition(b"/")[0]
                continue
            path = folder + b"/" + part if folder else part
            if path not in self._folders:
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:
                    mode = 0
                if stat.S_ISLNK(mode):
                    links += 1
                    if links > _LINKS:
                        raise TarError("too many links on its path")
                    target = os.readlink(path)
                    if target.startswith(b"/"):
                        folder = b""
                    ahead += target.split(b"/")[::-1]
                    continue
                if not create:
                    return None
                if mode and not stat.S_ISCHR(mode):
                    raise TarError("its parent is not a folder")
                if part.startswith(_WHITEOUT):
                    raise TarError("a folder has the name of a whiteout")
                self._count()
                self._folder(path)
                self._folders[path] = _IMPLIED
            folder = path
        return folder

    def _count(self) -> None:
        self.files += 1
        if self.files > self._caps.files:
            raise TarError(f"the layer has more than {self._caps.files} files")

    def _replacing(self, make: Any, *arguments: Any, at: bytes) -> None:
        try:
            make(*arguments)
        except FileExistsError:
            self._clear(at)
            make(*arguments)

    def _clear(self, path: bytes) -> None:
        """Make room for a later member of the same name."""
        if path in self._folders:
            self._remove_folder(path)
        else:
            os.unlink(path)
        if self._owners >= 0:
            self._note(path, 0, 0)

    def _forget(self, path: bytes) -> None:
        """Remove what earlier members put at the place of one that is skipped. Whiteouts stay."""
        try:
            if not stat.S_ISCHR(os.lstat(path).st_mode):
                self._clear(path)
        except FileNotFoundError:
            pass

    def _remove_folder(self, path: bytes) -> None:
        pending = [path]
        found: list[bytes] = []
        while pending:
            folder = pending.pop()
            found.append(folder)
            with os.scandir(folder) as entries:
                for entry in list(entries):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        os.unlink(entry.path)
        for folder in reversed(found):
            os.rmdir(folder)
            del self._folders[folder]
            self._opaque.discard(folder)

    def _meta(self, member: TarMember, path: bytes) -> _Meta:
        if self._owners >= 0 and (member.uid or member.gid):
            self._note(path, member.uid, member.gid)
        return member.mode, member.uid, member.gid, member.mtime_ns, member.xattrs

    def _finish(self, path: bytes, meta: _Meta) -> None:
        mode, uid, gid, mtime_ns, xattrs = meta
        place = path or b"."
        if (uid or gid) and self._owners < 0:
            self._check(uid, gid)
            os.chown(place, uid, gid)
        os.chmod(place, mode)
        if xattrs:
            self._attributes(place, xattrs)
        if path in self._opaque:
            os.setxattr(place, "user.overlay.opaque", b"y")
        os.utime(place, ns=(mtime_ns, mtime_ns))

    def _own(self, path: bytes, member: TarMember, file: int = -1) -> None:
        uid, gid = member.uid, member.gid
        if not uid and not gid:
            return
        if self._owners >= 0:
            self._note(path, uid, gid)
            return
        self._check(uid, gid)
        if file >= 0:
            os.fchown(file, uid, gid)
        else:
            os.lchown(path, uid, gid)

    def _check(self, uid: int, gid: int) -> None:
        if max(uid, gid) >= self._ids:
            raise TarError(f"its owner {uid}:{gid} is beyond the {self._ids} ids that are mapped")

    def _note(self, path: bytes, uid: int, gid: int) -> None:
        self._owned += b"%d %d %s\0" % (uid, gid, path)
        if len(self._owned) >= OWNERS_BYTES:
            _write(self._owners, memoryview(self._owned))
            self._owned = bytearray()

    def _attributes(self, place: int | bytes, xattrs: dict[bytes, bytes]) -> None:
        for key, value in xattrs.items():
            if key.startswith(b"user.") and not key.startswith(b"user.overlay."):
                pass
            elif key == b"security.capability" and self._owners < 0:
                if len(value) == 24:  # version 3 names a root of some other host; the kernel adds ours
                    value = value[:3] + b"\2" + value[4:20]
            else:
                continue
            try:
                os.setxattr(place, key, value)
            except ValueError:
                raise TarError("an extended attribute has a zero byte in its name") from None
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise TarError(f"its extended attribute cannot be stored: {error.strerror}") from None


def _write(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _move(file: int, count: int) -> int:
    """Move bytes from the stream to a file within the kernel."""
    if stat.S_ISREG(os.fstat(0).st_mode):
        return os.sendfile(file, 0, None, count)
    return os.splice(0, file, count)


def remove() -> None:
    """Remove everything in the current folder, however deep it is."""
    pending = [_emptied()]
    while pending:
        if pending[-1]:
            os.chdir(pending[-1][-1])
            pending.append(_emptied())
            continue
        pending.pop()
        if pending:
            os.chdir("..")
            os.rmdir(pending[-1].pop())


def _emptied() -> list[bytes]:
    """Remove the files of the current folder and return its folders."""
    folders: list[bytes] = []
    with os.scandir(b".") as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name)
    return folders


def shown(name: bytes) -> str:
    """A member's name for a message."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return text if len(text) <= 200 else text[:150] + "…" + text[-49:]


def work(order: dict[str, Any]) -> dict[str, Any]:
    """What happens in the jail."""
    if order["verb"] == "remove":
        remove()
        return {}
    caps = cast("Caps", SimpleNamespace(**order["caps"]))
    archive = TarArchive(lambda view: os.readv(0, [view]), caps)
    writer = LayerWriter(archive, caps, ids=order["ids"], owners=order["owners"])
    try:
        return writer.run()
    except TarError as error:
        reason = str(error)
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except MemoryError:
        reason = "its names and folders need too much memory"
    return {"error": f"{shown(archive.name)}: {reason}" if archive.name else reason}


def main(text: str) -> None:
    order = json.loads(text)
    control: int = order["control"]
    try:
        child = seal.enter(order["folder"], control, full=order["full"])
    except OSError as error:
        os.write(control, json.dumps({"host": f"{error.filename or 'ids'}: {error.strerror}"}).encode())
        return
    if child:
        os.close(control)
        os.close(0)
        # This process keeps the lock on the folder until the one inside is gone.
        status = os.waitpid(child, 0)[1]
        os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
    # These descriptors lead out of the new root.
    os.close(order["folder"])
    if order["lock"] >= 0:
        os.close(order["lock"])
    seal.close(order["limits"])
    os.write(control, json.dumps(work(order)).encode())
    os._exit(0)
