"""Container peers on one small rootfs: crun, runc, and a Docker Engine that lives only as long as the measurement.

They run in pid, mount and network namespaces made by peers.py: nothing they start outlives it, and no packet leaves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from peer import Once, Peer, Unavailable, command, output

HOME = Path(__file__).resolve().parents[2] / ".venv-peers"
ROOTFS = HOME / "rootfs"
IMAGE = "harena-peer"
CMD = 'CMD ["python3"]'
"""As in the official Python images: llm-sandbox starts a container without saying what to run."""
CGROUP = "/harena-peers"
"""The parent of every cgroup made here; peers.py removes it."""

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_ENGINE_START_S = 30
_PRINT = ["python3", "-c", "print(1)"]


@contextmanager
def crun(folder: Path) -> Generator[Peer]:
    # crun refuses a cgroup2 hierarchy beside v1 ones that owns controllers; in our mount namespace it can go.
    if os.path.ismount("/sys/fs/cgroup/unified"):
        output(["umount", "/sys/fs/cgroup/unified"])
    with _runtime("crun", folder) as peer:
        yield peer


@contextmanager
def runc(folder: Path) -> Generator[Peer]:
    with _runtime("runc", folder) as peer:
        yield peer


@contextmanager
def docker(folder: Path) -> Generator[Peer]:
    with engine(folder) as host:
        docker = [_client(), "--host", host]
        run = [*docker, "run", "--rm", "--network", "none", IMAGE]
        started = output([*docker, "run", "-d", "--network", "none", IMAGE, "sleep", "infinity"]).strip()
        try:
            yield _peer(
                command(*run, "/bin/true"),
                command(*run, *_PRINT, prints="1\n"),
                [*docker, "exec", started],
            )
        finally:
            output([*docker, "rm", "-f", started])


@contextmanager
def engine(folder: Path) -> Generator[str]:
    """A dockerd of our own with the rootfs as its one image; yields its address. The first to ask starts it."""
    socket = folder / "docker.sock"
    host = f"unix://{socket}"
    if socket.exists():
        yield host
        return
    _need_rootfs()
    dockerd = shutil.which("dockerd", path=_PATH)
    if dockerd is None:
        raise Unavailable("dockerd is not installed")
    log = folder / "dockerd.log"
    argv = [
        dockerd,
        "--host",
        host,
        "--pidfile",
        str(folder / "dockerd.pid"),
        "--data-root",
        str(HOME / "docker"),
        "--exec-root",
        str(folder / "docker"),
        "--cgroup-parent",
        CGROUP,
        "--bridge",
        "none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
        "--ip-masq=false",
        "--log-level",
        "error",
    ]
    with log.open("wb") as sink:
        daemon = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=os.environ | {"PATH": _PATH}
        )
    try:
        _wait_for_engine(daemon, host, log)
        _import_image(host)
        # What a run that was killed left in Docker's folder.
        output([_client(), "--host", host, "container", "prune", "--force"])
        yield host
    finally:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _wait_for_engine(daemon: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + _ENGINE_START_S
    while subprocess.run([_client(), "--host", host, "version"], capture_output=True).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"dockerd did not start: {log.read_text(errors='replace').strip()[-300:]}")
        time.sleep(0.1)


def _import_image(host: str) -> None:
    docker = [_client(), "--host", host]
    if output([*docker, "images", "--quiet", IMAGE]):
        return
    with subprocess.Popen(["tar", "-C", str(ROOTFS), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            [*docker, "import", "--change", CMD, "-", IMAGE], stdin=tar.stdout, stdout=subprocess.DEVNULL, check=True
        )


def _client() -> str:
    # The client that came with the engine before any other that is first in PATH.
    found = shutil.which("docker", path=f"/usr/bin:{_PATH}")
    if found is None:
        raise Unavailable("the docker client is not installed")
    return found


@contextmanager
def _runtime(name: str, folder: Path) -> Generator[Peer]:
    _need_rootfs()
    binary = shutil.which(name, path=_PATH)
    if binary is None:
        raise Unavailable(f"{name} is not installed")
    runtime = [binary, "--root", str(folder / name)]
    bundles = {
        kind: str(_bundle(runtime, folder / f"{name}-{kind}", argv))
        for kind, argv in {
            "true": ["/bin/true"],
            "python": _PRINT,
            "idle": ["sleep", "infinity"],
        }.items()
    }
    numbers = count()

    def cold(kind: str, prints: str = "") -> None:
        output([*runtime, "run", "--bundle", bundles[kind], f"{name}-{next(numbers)}"], prints)

    idle = f"{name}-idle"
    # A detached container keeps the descriptors it is given: none of ours.
    subprocess.run(
        [*runtime, "run", "--detach", "--bundle", bundles["idle"], idle],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    try:
        yield _peer(lambda: cold("true"), lambda: cold("python", "1\n"), [*runtime, "exec", idle])
    finally:
        output([*runtime, "delete", "--force", idle])


def _peer(cold_true: Once, cold_python: Once, enter: list[str]) -> Peer:
    return Peer(
        once={
            "cold_true": cold_true,
            "cold_python": cold_python,
            "warm_echo": command(*enter, "/bin/echo", "hi", prints="hi\n"),
            "warm_python": command(*enter, *_PRINT, prints="1\n"),
        },
        run=lambda source: output([*enter, "python3", "-c", source]),
    )


def _bundle(runtime: list[str], bundle: Path, argv: list[str]) -> Path:
    bundle.mkdir()
    subprocess.run([runtime[0], "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": argv}
    config["root"] = {"path": str(ROOTFS), "readonly": True}
    config["linux"]["cgroupsPath"] = f"{CGROUP}/{bundle.name}"
    (bundle / "config.json").write_text(json.dumps(config))
    return bundle


def _need_rootfs() -> None:
    if not (ROOTFS / "usr/bin/python3").exists():
        raise Unavailable(f"no {ROOTFS.relative_to(HOME.parent)}")
