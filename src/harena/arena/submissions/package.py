"""A submission's code as one file: a zip with the files below `files/` and a manifest that says what is started.

Promises: the same code gives the same bytes, so their sha256 names the code; `unpack(pack(code))` is the code again.
What is unpacked goes through the same walls as an upload. No pickle, nothing is written to a disk or run.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import msgspec

from harena.arena.submissions.script import ScriptCode
from harena.errors import HarenaError
from harena.match.agent.load import MB, AgentError, ArchiveLimits, FileSet
from harena.match.result import AgentCode

MANIFEST = "manifest.json"
FOLDER = "files/"
LIMITS = ArchiveLimits(total_bytes=64 * MB, file_bytes=64 * MB, files=2001, depth=17, path_bytes=246)
"""What `intake` lets in, and the manifest."""
_THEN = (1980, 1, 1, 0, 0, 0)
"""The first moment that a zip can name."""


class PackageError(HarenaError):
    """The stored bytes are no package: they were changed, or never were one."""


class _Agent(msgspec.Struct, tag="agent", forbid_unknown_fields=True, frozen=True):
    entry: str
    command: tuple[str, ...] = ()


class _Script(msgspec.Struct, tag="script", forbid_unknown_fields=True, frozen=True):
    main: str


_decode = msgspec.json.Decoder(_Agent | _Script).decode


def pack(code: AgentCode | ScriptCode) -> bytes:
    """All but the code's name."""
    manifest = _Agent(code.entry, code.command) if isinstance(code, AgentCode) else _Script(code.main)
    inside = {FOLDER + path: data for path, data in code.files.items()}
    return zip_of({MANIFEST: msgspec.json.encode(manifest), **inside})


def unpack(data: bytes, *, name: str = "agent") -> AgentCode | ScriptCode:
    try:
        inside = FileSet(LIMITS).add_zip(data)
        manifest = _decode(inside.pop(MANIFEST))
    except (AgentError, KeyError, msgspec.DecodeError) as error:
        raise PackageError(f"not a package of code: {error}") from error
    if not all(path.startswith(FOLDER) for path in inside):
        raise PackageError("not a package of code: a file outside of its folder")
    files = {path.removeprefix(FOLDER): content for path, content in inside.items()}
    started = manifest.main if isinstance(manifest, _Script) else manifest.entry
    if started not in files and not (isinstance(manifest, _Agent) and manifest.command):
        raise PackageError("not a package of code: what it starts is not in it")
    if isinstance(manifest, _Script):
        return ScriptCode(name=name, main=manifest.main, files=files)
    return AgentCode(name=name, files=files, entry=manifest.entry, command=manifest.command)


def zip_of(files: Mapping[str, bytes]) -> bytes:
    """Stored, sorted, without times: the bytes depend on nothing but names and contents."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, _THEN)
            info.create_system = 3  # Unix, wherever this runs
            info.external_attr = 0o100644 << 16
            archive.writestr(info, files[path])
    return stream.getvalue()
