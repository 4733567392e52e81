"""Data types: contents of a box, limits, and results of executions. Plain frozen data without behaviour."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from harena.errors import SpecError
from harena.sandbox.requirements import checked_requirements

if TYPE_CHECKING:
    from harena.sandbox.network import Network, NetworkReport

T = TypeVar("T")

KB = 1024
MB = 1024 * KB

ALLOWANCES = ("ptrace", "netlink")
"""What `Spec.allow` may name: see docs/adr/0013-debuggers-and-netlink.md."""

ISOLATIONS = ("full", "restricted", "best")

WORKSPACE = "/workspace"
"""Where a box keeps its files; relative paths of the API start here."""


class Verdict(enum.Enum):
    """How an execution ended. There is exactly one verdict; the first limit that was hit wins."""

    shell_code: int | None
    """What `harena run` ends with; None: what the program itself ended with."""
    limits: tuple[str, ...]
    """The fields of Limits that it was about."""

    def __new__(cls, word: str, shell_code: int | None = None, *limits: str) -> Verdict:
        one = object.__new__(cls)
        one._value_ = word
        one.shell_code, one.limits = shell_code, limits
        return one

    OK = "ok"
    EXIT = "exit"
    """It ended by itself with a non-zero exit code (an uncaught exception is exit code 1)."""
    SIGNAL = "signal"
    """A signal ended it: a crash, or a signal it sent to itself."""
    TIME = "time", 124, "wall_s", "cpu_s"
    """Wall or CPU time ran out; the whole process tree was ended."""
    MEMORY = "memory", 137, "memory_mb"
    OUTPUT = "output", 123, "output_bytes"
    """More stdout and stderr than allowed; the part within the limit is returned."""
    PROCESSES = "processes", 122, "processes"
    """It failed at the limit on processes and threads."""
    POLICY = "policy", 159
    """It was ended for a system call of a foreign architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one execution. Each applies to the whole process tree unless stated otherwise."""

    wall_s: float = 30.0
    """Wall time of the execution, without queueing and the start of the box."""
    cpu_s: float | None = None
    """CPU time; None means that only wall time is limited."""
    memory_mb: int = 512
    """Memory in use. A Python program that asks for more gets MemoryError at once."""
    processes: int = 50
    """Processes and threads at once."""
    output_bytes: int = 1 * MB
    """stdout and stderr together; the result of a `call` may have the same size in addition."""
    open_files: int = 256
    """Open descriptors per process."""

    def __post_init__(self) -> None:
        _range("wall_s", self.wall_s, 0.001, 7 * 86400)
        if self.cpu_s is not None:
            _range("cpu_s", self.cpu_s, 0.001, 7 * 86400)
        _whole("memory_mb", self.memory_mb, 16, 1 << 20)
        _whole("processes", self.processes, 1, 32768)
        _whole("output_bytes", self.output_bytes, 0, 256 * MB)
        _whole("open_files", self.open_files, 16, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Timeouts around an execution. The time of the execution itself is `Limits.wall_s`."""

    queue_s: float = 60.0
    """Time to wait for a box of the pool; then QueueTimeout."""
    start_s: float = 30.0
    """Time to start a box; then StartTimeout."""
    idle_s: float | None = None
    """The box closes itself after this time without a call."""
    lifetime_s: float | None = None
    """The box closes itself after this time in any case."""

    def __post_init__(self) -> None:
        for name in ("queue_s", "start_s", "idle_s", "lifetime_s"):
            value = getattr(self, name)
            if value is not None:
                _range(name, value, 0, 366 * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    source: str
    """A file or folder of the host."""
    target: str
    """Absolute path in the box."""
    writable: bool = False

    def __post_init__(self) -> None:
        if not self.target.startswith("/") or ".." in self.target.split("/"):
            raise SpecError(f"mount target {self.target!r}: give an absolute path without '..'")
        if "\0" in self.source + self.target:
            raise SpecError("mount: a path cannot hold a NUL byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Contents of a box. Nothing else of the host is visible except, without a rootfs, its /usr (read-only) and
    harmless parts of its /etc."""

    python: str | None = None
    """Interpreter in the box. None means the one that runs Harena, without its packages. A path to an interpreter or a
    virtual environment makes that one visible, with all of its packages."""
    packages: tuple[str, ...] = ()
    """Installed packages of the interpreter that runs Harena which the box may import, together with their
    requirements."""
    requirements: tuple[str, ...] = ()
    """Packages to install from the package index of the host, such as "numpy>=2" or "httpx[http2]==0.28.1". They are
    installed once, in a box, and kept; every box with the same list shows them read-only, ahead of the packages of its
    interpreter. `parse_requirements` reads a requirements.txt."""
    preload: tuple[str, ...] = ()
    """Modules that the warm interpreter imports before any program runs."""
    paths: tuple[str, ...] = ()
    """Folders of the box that the warm interpreter also imports from, after its own: for modules that are mounted."""
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    rootfs: str | None = None
    """A folder with a root file system to use instead of the host's /usr."""
    image: str | None = None
    """An OCI image to use as a writable root, by reference ("python:3.12-slim"). It is pulled if it is not stored yet.
    Its environment, working directory and user apply; changes are the box's own."""
    pull: bool = True
    """False: an image that is not stored is an error, and nothing is sent to a registry."""
    root_mb: int = 1024
    """How much a box from an image may change or add outside of /workspace and /tmp."""
    user: str | None = None
    """User of a box from an image, by name or number, instead of the one that the image names."""
    ids: str = "any"
    """User ids of a box from an image: "full" demands all of them, "any" accepts a single one with ownership emulated
    where the host grants no more. `Capabilities.ids` says what this host has."""
    workspace_mb: int = 64
    """Size of /workspace, and of /tmp."""
    hostname: str = "box"
    isolation: str = field(default_factory=lambda: default_isolation())
    """Isolation tier: "full" (namespaces; refused where the host has none), "restricted" (no namespaces, as in a usual
    container; see docs/isolation.md for what it does not cover), or "best" (full where possible, else restricted).
    HARENA_ISOLATION changes the default."""
    allow: tuple[str, ...] = ()
    """Additional permissions for commands of this box: "ptrace" (gdb, strace, leak sanitizers) and "netlink" (to read
    the box's own interfaces and routes). Each exposes more of the kernel; Python programs never get them."""
    network: Network | None = None
    """What the box may reach over the network; None: nothing, and no network can be opened later."""

    gpus: int | str | tuple[str, ...] = 0
    """NVIDIA GPUs of the box: how many, "all", or the numbers of some, as ("0", "2"). The driver then answers the
    guest, which is a large part of the kernel: see docs/threat-model.md."""

    def __post_init__(self) -> None:
        self._check_gpus()
        _whole("workspace_mb", self.workspace_mb, 1, 1 << 20)
        _whole("root_mb", self.root_mb, 1, 1 << 20)
        if self.ids not in ("any", "full"):
            raise SpecError(f"ids {self.ids!r}: there is any and full")
        if self.image is None and (self.user is not None or self.ids != "any" or not self.pull):
            raise SpecError("user, ids, pull: only a box from an image has them")
        if self.image is not None and (self.rootfs is not None or self.packages or self.python is not None):
            raise SpecError("image: it brings its own files and its own Python; leave rootfs, packages and python out")
        object.__setattr__(self, "requirements", checked_requirements(self.requirements))
        if self.requirements and (self.image is not None or self.rootfs is not None):
            raise SpecError("requirements: a box from an image or a rootfs brings its packages; install them there")
        if self.image is not None and (not self.image or "\0" in self.image):
            raise SpecError("image: empty, or with a NUL byte")
        for field_name in ("packages", "preload", "paths", "mounts", "allow"):
            if not isinstance(getattr(self, field_name), tuple | list):
                raise SpecError(f"{field_name}: give a tuple, also for a single one")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise SpecError(f"env {name!r}: not a usable name or value")
        for path in self.paths:
            if not path.startswith("/") or "\0" in path:
                raise SpecError(f"paths {path[:80]!r}: give absolute paths, as the box has them")
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                raise SpecError(f"preload {name!r}: not a module name")
        if self.isolation not in ISOLATIONS:
            raise SpecError(f"isolation {self.isolation!r}: there is {', '.join(ISOLATIONS)}")
        for name in self.allow:
            if name not in ALLOWANCES:
                raise SpecError(f"allow {name!r}: there is {' and '.join(ALLOWANCES)}")
        if self.network is not None:
            from harena.sandbox.network import Network

            if not isinstance(self.network, Network):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise SpecError("network: give a Network, such as Network(allow=['packages.example:443'])")
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?", self.hostname):
            raise SpecError(f"hostname {self.hostname[:80]!r}: 1 to 63 ASCII letters, digits, dots and hyphens")

    def _check_gpus(self) -> None:
        if isinstance(self.gpus, list):
            object.__setattr__(self, "gpus", tuple(self.gpus))
        if isinstance(self.gpus, tuple):
            is_good = all(isinstance(name, str) and re.fullmatch("[0-9]{1,3}", name) for name in self.gpus)  # pyright: ignore[reportUnnecessaryIsInstance]
            is_good = is_good and len(set(self.gpus)) == len(self.gpus)
        else:
            is_good = self.gpus == "all" or (type(self.gpus) is int and 0 <= self.gpus <= 64)
        if not is_good:
            raise SpecError(f"gpus={self.gpus!r:.80}: expected a number, 'all', or numbers of GPUs such as ('0', '2')")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    cpu_s: float
    """User and system time of the whole tree."""
    wall_s: float
    peak_mb: float
    """Peak resident memory of the largest process."""
    bytes: int
    """Bytes written to stdout and stderr, up to the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of an execution. Everything except the verdict and the usage comes from the guest."""

    verdict: Verdict
    exit_code: int | None
    """None if a signal or a limit ended it."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    usage: Usage
    detail: str = ""
    """One sentence with the reason, if the verdict is not OK."""
    value: Any = None
    """What `call` returned, as JSON data."""
    started: bool = True
    """False: there was no such command, or it could not be executed."""
    network: NetworkReport | None = None
    """What the box did with its network meanwhile, and the attempts that were refused; only with `Spec.network`."""
    ids: str = ""
    """User ids of a box from an image: "full", or "single" where ownership was emulated."""
    isolation: str = "full"
    """The isolation tier that it ran in: "full" or "restricted"."""

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK

    def as_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        data["verdict"] = self.verdict.value
        if self.network is None:
            del data["network"]
        data["stdout"] = self.stdout.decode("utf-8", "replace")
        data["stderr"] = self.stderr.decode("utf-8", "replace")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    path: str
    """Relative to the folder that was listed."""
    kind: str
    """file, dir, symlink or other."""
    size: int
    mode: int
    """Permission bits."""
    mtime_ns: int
    target: str | None = None
    """Target of a symlink, as written."""


def given_or_default(name: str, value: T | None, kind: type[T]) -> T:
    """Return the value of an argument, or the default of its kind. Anything else is refused."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        hint = "; for an image, give image=NAME" if kind is Spec and isinstance(value, str) else ""
        raise SpecError(f"{name}: expected a {kind.__name__}, not {value!r:.80}{hint}")
    return value


def default_isolation() -> str:
    """Isolation tier of a spec that names none."""
    wanted = os.environ.get("HARENA_ISOLATION") or "full"
    if wanted not in ISOLATIONS:
        raise SpecError(f"HARENA_ISOLATION={wanted}: there is {', '.join(ISOLATIONS)}")
    return wanted


def workspace_path(path: str) -> str:
    """Absolute path in the box; relative paths start in the workspace."""
    path = os.fspath(path)
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > 4000:
        raise SpecError(f"path {path[:80]!r}: empty, too long, or with a NUL byte")
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _range(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SpecError(f"{name}={value!r}: must be a number from {low} to {high}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    _range(name, value, low, high)
    if not isinstance(value, int):
        raise SpecError(f"{name}={value!r}: must be a whole number")
