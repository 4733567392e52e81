"""Archives of docker save, OCI layouts and root file systems become images; hostile ones are refused."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harena.images import BadImage, ImageError, ImageNotFound, ImageStore
from harena.images.reference import Platform
from harena.images.store.archives import _Tar
from support.registries import Blobs, digest_of, tar_of

BASE = tar_of({"etc": None, "etc/name": b"base\n"})
TOP = tar_of({"etc/name": b"top\n"})


def docker_config(layers: list[bytes]) -> bytes:
    machine = Platform.of_host()
    rootfs = {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}
    return json.dumps(
        {"os": "linux", "architecture": machine.architecture, "config": {"User": "me"}, "rootfs": rootfs}
    ).encode()


def docker_save(path: Path, *, tags: list[str] | None = None, edit: object = None) -> Path:
    config = docker_config([BASE, TOP])
    name = digest_of(config).removeprefix("sha256:") + ".json"
    manifest = [
        {"Config": name, "RepoTags": ["team/app:1"] if tags is None else tags, "Layers": ["a/layer.tar", "b/layer.tar"]}
    ]
    files = {name: config, "a": None, "a/layer.tar": BASE, "b/layer.tar": TOP, "manifest.json": manifest}
    if callable(edit):
        edit(files)
    files["manifest.json"] = json.dumps(files["manifest.json"]).encode()
    path.write_bytes(tar_of(files))
    return path


def layout(path: Path, *, name: str | None = "docker.io/team/app:1", compress: object = gzip.compress) -> Path:
    blobs = Blobs()
    image = blobs.add_image([BASE, TOP], compress=compress)
    if name:
        image["annotations"] = {"org.opencontainers.image.ref.name": name}
    (path / "blobs" / "sha256").mkdir(parents=True)
    for digest, data in blobs.data.items():
        (path / "blobs" / digest.replace(":", "/")).write_bytes(data)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [image]}))
    return path


def packed(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.add(folder, ".")
    return path


def top_file(store: ImageStore, name: str) -> bytes:
    image = store.find(name)
    assert image is not None
    with image.lease() as lease:
        return (Path(lease.layers[-1]) / "etc/name").read_bytes()


def test_a_docker_archive_is_imported(store: ImageStore, tmp_path: Path) -> None:
    (image,) = store.import_file(docker_save(tmp_path / "a.tar"))
    assert image.reference == "docker.io/team/app:1"
    assert image.config.user == "me"
    assert top_file(store, "team/app:1") == b"top\n"
    assert not any((store.folder / "tmp").iterdir())


def test_a_docker_archive_has_several_names(store: ImageStore, tmp_path: Path) -> None:
    store.import_file(docker_save(tmp_path / "a.tar", tags=["one:1", "two:2"]))
    assert [image.reference for image in store.images()] == ["docker.io/library/one:1", "docker.io/library/two:2"]
    store.import_file(docker_save(tmp_path / "b.tar", tags=[]), name="three")
    assert top_file(store, "three") == b"top\n"
    with pytest.raises(ImageNotFound, match="give a name with --name"):
        store.import_file(docker_save(tmp_path / "c.tar", tags=[]))


def test_a_layer_may_be_a_link_to_another_member(store: ImageStore, tmp_path: Path) -> None:
    """Old versions of Docker write that."""
    path = docker_save(tmp_path / "a.tar")
    out = io.BytesIO()
    with tarfile.open(path) as tar, tarfile.open(fileobj=out, mode="w") as new:
        for member in tar:
            if member.name == "b/layer.tar":
                real = tarfile.TarInfo("real/layer.tar")
                real.size = member.size
                new.addfile(real, tar.extractfile(member))
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "../real/layer.tar", 0
                new.addfile(member)
            else:
                new.addfile(member, tar.extractfile(member) if member.isreg() else None)
    path.write_bytes(out.getvalue())
    store.import_file(path)
    assert top_file(store, "team/app:1") == b"top\n"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, lzma.compress], ids=["gzip", "zstd", "xz"])
def test_an_archive_may_be_compressed(store: ImageStore, tmp_path: Path, compress: object) -> None:
    path = docker_save(tmp_path / "a.tar")
    path.write_bytes(compress(path.read_bytes()))
    store.import_file(path)
    assert top_file(store, "team/app:1") == b"top\n"
    assert not any((store.folder / "tmp").iterdir())


@pytest.mark.parametrize("compress", [gzip.compress, bytes], ids=["gzip", "plain"])
@pytest.mark.parametrize("form", ["folder", "tar"])
def test_an_oci_layout_is_imported(store: ImageStore, tmp_path: Path, form: str, compress: object) -> None:
    path = layout(tmp_path / "layout", compress=compress)
    (image,) = store.import_file(path if form == "folder" else packed(path, tmp_path / "layout.tar"))
    assert image.reference == "docker.io/team/app:1"
    assert top_file(store, "team/app:1") == b"top\n"


def test_a_layout_whose_name_is_only_a_tag_needs_a_name(store: ImageStore, tmp_path: Path) -> None:
    path = layout(tmp_path / "layout", name="latest")
    with pytest.raises(ImageNotFound, match="--name"):
        store.import_file(path)
    store.import_file(path, name="mine:1")
    assert top_file(store, "mine:1") == b"top\n"


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
def test_a_root_file_system_is_imported(store: ImageStore, tmp_path: Path, compress: object) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(compress(BASE))
    (image,) = store.import_file(path, name="mine:1")
    assert image.config.env == ()
    assert str(image.layers[0].diff_id) == digest_of(BASE)
    assert top_file(store, "mine:1") == b"base\n"
    with pytest.raises(ImageNotFound, match="--name"):
        store.import_file(path)


def test_a_root_file_system_may_have_a_file_named_manifest(store: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(tar_of({"manifest.json": b'{"a": 1}', "etc/name": b"x"}))
    store.import_file(path, name="mine:1")
    assert top_file(store, "mine:1") == b"x"
    docker_save(path)
    (image,) = store.import_file(path, name="mine:2", is_root=True)
    assert len(image.layers) == 1


# ---- hostile input ----


def set_layers(*layers: object):
    def edit(files: dict[str, object]) -> None:
        files["manifest.json"][0]["Layers"] = list(layers)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_layers("../../../../etc/passwd", "b/layer.tar"), "has no"),
        (set_layers("/etc/passwd", "b/layer.tar"), "has no"),
        (set_layers("a", "b/layer.tar"), "has no"),
        (set_layers("a/layer.tar"), "1 layers and the config 2"),
        (set_layers(1, 2), "list of at most"),
        (set_layers("b/layer.tar", "a/layer.tar"), "digest|diff-id"),
        (lambda files: files["manifest.json"][0].update(Config="../config"), "has no"),
        (lambda files: files["manifest.json"][0].update(RepoTags=["../../x"]), "not the name of an image"),
        (lambda files: files["manifest.json"][0].update(RepoTags="x"), "not a list"),
        (lambda files: files.update({next(iter(files)): files[next(iter(files))] + b" "}), "does not have its digest"),
    ],
    ids=["up", "absolute", "folder", "few", "numbers", "swapped", "config", "tag", "tags", "config digest"],
)
def test_a_hostile_docker_archive_is_refused(store: ImageStore, tmp_path: Path, edit: object, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        store.import_file(docker_save(tmp_path / "a.tar", edit=edit))
    assert store.images() == []
    assert not any((store.folder / "tmp").iterdir())


def test_a_link_out_of_an_archive_is_not_followed(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(BASE)
    for target in (str(tmp_path / "secret"), "../" * 20 + str(tmp_path / "secret")[1:], "layer.tar"):
        path = docker_save(tmp_path / "a.tar")
        with tarfile.open(path, "a") as tar:
            info = tarfile.TarInfo("a/layer.tar")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        with pytest.raises(ImageNotFound, match="the archive has no"):
            store.import_file(path)


@pytest.mark.parametrize("what", ["blob", "folder", "index.json", "fifo", "device"])
def test_links_and_devices_in_a_layout_are_refused(store: ImageStore, tmp_path: Path, what: str) -> None:
    path = layout(tmp_path / "layout")
    index = json.loads((path / "index.json").read_text())
    blob = path / "blobs" / index["manifests"][0]["digest"].replace(":", "/")
    if what == "folder":
        (path / "blobs").rename(tmp_path / "elsewhere")
        (path / "blobs").symlink_to(tmp_path / "elsewhere")
    else:
        victim = path / "index.json" if what == "index.json" else blob
        victim.rename(tmp_path / "elsewhere")
        if what == "fifo":
            os.mkfifo(victim)
        elif what == "device":
            victim.symlink_to("/dev/zero")
        else:
            victim.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadImage, match=r"link, which is not followed|not a regular file"):
        store.import_file(path)


def test_a_layout_with_wrong_bytes_is_refused(store: ImageStore, tmp_path: Path) -> None:
    path = layout(tmp_path / "layout")
    for blob in (path / "blobs" / "sha256").iterdir():
        data = blob.read_bytes()
        blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ImageError, match=r"digest|damaged|refused"):
            store.import_file(path)
        blob.write_bytes(data)
        assert not list((store.folder / "layers").glob("*/*"))  # nor the layer that was good
    assert store.images() == []
    assert not any((store.folder / "tmp").iterdir())


def test_a_layer_with_the_right_files_in_other_bytes_is_refused(store: ImageStore, tmp_path: Path) -> None:
    path = layout(tmp_path / "layout", compress=lambda data: gzip.compress(data, mtime=1))
    for blob in (path / "blobs" / "sha256").iterdir():
        if blob.read_bytes() == gzip.compress(TOP, mtime=1):
            blob.write_bytes(gzip.compress(TOP, mtime=2))
    with pytest.raises(BadImage, match="does not have its digest"):
        store.import_file(path)
    assert not list((store.folder / "layers").glob("*/*"))


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense" * 200, b"\x1f\x8bnonsense", BASE[:700], gzip.compress(BASE)[:-20]],
    ids=["empty", "noise", "gzip", "cut", "cut gzip"],
)
def test_damaged_files_are_refused(store: ImageStore, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=r"damaged|empty|cut off|too early"):
        store.import_file(path, name="x")
    assert store.images() == []
    assert not any((store.folder / "tmp").iterdir())


def test_a_compressed_bomb_is_refused(tmp_path: Path) -> None:
    from harena.images.settings import ImageSettings
    from harena.images.unpack.caps import Caps

    store = ImageStore(tmp_path / "s", settings=ImageSettings(tmp_path), caps=Caps(archive_bytes=1 << 20))
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    with pytest.raises(BadImage, match="more than 1048576 bytes"):
        store.import_file(path, name="x")
    assert not any((store.folder / "tmp").iterdir())


def test_what_is_neither_file_nor_folder_is_refused_at_once(store: ImageStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageNotFound, match="neither a file nor a folder"):
        store.import_file(tmp_path / "pipe", name="x")
    with pytest.raises(ImageNotFound, match="No such file"):
        store.import_file(tmp_path / "nothing", name="x")


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_indexed_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = docker_save(tmp_path / "fuzz.tar")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    fd = os.open(path, os.O_RDONLY)
    try:
        tar = _Tar(fd)
        for name in list(tar._members):
            file, size = tar.open(name)
            with file:
                assert len(file.read()) == size
    except ImageError:
        pass
    finally:
        os.close(fd)
