"""Whatever the bytes, the parser ends with members or a `TarError`, and the writer stays below its folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harena.images.unpack.caps import Caps
from harena.images.unpack.tar import TarArchive, TarError, records
from harena.images.unpack.untar import LayerWriter, shown
from support.unpack_tools import END, Layer, header, padded, pax

pytestmark = pytest.mark.thorough

CAPS = Caps(bytes=1 << 20, files=200, archive_bytes=1 << 21)

SPARSE = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"5000"))
SEEDS = [
    Layer().folder("a").add("a/b", b"1" * 700).link("l", "a").hard("h", "a/b").add("l/.wh.x").bytes(),
    Layer(tarfile.GNU_FORMAT).add("n" * 200 + "/" + "m" * 100, b"2").link("k", "t" * 150).bytes(),
    pax((b"path", b"p/q"), (b"mtime", b"1.5"), (b"SCHILY.xattr.user.x", b"y"))
    + header(b"z", size=3)
    + padded(b"abc")
    + END,
    SPARSE + header(b"s", size=522) + padded(b"1\n100\n10\n".ljust(512, b"\0") + b"x" * 10) + END,
    pax((b"GNU.sparse.map", b"0,2,10,3"), (b"GNU.sparse.size", b"20")) + header(b"s", size=5) + padded(b"abcde") + END,
    header(b"s", size=10, flag=b"S", magic=b"ustar  \0", area={386: b"%011o\0%011o\0" % (5, 10), 483: b"%011o\0" % 90})
    + padded(b"0123456789")
    + END,
]

edits = st.lists(
    st.tuples(
        st.integers(0, 1 << 14),
        st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([b"\xff" * 12, b"../", b"\0"])),
    ),
    max_size=6,
)


def mutated(seed: bytes, changes: list[tuple[int, bytes]], cut: int, fix: bool) -> bytes:
    data = bytearray(seed)
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new
    if fix:  # of headers that were changed only few would pass their checksum
        for at in range(0, len(data) - 511, 512):
            if any(data[at : at + 512]):
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data[: len(data) - cut % len(data)] if cut else data)


def archive(data: bytes, step: int) -> TarArchive:
    left = memoryview(data)

    def readinto(view: memoryview) -> int:
        nonlocal left
        count = min(step, len(left), len(view))
        view[:count] = left[:count]
        left = left[count:]
        return count

    return TarArchive(readinto, CAPS)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(SEEDS), edits, st.integers(0, 3000), st.booleans(), st.sampled_from([1, 100, 512, 1 << 20]))
def test_the_parser_refuses_or_ends(
    seed: bytes, changes: list[tuple[int, bytes]], cut: int, fix: bool, step: int
) -> None:
    data = mutated(seed, changes, cut, fix)
    parser = archive(data, step)
    taken = 0
    try:
        while (member := parser.next()) is not None:
            assert member.name
            assert 0 <= member.size <= CAPS.bytes
            assert shown(member.name).isprintable()
            while parser.left:
                taken += len(parser.take(1 << 16))
        parser.drain()
    except TarError:
        pass
    assert taken <= len(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_pax_records_refuse_or_end(payload: bytes) -> None:
    try:
        found, _ = records(payload)
    except TarError:
        return
    assert all(found)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SEEDS), edits, st.booleans(), st.sampled_from([100, 1 << 20]))
def test_the_writer_stays_below_its_folder(
    monkeypatch: pytest.MonkeyPatch, seed: bytes, changes: list[tuple[int, bytes]], fix: bool, step: int
) -> None:
    """Without its jail, which would hide a mistake."""
    outside = Path(tempfile.mkdtemp(prefix="harena-fuzz-"))
    inside = outside / "one/two"
    inside.mkdir(parents=True)
    try:
        with monkeypatch.context() as patch, (outside / "owners").open("wb") as owners:
            patch.chdir(inside)
            parser = archive(mutated(seed, changes, 0, fix), step)
            writer = LayerWriter(parser, CAPS, ids=1, owners=owners.fileno())
            with contextlib.suppress(TarError, OSError):
                writer.run()
        assert sorted(os.listdir(outside)) == ["one", "owners"]
        assert os.listdir(outside / "one") == ["two"]
    finally:
        for folder, _, _ in os.walk(outside):
            os.chmod(folder, 0o700)
        shutil.rmtree(outside)
