"""Small root file systems for boxes from images, made of what this machine has. Nothing is downloaded."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1234:1235:an application:/srv/app:/bin/sh\n"
GROUP = "root:x:0:\napp:x:1235:\nextra:x:1300:app\n"
APPLETS = (
    "cat chmod chown cp dd df echo env false grep id ln ls mkdir mknod mv ps pwd readlink rm sh sleep stat touch true"
)


def write_tar(
    path: Path, entries: Mapping[str, bytes | str | Path | None], modes: Mapping[str, int] | None = None
) -> Path:
    """A root file system: bytes are files, text the target of a link, a path a file of this machine, None a folder."""
    with tarfile.open(path, "w") as tar:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.mode = (modes or {}).get(name, 0o755)
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                data = content if isinstance(content, bytes) else content.read_bytes()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def busybox_entries() -> dict[str, bytes | str | Path | None]:
    found = shutil.which("busybox")
    if found is None or b"statically" not in subprocess.run(["file", "-L", found], capture_output=True).stdout:
        pytest.skip("no static busybox: apt-get install busybox-static file")
    entries: dict[str, bytes | str | Path | None] = dict.fromkeys(("bin", "etc", "root", "srv", "srv/app", "usr"))
    entries["bin/busybox"] = Path(os.path.realpath(found))
    entries |= {f"bin/{name}": "busybox" for name in APPLETS.split()}
    return entries | {"etc/passwd": PASSWD.encode(), "etc/group": GROUP.encode()}


def python_entries() -> dict[str, bytes | str | Path | None]:
    """Python of this machine with its standard library and C library, beside busybox."""
    entries = busybox_entries()
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = base / "bin" / version
    library = base / "lib" / version
    needed = {executable, *library.glob("lib-dynload/*.so"), *base.glob(f"lib/lib{version}*.so*")}
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if {"test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "__pycache__"} & set(parts):
            continue
        if path.is_file() and not parts[0].startswith("config-"):
            entries[f"usr/lib/{version}/{'/'.join(parts)}"] = path
    text = subprocess.run(["ldd", *map(str, needed)], capture_output=True, text=True, check=False).stdout
    for name in {Path(match) for match in re.findall(r"(/\S+\.so\S*) \(0x", text)}:
        entries[str(name).lstrip("/")] = Path(os.path.realpath(name))
    return entries | {f"usr/bin/{version}": executable, "usr/bin/python3": version}


def compiled(folder: Path, source: str, *options: str, compiler: str = "cc") -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}: apt-get install gcc musl-tools")
    (folder / "program.c").write_text(source)
    done = subprocess.run(
        [compiler, "-O1", "-o", "program", "program.c", *options], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "program"
