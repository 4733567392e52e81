"""Grammar of `Spec.requirements`: a name, optional extras and optional version specifiers, and nothing else.

Addresses, paths, options and environment markers are refused, so a requirement can only name a distribution of the
package index that the host chose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harena.errors import SpecError

MAX_REQUIREMENTS = 256
MAX_LENGTH = 256
MAX_TEXT = 64 * 1024

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9._+!-]*[A-Za-z0-9])?(?:\.\*)?"
_CLAUSE = rf"(?:~=|==|!=|<=|>=|<|>) *{_VERSION}"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_WORD}) *(?:\[ *(?P<extras>{_WORD}(?: *, *{_WORD})*) *\])? *(?P<clauses>{_CLAUSE}(?: *, *{_CLAUSE})*)?"
)
_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".tbz", ".txz", ".tlz", ".lz", ".lzma")
"""Endings by which pip takes a name for a file."""


def normalized_name(name: str) -> str:
    """Name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def checked_requirement(text: str) -> str:
    """Return a requirement in its normal form. Raises SpecError for everything that is not one."""
    shown = ascii(text)[:120]
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"requirements: {shown} is not a text")
    if len(text) > MAX_LENGTH:
        raise SpecError(f"requirements: {shown}…: longer than {MAX_LENGTH} characters")
    found = _REQUIREMENT.fullmatch(text.strip(" \t"))
    if found is None or found["name"].lower().endswith(_ARCHIVES):
        raise SpecError(
            f"requirements: {shown}: expected a name with optional extras and versions, such as 'numpy>=2,<3' or "
            "'httpx[http2]==0.28.1'; addresses, paths, options and markers are not accepted"
        )
    extras = sorted({normalized_name(extra.strip()) for extra in (found["extras"] or "").split(",") if extra.strip()})
    clauses = sorted({clause.replace(" ", "") for clause in (found["clauses"] or "").split(",") if clause})
    return normalized_name(found["name"]) + (f"[{','.join(extras)}]" if extras else "") + ",".join(clauses)


def checked_requirements(items: Iterable[str]) -> tuple[str, ...]:
    """Return requirements in their normal form, each once, in the given order."""
    if isinstance(items, str):
        raise SpecError("requirements: give a tuple, also for a single one")
    found = tuple(dict.fromkeys(map(checked_requirement, items)))
    if len(found) > MAX_REQUIREMENTS:
        raise SpecError(f"requirements: at most {MAX_REQUIREMENTS}")
    return found


def parse_requirements(text: str) -> tuple[str, ...]:
    """Return the requirements of a requirements.txt, for `Spec.requirements`.

    Each line is a requirement, a comment or empty. Raises SpecError with the line's number for anything else: options,
    other files, addresses, markers and continued lines."""
    if len(text) > MAX_TEXT:
        raise SpecError(f"requirements: longer than {MAX_TEXT} characters")
    found: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = re.sub(r"(^|[ \t])#.*", "", line.removesuffix("\r")).strip(" \t")
        if not line:
            continue
        try:
            found.append(checked_requirement(line))
        except SpecError as error:
            raise SpecError(f"line {number}: {error}") from None
    return checked_requirements(found)
