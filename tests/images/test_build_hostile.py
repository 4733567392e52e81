"""Builds whose commands attack what reads their files, builds that are killed, share a store or find the disk full."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from harena.images import ImageStore
from harena.images.build import BuildFailed, DockerfileError
from harena.images.builder.pack import PackFailed, pack_folder
from harena.images.settings import ImageSettings
from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import unpack_layer
from support.builds import Builds, builds_of_store, built_store, layer_members, shell

pytestmark = pytest.mark.thorough

assert built_store
assert builds_of_store


# ---- what the context holds ----


@pytest.mark.timeout(120)
def test_pipes_and_devices_of_a_context_keep_no_build_waiting(builds: Builds) -> None:
    builds.file("plain")
    os.mkfifo(builds.context / "pipe")
    image = builds("FROM base:1\nADD pipe /added\nCOPY pipe /copied\n")
    assert shell(image, "test -p /added && test -p /copied && echo pipes") == "pipes\n"
    for name in (".dockerignore", "Dockerfile.dockerignore"):
        for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            make(builds.context / name)
            with pytest.raises(DockerfileError, match="not a plain file"):
                builds("FROM base:1\n")
            (builds.context / name).unlink()
    builds.file(".dockerignore", "*" * 5000)
    with pytest.raises(DockerfileError, match="longer than"):
        builds("FROM base:1\n")


# ---- what commands leave ----


def test_odd_names_and_kinds_arrive_whole(builds: Builds, tmp_path: Path) -> None:
    image = builds(
        "FROM base:1\nRUN mkdir /odd; cd /odd; touch -- '-rf' \"$(printf 'new\\nline')\" \"$(printf 'esc\\033[2J')\" "
        "\"$(printf 'bad\\377')\" $(printf '%0255d' 1) '..x' ' '; busybox mkfifo pipe; ln -s / root; "
        "ln -s ../../../../../../../../../../etc/shadow out\n"
    )
    names = set(layer_members(image, 1, tmp_path))
    assert {
        "odd/-rf",
        "odd/new\nline",
        "odd/esc\033[2J",
        "odd/bad\udcff",
        f"odd/{1:0255d}",
        "odd/..x",
        "odd/ ",
    } <= names
    members = layer_members(image, 1, tmp_path)
    assert members["odd/pipe"].isfifo()
    assert members["odd/out"].issym()
    assert len(shell(image, "ls -A /odd").splitlines()) == 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mkdir /d; touch /d/.wh.passwd", r"line 2: d/\.wh\.passwd: a name that begins with \.wh\."),
        ("mkdir /.wh..wh..opq", r"line 2: \.wh\..*: a name that begins with"),
        ("dd if=/dev/zero of=/huge bs=1 count=1 seek=100000000000", "line 2: .*huge.*larger than"),
        (
            "n=$(printf %0100d 1); i=0; while [ $i -lt 60 ]; do mkdir $n; cd $n; i=$((i+1)); done; touch last",
            "line 2: .*[Tt]oo long",
        ),
        ("dd if=/dev/zero of=/full bs=1M count=20", "line 2: RUN .*exit code"),
    ],
)
def test_what_no_layer_can_hold_is_refused_by_line(builds: Builds, line: str, message: str) -> None:
    before = sorted(path.name for path in builds.store.folder.glob("layers/*/*"))
    with pytest.raises(BuildFailed, match=message):
        builds(f"FROM base:1\nRUN {line}\n", root_mb=10, name="refused:1")
    assert builds.store.find("refused:1") is None
    assert sorted(path.name for path in builds.store.folder.glob("layers/*/*")) == before
    assert not list((builds.store.folder / "tmp").iterdir())


def test_commands_cannot_make_devices_or_hide_layers(builds: Builds, tmp_path: Path) -> None:
    image = builds("FROM base:1\nRUN ! mknod /null c 1 3; ! mknod /white c 0 0; touch /ran\n")
    names = set(layer_members(image, 1, tmp_path))
    assert "ran" in names
    assert not names & {"null", "white", ".wh.white"}


def test_links_of_the_image_lead_copies_nowhere_else(builds: Builds, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    builds.file("f", "payload")
    up = "../" * 30
    image = builds(
        f"FROM base:1\nRUN rm -rf /srv; ln -s {up}{outside} /srv; ln -s /proc/self/root{outside} /way; ln -s /srv /loop\n"
        "COPY f /srv/one\nCOPY f /loop/\nWORKDIR /srv/made\nCOPY f .\n"
    )
    assert list(outside.iterdir()) == []
    # A box covers /tmp, where these paths are: another step looks.
    builds(f"FROM built:1\nRUN cat {outside}/one {outside}/f {outside}/made/f; ls {outside}\n", name="look:1")
    assert builds.output == "payload" * 3 + "f\nmade\none\n"
    assert list(outside.iterdir()) == []
    assert image.config.cwd == "/srv/made"
    with pytest.raises(BuildFailed, match="links lead nowhere"):
        builds("FROM base:1\nRUN ln -s two /one; ln -s one /two\nCOPY f /one/x/\n")
    # A source in another stage is found in that stage, whatever its links say.
    (outside / "secret").write_text("secret of the host")
    with pytest.raises(BuildFailed, match="there is no such file"):
        builds(f"FROM base:1 AS a\nRUN ln -s {up}{outside} /s\nFROM base:1\nCOPY --from=a /s/secret /x\n")


def test_a_command_in_the_background_ends_with_its_step(builds: Builds) -> None:
    started = time.monotonic()
    image = builds("FROM base:1\nRUN (while true; do echo x >> /endless; done) & echo ran > /f\n")
    assert time.monotonic() - started < 60
    assert shell(image, "cat /f") == "ran\n"


def test_passwd_of_the_image_cannot_lead_out(builds: Builds, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("evil:x:77:77::/:/bin/sh\n")
    builds.file("f")
    link = f"RUN rm /etc/passwd; ln -s {'../' * 30}{tmp_path}/passwd /etc/passwd"
    with pytest.raises(BuildFailed, match="no such user"):
        builds(f"FROM base:1\n{link}\nCOPY --chown=evil f /f\n")
    with pytest.raises(BuildFailed, match="no such user"):
        builds(f"FROM base:1\n{link}\nUSER evil\nRUN true\n")


# ---- archives of folders ----


def variety() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **more: object) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.mtime = kind, len(content), 1_600_000_000.123456789
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))

        add("d", tarfile.DIRTYPE, mode=0o1777)
        add("d/.wh..wh..opq")
        add("d/file", content=b"x" * 70_000, mode=0o4755, uid=12, gid=13)
        add("d/hard", tarfile.LNKTYPE, linkname="d/file")
        add("d/" + "long" * 60, content=b"1", pax_headers={"SCHILY.xattr.user.note": "kept"})
        add("l" * 120, tarfile.SYMTYPE, linkname="t" * 300)
        add("pipe", tarfile.FIFOTYPE, mode=0o600)
        add(".wh.gone")
        add("umlaut-ä", content=b"y")
        add("none", content=b"", mode=0)
        add("holes", content=b"\0" * 200_000 + b"end")
    return data.getvalue()


def test_packing_gives_back_what_was_unpacked(tmp_path: Path) -> None:
    ids = Ids.of_host()
    owners = None if ids.kind == "full" else {b"d/file": (12, 13)}
    source, found = variety(), list[bytes]()
    for number in range(2):
        target = tmp_path / str(number)
        unpack_layer(io.BytesIO(source), target, ids=ids)
        with open(tmp_path / f"{number}.tar", "w+b") as file:
            pack_folder(target / "tree", file, ids=ids, owners=owners)
            file.seek(0)
            source = file.read()
            found.append(source)
    assert hashlib.sha256(found[0]).hexdigest() == hashlib.sha256(found[1]).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(found[0])) as packed, tarfile.open(fileobj=io.BytesIO(variety())) as given:
        mine = {member.name: member for member in packed}
        for member in given:
            other = mine[member.name]
            assert other.isreg() == member.isreg() or member.islnk()
            is_whiteout = member.name.rpartition("/")[2].startswith(".wh.")
            if not is_whiteout and not member.islnk():
                assert (other.linkname, other.mtime) == (member.linkname, member.mtime)
                assert member.issym() or other.mode == member.mode
        assert (mine["d/file"].uid, mine["d/file"].gid) == (12, 13)
        assert mine["d/" + "long" * 60].pax_headers["SCHILY.xattr.user.note"] == "kept"
        assert packed.extractfile("holes").read() == b"\0" * 200_000 + b"end"  # type: ignore[union-attr]


def test_a_packed_folder_has_a_most_size(tmp_path: Path) -> None:
    unpack_layer(io.BytesIO(variety()), tmp_path / "layer", ids=Ids.of_host())
    with open(tmp_path / "out", "w+b") as file, pytest.raises(PackFailed, match="larger than allowed"):
        pack_folder(tmp_path / "layer" / "tree", file, ids=Ids.of_host(), most_bytes=50_000)


# ---- crashes ----

SOON_S = 60.0
BUILD = """
import resource, sys
from pathlib import Path
from harena.images import ImageError, ImageStore
from harena.images.build import build
from harena.images.settings import ImageSettings
if len(sys.argv) > 4:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    store = ImageStore(sys.argv[1], settings=ImageSettings(Path(sys.argv[1])))
    print(build(store, sys.argv[2], name=sys.argv[3]).digest)
except ImageError as error:
    print(type(error).__name__, error)
"""


def start(builds: Builds, name: str, *more: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BUILD, builds.store.folder, builds.context, name, *more]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_consistent(store: ImageStore) -> None:
    fresh = ImageStore(store.folder, settings=ImageSettings(store.folder))
    end = time.monotonic() + SOON_S
    # A child that a killed build had just forked holds its folder until it notices.
    while fresh.gc() and any((store.folder / "tmp").iterdir()):
        assert time.monotonic() < end, list((store.folder / "tmp").iterdir())
        time.sleep(0.05)
    for image in fresh.images():
        with image.lease() as lease:
            assert all(Path(layer).is_dir() for layer in lease.layers)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kill_at_any_moment_leaves_a_consistent_store(builds: Builds) -> None:
    builds.file("f", os.urandom(200_000))
    text = "FROM base:1\nCOPY f /\nRUN cp /f /g; NUMBER\nRUN rm /f; mkdir -p /a/b/c; touch /a/b/c/d\nCOPY f /a/\n"
    builds.context.joinpath("Dockerfile").write_text(text.replace("NUMBER", "echo whole"))
    began = time.monotonic()
    assert start(builds, "whole:1").communicate(timeout=100)[0].startswith("sha256:")
    whole_s = time.monotonic() - began
    moments = random.Random(7)
    for number in range(8):
        builds.context.joinpath("Dockerfile").write_text(text.replace("NUMBER", f"echo {number}"))
        process = start(builds, "killed:1")
        time.sleep(whole_s * moments.uniform(0.1, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=100)
        assert_consistent(builds.store)
    out, err = start(builds, "killed:1").communicate(timeout=100)
    assert out.startswith("sha256:"), out + err
    image = builds.store.find("killed:1")
    assert image is not None
    assert shell(image, "ls /a /a/b/c; ! ls /f; stat -c %s /g") == "/a:\nb\nf\n\n/a/b/c:\nd\n200000\n"


@pytest.mark.slow
def test_two_builds_of_the_same_file_at_once(builds: Builds) -> None:
    builds.file("f")
    builds.context.joinpath("Dockerfile").write_text(
        "FROM base:1\nCOPY f /\nRUN echo both > /both\nRUN cat /both > /c\n"
    )
    processes = [start(builds, name) for name in ("two:1", "two:1", "two:2")]
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert out.startswith("sha256:"), out + err
    for name in ("two:1", "two:2"):
        image = builds.store.find(name)
        assert image is not None
        assert shell(image, "cat /c") == "both\n"
    assert_consistent(builds.store)


@pytest.mark.parametrize("step", ["COPY large /", "RUN dd if=/dev/zero of=/large bs=1M count=5"])
def test_a_full_disk_ends_the_build_and_leaves_nothing(builds: Builds, step: str) -> None:
    builds.file("large", b"x" * 5_000_000)
    builds.context.joinpath("Dockerfile").write_text(f"FROM base:1\n{step}\n")
    before = sorted(path.name for path in builds.store.folder.glob("layers/*/*"))
    out, err = start(builds, "full:1", 1_000_000).communicate(timeout=100)
    assert "large" in out.lower(), out + err
    assert not out.startswith("sha256:")
    assert builds.store.find("full:1") is None
    assert sorted(path.name for path in builds.store.folder.glob("layers/*/*")) == before
    assert not list((builds.store.folder / "tmp").iterdir())
