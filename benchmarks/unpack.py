"""Unpacks a layer of 60,000 files and 1 GB: ours, GNU tar, and Python's tarfile, in turns.

    python benchmarks/unpack.py [--files 60000] [--megabytes 1000] [--turns 5] [--folder DIR] [--gzip] [--in-memory]

Prints the median wall time of each, the median processor time of its processes, and both against GNU tar. Run as root,
so that tar keeps owners as we do; as an ordinary user neither does. Trees are removed at the very end: ext4 passes over
the inodes of files that were deleted within a minute, which is slow, so the next contestant would pay for it.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import remove_layer, unpack_layer


def make(path: Path, files: int, megabytes: int) -> None:
    """Write an archive like that of a Debian image with conda: many small files, few large ones, links."""
    chance = random.Random(1)
    sizes = [int(chance.lognormvariate(7.5, 2.2)) for _ in range(files)]
    scale = megabytes * 1_000_000 / sum(sizes)
    noise = chance.randbytes(1 << 20)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        folders: set[str] = set()
        for number, size in enumerate(sizes):
            folder = f"usr/lib/package{number % 600}/module{number % 1800}"
            for part in ("usr", "usr/lib", folder.rpartition("/")[0], folder):
                if part not in folders:
                    folders.add(part)
                    info = tarfile.TarInfo(part)
                    info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, 1_700_000_000
                    archive.addfile(info)
            info = tarfile.TarInfo(f"{folder}/file{number}.py")
            info.mtime, info.mode = 1_700_000_000 + number, 0o644
            if number % 20 == 0:
                info.uid = info.gid = 1000
            if number % 25 == 24:
                info.type, info.linkname = tarfile.SYMTYPE, "../other"
                archive.addfile(info)
                continue
            info.size = int(size * scale)
            start = chance.randrange(1 << 16)
            archive.addfile(info, _Repeated(noise, start))


class _Repeated:
    """An endless file of the same bytes."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._at = data, start

    def read(self, count: int = -1) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at = (self._at + len(found)) % len(self._data)
        while len(found) < count:
            found += self._data[: count - len(found)]
        return found


def ours(archive: Path, target: Path) -> None:
    with archive.open("rb") as file:
        stream = gzip.GzipFile(fileobj=file) if archive.suffix == ".gz" else file
        unpack_layer(cast("BinaryIO", stream), target, ids=Ids.of_host())


def piped(archive: Path, target: Path) -> None:
    """Ours, with an archive that comes from a pipe as a decompressed one does."""
    with subprocess.Popen(["cat", str(archive)], stdout=subprocess.PIPE) as source:
        assert source.stdout
        unpack_layer(cast("BinaryIO", source.stdout), target, ids=Ids.of_host())


def gnu_tar(archive: Path, target: Path) -> None:
    target.mkdir()
    subprocess.run(["tar", "--numeric-owner", "-xpf", str(archive), "-C", str(target)], check=True)


def python_tarfile(archive: Path, target: Path) -> None:
    code = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], numeric_owner=True)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(archive), str(target)], check=True)


def remove(target: Path) -> None:
    if (target / "layer.json").exists():
        remove_layer(target, ids=Ids.of_host())
    else:
        shutil.rmtree(target)


def timed(call: Callable[[Path, Path], None], archive: Path, target: Path) -> tuple[float, float]:
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    start = time.perf_counter()
    call(archive, target)
    wall = time.perf_counter() - start
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    return wall, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60_000)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to unpack; a disk, not a tmpfs")
    parser.add_argument("--gzip", action="store_true", help="unpack the archive compressed")
    parser.add_argument("--in-memory", action="store_true", help="the folder is a tmpfs: remove each tree at once")
    parser.add_argument("--only", default="", help="names of contestants, separated by commas")
    options = parser.parse_args()
    contestants = {"gnu_tar": gnu_tar, "ours": ours, "ours_from_pipe": piped, "python_tarfile": python_tarfile}
    if options.gzip:
        del contestants["ours_from_pipe"]
    if options.only:
        contestants = {name: contestants[name] for name in options.only.split(",")}
    with tempfile.TemporaryDirectory(prefix="harena-unpack-", dir=options.folder) as name:
        folder = Path(name)
        archive = folder / "layer.tar"
        make(archive, options.files, options.megabytes)
        if options.gzip:
            subprocess.run(["gzip", "-6", str(archive)], check=True)
            archive = folder / "layer.tar.gz"
        print(f"{archive.stat().st_size / 1e6:.0f} MB, {options.files} files, {os.cpu_count()} processors")
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for turn in range(options.turns):
            for name, call in contestants.items():
                os.sync()
                target = folder / f"{name}{turn}"
                found[name].append(timed(call, archive, target))
                if options.in_memory:
                    remove(target)
                wall, used = found[name][-1]
                print(f"  turn {turn}  {name:15} {wall:7.2f} s wall  {used:7.2f} s processor", flush=True)
        for target in folder.iterdir():
            if target.is_dir():
                remove(target)
        base = [statistics.median(turn[which] for turn in next(iter(found.values()))) for which in (0, 1)]
        print("medians:")
        for name, turns in found.items():
            wall, used = (statistics.median(turn[which] for turn in turns) for which in (0, 1))
            print(f"  {name:15} {wall:7.2f} s wall ({wall / base[0]:.2f}×)  ", end="")
            print(f"{used:7.2f} s processor ({used / base[1]:.2f}×)")


if __name__ == "__main__":
    main()
