"""`harena image build`: what steps do, what they leave in layers, and what is cached. Also run as an ordinary user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harena import Network, Sandbox, Spec, SpecError
from harena.images import ImageError, ImageStore
from harena.images.build import BuildFailed
from harena.images.builder.dockerfile import DockerfileError
from harena.images.builder.export import export_image
from harena.images.unpack.ids import Ids
from support.builds import Builds, builds_of_store, built_store, layer_members, shell
from support.docker_daemon import docker_daemon
from support.roots import write_tar
from support.wheels import make_wheel, serve_index

pytestmark = pytest.mark.services

assert built_store
assert builds_of_store
FULL = Ids.of_host().kind == "full"


# ---- instructions ----


def test_run_sees_and_changes_what_steps_before_it_left(builds: Builds) -> None:
    image = builds(
        "FROM base:1\n"
        "ARG WHO=you\nENV GREETING=hello\\ $WHO EMPTY=\n"
        "RUN echo $GREETING $WHO > /first; echo to-stderr >&2\n"
        'RUN ["/bin/sh", "-c", "cat /first; echo second >> /first; pwd; echo $HOME"]\n'
        'SHELL ["/bin/sh", "-ec"]\nRUN echo third >> /first\n'
    )
    assert shell(image, "cat /first; echo $GREETING; echo ${WHO-none}") == (
        "hello you you\nsecond\nthird\nhello you\nnone\n"
    )
    assert "to-stderr" in builds.output
    assert "hello you you\n/\n/root\n" in builds.output


def test_a_command_that_fails_ends_the_build(builds: Builds) -> None:
    before = builds.store.images()
    with pytest.raises(BuildFailed, match=r"line 2: RUN .*exit code 3"):
        builds("FROM base:1\nRUN echo reason; exit 3\n", name="failed:1")
    assert "reason" in builds.output
    with pytest.raises(BuildFailed, match="line 2"):
        builds('FROM base:1\nRUN ["/no/such/program"]\n', name="failed:1")
    assert builds.store.images() == before


def test_workdir_user_and_files_in_tmp_and_workspace(builds: Builds) -> None:
    image = builds(
        "FROM base:1\nWORKDIR /a/b\nWORKDIR c\nRUN pwd > where; touch /tmp/kept; mkdir -p /workspace/w\n"
        "USER app\nRUN id -u > /tmp/id; id -g >> /tmp/id; cat /tmp/id; ls -d /workspace/w\n"
    )
    assert builds.output == "1234\n1235\n/workspace/w\n"
    assert (image.config.cwd, image.config.user) == ("/a/b/c", "app")
    # A box covers /tmp with its own, so the layers are asked.
    assert shell(image, "cat /a/b/c/where; stat -c %a /a /a/b /a/b/c", user="0") == "/a/b/c\n755\n755\n755\n"
    again = builds("FROM built:1\nRUN cat /tmp/id; ls /tmp; stat -c %a /tmp\n", name="again:1")
    assert again.layers[: len(image.layers)] == image.layers
    assert builds.output == "1234\n1235\nid\nkept\n1777\n"


def test_config_is_recorded(builds: Builds) -> None:
    image = builds(
        'FROM base:1\nLABEL a=b "c d"="e f"\nEXPOSE 80 53/udp\nVOLUME /data /more\nSTOPSIGNAL SIGINT\n'
        'HEALTHCHECK --interval=30s --retries=2 CMD true\nENTRYPOINT ["/bin/x"]\nCMD echo $HOME\nUSER 5:6\n'
    )
    config = image.config
    assert dict(config.labels) == {"a": "b", "c d": "e f"}
    assert config.exposed_ports == ("80/tcp", "53/udp")
    assert config.volumes == ("/data", "/more")
    assert config.stop_signal == "SIGINT"
    assert config.healthcheck is not None
    assert (config.healthcheck.test, config.healthcheck.interval_s, config.healthcheck.retries) == (
        ("CMD-SHELL", "true"), 30.0, 2,
    )  # fmt: skip
    assert (config.entrypoint, config.cmd, config.user) == (("/bin/x",), ("/bin/sh", "-c", "echo $HOME"), "5:6")
    # A new entry point does not take over the command of the base image.
    derived = builds('FROM built:1\nENTRYPOINT ["/bin/y"]\nHEALTHCHECK NONE\n', name="derived:1").config
    assert (derived.entrypoint, derived.cmd) == (("/bin/y",), ())
    assert derived.healthcheck is not None
    assert derived.healthcheck.test == ("NONE",)
    assert dict(derived.labels)["a"] == "b"


def test_removed_files_are_whiteouts(builds: Builds, tmp_path: Path) -> None:
    image = builds(
        "FROM base:1\nRUN mkdir -p /d/e; touch /d/e/one /d/e/two /gone\n"
        "RUN rm /gone /bin/df; rm -r /d/e; mkdir /d/e; touch /d/e/three\n"
    )
    assert shell(image, "ls /d/e; ! ls /bin/df; ! ls /gone") == "three\n"
    names = layer_members(image, 2, tmp_path)
    assert {".wh.gone", "bin/.wh.df", "d/e/three"} <= set(names)
    assert "d/e/.wh..wh..opq" in names or {"d/e/.wh.one", "d/e/.wh.two"} <= set(names)


def test_the_boxs_own_files_are_in_no_layer(builds: Builds, tmp_path: Path) -> None:
    image = builds(
        "FROM base:1\nRUN echo 1.2.3.4 x >> /etc/hosts; echo y > /etc/hostname; rm /etc/resolv.conf; touch /f\n"
    )
    names = set(layer_members(image, 1, tmp_path))
    assert "f" in names
    assert not {name for name in names if "hosts" in name or "hostname" in name or "resolv" in name}
    assert not names & {".harena", "proc", "dev", "workspace", "tmp"}
    assert len(builds("FROM base:1\nRUN true\n").layers) == 1


def test_owners_links_modes_and_times_of_run(builds: Builds, tmp_path: Path) -> None:
    image = builds(
        "FROM base:1\nRUN echo x > /f; ln /f /hard; ln -s f /soft; chown 1234:1235 /f; "
        "chmod 4750 /f; touch -d '2001-02-03 00:00:00' /f; mkdir -m 700 /private; ln -s ../../.. /up\n"
    )
    members = layer_members(image, 1, tmp_path)
    assert (members["f"].mode, members["f"].mtime) == (0o4750, 981158400)
    assert (members["hard"].type, members["hard"].linkname) == (tarfile.LNKTYPE, "f")
    assert (members["soft"].linkname, members["up"].linkname) == ("f", "../../..")
    assert members["private"].mode == 0o700
    if FULL:
        assert (members["f"].uid, members["f"].gid) == (1234, 1235)


# ---- COPY ----


def test_copy_places_files_as_docker_does(builds: Builds) -> None:
    builds.file("one", mode=0o755)
    builds.file("dir/two")
    builds.file("dir/deep/three")
    (builds.context / "dir" / "link").symlink_to("/etc/passwd")
    (builds.context / "named").symlink_to("dir/two")
    image = builds(
        "FROM base:1\nWORKDIR /w\nCOPY one renamed\nCOPY one two/\nCOPY one /existing/\nCOPY one /existing\n"
        "COPY dir /d\nCOPY dir one /both/\nCOPY d*/t* /glob/\nCOPY named /\nCOPY . /all/\n"
    )
    assert shell(
        image, "readlink /d/link; readlink /all/named; stat -c '%a %u:%g' /w/renamed /d/two /d; cat /named"
    ) == ("/etc/passwd\ndir/two\n755 0:0\n644 0:0\n755 0:0\ncontent")
    assert shell(image, "ls /w /existing /d /d/deep /both /all /glob") == (
        "/all:\nDockerfile\ndir\nnamed\none\n\n/both:\ndeep\nlink\none\ntwo\n\n/d:\ndeep\nlink\ntwo\n\n/d/deep:\nthree\n\n"
        "/existing:\none\n\n/glob:\ntwo\n\n/w:\nrenamed\ntwo\n"
    )


def test_copy_replaces_no_folder_by_a_file(builds: Builds) -> None:
    builds.file("etc")
    builds.file("d/f")
    for line in ("COPY etc /", "COPY etc d/f /"):
        with pytest.raises(BuildFailed, match="line 2: '/etc' is a folder in the image"):
            builds(f"FROM base:1\n{line}\n")
    with pytest.raises(BuildFailed, match=r"line 2: .* is a file in the image"):
        builds("FROM base:1\nCOPY d /etc/passwd\n")
    with pytest.raises(BuildFailed, match="line 2: /etc/passwd is not a folder"):
        builds("FROM base:1\nCOPY etc /etc/passwd/x/y\n")


def test_copy_follows_links_of_the_image_and_keeps_its_folders(builds: Builds) -> None:
    builds.file("root/var/run/pid")
    builds.file("root/tmp/here")
    image = builds(
        "FROM base:1\nCOPY root/var/run/pid /var/run/one\nCOPY root /\nRUN ls -d /tmp/here; stat -c %a /tmp\n"
    )
    assert shell(image, "ls /run; readlink /var/run") == "one\npid\n../run\n"
    assert builds.output == "/tmp/here\n1777\n"


def test_copy_with_owner_and_mode(builds: Builds, tmp_path: Path) -> None:
    builds.file("f")
    image = builds(
        "FROM base:1\nCOPY --chown=app f /a/\nCOPY --chown=7 --chmod=0600 f /b\nCOPY --chown=app:extra f /c\nCOPY f /d\n"
    )
    members = [layer_members(image, number, tmp_path) for number in (1, 2, 3, 4)]
    assert [(m.uid, m.gid) for m in (members[0]["a/f"], members[0]["a"])] == [(1234, 1235)] * 2
    assert (members[1]["b"].uid, members[1]["b"].gid, members[1]["b"].mode) == (7, 7, 0o600)
    assert (members[2]["c"].uid, members[2]["c"].gid) == (1234, 1300)
    assert (members[3]["d"].uid, members[3]["d"].gid) == (0, 0)
    with pytest.raises(BuildFailed, match="line 2: user 'nobody-here'"):
        builds("FROM base:1\nCOPY --chown=nobody-here f /a/\n")


def test_owners_survive_a_later_run(builds: Builds, tmp_path: Path) -> None:
    """Also where the disk has only one owner for all."""
    builds.file("f")
    image = builds("FROM base:1\nCOPY --chown=app f /a/\nRUN touch /a/new; chmod 700 /a/f\n")
    members = layer_members(image, 2, tmp_path)
    assert [(m.uid, m.gid) for m in (members["a"], members["a/f"], members["a/new"])] == [
        (1234, 1235),
        (1234, 1235),
        (0, 0),
    ]


def test_ignored_files_stay_outside(builds: Builds) -> None:
    for name in ("keep", "secret", "dir/a.log", "dir/a", "out/back", "out/not"):
        builds.file(name)
    (builds.context / ".dockerignore").write_text("secret\n**/*.log\nout\n!out/back\n.dockerignore\nDockerfile\n")
    image = builds("FROM base:1\nCOPY . /all/\n")
    assert shell(image, "cd /all; echo * .d* dir/* out/*") == "dir keep out .d* dir/a out/back\n"
    with pytest.raises(DockerfileError, match="line 2: COPY: 'secret'"):
        builds("FROM base:1\nCOPY secret /\n")
    builds.context.joinpath("Dockerfile.dockerignore").write_text("keep\n")
    builds("FROM base:1\nCOPY secret /\n")


def test_nothing_outside_the_context_is_copied(builds: Builds, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    builds.context.mkdir()
    (builds.context / "link").symlink_to("../outside")
    (builds.context / "up").symlink_to("..")
    for source in ("../outside", "link", "up/outside", "up", "/../outside"):
        with pytest.raises(DockerfileError, match="line 2: COPY"):
            builds(f"FROM base:1\nCOPY {source} /x\n")


def test_an_archive_that_add_would_unpack_is_refused_before_anything_runs(builds: Builds) -> None:
    builds.file("plain")
    builds.context.joinpath("a.tar").write_bytes(write_tar(builds.context / "t", {"x": b""}).read_bytes())
    with pytest.raises(DockerfileError, match=r"line 3: ADD of the archive 'a\.tar'"):
        builds("FROM base:1\nRUN echo ran\nADD a.tar /\n")
    assert builds.output == ""
    assert builds.steps == []
    assert shell(builds("FROM base:1\nADD plain /p\nCOPY a.tar /a.tar\n"), "cat /p; ls /a.tar") == "content/a.tar\n"


# ---- stages ----


def test_stages_are_copied_from_and_unused_ones_are_not_built(builds: Builds) -> None:
    image = builds(
        "ARG BASE=base:1\nFROM $BASE AS make\nARG BASE\nRUN echo $BASE > /made; ln -s made /link; chmod 600 /made\n"
        "FROM no-such-image:1 AS unused\nRUN exit 1\n"
        "FROM make AS more\nRUN echo more >> /made\n"
        "FROM scratch\nCOPY --from=base:1 /bin /bin\nCOPY --from=more /made /link /there/\nCOPY --from=0 /ma* /zero\n"
    )
    assert shell(image, "cat /there/made /there/link /zero; stat -c %a /zero; ls /") == (
        "base:1\nmore\nbase:1\nmore\nbase:1\n600\nbin\ndev\netc\nproc\nthere\ntmp\nworkspace\nzero\n"
    )
    assert image.config.env == ()
    target = builds("FROM base:1 AS a\nRUN touch /a\nFROM a\nRUN exit 1\n", target="a", name="target:1")
    assert shell(target, "ls /a") == "/a\n"


def test_a_copied_file_of_a_stage_keeps_its_owner(builds: Builds, tmp_path: Path) -> None:
    builds.file("f")
    image = builds(
        "FROM base:1 AS a\nCOPY --chown=app f /f\nFROM base:1\nCOPY --from=a /f /f\nCOPY --from=a --chown=3:4 /f /g\n"
    )
    kept, given = layer_members(image, 1, tmp_path)["f"], layer_members(image, 2, tmp_path)["g"]
    assert (kept.uid, kept.gid, given.uid, given.gid) == (1234, 1235, 3, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "FROM base:1 AS first\nCOPY --from=later /a /b\nFROM base:1 AS later\nFROM first",
            "line 2: COPY --from=later: the stage is not earlier",
        ),
        ("FROM base:1\nRUN echo ran\nCOPY missing /", "line 3: COPY: 'missing'"),
        ("FROM base:1\nRUN echo ran\nCOPY --from=UPPER@ /a /b", "line 3"),
        ("FROM base:1\nRUN echo ran\nEXPOSE http", "line 3: EXPOSE http"),
        ("FROM --platform=linux/s390x base:1\nRUN echo ran", "line 1: FROM --platform"),
        ("FROM base:1\nRUN echo ran\nRUN --mount=type=bind x", "line 3: RUN --mount is not supported"),
        ("FROM $NOTHING\nRUN echo ran", "line 1: FROM $NOTHING"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_runs(builds: Builds, text: str, message: str) -> None:
    with pytest.raises(ImageError) as caught:
        builds(text)
    assert message in str(caught.value)
    assert builds.steps == []


def test_arguments_of_the_caller(builds: Builds) -> None:
    text = "ARG TAG=0\nFROM base:$TAG\nARG WHO=nobody\nRUN echo $WHO\n"
    builds(text, args={"TAG": "1", "WHO": "me"})
    assert builds.output == "me\n"
    with pytest.raises(DockerfileError, match="no ARG OTHER"):
        builds(text, args={"OTHER": "1"})
    with pytest.raises(SpecError, match="port"):
        builds(text, network=["pypi.example"])
    assert builds.steps == []
    for missing in ("missing", "9" * 5000, "٣"):
        with pytest.raises(DockerfileError, match="no stage"):
            builds(text, target=missing)


# ---- network ----


def test_a_step_reaches_what_was_allowed_and_nothing_else(builds: Builds, tmp_path: Path) -> None:
    make_wheel(tmp_path, "served", "1.0", {})
    with serve_index(tmp_path) as (address, asked), socket.create_server(("127.0.0.1", 0)) as other:
        place = address.removeprefix("http://").removesuffix("/simple")
        fetch = f"FROM base:1\nRUN wget -q -O /page {address}/served/ && cat /page; env | grep -ci http_proxy\n"
        image = builds(fetch, network=[place])
        assert "served-1.0" in builds.output
        assert builds.output.endswith("2\n")
        assert len(asked) == 1
        assert shell(image, "cat /page; cat /etc/resolv.conf; env | grep -ci http_proxy || true").endswith("</a>0\n")
        builds(fetch, network=[place])
        assert builds.cached
        with pytest.raises(BuildFailed):
            builds(f"FROM base:1\nRUN wget -q -T 5 -O - http://127.0.0.1:{other.getsockname()[1]}/\n", network=[place])
        with pytest.raises(BuildFailed, match=r"refused .*other\.example.*--allow"):
            builds("FROM base:1\nRUN nslookup other.example\n", network=[place])
        with pytest.raises(BuildFailed):  # what was cached with a network is no answer without one
            builds(f"FROM base:1\nRUN wget -q -T 5 -O /page {address}/served/\n")
        other.settimeout(0.1)
        with pytest.raises(TimeoutError):
            other.accept()


def test_a_box_from_an_image_has_the_network_of_its_spec(builds: Builds, tmp_path: Path) -> None:
    make_wheel(tmp_path, "served", "1.0", {})
    image = builds("FROM base:1\n")
    with serve_index(tmp_path) as (address, _):
        place = address.removeprefix("http://").removesuffix("/simple")
        assert "served-1.0" in shell(image, f"wget -q -O - {address}/served/", network=Network(allow=[place]))
        assert "nameserver 127.0.0.1" in shell(image, "cat /etc/resolv.conf", network=Network(allow=[place]))


# ---- the shell ----


def test_the_shell_of_a_box_is_that_of_the_image(builds: Builds) -> None:
    image = builds(
        'FROM base:1\nRUN ln -s /bin/busybox /bin/ash || true\nSHELL ["/bin/ash", "-eo", "pipefail", "-c"]\n'
    )
    with Sandbox(Spec(image=image.reference)) as box, box.shell() as stays:
        assert stays.exec("false").exit_code == 1
        assert stays.exec("echo $0").stdout == b"/bin/ash\n"
    other = builds('FROM base:1\nSHELL ["/bin/cat"]\n')
    with Sandbox(Spec(image=other.reference)) as box, box.shell() as stays:
        assert stays.exec("echo $0").stdout == b"sh\n"


# ---- cache ----


def test_a_build_is_repeated_from_the_cache(builds: Builds) -> None:
    builds.file("f")
    text = "FROM base:1\nARG A=1\nWORKDIR /cache\nCOPY f .\nRUN date > when; true\nRUN true\nENV X=1\n"
    first = builds(text)
    os.utime(builds.context / "f", (1, 1))  # times do not count
    again = builds(text, name="again:1")
    assert (again.digest, again.layers) == (first.digest, first.layers)
    assert len(builds.cached) == 4
    assert builds.steps == ["line 1: FROM base:1"]
    assert builds(text, args={"A": "2"}).layers != first.layers
    fresh = builds(text, use_cache=False)
    assert builds.cached == []
    assert len(fresh.layers) == len(first.layers)


@pytest.mark.parametrize("change", ["content", "mode", "name", "command", "before"])
def test_the_cache_notices(builds: Builds, change: str) -> None:
    builds.file("dir/f")
    text = "FROM base:1\nRUN echo CHANGE\nCOPY dir /d\nRUN cp -r /d /copy\n".replace("CHANGE", change)
    builds(text)
    match change:
        case "content":
            builds.file("dir/f", "other")
        case "mode":
            (builds.context / "dir/f").chmod(0o755)
        case "name":
            (builds.context / "dir/f").rename(builds.context / "dir/g")
        case "command":
            text = text.replace("/copy", "/copied")
        case _:
            text = text.replace("RUN echo", "RUN touch /x; echo")
    builds(text)
    expected = {"content": 1, "mode": 1, "name": 1, "command": 2, "before": 0}[change]
    assert len(builds.cached) == expected, builds.steps


def test_a_collected_cache_is_made_again(builds: Builds) -> None:
    text = "FROM base:1 AS a\nRUN touch /more; echo made > /collected\nFROM base:1\nCOPY --from=a /collected /\n"
    image = builds(text)
    assert builds.store.gc().layers >= 1
    again = builds(text)
    assert "RUN touch /more" in builds.steps[1]
    assert shell(again, "cat /collected") == "made\n"
    assert not list((builds.store.folder / "tmp").iterdir())
    assert len(again.layers) == len(image.layers)


# ---- archives ----


def test_an_exported_image_is_imported_again(builds: Builds, tmp_path: Path) -> None:
    builds.file("long/" + "n" * 200, b"x" * 100_000)
    image = builds(
        "FROM base:1\nCOPY long /\xe4\nRUN rm /bin/df; dd if=/dev/zero of=/sparse bs=1 count=1 seek=3000000; ln /sparse /hard\n"
        "ENV A=b\nCMD x\n"
    )
    export_image(image, tmp_path / "one.tar")
    (found,) = builds.store.import_file(tmp_path / "one.tar", name="imported:1")
    assert (found.config.env, found.config.cmd) == (image.config.env, image.config.cmd)
    line = "ls -R /bin /\xe4; cat /\xe4/n*; stat -c '%s %h' /sparse"
    assert shell(found, line) == shell(image, line)
    assert "3000001 2" in shell(found, line)
    export_image(found, tmp_path / "two.tar")
    assert (tmp_path / "two.tar").stat().st_size < 3_000_000


@pytest.mark.registry
def test_skopeo_accepts_the_archive(builds: Builds, tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed: apt-get install skopeo")
    if os.geteuid() != 0:
        pytest.skip("skopeo extracts archives with owners, which needs root")
    export_image(builds("FROM base:1\nRUN touch /x; rm /bin/df\nLABEL a=b\n"), tmp_path / "a.tar")
    for source in (f"oci-archive:{tmp_path}/a.tar", f"docker-archive:{tmp_path}/a.tar"):
        done = subprocess.run(
            ["skopeo", "copy", "--insecure-policy", source, f"dir:{tmp_path}/{source[:3]}"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.root
@pytest.mark.docker
def test_docker_loads_and_runs_the_archive(
    builds: Builds, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = f"harena-build-test:{os.getpid()}"
    builds.file("f", "copied")
    text = (
        "FROM base:1\nCOPY --chown=app f /f\nRUN rm /bin/df; echo run > /r; ln /r /s\nENV A=b\nUSER app\nWORKDIR /w\n"
    )
    export_image(
        builds(text + "CMD cat /f /s; ls -n /f; pwd; echo $A; id -u; ls /bin/df\n", name=name), tmp_path / "a.tar"
    )

    with docker_daemon(tmp_path_factory.mktemp("docker")) as daemon:
        assert name in daemon.docker("load", "-i", str(tmp_path / "a.tar"))
        command = daemon.command("run", "--rm", "--network", "none", name)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    words = ran.stdout.split()
    assert words[0] == "copiedrun", ran
    assert words[3:5] == ["1234", "1235"]
    assert words[-3:] == ["/w", "b", "1234"]
    assert "/bin/df: No such file" in ran.stderr


# ---- the command ----


def command(store: ImageStore, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HARENA_IMAGES": str(store.folder)}
    return subprocess.run(
        [sys.executable, "-m", "harena", "image", *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_command(builds: Builds, tmp_path: Path) -> None:
    builds.file("other", "FROM base:1\nARG A\nRUN printf '\\033[31m%s\\n' $A\nRUN echo 2 > /two\n")
    built = command(
        builds.store, "build", "-f", builds.context / "other", "-t", "cli:1", "--build-arg", "A=red", "--network", "none",
        "--output", tmp_path / "out.tar", builds.context,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("cli:1: sha256:")
    assert "==> line 4: RUN echo 2 > /two" in built.stderr
    assert "[31mred" in built.stderr
    assert "\033" not in built.stderr
    assert tarfile.is_tarfile(tmp_path / "out.tar")
    assert command(builds.store, "export", "cli:1", tmp_path / "again.tar").returncode == 0
    failed = command(builds.store, "build", "-f", builds.context / "missing", builds.context)
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
