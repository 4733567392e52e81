"""Interface of backends, and their lookup by name.

A backend implements `Backend` and `Box`; nothing above this layer imports it. `Capabilities` says which verbs a backend
lacks; these raise `Unsupported`. `harena.testing` has the tests that every backend must pass.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from harena.errors import BackendUnavailable, SpecError
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Result, Spec

if TYPE_CHECKING:
    from harena.sandbox.network import Network, NetworkReport

BACKENDS = {
    "local": "harena.backends.local:LocalBackend",
    "docker": "harena.backends.docker:DockerBackend",
    "relay": "harena.backends.relay:RelayBackend",
}
SCHEMES = {
    "http://": "harena.backends.remote:RemoteBackend",
    "https://": "harena.backends.remote:RemoteBackend",
    "unix:": "harena.backends.remote:RemoteBackend",
    "harena://": "harena.backends.cluster:by_list",
    "nodes:": "harena.backends.cluster:by_list",
    "kubernetes:": "harena.backends.kubernetes:KubernetesBackend",
    "ray://": "harena.backends.cluster:by_ray",
    "executor:": "harena.backends.relay.executor:ExecutorBackend",
}
"""The backends that are given by URL: one server, a list of servers or the file with it, a warm pool of a Kubernetes
cluster, a Ray cluster, and the executor container beside a server."""
ENTRY_POINTS = "harena.backends"
"""Entry point group in which installed packages register backends."""
MAX_PACKET = 400_000
"""Maximum size of a packet in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can enforce on this host, and by which means."""

    launcher: str
    memory: str
    processes: str
    landlock: int
    """The kernel's Landlock ABI; 0 if there is none."""
    counts_memory: bool = False
    """True if the kernel counts all memory of an execution; otherwise memory is sampled."""
    forks: bool = False
    """True if live boxes can be forked."""
    network: bool = False
    """True if boxes can have a network (`Spec.network`) and be connected to (`Box.connect`)."""
    ids: str = ""
    """User ids of boxes from images: "full" if they have all, "single" if one with ownership emulated; empty if the
    backend has no such boxes."""
    isolation: str = "full"
    """The isolation tier of the boxes: "full" or "restricted"."""
    not_covered: tuple[str, ...] = ()
    """What boxes of this tier lack compared with full ones, one sentence each."""
    notes: tuple[str, ...] = ()
    cores: int = 0
    """Processors that the boxes share, if they are not those of this process."""


class Stop:
    """End one execution from another thread, and nothing else in the box. A `run` ends with its interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None
        self.requested = False

    def __call__(self) -> None:
        with self._lock:
            self.requested = True
            if self._end is not None:
                self._end()

    @contextlib.contextmanager
    def ends(self, end: Callable[[], object]) -> Generator[None]:
        """Register how to end the execution. `end` is called at once if the stop came first."""
        with self._lock:
            self._end = end
            if self.requested:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None


class Box(Protocol):
    """One box. A box that is dropped without being closed ends as well."""

    id: str

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str],
        cwd: str,
        limits: Limits,
        stop: Stop | None,
    ) -> Result:
        """Run a command to its end. `env` is added to the box's environment."""
        ...

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        limits: Limits,
        pty: bool,
        rows: int,
        cols: int,
    ) -> Process:
        """Start a command and return when it runs."""
        ...

    def run(self, source: str, *, limits: Limits, stop: Stop | None) -> Result:
        """Run source in the box's single persistent interpreter, which starts with the first run."""
        ...

    def call(
        self,
        source: str,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        limits: Limits,
        stop: Stop | None,
    ) -> Result:
        """Call a function that source defines, in a new process on the box's files."""
        ...

    def programs(self) -> Programs:
        """Run many programs in parallel, each on empty files. Meanwhile the box can be used for nothing else."""
        ...

    def converse(self, source: str, *, limits: Limits) -> Conversation:
        """Start source in a new process, on empty files, that exchanges packets with the host."""
        ...

    def converse_with(self, argv: Sequence[str], *, limits: Limits, cpus: set[int]) -> Conversation:
        """Start a command in the same way, with one stream as stdin and stdout, bound to `cpus` before it runs. Raises
        Unsupported where the box has no image."""
        ...

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a message to the box's file server, which has the guest's own rights. `harena.sandbox.files` defines the
        messages and does not trust the answers."""
        ...

    def fork(self, count: int) -> Sequence[Forked]:
        """Create boxes that continue from here, with the interpreter's memory and the files: all of them, or an
        error."""
        ...

    def set_network(self, network: Network | None) -> None:
        """Replace what a box with a network may reach; None closes it."""
        ...

    def network_report(self) -> NetworkReport:
        """Return what the box did with its network since it was created."""
        ...

    def connect(self, port: int, timeout_s: float) -> socket.socket:
        """Return a socket that is connected to a port of the box's loopback interface."""
        ...

    def ping(self) -> None:
        """Raise BoxLost if the box does not answer."""
        ...

    def warm_up(self) -> None:
        """Start Python now, so that its first use does not have to wait."""
        ...

    @property
    def alive(self) -> bool:
        """False once the box is disconnected. Sends nothing to the box."""
        ...

    def close(self) -> None:
        """End everything in the box and return when nothing of it is left. Its forks continue to run. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Forked:
    box: Box
    left_behind: int
    """Number of the parent's processes that the fork does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Programs that run in one process: a single one, or a group that shares it."""

    sources: Sequence[str]
    stdin: bytes = b""
    """Input of a single program."""
    grouped: bool = False
    limits: Limits
    more: int = 1
    """How many tasks are likely to follow, so that processes can be prepared for them."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    key: int
    results: Sequence[Result]
    """Results of the first sources, in order; the others have not run."""
    failure: str = ""
    """Why the platform could not run the task, if there are no results."""


class Programs(Protocol):
    """Runs tasks in a box. An error (OSError or WireError) ends it together with the box."""

    def fileno(self) -> int:
        """Becomes readable when there is something to collect, and writable when there is room to flush."""
        ...

    def give(self, key: int, task: Task) -> None:
        """Start a task, or keep the part that cannot be sent yet (see `flush`). Does not block."""
        ...

    def flush(self) -> bool:
        """Send what could not be sent before. Returns True if nothing is left."""
        ...

    def collect(self) -> Sequence[TaskDone]:
        """Return the tasks that have ended since. Blocks if there is nothing to read."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """One wait for a packet, with the clocks of the machine on which the process runs."""

    packet: bytes | None
    """As `Conversation.receive` returns it."""
    began_ns: int
    ended_ns: int
    """Monotonic time."""
    cpu_ns: int
    """CPU time of the process at the end."""


class Conversation(Protocol):
    """A process that exchanges packets with the host, which times and stops it. Its packets are untrusted."""

    def met(self) -> Conversation:
        """Wait until the process exists, and return the conversation. Call this before the methods below."""
        ...

    def send(self, packet: bytes) -> None:
        """Send a packet of at most MAX_PACKET bytes. Raises OSError if the process is gone, or does not read for two
        seconds."""
        ...

    def receive_soon(self) -> bytes | None:
        """Return a packet that comes within about a millisecond; None if none does, b"" if the process disconnected."""
        ...

    def receive(self, wait_s: float) -> bytes | None:
        """Return the next packet, or b"" if the process disconnected. None if the time is over or if it printed
        something."""
        ...

    def turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        """Receive, and read the clocks where the process is. The wait also ends when its CPU time reaches `cpu_ns`."""
        ...

    def become_stream(self, packet: bytes) -> None:
        """Send a packet with a stream for the process, which carries everything that is sent and received from now
        on."""
        ...

    def read_log(self) -> bytes:
        """Return some of the printed output, both streams; b"" if there is no more yet. If nobody reads it, the process
        has to wait."""
        ...

    def cpu_ns(self) -> int:
        """Exact CPU time of all its threads; 0 once it has ended."""
        ...

    def others_cpu_ns(self) -> int:
        """CPU time of the processes it has started, including ended ones that were waited for (accurate to the
        tick)."""
        ...

    def freeze(self) -> None:
        """Pause the process and everything it has started."""
        ...

    def thaw(self) -> None: ...

    def pin(self, cpus: set[int]) -> None:
        """Bind it to these processors. Neither it nor processes it starts later can undo this."""
        ...

    def end(self, patience_s: float = 0.0) -> Result:
        """End the process if it has not ended by itself within `patience_s`. Returns how it ended, as seen by the
        box."""
        ...

    def drop(self) -> None:
        """End the process without waiting for the result. Idempotent, also after `end`."""
        ...


def take_turn(talk: Conversation, wait_s: float, cpu_ns: int | None) -> Turn:
    """`Conversation.turn` of a process on this machine."""
    began = time.monotonic_ns()
    packet = talk.receive(0.0)
    if packet is None and wait_s > 0:
        left = math.inf if cpu_ns is None else (cpu_ns - talk.cpu_ns()) / 1e9
        if left >= 0:
            packet = talk.receive(min(wait_s, max(0.001, left)) + 0.001)
    return Turn(packet, began, time.monotonic_ns(), talk.cpu_ns())


class Backend(Protocol):
    def capabilities(self) -> Capabilities:
        """Raise IsolationUnavailable if no box can be created here."""
        ...

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> Box:
        """Create a box. `limits` are the memory and process limits of its interpreter."""
        ...


@runtime_checkable
class ManyNodes(Protocol):
    """A backend whose nodes come and go."""

    def cores_now(self) -> int:
        """Return how many processors its boxes share at this moment. Asks nobody."""
        ...


@runtime_checkable
class RecordsBoxes(Protocol):
    """A backend that records the boxes of this machine."""

    def box_owners(self) -> tuple[list[int], int]:
        """Return the pid of each box's process owner, and the number of boxes whose owner is gone."""
        ...


def is_url(name: str) -> bool:
    """Whether a backend is on other machines, given by its URL."""
    return name.startswith(tuple(SCHEMES))


def where(spec: Spec | str | None, backend: str) -> tuple[Spec | None, str]:
    """Separate the URL of a server that was given in place of a spec."""
    if not isinstance(spec, str):
        return spec, backend
    if not is_url(spec):
        hint = "for an image, give image=NAME; for a server its URL (https://HOST:PORT, kubernetes://NAMESPACE/POOL)"
        raise SpecError(f"spec: expected a Spec, not {spec!r:.80}; {hint}")
    if backend != "local":
        raise SpecError(f"{spec!r:.200}: the URL of a server takes the place of a backend, so give no backend")
    if spec.startswith("kubernetes:") and "HARENA_ISOLATION" not in os.environ:
        return Spec(isolation="best"), spec  # a pool that is named without a spec decides the tier
    return None, spec


def cores(name: str, token: str | None) -> int:
    """Return how many processors the boxes of a backend share."""
    there = load(name, token).capabilities().cores if is_url(name) else 0
    return there or len(os.sched_getaffinity(0))


def box_owners(name: str) -> tuple[list[int], int]:
    """As `RecordsBoxes.box_owners`; none for a backend that records no boxes here."""
    found = None if is_url(name) else load(name)
    return found.box_owners() if isinstance(found, RecordsBoxes) else ([], 0)


def cores_now(name: str, token: str | None) -> int | None:
    """Return how many processors the boxes of a backend share now; None if that does not change."""
    found = load(name, token) if is_url(name) else None
    return found.cores_now() if isinstance(found, ManyNodes) else None


@functools.cache
def load(name: str, token: str | None = None) -> Backend:
    """Return the backend of that name, or the server of that URL. Raises BackendUnavailable, which says what to
    install."""
    for scheme, place in SCHEMES.items():
        if name.startswith(scheme):
            return _find(place)(name, token)
    if token is not None:
        raise SpecError(f"token: only a server takes one, and {name!r} is not the URL of one")
    place = BACKENDS.get(name)
    if place is None:
        others = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
        if name not in others:
            known = ", ".join(sorted({*BACKENDS, *others}))
            raise BackendUnavailable(f"no backend {name!r}; there is: {known}, and servers by URL (https://HOST:PORT)")
        return others[name].load()()
    return _find(place)()


def _find(place: str) -> Callable[..., Backend]:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
