"""What somebody handed in (one file, several with a main file, or a zip) as a checked `Intake`: an agent to evaluate,
or a script whose score is its own word.

Promises: hostile names, sizes and archives are refused here, in words for a student, with nothing unpacked to a disk,
imported or run; the same content has the same digest, however it was packed. Whether it plays well, or at all, only the
box will tell.

Code is stored as a package: a zip with the files below `files/` and a manifest that says what is started. The same code
gives the same bytes, so their sha256 names the code; `unpack(pack(code))` is the code again, through the same walls.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from harena.arena.db.models import SubmissionKind
from harena.arena.submissions import script
from harena.arena.submissions.script import ScriptCode
from harena.errors import HarenaError
from harena.match.agent import image
from harena.match.agent import load as agents
from harena.match.agent.image import PullPolicy
from harena.match.agent.load import Advice, AdviceKind, AgentError, ArchiveLimits, SourceFault
from harena.match.result import AgentCode

AGENT_NAME, SCRIPT_NAME = agents.ENTRIES[0], "submission.py"
"""What an agent, and a script, that came as one file are called in their boxes."""
UNTOLD = (
    "nobody can tell without running it whether this file has an agent, so it is run as a script; to be verified, "
    "define `class Agent` or `def act(observation)` in the file itself"
)
NO_AGENT = (
    "kind is agent, and the main file has none: define `class Agent` with `act(self, observation)`, or "
    "`def act(observation)`; or send it with kind=script"
)
VARIABLE = (
    "`agent` is a variable here, so this is run as a script; to be verified, define `class Agent` with "
    "`act(self, observation)`, or `def agent(observation)`"
)
_AGENT_FUNCTION = re.compile(
    rb"^[ \t]*(?:async[ \t]+)?def[ \t]+agent\b|^[ \t]*agent[ \t]*=[ \t]*lambda\b|^[ \t]*from[ \t][^\n]*\bagent\b",
    re.MULTILINE,
)
MAX_NAME = 100
_MANIFEST = "manifest.json"
_FOLDER = "files/"
_PACKAGE_LIMITS = ArchiveLimits(
    total_bytes=64 * agents.MB, file_bytes=64 * agents.MB, files=2001, depth=17, path_bytes=246
)
"""What is let in, and the manifest."""
_THEN = (1980, 1, 1, 0, 0, 0)
"""The first moment that a zip can name."""


class IntakeError(HarenaError):
    """What was handed in cannot be taken. Says which file, and what to change."""


class PackageError(HarenaError):
    """The stored bytes are no package: they were changed, or never were one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    name: str
    """The name that the client gave; it is believed only as a path below the submission's own folder."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    code: AgentCode | ScriptCode
    digest: str
    """SHA-256 of the files, their paths and what is started; not of how they were packed."""
    warnings: tuple[str, ...] = ()
    """Tell the author what may go wrong. None of them prevents the evaluation."""

    @property
    def kind(self) -> SubmissionKind:
        """An agent's score is verified; a script's is its own word, and never ranks with verified ones."""
        return SubmissionKind.VERIFIED if isinstance(self.code, AgentCode) else SubmissionKind.SELF_REPORTED


def take_in(
    uploads: Sequence[Upload],
    *,
    main_file: str = "",
    wanted: str = "",
    name: str = "agent",
    limits: ArchiveLimits = agents.DEFAULT_LIMITS,
) -> Intake:
    """One .py file or zip, or several files. `main_file` says which one is started; without it that is agent.json's
    entry, agent.py, main.py, submission.py, or the only one there is. `wanted`, "agent" or "script", says what it is;
    without it the code does. Raises IntakeError."""
    alone = len(uploads) == 1 and not _is_zip(uploads[0])
    try:
        files = _one(uploads[0], limits) if len(uploads) == 1 else _several(uploads, limits)
        if alone:
            if main_file not in ("", uploads[0].name):
                raise IntakeError(f"main_file {_shown(main_file)!r} is not {_shown(uploads[0].name)}, the only file")
            main_file = AGENT_NAME
        entry, command = _start(files, main_file)
        code = AgentCode(name=_shown(name)[:MAX_NAME] or "agent", files=files, entry=entry, command=command)
        taken = _sorted_out(code, _shown(uploads[0].name) if alone else "")
    except AgentError as error:
        raise IntakeError(str(error)) from None
    if wanted == "agent" and isinstance(taken.code, ScriptCode):
        raise IntakeError(NO_AGENT)
    if wanted == "script" and isinstance(taken.code, AgentCode):
        plain = as_script(taken.code)
        return Intake(code=plain, digest=digest(plain.files, ["script", plain.main]))
    return taken


def take_image(reference: str, pulls: PullPolicy) -> Intake:
    """An agent that is an image of a repository that the host allows; it is pulled if it is missing. Raises IntakeError
    for what its author can change, and `image.PullFailed`."""
    try:
        code = image.load(reference, pulls=pulls)
    except image.PullFailed:
        raise
    except AgentError as error:
        raise IntakeError(f"docker_image: {error}") from None
    return Intake(code=code, digest=digest({}, ["image", code.image, code.entry, *code.command]))


def as_script(code: AgentCode | ScriptCode) -> ScriptCode:
    """The same files, with the entry run as a script: for an environment that only scripts know. Raises IntakeError."""
    if isinstance(code, ScriptCode):
        return code
    if code.speaks_lines:
        raise IntakeError("only Python scripts are run here; hand in a .py file that prints its score")
    if [*code.files] == [AGENT_NAME]:  # it came as one file, and may have had any name
        return ScriptCode(name=code.name, main=SCRIPT_NAME, files={SCRIPT_NAME: code.files[AGENT_NAME]})
    return ScriptCode(name=code.name, main=code.entry, files=code.files)


def digest(files: Mapping[str, bytes], start: Sequence[str]) -> str:
    """Every part goes in with its length, so that no two contents read the same."""
    hashed = hashlib.sha256(b"harena submission 1\n")
    parts = [len(start).to_bytes(8, "little"), *(word.encode() for word in start)]
    for path in sorted(files):
        parts += [path.encode(), files[path]]
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


# Which files


def _is_zip(upload: Upload) -> bool:
    return upload.data.startswith(b"PK")


def _one(upload: Upload, limits: ArchiveLimits) -> dict[str, bytes]:
    name = upload.name.lower()
    if name.endswith(".ipynb"):
        raise IntakeError(f"{_shown(upload.name)}: a notebook; export it as a .py file (File, Save as, Python)")
    if not name.endswith(".py") and not _is_zip(upload):
        raise IntakeError(f"{_shown(upload.name)}: {agents.what_else(upload.data)}; give a .py file or a zip")
    return agents.from_bytes(upload.data, limits, shown=_shown(upload.name))


def _several(uploads: Sequence[Upload], limits: ArchiveLimits) -> dict[str, bytes]:
    if not uploads:
        raise IntakeError("nothing was handed in; give a .py file, several files, or a zip")
    files = agents.FileSet(limits)
    for upload in uploads:
        path = agents.clean_path(upload.name, limits)
        if path is None:
            continue
        if _is_zip(upload):
            raise IntakeError(f"{_shown(path)}: a zip among other files; give the zip alone, or its files")
        files.add_one(path, upload.data)
    return agents.without_top_folder(files.checked())


def _start(files: dict[str, bytes], main_file: str) -> tuple[str, tuple[str, ...]]:
    if main_file:
        if main_file not in files or not main_file.endswith(".py"):
            some = ", ".join(sorted(path for path in files if path.endswith(".py"))[:5]) or "none"
            raise IntakeError(
                f"main_file {_shown(main_file)!r} is not a .py file of this submission; .py files: {_shown(some)}"
            )
        return main_file, ()
    if SCRIPT_NAME in files and not files.keys() & {agents.MANIFEST, *agents.ENTRIES}:
        return SCRIPT_NAME, ()
    try:
        return agents.start_of(files)
    except AgentError as error:
        raise IntakeError(f"{error}; or say with main_file which file is started") from None


# What it is


def _sorted_out(code: AgentCode, shown: str) -> Intake:
    """`shown` is the name of the only file; empty where there are several. It is not part of the code that is kept."""
    seen = agents.inspect(dataclasses.replace(code, shown=shown))
    if seen.fault is SourceFault.NO_AGENT:
        return _script(code, seen.advice, shown)
    if seen.entry is None:
        raise AgentError(seen.error)
    if not seen.entry.kind:
        return _script(code, seen.advice, shown, UNTOLD)
    if seen.entry.name == "agent" and not _AGENT_FUNCTION.search(code.files[code.entry]):
        return _script(code, seen.advice, shown, VARIABLE)
    start = ["command", *code.command] if code.command else ["agent", code.entry]
    return Intake(code=code, digest=digest(code.files, start), warnings=seen.warnings)


def _script(code: AgentCode, advice: Sequence[Advice], shown: str, why: str = "") -> Intake:
    files, main = code.files, code.entry
    if shown:
        files, main = {SCRIPT_NAME: files[main]}, SCRIPT_NAME
    about = [dataclasses.replace(one, path=main) if one.path == shown else one for one in advice]
    warnings = [str(one) for one in about if _concerns_scripts(one)]
    if why:
        warnings.append(f"{main}: {why}")
    return Intake(
        code=ScriptCode(name=code.name, main=main, files=files),
        digest=digest(files, ["script", main]),
        warnings=tuple(warnings),
    )


def _concerns_scripts(advice: Advice) -> bool:
    """The advice is for agents: a script may print as it likes, and finds more packages."""
    if advice.kind is AdviceKind.MISSING_IMPORT:
        return advice.module.partition(".")[0] not in script.packages()
    return advice.kind is not AdviceKind.PRINTS


def _shown(text: str) -> str:
    """On one line and without what a terminal would obey: strangers chose it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200]).strip()


# ---- packages ----


class _Agent(msgspec.Struct, tag="agent", forbid_unknown_fields=True, frozen=True):
    entry: str
    command: tuple[str, ...] = ()


class _Image(msgspec.Struct, tag="image", forbid_unknown_fields=True, frozen=True):
    image: str
    entry: str
    command: tuple[str, ...] = ()


class _Script(msgspec.Struct, tag="script", forbid_unknown_fields=True, frozen=True):
    main: str


_decode = msgspec.json.Decoder(_Agent | _Image | _Script).decode


def pack(code: AgentCode | ScriptCode) -> bytes:
    """Return the package of some code: everything but its name."""
    inside = {_FOLDER + path: data for path, data in code.files.items()}
    return zip_of({_MANIFEST: msgspec.json.encode(_manifest(code)), **inside})


def _manifest(code: AgentCode | ScriptCode) -> _Agent | _Image | _Script:
    if isinstance(code, ScriptCode):
        return _Script(code.main)
    if code.image:
        return _Image(code.image, code.entry, code.command)
    return _Agent(code.entry, code.command)


def unpack(data: bytes, *, name: str = "agent") -> AgentCode | ScriptCode:
    try:
        inside = agents.FileSet(_PACKAGE_LIMITS).add_zip(data)
        manifest = _decode(inside.pop(_MANIFEST))
    except (AgentError, KeyError, msgspec.DecodeError) as error:
        raise PackageError(f"not a package of code: {error}") from error
    if not all(path.startswith(_FOLDER) for path in inside):
        raise PackageError("not a package of code: a file outside of its folder")
    files = {path.removeprefix(_FOLDER): content for path, content in inside.items()}
    if isinstance(manifest, _Image):
        return AgentCode(name=name, files={}, entry=manifest.entry, command=manifest.command, image=manifest.image)
    started = manifest.main if isinstance(manifest, _Script) else manifest.entry
    if started not in files and not (isinstance(manifest, _Agent) and manifest.command):
        raise PackageError("not a package of code: what it starts is not in it")
    if isinstance(manifest, _Script):
        return ScriptCode(name=name, main=manifest.main, files=files)
    return AgentCode(name=name, files=files, entry=manifest.entry, command=manifest.command)


def zip_of(files: Mapping[str, bytes]) -> bytes:
    """Make a zip, stored, sorted and without times: the bytes depend on nothing but names and contents."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, _THEN)
            info.create_system = 3  # Unix, wherever this runs
            info.external_attr = 0o100644 << 16
            archive.writestr(info, files[path])
    return stream.getvalue()
