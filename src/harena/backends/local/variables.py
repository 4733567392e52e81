"""Environment variables of the local backend, and the only module of it that reads them. docs/backends.md has the table
that `table` makes.
"""

from __future__ import annotations

import os
from pathlib import Path

from harena.errors import SpecError

VARIABLES = {
    "HARENA_LAUNCHER": "What starts boxes: `native` or `bubblewrap` (`native` where a compiler has built it)",
    "HARENA_CGROUPS": "`off`: boxes use no cgroups, even where they could (they do)",
    "HARENA_LANDLOCK": "Highest version of Landlock that restricted boxes use, for trials (the kernel's)",
    "HARENA_PACKAGE_INDEX": "Where `Spec.requirements` come from: the address of an index (https, or http on loopback) "
    "or a folder of wheels (pip's index)",
    "HARENA_PACKAGE_HOSTS": "Other hosts that files of the index come from, as `NAME:PORT` with commas between them "
    "(for pip's default index those that pip names, else none)",
    "HARENA_PACKAGES": "Folder of installed requirements (`~/.cache/harena/packages`, or below `XDG_CACHE_HOME`)",
    "HARENA_PACKAGES_MAX_MB": "Most that one set of requirements may take, in memory while it is installed (4096)",
    "HARENA_PACKAGES_MAX_S": "Most that each of the two steps of an installation may take (1800)",
    "XDG_RUNTIME_DIR": "Folder of the records of live boxes, for an ordinary user (`/tmp`)",
}
"""What each one does, and in brackets what holds without it."""


def launcher() -> str | None:
    return os.environ.get("HARENA_LAUNCHER") or None


def without_cgroups() -> bool:
    return os.environ.get("HARENA_CGROUPS") == "off"


def landlock_at_most() -> int | None:
    most = os.environ.get("HARENA_LANDLOCK", "")
    return int(most) if most.isdecimal() else None


def runtime_folder() -> str | None:
    return os.environ.get("XDG_RUNTIME_DIR") or None


def package_index() -> str:
    return os.environ.get("HARENA_PACKAGE_INDEX", "").strip()


def package_hosts() -> tuple[str, ...]:
    return tuple(os.environ.get("HARENA_PACKAGE_HOSTS", "").replace(",", " ").split())


def pip_settings() -> tuple[tuple[str, str], ...]:
    """Variables of pip, which decide what its index is."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("PIP_")))


def packages_folder() -> Path:
    named = os.environ.get("HARENA_PACKAGES", "").strip()
    if named:
        return Path(named).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "harena" / "packages"
    except RuntimeError:
        raise SpecError("this user has no home folder: set HARENA_PACKAGES to a folder of yours") from None


def packages_max_mb() -> int:
    text = os.environ.get("HARENA_PACKAGES_MAX_MB", "").strip() or "4096"
    if not text.isdecimal() or not 16 <= int(text) <= 1 << 18:
        raise SpecError(f"HARENA_PACKAGES_MAX_MB={text:.40}: expected whole megabytes from 16 to {1 << 18}")
    return int(text)


def packages_max_s() -> float:
    text = os.environ.get("HARENA_PACKAGES_MAX_S", "").strip() or "1800"
    if not text.isdecimal() or not 1 <= int(text) <= 86400:
        raise SpecError(f"HARENA_PACKAGES_MAX_S={text:.40}: expected whole seconds from 1 to 86400")
    return float(text)


def table() -> str:
    """Return the table of variables in Markdown, for the docs."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(["| variable | what it does (without it) |", "|---|---|", *lines])
