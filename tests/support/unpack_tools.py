"""What the tests of the unpacker share: archives in the making, ids, a folder of layers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena.images.errors import ImageError
from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import Caps, remove_layer, unpack_layer

END = bytes(1024)


class Layer:
    """An archive in the making, by Python's tarfile."""

    def __init__(self, form: int = tarfile.PAX_FORMAT) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._bytes, mode="w", format=form, errors="surrogateescape")

    def add(self, name: str, data: bytes = b"", **fields: object) -> Layer:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = len(data), 1_700_000_000
        for key, value in fields.items():
            setattr(info, key, value)
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def folder(self, name: str, mode: int = 0o755, **fields: object) -> Layer:
        return self.add(name, type=tarfile.DIRTYPE, mode=mode, **fields)

    def link(self, name: str, target: str) -> Layer:
        return self.add(name, type=tarfile.SYMTYPE, linkname=target)

    def hard(self, name: str, target: str) -> Layer:
        return self.add(name, type=tarfile.LNKTYPE, linkname=target)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def header(
    name: bytes,
    *,
    size: int | bytes = 0,
    flag: bytes = b"0",
    link: bytes = b"",
    mode: bytes = b"0000644\0",
    uid: bytes = b"0000000\0",
    magic: bytes = b"ustar\x0000",
    area: dict[int, bytes] | None = None,
) -> bytes:
    """One header, by hand, with a right checksum."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108], block[108:116], block[116:124] = mode, uid, b"0000000\0"
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157], block[257:265] = flag, magic
    block[157 : 157 + len(link)] = link
    for at, data in (area or {}).items():
        block[at : at + len(data)] = data
    assert len(block) == 512
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def record(key: bytes, value: bytes) -> bytes:
    """One record of a pax header."""
    length = len(key) + len(value) + 3
    while length != len(b"%d %s=%s\n" % (length, key, value)):
        length = len(b"%d %s=%s\n" % (length, key, value))
    return b"%d %s=%s\n" % (length, key, value)


def pax(*records: tuple[bytes, bytes], flag: bytes = b"x") -> bytes:
    data = b"".join(record(key, value) for key, value in records)
    return header(b"pax", size=len(data), flag=flag) + padded(data)


@pytest.fixture(params=["full", "single"])
def ids(request: pytest.FixtureRequest) -> Ids:
    if request.param == "single":
        return Ids.single()
    found = Ids.full()
    if found is None:
        pytest.skip("host: this user has one id only")
    return found


@pytest.fixture
def store(tmp_path: Path, ids: Ids) -> Iterator[Path]:
    """A folder of layers. Pytest could not remove what other ids own in it."""
    folder = tmp_path / "layers"
    folder.mkdir()
    yield folder
    for layer in folder.iterdir():
        remove_layer(layer, ids=ids)


def unpack(layer: Layer | bytes, store: Path, ids: Ids, **caps: int) -> Path:
    data = layer if isinstance(layer, bytes) else layer.bytes()
    unpack_layer(io.BytesIO(data), store / "one", ids=ids, caps=Caps(**caps))
    return store / "one" / "tree"


def refuse(layer: Layer | bytes, store: Path, ids: Ids, reason: str, **caps: int) -> None:
    """Unpacking fails for that reason, and leaves nothing."""
    with pytest.raises(ImageError, match=reason):
        unpack(layer, store, ids, **caps)
    assert list(store.iterdir()) == []
