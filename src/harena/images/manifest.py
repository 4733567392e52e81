"""Manifests, indexes and configs of images: Docker v2 and OCI.

Guarantees: nothing is believed before its digest was checked; every field that is used has a checked type and a cap;
fields that are not used are ignored, as the OCI specification demands.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from harena.images.errors import BadImage, BadReference, ImageNotFound
from harena.images.reference import Digest, Platform

MAX_MANIFEST = 4 << 20
MAX_CONFIG = 8 << 20
MAX_LAYERS = 500
"""The kernel stacks at most 500 folders in one overlay."""
MAX_LAYER_BYTES = 64 << 30
MAX_MEMBERS = 1000
"""Manifests in an index."""
MAX_ITEMS = 4096
MAX_TEXT = 128 << 10

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"

NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")

INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
ACCEPT = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))
LAYERS = frozenset(
    {
        OCI_LAYER,
        f"{OCI_LAYER}+gzip",
        f"{OCI_LAYER}+zstd",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.image.rootfs.diff.tar.zstd",
    }
)


@dataclass(frozen=True, slots=True)
class Descriptor:
    media_type: str
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A manifest that an index lists."""

    descriptor: Descriptor
    platform: Platform | None
    name: str = ""
    """Name of the image in an OCI layout, as its annotations give it."""


@dataclass(frozen=True, slots=True)
class Index:
    members: tuple[IndexEntry, ...]

    def choose(self, wanted: Platform) -> Descriptor:
        """Return the manifest for a platform; raise ImageNotFound with the platforms that there are."""
        chosen = max(self.members, key=lambda member: _fitness(member.platform, wanted), default=None)
        if chosen is not None and _fitness(chosen.platform, wanted) > 0:
            return chosen.descriptor
        if len(self.members) == 1 and self.members[0].platform is None:
            return self.members[0].descriptor  # the config will say which platform it is for
        found = [member.platform for member in self.members if member.platform is not None]
        there = sorted({str(platform) for platform in found if platform.os != "unknown"})
        shown = ", ".join(there[:12]) or "none"
        raise ImageNotFound(f"the image is not built for {wanted}; platforms that it has: {shown}")


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """Recorded, never run by itself."""

    test: tuple[str, ...]
    interval_s: float = 0.0
    timeout_s: float = 0.0
    start_period_s: float = 0.0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How the image wants to be run."""

    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    healthcheck: Healthcheck | None = None
    exposed_ports: tuple[str, ...] = ()
    stop_signal: str = ""
    volumes: tuple[str, ...] = ()
    platform: Platform | None = None
    created: str = ""
    diff_ids: tuple[Digest, ...] = ()

    def as_json(self) -> dict[str, Any]:
        check = self.healthcheck
        return {
            "env": dict(self.env),
            "cwd": self.cwd,
            "user": self.user,
            "entrypoint": list(self.entrypoint),
            "cmd": list(self.cmd),
            "shell": list(self.shell),
            "labels": dict(self.labels),
            "healthcheck": None
            if check is None
            else {
                "test": list(check.test),
                "interval_s": check.interval_s,
                "timeout_s": check.timeout_s,
                "start_period_s": check.start_period_s,
                "retries": check.retries,
            },
            "exposed_ports": list(self.exposed_ports),
            "stop_signal": self.stop_signal,
            "volumes": list(self.volumes),
            "platform": str(self.platform) if self.platform else None,
            "created": self.created,
        }


def parse_manifest(data: bytes, content_type: str = "") -> Manifest | Index:
    """Read a manifest or an index. `content_type` counts only where the document does not name its own type."""
    fields = _document(data, "manifest", MAX_MANIFEST)
    if "schemaVersion" not in fields and "mediaType" not in fields:
        raise BadImage("the manifest has no schemaVersion: it is not an image manifest")
    if fields.get("schemaVersion") == 1:
        raise BadImage("the image has a manifest of schema 1, which is obsolete: push it again with a current Docker")
    if fields.get("schemaVersion") != 2:
        raise BadImage("the manifest has an unknown schemaVersion: expected 2")
    kind = _text(fields, "mediaType", "manifest", cap=256) or content_type.partition(";")[0].strip()
    if kind not in INDEXES | MANIFESTS:
        # An OCI document need not name its type, and a registry may send a generic one.
        kind = OCI_INDEX if "manifests" in fields else OCI_MANIFEST if "layers" in fields else kind
    if ("manifests" in fields and "layers" in fields) or kind not in INDEXES | MANIFESTS:
        raise BadImage(f"the manifest has the type {kind!r:.120}, which is not that of an image")
    if kind in INDEXES:
        found = _list(fields, "manifests", "index", cap=MAX_MEMBERS)
        return Index(tuple(_member(_object(item, "index")) for item in found))
    config = _descriptor(_object(fields.get("config"), "config"), "config", MAX_CONFIG)
    if config.media_type not in (OCI_CONFIG, DOCKER_CONFIG):
        raise BadImage(f"the manifest describes {config.media_type!r:.120}, which is not an image")
    layers = tuple(
        _descriptor(_object(item, "layer"), "layer", MAX_LAYER_BYTES)
        for item in _list(fields, "layers", "manifest", cap=MAX_LAYERS)
    )
    for layer in layers:
        if layer.media_type not in LAYERS:
            hint = "layers outside the registry are not fetched" if "foreign" in layer.media_type else "no known layer"
            raise BadImage(f"a layer has the type {layer.media_type!r:.120}: {hint}")
    return Manifest(config, layers)


def parse_config(data: bytes) -> ImageConfig:
    fields = _document(data, "config", MAX_CONFIG)
    rootfs = _object(fields.get("rootfs"), "rootfs of the config")
    inner = _object(fields.get("config") or {}, "config")
    system = _text(fields, "os", "config", cap=64) or "linux"
    architecture = _text(fields, "architecture", "config", cap=64) or "unknown"
    cwd = _text(inner, "WorkingDir", "config", cap=4096)
    return ImageConfig(
        env=tuple(_variable(item) for item in _texts(inner, "Env")),
        cwd=posixpath.normpath(posixpath.join("/", cwd)).replace("//", "/"),
        user=_text(inner, "User", "config", cap=256),
        entrypoint=_texts(inner, "Entrypoint"),
        cmd=_texts(inner, "Cmd"),
        shell=_texts(inner, "Shell"),
        labels=_pairs(inner, "Labels"),
        healthcheck=_healthcheck(inner.get("Healthcheck")),
        exposed_ports=_keys(inner, "ExposedPorts"),
        stop_signal=_text(inner, "StopSignal", "config", cap=32),
        volumes=_keys(inner, "Volumes"),
        platform=Platform(system, architecture, _text(fields, "variant", "config", cap=64)),
        created=_text(fields, "created", "config", cap=64),
        diff_ids=tuple(_digest(item, "rootfs") for item in _list(rootfs, "diff_ids", "rootfs", cap=MAX_LAYERS)),
    )


def make_config(platform: Platform, diff_ids: tuple[Digest, ...]) -> bytes:
    """Return the config of an image that has none, such as a root file system."""
    fields = {
        "architecture": platform.architecture,
        "os": platform.os,
        **({"variant": platform.variant} if platform.variant else {}),
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [str(diff_id) for diff_id in diff_ids]},
    }
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def make_manifest(config: bytes, layers: tuple[Descriptor, ...]) -> bytes:
    """Return an OCI manifest for layers that came without one."""
    fields = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": str(Digest.of(config)), "size": len(config)},
        "layers": [
            {"mediaType": layer.media_type, "digest": str(layer.digest), "size": layer.size} for layer in layers
        ],
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def check_platform(config: ImageConfig, wanted: Platform) -> None:
    """Raise ImageNotFound if an image is for another platform. Its index may not have said so."""
    found = config.platform
    if found is not None and (found.os, found.architecture) != (wanted.os, wanted.architecture):
        raise ImageNotFound(f"the image is built for {found} and not for {wanted}")


# ---- checked reading ----


def _fitness(found: Platform | None, wanted: Platform) -> int:
    if found is None or (found.os, found.architecture) != (wanted.os, wanted.architecture):
        return 0
    if found.variant == wanted.variant:
        return 3
    if not found.variant or {found.variant, wanted.variant} == {"", "v8"}:
        return 2
    # An arm machine runs what was built for an older one; an unnamed variant must not choose a newer one.
    return 1 if wanted.variant and found.variant < wanted.variant else 0


def _member(fields: Mapping[str, Any]) -> IndexEntry:
    notes = _object(fields.get("annotations") or {}, "annotations of the index")
    names = [_text(notes, key, "annotations", cap=1024) for key in NAME_ANNOTATIONS]
    name = next((name for name in names if "/" in name or ":" in name), "")
    found = fields.get("platform")
    if found is None:
        return IndexEntry(_descriptor(fields, "index", MAX_MANIFEST), None, name)
    where = _object(found, "platform")
    words = [_text(where, key, "platform", cap=64) for key in ("os", "architecture", "variant")]
    return IndexEntry(_descriptor(fields, "index", MAX_MANIFEST), Platform(*words), name)


def _descriptor(fields: Mapping[str, Any], what: str, cap: int) -> Descriptor:
    size = fields.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or not size >= 0:
        raise BadImage(f"the {what} has no valid size")
    if size > cap:
        raise BadImage(f"the {what} claims {size} bytes: more than {cap} are not accepted")
    return Descriptor(_text(fields, "mediaType", what, cap=256), _digest(fields.get("digest"), what), size)


def load_json(data: bytes, what: str, cap: int) -> Any:
    if len(data) > cap:
        raise BadImage(f"the {what} has {len(data)} bytes: more than {cap} are not accepted")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadImage(f"the {what} is not valid JSON") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _document(data: bytes, what: str, cap: int) -> Mapping[str, Any]:
    return _object(load_json(data, what, cap), what)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadImage(f"the {what} is not a JSON object")
    return cast("dict[str, Any]", value)


def _list(fields: Mapping[str, Any], name: str, what: str, *, cap: int = MAX_ITEMS) -> list[Any]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadImage(f"{name} of the {what} is not a list")
    items = cast("list[Any]", value)
    if len(items) > cap:
        raise BadImage(f"{name} of the {what} has {len(items)} items: more than {cap} are not accepted")
    return items


def _plain(value: object, name: str, what: str, cap: int) -> str:
    if not isinstance(value, str) or len(value) > cap or "\0" in value:
        raise BadImage(f"{name} of the {what} is not a text of at most {cap} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadImage(f"{name} of the {what} is not valid Unicode") from None
    return value


def _text(fields: Mapping[str, Any], name: str, what: str, *, cap: int) -> str:
    value = fields.get(name)
    return "" if value is None else _plain(value, name, what, cap)


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if isinstance(value, str):  # old Docker versions wrote a single word so
        return (_plain(value, name, "config", MAX_TEXT),)
    return tuple(_plain(item, name, "config", MAX_TEXT) for item in _list(fields, name, "config"))


def _keys(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(key for key, _ in _entries(fields, name))


def _entries(fields: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    value = _object(fields.get(name) or {}, f"{name} of the config")
    if len(value) > MAX_ITEMS:
        raise BadImage(f"{name} of the config has more than {MAX_ITEMS} items")
    return [(_plain(key, name, "config", 4096), item) for key, item in value.items()]


def _pairs(fields: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, _plain(item, name, "config", MAX_TEXT)) for key, item in _entries(fields, name))


def _variable(item: str) -> tuple[str, str]:
    name, _, value = item.partition("=")
    if not name:
        raise BadImage("Env of the config has a variable without a name")
    return name, value


def _digest(value: object, what: str) -> Digest:
    try:
        return Digest.parse(_plain(value, "digest", what, 256))
    except BadReference as error:
        raise BadImage(f"the {what} has an invalid digest: {error}") from None


def _healthcheck(value: object) -> Healthcheck | None:
    if value is None:
        return None
    fields = _object(value, "Healthcheck of the config")

    def seconds(name: str) -> float:
        number = fields.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 62:
            raise BadImage(f"{name} of the healthcheck is not a number of nanoseconds")
        return number / 1e9

    retries = fields.get("Retries", 0)
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries < 1 << 31:
        raise BadImage("Retries of the healthcheck is not a number")
    return Healthcheck(_texts(fields, "Test"), seconds("Interval"), seconds("Timeout"), seconds("StartPeriod"), retries)
