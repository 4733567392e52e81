"""What clients of a node may put into a box and how much they may hold. A client on the same machine as its user, as
the relay's, has no rules. Everything of the host that a spec can name is refused unless its operator has allowed it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import threading
from dataclasses import dataclass

from harena.errors import BoxError, Retry, SpecError
from harena.node.budget import OutputBudget
from harena.sandbox.network import Network, Rule, parse_rule
from harena.sandbox.spec import MB, Limits, Mount, Spec

MAX_OPEN = 64
"""Connections at once of one box; each takes descriptors of the server."""
WAITING_BYTES = 256 * MB
"""Most bytes of requests of one client with rules that are served or wait. Its owner has a limit too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedPath:
    """A file or folder of the host that clients may mount. A read-only one includes everything in it. A writable one is
    mounted as a whole: a box could replace a folder inside it by a link to another place of the host."""

    path: str
    writable: bool = False

    @classmethod
    def parse(cls, text: str) -> AllowedPath:
        """Read PATH or PATH:rw."""
        path, colon, mode = text.rpartition(":")
        writable = bool(colon) and mode == "rw"
        path = path if writable else text
        if not os.path.isabs(path) or not os.path.exists(path):
            raise SpecError(f"{path}: give the absolute path of something that exists, with :rw to let boxes write")
        return cls(path=os.path.realpath(path), writable=writable)

    def contains(self, path: str) -> bool:
        return path == self.path or path.startswith(self.path.rstrip("/") + "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    boxes: int = 64
    """Boxes that one owner may hold at once, in all connections, sessions and warm pools."""
    processes: int = 256
    """Started commands and conversations that one owner may hold at once; each takes descriptors of the server."""
    requests: int = 4096
    """Requests of one owner that are served or wait, in all connections; each may take a thread of the server."""
    request_mb: int = 512
    """Bytes of one owner's requests in the server's memory, unfinished ones included."""
    kept_mb: int = 1024
    """What the sessions of one owner may keep in the server's memory: histories, outputs and snapshots."""
    memory_mb: int = 8192
    """Largest memory limit of an execution."""
    disk_mb: int = 8192
    """Largest workspace, and largest writable root of a box from an image."""
    paths: tuple[AllowedPath, ...] = ()
    images: tuple[str, ...] = ()
    """Patterns of image references, such as "python:3.*". A star does not stand for a slash."""
    packages: tuple[str, ...] = ()
    """Installed packages of the server that boxes may import; "*" stands for all."""
    allowances: tuple[str, ...] = ()
    """What `Spec.allow` may name."""
    network: tuple[str, ...] = ()
    """Entries that `Network.allow` may have, or names that they cover, such as "*.example.org:443"."""
    isolation: str = "full"
    """The weakest tier that clients may ask for: "full", or "restricted" where the operator accepts it."""

    def admit(self, spec: Spec, limits: Limits) -> Spec:
        """Return the spec to use. Raises SpecError, which names the option that would allow what is refused."""
        self.check_limits(limits)
        for name, asked in (("workspace_mb", spec.workspace_mb), ("root_mb", spec.root_mb)):
            if asked > self.disk_mb:
                raise SpecError(f"{name}={asked}: the server allows {self.disk_mb} (--max-disk)")
        if spec.isolation != "full" and self.isolation == "full":
            raise SpecError(f"isolation {spec.isolation!r}: the server makes full boxes only (--isolation)")
        if spec.requirements:
            raise SpecError("requirements: the server installs no packages; use an image or packages that it offers")
        if spec.gpus != 0:
            raise SpecError(f"gpus={spec.gpus!r:.80}: the server lends no GPUs")
        for name in spec.allow:
            if name not in self.allowances:
                raise SpecError(f"allow {name!r}: the server does not allow it (--allow)")
        for name in spec.packages:
            if name not in self.packages and "*" not in self.packages:
                raise SpecError(f"packages {name!r}: the server does not offer it (--allow-package)")
        if spec.image is not None and not any(image_matches(spec.image, one) for one in self.images):
            raise SpecError(f"image {spec.image[:200]!r}: the server does not allow it (--allow-image)")
        if spec.network is not None:
            self.check_network(spec.network)
        return dataclasses.replace(
            spec,
            mounts=tuple(
                Mount(
                    source=self._path("mounts", mount.source, writable=mount.writable),
                    target=mount.target,
                    writable=mount.writable,
                )
                for mount in spec.mounts
            ),
            rootfs=None if spec.rootfs is None else self._path("rootfs", spec.rootfs),
            python=None if spec.python is None else self._interpreter(spec.python),
        )

    def check_limits(self, limits: Limits) -> None:
        if limits.memory_mb > self.memory_mb:
            raise SpecError(f"memory_mb={limits.memory_mb}: the server allows {self.memory_mb} (--max-memory)")

    def check_network(self, network: Network) -> None:
        """Addresses must be entries of the operator word for word: naming a part of a block would open special
        addresses in it, which the block does not."""
        if not self.network:
            raise SpecError("network: the server opens none (--allow-network)")
        if network.private_names:
            raise SpecError("network private_names: the server does not allow names to lead to private addresses")
        if network.max_open > MAX_OPEN:
            raise SpecError(f"network max_open={network.max_open}: the server allows {MAX_OPEN}")
        allowed = [parse_rule(entry) for entry in self.network]
        for entry in network.allow:
            asked = parse_rule(entry)
            if not any(_covers(rule, asked) for rule in allowed):
                raise SpecError(f"network {entry[:200]!r}: the server does not allow it (--allow-network)")

    def _path(self, what: str, path: str, *, writable: bool = False) -> str:
        # The same words for a path that is not there: nobody learns which files the server has.
        real = os.path.realpath(path) if os.path.isabs(path) and "\0" not in path else ""
        if not self._allows(real, what == "mounts", writable=writable):
            raise SpecError(f"{what} {path[:200]!r}: the server does not allow this path of its own (--allow-path)")
        return real

    def _allows(self, real: str, mounted: bool, *, writable: bool) -> bool:
        inside = [allowed for allowed in self.paths if allowed.contains(real)]
        for allowed in inside:
            if allowed.writable:  # boxes may change what is there, so only the whole of it is known
                return mounted and real == allowed.path
        return bool(inside) and not writable

    def _interpreter(self, path: str) -> str:
        """Return an interpreter, or a virtual environment. The interpreter of one is a link that must keep its name."""
        if not os.path.isabs(path) or "\0" in path:
            return self._path("python", path)
        folder, name = os.path.realpath(os.path.dirname(path)), os.path.basename(path)
        if name not in ("", ".", "..") and self._allows(folder, mounted=False, writable=False):
            return os.path.join(folder, name)
        return self._path("python", path)


class OwnerQuota:
    """What one owner holds. Thread-safe."""

    def __init__(self, rules: Rules) -> None:
        self._most = {
            "boxes": rules.boxes,
            "processes": rules.processes,
            "requests": rules.requests,
            "bytes of requests": rules.request_mb * MB,
            "bytes kept": rules.kept_mb * MB,
        }
        self._held = dict.fromkeys(self._most, 0)
        self.outputs = OutputBudget()
        self._lock = threading.Lock()

    def take(self, what: str, count: int = 1) -> None:
        with self._lock:
            held, most = self._held[what] + count, self._most[what]
            if held > most:
                raise BoxError(f"{held} {what} at once: the server allows each owner {most}", retry=Retry.SAFE)
            self._held[what] = held

    def give_back(self, what: str, count: int = 1) -> None:
        with self._lock:
            self._held[what] -= count

    def held(self, what: str) -> int:
        with self._lock:
            return self._held[what]


class Quotas:
    """The quotas of all owners."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._lock = threading.Lock()
        self._quotas: dict[str, OwnerQuota] = {}

    def of(self, owner: str) -> OwnerQuota:
        """There are as many as the server has tokens."""
        with self._lock:
            return self._quotas.setdefault(owner, OwnerQuota(self.rules))

    def total(self, what: str) -> int:
        with self._lock:
            quotas = list(self._quotas.values())
        return sum(quota.held(what) for quota in quotas)


def _covers(allowed: Rule, asked: Rule) -> bool:
    if allowed.port not in (None, asked.port):
        return False
    if allowed == asked:
        return True
    if asked.name is None or asked.name == "*":
        return allowed.name == asked.name and allowed.block == asked.block
    return allowed.matches_name(asked.name)


def image_matches(image: str, pattern: str) -> bool:
    """Compare part by part: in "python:80/x" the first part is a registry, which "python:*" does not name."""
    if "@" in image and "@" not in pattern:  # a digest counts instead of the tag, so every tag must be allowed
        folder, slash, name = image.partition("@")[0].rpartition("/")
        image = f"{folder}{slash}{name.partition(':')[0]}:\1"
    parts, wanted = image.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


class RequestBudget:
    """Counts the requests of one client that are served or wait, and their bytes."""

    def __init__(self, rules: Rules | None, quota: OwnerQuota | None) -> None:
        self._rules = rules
        self._quota = quota
        self._lock = threading.Lock()
        self._bytes = 0

    def hold(self, size: int) -> bool:
        """Count a request and its bytes for the client and its owner. False if they have too many."""
        try:
            if self._quota is not None:
                self._quota.take("requests")
                try:
                    self._quota.take("bytes of requests", size)
                except BoxError:
                    self._quota.give_back("requests")
                    raise
        except BoxError:
            return False
        with self._lock:
            self._bytes += size
            if self._rules is None or self._bytes <= WAITING_BYTES:
                return True
        self.let_go(size)
        return False

    def let_go(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
        if self._quota is not None:
            self._quota.give_back("requests")
            self._quota.give_back("bytes of requests", size)
