"""Boxes of the restricted tier: what they show, what they refuse, and that nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import IsolationUnavailable, Limits, Mount, Sandbox, SandboxPool, Spec, SpecError, Verdict
from harena.backends.local import restricted
from harena.backends.local.launch import registry
from harena.errors import BoxFileError, Unsupported
from harena.sandbox import backend

RESTRICTED = Spec(isolation="restricted", workspace_mb=8)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        box = Sandbox(RESTRICTED)
    except IsolationUnavailable as error:
        pytest.skip(f"host: {error}")
    with box:
        yield box


def test_every_result_names_the_tier(box: Sandbox) -> None:
    assert box.isolation == "restricted"
    assert box.exec(["true"]).isolation == "restricted"
    assert box.run("1").isolation == "restricted"
    assert box.call("def f():\n    return 1", "f").isolation == "restricted"
    with box.start(["true"]) as process:
        assert process.wait(10).isolation == "restricted"
    with SandboxPool(RESTRICTED, warm=1, max_live=1) as pool:
        assert [result.isolation for result in pool.map(["print(1)", "1/0"])] == ["restricted"] * 2
    with Sandbox(Spec(isolation="full")) as full:
        assert full.exec(["true"]).isolation == "full"


def test_the_paths_of_the_api_are_the_boxs_folders(box: Sandbox) -> None:
    box.write("/workspace/a/b", b"one")
    box.write("/tmp/c", b"two")
    result = box.exec(["sh", "-c", "cat a/b $TMPDIR/c && echo && pwd && echo $HOME"])
    assert result.stdout.splitlines()[0] == b"onetwo"
    folder = result.stdout.splitlines()[1].decode()
    assert result.stdout.splitlines()[2].decode() == folder != "/workspace"
    assert box.exec(["pwd"], cwd="/workspace/a").stdout.decode().strip() == f"{folder}/a"
    assert box.read("a/b") == b"one"


@pytest.mark.parametrize(
    "spec",
    [
        {"rootfs": "/"},
        {"allow": ("ptrace",)},
        {"hostname": "other"},
        {"mounts": (Mount(source="/usr/share", target="/data"),)},
        {"mounts": (Mount(source="/usr/share", target="/usr/share", writable=True),)},
    ],
)
def test_what_the_tier_cannot_do_is_refused_by_name(spec: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="full isolation tier"):
        Sandbox(Spec(isolation="restricted", **spec))  # pyright: ignore


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(SpecError, match="there is full, restricted, best"):
        Spec(isolation="none")


def test_capabilities_say_what_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    full = backend.load("local").capabilities()
    assert full.isolation == "full"
    assert not full.not_covered
    monkeypatch.setenv("HARENA_ISOLATION", "restricted")
    found = backend.load("local").capabilities()
    assert found.isolation == "restricted"
    assert found.not_covered
    assert not found.forks
    assert Spec().isolation == "restricted"


def folders() -> list[str]:
    return [str(path) for path in Path("/tmp").glob("harena-box-*")]


def test_a_closed_box_leaves_nothing(tmp_path: Path) -> None:
    box = Sandbox(RESTRICTED)
    folder = box.exec(["pwd"]).stdout.decode().strip().removesuffix("/workspace")
    # Files that their owner shut, and folders too deep for a path.
    box.exec(["sh", "-c", "mkdir -p a/b && echo x > a/b/c && chmod 000 a/b a"])
    box.run("import os\nfor i in range(3000):\n    os.mkdir('deep'); os.chdir('deep')")
    daemons = box.start(["sh", "-c", "setsid sleep 1234.5 & setsid sleep 1234.5 & exit 0"])
    one = box.start(["sleep", "1234.5"])
    assert os.path.isdir(folder)
    box.close()
    daemons.close()
    one.close()
    assert not os.path.exists(folder)
    assert not subprocess.run(["pgrep", "-f", "^sleep 1234.5"], capture_output=True).stdout


@pytest.mark.parametrize("victim", ["host", "loop"])
def test_a_killed_host_or_loop_leaves_nothing(victim: str) -> None:
    script = (
        "import sys, time\nfrom harena import Sandbox, Spec\n"
        "box = Sandbox(Spec(isolation='restricted'))\n"
        "print(box.exec(['pwd']).stdout.decode().strip(), flush=True)\n"
        "box.start(['sh', '-c', 'setsid sleep 2345.6 & setsid sleep 2345.6 & exec sleep 2345.6'])\n"
        "time.sleep(0.3)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    folder = host.stdout.readline().strip().removesuffix("/workspace")
    assert host.stdout.readline() == "ready\n"
    assert subprocess.run(["pgrep", "-f", "^sleep 2345.6"], capture_output=True).stdout
    if victim == "loop":
        keeper = subprocess.run(["pgrep", "-P", str(host.pid)], capture_output=True, text=True).stdout.split()[0]
        loop = subprocess.run(["pgrep", "-P", keeper], capture_output=True, text=True).stdout.split()[0]
        os.kill(int(loop), 9)
    else:
        host.kill()
    end = time.monotonic() + 10
    while time.monotonic() < end and (
        os.path.exists(folder) or subprocess.run(["pgrep", "-f", "^sleep 2345.6"], capture_output=True).stdout
    ):
        time.sleep(0.05)
    assert not os.path.exists(folder)
    assert not subprocess.run(["pgrep", "-f", "^sleep 2345.6"], capture_output=True).stdout
    host.kill()
    host.wait()
    host.stdout.close()


def test_what_a_killed_host_and_keeper_leave_is_swept() -> None:
    script = (
        "import time\nfrom harena import Sandbox, Spec\nbox = Sandbox(Spec(isolation='restricted'))\n"
        "box.start(['sh', '-c', 'setsid sleep 6789.1 & exec sleep 6789.1'])\n"
        "print(box.exec(['pwd']).stdout.decode().strip(), flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        folder = host.stdout.readline().strip().removesuffix("/workspace")
        [keeper] = children_of(host.pid)
        os.kill(host.pid, 19)  # neither may see the other end first
        os.kill(keeper, 9)
        host.kill()
    end = time.monotonic() + 10
    while numbers_of("^sleep 6789.1") and time.monotonic() < end:
        time.sleep(0.05)
    assert not numbers_of("^sleep 6789.1"), "each process ends with the one above it"
    registry.sweep()
    assert not os.path.exists(folder)


def children_of(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def numbers_of(pattern: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False).stdout
    return [*map(int, found.split())]


def test_files_beyond_the_workspace_end_the_execution() -> None:
    many = "for i in range(100):\n    open(f'big{i}', 'wb').write(bytes(1 << 20))\nimport time\ntime.sleep(20)"
    with Sandbox(RESTRICTED) as box:
        result = box.exec(["python3", "-c", many], limits=Limits(wall_s=15))
        assert result.verdict is Verdict.SIGNAL
        assert "workspace_mb" in result.detail
        # What comes next can read and remove, and write nothing until there is room.
        assert b"too large" in box.exec(["python3", "-c", "open('more', 'wb', 0).write(b'x')"]).stderr
        assert box.exec(["sh", "-c", "rm big*"]).ok
        box.exec(["sleep", "0.4"])
        assert box.exec(["sh", "-c", "echo x > more && cat more"]).stdout == b"x\n"
        result = box.exec(["python3", "-c", "open('big', 'wb').write(bytes(100 << 20))"])
        assert result.verdict is Verdict.EXIT
        assert b"File too large" in result.stderr
        box.remove("big")
        with pytest.raises(BoxFileError, match="space"):
            box.write("big", bytes(9 << 20))
        assert "big" not in [file.path for file in box.list()]


# ---- attacks that need two boxes, or a look from outside ----


REACH = """
import os
def tried(action, *args):
    try:
        return repr(action(*args))
    except OSError as error:
        return type(error).__name__
print(tried(os.listdir, FOLDER), tried(open, FOLDER + "/secret"), tried(open, FOLDER + "/planted", "w"))
for pid in PIDS:
    print(tried(os.kill, pid, 9), tried(open, f"/proc/{pid}/cmdline"), tried(os.listdir, f"/proc/{pid}/fd"))
"""


def test_boxes_do_not_reach_each_other(box: Sandbox) -> None:
    with Sandbox(RESTRICTED) as other, other.start(["sleep", "5678.9"]) as victim:
        other.write("secret", b"42")
        folder = other.exec(["pwd"]).stdout.decode().strip()
        pids = numbers_of("^sleep 5678.9")
        assert pids
        source = f"FOLDER, PIDS = {folder!r}, {pids}\n{REACH}"
        called = box.call(f"def f():\n    exec({source!r}, {{}})", "f")
        for result in (box.exec(["python3", "-c", source]), box.run(source), called):
            assert set(result.stdout.split()) == {b"PermissionError"}, result
        assert not victim.ended


OTHERS = """
import os, resource
def refused(action, *args):
    try:
        action(*args)
    except PermissionError:
        return
    print("not refused", action, args)
refused(os.kill, HOST, 0)
refused(os.sched_setaffinity, HOST, {0})
refused(os.setpriority, os.PRIO_PROCESS, HOST, 19)
refused(os.setpriority, os.PRIO_USER, os.getuid(), 19)
refused(resource.prlimit, HOST, resource.RLIMIT_NOFILE)
refused(os.sched_setscheduler, HOST, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, max(5, os.getpriority(os.PRIO_PROCESS, 0)))
print("done")
"""


def test_guests_cannot_touch_processes_of_the_host(box: Sandbox) -> None:
    source = f"HOST = {os.getpid()}\n{OTHERS}"
    for result in (box.exec(["python3", "-c", source]), box.run(source)):
        assert result.stdout == b"done\n", result


SOCKETS = r"""
import itertools, socket
for family, kind in itertools.product((socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16, 17, 40), (1, 2, 3, 5)):
    try:
        socket.socket(family, kind)
        print("made", family, kind)
    except OSError:
        pass
try:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # one of them can send to any address
    print("made a pair of datagram sockets")
except OSError:
    pass
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    a.send(b"x")
    assert b.recv(1) == b"x"
    for call, address in ((a.connect, "/dev/log"), (a.bind, "s"), (a.bind, "\0s")):
        try:
            call(address)
            print("not refused", call)
        except OSError:
            pass
print("done")
"""


def test_no_socket_gets_an_address(box: Sandbox) -> None:
    for result in (box.exec(["python3", "-c", SOCKETS]), box.run(SOCKETS)):
        assert result.stdout == b"done\n", result


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_init_of_an_execution_leaves_nothing(box: Sandbox) -> None:
    start = "setsid sleep 3456.7 & setsid sleep 3456.7 & exec sleep 3456.7"
    with box.start(["sh", "-c", start]) as process:
        end = time.monotonic() + 10
        while len(numbers_of("^sleep 3456.7")) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        init = parent_of(numbers_of("^sleep 3456.7")[0])
        while b"start.py" not in Path(f"/proc/{init}/cmdline").read_bytes():
            init = parent_of(init)
        os.kill(init, 9)
        process.wait(20)
    end = time.monotonic() + 5
    while numbers_of("^sleep 3456.7") and time.monotonic() < end:
        time.sleep(0.02)
    assert not numbers_of("^sleep 3456.7")
    assert box.exec(["echo", "ok"]).stdout == b"ok\n"


BOMB = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"


@pytest.mark.root
@pytest.mark.parametrize("abi", ["1", "3", "5"])
def test_an_older_landlock_still_holds_for_root(abi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_LANDLOCK", abi)
    with Sandbox(RESTRICTED) as box:
        sleep = f"sleep 4567.{abi}{os.getpid()}"  # no other test's
        start = f"for i in 1 2 3 4; do setsid sh -c 'trap \"\" TERM; {sleep}; :' & done; sleep 0.2; echo done"
        assert box.exec(["sh", "-c", start]).stdout == b"done\n"
        assert not numbers_of(f"^{sleep}")
        look = "cat /etc/passwd /etc/shadow /proc/1/cmdline 2>&-; ls /var/log /root /proc / 2>&-"
        assert box.exec(["sh", "-c", look]).stdout == b""
        assert box.run("import os\nprint(os.listdir('.'))").stdout == b"[]\n"
        result = box.exec(["python3", "-c", BOMB], limits=Limits(wall_s=2, processes=20))
        assert result.verdict in (Verdict.PROCESSES, Verdict.TIME)
        assert box.exec(["echo", "ok"]).stdout == b"ok\n"
    assert any("Landlock" in line for line in restricted.capabilities().not_covered)


def test_no_landlock_no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_LANDLOCK", "0")
    with pytest.raises(IsolationUnavailable, match="no Landlock"):
        Sandbox(RESTRICTED)


def test_the_api_does_not_follow_links_out_of_the_box(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("host")
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o777)
    (tmp_path / "file").chmod(0o666)
    box.exec(["sh", "-c", f"ln -s {tmp_path} out; ln -s {tmp_path}/file leak"])
    for action in (
        lambda: box.read("leak"),
        lambda: box.read("out/file"),
        lambda: box.write("out/planted", b"x"),
        lambda: box.write("out/file", b"x"),
        lambda: box.remove("out/file"),
        lambda: box.list("out"),
    ):
        with pytest.raises(BoxFileError):
            action()
    assert (tmp_path / "file").read_text() == "host"
    assert sorted(os.listdir(tmp_path)) == ["file"]
