"""Store of images: one folder per layer, shared between images, and one record per name.

    images/NAME.json           a name, and the layers that belong to it
    blobs/sha256-HEX           manifests and configs
    layers/IDS/sha256-HEX/     a layer: layer/ (what the unpacker made), layer.json, lock, durable
    partial/sha256-HEX         a download under way; its lock is the file itself
    build/HEX.json             a step of a build, and the layer that it made
    tmp/                       work under way; whatever is not locked there is left over from a crash
    lock                       shared while something is added, exclusive while something is removed

Guarantees: a record appears after all its layers are complete, and goes before any of them; a layer that a lease holds
is never removed; a crash at any moment leaves at worst unreferenced files, which the next `gc` removes.

One file, however long: these guarantees hold because all methods take locks and write records in the same order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from harena.images import files
from harena.images.errors import BadImage, ImageCancelled, ImageError, ImageNotFound, ImageStoreError, RegistryError
from harena.images.files import explained, read_json
from harena.images.manifest import (
    MAX_CONFIG,
    Descriptor,
    Index,
    Manifest,
    check_platform,
    parse_config,
    parse_manifest,
)
from harena.images.reference import Digest, Platform, Reference
from harena.images.registry.client import BlobSource
from harena.images.registry.download import Download
from harena.images.registry.transport import TransportPatience
from harena.images.settings import ImageSettings
from harena.images.store.layers import VERSION, LayerStore, Progress, file_name, layer_size
from harena.images.store.leases import PINS, Image, ImageLayer

if TYPE_CHECKING:
    from harena.images.store.archives import ArchiveImage
    from harena.images.unpack.caps import Caps
    from harena.images.unpack.ids import Ids

AT_ONCE = 4
"""Layers that are downloaded and unpacked at once."""
TOUCH_S = 60.0
"""A lease notes the time of use if the last note is older than this."""

MOST_TRIES = 10
"""A layer that another process removes at once is made again this often."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a removal did."""

    images: tuple[str, ...] = ()
    layers: int = 0
    bytes: int = 0
    in_use: int = 0
    """Layers without an image that stay because a box uses them."""

    def as_json(self) -> dict[str, Any]:
        return {"images": list(self.images), "layers": self.layers, "bytes": self.bytes, "in_use": self.in_use}


@dataclass(slots=True)
class _Record:
    path: Path
    fields: dict[str, Any]
    reference: str
    layers: tuple[ImageLayer, ...]
    blobs: tuple[str, ...]
    used_at_s: float
    signature: tuple[int, int, int]


class ImageStore:
    """A folder of images. Several processes may use it at once."""

    def __init__(
        self,
        folder: Path | str,
        *,
        settings: ImageSettings | None = None,
        ids: Ids | None = None,
        caps: Caps | None = None,
        patience: TransportPatience | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.settings = settings or ImageSettings.from_environment()
        self.patience = patience or TransportPatience()
        self.layers = LayerStore(self.folder, ids, caps)
        self._noted: dict[tuple[str, str], float] = {}
        self._found: dict[Path, tuple[tuple[int, int, int], Image]] = {}
        """Images by their record, and which state of the record they are from."""
        with explained(f"the image store {self.folder} cannot be made"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
            if found.st_uid != os.geteuid():
                raise ImageStoreError(f"{self.folder} belongs to another user: set HARENA_IMAGES to a folder of yours")
            if stat.S_IMODE(found.st_mode) & 0o077:
                # Layers have set-user-id programs of strangers, which no other user of the machine may reach.
                self.folder.chmod(0o700)
            for name in ("images", "blobs", "layers", "partial", "build", "tmp"):
                (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        self._check_version()

    @classmethod
    def default(cls) -> ImageStore:
        """The store of this user: $HARENA_IMAGES or ~/.local/share/harena/images."""
        settings = ImageSettings.from_environment()
        return cls(settings.folder, settings=settings)

    # ---- reading ----

    def find(self, reference: str | Reference, *, platform: Platform | str | None = None) -> Image | None:
        """Return an image that is complete here, without asking a registry."""
        wanted, machine = _reference(reference), _platform(platform)
        path = self._record_path(wanted, machine)
        if (known := self._known(path)) is not None:
            return known
        record = self._read_record(path)
        if record is None and wanted.digest is not None:
            record = next((one for one in self._records() if _has_digest(one, wanted, machine)), None)
        return self._image(record) if record is not None else None

    def _known(self, path: Path) -> Image | None:
        """Return an image that was found before, if its record and its layers are still there."""
        signature, image = self._found.get(path, (None, None))
        if image is None or signature != _signature(path):
            return None
        is_there = all(
            os.access(f"{self.layers.own}/{file_name(layer.diff_id)}/layer.json", os.F_OK) for layer in image.layers
        )
        return image if is_there else None

    def images(self) -> list[Image]:
        """Return all complete images, by name."""
        found = [self._image(record) for record in self._records()]
        return sorted((image for image in found if image is not None), key=lambda image: image.reference)

    def raw_config(self, image: Image) -> Any:
        """Return the config as the image's author wrote it."""
        return json.loads(self._read_blob(Digest.parse(image.id)))

    def folders_of(self, image: Image) -> tuple[Path, ...]:
        """Return the folders of an image's layers, lowest first, each once."""
        # The kernel refuses the same folder twice. The upper one of two equal layers hides the lower one.
        order = dict.fromkeys(layer.diff_id for layer in reversed(image.layers))
        return tuple(self.layers.folder_of(diff_id) for diff_id in reversed(order))

    def empty_folder(self) -> str:
        """A layer without files, for images that have no layer at all."""
        folder = self.folder / "empty"
        folder.mkdir(mode=0o755, exist_ok=True)
        return str(folder)

    def note_use(self, image: Image) -> None:
        """Note the time, at most once a minute."""
        key, now = (image.reference, image.platform), time.monotonic()
        if now - self._noted.get(key, -TOUCH_S) < TOUCH_S:
            return
        self._noted[key] = now
        path = self._record_path(Reference.parse(image.reference), Platform.parse(image.platform))
        with contextlib.suppress(OSError):
            os.utime(path)

    # ---- pulling ----

    def pull(
        self,
        reference: str | Reference,
        *,
        platform: Platform | str | None = None,
        progress: Progress | None = None,
    ) -> Image:
        """Download and unpack what is missing, and return the image. A digest that is here needs no network."""
        wanted, machine = _reference(reference), _platform(platform)
        if wanted.digest is not None and (here := self.find(wanted, platform=machine)) is not None:
            return here
        self._sweep()
        cancel = threading.Event()
        source = BlobSource(wanted.registry, self.settings, patience=self.patience, cancel=cancel)
        data, kind, digest = source.manifest(wanted.repository, wanted.target, wanted.digest)
        found = parse_manifest(data, kind)
        own = digest
        if isinstance(found, Index):
            chosen = found.choose(machine)
            data, kind, own = source.manifest(wanted.repository, str(chosen.digest), chosen.digest)
            found = parse_manifest(data, kind)
            if isinstance(found, Index):
                raise BadImage(f"{wanted.familiar} is an index of indexes, which is not supported")
        config = source.small_blob(wanted.repository, found.config, MAX_CONFIG)
        layers = match_layers(found, config, machine)
        blobs = {layer.diff_id: blob for layer, blob in zip(layers, found.layers, strict=True)}

        def make(layer: ImageLayer, report: Progress) -> None:
            self._pull_layer(source, wanted.repository, layer, blobs[layer.diff_id], cancel, report)

        image = self._add(wanted, machine, digest, own, data, config, layers, make, cancel, progress)
        if self.settings.max_bytes is not None:
            self.gc(max_bytes=self.settings.max_bytes, keep=(image.reference,))
        return image

    def import_file(
        self,
        path: Path | str,
        *,
        name: str | None = None,
        platform: Platform | str | None = None,
        is_root: bool | None = None,
        progress: Progress | None = None,
    ) -> list[Image]:
        """Take over the images of a `docker save` archive, an OCI layout (folder or archive) or a root file system.

        `name` replaces the name that the archive gives, and a root file system needs one. `is_root` says that the file
        is a root file system (True) or an archive of images (False); None: look into it."""
        from harena.images.store.archives import open_archive

        machine = _platform(platform)
        as_named = None if name is None else _reference(name)
        if as_named is not None and as_named.digest is not None:
            raise BadImage(f"{name!r:.160}: an imported image is named by a tag, not by a digest")
        self._sweep()
        cancel = threading.Event()
        with (
            self.layers.staging("import") as scratch,
            open_archive(Path(path), scratch, machine, is_root=is_root, cap=self.layers.caps.archive_bytes) as archive,
        ):
            found = archive.images()
            if as_named is not None and len(found) != 1:
                raise ImageNotFound(
                    f"{path} has {len(found)} images, which cannot all have the name {name}: leave it out"
                )
            return [
                image for item in found for image in self._import(item, as_named, machine, cancel, progress, str(path))
            ]

    def _import(
        self,
        item: ArchiveImage,
        as_named: Reference | None,
        machine: Platform,
        cancel: threading.Event,
        progress: Progress | None,
        path: str,
    ) -> list[Image]:
        names = [as_named] if as_named else [_reference(name) for name in item.names]
        if not names:
            raise ImageNotFound(f"{path} does not say what its image is called: give a name with --name")
        blobs = dict(zip((layer.diff_id for layer in item.layers), item.sources, strict=True))

        def make(layer: ImageLayer, report: Progress) -> None:
            with blobs[layer.diff_id]() as file:
                self.layers.unpack(file, layer, cancel, report)

        return [
            self._add(
                name, machine, Digest.of(item.manifest), Digest.of(item.manifest), item.manifest, item.config,
                item.layers, make, cancel, progress,
            )
            for name in names
        ]  # fmt: skip

    def _add(
        self,
        name: Reference,
        machine: Platform,
        digest: Digest,
        own: Digest,
        manifest: bytes,
        config: bytes,
        layers: tuple[ImageLayer, ...],
        make: Callable[[ImageLayer, Progress], None],
        cancel: threading.Event,
        progress: Progress | None,
    ) -> Image:
        """Make what is missing of the layers, then the record. The layers are pinned until the record is there."""
        report = progress or _no_progress
        pinned: list[Path] = []
        fresh: list[Path] = []
        guard = threading.Lock()

        def ensure(layer: ImageLayer) -> None:
            folder = self.layers.folder_of(layer.diff_id)
            is_new, tries = False, 0
            while not self.layers.pin_if_whole(folder):
                tries += 1
                if tries > MOST_TRIES:
                    raise ImageStoreError(f"{folder} is removed again and again: stop what removes it, and pull again")
                is_new = True
                make(layer, report)
            with guard:
                pinned.append(folder)
                if is_new:
                    fresh.append(folder)
            report("done", layer.diff_id.short, layer.size, layer.size)

        try:
            unique = list({layer.diff_id: layer for layer in layers}.values())
            _in_parallel(ensure, unique, cancel)
            with explained(f"{name.familiar} cannot be stored"):
                self.layers.make_durable(pinned)
                record = {
                    "version": VERSION,
                    "reference": str(name),
                    "platform": str(machine),
                    "digest": str(digest),
                    "manifest": str(own),
                    "config": str(Digest.of(config)),
                    "layers": [
                        {"diff_id": str(layer.diff_id), "digest": str(layer.digest), "size": layer.size}
                        for layer in layers
                    ],
                }
                with self.layers.locked(shared=True):
                    self._write_blob(own, manifest)
                    self._write_blob(Digest.of(config), config)
                    path = self._record_path(name, machine)
                    files.write_atomic(path, json.dumps(record, indent=1).encode(), scratch=self.folder / "tmp")
            found = self._read_record(path)
            image = self._image(found) if found is not None else None
            if image is None:
                raise ImageStoreError(f"{name.familiar} was removed while it was stored: pull it again")
            return image
        except (ImageCancelled, RegistryError):
            raise  # what came is good, and the next pull needs it
        except ImageError:
            PINS.release(pinned)
            pinned = []
            self._forget(fresh)
            raise
        finally:
            PINS.release(pinned)

    def _forget(self, folders: Sequence[Path]) -> None:
        """Remove layers of an image that was refused, unless another one has them by now."""
        if not folders:
            return
        with contextlib.suppress(ImageError):
            with self.layers.locked(shared=False):
                trash, done = self._unreferenced(frozenset(folders))
            self._empty(trash, done, ())

    def _pull_layer(
        self,
        source: BlobSource,
        repository: str,
        layer: ImageLayer,
        blob: Descriptor,
        cancel: threading.Event,
        report: Progress,
    ) -> None:
        """Download and unpack a layer, or wait until another process has done so."""
        folder, label = self.layers.folder_of(layer.diff_id), layer.diff_id.short
        partial = self.folder / "partial" / file_name(blob.digest)

        def check() -> None:
            if cancel.is_set():
                raise ImageCancelled("cancelled")

        def is_over() -> bool:
            check()
            return self.layers.is_whole(folder)

        with explained("a layer cannot be stored"):
            fd = files.wait_locked(partial, is_over=is_over, on_wait=lambda: report("wait", label, 0, blob.size))
        if fd is None:
            return
        is_kept = False
        try:
            if self.layers.is_whole(folder):  # the process before us has made it
                return
            download = Download(
                source, repository, blob, fd,
                patience=self.patience, check=check, on_bytes=lambda done: report("download", label, done, blob.size),
            )  # fmt: skip
            is_kept = True
            download.run()
            with os.fdopen(os.dup(fd), "rb") as file:
                file.seek(0)
                is_kept = False
                self.layers.unpack(file, layer, cancel, report)
        except ImageCancelled:
            is_kept = True
            raise
        except (BadImage, ImageStoreError):
            is_kept = False
            raise
        finally:
            if not is_kept:
                with contextlib.suppress(OSError):
                    os.unlink(partial)
            os.close(fd)

    # ---- building ----

    def hold_layer(self, layer: ImageLayer, file: BinaryIO | None = None) -> Path | None:
        """Pin a layer until `release_layers`, and make it from its uncompressed file if need be. None: missing."""
        folder = self.layers.folder_of(layer.diff_id)
        for _ in range(MOST_TRIES):
            if self.layers.pin_if_whole(folder):
                return folder
            if file is None:
                return None
            file.seek(0)
            self.layers.unpack(file, layer, threading.Event(), _no_progress)
        raise ImageStoreError(f"{folder} is removed again and again: stop what removes it, and build again")

    def release_layers(self, folders: Iterable[Path]) -> None:
        PINS.release(folders)

    def add_built(
        self, name: Reference, platform: Platform, manifest: bytes, config: bytes, layers: tuple[ImageLayer, ...]
    ) -> Image:
        """Give a name to layers that the caller holds."""

        def missing(layer: ImageLayer, report: Progress) -> None:
            raise ImageStoreError(f"the layer {layer.diff_id.short}… was removed while it was in use: build again")

        digest = Digest.of(manifest)
        return self._add(
            name, platform, digest, digest, manifest, config, layers, missing, threading.Event(), None
        )  # fmt: skip

    def find_step(self, key: str) -> dict[str, Any] | None:
        """What a step of an earlier build has made."""
        return read_json(self.folder / "build" / f"{key}.json")

    def note_step(self, key: str, fields: dict[str, Any]) -> None:
        with explained("a step of the build cannot be noted"), self.layers.locked(shared=True):
            path = self.folder / "build" / f"{key}.json"
            files.write_atomic(path, json.dumps(fields).encode(), scratch=self.folder / "tmp")

    def scratch(self, kind: str) -> contextlib.AbstractContextManager[Path]:
        """A folder for work under way. It goes at the end, or after a crash with the next `gc`."""
        return self.layers.staging(kind)

    def _forget_steps(self) -> None:
        """Remove notes on steps whose layer is gone. The caller holds the store's lock alone."""
        for path in (self.folder / "build").iterdir():
            diff_id = (read_json(path) or {}).get("diff_id")
            if diff_id != "" and not any(
                (ids / str(diff_id).replace(":", "-")).exists() for ids in (self.folder / "layers").iterdir()
            ):
                path.unlink(missing_ok=True)

    # ---- removing ----

    def remove(self, reference: str | Reference, *, platform: Platform | str | None = None) -> Reclaimed:
        """Remove a name, and the layers that no other image has. Layers in use stay until `gc` finds them unused."""
        wanted, machine = _reference(reference), _platform(platform)
        with self.layers.locked(shared=False):
            record = self._read_record(self._record_path(wanted, machine))
            if record is None and wanted.digest is not None:
                record = next((one for one in self._records() if _has_digest(one, wanted, machine)), None)
            if record is None:
                raise ImageNotFound(f"there is no image {wanted.familiar} here: `harena image ls` lists them")
            record.path.unlink(missing_ok=True)
            trash, done = self._unreferenced()
        return self._empty(trash, done, (record.reference,))

    def gc(self, *, max_bytes: int | None = None, keep: Sequence[str] = ()) -> Reclaimed:
        """Remove layers without an image, what crashes left over, and downloads that nobody continues.

        With `max_bytes`, also remove the images unused for longest until the rest has at most that size. Images in use
        and those in `keep` stay."""
        removed: list[str] = []
        with self.layers.locked(shared=False):
            if max_bytes is not None:
                removed = self._evict(max_bytes, frozenset(keep))
            trash, done = self._unreferenced()
            for path in (self.folder / "partial").iterdir():
                fd = files.open_locked(path, wait=False)
                if fd is not None:
                    done = Reclaimed(layers=done.layers, bytes=done.bytes + os.fstat(fd).st_size, in_use=done.in_use)
                    path.unlink(missing_ok=True)
                    os.close(fd)
            trash += self.layers.left_over()
            self._forget_steps()
        return self._empty(trash, done, tuple(removed))

    def _evict(self, max_bytes: int, keep: frozenset[str]) -> list[str]:
        records = sorted(self._records(), key=lambda record: record.used_at_s)
        users: dict[Digest, int] = {}
        for record in records:
            for diff_id in {layer.diff_id for layer in record.layers}:
                users[diff_id] = users.get(diff_id, 0) + 1
        total = sum(self.layers.bytes_of(diff_id) for diff_id in users)
        removed: list[str] = []
        for record in records:
            if total <= max_bytes:
                break
            mine = {layer.diff_id for layer in record.layers}
            if record.reference in keep or (
                mine and all(self.layers.is_pinned(self.layers.folder_of(one)) for one in mine)
            ):
                continue
            record.path.unlink(missing_ok=True)
            removed.append(record.reference)
            for diff_id in mine:
                users[diff_id] -= 1
                if not users[diff_id]:
                    total -= self.layers.bytes_of(diff_id)
        return removed

    def _unreferenced(self, among: frozenset[Path] | None = None) -> tuple[list[Path], Reclaimed]:
        """Move layers and blobs without a record out of the way. The caller holds the store's lock alone."""
        records = self._records()
        layers = {file_name(layer.diff_id) for record in records for layer in record.layers}
        blobs = {name for record in records for name in record.blobs}
        for path in (self.folder / "blobs").iterdir():
            if path.name not in blobs:
                path.unlink(missing_ok=True)
        trash: list[Path] = []
        freed = in_use = 0
        for ids in (self.folder / "layers").iterdir():
            for folder in ids.iterdir():
                if folder.name in layers or (among is not None and folder not in among):
                    continue
                size = layer_size(folder)
                moved = self.layers.set_aside(folder)
                if moved is None:
                    in_use += 1
                else:
                    trash.append(moved)
                    freed += size
        return trash, Reclaimed(layers=len(trash), bytes=freed, in_use=in_use)

    def _empty(self, trash: list[Path], done: Reclaimed, images: tuple[str, ...]) -> Reclaimed:
        for path in trash:
            with explained(f"{path} cannot be removed"):
                if path.is_dir() and not path.is_symlink():
                    self.layers.remove_tree(path)
                else:
                    path.unlink(missing_ok=True)
        return Reclaimed(images, done.layers, done.bytes, done.in_use)

    def _sweep(self) -> None:
        """Remove what crashes left in tmp, unless another process is just adding something."""
        if not any((self.folder / "tmp").iterdir()):
            return
        fd = files.open_locked(self.folder / "lock", wait=False, create=True)
        if fd is None:
            return
        try:
            trash = self.layers.left_over()
        finally:
            os.close(fd)
        with contextlib.suppress(ImageError):
            self._empty(trash, Reclaimed(), ())

    # ---- details ----

    def _check_version(self) -> None:
        path = self.folder / "version"
        try:
            found = path.read_bytes()[:16].strip()
        except FileNotFoundError:
            with explained(f"the image store {self.folder} cannot be made"), self.layers.locked(shared=True):
                files.write_atomic(path, f"{VERSION}\n".encode(), scratch=self.folder / "tmp")
            return
        if found != str(VERSION).encode():
            raise ImageStoreError(
                f"{self.folder} was made by another version of Harena: set HARENA_IMAGES to another folder"
            )

    def _record_path(self, reference: Reference, platform: Platform) -> Path:
        key = hashlib.sha256(f"{reference} {platform}".encode()).hexdigest()[:32]
        return self.folder / "images" / f"{key}.json"

    def _records(self) -> list[_Record]:
        found = [self._read_record(path) for path in sorted((self.folder / "images").iterdir())]
        return [record for record in found if record is not None]

    def _read_record(self, path: Path) -> _Record | None:
        signature = _signature(path)  # before the content: a later change makes it stale
        fields = read_json(path)
        try:
            if fields is None or signature is None or fields["version"] != VERSION:
                return None
            layers = tuple(
                ImageLayer(Digest.parse(item["diff_id"]), Digest.parse(item["digest"]), int(item["size"]))
                for item in fields["layers"]
            )
            blobs = tuple(file_name(Digest.parse(fields[name])) for name in ("manifest", "config"))
            return _Record(path, fields, str(fields["reference"]), layers, blobs, signature[2] / 1e9, signature)
        except (KeyError, TypeError, ValueError, OSError, ImageError):
            return None

    def _image(self, record: _Record) -> Image | None:
        """Return the image of a record; None if a layer is missing for the ids of this process."""
        if not all(self.layers.is_whole(self.layers.folder_of(layer.diff_id)) for layer in set(record.layers)):
            return None
        try:
            config = parse_config(self._read_blob(Digest.parse(record.fields["config"])))
        except (ImageError, OSError):
            return None
        image = Image(
            self,
            record.reference,
            str(record.fields["digest"]),
            str(record.fields["config"]),
            str(record.fields["platform"]),
            record.layers,
            config,
            record.used_at_s,
        )
        self._found[record.path] = record.signature, image
        return image

    def _write_blob(self, digest: Digest, data: bytes) -> None:
        path = self.folder / "blobs" / file_name(digest)
        if not path.exists():
            files.write_atomic(path, data, scratch=self.folder / "tmp")

    def _read_blob(self, digest: Digest) -> bytes:
        with open(self.folder / "blobs" / file_name(digest), "rb") as file:
            data = file.read(MAX_CONFIG + 1)
        if not digest.matches(data):
            raise ImageStoreError(f"the blob {digest} in {self.folder} is damaged: remove the image and pull it again")
        return data


def match_layers(manifest: Manifest, config: bytes, platform: Platform) -> tuple[ImageLayer, ...]:
    """Pair the blobs of a manifest with the diff-ids of its config. Raise BadImage if they do not fit."""
    parsed = parse_config(config)
    check_platform(parsed, platform)
    if len(parsed.diff_ids) != len(manifest.layers):
        raise BadImage(f"the manifest has {len(manifest.layers)} layers and the config {len(parsed.diff_ids)}")
    return tuple(
        ImageLayer(diff_id, blob.digest, blob.size)
        for diff_id, blob in zip(parsed.diff_ids, manifest.layers, strict=True)
    )


def _in_parallel(ensure: Callable[[ImageLayer], None], layers: list[ImageLayer], cancel: threading.Event) -> None:
    """Call a function for every layer, some at once. The first error cancels the others and is raised."""
    if not layers:
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(layers)), thread_name_prefix="harena-image") as pool:
        futures = [pool.submit(ensure, layer) for layer in layers]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() and future.exception() is None for future in futures):
                cancel.set()  # also after Ctrl-C
                pool.shutdown(wait=True, cancel_futures=True)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, ImageCancelled)), errors[0])


def _no_progress(stage: str, label: str, done: int, total: int) -> None:
    pass


def _reference(reference: str | Reference) -> Reference:
    return reference if isinstance(reference, Reference) else Reference.parse(reference)


def _platform(platform: Platform | str | None) -> Platform:
    if platform is None:
        return Platform.of_host()
    return platform if isinstance(platform, Platform) else Platform.parse(platform)


def _has_digest(record: _Record, wanted: Reference, platform: Platform) -> bool:
    """Whether a record is the image that a reference with a digest means, whatever its tag."""
    fields = record.fields
    return (
        str(wanted.digest) in (fields.get("digest"), fields.get("manifest"))
        and fields.get("platform") == str(platform)
        and Reference.parse(record.reference).name == wanted.name
    )


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
