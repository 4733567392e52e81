"""A real registry server, and what skopeo and umoci make of the same images."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import zstandard

from harena.images import Image, ImageNotFound, ImageStore
from support.registries import Blobs, tar_of

pytestmark = [pytest.mark.thorough, pytest.mark.registry]

CONFIG = """
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}
  delete:
    enabled: true
http:
  addr: 127.0.0.1:{port}
"""


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed: apt-get install {program}")
    return found


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    program = need("docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "config.yml").write_text(CONFIG.format(folder=folder / "data", port=port))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        ends_at = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def layers() -> list[bytes]:
    import io

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, fields in {
            "usr": {"type": tarfile.DIRTYPE, "mode": 0o755},
            "usr/bin": {"type": tarfile.DIRTYPE, "mode": 0o1777},
            "usr/bin/tool": {"mode": 0o4755, "uid": 0, "data": b"#!/bin/sh\n" * 1000},
            "usr/bin/same": {"type": tarfile.LNKTYPE, "linkname": "usr/bin/tool"},
            "usr/bin/link": {"type": tarfile.SYMTYPE, "linkname": "../../etc/passwd"},
            "owned": {"mode": 0o640, "uid": 1000, "gid": 33, "data": b"mine"},
            "gone": {"data": b"gone"},
            "dir": {"type": tarfile.DIRTYPE, "mode": 0o700},
            "dir/old": {"data": b"old"},
            "é" * 80: {"data": b"long"},
        }.items():
            data = fields.pop("data", b"")
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_700_000_000
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    # Every folder on the way is there, as Docker writes it.
    top = tar_of(
        {
            ".wh.gone": b"",
            "usr": None,
            "usr/bin": None,
            "dir": None,
            "dir/.wh..wh..opq": b"",
            "dir/new": b"new",
            "usr/bin/tool": b"changed",
        }
    )
    return [out.getvalue(), top]


def layout(path: Path, *, compress=gzip.compress, kind="application/vnd.oci.image.layer.v1.tar+gzip") -> Path:
    blobs = Blobs()
    image = blobs.add_image(layers(), compress=compress, kind=kind, config={"Env": ["A=b"], "Cmd": ["sh"]})
    image["annotations"] = {"org.opencontainers.image.ref.name": "one"}
    (path / "blobs" / "sha256").mkdir(parents=True)
    for digest, data in blobs.data.items():
        (path / "blobs" / digest.replace(":", "/")).write_bytes(data)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [image]}))
    return path


@pytest.fixture
def pushed(server: str, tmp_path: Path) -> str:
    name = f"{server}/team/app:1"
    run(
        need("skopeo"),
        "copy",
        "--insecure-policy",
        "--dest-tls-verify=false",
        f"oci:{layout(tmp_path / 'oci')}:one",
        f"docker://{name}",
    )
    return name


def test_an_image_is_pulled_from_a_real_registry(server: str, pushed: str, store: ImageStore) -> None:
    image = store.pull(pushed)
    told = json.loads(run(need("skopeo"), "inspect", "--tls-verify=false", f"docker://{pushed}"))
    assert image.digest == told["Digest"]
    assert [str(layer.digest) for layer in image.layers] == told["Layers"]
    assert [f"{name}={value}" for name, value in image.config.env] == told["Env"]
    assert store.pull(f"{server}/team/app@{image.digest}") == image
    with pytest.raises(ImageNotFound, match="check the name and the tag"):
        store.pull(f"{server}/team/app:2")


def test_a_cut_download_is_resumed_at_a_real_registry(pushed: str, store: ImageStore) -> None:
    image = store.pull(pushed)
    layer = image.layers[0]
    store.remove(pushed)
    partial = store.folder / "partial" / f"sha256-{layer.digest.hex}"
    partial.write_bytes(gzip.compress(layers()[0])[:300])
    assert store.pull(pushed) == image
    assert not any((store.folder / "partial").iterdir())


def test_a_docker_archive_of_skopeo_is_imported(pushed: str, store: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    run(
        need("skopeo"),
        "copy",
        "--insecure-policy",
        "--src-tls-verify=false",
        f"docker://{pushed}",
        f"docker-archive:{path}:other/name:2",
    )
    (image,) = store.import_file(path)
    assert image.reference == "docker.io/other/name:2"
    assert image.layers[0].diff_id == store.pull(pushed).layers[0].diff_id


def test_an_oci_archive_of_skopeo_is_imported(pushed: str, store: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    run(
        need("skopeo"),
        "copy",
        "--insecure-policy",
        "--src-tls-verify=false",
        f"docker://{pushed}",
        f"oci-archive:{path}:docker.io/x/y:3",
    )
    (image,) = store.import_file(path)
    assert image.reference == "docker.io/x/y:3"
    assert image.digest == store.pull(pushed).digest


def seen(root: Path, path: Path) -> tuple[object, ...]:
    found = path.lstat()
    kind = stat.S_IFMT(found.st_mode)
    body = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
    mode = 0 if path.is_symlink() else stat.S_IMODE(found.st_mode)
    links = found.st_nlink if path.is_file() else 0
    return kind, mode, body, links, int(found.st_mtime) if path.is_file() else 0


def overlaid(image: Image) -> dict[str, tuple[object, ...]]:
    """What a box will see, by the rules of overlayfs: upper files hide lower ones, devices 0/0 and opaque folders too."""
    found: dict[str, tuple[object, ...]] = {}
    with image.lease() as lease:
        for layer in map(Path, lease.layers):
            for path in sorted(layer.rglob("*")):
                name = str(path.relative_to(layer))
                info = path.lstat()
                if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                    found = {
                        key: value for key, value in found.items() if key != name and not key.startswith(f"{name}/")
                    }
                    continue
                if path.is_dir() and not path.is_symlink() and "user.overlay.opaque" in os.listxattr(path):
                    found = {key: value for key, value in found.items() if not key.startswith(f"{name}/")}
                found[name] = seen(layer, path)
    return found


@pytest.mark.root
@pytest.mark.parametrize("form", ["gzip", "plain"])
def test_the_files_are_those_that_umoci_unpacks(store: ImageStore, tmp_path: Path, form: str) -> None:
    more = {} if form == "gzip" else {"compress": bytes, "kind": "application/vnd.oci.image.layer.v1.tar"}
    path = layout(tmp_path / "oci", **more)
    run(need("umoci"), "unpack", "--image", f"{path}:one", tmp_path / "bundle")
    root = tmp_path / "bundle" / "rootfs"
    theirs = {str(item.relative_to(root)): seen(root, item) for item in root.rglob("*")}
    (image,) = store.import_file(path, name="mine:1")
    ours = overlaid(image)
    # Each layer has its own copy of a name, so that links across layers do not count.
    for name in ("usr/bin/tool", "usr/bin/same"):
        theirs[name], ours[name] = (*theirs[name][:3], 0), (*ours[name][:3], 0)
    assert ours == theirs


def test_zstd_layers_come_from_a_real_registry(server: str, store: ImageStore, tmp_path: Path) -> None:
    """skopeo pushes blobs as they are."""
    kind = "application/vnd.oci.image.layer.v1.tar+zstd"
    path = layout(tmp_path / "oci", compress=zstandard.compress, kind=kind)
    name = f"{server}/team/zstd:1"
    run(need("skopeo"), "copy", "--insecure-policy", "--dest-tls-verify=false", f"oci:{path}:one", f"docker://{name}")
    image = store.pull(name)
    with image.lease() as lease:
        assert (Path(lease.layers[0]) / "owned").read_bytes() == b"mine"
