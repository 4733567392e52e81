"""Layers are unpacked as Docker, containerd and umoci unpack them, and each is there whole or not at all."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from harena.images.errors import ImageError
from harena.images.unpack.ids import BASE, COUNT, Ids
from harena.images.unpack.unpack import remove_layer, sweep, unpack_layer
from support.unpack_tools import END, Layer, header, ids, padded, pax, store, unpack

__all__ = ["ids", "store"]


def test_files_folders_and_links_are_as_in_the_archive(store: Path, ids: Ids) -> None:
    layer = Layer().folder("etc", 0o750).add("etc/passwd", b"root", mode=0o640, mtime=1234.25)
    layer.link("etc/link", "../../../outside").hard("etc/again", "etc/passwd").add("bin/su", b"#!", mode=0o4755)
    layer.add("pipe", type=tarfile.FIFOTYPE, mode=0o600)
    tree = unpack(layer, store, ids)
    found = (tree / "etc/passwd").stat()
    assert (tree / "etc/passwd").read_bytes() == b"root"
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_nlink) == (0o640, 1234_250_000_000, 2)
    assert stat.S_IMODE((tree / "etc").stat().st_mode) == 0o750
    assert (tree / "etc").stat().st_mtime == 1_700_000_000
    assert os.readlink(tree / "etc/link") == "../../../outside"
    assert (tree / "etc/again").samefile(tree / "etc/passwd")
    assert stat.S_IMODE((tree / "bin/su").stat().st_mode) == 0o4755
    assert stat.S_ISFIFO((tree / "pipe").lstat().st_mode)
    about = json.loads((store / "one/layer.json").read_text())
    assert about == {"format": 1, "ids": ids.name, "files": 7, "bytes": 6, "opaque": False, "implied": 1}


def test_owners_are_kept_on_disk_or_beside_it(store: Path, ids: Ids) -> None:
    layer = Layer().folder("home", uid=1, gid=2).add("home/a", uid=1000, gid=1001).add("b")
    layer.add("home/l", type=tarfile.SYMTYPE, linkname="a", uid=7, gid=8)
    tree = unpack(layer, store, ids)
    names = {"home": (1, 2), "home/a": (1000, 1001), "home/l": (7, 8), "b": (0, 0)}
    if ids.kind == "full" and os.geteuid() == 0:
        uid, gid = ids.owner
        found = {name: ((tree / name).lstat().st_uid - uid, (tree / name).lstat().st_gid - gid) for name in names}
        assert found == names
        assert not (store / "one/owners").exists()
    elif ids.kind == "single":
        assert {(tree / name).lstat().st_uid for name in names} == {os.geteuid()}
        records = (store / "one/owners").read_bytes().split(b"\0")[:-1]
        assert records == [b"1 2 home", b"1000 1001 home/a", b"7 8 home/l"]


def test_whiteouts_become_what_overlayfs_expects(store: Path, ids: Ids) -> None:
    tree = unpack(Layer().folder("d").add("d/.wh.gone").add("e/.wh..wh..opq").add("e/new", b"x"), store, ids)
    gone = (tree / "d/gone").lstat()
    assert (stat.S_ISCHR(gone.st_mode), gone.st_rdev) == (True, 0)
    assert os.getxattr(tree / "e", "user.overlay.opaque") == b"y"
    assert (tree / "e/new").read_bytes() == b"x"
    assert sorted(os.listdir(tree / "e")) == ["new"]


def test_sweep_removes_what_a_killed_process_left(store: Path, ids: Ids) -> None:
    unpack(Layer().folder("locked", 0).add("locked/x", b"x", mode=0), store, ids)
    os.rename(store / "one", store / ".unpacking-0123")
    assert sweep(store, ids=ids) == 1
    assert list(store.iterdir()) == []


def test_a_whiteout_never_hides_its_own_layer(store: Path, ids: Ids) -> None:
    layer = Layer().add("a", b"1").add(".wh.a").add(".wh.b").add("b", b"2").folder("c").add(".wh.c").add(".wh.d")
    layer.folder("d").add(".wh.e").add("e/f", b"3").add(".wh.twice").add(".wh.twice")
    tree = unpack(layer, store, ids)
    assert (tree / "a").read_bytes() == b"1"
    assert (tree / "b").read_bytes() == b"2"
    assert (tree / "e/f").read_bytes() == b"3"
    for folder in "cde":  # lower folders of that name are gone, so theirs must not show through
        assert os.getxattr(tree / folder, "user.overlay.opaque") == b"y"
    assert stat.S_ISCHR((tree / "twice").lstat().st_mode)


def test_an_opaque_root_is_reported(store: Path, ids: Ids) -> None:
    unpack(Layer().add(".wh..wh..opq").add("a", b"1"), store, ids)
    assert json.loads((store / "one/layer.json").read_text())["opaque"] is True


def test_bookkeeping_of_aufs_is_skipped(store: Path, ids: Ids) -> None:
    layer = Layer().folder(".wh..wh.plnk").add(".wh..wh.plnk/1.2", b"x").add(".wh..wh.aufs", b"y").add("a")
    assert os.listdir(unpack(layer, store, ids)) == ["a"]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_strange_and_undecodable_names_are_kept(store: Path, ids: Ids, form: int) -> None:
    long = "/".join(["folder" * 10] * 10) + "/file"
    strange = ["\udcff\udcfe", "new\nline", "tab\t", "ü", "-rf", "a\\b", " ", "café" * 40]
    layer = Layer(form).add(long, b"1").link("link", "target" * 40).hard("hard", long)
    for name in strange:
        layer.add(name, b"2")
    tree = unpack(layer, store, ids)
    assert (tree / long).read_bytes() == b"1"
    assert os.readlink(tree / "link") == "target" * 40
    assert (tree / "hard").samefile(tree / long)
    assert set(os.listdir(tree)) == {*strange, "link", "hard", "folder" * 10}


def test_ustar_prefix_v7_folders_and_numbers_in_base_256(store: Path, ids: Ids) -> None:
    data = header(b"name", area={345: b"some/prefix"}) + header(b"old/", flag=b"\0", magic=bytes(8))
    data += header(b"big", size=b"\x80" + (3).to_bytes(11, "big")) + padded(b"abc")
    data += header(b"contiguous", size=1, flag=b"7") + padded(b"x") + header(b"dir", size=4096, flag=b"5") + END
    tree = unpack(data, store, ids)
    assert (tree / "some/prefix/name").is_file()
    assert (tree / "old").is_dir()
    assert (tree / "dir").is_dir()
    assert (tree / "big").read_bytes() == b"abc"
    assert (tree / "contiguous").read_bytes() == b"x"


def test_records_of_a_pax_header(store: Path, ids: Ids) -> None:
    data = pax((b"mtime", b"7"), (b"path", b"wrong"), flag=b"g")
    data += pax((b"path", b"right"), (b"size", b"3"), (b"mtime", b"1700000000.123456789"), (b"comment", b"x"))
    data += header(b"short", size=0) + padded(b"abc")
    data += pax((b"mtime", b"-5.5")) + header(b"before") + pax((b"mtime", b"99999999999")) + header(b"after") + END
    tree = unpack(data, store, ids)
    assert (tree / "right").read_bytes() == b"abc"
    assert (tree / "right").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert (tree / "before").stat().st_mtime == 0
    assert (tree / "after").stat().st_mtime == 0


def test_attributes_are_kept(store: Path, ids: Ids) -> None:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    wanted = (b"SCHILY.xattr.user.note", b"a\0=\n"), (b"SCHILY.xattr.security.capability", capability)
    tree = unpack(pax(*wanted) + header(b"ping") + pax(wanted[0]) + header(b"d", flag=b"5") + END, store, ids)
    assert os.getxattr(tree / "ping", "user.note") == b"a\0=\n"
    assert os.getxattr(tree / "d", "user.note") == b"a\0=\n"
    assert ("security.capability" in os.listxattr(tree / "ping")) == (ids.kind == "full")


def test_modes_that_forbid_writing_do_not_stand_in_the_way(store: Path, ids: Ids) -> None:
    layer = Layer().folder("a", 0o000).folder("a/b", 0o111).add("a/b/c", b"1", mode=0).folder(".", 0o555)
    tree = unpack(layer, store, ids)
    assert stat.S_IMODE(tree.stat().st_mode) == 0o555
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0
    remove_layer(store / "one", ids=ids)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("ids", ["single"], indirect=True)
@pytest.mark.parametrize("parts", [0, 1, 4, 5, 26, 60])
@pytest.mark.parametrize("form", ["gnu", "posix 0.0", "posix 0.1", "posix 1.0"])
def test_sparse_files_of_gnu_tar(store: Path, ids: Ids, tmp_path: Path, form: str, parts: int) -> None:
    chance = random.Random(parts)
    with (tmp_path / "sparse").open("wb") as file:
        for number in range(parts):
            file.seek((2 * number + 1) << 16)
            file.write(chance.randbytes(5000))
        file.truncate(10 << 20)
    name, _, version = form.partition(" ")
    options = [f"--format={name}", *([f"--sparse-version={version}"] if version else [])]
    command = ["tar", "-cSf", "-", *options, "-C", str(tmp_path), "sparse"]
    tree = unpack(subprocess.run(command, check=True, capture_output=True).stdout, store, ids)
    assert (tree / "sparse").read_bytes() == (tmp_path / "sparse").read_bytes()
    assert (tree / "sparse").stat().st_blocks * 512 < 3 << 20


@pytest.mark.parametrize("source", ["bytes", "file", "file from the middle", "pipe"])
def test_any_kind_of_stream_is_read_to_its_end(store: Path, ids: Ids, tmp_path: Path, source: str) -> None:
    body = random.Random(1).randbytes(5_000_001)
    data = Layer().add("small", b"1").add("large", body).add("last", b"2").bytes() + bytes(70_000)
    target = store / "one"
    if source == "bytes":
        stream = io.BytesIO(data)
        unpack_layer(stream, target, ids=ids)
        assert stream.tell() == len(data)
    elif source == "pipe":
        (tmp_path / "archive").write_bytes(data)
        with subprocess.Popen(["cat", str(tmp_path / "archive")], stdout=subprocess.PIPE) as process:
            assert process.stdout
            unpack_layer(process.stdout, target, ids=ids)  # type: ignore[arg-type]
    else:
        before = b"not tar" if "middle" in source else b""
        (tmp_path / "archive").write_bytes(before + data)
        with (tmp_path / "archive").open("rb") as file:
            assert file.read(len(before)) == before
            unpack_layer(file, target, ids=ids)
            assert file.read() == b""
    assert (target / "tree/large").read_bytes() == body
    assert (target / "tree/last").read_bytes() == b"2"


def test_an_error_of_the_stream_is_passed_on(store: Path, ids: Ids) -> None:
    class Broken(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if self.tell() > 3 << 20:
                raise ConnectionResetError("the registry went away")
            return super().read(count)

    with pytest.raises(ConnectionResetError, match="went away"):
        unpack_layer(Broken(Layer().add("a", bytes(9 << 20)).bytes()), store / "one", ids=ids)
    assert list(store.iterdir()) == []


def test_an_existing_target_is_left_alone(store: Path, ids: Ids) -> None:
    unpack(Layer().add("a", b"1"), store, ids)
    with pytest.raises(ImageError, match="cannot be put"):
        unpack(Layer().add("a", b"2"), store, ids)
    assert (store / "one/tree/a").read_bytes() == b"1"
    assert os.listdir(store) == ["one"]


def test_synced_layers_are_the_same(store: Path, ids: Ids) -> None:
    unpack_layer(io.BytesIO(Layer().add("a", b"1").bytes()), store / "one", ids=ids, sync=True)
    assert (store / "one/tree/a").read_bytes() == b"1"


@pytest.mark.root
def test_root_uses_ids_that_belong_to_nobody() -> None:
    found = Ids.full()
    assert found is not None
    assert (found.uid_map, found.gid_map) == (f"0 {BASE} {COUNT}\n",) * 2
    assert found.name == f"full-{BASE}"


@pytest.mark.parametrize("ids", ["full"], indirect=True)
def test_an_owner_beyond_the_map_is_refused(store: Path, ids: Ids) -> None:
    with pytest.raises(ImageError, match="a: its owner 70000:0 is beyond the 65536 ids"):
        unpack(Layer().add("a", uid=70000), store, ids)


@pytest.mark.root
@pytest.mark.parametrize("ids", ["full"], indirect=True)
def test_umoci_unpacks_the_same_files(store: Path, ids: Ids, tmp_path: Path) -> None:
    """Our tree, seen by its own ids, is that of umoci, member for member."""
    if shutil.which("umoci") is None:
        pytest.skip("umoci is not installed")
    layer = Layer().folder(".", 0o755).folder("etc", 0o750, uid=3, gid=4).add("etc/passwd", b"root", uid=3, mode=0o640)
    layer.link("lib", "usr/lib").folder("usr/lib", 0o711).add("lib/through", b"1").add("lib/deep/er", b"2")
    layer.hard("usr/hard", "etc/passwd").hard("usr/again", "usr/hard").add("su", b"s", mode=0o6755, uid=1000, gid=1000)
    layer.add("twice", b"1").add("twice", b"22").folder("x").add("x", b"file").add("y", b"f").folder("y").add(
        "y/z", b"3"
    )
    layer.add("long/" * 30 + "name", b"4").folder("tmp", 0o1777).link("dangling", "/no/where").add("/abs/olute", b"5")
    layer.add("fifo", type=tarfile.FIFOTYPE, mode=0o600).add("time", b"t", mtime=1234567.125).link("up", "../../../x")
    layer.add("note", b"n", pax_headers={"SCHILY.xattr.user.note": "hello"}).folder("ro", 0o555).add("ro/f", b"6")
    (tmp_path / "layer.tar").write_bytes(layer.bytes())
    image = f"{tmp_path / 'layout'}:t"
    for command in (
        ["init", "--layout", str(tmp_path / "layout")],
        ["new", "--image", image],
        ["raw", "add-layer", "--image", image, str(tmp_path / "layer.tar")],
        ["unpack", "--image", image, str(tmp_path / "bundle")],
    ):
        subprocess.run(["umoci", *command], check=True, capture_output=True)
    with (tmp_path / "layer.tar").open("rb") as stream:
        unpack_layer(stream, store / "one", ids=ids)
    ours, theirs = described(store / "one/tree", ids.owner[0]), described(tmp_path / "bundle/rootfs", 0)
    implied = {name for name in ours if name not in {"lib", "usr"} and Path(name).name in {"long", "deep", "abs"}}
    for name in implied | {"usr", "usr/lib", ".", "y"}:  # their times are those of the unpacking
        ours[name], theirs[name] = ours[name][:-1], theirs[name][:-1]
    assert ours == theirs


def described(root: Path, first: int) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *root.rglob("*")]:
        info = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        notes = [name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith("user.overlay.")]
        owner = info.st_uid - first, info.st_gid - first
        links = info.st_nlink if path.is_file() else 0
        found[str(path.relative_to(root))] = (info.st_mode, owner, links, content, sorted(notes), info.st_mtime_ns)
    return found
