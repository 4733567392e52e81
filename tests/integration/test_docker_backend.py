"""Boxes of the Docker backend: what their containers have and lack, images, limits, and that nothing of them stays."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harena import (
    BoxLost,
    HarenaError,
    IsolationUnavailable,
    Limits,
    Mount,
    Network,
    Sandbox,
    SandboxPool,
    Spec,
    SpecError,
    Verdict,
)
from harena.backends.docker import backend as docker_backend
from harena.backends.docker import container
from harena.backends.docker.api import Docker
from harena.errors import Unsupported
from harena.testing import forget_what_was_found
from support import roots
from support.docker_daemon import DockerDaemon, docker_daemon
from support.roots import write_tar

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerDaemon]:
    with docker_daemon(tmp_path_factory.mktemp("docker")) as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.address)
        forget_what_was_found()
        yield daemon
    forget_what_was_found()


@pytest.fixture
def make(daemon: DockerDaemon) -> Iterator[Callable[..., Sandbox]]:
    made: list[Sandbox] = []

    def make(*, limits: Limits | None = None, **spec: Any) -> Sandbox:
        made.append(Sandbox(Spec(**spec), backend="docker", limits=limits))
        return made[-1]

    yield make
    for box in made:
        box.close()
    assert containers(daemon) == []


def containers(daemon: DockerDaemon) -> list[str]:
    return daemon.docker("ps", "-aq", "--no-trunc").split()


def settled(daemon: DockerDaemon, seconds: float = 10) -> list[str]:
    end = time.monotonic() + seconds
    while (found := containers(daemon)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("tier", ["full", "restricted"])
def test_every_verb_works(make: Callable[..., Sandbox], tier: str) -> None:
    box = make(isolation=tier)
    assert box.isolation == tier
    assert box.exec(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in").exit_code == 3
    assert box.run("x = 41").ok
    assert box.run("print(x + 1)").stdout == b"42\n"
    assert box.call("def f(a):\n    return a * 2", "f", [21]).value == 42
    box.write("note", b"hello")
    assert box.read("note") == b"hello"
    with box.start(["cat"]) as process:
        process.write(b"to and fro")
        assert process.wait(10).stdout == b"to and fro"
    result = box.exec(["sleep", "60"], limits=Limits(wall_s=0.3))
    assert (result.verdict, result.isolation) == (Verdict.TIME, tier)
    if tier == "full":
        [fork] = box.fork(1)
        box.close()
        assert fork.run("print(x)").stdout == b"41\n"
        fork.close()
    else:
        with pytest.raises(HarenaError, match="full isolation tier"):
            box.fork(1)


def test_a_pool_keeps_containers_warm(daemon: DockerDaemon) -> None:
    with SandboxPool(backend="docker", warm=2, max_live=2) as pool:
        assert len(containers(daemon)) == 2
        assert [result.stdout for result in pool.map([f"print({n})" for n in range(20)])] == [
            f"{n}\n".encode() for n in range(20)
        ]
        with pool.lease() as box:
            assert box.exec(["true"]).ok
        end = time.monotonic() + 30
        while len(pool._ready) < 2 and time.monotonic() < end:  # pyright: ignore  # a box that is made now outlives the pool
            time.sleep(0.05)
        assert len(containers(daemon)) == 2
    assert settled(daemon) == []


# ---- what a container has ----


@pytest.mark.parametrize("tier", ["full", "restricted"])
def test_a_container_has_nothing_that_it_does_not_need(
    daemon: DockerDaemon, make: Callable[..., Sandbox], tier: str
) -> None:
    make(isolation=tier, workspace_mb=8, limits=Limits(memory_mb=64, processes=10))
    [id] = containers(daemon)
    [found] = json.loads(daemon.docker("inspect", id))
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert host["ReadonlyRootfs"]
    assert host["AutoRemove"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert any("seccomp=" in option for option in host["SecurityOpt"]) == (tier == "full")
    assert (not host["MaskedPaths"]) == (tier == "full")
    assert host["IpcMode"] == "private"
    assert host["PidMode"] == host["UTSMode"] == host["UsernsMode"] == ""
    assert host["Memory"] == host["MemorySwap"] > 0
    assert host["PidsLimit"] > 0
    assert host["NanoCpus"] > 0
    assert int(found["Config"]["User"].split(":")[0]) > 1000
    assert not [mount for mount in found["Mounts"] if mount["RW"]]
    assert not [mount for mount in found["Mounts"] if "docker.sock" in mount["Source"]]


LOOK = """
import os, json, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
found = {name: status[name].split() for name in ("CapEff", "CapBnd", "CapPrm", "NoNewPrivs", "Seccomp", "Uid")}
found["interfaces"] = [name for _, name in socket.if_nameindex()]
def tried(action, *arguments):
    try:
        return repr(action(*arguments))
    except OSError as error:
        return type(error).__name__
found["written"] = [path for path in ("/x", "/etc/x", "/usr/x", "/.harena/x", "/run/x") if "Error" not in tried(open, path, "w")]
found["secret"] = tried(open, SECRET)
found["socket"] = tried(socket.socket(socket.AF_UNIX).connect, "/.harena/socket")
found["processes"] = [pid for pid in os.listdir("/proc") if pid.isdigit() and b"HOST" in open(f"/proc/{pid}/cmdline", "rb").read()]
print(json.dumps(found))
"""


@pytest.mark.parametrize("tier", ["full", "restricted"])
def test_what_leaves_its_box_is_in_an_empty_container(
    daemon: DockerDaemon, make: Callable[..., Sandbox], tmp_path: Path, tier: str
) -> None:
    """A process beside the node sees what a guest would see that has left its box."""
    secret = tmp_path / "secret"
    secret.write_text("42")
    make(isolation=tier)
    [id] = containers(daemon)
    python = container.interpreter(Spec())
    found = json.loads(daemon.docker("exec", id, python, "-c", f"SECRET = {str(secret)!r}\n{LOOK}"))
    assert found["CapEff"] == found["CapBnd"] == found["CapPrm"] == ["0" * 16]
    assert found["NoNewPrivs"] == ["1"]
    assert found["Seccomp"] == ["2"]
    assert "0" not in found["Uid"]
    assert found["interfaces"] == ["lo"]
    assert found["written"] == []
    assert found["secret"] == "FileNotFoundError"
    assert "Error" in found["socket"], "the host takes one connection, and that was the node's"


def test_limits_of_the_container_follow_those_of_executions(daemon: DockerDaemon, make: Callable[..., Sandbox]) -> None:
    box = make(workspace_mb=8, limits=Limits(memory_mb=64))
    [id] = containers(daemon)
    before = int(daemon.docker("inspect", "-f", "{{.HostConfig.Memory}}", id))
    source = "x = bytearray(600 << 20); print(len(x))"
    assert box.exec(["python3", "-c", source], limits=Limits(memory_mb=1024)).ok
    after = int(daemon.docker("inspect", "-f", "{{.HostConfig.Memory}}", id))
    assert before < 700 << 20 < 1024 << 20 < after
    assert box.exec(["python3", "-c", source], limits=Limits(memory_mb=64)).verdict is Verdict.MEMORY


# ---- contents ----


def test_packages_and_mounts_are_shown(make: Callable[..., Sandbox], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("shown\n")
    tmp_path.chmod(0o755)
    box = make(packages=("msgspec",), mounts=(Mount(source=str(tmp_path / "data"), target="/data"),))
    assert box.run("import msgspec; print(open('/data/file').read())").stdout.strip() == b"shown"
    assert box.exec(["sh", "-c", "echo x > /data/file"]).verdict is Verdict.EXIT
    with pytest.raises(Unsupported, match="another user than you"):
        make(mounts=(Mount(source=str(tmp_path), target="/data", writable=True),))
    with pytest.raises(SpecError, match="does not exist"):
        make(mounts=(Mount(source="/no/such", target="/data"),))


def test_what_the_backend_lacks_is_refused_by_name(make: Callable[..., Sandbox]) -> None:
    with pytest.raises(Unsupported, match="backend docker have no network"):
        make(network=Network(allow=["example.org:443"]))
    with pytest.raises(Unsupported, match="docker pull"):
        make(image="harena.test/absent:1")
    with pytest.raises(Unsupported, match="one user"):
        make(image="harena.test/absent:1", user="root")


NOTE: dict[str, bytes | str | Path | None] = {"opt": None, "opt/tool": None, "opt/tool/note": b"ours\n"}


@pytest.fixture(scope="module")
def python_image(daemon: DockerDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a Python, made of parts of this machine."""
    files = roots.python_entries() | NOTE
    folders = {str(parent): None for name in files for parent in Path(name).parents if str(parent) != "."}
    root = write_tar(tmp_path_factory.mktemp("image") / "root.tar", dict(sorted(folders.items())) | files)
    changes = ("-c", "ENV GREETING=hello")
    daemon.docker("import", *changes, "-", "harena.test/python:1", input=root.read_bytes())
    return "harena.test/python:1"


@pytest.mark.parametrize("tier", ["full", "restricted"])
def test_a_box_from_an_image_has_its_files_and_environment(
    make: Callable[..., Sandbox], python_image: str, tier: str
) -> None:
    box = make(image=python_image, isolation=tier)
    result = box.exec(["sh", "-c", "cat /opt/tool/note; echo $GREETING; test -e /usr/bin/perl || echo none"])
    assert result.stdout == b"ours\nhello\nnone\n", result
    assert box.run("import os; print(os.path.exists('/opt/tool'), 6 * 7)").stdout == b"True 42\n"
    assert box.exec(["sh", "-c", "echo x > /opt/tool/note"]).verdict is Verdict.EXIT


@pytest.mark.parametrize("tier", ["full", "restricted"])
def test_an_image_brings_no_writable_volume_and_no_command(
    daemon: DockerDaemon, make: Callable[..., Sandbox], python_image: str, tmp_path: Path, tier: str
) -> None:
    """Docker would give a volume of the host's disk to the container, and run the check beside the node."""
    image = "harena.test/hostile:1"
    lines = [
        f"FROM {python_image}",
        'VOLUME ["/opt/tool", "/missing"]',
        'HEALTHCHECK --interval=1s CMD ["python3", "-c", "1"]',
        'ENTRYPOINT ["sleep", "999"]',
        "USER 0",
        "STOPSIGNAL SIGWINCH",
        "ENV HARENA_ISOLATION=other",
    ]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    daemon.docker("build", "-q", "-t", image, str(tmp_path))
    box = make(image=image, isolation=tier)
    assert box.isolation == tier
    assert box.exec(["ls", "/opt/tool"]).stdout == b""
    [id] = containers(daemon)
    [found] = json.loads(daemon.docker("inspect", id))
    assert not [mount for mount in found["Mounts"] if mount["RW"]]
    assert not [mount for mount in found["Mounts"] if mount["Type"] == "volume"]
    assert "Health" not in found["State"]
    assert int(found["Config"]["User"].split(":")[0]) > 1000
    assert daemon.docker("volume", "ls", "-q") == ""


def test_an_image_without_python_is_refused_by_name(
    daemon: DockerDaemon, make: Callable[..., Sandbox], tmp_path: Path
) -> None:
    root = write_tar(tmp_path / "root.tar", roots.busybox_entries())
    daemon.docker("import", "-", "harena.test/bare:1", input=root.read_bytes())
    with pytest.raises(Unsupported, match="has no python3 in its PATH"):
        make(image="harena.test/bare:1")


def test_an_image_with_an_old_python_is_refused_by_name(
    daemon: DockerDaemon,
    make: Callable[..., Sandbox],
    python_image: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The interpreter is as new as ours; what is asked of it is newer."""
    package = tmp_path / "harena"
    (package / "backends" / "docker").mkdir(parents=True)
    source = Path(docker_backend.inside.__file__).read_text()
    assert "MINIMUM = (3, 11)" in source
    (package / "backends" / "docker" / "inside.py").write_text(source.replace("MINIMUM = (3, 11)", "MINIMUM = (3, 99)"))
    for folder in (tmp_path, *tmp_path.rglob("*")):
        folder.chmod(0o755)
    monkeypatch.setattr(container, "PACKAGE", package)
    with pytest.raises(Unsupported, match=r"python3 is 3\.\d+; .* needs Python 3\.99"):
        make(image=python_image)


# ---- the daemon ----


def test_a_missing_daemon_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address, words in (
        (f"unix://{tmp_path}/none", "no Docker daemon answers at unix://.*systemctl start docker"),
        ("tcp://127.0.0.1:2375", "a daemon on this machine"),
    ):
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(IsolationUnavailable, match=words):
            docker_backend.DockerBackend().create(Spec(), limits=Limits(), start_s=5)


def test_a_daemon_that_talks_nonsense_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
        child = os.fork()
        if child == 0:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"hello\r\n\r\n")
            os._exit(0)
        with pytest.raises(IsolationUnavailable, match="no Docker daemon answers"):
            Docker().info()
        os.waitpid(child, 0)


def test_a_runtime_is_chosen_by_name(
    daemon: DockerDaemon, make: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARENA_DOCKER_RUNTIME", "runc")
    assert make().exec(["true"]).ok
    monkeypatch.setenv("HARENA_DOCKER_RUNTIME", "no-such-runtime")
    with pytest.raises(IsolationUnavailable, match="no-such-runtime"):
        make()
    monkeypatch.delenv("HARENA_DOCKER_RUNTIME")
    monkeypatch.setenv("HARENA_DOCKER_CPUS", "many")
    with pytest.raises(SpecError, match="HARENA_DOCKER_CPUS"):
        make()


# ---- nothing stays ----

HOST = """
import time
from harena import Sandbox
box = Sandbox(backend="docker")
box.start(["sh", "-c", "trap '' TERM HUP; sleep 1000 & sleep 1000"])
print(box.exec(["echo", "ready"]).stdout.decode(), flush=True)
time.sleep(600)
"""


def start_host() -> subprocess.Popen[str]:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    return host


def test_a_killed_host_leaves_no_container(daemon: DockerDaemon) -> None:
    with start_host() as host:
        assert len(containers(daemon)) == 1
        host.send_signal(signal.SIGKILL)
    assert settled(daemon) == []


def test_what_a_killed_host_leaves_is_reaped_by_the_next(daemon: DockerDaemon) -> None:
    with start_host() as host, start_host() as other:
        first = containers(daemon)
        pids = {id: int(daemon.docker("inspect", "-f", "{{.State.Pid}}", id)) for id in first}
        labels = {id: daemon.docker("inspect", "-f", '{{index .Config.Labels "harena.owner"}}', id) for id in first}
        [orphan] = [id for id in first if labels[id].startswith(f"{host.pid}.")]
        stuck = [int(pid) for pid in Path(f"/proc/{pids[orphan]}/task/{pids[orphan]}/children").read_text().split()]
        for pid in stuck:
            os.kill(pid, signal.SIGSTOP)  # its node does not see the host's end
        host.kill()
        host.wait()
        time.sleep(0.5)
        assert orphan in containers(daemon)
        assert docker_backend.reap(Docker()) == 1
        assert containers(daemon) == [id for id in first if id != orphan], "the other's host lives"
        other.kill()
    assert settled(daemon) == []


def test_a_dropped_box_leaves_no_container(daemon: DockerDaemon) -> None:
    box = Sandbox(backend="docker")
    assert box.exec(["true"]).ok
    assert len(containers(daemon)) == 1
    del box
    gc.collect()
    assert settled(daemon) == []


def test_a_killed_container_is_a_lost_box(daemon: DockerDaemon, make: Callable[..., Sandbox]) -> None:
    box = make()
    daemon.docker("kill", *containers(daemon))
    with pytest.raises(BoxLost):
        for _ in range(100):
            box.exec(["true"])
    assert not box.alive


def test_a_container_that_breaks_its_protocol_is_removed(daemon: DockerDaemon, make: Callable[..., Sandbox]) -> None:
    box = make()
    node = box._box._container.node  # pyright: ignore
    with pytest.raises(BoxLost):
        node.call("create", seconds=-59.9, spec={}, limits={}, start_s=1, text=0)
    assert settled(daemon) == []


# ---- the contract and the attacks ----

WITHOUT = {
    "test_online_": "boxes of this backend have no network",
    "test_writable_mount_": "the container of root has another user than root; such mounts are refused by name",
}
"""Tests of the contract that do not apply, and why."""


@pytest.mark.thorough
@pytest.mark.serial
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("contract/execution", ()),
        ("attacks", ("bomb",)),  # without a cgroup of its own the box samples, and the container is the wall behind it
        pytest.param("contract", (), marks=pytest.mark.soak),
        pytest.param("attacks", (), marks=pytest.mark.soak),
    ],
)
def test_the_suite_of_every_backend_holds(daemon: DockerDaemon, name: str, without: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"src/harena/testing/{name}"]
    env = {**os.environ, "HARENA_TEST_BACKEND": "docker", "HARENA_ISOLATION": "full", "DOCKER_HOST": daemon.address}
    done = subprocess.run(
        [*command, "-k", f"not ({' or '.join((*WITHOUT, *without))})"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert settled(daemon) == []
