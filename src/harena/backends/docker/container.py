"""What a container may have, and what it shows of the host: nothing but the interpreter, Harena, what the spec names,
and without an image /usr and public files of /etc, all of it read-only."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena.backends.docker import inside, variables
from harena.backends.local import policy
from harena.backends.local.launch import etc, plan, users
from harena.errors import SpecError, Unsupported
from harena.sandbox.spec import MB, Limits, Mount, Spec

AT_ONCE = 4
"""Executions that may use all of their limits at once before the container's own limits are felt."""
OWN_MB, OWN_PROCESSES = 256, 128
"""What the node and its box need themselves."""
REPOSITORY = "harena/places"
NOBODY = 65534
PACKAGE = Path(__file__).parents[2]
PROFILE = Path(policy.__file__).parent / "container.json"


@dataclass(frozen=True, slots=True)
class Bind:
    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class DockerImage:
    id: str
    env: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    """Paths for which the daemon would make writable folders on the host's disk."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the daemon says about itself."""

    cpus: int
    apparmor: bool
    maps_users: bool
    """True if users of containers are others on the machine (rootless, userns-remap); it has 65536 of them then."""

    @staticmethod
    def of(info: Mapping[str, Any]) -> Daemon:
        options = " ".join(info.get("SecurityOptions") or ())
        return Daemon(int(info["NCPU"]), "name=apparmor" in options, "name=rootless" in options or "userns" in options)

    def user(self) -> int:
        """User of a container: never root, and for root one that owns nothing else."""
        return NOBODY if self.maps_users else users.choose() or os.geteuid() or NOBODY


def bounds(limits: Limits, spec: Spec) -> dict[str, int]:
    """Limits of the container, around those of its executions."""
    memory = (OWN_MB + 3 * spec.workspace_mb + AT_ONCE * (limits.memory_mb + spec.workspace_mb)) * MB
    return {"Memory": memory, "MemorySwap": memory, "PidsLimit": OWN_PROCESSES + AT_ONCE * limits.processes}


def settings(
    spec: Spec,
    limits: Limits,
    *,
    tier: str,
    daemon: Daemon,
    user: int,
    image: DockerImage,
    socket: str,
    binds: list[Bind],
    labels: dict[str, str],
) -> dict[str, Any]:
    """Body of the request that creates the container."""
    secured = ["no-new-privileges"]
    paths: dict[str, Any] = {}
    if tier == "full":
        # The box inside is made of namespaces and a fresh /proc, which Docker's own profile refuses.
        secured.append(f"seccomp={profile()}")
        if daemon.apparmor:
            secured.append("apparmor=unconfined")
        paths = {"MaskedPaths": [], "ReadonlyPaths": []}
    mounts = [Bind(str(PACKAGE), inside.PACKAGE), Bind(socket, inside.SOCKET), *binds]
    requests = [{"Driver": "", "Count": gpus, "Capabilities": [["gpu"]]}] if (gpus := getattr(spec, "gpus", 0)) else []
    return {
        "Image": image.id,
        "Healthcheck": {"Test": ["NONE"]},
        "Entrypoint": [interpreter(spec), "-I", "-B", "-X", "utf8", f"{inside.PACKAGE}/backends/docker/inside.py"],
        "Cmd": [],
        "User": f"{user}:{user}",
        "WorkingDir": "/",
        "Env": [f"HARENA_ISOLATION={tier}"],
        "Labels": labels,
        "NetworkDisabled": True,
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "none",
            "IpcMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": secured,
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": _tmpfs(spec)},
            "ShmSize": MB,
            "Mounts": [
                {"Type": "bind", "Source": bind.source, "Target": bind.target, "ReadOnly": not bind.writable}
                for bind in mounts
            ]
            + [{"Type": "tmpfs", "Target": path, "ReadOnly": True} for path in image.volumes],
            "NanoCpus": int(min(variables.cpus(), daemon.cpus) * 1e9),
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "LogConfig": {"Type": "none"},
            "Runtime": variables.runtime(),
            "DeviceRequests": requests,
            **bounds(limits, spec),
            **paths,
        },
    }


def _tmpfs(spec: Spec) -> str:
    """Options of /tmp, where a restricted box keeps its files and those of its programs."""
    inodes = AT_ONCE * 2 * max(16384, spec.workspace_mb * 64)
    size = (64 + AT_ONCE * 2 * spec.workspace_mb) * MB
    return f"rw,nosuid,nodev,exec,mode=1777,size={size},nr_inodes={inodes}"


@functools.cache
def profile() -> str:
    return json.dumps(json.loads(PROFILE.read_text()), separators=(",", ":"))


def interpreter(spec: Spec) -> str:
    """The interpreter of the node: the image's own, or the one that runs Harena, beside the packages of the spec."""
    if spec.image is not None:
        return "python3"
    return sys.executable if spec.packages else plan.find_python(Spec(isolation="full")).executable


def shown(spec: Spec, tier: str, user: int) -> tuple[Spec, list[Bind]]:
    """The spec as the node must read it, and what the container shows of the host for it."""
    for name, given in (("user", spec.user is not None), ("ids", spec.ids == "full")):
        if given:
            raise Unsupported(f"{name}: boxes of the backend docker have one user; use the backend local")
    binds: list[Bind] = []
    if spec.image is None:
        folders = [*plan.find_python(Spec(isolation="full")).folders]
        if spec.rootfs is None and spec.python is not None:
            folders += plan.find_python(spec).folders
        if spec.packages:
            folders.append(sys.prefix)
        binds += [Bind("/usr", "/usr"), *(Bind(folder, folder) for folder in plan.outermost({*folders} - {"/usr"}))]
    changed: dict[str, Any] = {"isolation": tier}
    if spec.rootfs is not None:
        if not os.path.isdir(spec.rootfs):
            raise SpecError(f"rootfs {spec.rootfs}: not a folder")
        binds.append(Bind(os.path.realpath(spec.rootfs), inside.ROOTFS))
        changed["rootfs"] = inside.ROOTFS
    changed["mounts"] = tuple(_mounts(spec.mounts, tier, user, binds))
    return dataclasses.replace(spec, **changed), binds


def _mounts(mounts: tuple[Mount, ...], tier: str, user: int, binds: list[Bind]) -> Iterator[Mount]:
    for number, mount in enumerate(mounts):
        source = os.path.realpath(mount.source)
        if not os.path.exists(source):
            raise SpecError(f"mount source {mount.source}: does not exist")
        if mount.writable and user != os.geteuid():
            raise Unsupported(
                f"mount of {mount.source}: the container has another user than you, who could not write there; "
                "use the backend local, or a daemon that knows you as an ordinary user"
            )
        in_place = tier == "restricted" and os.path.normpath(mount.target) == source
        place = source if in_place else f"{inside.MOUNTS}/{number}"
        binds.append(Bind(source, place, mount.writable))
        yield dataclasses.replace(mount, source=place)


@functools.cache
def places() -> tuple[bytes, str]:
    """A root that has only places for mounts and public files of /etc, as a tar archive, and a tag for it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("run", 0o755), ("usr", 0o755), ("proc", 0o755)):
            tar.addfile(_entry(name, tarfile.DIRTYPE, mode))
        for name in plan.SYSTEM_LINKS:
            path = f"/{name}"
            if os.path.islink(path):
                link = _entry(name, tarfile.SYMTYPE, 0o777)
                link.linkname = os.readlink(path)
                tar.addfile(link)
        for path in sorted({path for pattern in etc.SHOWN for path in glob.glob(f"/etc/{pattern}")}):
            if etc.is_public(os.path.realpath(path)):
                tar.add(path, path[1:], filter=_anonymous)
    return data.getvalue(), hashlib.sha256(data.getvalue()).hexdigest()[:32]


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
