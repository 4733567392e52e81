"""Images for a Docker daemon without a network, made of the Debian packages that are installed here."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

MERGED = ("bin", "sbin", "lib", "lib64")
"""Links to the folders of the same name in /usr."""
FOLDERS = ("tmp", "var/tmp", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial")


@functools.cache
def _installed() -> tuple[dict[str, list[list[str]]], dict[str, str]]:
    """What each installed package depends on, as alternatives, and which package provides a name."""
    fields = "${db:Status-Abbrev}\t${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    said = subprocess.run(["dpkg-query", "-W", "-f", fields], capture_output=True, text=True, check=True).stdout
    needs: dict[str, list[list[str]]] = {}
    provides: dict[str, str] = {}
    for line in said.splitlines():
        status, name, provided, depends = line.split("\t")
        if not status.startswith("ii"):
            continue
        needs[name] = [[_name(one) for one in part.split("|")] for part in depends.split(",") if part.strip()]
        provides |= {_name(one): name for one in provided.split(",") if one.strip()}
    return needs, provides


def _name(text: str) -> str:
    return text.strip().split(" ")[0].split(":")[0]


def closure(packages: Iterable[str]) -> list[str]:
    """The packages with all that they depend on. Raises LookupError for one that is not installed."""
    needs, provides = _installed()
    found: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        name = name if name in needs else provides.get(name, name)
        if name in found:
            continue
        if name not in needs:
            raise LookupError(f"{name} is not installed: apt-get install {name}")
        found.add(name)
        for choices in needs[name]:
            waiting += [one for one in choices if one in needs or one in provides][:1]
    return sorted(found)


def write_root(target: Path, packages: Iterable[str], more: Mapping[str, bytes] | None = None) -> None:
    """Write a root file system as a tar: the files of the packages with what they need, and `more` by their paths."""
    names = closure(packages)
    said = subprocess.run(["dpkg", "-L", *names], capture_output=True, text=True, check=True).stdout
    paths = {line for line in said.splitlines() if line.startswith("/") and line != "/."}
    status = "".join(_status(name) for name in names)
    files = {"var/lib/dpkg/status": status.encode(), "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n"}
    files |= {"etc/group": b"root:x:0:\n", "etc/shadow": b"root:*:19000:0:99999:7:::\n", **(more or {})}
    written = {"", *MERGED, *files}
    with tarfile.open(target, "w") as archive:
        for link in MERGED:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, f"usr/{link}"
            archive.addfile(member)
        for path in sorted(paths | _linked(paths)):
            inside = _merged(path)
            if os.path.lexists(path) and inside not in written:
                archive.add(path, inside, recursive=False)
                written.add(inside)
        for folder in set(FOLDERS) - written:
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755
            archive.addfile(member)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            archive.addfile(member, io.BytesIO(data))


def _linked(paths: set[str]) -> set[str]:
    """Links of update-alternatives, such as /usr/bin/awk, that lead to files of the packages."""
    found: set[str] = set()
    for link in Path("/etc/alternatives").iterdir():
        if os.path.realpath(link) in paths:
            found |= {str(link), f"/usr/bin/{link.name}"}
    return found


def _merged(path: str) -> str:
    inside = path.lstrip("/")
    return f"usr/{inside}" if inside.split("/")[0] in MERGED and inside not in MERGED else inside


def _status(name: str) -> str:
    done = subprocess.run(["dpkg", "-s", name], capture_output=True, text=True, check=True)
    return f"{done.stdout.rstrip()}\n\n"
