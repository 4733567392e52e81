"""What `submit` sends, out of paths or bytes. Guarantees: of a folder only what lies in it is sent, never what a link
in it points to elsewhere; hidden files and caches stay behind; the same files make the same zip; nothing is sent that
is too large for any arena.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harena.errors import SpecError

MB = 1 << 20
MAX_TOTAL = 60 * MB
"""Size of all files together: more than any arena takes."""
MAX_FILES = 2000
SKIPPED = frozenset({"__pycache__", "__MACOSX", "node_modules"})
ZIP_START = b"PK\x03\x04"
_DATE = (1980, 1, 1, 0, 0, 0)

Source = str | os.PathLike[str] | bytes | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the form."""

    name: str
    data: bytes


def parts(source: Source) -> list[Part]:
    """One part: a .py file, or a zip. Several: files that lie side by side."""
    if isinstance(source, bytes):
        name = "agent.zip" if source.startswith(ZIP_START) else "submission.py"
        return _checked([Part(name, source)])
    if isinstance(source, str | os.PathLike):
        return _checked([_part(Path(source))])
    paths = [Path(path) for path in source]
    if len(paths) == 1:
        return _checked([_part(paths[0])])
    for path in paths:
        if path.is_dir():
            raise SpecError(f"{path} is a folder: submit it alone, or name the files in it")
    names = [path.name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"two files are called {twice[0]}: they would lie side by side; submit their folder instead")
    return _checked([_part(path) for path in paths])


def sendable(text: str) -> str:
    """Unchanged. The command line and file names may have bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SpecError(f"{text[:80]!r} has bytes that are not UTF-8 text") from None
    return text


def zipped(folder: Path) -> bytes:
    """The folder's files, in memory."""
    buffer, total, count = io.BytesIO(), 0, 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _files(folder):
            data = _read(path, name, MAX_TOTAL - total)
            total, count = total + len(data), count + 1
            if count > MAX_FILES:
                raise SpecError(f"{folder} has more than {MAX_FILES} files: is it the agent's own folder?")
            info = zipfile.ZipInfo(sendable(name), _DATE)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
    if not count:
        raise SpecError(f"{folder} has no files to submit; hidden ones are left out")
    return buffer.getvalue()


def _checked(found: list[Part]) -> list[Part]:
    if not found:
        raise SpecError("nothing to submit: name a .py file, a folder or a zip")
    if sum(len(part.data) for part in found) > MAX_TOTAL:
        raise _too_large("all files together")
    for part in found:
        sendable(part.name)
        if not part.data:
            raise SpecError(f"{part.name} is empty")
    return found


def _too_large(what: str) -> SpecError:
    return SpecError(f"{what}: more than {MAX_TOTAL // MB} MB, which no arena takes")


def _part(path: Path) -> Part:
    if path.is_dir():
        # A folder's name is not always one of its own: "." has none.
        return Part(f"{path.resolve().name or 'agent'}.zip", zipped(path))
    return Part(path.name, _read(path, str(path), MAX_TOTAL))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    root = folder.resolve()

    def failed(error: OSError) -> None:
        raise SpecError(f"{error.filename} cannot be read: {error.strerror}")

    for place, folders, names in os.walk(root, onerror=failed):
        folders[:] = sorted(name for name in folders if not _is_skipped(name))
        here = Path(place)
        for name in folders:
            if (here / name).is_symlink():
                raise SpecError(f"{(here / name).relative_to(root)} is a link to a folder: put the folder itself there")
        for name in sorted(names):
            if _is_skipped(name) or name.endswith((".pyc", ".pyo")):
                continue
            path = here / name
            shown = path.relative_to(root).as_posix()
            if path.is_symlink():
                path = path.resolve()
                if not path.is_relative_to(root):
                    raise SpecError(f"{shown} is a link to a file outside of {folder}: put the file itself there")
            yield shown, path


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED


def _read(path: Path, shown: str, max_bytes: int) -> bytes:
    try:
        # Not blocking: a pipe would keep us waiting before we could see that it is one.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError(f"{shown} is not a plain file")
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise SpecError(f"{shown} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise _too_large(shown)
    return data
