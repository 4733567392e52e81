"""Loads submitted agents: a .py file, a folder, a zip, or the bytes of a zip or of one .py file.

The input is hostile: every size is counted while reading; only regular files below the agent's own folder are accepted;
nothing is imported or unpacked to disk. `lint` and `find_entry` parse the source in a child process with limits
(source.py), because a parser can be made to use excessive memory and time. Lint is advice; the box enforces isolation.

One file: all that reads an agent's bytes shares one count of sizes.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import os
import re
import stat
import struct
import subprocess
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harena.errors import HarenaError, SpecError
from harena.match.agent import packages
from harena.match.agent import source as source_file
from harena.match.result import AgentCode

MB = 1 << 20
ENTRIES = ("agent.py", "main.py")
MANIFEST = "agent.json"
SKIPPED = frozenset({"__pycache__", ".git", ".DS_Store", "__MACOSX", ".ipynb_checkpoints"})
FORBIDDEN_IMPORTS = ("socket", "requests", "urllib.request", "http.client", "subprocess", "multiprocessing")
LARGE_FILE = 5 * MB
MAX_PARSED = 1 * MB
"""Larger sources are not parsed here; errors are found in the box."""
CHUNK = 1 << 16
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError, OverflowError)


class AgentError(HarenaError):
    """The agent cannot be used as submitted. The message names the file and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    total_bytes: int = 50 * MB
    """All files together, unpacked; and the zip itself."""
    file_bytes: int = 10 * MB
    files: int = 2000
    depth: int = 16
    path_bytes: int = 240
    ratio: int = 200
    """Maximum compression ratio of a file of more than 1 MB; a better one is treated as a zip bomb."""
    directory_bytes: int = 2 * MB
    """Maximum size of the zip's list of files, which is read at once."""


DEFAULT_LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """How the agent is reached, as far as its source tells."""

    kind: str
    """class, factory, function or command; "" if only running it can tell."""
    name: str
    """Agent, create_agent, act, agent, or the command's program."""
    method: str = ""
    """act, get_action or predict; "" if only running it can tell."""


class SourceFault(enum.Enum):
    """Why an entry file cannot work as an agent."""

    SYNTAX = "syntax"
    """Not Python."""
    NO_AGENT = "no_agent"
    """Sound, but it offers no agent."""


class AdviceKind(enum.Enum):
    LARGE_FILE = "large_file"
    UNCHECKED = "unchecked"
    """Only running it can tell."""
    HIDES_MODULE = "hides_module"
    SYNTAX = "syntax"
    """A file that the entry imports has a syntax error."""
    MISSING_IMPORT = "missing_import"
    """It imports a package that agents do not have."""
    FORBIDDEN_IMPORT = "forbidden_import"
    RELATIVE_IMPORT = "relative_import"
    CALL = "call"
    """It calls a function that is of no use in a box."""
    PRINTS = "prints"
    REQUIREMENTS = "requirements"
    """Its requirements.txt names what its box will not have, or cannot be used."""
    REFUSED = "refused"
    """It uses a module or function that the host does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something that will probably not work or not help."""

    kind: AdviceKind
    path: str
    """The file, as its author calls it."""
    line: int = 0
    """0 where it is about the whole file."""
    text: str
    module: str = ""
    """The module that is imported or hidden."""

    def __str__(self) -> str:
        return _located(self.path, self.line, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What the source shows without running it."""

    entry: EntryPoint | None
    fault: SourceFault | None = None
    """Why it cannot work; None when nothing speaks against it."""
    error: str = ""
    """The fault in words for the author."""
    advice: tuple[Advice, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The advice in words for the author."""
        return tuple(str(one) for one in self.advice if one.kind is not AdviceKind.REFUSED)

    @property
    def refusals(self) -> tuple[Advice, ...]:
        return tuple(one for one in self.advice if one.kind is AdviceKind.REFUSED)


def load(
    source: str | os.PathLike[str] | bytes, *, name: str | None = None, limits: ArchiveLimits = DEFAULT_LIMITS
) -> AgentCode:
    """Reads an agent. Raises AgentError in words for its author."""
    shown = ""
    if isinstance(source, bytes):
        files, default = from_bytes(source, limits), "agent"
    else:
        path = Path(source)
        files, shown = _from_path(path, limits)
        default = _default_name(path)
    entry, command = start_of(files)
    return AgentCode(name=clean_name(name or default), files=files, entry=entry, command=command, shown=shown)


def lint(code: AgentCode, forbidden_imports: Sequence[str] = FORBIDDEN_IMPORTS) -> list[str]:
    """Return warnings about code that will probably not work or not help in a box."""
    return list(inspect(code, forbidden_imports).warnings)


def find_entry(code: AgentCode) -> EntryPoint:
    """Raises AgentError for a syntax error, or where the entry file certainly has no agent."""
    report = inspect(code)
    if report.entry is None:
        raise AgentError(report.error)
    return report.entry


def inspect(
    code: AgentCode, forbidden_imports: Sequence[str] = FORBIDDEN_IMPORTS, *, refused: Sequence[str] = ()
) -> Inspection:
    """Inspect the source. `forbidden_imports` are warned about; the use of `refused` names is reported as REFUSED."""
    large = [
        Advice(
            kind=AdviceKind.LARGE_FILE,
            path=path if path != code.entry else code.shown or path,
            text=f"{len(data) / MB:.1f} MB: loading it counts as start-up time",
        )
        for path, data in code.files.items()
        if len(data) > LARGE_FILE
    ]
    large += _requirements_advice(code)
    if code.speaks_lines:
        name = code.command[0] if code.command else code.entry
        return Inspection(entry=EntryPoint(kind="command", name=name), advice=tuple(large))
    seen = _parse_in_child(code, forbidden_imports, refused)
    known = seen.advice
    if packages.REQUIREMENTS in code.files and packages.are_installed():
        # A package may have modules of any name, so only running it tells what is missing.
        known = tuple(one for one in known if one.kind is not AdviceKind.MISSING_IMPORT)
    return dataclasses.replace(seen, advice=(*large, *known))


def _requirements_advice(code: AgentCode) -> list[Advice]:
    if packages.REQUIREMENTS not in code.files:
        return []
    try:
        if packages.are_installed():
            packages.required(code.files)
            return []
        missing = packages.not_met(code.files)
    except SpecError as error:
        text = _shown(str(error))
    else:
        if not missing:
            return []
        text = (
            f"its box will not have {', '.join(missing)}: put the package beside the agent, or ask the host for it "
            "(HARENA_AGENT_PACKAGES, HARENA_AGENT_REQUIREMENTS=1)"
        )
    return [Advice(kind=AdviceKind.REQUIREMENTS, path=packages.REQUIREMENTS, text=text)]


# Where the files come from


def _from_path(path: Path, limits: ArchiveLimits) -> tuple[dict[str, bytes], str]:
    """The files, and what errors call the only one where it is stored under another name."""
    try:
        if path.is_dir():
            return FileSet(limits).add_folder(path), ""
        # Without O_NONBLOCK a FIFO by that name would wait for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise AgentError(f"{path}: neither a file nor a folder")
            data = stream.read(limits.total_bytes + 1)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise AgentError(f"{path}: cannot be read ({text}); give a .py file, a folder or a zip") from None
    if path.suffix == ".ipynb":
        raise AgentError(f"{path.name}: a notebook; export it as a .py file (File, Save as, Python)")
    if path.suffix != ".py" and not data.startswith(b"PK"):
        raise AgentError(f"{path.name}: {what_else(data)}; give a .py file, a folder or a zip")
    shown = "" if data.startswith(b"PK") else _shown(path.name)
    return from_bytes(data, limits, shown=shown), shown


def from_bytes(data: bytes, limits: ArchiveLimits, *, shown: str = "") -> dict[str, bytes]:
    """The files of a zip, or one Python file. `shown` is what errors call that one."""
    if len(data) > limits.total_bytes:
        raise AgentError(f"more than {limits.total_bytes // MB} MB; leave out data the agent does not need")
    if data.startswith(b"PK"):
        return without_top_folder(FileSet(limits).add_zip(data))
    if not data.strip():
        raise AgentError("the file is empty")
    if b"\0" in data:
        raise AgentError(f"{what_else(data)}; give a .py file or a zip")
    # Always by this name: a file called random.py would be what its own `import random` finds.
    return FileSet(limits).add_one(ENTRIES[0], data, shown=shown)


def what_else(data: bytes) -> str:
    known = {b"\x1f\x8b": "a gzip or tar.gz", b"7z\xbc\xaf": "a 7z archive", b"Rar!": "a rar archive"}
    for magic, kind in known.items():
        if data.startswith(magic):
            return f"{kind}, which is not read; make a zip"
    return "neither Python source nor a zip"


class FileSet:
    """Collects files under the limits. Every name goes through `clean_path`, every byte through `_put`."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._files: dict[str, bytes] = {}
        self._seen: dict[str, str] = {}
        self._total = 0

    def add_one(self, path: str, data: bytes, *, shown: str = "") -> dict[str, bytes]:
        self._put(path, io.BytesIO(data), shown=shown)
        return self._files

    def add_zip(self, data: bytes) -> dict[str, bytes]:
        stream = _CappedReads(data, self._limits.directory_bytes)
        try:
            with zipfile.ZipFile(stream) as archive:
                for info in archive.infolist():
                    self._add_member(archive, info)
        except DAMAGE as error:
            raise AgentError(f"the zip is damaged ({_shown(str(error))}); make it again") from None
        return self.checked()

    def _add_member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        path = clean_path(_zip_name(info), self._limits)
        if path is None:
            return
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise AgentError(f"{path}: {_kind(kind)}; put the file itself into the zip")
        if info.orig_filename.endswith("/"):
            return
        if info.flag_bits & 0x41:
            raise AgentError(f"{path}: encrypted; make the zip without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # The others inflate without a bound on what one read gives.
            raise AgentError(f"{path}: an unusual compression; make the zip with plain `zip -r`")
        with archive.open(info) as stream:
            self._put(path, stream, packed=info.compress_size)

    def add_folder(self, folder: Path) -> dict[str, bytes]:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._walk(descriptor, "")
        finally:
            os.close(descriptor)
        return self.checked()

    def _walk(self, folder: int, above: str) -> None:
        # By descriptors and without following links: the folder may change while it is read.
        for name in sorted(os.listdir(folder)):
            path = clean_path(f"{above}{name}", self._limits)
            if path is None:
                continue
            kind = stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR):
                raise AgentError(f"{path}: {_kind(kind)}; put the file itself there")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags | (os.O_DIRECTORY if kind == stat.S_IFDIR else 0), dir_fd=folder)
            if kind == stat.S_IFDIR:
                try:
                    self._walk(descriptor, f"{path}/")
                finally:
                    os.close(descriptor)
                continue
            with open(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise AgentError(f"{path}: not a plain file")
                self._put(path, stream)

    def _put(self, path: str, stream: Any, packed: int | None = None, *, shown: str = "") -> None:
        limits = self._limits
        shown = shown or path
        if len(self._files) >= limits.files:
            raise AgentError(f"more than {limits.files} files; leave out what the agent does not need (.venv, data)")
        key = unicodedata.normalize("NFC", path).casefold()
        if key in self._seen:
            first = self._seen[key]
            how = "is there twice" if first == path else f"and {first} differ only in case"
            raise AgentError(f"{path} {how}; keep one of them")
        self._seen[key] = path
        data = bytearray()
        while chunk := stream.read(CHUNK):
            data += chunk
            self._total += len(chunk)
            if len(data) > limits.file_bytes:
                raise AgentError(f"{shown}: more than {limits.file_bytes // MB} MB, the most for one file; split it")
            if self._total > limits.total_bytes:
                raise AgentError(
                    f"{shown}: more than {limits.total_bytes // MB} MB with this one; leave out what is not needed"
                )
            if packed is not None and len(data) > MB and len(data) > packed * limits.ratio:
                raise AgentError(
                    f"{path}: compressed more than {limits.ratio} to 1, as in a zip bomb; store it (`zip -0`)"
                )
        self._files[path] = bytes(data)

    def checked(self) -> dict[str, bytes]:
        for path in self._files:
            for parent in _parents(path):
                if parent in self._files:
                    raise AgentError(f"{parent} is a file, and a folder for {path}; rename one of them")
        if not self._files:
            raise AgentError("there are no files in it")
        return self._files


class _CappedReads(io.BytesIO):
    """File object that refuses to read an oversized zip directory, which zipfile would read at once."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self._most:
            raise AgentError("the zip's list of files is too long; leave out what the agent does not need")
        return super().read(size)


def _zip_name(info: zipfile.ZipInfo) -> str:
    name = info.orig_filename  # `filename` was cut at a NUL and had its separators replaced
    if info.flag_bits & 0x800 or name.isascii():
        return name
    try:
        return name.encode("cp437").decode("utf-8")  # some packers write UTF-8 and do not say so
    except UnicodeError:
        raise AgentError(f"{_shown(name)}: a file name that is not UTF-8; use plain letters") from None


def clean_path(name: str, limits: ArchiveLimits) -> str | None:
    """Path below the agent's folder; None for ignored files. Raises for a path that leads elsewhere."""
    shown = _shown(name)
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        raise AgentError(f"{shown}: a file name that is not UTF-8; use plain letters") from None
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise AgentError(f"{shown}: a file name with control characters; rename it")
    if "\\" in name:
        raise AgentError(f"{shown}: a backslash in a file name; make the zip with / between folders")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise AgentError(f"{shown}: leads out of the agent's folder; use paths below it")
    if not parts or any(part in SKIPPED or part.startswith("._") for part in parts):
        return None
    if len(parts) > limits.depth or len(encoded) > limits.path_bytes:
        raise AgentError(f"{shown[:60]}…: more than {limits.depth} folders or {limits.path_bytes} bytes of path")
    return "/".join(parts)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def without_top_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1 or not all("/" in path for path in files):
        return files
    return {path.partition("/")[2]: data for path, data in files.items()}


def _kind(mode: int) -> str:
    return {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }.get(mode, "not a plain file")


# How it is started


def start_of(files: dict[str, bytes]) -> tuple[str, tuple[str, ...]]:
    if MANIFEST in files:
        return _read_manifest(files)
    for entry in ENTRIES:
        if entry in files:
            return entry, ()
    python = [path for path in files if path.endswith(".py") and not path.endswith("__init__.py")]
    top = [path for path in python if "/" not in path] or python
    if len(top) == 1:
        return top[0], ()
    if top:
        some = ", ".join(sorted(top)[:5])
        raise AgentError(f"which file is the agent? Name it agent.py or main.py, or name it in {MANIFEST} ({some})")
    raise AgentError(f"no .py file and no {MANIFEST} with a command; see docs/agents.md for other languages")


def _read_manifest(files: dict[str, bytes]) -> tuple[str, tuple[str, ...]]:
    expected = f'{MANIFEST}: expected {{"entry": "x.py"}} or {{"command": ["node", "agent.js"]}}'
    raw = files[MANIFEST]
    try:
        if len(raw) > CHUNK:
            raise ValueError("it is very long")
        data = json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{expected}; it is not JSON ({_shown(str(error))})") from None
    if not isinstance(data, dict):
        raise AgentError(expected)
    match cast("dict[str, Any]", data):
        case {"entry": str(entry), **rest} if not rest:
            if entry not in files or not entry.endswith(".py"):
                raise AgentError(f"{MANIFEST}: the entry {_shown(entry)!r} is not a .py file of this agent")
            return entry, ()
        case {"command": [*words], **rest} if not rest:
            return "", _checked_command(words, expected)
        case _:
            raise AgentError(expected)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _checked_command(words: Sequence[object], expected: str) -> tuple[str, ...]:
    good = [word for word in words if isinstance(word, str) and len(word) <= 4000 and "\0" not in word]
    if not words or len(good) != len(words) or len(words) > 64 or not good[0] or not "".join(good).isprintable():
        raise AgentError(f"{expected}: a program and its arguments, 1 to 64 printable texts")
    return tuple(good)


def _default_name(path: Path) -> str:
    resolved = Path(os.path.abspath(path))
    return resolved.name if resolved.suffix not in (".py", ".zip") else resolved.stem


def clean_name(name: str) -> str:
    """What an agent is called: one line of at most 100 characters."""
    return _shown(name)[:100] or "agent"


def _shown(text: str) -> str:
    """Text on one line without control characters, because strangers chose it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:300]).strip()


# What the source shows


def _located(path: str, line: int, text: str) -> str:
    return f"{path} line {line}: {text}" if line else f"{path}: {text}"


def _parse_in_child(code: AgentCode, forbidden: Sequence[str], refused: Sequence[str]) -> Inspection:
    name = code.shown or code.entry
    modules = {path: data for path, data in code.files.items() if path.endswith(".py") and len(data) <= MAX_PARSED}
    unknown = EntryPoint(kind="", name="")
    if code.entry not in modules:
        large = Advice(kind=AdviceKind.UNCHECKED, path=name, text="too large to check without running it")
        return Inspection(entry=unknown, advice=(large,))
    request = {
        "entry": code.entry,
        "files": {path: data.decode("latin-1") for path, data in modules.items()},
        "known": [*packages.warm(packages.for_agents()), *source_file.own_modules(code.files)],
        "forbidden": list(forbidden),
        "refused": list(refused),
    }
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", source_file.__file__],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=2 * source_file.CPU_S,
            check=False,
        )
        # The answer about the entry comes first, so that it is there even when the rest was too much.
        answers = [json.loads(line) for line in child.stdout.splitlines()]
    except (subprocess.TimeoutExpired, ValueError):
        answers = []
    if not answers:
        hard = Advice(kind=AdviceKind.UNCHECKED, path=name, text="too complex to check without running it")
        return Inspection(entry=unknown, advice=(hard,))
    found = answers[0]
    advice = tuple(
        Advice(
            kind=AdviceKind(one["kind"]),
            path=name if one["path"] == code.entry else _shown(one["path"]),
            line=one["line"],
            text=_shown(one["text"]),
            module=_shown(one["module"]),
        )
        for one in answers[1:]
    )
    if found["fault"]:
        error = _shown(_located(name, found["line"], found["error"]))
        return Inspection(entry=None, fault=SourceFault(found["fault"]), error=error, advice=advice)
    entry = EntryPoint(kind=found["kind"], name=found["name"], method=found["method"])
    return Inspection(entry=entry, advice=advice)
