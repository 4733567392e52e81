"""Images from files: `docker save` archives, OCI layouts (folder or tar) and root file systems.

Guarantees: names inside an archive are looked up in a table of its members and never on the disk; links inside a folder
are not followed; sizes and counts are capped; every blob that has a digest is verified before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import posixpath
import stat
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from harena.images.errors import BadImage, BadReference, ImageNotFound
from harena.images.files import store_error
from harena.images.manifest import (
    MAX_CONFIG,
    MAX_LAYERS,
    MAX_MANIFEST,
    OCI_LAYER,
    Descriptor,
    Index,
    Manifest,
    check_platform,
    load_json,
    make_config,
    make_manifest,
    parse_config,
    parse_manifest,
)
from harena.images.reference import Digest, Platform
from harena.images.store.compress import kind_of, plain_chunks
from harena.images.store.image_store import match_layers
from harena.images.store.leases import ImageLayer

BLOCK = 512
CHUNK = 1 << 20
MAX_MEMBERS = 2_000_000
MAX_HEADER = 1 << 20
"""Bytes of an extended header of a tar."""
MAX_IMAGES = 1000
MAX_NAMES = 100

Opener = Callable[[], contextlib.AbstractContextManager[BinaryIO]]


@dataclass(frozen=True, slots=True)
class ArchiveImage:
    names: tuple[str, ...]
    manifest: bytes
    config: bytes
    layers: tuple[ImageLayer, ...]
    sources: tuple[Opener, ...]
    """How to open the bytes of each layer."""


class ArchiveFiles(Protocol):
    """Named files in an archive or a folder."""

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """Return a file and its size. Raise ImageNotFound."""
        ...

    def close(self) -> None: ...


class Archive:
    def __init__(self, files: ArchiveFiles, find: Callable[[ArchiveFiles], list[ArchiveImage]]) -> None:
        self._files, self._find = files, find

    def images(self) -> list[ArchiveImage]:
        return self._find(self._files)


@contextlib.contextmanager
def open_archive(
    path: Path, scratch: Path, platform: Platform, *, is_root: bool | None, cap: int
) -> Generator[Archive]:
    """Open a file or folder and find out what it is. `scratch` is a folder for a decompressed copy."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ImageNotFound(f"{path} cannot be read: {error.strerror}") from None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            if is_root:
                raise ImageNotFound(f"{path} is a folder: a root file system is imported from a tar of it")
            yield Archive(_Folder(fd), lambda files: _of_layout(files, platform))
            return
        if not stat.S_ISREG(mode):
            raise ImageNotFound(f"{path} is neither a file nor a folder")
        plain = _decompressed(fd, scratch, cap)
        try:
            yield _of_tar(plain, platform, is_root=is_root, path=path)
        finally:
            os.close(plain)
    finally:
        os.close(fd)


def _of_tar(fd: int, platform: Platform, *, is_root: bool | None, path: Path) -> Archive:
    if is_root:
        return Archive(_Whole(fd), lambda files: _of_root(files, platform))
    tar = _Tar(fd)
    if tar.has("manifest.json"):
        with contextlib.suppress(BadImage):
            items = load_json(_read(tar, "manifest.json", MAX_MANIFEST), "manifest.json", MAX_MANIFEST)
            if isinstance(items, list):
                found = cast("list[Any]", items)
                if found and all(isinstance(item, dict) and "Layers" in item for item in found):
                    return Archive(tar, lambda files: _of_docker(files, found, platform))
    if tar.has("oci-layout") and tar.has("index.json"):
        return Archive(tar, lambda files: _of_layout(files, platform))
    if is_root is False:
        raise ImageNotFound(f"{path} has neither manifest.json nor oci-layout: it is not an archive of images")
    if not tar.count:
        raise BadImage(f"{path} is empty, or not a tar archive")
    return Archive(_Whole(fd), lambda files: _of_root(files, platform))


def _decompressed(fd: int, scratch: Path, cap: int) -> int:
    """Return a file descriptor of the plain archive, which may be a temporary copy."""
    if kind_of(os.pread(fd, 8, 0)) == "plain":
        return os.dup(fd)
    copy = os.open(scratch / "archive.tar", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        at = 0
        for chunk in plain_chunks(_pieces(fd), cap=cap):
            view = memoryview(chunk)
            while view:
                written = os.pwrite(copy, view, at)
                at, view = at + written, view[written:]
    except OSError as error:
        os.close(copy)
        raise store_error(error, "the archive cannot be decompressed") from None
    except BaseException:
        os.close(copy)
        raise
    return copy


def _pieces(fd: int) -> Generator[bytes]:
    at = 0
    while piece := os.pread(fd, CHUNK, at):
        at += len(piece)
        yield piece


# ---- kinds of archives ----


def _of_root(files: ArchiveFiles, platform: Platform) -> list[ArchiveImage]:
    file, size = files.open("")
    digest = _digest_of(file)
    layer = ImageLayer(digest, digest, size)
    config = make_config(platform, (digest,))
    manifest = make_manifest(config, (Descriptor(OCI_LAYER, digest, size),))
    return [ArchiveImage((), manifest, config, (layer,), (_opener(files, ""),))]


def _of_docker(files: ArchiveFiles, items: list[Any], platform: Platform) -> list[ArchiveImage]:
    if len(items) > MAX_IMAGES:
        raise BadImage(f"the archive has {len(items)} images: more than {MAX_IMAGES} are not accepted")
    found: list[ArchiveImage] = []
    for item in items:
        names = _words(item.get("RepoTags") or [], "RepoTags", MAX_NAMES)
        paths = _words(item.get("Layers"), "Layers", MAX_LAYERS)
        where = _words([item.get("Config")], "Config", 1)[0]
        config = _read(files, where, MAX_CONFIG)
        named = _digest_in(where.removesuffix(".json"))
        if named is not None and not named.matches(config):
            raise BadImage("the config in the archive does not have its digest")
        parsed = parse_config(config)
        check_platform(parsed, platform)
        if len(parsed.diff_ids) != len(paths):
            raise BadImage(f"the archive has {len(paths)} layers and the config {len(parsed.diff_ids)}")
        layers: list[ImageLayer] = []
        for path, diff_id in zip(paths, parsed.diff_ids, strict=True):
            file, size = files.open(path)
            with file:
                is_plain = kind_of(file.read(8)) == "plain"
            digest = diff_id if is_plain else _digest_in(path) or _digest_of(files.open(path)[0])
            layers.append(ImageLayer(diff_id, digest, size))
        blobs = tuple(Descriptor(layer_type(layer), layer.digest, layer.size) for layer in layers)
        sources = tuple(_opener(files, path) for path in paths)
        found.append(ArchiveImage(names, make_manifest(config, blobs), config, tuple(layers), sources))
    return found


def _of_layout(files: ArchiveFiles, platform: Platform) -> list[ArchiveImage]:
    version = load_json(_read(files, "oci-layout", 4096), "oci-layout", 4096)
    if not isinstance(version, dict) or cast("dict[str, Any]", version).get("imageLayoutVersion") != "1.0.0":
        raise BadImage("oci-layout does not name version 1.0.0")
    index = parse_manifest(_read(files, "index.json", MAX_MANIFEST))
    if not isinstance(index, Index):
        raise BadImage("index.json of the OCI layout is not an index")
    if not index.members:
        raise ImageNotFound("the OCI layout has no images")
    names = list(dict.fromkeys(member.name for member in index.members))
    found: list[ArchiveImage] = []
    for name in names[:MAX_IMAGES]:
        members = tuple(member for member in index.members if member.name == name)
        chosen = members[0].descriptor if len(members) == 1 else Index(members).choose(platform)
        found.append(_of_descriptor(files, chosen, platform, (name,) if name else ()))
    return found


def _of_descriptor(
    files: ArchiveFiles, chosen: Descriptor, platform: Platform, names: tuple[str, ...], depth: int = 0
) -> ArchiveImage:
    data = _blob(files, chosen, MAX_MANIFEST)
    found = parse_manifest(data, chosen.media_type)
    if isinstance(found, Index):
        if depth:
            raise BadImage("the archive has an index of indexes, which is not supported")
        return _of_descriptor(files, found.choose(platform), platform, names, depth + 1)
    assert isinstance(found, Manifest)
    config = _blob(files, found.config, MAX_CONFIG)
    layers = match_layers(found, config, platform)
    for layer in layers:
        file, size = files.open(_blob_path(layer.digest))
        file.close()
        if size != layer.size:
            raise BadImage(f"the layer {layer.digest.short}… has {size} bytes and not {layer.size}")
    sources = tuple(_opener(files, _blob_path(layer.digest)) for layer in layers)
    return ArchiveImage(names, data, config, layers, sources)


def layer_type(layer: ImageLayer) -> str:
    return OCI_LAYER if layer.digest == layer.diff_id else f"{OCI_LAYER}+gzip"


def _words(value: object, what: str, cap: int) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadImage(f"{what} in manifest.json is not a list")
    items = cast("list[Any]", value)
    if len(items) > cap or not all(isinstance(item, str) and 0 < len(item) <= 4096 for item in items):
        raise BadImage(f"{what} in manifest.json is not a list of at most {cap} names")
    return tuple(items)


def _blob_path(digest: Digest) -> str:
    return f"blobs/{digest.algorithm}/{digest.hex}"


def _digest_in(path: str) -> Digest | None:
    """Return the digest that a path ends with, if it does."""
    folder, name = posixpath.split(path)
    algorithm = posixpath.basename(folder)
    with contextlib.suppress(BadReference):
        return Digest.parse(f"{algorithm if algorithm == 'sha512' else 'sha256'}:{name}")
    return None


def _digest_of(file: BinaryIO) -> Digest:
    with file:
        return Digest("sha256", hashlib.file_digest(cast("Any", file), "sha256").hexdigest())


def _blob(files: ArchiveFiles, blob: Descriptor, cap: int) -> bytes:
    data = _read(files, _blob_path(blob.digest), cap)
    if len(data) != blob.size or not blob.digest.matches(data):
        raise BadImage(f"the blob {blob.digest.short}… in the archive does not have its digest")
    return data


def _read(files: ArchiveFiles, name: str, cap: int) -> bytes:
    file, size = files.open(name)
    with file:
        if size > cap:
            raise BadImage(f"{name!r:.120} has {size} bytes: more than {cap} are not accepted")
        return file.read(size)


def _opener(files: ArchiveFiles, name: str) -> Opener:
    def open_layer() -> contextlib.AbstractContextManager[BinaryIO]:
        return files.open(name)[0]

    return open_layer


# ---- where the files are ----


class _Slice(io.RawIOBase):
    """A part of a file. Several can be read at once."""

    def __init__(self, fd: int, start: int, size: int) -> None:
        super().__init__()
        self._fd, self._at, self._end = os.dup(fd), start, start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self._end - self._at]
        count = os.preadv(self._fd, [view], self._at) if view else 0
        self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def _slice(fd: int, start: int, size: int) -> BinaryIO:
    return cast("BinaryIO", io.BufferedReader(_Slice(fd, start, size), CHUNK))


class _Whole:
    """A file that is one layer."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def open(self, name: str) -> tuple[BinaryIO, int]:
        size = os.fstat(self._fd).st_size
        return _slice(self._fd, 0, size), size

    def close(self) -> None:
        pass


class _Folder:
    """Files below a folder. No link is followed, in no part of a path."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def open(self, name: str) -> tuple[BinaryIO, int]:
        parts = name.split("/")
        if not all(part and part not in (".", "..") and "\0" not in part for part in parts):
            raise BadImage(f"{name!r:.120} is not the name of a file in the folder")
        fd = os.dup(self._fd)
        try:
            for at, part in enumerate(parts):
                is_last = at == len(parts) - 1
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_NONBLOCK if is_last else os.O_DIRECTORY)
                inner = os.open(part, flags, dir_fd=fd)
                os.close(fd)
                fd = inner
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise BadImage(f"{name!r:.120} is not a regular file")
            return _slice(fd, 0, found.st_size), found.st_size
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise BadImage(f"{name!r:.120} is reached by a link, which is not followed") from None
            raise ImageNotFound(f"the folder has no {name!r:.120}: {error.strerror}") from None
        finally:
            os.close(fd)

    def close(self) -> None:
        pass


class _Tar:
    """Members of a tar archive, by name. Nothing is extracted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self.count = 0
        try:
            self._scan()
        except (ValueError, IndexError, UnicodeDecodeError):
            raise BadImage("the tar archive is damaged") from None

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> tuple[BinaryIO, int]:
        key = _member_name(name)
        if key in self._links:
            # `docker save` of old versions links equal layers. The target is another member, never a path on disk.
            key = _member_name(posixpath.join(posixpath.dirname(key), self._links[key]))
        if key is None or key not in self._members:
            raise ImageNotFound(f"the archive has no {name!r:.120}")
        start, size = self._members[key]
        return _slice(self._fd, start, size), size

    def close(self) -> None:
        pass

    def _scan(self) -> None:
        at = 0
        extended: dict[str, str] = {}
        long_name = long_link = None
        while at + BLOCK <= self._size:
            head = os.pread(self._fd, BLOCK, at)
            if not head.strip(b"\0"):
                return
            if _number(head[148:156]) != sum(head[:148]) + 8 * 32 + sum(head[156:]):
                raise ValueError
            at += BLOCK
            kind, size = head[156:157], _number(head[124:136])
            if kind in b"xgLK":
                if size > MAX_HEADER or at + size > self._size:
                    raise ValueError
                body = os.pread(self._fd, size, at)
                if kind == b"x":
                    extended = _pax(body)
                elif kind == b"L":
                    long_name = body.split(b"\0")[0].decode("utf-8", "surrogateescape")
                elif kind == b"K":
                    long_link = body.split(b"\0")[0].decode("utf-8", "surrogateescape")
                at += -(-size // BLOCK) * BLOCK
                continue
            if kind == b"S":  # a sparse file of GNU tar: its map may continue in further blocks
                more = head[482:483] not in b"\0"
                while more:
                    more = os.pread(self._fd, BLOCK, at)[504:505] not in b"\0"
                    at += BLOCK
            name = head[:100].split(b"\0")[0]
            if head[257:262] == b"ustar" and head[345:500].strip(b"\0") and head[263:265] == b"00":
                name = head[345:500].split(b"\0")[0] + b"/" + name
            text = extended.get("path") or long_name or name.decode("utf-8", "surrogateescape")
            link = extended.get("linkpath") or long_link
            link = link or head[157:257].split(b"\0")[0].decode("utf-8", "surrogateescape")
            if "size" in extended:
                size = int(extended["size"])
            extended, long_name, long_link = {}, None, None
            self.count += 1
            if self.count > MAX_MEMBERS:
                raise BadImage(f"the archive has more than {MAX_MEMBERS} members")
            if kind not in b"0\x007S":
                size = 0
            if size < 0 or at + size > self._size:
                raise BadImage("the tar archive ends too early")
            key = _member_name(text)
            if key is not None and kind in b"0\x007":
                self._members[key] = at, size
                self._links.pop(key, None)
            elif key is not None and kind == b"2":
                self._links[key] = link
                self._members.pop(key, None)
            at += -(-size // BLOCK) * BLOCK


def _member_name(text: str) -> str | None:
    """The name in its plain form; None: it leads out of the archive."""
    plain = posixpath.normpath(text)
    return None if plain.startswith(("/", "../")) or plain in (".", "..") else plain


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if len(text) > 12 or (text and not text.isdigit()):
        raise ValueError
    return int(text or b"0", 8)


def _pax(body: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    while body.strip(b"\0"):
        length, _, _ = body.partition(b" ")
        if not length.isdigit() or len(length) > 8 or not len(length) < int(length) <= len(body):
            raise ValueError
        key, equals, value = body[len(length) + 1 : int(length)].removesuffix(b"\n").partition(b"=")
        if not equals:
            raise ValueError
        found[key.decode()] = value.decode("utf-8", "surrogateescape")
        body = body[int(length) :]
    if "size" in found and not (found["size"].isascii() and found["size"].isdigit() and len(found["size"]) < 19):
        raise ValueError
    return found
