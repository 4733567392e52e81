"""Unpacks layers of images into folders that overlayfs mounts.

A layer is a folder of its own:

    <layer>/            mode 0700, owned by the container's root, so that no other user reaches a setuid program in it
      tree/             the files: a lower layer for overlayfs with the option `userxattr`
      owners            only with single ids: owners from the archive that the disk cannot have
      layer.json        format, ids, number of files and bytes; `opaque`: the layer hides all layers below it;
                        `implied`: number of folders that the archive did not have, made with mode 0755

In `tree` a whiteout is a character device 0/0, and a folder that hides those of lower layers has the extended
attribute user.overlay.opaque=y. With full ids files have the owners of the archive, seen from the user namespace of
`Ids`. With single ids the calling user owns every file, and `owners` has one record `uid gid path\\0` for each file
whose owner is not 0:0; of several records for one path the last counts.

The folders above a layer may be closed to the ids of the container. To mount it, make the user and mount namespaces,
map the ids, open `tree`, and only then become root inside: until then the caller's own rights still open those folders.
Overlayfs takes /proc/self/fd/N, but no descriptor from before the mount namespace.

`unpack_layer` makes a layer whole or not at all. It works in a folder beside the target whose name begins with
`STAGING`, and renames it at the end. When the process is killed that folder stays; `sweep` removes such folders.
Nothing is synced to disk unless asked for, so after a power cut a layer may have lost data that a crash of the process
would not lose.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import io
import json
import os
import secrets
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harena.errors import HarenaError
from harena.images.errors import ImageError
from harena.images.unpack.caps import Caps as Caps
from harena.images.unpack.ids import Ids
from harena.images.unpack.jail import Jail
from harena.terminal import safe

STAGING = ".unpacking-"
TREE, OWNERS, ABOUT = "tree", "owners", "layer.json"
FORMAT = 1

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Unpacked:
    """What a layer has: members of the archive with the folders they imply, and bytes of all files."""

    files: int
    bytes: int


def unpack_layer(stream: BinaryIO, target: Path, *, ids: Ids, caps: Caps | None = None, sync: bool = False) -> Unpacked:
    """Unpack the uncompressed tar archive `stream`, read to its end, into the new folder `target`.

    Raises `ImageError` when the archive is refused or cannot be stored; then nothing is left. What `stream.read` raises
    is passed on, so a stream may check sizes and digests itself. With `sync` the layer is on disk before it appears.
    """
    caps = caps or Caps()
    with _staging(target.parent, ids) as (folder, lock):
        tree = folder / TREE
        tree.mkdir(mode=0o700)
        _give(tree, ids)
        owners = -1
        if ids.kind == "single":
            owners = os.open(folder / OWNERS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            report = _unpack(stream, tree, lock, owners, ids, caps)
        finally:
            if owners >= 0:
                os.close(owners)
        about = {"format": FORMAT, "ids": ids.name, **dataclasses.asdict(report)}
        (folder / ABOUT).write_text(json.dumps(about) + "\n")
        if sync:
            _sync(folder)
        try:
            if target.exists():
                raise FileExistsError
            os.rename(folder, target)
        except OSError as error:
            raise ImageError(f"the layer cannot be put at {target}: {error.strerror or 'it exists'}") from None
        if sync:
            _sync(target.parent)
    return Unpacked(report.files, report.bytes)


def remove_layer(target: Path, *, ids: Ids) -> None:
    """Remove a layer that was unpacked with the same ids. It disappears at once, even if its files take a while."""
    hidden = target.parent / (STAGING + secrets.token_hex(8))
    os.rename(target, hidden)
    _discard(hidden, ids)


def sweep(folder: Path, *, ids: Ids) -> int:
    """Remove what killed processes left in a folder of layers, and return how many such folders there were."""
    count = 0
    for path in folder.glob(STAGING + "*"):
        # One that cannot be removed, because other ids own it, keeps no other from being removed.
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError, ImageError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _discard(path, ids)
                count += 1
            finally:
                os.close(lock)
    return count


@dataclass(frozen=True)
class _Report:
    files: int
    bytes: int
    opaque: bool
    implied: int


@contextlib.contextmanager
def _staging(parent: Path, ids: Ids) -> Any:
    """A folder that `sweep` leaves alone while this process, or one that works in it, lives."""
    while True:
        folder = parent / (STAGING + secrets.token_hex(8))
        folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock), folder.stat()):
                break
            os.close(lock)
        except FileNotFoundError:
            pass  # a sweep was quicker than our lock
    try:
        _give(folder, ids)
        yield folder, lock
    except BaseException as error:
        try:
            _discard(folder, ids)
        except (HarenaError, OSError) as second:
            error.add_note(f"{folder} is left behind: {second}")
        raise
    finally:
        os.close(lock)


def _give(folder: Path, ids: Ids) -> None:
    folder.chmod(0o700)  # a parent may pass on its setgid bit
    if (os.geteuid(), os.getegid()) != ids.owner:
        os.chown(folder, *ids.owner)


def _discard(folder: Path, ids: Ids) -> None:
    """Remove a folder with everything in it, as the container's root: nobody else may enter all of its folders."""
    with contextlib.suppress(FileNotFoundError):
        with Jail("remove", folder, ids, stdin=subprocess.DEVNULL) as jail:
            answer = jail.answer()
        if answer:
            raise ImageError(f"{folder} cannot be removed: {safe(str(answer.get('error', '')))[:300]}")
        folder.rmdir()


def _unpack(stream: BinaryIO, tree: Path, lock: int, owners: int, ids: Ids, caps: Caps) -> _Report:
    source = _plain_file(stream)
    reader = writer = -1
    if source is None:
        reader, writer = os.pipe()
        with contextlib.suppress(OSError):  # the pipes of one user may have reached their quota
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _CHUNK)
    try:
        stdin = reader if source is None else source
        with Jail("unpack", tree, ids, stdin=stdin, lock=lock, owners=owners, caps=caps) as jail:
            if source is None:
                os.close(reader)
                reader = -1
                _feed(stream, writer)
                os.close(writer)
                writer = -1
            report = _checked(jail.answer(), caps)
            if source is not None:
                stream.seek(0, os.SEEK_END)
            return report
    finally:
        for end in (reader, writer):
            if end >= 0:
                os.close(end)


def _plain_file(stream: BinaryIO) -> int | None:
    """Descriptor of a stream that is a regular file and nothing more: it can be read without us."""
    if type(stream) not in (io.FileIO, io.BufferedReader) or type(getattr(stream, "raw", stream)) is not io.FileIO:
        return None
    number = stream.fileno()
    if not stat.S_ISREG(os.fstat(number).st_mode):
        return None
    os.lseek(number, stream.tell(), os.SEEK_SET)
    return number


def _feed(stream: BinaryIO, pipe: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # then the answer says why
        while chunk := stream.read(_CHUNK):
            view = memoryview(chunk)
            while view:
                view = view[os.write(pipe, view) :]


def _checked(answer: dict[str, Any], caps: Caps) -> _Report:
    """The report of a process that may have been taken over: it is believed within the caps only."""
    error = answer.get("error")
    if isinstance(error, str):
        raise ImageError(f"layer refused: {safe(error)[:600]}")
    files, size, opaque, implied = (answer.get(key) for key in ("files", "bytes", "opaque", "implied"))
    if (
        set(answer) != {"files", "bytes", "opaque", "implied"}
        or type(files) is not int
        or type(size) is not int
        or type(implied) is not int
        or type(opaque) is not bool
        or not 0 <= implied <= files <= caps.files
        or not 0 <= size <= caps.bytes
    ):
        raise ImageError("layer refused: the unpacking process broke its protocol")
    return _Report(files, size, opaque, implied)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(number):
            raise ImageError(f"{folder} cannot be synced: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(number)
