"""Hostile archives are refused with the reason, and leave nothing behind; or do no harm."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from harena.images.errors import ImageError
from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import Caps, unpack_layer
from support.unpack_tools import END, Layer, header, ids, padded, pax, record, refuse, store, unpack

__all__ = ["ids", "store"]

HUGE = b"\x80" + (1 << 60).to_bytes(11, "big")
LONG = b"n" * 300


def sparse(*parts: tuple[int, int], real: int, data: bytes) -> bytes:
    """A sparse file in the old format of GNU tar."""
    area = {483: b"%011o\0" % real}
    for number, (offset, length) in enumerate(parts):
        area[386 + 24 * number] = b"%011o\0%011o\0" % (offset, length)
    return header(b"sparse", size=len(data), flag=b"S", magic=b"ustar  \0", area=area) + padded(data) + END


REFUSED = {
    "dots": (Layer().add("../up"), r"\.\./up: its path has '\.\.'"),
    "dots inside": (Layer().add("a/../../up"), "its path has"),
    "dots last": (Layer().folder("a/.."), "its path has"),
    "absolute dots": (Layer().add("/../etc/passwd"), "its path has"),
    "hard link out by dots": (Layer().hard("x", "../../etc/passwd"), "x: its path has"),
    "hard link out by root": (
        Layer().hard("x", "/etc/passwd"),
        "x: it is a hard link to a file that this layer does not",
    ),
    "hard link out by link": (
        Layer().link("l", "/").hard("x", "l/etc/passwd"),
        "x: it is a hard link to a file that this layer does not have",
    ),
    "hard link out by dotted link": (
        Layer().link("l", "../../../../..").hard("x", "l/etc/passwd"),
        "x: it is a hard link to a file that this layer does not have",
    ),
    "hard link to a folder": (
        Layer().folder("d").hard("x", "d"),
        "x: it is a hard link to something that is not a file",
    ),
    "hard link to a whiteout": (Layer().add(".wh.w").hard("x", "w"), "not a file"),
    "hard link to itself": (Layer().add("x").hard("x", "./x"), "x: it is a hard link to itself"),
    "hard link to the root": (Layer().hard("x", "/"), "does not have"),
    "hard link over its folder": (Layer().add("d/f").hard("d", "d/f"), "into the folder that it replaces"),
    "link loop": (Layer().link("a", "b").link("b", "a").add("a/x"), "a/x: too many links"),
    "file as parent": (Layer().add("a").add("a/x"), "a/x: its parent is not a folder"),
    "file as root": (Layer().add("./."), "only a folder can be the root"),
    "whiteout of dots": (Layer().add("a/.wh..."), "not a valid whiteout"),
    "whiteout of a dot": (Layer().add("a/.wh.."), "not a valid whiteout"),
    "whiteout of nothing": (Layer().add("a/.wh."), "not a valid whiteout"),
    "whiteout of a whiteout": (Layer().add(".wh..wh.foo"), "not a valid whiteout"),
    "whiteout as a folder": (Layer().add("a/.wh.b/c"), "name of a whiteout"),
    "whiteout as a folder by link": (Layer().link("a", ".wh.b").add("a/c"), "name of a whiteout"),
    "truncated header": (Layer().add("a", b"1" * 2000).bytes()[:700], "cut off"),
    "truncated body": (Layer().add("a", b"1" * 9000).bytes()[:2048], "a: the archive is cut off in a file"),
    "truncated long body": (Layer().add("a", b"1" * 9_000_000).bytes()[:5_000_000], "a: the archive is cut off"),
    "truncated padding": (Layer().add("a", b"1" * 600).bytes()[:1200], "cut off"),
    "truncated pax header": (pax((b"path", b"x" * 2000))[:1024], "cut off in a header"),
    "nothing": (b"", "the archive is empty"),
    "text": (b"hello" * 300, "malformed|checksum"),
    "wrong checksum": (header(b"a").replace(b"a", b"b", 1) + END, "wrong checksum"),
    "zero block inside": (header(b"a") + bytes(512) + header(b"b") + END, "zeros is followed"),
    "negative size": (header(b"a", size=b"\xff" * 12) + END, "size is negative"),
    "signed size": (header(b"a", size=b"-0000000001\0") + END, "number is malformed"),
    "size with letters": (header(b"a", size=b"0x000000012\0") + END, "number is malformed"),
    "huge size": (header(b"a", size=HUGE) + END, "a: the file is larger than"),
    "huge size of a pax record": (pax((b"size", b"9" * 19)) + header(b"a") + END, "a: the file is larger than"),
    "endless number": (pax((b"size", b"9" * 5000)) + header(b"a") + END, "number is malformed"),
    "huge long name": (header(b"l", size=HUGE, flag=b"L") + END, "extended header is larger"),
    "negative uid": (header(b"a", uid=b"\xff" * 8) + END, "id is out of range"),
    "huge uid": (pax((b"uid", b"4294967296")) + header(b"a") + END, "id is out of range"),
    "zero byte in a name": (pax((b"path", b"a\0b")) + header(b"a") + END, "zero byte"),
    "no name": (header(b"") + END, "empty"),
    "empty target of a link": (header(b"a", flag=b"2") + END, "a: No such file"),
    "unknown type": (header(b"a", flag=b"Q") + END, "a: its type 'Q' is not known"),
    "part too long": (Layer().add("d/" + "n" * 256), "longer than 255 bytes"),
    "pax loop": (
        header(b"p", size=9, flag=b"x") + padded(b"0 a=b\n...") + header(b"a") + END,
        "pax header is malformed",
    ),
    "pax length short": (header(b"p", size=6, flag=b"x") + padded(b"2 a=b\n") + header(b"a") + END, "pax header"),
    "pax length long": (header(b"p", size=6, flag=b"x") + padded(b"9 a=b\n") + header(b"a") + END, "pax header"),
    "pax length missing": (header(b"p", size=6, flag=b"x") + padded(b" a=b\n\n") + header(b"a") + END, "pax header"),
    "pax without a key": (header(b"p", size=5, flag=b"x") + padded(b"5 =b\n") + header(b"a") + END, "pax header"),
    "pax global bad": (header(b"p", size=6, flag=b"g") + padded(b"9 a=b\n") + header(b"a") + END, "pax header"),
    "pax without a member": (pax((b"path", b"x")) + END, "has no member"),
    "sparse overlap": (sparse((0, 512), (256, 512), real=4096, data=b"1" * 1024), "sparse: parts .* overlap"),
    "sparse backwards": (sparse((1024, 512), (0, 512), real=4096, data=b"1" * 1024), "overlap"),
    "sparse beyond": (sparse((4000, 512), real=4096, data=b"1" * 512), "goes beyond its size"),
    "sparse too much": (sparse((0, 512), real=4096, data=b"1" * 1024), "does not match"),
    "sparse too little": (sparse((0, 1024), real=4096, data=b"1" * 512), "does not match"),
    "sparse 0.1 odd": (
        pax((b"GNU.sparse.map", b"0,1,2"), (b"GNU.sparse.size", b"9")) + header(b"a", size=1) + padded(b"1") + END,
        "sparse map is malformed",
    ),
    "sparse 0.0 order": (
        pax((b"GNU.sparse.numbytes", b"1"), (b"GNU.sparse.offset", b"1")) + header(b"a") + END,
        "sparse map is malformed",
    ),
    "sparse 1.0 endless": (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9"))
        + header(b"a", size=2048)
        + padded(b"3\n" + b"1" * 2046)
        + END,
        "malformed",
    ),
    "sparse 2.0": (pax((b"GNU.sparse.major", b"2")) + header(b"a") + END, "sparse format is not known"),
    "xattr with a zero byte": (pax((b"SCHILY.xattr.user.a\0b", b"c")) + header(b"a") + END, "zero byte in its name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_or_hostile_archive_is_refused(case: str, store: Path, ids: Ids) -> None:
    layer, reason = REFUSED[case]
    refuse(layer if isinstance(layer, bytes) else layer.bytes(), store, ids, reason)


BOMBS = {
    "bytes": (
        Layer().add("a", b"1" * 600).add("b", b"1" * 600).bytes(),
        {"bytes": 1000},
        "b: the layer is larger than 1000",
    ),
    "one file": (Layer().add("a", b"1" * 1001).bytes(), {"bytes": 1000}, "a: the file is larger than 1000"),
    "holes": (sparse((0, 1), real=1 << 32, data=b"1"), {"bytes": 1 << 30}, "sparse: the file is larger"),
    "files": (b"".join(header(b"%d" % n) for n in range(1001)) + END, {"files": 1000}, "1000: .* more than 1000 files"),
    "implied folders": (Layer().add("/".join("abcdefgh")).bytes(), {"files": 6}, "more than 6 files"),
    "depth": (Layer().add("d/" * 30 + "x").bytes(), {"depth": 29}, "deeper than 29 folders"),
    "depth by links": (
        Layer().folder("a/b/c").link("l", "a/b/c").folder("l/d/e").link("m", "l/d/e").add("m/f/x").bytes(),
        {"depth": 5},
        "m/f/x: it is deeper than 5",
    ),
    "depth step by step": (
        b"".join(header(b"d/" * depth, flag=b"5") for depth in range(1, 31)) + END,
        {"depth": 29},
        "deeper than 29 folders",
    ),
    "name": (Layer().add("n/" * 60 + "x").bytes(), {"name_bytes": 99}, "longer than 99 bytes"),
    "name of a link": (Layer().link("a", "n" * 2000).bytes(), {"name_bytes": 1000}, "a: a name is longer than 1000"),
    "xattr bytes": (
        pax((b"SCHILY.xattr.user.a", b"1" * 5000)) + header(b"a") + END,
        {"xattr_bytes": 4096},
        "a: .*larger",
    ),
    "xattr count": (
        pax(*((b"SCHILY.xattr.user.%d" % n, b"1") for n in range(70))) + header(b"a") + END,
        {},
        "more than 64 extended attributes",
    ),
    "header": (
        pax((b"comment", b"1" * 5000)) + header(b"a") + END,
        {"header_bytes": 4096},
        "extended header is larger",
    ),
    "sparse parts": (
        pax((b"GNU.sparse.map", b",".join(b"%d,0" % n for n in range(20))), (b"GNU.sparse.size", b"90"))
        + header(b"a")
        + END,
        {"sparse_parts": 10},
        "more than 10 sparse parts",
    ),
    "rest": (header(b"a") + END + bytes(100_000), {"archive_bytes": 50_000}, "archive is larger"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_at_its_cap(case: str, store: Path, ids: Ids) -> None:
    data, caps, reason = BOMBS[case]
    refuse(data, store, ids, reason, **caps)


def test_a_million_files_are_refused_early(store: Path, ids: Ids) -> None:
    class Million(io.RawIOBase):
        sent = 0

        def read(self, count: int = -1) -> bytes:
            names = range(self.sent, min(self.sent + 1000, 1_000_000))
            self.sent += len(names)
            return b"".join(header(b"f%d" % number) for number in names)

    stream = Million()
    with pytest.raises(ImageError, match="f5000: the layer has more than 5000 files"):
        unpack_layer(stream, store / "one", ids=ids, caps=Caps(files=5000))  # type: ignore[arg-type]
    assert stream.sent < 100_000
    assert list(store.iterdir()) == []


def test_links_lead_nowhere_while_unpacking(store: Path, ids: Ids, tmp_path: Path) -> None:
    """As in containerd and umoci a link on the way is followed within the layer, whatever it says."""
    outside = tmp_path / "outside"
    outside.mkdir()
    layer = Layer().link("abs", str(outside)).add("abs/x", b"1").link("up", "../../../../../../tmp").add("up/y", b"2")
    layer.folder("real").link("l", "real/../real").add("l/z", b"3").link("gone", "not/there").add("gone/w", b"4")
    tree = unpack(layer, store, ids)
    assert list(outside.iterdir()) == []
    assert (tree / str(outside)[1:] / "x").read_bytes() == b"1"
    assert (tree / "tmp/y").read_bytes() == b"2"
    assert (tree / "real/z").read_bytes() == b"3"
    assert (tree / "not/there/w").read_bytes() == b"4"
    assert (tree / "abs").is_symlink()


def test_a_file_replaces_a_link_and_does_not_go_through_it(store: Path, ids: Ids, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("safe")
    tree = unpack(Layer().link("x", str(victim)).add("x", b"new"), store, ids)
    assert victim.read_text() == "safe"
    assert (tree / "x").read_bytes() == b"new"
    assert not (tree / "x").is_symlink()


def test_an_absolute_name_is_below_the_root_of_the_layer(store: Path, ids: Ids) -> None:
    tree = unpack(Layer().add("/etc/a", b"1").add("//etc//./b", b"2").add("./etc/c", b"3"), store, ids)
    assert sorted(os.listdir(tree / "etc")) == ["a", "b", "c"]


def test_devices_are_skipped(store: Path, ids: Ids) -> None:
    layer = Layer().add("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3).add("dev/sda", type=tarfile.BLKTYPE)
    layer.add("dev/fake", type=tarfile.CHRTYPE, devmajor=0, devminor=0).add("dev/file", b"1")
    tree = unpack(layer, store, ids)
    assert os.listdir(tree / "dev") == ["file"]


def test_attributes_of_overlayfs_are_dropped(store: Path, ids: Ids) -> None:
    attributes = [(b"SCHILY.xattr." + name, b"y") for name in (
        b"user.overlay.opaque", b"trusted.overlay.opaque", b"user.overlay.redirect", b"trusted.x", b"security.selinux", b"user.mine",
    )]  # fmt: skip
    tree = unpack(pax(*attributes) + header(b"d", flag=b"5") + END, store, ids)
    assert [name for name in os.listxattr(tree / "d") if name != "security.selinux"] == ["user.mine"]


def test_a_file_and_a_folder_replace_each_other(store: Path, ids: Ids) -> None:
    layer = Layer().add("a/b/c/d", b"1").add("a/b", b"file").add("f", b"1").add("g/h", b"1").link("g", "a")
    layer.folder("f").add("f/x", b"2").add("a/b2/y", b"3")
    tree = unpack(layer, store, ids)
    assert (tree / "a/b").read_bytes() == b"file"
    assert (tree / "f/x").read_bytes() == b"2"
    assert os.getxattr(tree / "f", "user.overlay.opaque") == b"y", "the file hid lower folders of that name"
    assert os.readlink(tree / "g") == "a"


def test_the_last_of_equal_names_wins(store: Path, ids: Ids) -> None:
    layer = Layer().add("a", b"first", uid=9).hard("b", "a").add("a", b"second").folder("d", 0o700).folder("d/", 0o755)
    tree = unpack(layer, store, ids)
    assert ((tree / "a").read_bytes(), (tree / "b").read_bytes()) == (b"second", b"first")
    assert stat.S_IMODE((tree / "d").stat().st_mode) == 0o755
    if ids.kind == "single":
        assert (store / "one/owners").read_bytes() == b"9 0 a\x000 0 a\0"


def test_deep_and_closed_folders_are_removed_too(store: Path, ids: Ids) -> None:
    layer = Layer()
    for depth in range(1, 200):
        layer.folder("/".join(["dir"] * depth), 0)
    refuse(layer.add("../bad"), store, ids, "its path has")


def test_a_setuid_file_cannot_be_reached_by_others(store: Path, ids: Ids) -> None:
    unpack(Layer().add("su", b"#!", mode=0o4755), store, ids)
    assert stat.S_IMODE((store / "one").stat().st_mode) == 0o700


def test_record_is_a_right_pax_record() -> None:
    assert record(b"path", b"x" * 90) == b"99 path=" + b"x" * 90 + b"\n"
