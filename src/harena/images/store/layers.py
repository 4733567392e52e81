"""Folders of layers: made whole or not at all, set aside while nobody uses them, and removed.

See `image_store` for the layout and the locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import json
import os
import secrets
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from harena.images import files
from harena.images.errors import BadImage, ImageError
from harena.images.files import explained, read_json
from harena.images.reference import Digest
from harena.images.store.compress import PlainStream
from harena.images.store.leases import LAYER, PINS, ImageLayer

if TYPE_CHECKING:
    from harena.images.unpack.caps import Caps
    from harena.images.unpack.ids import Ids

VERSION = 1

Progress = Callable[[str, str, int, int], None]
"""Called from several threads with a stage (`download`, `wait`, `unpack` or `done`), a layer, and bytes done and in
total."""


class LayerStore:
    """The layers of a store, and its locks."""

    def __init__(self, folder: Path, ids: Ids | None, caps: Caps | None) -> None:
        self.folder, self._ids, self._caps = folder, ids, caps

    @functools.cached_property
    def ids(self) -> Ids:
        from harena.images.unpack.ids import Ids

        return self._ids or Ids.of_host()

    @functools.cached_property
    def caps(self) -> Caps:
        from harena.images.unpack.caps import Caps

        return self._caps or Caps()

    @functools.cached_property
    def own(self) -> Path:
        """Folder of the layers that this process can mount."""
        return self.folder / "layers" / self.ids.name

    def folder_of(self, diff_id: Digest) -> Path:
        return self.own / file_name(diff_id)

    def bytes_of(self, diff_id: Digest) -> int:
        """Bytes of a layer's files, for all ids that it was unpacked for."""
        return sum(layer_size(ids / file_name(diff_id)) for ids in (self.folder / "layers").iterdir())

    @contextlib.contextmanager
    def locked(self, *, shared: bool) -> Generator[None]:
        with explained(f"the image store {self.folder} cannot be locked"):
            fd = files.open_locked(self.folder / "lock", shared=shared, create=True)
        assert fd is not None
        try:
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def staging(self, kind: str) -> Generator[Path]:
        """Make a locked folder in tmp. It is removed at the end, unless it was moved."""
        folder = self.folder / "tmp" / f"{kind}-{secrets.token_hex(8)}"
        with self.locked(shared=True):
            folder.mkdir(mode=0o700)
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            if files.is_at(fd, folder / "lock"):
                with contextlib.suppress(OSError, ImageError):
                    self.remove_tree(folder)
            os.close(fd)

    def pin_if_whole(self, folder: Path) -> bool:
        if not PINS.acquire(folder):
            return False
        if self.is_whole(folder):
            return True
        PINS.release([folder])
        return False

    def is_whole(self, folder: Path) -> bool:
        """Whether a layer is complete, also after a restart of the machine."""
        fields = read_json(folder / "layer.json")
        return fields is not None and (fields.get("boot") == boot_id() or (folder / "durable").exists())

    def is_pinned(self, folder: Path) -> bool:
        fd = files.open_locked(folder / "lock", wait=False)
        if fd is not None:
            os.close(fd)
            return False
        return (folder / "lock").exists()

    def unpack(self, file: BinaryIO, layer: ImageLayer, cancel: threading.Event, report: Progress) -> None:
        """Unpack a layer beside the others, check both digests, then move it to its place."""
        from harena.images.unpack.unpack import unpack_layer

        label, done = layer.diff_id.short, 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            report("unpack", label, done, layer.size)

        with explained("a layer cannot be unpacked"), self.staging("layer") as staging:
            stream = PlainStream(
                file,
                size=layer.size,
                cap=self.caps.archive_bytes,
                algorithm=layer.digest.algorithm,
                plain_algorithm=layer.diff_id.algorithm,
                is_cancelled=cancel.is_set,
                on_bytes=count,
            )
            try:
                reader = cast("BinaryIO", io.BufferedReader(stream, 1 << 20))
                unpacked = unpack_layer(reader, staging / LAYER, ids=self.ids, caps=self.caps)
                digest, diff_id = stream.finish()
            finally:
                stream.close()
            if digest != layer.digest.hex:
                raise BadImage(f"a layer does not have its digest {layer.digest.short}…: nothing was kept")
            if diff_id != layer.diff_id.hex:
                raise BadImage(f"a layer does not unpack to its diff-id {layer.diff_id.short}…: nothing was kept")
            fields = {
                "version": VERSION,
                "bytes": unpacked.bytes,
                "files": unpacked.files,
                "opaque": (read_json(staging / LAYER / "layer.json") or {}).get("opaque") is True,
                "boot": boot_id(),
            }
            (staging / "layer.json").write_bytes(json.dumps(fields).encode())
            self._publish(staging, self.folder_of(layer.diff_id))

    def _publish(self, staging: Path, folder: Path) -> None:
        with self.locked(shared=True):
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            if not self.is_whole(folder):
                self.set_aside(folder)
            try:
                os.rename(staging, folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another process was quicker
                    raise

    def make_durable(self, folders: Sequence[Path]) -> None:
        """Wait until the layers are on the disk, and note that. A layer without the note is not believed after a
        restart of the machine."""
        fresh = [folder for folder in folders if not (folder / "durable").exists()]
        if fresh:
            files.sync_disk(self.folder)
            for folder in fresh:
                (folder / "durable").touch(0o600)

    def set_aside(self, folder: Path) -> Path | None:
        """Move a layer to tmp, where it is no longer found. None: it is in use, or not there."""
        fd = files.open_locked(folder / "lock", wait=False)
        if fd is None and (folder / "lock").exists():
            return None
        try:
            target = self.folder / "tmp" / f"trash-{secrets.token_hex(8)}"
            os.rename(folder, target)
        except FileNotFoundError:
            return None
        finally:
            if fd is not None:
                os.close(fd)
        return target

    def left_over(self) -> list[Path]:
        """Find work in tmp whose process is gone. The caller holds the store's lock alone."""
        found: list[Path] = []
        for path in (self.folder / "tmp").iterdir():
            lock = path / "lock" if path.is_dir() and not path.is_symlink() else path
            fd = files.open_locked(lock, wait=False)
            if fd is None and lock.exists():
                continue
            if fd is not None:
                os.close(fd)
            found.append(path)
        return found

    def remove_tree(self, path: Path) -> None:
        try:
            files.remove_tree(path)
        except PermissionError:
            # Files of a full id map belong to others. The container's root may remove them.
            from harena.images.unpack.unpack import remove_layer

            for inner in path.iterdir():
                if inner.is_dir() and not inner.is_symlink():
                    remove_layer(inner, ids=self.ids)
            files.remove_tree(path)


def file_name(digest: Digest) -> str:
    return f"{digest.algorithm}-{digest.hex}"


def layer_size(folder: Path) -> int:
    size = (read_json(folder / "layer.json") or {}).get("bytes", 0)
    return size if isinstance(size, int) else 0


@functools.cache
def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
