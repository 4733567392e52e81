"""Images that are complete, and leases that keep their layers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harena.images import files
from harena.images.errors import ImageNotFound
from harena.images.files import explained, read_json
from harena.images.manifest import ImageConfig
from harena.images.reference import Digest

if TYPE_CHECKING:
    from harena.images.store.image_store import ImageStore

LAYER, TREE = "layer", "tree"
"""Names inside the folder of a layer: what the unpacker made, and the files in it."""


@dataclass(frozen=True, slots=True)
class ImageLayer:
    diff_id: Digest
    """Digest of the uncompressed layer, which names its folder."""
    digest: Digest
    size: int
    """Size of the blob in bytes."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image whose layers are complete in the store."""

    store: ImageStore = field(repr=False, compare=False)
    reference: str
    digest: str
    """What the name stands for at the registry: the digest of an index or of a manifest."""
    id: str
    """Digest of the config."""
    platform: str
    layers: tuple[ImageLayer, ...] = field(repr=False)
    config: ImageConfig = field(repr=False)
    used_at_s: float = field(default=0.0, repr=False, compare=False)

    def lease(self) -> Lease:
        """Pin the layers, so that nobody removes them until the lease is closed or this process ends."""
        return Lease(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of the files of all layers."""
        return sum(self.store.layers.bytes_of(diff_id) for diff_id in {layer.diff_id for layer in self.layers})


class Lease:
    """Layers that stay. A context manager; `close` is idempotent."""

    def __init__(self, image: Image) -> None:
        self.image = image
        store = image.store
        folders = store.folders_of(image)
        held: list[Path] = []
        try:
            for folder in folders:
                if not PINS.acquire(folder):
                    raise ImageNotFound(
                        f"a layer of {image.reference} was removed: run `harena image pull {image.reference}`"
                    )
                held.append(folder)
        except BaseException:
            PINS.release(held)
            raise
        self._folders = folders
        opaque = [at for at, folder in enumerate(folders) if PINS.is_opaque(folder)]
        seen = folders[opaque[-1] :] if opaque else folders
        self.layers: tuple[str, ...] = tuple(f"{folder}/{LAYER}/{TREE}" for folder in seen) or (store.empty_folder(),)
        """Absolute paths of the files of each layer, lowest first. What an opaque layer hides is left out."""
        store.note_use(image)

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors that hold the locks. A process that inherits them holds the layers until it ends."""
        return tuple(PINS.fd(folder) for folder in self._folders)

    def close(self) -> None:
        folders, self._folders = self._folders, ()
        PINS.release(folders)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Pins:
    """Shared locks on layers: one file descriptor per layer and process, however many boxes use it."""

    def __init__(self) -> None:
        self.reset()
        self._held: dict[Path, list[int]] = {}
        """File descriptor, number of users, and whether the layer hides those below it."""

    def reset(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, folder: Path) -> bool:
        """Return False if there is no such layer."""
        with self._lock:
            if folder in self._held:
                self._held[folder][1] += 1
                return True
            with explained(f"the layer {folder.name:.19}… cannot be locked"):
                fd = files.open_locked(folder / "lock", shared=True)
            if fd is None:
                return False
            self._held[folder] = [fd, 1, bool((read_json(folder / "layer.json") or {}).get("opaque"))]
            return True

    def fd(self, folder: Path) -> int:
        return self._held[folder][0]

    def is_opaque(self, folder: Path) -> bool:
        """Whether a layer that is held hides all layers below it."""
        return bool(self._held[folder][2])

    def release(self, folders: Iterable[Path]) -> None:
        with self._lock:
            for folder in folders:
                entry = self._held[folder]
                entry[1] -= 1
                if not entry[1]:
                    os.close(entry[0])
                    del self._held[folder]


PINS = Pins()
os.register_at_fork(after_in_child=PINS.reset)  # a child has the locks of its parent, and none of its threads
