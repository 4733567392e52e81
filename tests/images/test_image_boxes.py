"""Boxes from images: what works in them, and what root in one cannot reach. Also run as an ordinary user."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harena import IsolationUnavailable, Limits, Mount, Sandbox, SandboxPool, Spec, SpecError, Verdict
from harena.backends.local.launch import image as images
from harena.errors import Unsupported
from harena.images import ImageNotFound, ImageStore
from harena.images.manifest import ImageConfig
from harena.images.unpack.ids import Ids
from harena.sandbox.backend import Conversation
from harena.testing import forget_what_was_found
from support.roots import busybox_entries, compiled, python_entries, write_tar

pytestmark = pytest.mark.services

MakeBox = Callable[..., Sandbox]
FULL = Ids.of_host().kind == "full"


def test_ids_are_those_that_were_granted() -> None:
    assert os.environ.get("HARENA_TEST_IDS") in (None, Ids.of_host().kind)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", str(folder / "store"))
        store = ImageStore.default()
        small = write_tar(folder / "small.tar", busybox_entries())
        store.import_file(small, name="small:1", is_root=True)
        yield store


@pytest.fixture(scope="module")
def python_image(store: ImageStore, tmp_path_factory: pytest.TempPathFactory) -> str:
    tar = write_tar(tmp_path_factory.mktemp("python") / "root.tar", python_entries())
    return store.import_file(tar, name="python:1", is_root=True)[0].reference


@pytest.fixture
def make_box(store: ImageStore) -> Iterator[MakeBox]:
    with ExitStack() as boxes:

        def make(image: str = "small:1", limits: Limits | None = None, **spec: Any) -> Sandbox:
            return boxes.enter_context(Sandbox(Spec(image=image, **spec), limits=limits))

        yield make


@pytest.fixture
def import_root(store: ImageStore, tmp_path: Path) -> Callable[..., str]:
    """Makes an image of a busybox and further files."""

    def make(name: str, files: dict[str, Any]) -> str:
        tar = write_tar(tmp_path / "root.tar", busybox_entries() | files)
        return store.import_file(tar, name=f"{name}:1", is_root=True)[0].reference

    return make


@pytest.fixture
def box(make_box: MakeBox) -> Sandbox:
    return make_box()


def shell(box: Sandbox, line: str) -> str:
    result = box.exec(["sh", "-c", line])
    assert result.ok, (line, result)
    return result.stdout.decode()


def refused(box: Sandbox, line: str) -> None:
    result = box.exec(["sh", "-c", line])
    assert result.exit_code not in (0, None), (line, result)


# ---- what works ----


def test_root_is_writable_and_the_boxs_own(make_box: MakeBox) -> None:
    one, other = make_box(), make_box()
    shell(one, "echo changed > /etc/passwd; mkdir /app; rm /bin/df; echo new > /app/file")
    assert shell(one, "cat /etc/passwd /app/file; ls /bin") == shell(one, "echo changed; echo new; ls /bin")
    assert "df" not in shell(one, "ls /bin").split()
    assert "df" in shell(other, "ls /bin").split()
    assert "root" in shell(other, "cat /etc/passwd")
    refused(other, "ls /app")


def test_layers_on_disk_stay_as_they_are(store: ImageStore, box: Sandbox) -> None:
    found = store.find("small:1")
    assert found is not None
    with found.lease() as lease:
        path = Path(lease.layers[0], "etc/passwd")
        before = path.read_bytes(), path.stat()
        shell(box, "echo x > /etc/passwd; chmod 600 /etc/passwd; chown 1234 /etc/passwd; rm -r /srv")
        after = path.stat()
        assert path.read_bytes() == before[0]
        assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (
            before[1].st_mode,
            before[1].st_uid,
            before[1].st_mtime_ns,
        )
        assert Path(lease.layers[0], "srv/app").is_dir()


def test_box_says_which_ids_it_has(box: Sandbox) -> None:
    result = box.exec(["id", "-u"])
    assert result.stdout == b"0\n"
    assert result.ids == ("full" if FULL else "single")


def test_owners_are_kept_or_pretended(box: Sandbox) -> None:
    shown = shell(box, "touch /x && chown 1234:1235 /x && stat -c %u:%g /x").strip()
    assert shown == ("1234:1235" if FULL else "0:0")


def test_user_of_the_spec_and_of_the_image(make_box: MakeBox) -> None:
    box = make_box(user="app")
    assert shell(box, "id -u; id -g; echo $HOME").split() == ["1234", "1235", "/srv/app"]
    shell(box, "echo mine > /workspace/file")
    assert box.read("file") == b"mine\n"
    if FULL:
        assert "1300" in shell(box, "id -G").split()
        refused(box, "echo x > /etc/passwd")
        assert "CapEff:\t0000000000000000" in shell(box, "cat /proc/self/status")
    with pytest.raises(SpecError, match="no such user"):
        make_box(user="nobody-has-this-name")


def test_environment_and_folder_of_the_image(store: ImageStore) -> None:
    found = store.find("small:1")
    assert found is not None
    with found.lease() as lease:
        config = ImageConfig(env=(("PATH", "/bin"), ("A", "of the image"), ("B", "b")), cwd="/srv/app", user="app")
        root = images.make(Spec(image="small:1", env={"B": "of the spec"}), lease.layers, store.layers.ids, config)
    assert (root.env["A"], root.env["B"], root.env["HOME"], root.cwd) == (
        "of the image",
        "of the spec",
        "/srv/app",
        "/srv/app",
    )
    assert (root.user.uid, root.user.gid, root.user.groups) == (1234, 1235, (1300,))


def test_a_spec_may_demand_all_ids(store: ImageStore) -> None:
    found = store.find("small:1")
    assert found is not None
    with found.lease() as lease, pytest.raises(IsolationUnavailable, match="one user id"):
        images.make(Spec(image="small:1", ids="full"), lease.layers, Ids.single(), ImageConfig())


def test_files_snapshots_and_forks_work_without_python(box: Sandbox) -> None:
    box.write("/etc/deep/file", b"1")
    box.write("note", b"before")
    snapshot = box.snapshot()
    box.write("note", b"after")
    box.restore(snapshot)
    shell(box, "rm -r /srv; mkdir /srv; echo 5 > /tmp/t; ln -s nowhere /link; chmod 4711 /etc/deep/file")
    one, other = box.fork(2)
    with one, other:
        assert shell(one, "cat /etc/deep/file; ls /srv; cat /tmp/t; readlink /link; cat /workspace/note") == (
            "15\nnowhere\nbefore"
        )
        assert shell(one, "stat -c %a /etc/deep/file") == "4711\n"
        shell(one, "echo one > /etc/deep/file; echo x > /new")
        assert (box.read("/etc/deep/file"), other.read("/etc/deep/file")) == (b"1", b"1")
        refused(other, "ls /new")
        (grandchild,) = one.fork(1)
        with grandchild:
            assert grandchild.read("/etc/deep/file") == b"one\n"
            assert shell(grandchild, "cat /new; ls /srv") == "x\n"
    with pytest.raises(Unsupported, match=r"no Python 3\.8"):
        box.run("1")
    with pytest.raises(Unsupported, match=r"no Python 3\.8"):
        box.call("def f(): pass", "f")


def test_image_of_one_static_program(store: ImageStore, make_box: MakeBox, tmp_path: Path) -> None:
    program = compiled(
        tmp_path, '#include <unistd.h>\nint main(void) { return write(1, "alone\\n", 6) != 6; }', "-static"
    )
    store.import_file(write_tar(tmp_path / "one.tar", {"program": program}), name="one:1", is_root=True)
    box = make_box("one:1")
    assert box.exec(["/program"]).stdout == b"alone\n"
    box.write("/etc/x", b"data")
    assert box.read("/etc/x") == b"data"
    assert not box.exec(["sh", "-c", "true"]).started
    (fork,) = box.fork(1)
    with fork:
        assert fork.read("/etc/x") == b"data"
        assert fork.exec(["/program"]).stdout == b"alone\n"


def test_image_with_musl(store: ImageStore, make_box: MakeBox, tmp_path: Path) -> None:
    source = (
        '#include <stdio.h>\nint main(void) { FILE *f = fopen("/etc/x", "w"); fputs("musl", f); return fclose(f); }'
    )
    program = compiled(tmp_path, source, compiler="musl-gcc")
    loader = Path(f"/lib/ld-musl-{os.uname().machine}.so.1")
    entries = {"program": program, "lib": None, f"lib/{loader.name}": Path(os.path.realpath(loader)), "etc": None}
    store.import_file(write_tar(tmp_path / "musl.tar", entries), name="musl:1", is_root=True)
    box = make_box("musl:1")
    assert box.exec(["/program"]).ok
    assert box.read("/etc/x") == b"musl"
    assert len(box.sha256("/etc/x")) == 64


def test_python_of_the_image(python_image: str, make_box: MakeBox) -> None:
    box = make_box(python_image)
    assert box.run("x = 41\nimport os; open('/etc/by-run', 'w').write(str(os.getuid()))").ok
    assert box.run("x += 1; print(x)").stdout == b"42\n"
    assert box.read("/etc/by-run") == b"0"
    assert box.call("def f(a): return [a, __import__('os').path.exists('/etc/by-run')]", "f", [1]).value == [1, True]
    (fork,) = box.fork(1)
    with fork:
        assert (
            fork.run("x += 1; print(x, open('/etc/by-run').read()); open('/etc/by-run', 'w').write('f')").stdout
            == b"43 0\n"
        )
        assert (fork.read("/etc/by-run"), box.read("/etc/by-run")) == (b"f", b"0")
        assert fork.exec(["cat", "/etc/by-run"]).stdout == b"f"
        assert box.run("print(x)").stdout == b"42\n"


def test_programs_get_the_layers_with_nothing_written(python_image: str) -> None:
    write = "import os\nprint(os.path.exists('/etc/left'), os.listdir('/workspace'))\nopen('/etc/left', 'w').close()"
    with SandboxPool(Spec(image=python_image), warm=1, max_live=1) as pool:
        results = pool.map([write] * 4)
    assert [result.stdout for result in results] == [b"False []\n"] * 4, results


def test_what_a_box_may_write_is_limited(make_box: MakeBox) -> None:
    box = make_box(root_mb=4)
    refused(box, "dd if=/dev/zero of=/big bs=1M count=8 2>/dev/null")
    assert shell(box, "rm /big; dd if=/dev/zero of=/small bs=1M count=2 2>/dev/null; echo fits") == "fits\n"


def test_hosts_and_names_are_the_boxs_own(make_box: MakeBox) -> None:
    box = make_box(hostname="inside")
    assert "127.0.1.1 inside" in shell(box, "cat /etc/hosts")
    assert shell(box, "cat /etc/hostname") == "inside\n"
    assert shell(box, "cat /etc/resolv.conf") == ""


def test_box_goes_on_apart_from_its_forks(box: Sandbox) -> None:
    """What it had changed is a layer that it shares with them, and none can change it for another."""
    shell(box, "mkdir /big; for i in 1 2 3; do echo $i > /big/$i; done; rm -r /srv")
    box.write("note", b"kept")
    (first,) = box.fork(1)
    with first:
        shell(box, "rm /big/1; echo new > /big/2; echo 4 > /big/4; mkdir /srv")
        shell(first, "echo other > /big/3; rm -r /bin/df")
        assert shell(box, "cat /big/*; ls /srv; cat /workspace/note") == "new\n3\n4\nkept"
        assert shell(first, "cat /big/*; cat /workspace/note") == "1\n2\nother\nkept"
        refused(first, "ls /srv")
        assert "df" in shell(box, "ls /bin").split()
        (second,) = box.fork(1)
        (nested,) = first.fork(1)
        with second, nested:
            assert shell(second, "cat /big/*; ls /srv") == "new\n3\n4\n"
            assert shell(nested, "cat /big/*") == "1\n2\nother\n"
            box.write("/big/5", b"5")
            assert (box.read("/big/5"), box.read("note")) == (b"5", b"kept")
            refused(second, "cat /big/5")
        process = box.start(["sh", "-c", "while true; do echo x > /big/loop; sleep 0.01; done"])
        try:
            shell(box, "until test -e /big/loop; do sleep 0.01; done")
            (copied,) = box.fork(1)  # what runs keeps writing, so this one is a copy
            with copied:
                assert copied.read("/big/5") == b"5"
                shell(copied, "rm /big/loop; sleep 0.1; test ! -e /big/loop")
        finally:
            process.kill()
            process.wait()
    assert shell(box, "cat /big/2") == "new\n"


def test_a_box_can_be_forked_often(box: Sandbox) -> None:
    for number in range(80):
        shell(box, f"echo {number} > /number")
        (fork,) = box.fork(1)
        with fork:
            assert fork.exec(["cat", "/number"]).stdout == f"{number}\n".encode()
    assert shell(box, "cat /number") == "79\n"
    forks = box.fork(30)
    for fork in forks:
        fork.close()


def test_fork_has_a_network_of_its_own(box: Sandbox) -> None:
    look = "readlink /proc/self/ns/net"
    (fork,) = box.fork(1)
    with fork:
        assert shell(box, look) != shell(fork, look)
        assert shell(fork, "cat /proc/net/dev").count(":") == 1  # loopback alone


# ---- what root in a box cannot do ----


def test_links_of_an_image_do_not_lead_the_box_elsewhere(store: ImageStore, make_box: MakeBox, tmp_path: Path) -> None:
    """Mount points and generated files, and the targets of mounts, are resolved inside the image."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("shown")
    entries = busybox_entries() | {
        "tmp": str(outside),
        "workspace": str(outside),
        "proc": str(outside),
        "dev": str(outside),
        ".harena": str(outside),
        "data": str(outside),
        "up": "../../../../../../../../" + str(outside),
        "etc/hosts": str(outside / "hosts"),
        "etc/resolv.conf": str(outside / "resolv.conf"),
    }
    store.import_file(write_tar(tmp_path / "links.tar", entries), name="links:1", is_root=True)
    for target in ("/srv/mounted", "/data/mounted", "/up/mounted"):
        try:
            box = make_box("links:1", mounts=(Mount(source=str(tmp_path / "shown"), target=target),))
        except IsolationUnavailable:
            assert target != "/srv/mounted"
            continue
        assert box.exec(["cat", f"{target}/file"]).stdout == b"shown"
        assert "localhost" in shell(box, "cat /etc/hosts")
        shell(box, "touch /tmp/x /workspace/y && test -e /proc/self/status && test -c /dev/null")
    assert list(outside.iterdir()) == []


def test_our_own_python_reads_nothing_that_a_guest_wrote(python_image: str, make_box: MakeBox) -> None:
    """The file server is forked from a process that is not confined: it must never load a guest's code."""
    box = make_box(python_image)
    trap = "import os\\nopen('/workspace/trapped', 'w').write(repr(os.getpid()))\\n"
    shell(
        box,
        "echo /workspace/evil.so > /etc/ld.so.preload; "
        f"for name in sitecustomize usercustomize os hashlib shutil json; do "
        f'printf "{trap}" > /usr/lib/python3/$name.py 2>/dev/null; printf "{trap}" > /workspace/$name.py; '
        'for folder in /usr/lib/python3.*; do printf "' + trap + '" > $folder/$name.py; done; done; '
        "for file in /lib64/ld-linux* /usr/bin/python3*; do printf '#!/bin/sh\\necho > /workspace/trapped\\n' > $file; done",
    )
    box.write("a", b"1")
    assert (box.read("a"), box.sha256("a")[:4]) == (b"1", "6b86")
    box.remove("a")
    names = {entry.path for entry in box.list()}
    assert "trapped" not in names


@pytest.mark.parametrize(
    "line",
    [
        "mount -t tmpfs none /srv",
        "umount /proc",
        "chroot / /bin/true",
        "echo 1 > /proc/sys/kernel/shmmax",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo 0 > /proc/self/oom_score_adj",
        "echo x > /.harena/guest/start.py",
        "rm /.harena/init",
        "mv /.harena /elsewhere",
        "rmdir /proc",
        "mv /workspace /elsewhere",
        "touch /dev/new",
        "ls /proc/1/root/",
        "readlink /proc/1/fd/3",
        "cat /proc/1/fd/3",
        "cat /proc/1/maps",
        "cat /proc/1/environ",
        "unshare -U true",
        "hostname other",
        "swapon /srv",
        "nice -n -5 true",
        "sysctl -w net.ipv4.ip_forward=1",
        "ip link set lo down",
        "insmod /x",
        "dmesg",
    ],
)
def test_root_in_the_box_is_refused(line: str, shared: Sandbox) -> None:
    refused(shared, f"/bin/busybox {line}" if not line.startswith("echo") else line)


@pytest.fixture(scope="module")
def shared(store: ImageStore) -> Iterator[Sandbox]:
    with Sandbox(image="small:1") as box:
        yield box


def test_capabilities_are_those_of_a_containers_root(shared: Sandbox) -> None:
    status = dict(line.split(":", 1) for line in shell(shared, "cat /proc/self/status").splitlines())
    most = images.CAPABILITIES if FULL else {name: images.CAPABILITIES[name] for name in images.OF_ONE_ID}
    wanted = sum(1 << number for number in most.values())
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert int(status[name], 16) == wanted
    assert int(status["CapAmb"], 16) == int(status["CapInh"], 16) == 0
    for forbidden in (2, 10, 12, 13, 14, 16, 18, 19, 21, 22, 23, 24, 25, 27, 38, 39, 40):
        assert not wanted >> forbidden & 1
    assert status["NoNewPrivs"].strip() == "1"


def test_mounter_can_mount_and_nothing_else(shared: Sandbox) -> None:
    """Beside init there is one process with a right in the box: it shares no memory with jobs and holds one socket."""
    found: list[Path] = []
    for folder in Path("/proc").iterdir():
        try:
            status = (folder / "status").read_text() if folder.name.isdigit() else ""
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if fields.get("Name") != "harena-box" or fields.get("NSpid", "").split()[1:] != ["2"]:
            continue
        if is_descendant(int(folder.name), os.getpid()):
            found.append(folder)
            assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapBnd"], 16) == 1 << 21
            assert fields["NoNewPrivs"] == "1"
            assert os.listdir(folder / "fd") == ["0"]
            assert os.readlink(folder / "ns/user") != os.readlink("/proc/self/ns/user")
    assert found


def is_descendant(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == ancestor


def test_devices_cannot_be_made(shared: Sandbox) -> None:
    result = shared.exec(["mknod", "/dev-sda", "b", "8", "0"])
    assert result.ok != FULL
    refused(shared, "ls /dev-sda")


def test_way_out_of_the_root_ends_in_the_image(shared: Sandbox) -> None:
    up = "/".join([".."] * 30)
    for start in ("/", "/proc/self/root/", "/proc/self/cwd/"):
        assert shell(shared, f"ls {start}{up}").split() == shell(shared, "ls /").split()
    refused(shared, f"ls {'/'.join(['..'] * 30)}/.harena/layers")
    refused(shared, "ls /.harena/upper /.harena/root /.harena/layers")


def test_set_user_id_bits_stay_off_writable_mounts(make_box: MakeBox, tmp_path: Path) -> None:
    """A file of the host with such a bit, or with capabilities, would give a guest's code the rights of its owner."""
    shared = tmp_path / "shared"
    shared.mkdir()
    if os.geteuid() == 0:
        shared.chmod(0o755)
    box = make_box(mounts=(Mount(source=str(shared), target="/shared", writable=True),))
    shell(box, "cp /bin/busybox /shared/tool")
    refused(box, "chmod 4755 /shared/tool")
    refused(box, "chmod 2755 /shared/tool")
    refused(box, "cd /shared && mkdir -m 2777 folder")
    status = dict(line.split(":", 1) for line in shell(box, "cat /proc/self/status").splitlines())
    assert not int(status["CapPrm"], 16) >> images.CAPABILITIES["SETFCAP"] & 1
    info = (shared / "tool").stat()
    assert not info.st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert info.st_uid == os.geteuid()
    shell(make_box(), "cp /bin/busybox /tool && chmod 4755 /tool")  # where nobody outside sees it


HOP = """
import os, time
made = 0
for user in range(200, 300):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        os.setresuid(user, user, user)
        time.sleep(30)
        os._exit(0)
    made += 1
time.sleep(2)
print(made)
"""


@pytest.mark.parametrize("cgroups", ["", "off"])
def test_process_limit_holds_for_all_users_together(
    cgroups: str, python_image: str, make_box: MakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Becoming many users must not give a guest as many processes for each of them."""
    monkeypatch.setenv("HARENA_CGROUPS", cgroups)
    forget_what_was_found()
    try:
        box = make_box(python_image, limits=Limits(processes=10, wall_s=20))
        result = box.exec(["python3", "-c", HOP])
    finally:
        monkeypatch.undo()
        forget_what_was_found()
    # Without a cgroup the limit of one user may stop it first, which counts no init: one more fits.
    assert result.verdict is Verdict.PROCESSES or int(result.stdout) <= 10, result


# ---- conversations with a command ----


def heard(talk: Conversation, until: bytes) -> bytes:
    data, end = b"", time.monotonic() + 60
    while until not in data:
        assert time.monotonic() < end, data
        part = talk.receive(1)
        assert part != b"", data
        data += part or b""
        talk.read_log()
    return data


def test_a_command_converses_on_fresh_files(box: Sandbox) -> None:
    shell(box, "touch /workspace/kept /etc/kept")
    line = "ls /workspace /etc; touch /workspace/left /etc/left; echo end; read word; echo heard $word"
    for word in (b"one", b"two"):
        talk = box.converse_with(["sh", "-c", line], cpus=os.sched_getaffinity(0)).met()
        seen = heard(talk, b"end\n")
        assert b"kept" not in seen
        assert b"left" not in seen
        talk.send(word + b"\n")
        assert heard(talk, b"\n") == b"heard " + word + b"\n"
        assert talk.end(30).verdict is Verdict.OK
    assert "left" not in shell(box, "ls /workspace /etc")


def test_a_command_that_converses_is_pinned_before_it_runs(box: Sandbox) -> None:
    one = max(os.sched_getaffinity(0))
    line = "grep Cpus_allowed_list /proc/self/status; (sleep 1000 &); echo end; read word"
    talk = box.converse_with(["sh", "-c", line], cpus={one}).met()
    assert heard(talk, b"end\n").split() == [b"Cpus_allowed_list:", str(one).encode(), b"end"]
    others = talk.others()  # type: ignore[attr-defined]
    assert others
    assert all(os.sched_getaffinity(pid) == {one} for pid in others)
    talk.end()


def test_the_process_that_is_timed_is_the_command_itself(box: Sandbox) -> None:
    """Whatever it starts first, and whoever writes first."""
    talk = box.converse_with(["sh", "-c", "(echo child) & wait; while :; do :; done"], cpus={0}).met()
    assert heard(talk, b"child\n") == b"child\n"
    before = talk.cpu_ns()
    time.sleep(0.3)
    assert talk.cpu_ns() - before > 10_000_000
    talk.freeze()
    time.sleep(0.05)
    stopped = talk.cpu_ns()
    time.sleep(0.2)
    assert talk.cpu_ns() - stopped < 5_000_000
    assert talk.end().detail == "the process was ended by the host"


def test_a_command_that_converses_has_no_other_descriptor(box: Sandbox) -> None:
    talk = box.converse_with(["sh", "-c", "exec ls /proc/self/fd; echo end"], cpus={0}).met()
    assert heard(talk, b"2\n").split()[:3] == [b"0", b"1", b"2"]
    assert set(heard_rest(talk).split()) <= {b"3"}, "its own, of the folder that it lists"


def heard_rest(talk: Conversation) -> bytes:
    data, end = b"", time.monotonic() + 60
    while (part := talk.receive(1)) != b"":
        assert time.monotonic() < end
        data += part or b""
    return data


@pytest.mark.parametrize("command", ["nowhere", "/bin"])
def test_a_conversation_with_no_command_says_so(box: Sandbox, command: str) -> None:
    talk = box.converse_with([command], cpus={0}).met()
    assert heard_rest(talk) == b""
    result = talk.end(30)
    assert not result.started
    assert "could not be started" in result.detail


def test_a_box_without_an_image_has_no_such_conversation() -> None:
    with Sandbox() as box, pytest.raises(Unsupported, match="image"):
        box.converse_with(["true"], cpus={0})


def test_an_image_that_is_not_stored_is_not_pulled_where_that_is_forbidden(store: ImageStore) -> None:
    with pytest.raises(ImageNotFound, match=r"harena image pull localhost:1/nothing:1"):
        Sandbox(Spec(image="localhost:1/nothing:1", pull=False))
    with pytest.raises(SpecError, match="pull"):
        Spec(pull=False)


# ---- what an image says about itself ----

HUGE = "9" * 5000


@pytest.mark.parametrize(
    "answer",
    [
        f"{HUGE}.1\\n/bin/sh",
        f"3.{HUGE}\\n/bin/sh",
        "3.12\\n/bin/sh\\0-B\\0extra\\0words",
        "3.12\\n/bin/sh\\nmore",
        "3.12\\nsh",
        "3.12.1.1\\n/" + "x" * 5000,
        "٣.٩\\n/bin/sh",
    ],
)
def test_python_of_an_image_that_lies_about_itself_is_refused(
    make_box: MakeBox, import_root: Callable[..., str], answer: str
) -> None:
    """What it says becomes a part of the box's configuration, whose words end with a zero byte."""
    script = f"#!/bin/sh\nprintf '{answer}\\n'\n".encode()
    box = make_box(import_root("liar", {"bin/python3": script}))
    with pytest.raises(Unsupported, match=r"no Python 3\.8"):
        box.run("print(1)")
    assert shell(box, "echo hi") == "hi\n"


@pytest.mark.parametrize(
    ("passwd", "group"),
    [
        (f"app:x:{HUGE}:0::/:/bin/sh\n", ""),
        (f"app:x:7:{HUGE}::/:/bin/sh\n", ""),
        ("app:x:٧:7::/:/bin/sh\n", ""),
        ("app:x:-7:7::/:/bin/sh\n", ""),
        ("app:x:4294967296:0::/:/bin/sh\n", ""),
    ],
)
def test_users_of_an_image_with_strange_numbers_are_refused(
    make_box: MakeBox, import_root: Callable[..., str], passwd: str, group: str
) -> None:
    image = import_root("users", {"etc/passwd": passwd.encode(), "etc/group": group.encode()})
    with pytest.raises(SpecError, match="user"):
        make_box(image, user="app")
    assert shell(make_box(image, user="0"), "id -u") == "0\n"


def test_groups_of_an_image_with_strange_numbers_are_left_out(
    make_box: MakeBox, import_root: Callable[..., str]
) -> None:
    group = f"one:x:{HUGE}:app\ntwo:x:4294967296:app\nthree:x:33:app\n"
    image = import_root("groups", {"etc/passwd": b"app:x:7:7::/:/bin/sh\n", "etc/group": group.encode()})
    assert shell(make_box(image, user="app"), "id -u") == "7\n"
    for wanted in ("app:one", "app:two", f"app:{HUGE[:250]}", HUGE[:250]):
        with pytest.raises(SpecError):
            make_box(image, user=wanted)


def test_home_of_an_image_adds_no_words_to_the_configuration(
    make_box: MakeBox, import_root: Callable[..., str]
) -> None:
    passwd = b"root:x:0:0::/ho\0PATH=/evil\0X=1:/bin/sh\n"
    box = make_box(import_root("home", {"etc/passwd": passwd}))
    assert shell(box, "echo $HOME $X; env | grep -c ^PATH=") == "/\n1\n"
