"""Builds what a release publishes: the sdist, and five wheels for each machine. Guarantees: the same commit gives the
same bytes; every wheel is built from the sdist; nothing in a wheel needs a newer glibc than its tag says.

    python deploy/release/packages.py dist [--machine x86_64 --machine aarch64]

Packages that cannot run without an extra are in wheels of their own, to keep the first install small. The extra
installs the wheel: `pip install 'harena[arena]'` brings `harena-arena`, which needs `harena-match`. `harena.testing`,
for authors of backends, is in `harena-testing`. A wheel that is built otherwise, as by `pip install .`, has it all.

Static programs are compiled by zig, which links them with musl for either machine: a tenth of the size that they have
with glibc. Shared objects are compiled by gcc: zygote.so needs its builtins, and the kernels use the OpenMP library of
torch, which is gcc's.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLIBC = (2, 28)  # Debian 10, RHEL 8, Ubuntu 20.04 and newer; memfd_create needs 2.27
GCC = {"x86_64": "gcc", "aarch64": "aarch64-linux-gnu-gcc"}
PARTS = {
    "harena_arena": "The arena of Harena: submissions, ratings, boards, its API and its page.",
    "harena_azr": "Training by self-play for Harena: the code, the compiled kernels and the small model.",
    "harena_match": "Matches of Harena: games, clocks, isolated agents, replays, the executor.",
    "harena_testing": "The contract and the attacks that every backend of Harena must pass, as tests.",
}
"""Wheels of their own: harena_X has harena/X, and is required by the extra X if there is one."""
BESIDE = {"harena_arena": ("harena/api",)}
"""Further folders of a wheel of its own."""
FROM_TORCH = "libgomp.so.1"
EARLIEST = 315532800  # 1980-01-01: a zip has no earlier time


def epoch() -> int:
    """The time of every file in a package: that of the commit, or SOURCE_DATE_EPOCH."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        given = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return max(int(given), EARLIEST)


def build_sdist(out: Path, time: int) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        _build("--sdist", ROOT, Path(folder), {})
        (made,) = Path(folder).glob("*.tar.gz")
        packed = io.BytesIO()
        with tarfile.open(made) as source, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
            for member in sorted(source.getmembers(), key=lambda member: member.name):
                member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                target.addfile(member, source.extractfile(member) if member.isfile() else None)
        path = out / made.name
        path.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    return path


def build_wheels(sdist: Path, machine: str, out: Path, time: int) -> list[Path]:
    gcc = f"{GCC[machine]} -s -Wl,--build-id=none"
    variables = {
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "HARENA_REQUIRE_NATIVE": "1",
        "HARENA_STATIC_CC": f"{sys.executable} -m ziglang cc -target {machine}-linux-musl -s",
        "HARENA_SHARED_CC": f"{gcc} -include {Path(__file__).with_name('old_glibc.h')}",
        "CC": gcc,
        "SOURCE_DATE_EPOCH": str(time),
    }
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        _build("--wheel", source, Path(folder) / "dist", variables)
        (made,) = Path(folder).glob("dist/*.whl")
        return _split(made, f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}", out, time)


def _build(what: str, source: Path, out: Path, variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", what, "--outdir", str(out), str(source)]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{done.stdout.decode()}\nbuilding {what[2:]} failed: the last lines above say why")


def _split(wheel: Path, platform: str, out: Path, time: int) -> list[Path]:
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
        modes = {info.filename: info.external_attr >> 16 & 0o111 for info in archive.infolist()}
    (info,) = {name.split("/")[0] for name in files if name.split("/")[0].endswith(".dist-info")}
    version = info.removeprefix("harena-").removesuffix(".dist-info")
    head, tag = files[f"{info}/METADATA"].decode(), f"py3-none-{platform}"
    about = {name.removeprefix(f"{info}/"): data for name, data in files.items() if name.startswith(f"{info}/")}
    about["WHEEL"] = f"Wheel-Version: 1.0\nGenerator: harena\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    del about["RECORD"]
    kept = {name: about[name] for name in about if name.startswith(("WHEEL", "licenses/"))}
    made: list[Path] = []
    for part, summary in PARTS.items():
        own = {name: data for name, data in files.items() if name.startswith(folders(part))}
        files = {name: data for name, data in files.items() if name not in own}
        described = {**kept, "METADATA": part_metadata(head, version, part, summary)}
        made.append(_write(out, part, version, tag, own, described, modes, time))
    rest = {name: data for name, data in files.items() if not name.startswith(f"{info}/")}
    described = {**about, "METADATA": main_metadata(head, version)}
    return [_write(out, "harena", version, tag, rest, described, modes, time), *made]


def folders(part: str) -> tuple[str, ...]:
    return tuple(f"{name}/" for name in (part.replace("_", "/", 1), *BESIDE.get(part, ())))


def main_metadata(head: str, version: str) -> bytes:
    fields, blank, text = head.partition("\n\n")
    needed = [
        f"Requires-Dist: {part.replace('_', '-')}=={version}; extra == '{part.partition('_')[2]}'\n"
        for part in PARTS
        if f"\nProvides-Extra: {part.partition('_')[2]}\n" in f"{fields}\n"
    ]
    return f"{fields}\n{''.join(needed)}{blank[1:]}{text}".encode()


def part_metadata(head: str, version: str, part: str, summary: str) -> bytes:
    """The fields that all wheels share, the requirements of the part's extra, and the wheel that it belongs to."""
    shared = ("Metadata-Version", "Version", "Author", "License-Expression", "Requires-Python", "License-File")
    lines = head.partition("\n\n")[0].splitlines()
    fields = [line for line in lines if line.partition(":")[0] in shared]
    fields[1:1] = [f"Name: {part.replace('_', '-')}"]
    extra = f"extra == '{part.partition('_')[2]}'"
    needed = [line for line in lines if line.startswith("Requires-Dist") and line.replace('"', "'").endswith(extra)]
    needed = [line.rpartition(";")[0] for line in needed]
    return "\n".join([*fields, f"Summary: {summary}", f"Requires-Dist: harena=={version}", *needed, "", ""]).encode()


def _write(
    out: Path,
    name: str,
    version: str,
    tag: str,
    files: Mapping[str, bytes],
    about: Mapping[str, bytes],
    modes: Mapping[str, int],
    time: int,
) -> Path:
    info = f"{name}-{version}.dist-info"
    entries = {**files, **{f"{info}/{part}": data for part, data in about.items()}}
    lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in sorted(entries.items())]
    entries[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    path = out / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in sorted(entries.items()):
            member = zipfile.ZipInfo(entry, _zip_time(time))
            member.external_attr = (0o100644 | modes.get(entry, 0)) << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED, 9)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zip_time(time: int) -> tuple[int, int, int, int, int, int]:
    import datetime

    at = datetime.datetime.fromtimestamp(time, datetime.UTC)
    return at.year, at.month, at.day, at.hour, at.minute, at.second // 2 * 2


def check(wheel: Path) -> None:
    """Refuse a wheel whose shared objects need more than its tag promises."""
    from elftools.elf.elffile import ELFFile

    machine = wheel.stem.split("manylinux_2_28_")[1]
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            if data[:4] != b"\x7fELF":
                continue
            elf = ELFFile(io.BytesIO(data))
            if {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}[elf["e_machine"]] != machine:
                sys.exit(f"{wheel.name}: {name} is for {elf['e_machine']}")
            libraries, newest = _needs(elf)
            if newest > GLIBC or (strange := libraries - ALLOWED):
                what = f"glibc {newest}" if newest > GLIBC else ", ".join(sorted(strange))
                sys.exit(f"{wheel.name}: {name} needs {what}, which the tag does not promise")


ALLOWED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", FROM_TORCH}


def _needs(elf: object) -> tuple[set[str], tuple[int, ...]]:
    dynamic = elf.get_section_by_name(".dynamic")  # pyright: ignore
    versions = elf.get_section_by_name(".gnu.version_r")  # pyright: ignore
    libraries = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")} if dynamic else set()
    newest = (0,)
    for _, symbols in versions.iter_versions() if versions else ():
        for symbol in symbols:
            kind, _, number = symbol.name.partition("_")
            if kind == "GLIBC":
                newest = max(newest, tuple(int(part) for part in number.split(".")))
    return libraries, newest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--machine", action="append", choices=sorted(GCC), help="x86_64 and aarch64 if not given")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    time = epoch()
    sdist = build_sdist(args.out, time)
    made = [wheel for machine in args.machine or sorted(GCC) for wheel in build_wheels(sdist, machine, args.out, time)]
    for wheel in made:
        check(wheel)
    for path in [sdist, *made]:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.stat().st_size:>9}  {path.name}")


if __name__ == "__main__":
    main()
