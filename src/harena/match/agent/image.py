"""Agents that are images: found in the image store, or pulled where the operator allows that, before a match.

Guarantees: an agent is pinned to the digest that its name stood for when it was loaded; nothing is pulled while a match
is played; nothing of the image runs outside of its box.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harena.errors import SpecError
from harena.images.errors import BadImage, BadReference, ImageCancelled, ImageError
from harena.images.reference import Digest, Reference
from harena.match.agent.load import DEFAULT_LIMITS, AgentError, ArchiveLimits, clean_name
from harena.match.agent.load import load as load_code
from harena.match.result import AgentCode

if TYPE_CHECKING:
    from harena.images import Image, ImageStore

PREFIX = "image:"
"""In the place of a path: `image:NAME`. A file of that name is `./image:NAME`."""
LABEL = "harena.agent"
"""Label of an image that names the Python file with the agent."""
ENTRY = re.compile(r"(/[^/\0]+)+\.py")
MAX_ENTRY = 1000


class ImageMissing(AgentError):
    """The image is not in the store and may not be pulled, or its repository is not allowed."""


class PullFailed(AgentError):
    """The registry did not deliver the image. Nobody's agent is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPolicy:
    """Which images may be pulled on demand; by default none."""

    allow: tuple[str, ...] = ()
    """Full names of repositories (docker.io/library/python), or how their names begin (registry.example/team/*)."""
    only_listed: bool = False
    """Refuse images of other repositories also if they are stored: for users who may not run whatever is stored."""
    timeout_s: float = 600.0
    setting: str = ""
    """What errors call the list."""

    def allows(self, reference: Reference) -> bool:
        return any(
            reference.name.startswith(entry[:-1]) if entry.endswith("/*") else reference.name == entry
            for entry in self.allow
        )


NO_PULLS = PullPolicy()


def checked_pattern(text: str) -> str:
    """Return an entry of an allow-list. Raises SpecError for one that cannot match, or that a reader could mistake."""
    name = f"{text[:-1]}x" if text.endswith("/*") else text
    try:
        read = Reference.parse(name)
    except BadReference as error:
        raise SpecError(f"{text!r:.160}: {error}") from None
    if read.name != name:
        raise SpecError(f"{text!r:.160}: write the whole name without a tag, such as {read.name}")
    return text


def check(reference: str, pulls: PullPolicy) -> None:
    """Check that an image is stored or may be pulled. Raises AgentError for what is no name, and ImageMissing."""
    wanted = _parse(reference)
    _check_listed(wanted, pulls)
    if not pulls.allows(wanted) and _store().find(wanted) is None:
        raise _missing(wanted, pulls)


def ensure(code: AgentCode, pulls: PullPolicy) -> None:
    """Pull the image of a loaded agent again if it was removed since. Raises ImageMissing or PullFailed."""
    if code.image:
        _find(_parse(code.image), pulls, None)


def _store() -> ImageStore:
    from harena.images import ImageStore  # here, because processes that only play need none of its transport

    return ImageStore.default()


def _parse(reference: str) -> Reference:
    try:
        return Reference.parse(reference)
    except BadReference as error:
        raise AgentError(str(error)) from None


def _check_listed(wanted: Reference, pulls: PullPolicy) -> None:
    if not pulls.only_listed or pulls.allows(wanted):
        return
    if not pulls.allow:
        raise ImageMissing(f"images are not taken here; send the code, or ask the host to set {pulls.setting}")
    raise ImageMissing(f"{wanted.name} is not taken here; repositories that are: {', '.join(pulls.allow)}")


def _missing(wanted: Reference, pulls: PullPolicy) -> ImageMissing:
    also = f", or add {wanted.name} to {pulls.setting}" if pulls.setting else ""
    return ImageMissing(f"{wanted.familiar} is not in the image store: run `harena image pull {wanted.familiar}`{also}")


def load(
    reference: str,
    *,
    name: str | None = None,
    pulls: PullPolicy = NO_PULLS,
    cancelled: Callable[[], bool] | None = None,
) -> AgentCode:
    """Load the agent that is this image. Raises AgentError in words for its author, ImageMissing or PullFailed."""
    wanted = _parse(reference)
    _check_listed(wanted, pulls)
    image = _find(wanted, pulls, cancelled)
    pinned = Reference(wanted.registry, wanted.repository, digest=Digest.parse(image.digest))
    config = image.config
    labels = dict(config.labels)
    entry, command = labels.get(LABEL, ""), (*config.entrypoint, *config.cmd)
    if entry and (not ENTRY.fullmatch(entry) or ".." in entry.split("/") or len(entry) > MAX_ENTRY):
        raise AgentError(f"{wanted.familiar}: its label {LABEL} must be the absolute path of a .py file")
    if not entry and not command:
        raise AgentError(
            f"{wanted.familiar}: the image has no ENTRYPOINT, no CMD and no label {LABEL}; see docs/agents.md"
        )
    return AgentCode(
        name=clean_name(name or wanted.familiar),
        files={},
        entry=entry,
        command=() if entry else command,
        image=str(pinned),
    )


def load_any(
    source: str | os.PathLike[str] | bytes, *, name: str | None = None, limits: ArchiveLimits = DEFAULT_LIMITS
) -> AgentCode:
    """Load an agent from `image:NAME`, or from anything that `load.load` takes."""
    if isinstance(source, str) and source.startswith(PREFIX):
        return load(source.removeprefix(PREFIX), name=name)
    return load_code(source, name=name, limits=limits)


def _find(wanted: Reference, pulls: PullPolicy, cancelled: Callable[[], bool] | None) -> Image:
    store = _store()
    image = store.find(wanted)
    if image is not None:
        return image
    if not pulls.allows(wanted):
        raise _missing(wanted, pulls)
    ends_at = time.monotonic() + pulls.timeout_s

    def check(*_: object) -> None:
        if cancelled is not None and cancelled():
            raise ImageCancelled("the match was cancelled")
        if time.monotonic() > ends_at:
            raise ImageCancelled(f"it took longer than {pulls.timeout_s:g} s")

    try:
        return store.pull(wanted, progress=check)
    except BadImage as error:
        raise AgentError(f"{wanted.familiar}: {error}") from None
    except ImageError as error:
        raise PullFailed(f"{wanted.familiar} could not be pulled: {error}") from None


# ---- the command ----

BOOT = """
import sys, types
entry, sources = sys.argv[1], sys.argv[2:]
sys.argv[:] = [entry]
for name, source in zip(("harena_spaces", "harena_harness"), sources):
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name + ".py", "exec"), sys.modules[name].__dict__)
sys.modules["harena_harness"].main_in_image(entry)
"""


def command_of(code: AgentCode) -> Sequence[str]:
    """Words that start the agent in its box. Our side of a Python agent comes as arguments, so that no file of the
    image can be in its place."""
    if not code.entry:
        return code.command
    folder = Path(__file__).parent
    sources = [path.read_text("utf-8") for path in (folder.parent / "spaces.py", folder / "harness.py")]
    return ["python3", "-c", BOOT, code.entry, *sources]
