"""Container image for pods of tests: a Debian with Python, and Harena with the packages of its extras as installed here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import re
import tarfile
from pathlib import Path

import harena

ROOT = "opt/harena"
EXTRAS = ("serve", "operator", "kubernetes")


def layer(path: Path) -> None:
    """Write the layer: /opt/harena has the packages, and /usr/local/bin/harena runs them with the image's Python."""
    with tarfile.open(path, "w") as tar:
        source = Path(harena.__file__).parent
        tar.add(source, f"{ROOT}/harena", filter=_plain)
        for distribution in closure("harena", EXTRAS):
            for file in distribution.files or ():
                where = Path(str(distribution.locate_file(file)))
                if ".." not in file.parts and where.is_file():
                    tar.add(where, f"{ROOT}/{file}", filter=_plain)
        script = b'#!/bin/sh\nPYTHONPATH=/opt/harena exec python3 -B -m harena "$@"\n'
        entry = tarfile.TarInfo("usr/local/bin/harena")
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mtime = int(entry.mtime)  # what is compiled names the time of its source
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444 | (0o111 if entry.isdir() or entry.mode & 0o100 else 0)
    return entry


def closure(name: str, extras: tuple[str, ...]) -> list[importlib.metadata.Distribution]:
    """Every distribution that the extras need, by the metadata of what is installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = [(name, extras)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while todo:
        one, wanted = todo.pop()
        if (one, wanted) in seen:
            continue
        seen.add((one, wanted))
        try:
            distribution = importlib.metadata.distribution(one)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, by its marker
        if one != "harena":
            found[one.lower()] = distribution
        for text in distribution.requires or ():
            requirement, _, marker = text.partition(";")
            asked = re.findall(r"extra == ['\"]([\w.-]+)['\"]", marker)
            if asked and not any(extra in wanted for extra in asked):
                continue
            match = re.match(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?", requirement)
            assert match is not None
            todo.append((match[1], tuple(filter(None, (match[2] or "").replace(" ", "").split(",")))))
    return list(found.values())
