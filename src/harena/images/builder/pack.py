"""Reads layers and images with the jailed program of `packer`: changed files as an archive, files to copy, paths."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from harena.images.builder import packer
from harena.images.builder.packer import Meta, Owners, PathMatch, Placement, path_of, text_of
from harena.images.errors import ImageError
from harena.images.unpack.ids import Ids
from harena.images.unpack.jail import Jail
from harena.images.unpack.unpack import OWNERS
from harena.terminal import safe

MAX_ANSWER = 256 << 20
MAX_OWNERS = 256 << 20
MOST_BYTES = 96 << 30
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from harena.images.builder.packer import main; main(sys.argv[2])"
)


class PackFailed(ImageError):
    """Files cannot become a layer. The message says which and why."""


def pack_folder(
    folder: Path | int,
    out: BinaryIO,
    *,
    ids: Ids,
    skip: Iterable[bytes] = (),
    owners: Owners | None = None,
    most_bytes: int = MOST_BYTES,
) -> int:
    """Write an unpacked layer, or by a descriptor the changed files of a box, as an archive. Returns its members."""
    given = {"skip": list(map(text_of, skip)), "owners": _owner_fields(owners), "root": not isinstance(folder, int)}
    answer = _run("changes", given, ids, out.fileno(), folder=folder, most_bytes=most_bytes)
    count = answer.get("count")
    if not isinstance(count, int):
        raise PackFailed("the packing process broke its protocol")
    return count


def resolve(
    layers: Sequence[str], paths: Iterable[bytes], *, ids: Ids, owners: Owners | None
) -> tuple[dict[bytes, tuple[bytes, str]], dict[bytes, Meta]]:
    """Return where paths of an image lead, and its folders on the way: see `packer.resolve`."""
    answer = _ask("resolve", {"paths": list(map(text_of, paths))}, ids, layers)
    with _trusted_within():
        found = {path_of(path): (path_of(real), str(kind)) for path, (real, kind) in answer["paths"].items()}
        folders = {path_of(path): _meta(meta) for path, meta in answer["folders"].items()}
    if owners is not None:
        for path, meta in folders.items():
            meta.uid, meta.gid = owners.get(path, (0, 0))
    return found, folders


def find_owner(layers: Sequence[str], text: str, *, ids: Ids) -> tuple[int, int]:
    """Numbers of a user and a group as an image names them: see `packer.find_owner`."""
    answer = _ask("owner", {"owner": text}, ids, layers)
    with _trusted_within():
        uid, gid = map(int, answer)
    return uid, gid


def scan(layers: Sequence[str], sources: Sequence[str], *, ids: Ids) -> list[PathMatch]:
    """Find what sources of a COPY --from name."""
    answer = _ask("scan", {"sources": list(sources)}, ids, layers)
    with _trusted_within():
        return packer.matches_of(answer)


def copy(
    layers: Sequence[str],
    matches: list[PathMatch],
    placement: Placement,
    out: BinaryIO,
    *,
    ids: Ids,
    owners: Owners | None,
) -> str:
    """Write the archive of a COPY --from, and return the key of its content."""
    given = {
        "matches": [[text_of(m.path), text_of(m.name), m.is_folder, list(map(text_of, m.folders))] for m in matches],
        "placement": packer.placement_fields(placement),
        "owners": _owner_fields(owners),
    }
    return str(_run("copy", given, ids, out.fileno(), layers=layers).get("key"))


def owners_of(layers: Sequence[str], ids: Ids) -> Owners | None:
    """Owners that the disk does not have, of the files of all layers together; None where it has them."""
    if ids.kind == "full":
        return None
    found: dict[bytes, tuple[int, int]] = {}
    for layer in layers:
        own = read_owners(layer)
        tree = os.fsencode(layer)
        for path in [path for path in found if path not in own and os.path.lexists(tree + b"/" + path)]:
            del found[path]  # this layer has the file, with the owner 0:0
        found |= own
    return {path: owner for path, owner in found.items() if owner != (0, 0)}


def read_owners(layer: str) -> dict[bytes, tuple[int, int]]:
    """Records of the file `owners` beside the files of a layer."""
    try:
        with open(Path(layer).parent / OWNERS, "rb") as file:
            data = file.read(MAX_OWNERS + 1)
    except FileNotFoundError:
        return {}
    if len(data) > MAX_OWNERS:
        raise PackFailed("a layer has too many files with owners")
    found: dict[bytes, tuple[int, int]] = {}
    for record in data.split(b"\0"):
        words = record.split(b" ", 2)
        if len(words) == 3 and all(word.isdigit() and len(word) < 11 for word in words[:2]):
            found[words[2]] = int(words[0]), int(words[1])
    return found


def _meta(numbers: list[Any]) -> Meta:
    mode, uid, gid, mtime_ns = map(int, numbers)
    return Meta(mode & 0o7777, uid, gid, mtime_ns)


def _owner_fields(owners: Owners | None) -> dict[str, tuple[int, int]] | None:
    return None if owners is None else {text_of(path): owner for path, owner in owners.items()}


def _ask(verb: str, given: dict[str, Any], ids: Ids, layers: Sequence[str]) -> Any:
    """Run the program for an answer in JSON."""
    out = os.memfd_create("answer", os.MFD_CLOEXEC)
    try:
        _run(verb, given, ids, out, layers=layers)
        size = os.fstat(out).st_size
        if size > MAX_ANSWER:
            raise PackFailed("the files have too many names")
        with _trusted_within():
            return json.loads(os.pread(out, size, 0))
    finally:
        os.close(out)


def _run(
    verb: str,
    given: dict[str, Any],
    ids: Ids,
    out: int,
    *,
    layers: Sequence[str] = (),
    folder: Path | int = -1,
    most_bytes: int = MOST_BYTES,
) -> dict[str, Any]:
    stdin = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(stdin), "wb") as file:
            file.write(json.dumps(given).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        more = {"layers": list(layers), "foreign": isinstance(folder, int), "most_bytes": most_bytes}
        with Jail(verb, folder, ids, stdin=stdin, stdout=out, program=_PROGRAM, more=more) as jail:
            answer = jail.answer()
    finally:
        os.close(stdin)
    if "error" in answer:
        raise PackFailed(safe(str(answer["error"]))[:600])
    return answer


@contextmanager
def _trusted_within() -> Generator[None]:
    """The process may have been taken over: whatever it answers, no other error leaves this module."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise PackFailed("the packing process broke its protocol") from None
