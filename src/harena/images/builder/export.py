"""Writes images as archives that `docker load`, skopeo and `harena image import` read.

The archive is an OCI layout that also has the manifest.json of `docker save`. Compressed layers are not kept in the
store, so layers are packed again: their digests, and that of the image, differ from those of the registry.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, cast

from harena.images.builder import pack
from harena.images.builder.builder import history_of
from harena.images.files import explained
from harena.images.manifest import OCI_INDEX, OCI_LAYER, OCI_MANIFEST, Descriptor, make_manifest
from harena.images.reference import Digest, Reference
from harena.images.store.leases import LAYER, TREE, Image

CHUNK = 1 << 20
LEVEL = 6


def export_image(image: Image, path: Path | str) -> Digest:
    """Write an image to a file, whole or not at all. Returns the digest of its manifest in the archive."""
    target = Path(path).absolute()
    store = image.store
    with explained(f"{target} cannot be written"), image.lease(), store.scratch("export") as scratch:
        diff_ids: list[Digest] = []
        blobs: list[tuple[Descriptor, Path]] = []
        for number, folder in enumerate(store.folders_of(image)):
            diff_id, blob, file = _packed(image, folder, scratch, number)
            diff_ids.append(diff_id)
            blobs.append((blob, file))
        raw: dict[str, Any] = store.raw_config(image)
        raw["rootfs"] = {"type": "layers", "diff_ids": list(map(str, diff_ids))}
        raw["history"] = history_of(raw.get("history"), len(diff_ids), str(raw.get("created") or ""))
        config = json.dumps(raw, separators=(",", ":")).encode()
        manifest = make_manifest(config, tuple(blob for blob, _ in blobs))
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with open(temporary, "xb") as file:
                _write(file, Reference.parse(image.reference), manifest, config, blobs)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return Digest.of(manifest)


def _packed(image: Image, folder: Path, scratch: Path, number: int) -> tuple[Digest, Descriptor, Path]:
    """Pack a layer, compress it, and return its diff-id and where its blob is."""
    tree = folder / LAYER / TREE
    ids = image.store.layers.ids
    owners = pack.read_owners(str(tree)) if ids.kind == "single" else None
    blob, plain = scratch / f"blob-{number}", scratch / f"plain-{number}"
    with open(plain, "x+b") as file:
        plain.unlink()
        pack.pack_folder(tree, file, ids=ids, owners=owners)
        file.seek(0)
        digest = hashlib.sha256()
        with open(blob, "xb") as out, gzip.GzipFile("", "wb", LEVEL, out, mtime=0) as squeezed:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                squeezed.write(chunk)
    with open(blob, "rb") as file:
        own = Digest("sha256", hashlib.file_digest(cast("Any", file), "sha256").hexdigest())
    descriptor = Descriptor(f"{OCI_LAYER}+gzip", own, blob.stat().st_size)
    return Digest("sha256", digest.hexdigest()), descriptor, blob


def _write(
    file: BinaryIO, name: Reference, manifest: bytes, config: bytes, blobs: list[tuple[Descriptor, Path]]
) -> None:
    annotations = {"io.containerd.image.name": str(name)}
    if name.tag:
        annotations["org.opencontainers.image.ref.name"] = name.tag
    index = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [
            {
                "mediaType": OCI_MANIFEST,
                "digest": str(Digest.of(manifest)),
                "size": len(manifest),
                "annotations": annotations,
            }
        ],
    }
    saved = [
        {
            "Config": _blob_path(Digest.of(config)),
            "RepoTags": [name.familiar] if name.tag else [],
            "Layers": [_blob_path(blob.digest) for blob, _ in blobs],
        }
    ]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        _add(tar, "manifest.json", json.dumps(saved).encode())
        for data in (manifest, config):
            _add(tar, _blob_path(Digest.of(data)), data)
        for path, source in {_blob_path(blob.digest): source for blob, source in blobs}.items():
            with open(source, "rb") as content:
                _add(tar, path, content)


def _add(tar: tarfile.TarFile, name: str, content: bytes | BinaryIO) -> None:
    info = tarfile.TarInfo(name)
    stream: Any = io.BytesIO(content) if isinstance(content, bytes) else content
    info.size = len(content) if isinstance(content, bytes) else os.fstat(stream.fileno()).st_size
    tar.addfile(info, stream)


def _blob_path(digest: Digest) -> str:
    return f"blobs/{digest.algorithm}/{digest.hex}"
