"""Program that writes files as a layer: a tar archive in the form of OCI, with `.wh.` files for what is removed.

`pack` starts it in a jail like that of `untar`: what it reads was made by the commands of a build, or is an image of
strangers. The archive goes to stdout and through the same unpacker as any other layer, which checks it again. For
files of the build context the same functions run in the caller.

Archives are deterministic: names are sorted, and times, modes, owners, hard links, holes and extended attributes are
those of the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harena.images.builder.dockerfile import DockerfileError
from harena.images.builder.ignore import Ignore, compiled
from harena.images.builder.tar_writer import (
    CHUNK,
    FIFO,
    FILE,
    FOLDER,
    HARD,
    SYMLINK,
    Meta,
    PackError,
    TarWriter,
    file_meta,
)
from harena.images.unpack import seal
from harena.images.unpack.untar import shown

MAX_PASSWD = 4 << 20
WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
OPAQUE_XATTR = "user.overlay.opaque"

Owners = Mapping[bytes, tuple[int, int]]
"""Owners of files by path, where the disk cannot have them: see `unpack.unpack`."""


# ---- a folder of changes ----


def pack_changes(
    out: TarWriter, base: bytes, *, skip: Iterable[bytes] = (), owners: Owners | None = None, root: bool = False
) -> None:
    """Write what is below `base`, the upper folder of an overlay or an unpacked layer. `root`: its own mode too."""
    left_out = frozenset(skip)
    links: dict[tuple[int, int], bytes] = {}

    def owner_of(name: bytes) -> tuple[int, int] | None:
        return None if owners is None else owners.get(name, (0, 0))

    if root:
        info = os.lstat(base)
        meta = file_meta(base, info, owner_of(b""))
        if (meta.mode, meta.uid, meta.gid) != (0o755, 0, 0):
            out.add(b"./", FOLDER, meta)
        if _is_opaque(base):
            out.add(OPAQUE, FILE, Meta(0o644))
    pending = [(b"", name) for name in sorted(os.listdir(base), reverse=True)]
    while pending:
        folder, base_name = pending.pop()
        name = folder + base_name
        if name in left_out:
            continue
        path = base.rstrip(b"/") + b"/" + name
        with _named(name):
            info = os.lstat(path)
            if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                out.add(folder + WHITEOUT + base_name, FILE, Meta(0o644))
                continue
            if base_name.startswith(WHITEOUT):
                raise PackError("a name that begins with .wh. means a removed file in a layer: rename or remove it")
            meta = file_meta(path, info, owner_of(name))
            if stat.S_ISDIR(info.st_mode):
                out.add(name + b"/", FOLDER, meta)
                if _is_opaque(path):
                    out.add(name + b"/" + OPAQUE, FILE, Meta(0o644))
                pending += [(name + b"/", inner) for inner in sorted(os.listdir(path), reverse=True)]
                continue
            first = links.get((info.st_dev, info.st_ino))
            if first is not None:
                out.add(name, HARD, meta, link=first)
                continue
            if info.st_nlink > 1:
                links[info.st_dev, info.st_ino] = name
            _add_plain(out, name, path, info, meta)
    out.end()


def _add_plain(out: TarWriter, name: bytes, path: bytes, info: os.stat_result, meta: Meta) -> None:
    if stat.S_ISREG(info.st_mode):
        out.file(name, path, meta)
    elif stat.S_ISLNK(info.st_mode):
        out.add(name, SYMLINK, meta, link=os.readlink(path))
    elif stat.S_ISFIFO(info.st_mode):
        out.add(name, FIFO, meta)
    # Sockets belong to processes, and no box may use a device.


def _is_opaque(path: bytes) -> bool:
    try:
        return os.getxattr(path, OPAQUE_XATTR, follow_symlinks=False) == b"y"
    except OSError:
        return False


@contextlib.contextmanager
def _named(name: bytes):
    """Say in errors which file they are about."""
    try:
        yield
    except PackError as error:
        raise PackError(f"{shown(name)}: {error}") from None
    except OSError as error:
        raise PackError(f"{shown(name)}: {error.strerror}") from None


# ---- files to copy ----


@dataclass(slots=True)
class PathMatch:
    """A file or folder that a source of COPY names."""

    path: bytes
    """Where it really is, below the root."""
    name: bytes
    is_folder: bool
    folders: list[bytes] = field(default_factory=list[bytes])
    """Folders in it, relative, sorted; the first one is empty and is the folder itself."""


def scan(base: bytes, sources: Iterable[str], ignore: Ignore | None = None) -> list[PathMatch]:
    """Find what sources of COPY name. A link that a source names is followed, but not out of the root."""
    found: list[PathMatch] = []
    for source in sources:
        matches = _matches(base, source, ignore)
        if not matches:
            raise PackError(f"{source[:200]!r}: there is no such file")
        for rel in matches:
            real = _real(base, rel)
            if real is None:
                raise PackError(f"{shown(rel)}: a link that leads nowhere, or out of the build context")
            path = _join(base, real)
            is_folder = os.path.isdir(path)
            match = PathMatch(real, os.path.basename(rel), is_folder)
            if is_folder:
                match.folders = _folders(base, real, ignore)
            found.append(match)
    return found


def _matches(base: bytes, source: str, ignore: Ignore | None) -> list[bytes]:
    parts = [part for part in os.path.normpath("/" + source).split("/") if part]
    found = [b""]
    for part in parts:
        is_pattern = any(char in part for char in "*?[\\")
        pattern = compiled(part) if is_pattern else None
        after: list[bytes] = []
        for folder in found:
            real = _real(base, folder)
            if real is None or not os.path.isdir(_join(base, real)):
                continue
            if pattern is None:
                names = [os.fsencode(part)]
            else:
                names = sorted(name for name in os.listdir(_join(base, real)) if pattern.match(os.fsdecode(name)))
            for name in names:
                rel = folder + b"/" + name if folder else name
                if os.path.lexists(_join(base, real + b"/" + name if real else name)):
                    after.append(rel)
        found = after
    return [rel for rel in found if ignore is None or not rel or _is_kept(base, rel, ignore)]


def _is_kept(base: bytes, rel: bytes, ignore: Ignore) -> bool:
    if not ignore.leaves_out(os.fsdecode(rel)):
        return True
    # An exception may bring back something inside of a folder that is left out.
    return os.path.isdir(_join(base, rel)) and any(
        not ignore.leaves_out(os.fsdecode(rel + b"/" + inner)) for inner in _walk(base, rel)
    )


def _real(base: bytes, rel: bytes) -> bytes | None:
    real = os.path.realpath(_join(base, rel))
    top = os.path.realpath(base)
    if real == top:
        return b""
    inside = top.rstrip(b"/") + b"/"
    return real[len(inside) :] if real.startswith(inside) and os.path.lexists(real) else None


def _join(base: bytes, rel: bytes) -> bytes:
    return base.rstrip(b"/") + b"/" + rel


def _walk(base: bytes, rel: bytes) -> Iterable[bytes]:
    """Everything below a folder, relative to it, in a fixed order. Follows no link."""
    top = _join(base, rel)
    pending = sorted(os.listdir(top), reverse=True)
    while pending:
        name = pending.pop()
        yield name
        path = _join(top, name)
        if os.path.isdir(path) and not os.path.islink(path):
            pending += [name + b"/" + inner for inner in sorted(os.listdir(path), reverse=True)]


def _folders(base: bytes, rel: bytes, ignore: Ignore | None) -> list[bytes]:
    kept = {b""}
    for name in _walk(base, rel):
        path = _join(base, rel + b"/" + name if rel else name)
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        if ignore is not None and ignore.leaves_out(os.fsdecode(rel + b"/" + name if rel else name)):
            continue
        if is_folder:
            kept.add(name)
        parent = os.path.dirname(name)
        while parent not in kept:  # a folder that is left out, but for this
            kept.add(parent)
            parent = os.path.dirname(parent)
    return sorted(kept)


@dataclass(slots=True)
class Placement:
    """Where the files of COPY go."""

    existing: dict[bytes, Meta]
    """Folders of the image on the way, with what they have."""
    made: list[bytes]
    """Folders to make, parents first."""
    targets: list[dict[bytes, bytes]]
    """The folders of each match by their relative path, or a single file by b""."""
    owner: tuple[int, int] | None = None
    mode: int | None = None


def copy(
    out: TarWriter,
    base: bytes,
    matches: list[PathMatch],
    placement: Placement,
    *,
    ignore: Ignore | None = None,
    owners: Owners | None = None,
    is_context: bool = False,
) -> None:
    """Write the archive of a COPY. Folders that the image has keep what they have."""
    owner = placement.owner if placement.owner is not None else (0, 0)
    folders: dict[bytes, Meta] = dict(placement.existing)
    for path in placement.made:
        folders[path] = Meta(0o755, *owner)

    def meta_of(path: bytes, rel: bytes, info: os.stat_result) -> Meta:
        given = placement.owner
        if given is None and (is_context or owners is not None):
            given = (0, 0) if owners is None else owners.get(rel, (0, 0))
        meta = Meta(stat.S_IMODE(info.st_mode), *(given or (0, 0)), info.st_mtime_ns) if is_context else None
        meta = meta or file_meta(path, info, given)
        if placement.mode is not None and not stat.S_ISLNK(info.st_mode):
            meta.mode = placement.mode
        return meta

    for match, target in zip(matches, placement.targets, strict=True):
        for rel, place in target.items() if match.is_folder else ():
            if place not in folders:
                inner = _inside(match.path, rel)
                path = _join(base, inner)
                folders[place] = meta_of(path, inner, os.lstat(path))
    for path in sorted(folders):
        if path:
            out.add(path + b"/", FOLDER, folders[path])
    for match, target in zip(matches, placement.targets, strict=True):
        if not match.is_folder:
            _copy_file(out, base, match.path, target[b""], meta_of)
            continue
        for rel, place in target.items():
            folder = _inside(match.path, rel)
            for name in sorted(os.listdir(_join(base, folder))):
                inner = _inside(folder, name)
                path = _join(base, inner)
                if os.path.isdir(path) and not os.path.islink(path):
                    continue
                if ignore is None or not ignore.leaves_out(os.fsdecode(inner)):
                    _copy_file(out, base, inner, _inside(place, name), meta_of)
    out.end()


def _inside(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def _copy_file(
    out: TarWriter, base: bytes, rel: bytes, target: bytes, meta_of: Callable[[bytes, bytes, os.stat_result], Meta]
) -> None:
    path = _join(base, rel)
    with _named(rel):
        if os.path.basename(target).startswith(WHITEOUT):
            raise PackError("a name that begins with .wh. means a removed file in a layer")
        info = os.lstat(path)
        _add_plain(out, target, path, info, meta_of(path, rel, info))


# ---- where things are in an image ----


def resolve(base: bytes, paths: Iterable[bytes]) -> tuple[dict[bytes, tuple[bytes, str]], dict[bytes, Meta]]:
    """Return where paths of an image lead (relative, and `folder`, `file` or `none`), and its folders on the way."""
    found: dict[bytes, tuple[bytes, str]] = {}
    folders: dict[bytes, Meta] = {}
    for path in paths:
        real = _real_or_missing(base, path)
        place = _join(base, real)
        kind = "folder" if os.path.isdir(place) else "file" if os.path.lexists(place) else "none"
        found[path] = real, kind
        part = real if kind == "folder" else os.path.dirname(real)
        while part:
            if part not in folders and os.path.isdir(_join(base, part)):
                info = os.lstat(_join(base, part))
                folders[part] = Meta(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns)
            elif part not in folders and os.path.lexists(_join(base, part)):
                raise PackError(f"/{shown(part)} is not a folder")
            part = os.path.dirname(part)
    return found, folders


def _real_or_missing(base: bytes, path: bytes) -> bytes:
    real = os.path.realpath(_join(base, path))
    if os.path.islink(real):
        raise PackError(f"/{shown(path)}: its links lead nowhere")
    return real[len(os.path.realpath(base).rstrip(b"/")) + 1 :]


def find_owner(base: bytes, text: str) -> tuple[int, int]:
    """Numbers of USER, UID, USER:GROUP or UID:GID. Without a group it is the user's own, or that of the same number."""
    user, colon, group = text.partition(":")
    uid, gid = _number(user), _number(group) if colon else _number(user)
    if uid is None:
        fields = _entry(base, b"etc/passwd", user)
        if fields is None:
            raise PackError(f"user {user[:80]!r}: the image's /etc/passwd has no such user")
        uid, own = _number(fields[2]), _number(fields[3])
        gid = gid if colon else own
    if colon and gid is None:
        fields = _entry(base, b"etc/group", group)
        if fields is None:
            raise PackError(f"group {group[:80]!r}: the image's /etc/group has no such group")
        gid = _number(fields[2])
    if uid is None or gid is None:
        raise PackError(f"owner {text[:80]!r}: the image gives it no number")
    return uid, gid


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _entry(base: bytes, path: bytes, name: str) -> list[str] | None:
    """Line of a passwd or group file of an image."""
    real = _real(base, path)
    if real is None or not os.path.isfile(_join(base, real)):
        return None
    with open(_join(base, real), "rb") as file:
        lines = file.read(MAX_PASSWD).decode("utf-8", "replace").split("\n")
    found = (line.split(":") for line in lines)
    return next((fields for fields in found if len(fields) >= 4 and fields[0] == name), None)


# ---- the jailed program ----


def text_of(path: bytes) -> str:
    """A path for JSON."""
    return path.decode("latin-1")


def path_of(text: str) -> bytes:
    return text.encode("latin-1")


def meta_list(meta: Meta) -> list[int]:
    return [meta.mode, meta.uid, meta.gid, meta.mtime_ns]


def _work(order: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    base = b"/"
    owners: Owners | None = None
    if given.get("owners") is not None:
        owners = {path_of(path): (uid, gid) for path, (uid, gid) in given["owners"].items()}
    if order["verb"] == "resolve":
        found, folders = resolve(base, map(path_of, given["paths"]))
        _print(
            {
                "paths": {text_of(path): [text_of(real), kind] for path, (real, kind) in found.items()},
                "folders": {text_of(path): meta_list(meta) for path, meta in folders.items()},
            }
        )
        return {}
    if order["verb"] == "scan":
        matches = scan(base, given["sources"])
        _print([[text_of(m.path), text_of(m.name), m.is_folder, list(map(text_of, m.folders))] for m in matches])
        return {}
    if order["verb"] == "owner":
        _print(find_owner(base, given["owner"]))
        return {}
    out = TarWriter(_write, most_bytes=order["most_bytes"])
    if order["verb"] == "changes":
        skip = map(path_of, given["skip"])
        pack_changes(out, base, skip=skip, owners=owners, root=given["root"])
    else:
        copy(out, base, matches_of(given["matches"]), placement_of(given["placement"]), owners=owners)
    return {"key": out.key, "count": out.count}


def matches_of(items: list[Any]) -> list[PathMatch]:
    return [
        PathMatch(path_of(path), path_of(name), bool(kind), list(map(path_of, inner)))
        for path, name, kind, inner in items
    ]


def placement_of(fields: dict[str, Any]) -> Placement:
    return Placement(
        {path_of(path): Meta(*meta) for path, meta in fields["existing"].items()},
        list(map(path_of, fields["made"])),
        [{path_of(rel): path_of(place) for rel, place in target.items()} for target in fields["targets"]],
        tuple(fields["owner"]) if fields["owner"] is not None else None,
        fields["mode"],
    )


def placement_fields(placement: Placement) -> dict[str, Any]:
    return {
        "existing": {text_of(path): meta_list(meta) for path, meta in placement.existing.items()},
        "made": list(map(text_of, placement.made)),
        "targets": [{text_of(rel): text_of(place) for rel, place in target.items()} for target in placement.targets],
        "owner": placement.owner,
        "mode": placement.mode,
    }


def _print(value: object) -> None:
    _write(json.dumps(value).encode())


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _read_input() -> dict[str, Any]:
    pieces: list[bytes] = []
    while piece := os.read(0, CHUNK):
        pieces.append(piece)
    return json.loads(b"".join(pieces))


def main(text: str) -> None:
    order = json.loads(text)
    control: int = order["control"]
    try:
        if order["layers"]:
            child = seal.enter_layers([os.fsencode(path) for path in order["layers"]], control, full=order["full"])
        else:
            child = seal.enter(order["folder"], control, full=order["full"], is_foreign=order["foreign"])
    except OSError as error:
        os.write(control, json.dumps({"host": f"{error.filename or 'namespaces'}: {error.strerror}"}).encode())
        return
    if child:
        os.close(control)
        os.close(0)
        os.close(1)
        status = os.waitpid(child, 0)[1]
        os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
    if order["folder"] >= 0:
        os.close(order["folder"])
    seal.close(order["limits"], is_reader=True)
    try:
        answer = _work(order, _read_input())
    except (PackError, DockerfileError) as error:
        answer = {"error": str(error)[:2000]}
    except OSError as error:
        answer = {"error": error.strerror or type(error).__name__}
    except MemoryError:
        answer = {"error": "its names need too much memory"}
    os.write(control, json.dumps(answer).encode())
    os._exit(0)
