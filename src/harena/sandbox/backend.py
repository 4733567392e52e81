"""What a backend must do, in verbs, and where backends are found by name.

Whoever makes boxes implements `Backend` and `Box`; nothing above imports one. A verb that a backend does not have is
named by its `Capabilities` and raises `Unsupported`. `harena.testing` has the tests that every backend must pass.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harena.errors import BackendUnavailable
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Result, Spec

BACKENDS = {
    "local": "harena.backends.local:LocalBackend",
    "relay": "harena.backends.relay:RelayBackend",
}
ENTRY_POINTS = "harena.backends"
"""The group in which an installed distribution names backends of its own."""
MAX_PACKET = 400_000
"""Bytes of one packet of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend found it can enforce on this host, and by what."""

    launcher: str
    memory: str
    processes: str
    landlock: int
    """The kernel's Landlock ABI; 0: none."""
    counts_memory: bool = False
    """The kernel counts all memory of an execution; else it is watched."""
    forks: bool = False
    """Live boxes can be forked."""
    notes: tuple[str, ...] = ()


class Stop:
    """Ends one execution from another thread, and nothing else in the box; a `run` ends with its interpreter."""

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
        """For what has begun, or is about to: `end` is called at once where the stop came before."""
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
    """One isolated place. A box that is dropped without being closed ends all the same."""

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
        """Runs a command to its end. `env` comes on top of what the box has."""
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
        """Starts a command and returns when it runs."""
        ...

    def run(self, source: str, *, limits: Limits, stop: Stop | None) -> Result:
        """Runs source in the box's one persistent interpreter, which starts with the first run."""
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
        """Calls a function that source defines, in a process of its own on the box's files."""
        ...

    def programs(self) -> Programs:
        """A way to run many programs side by side, each on empty files. Whoever has it uses the box alone."""
        ...

    def converse(self, source: str, *, limits: Limits) -> Conversation:
        """Starts source in a process of its own, on empty files, that exchanges packets with the host."""
        ...

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Has the box's file server do something with the guest's own rights. `harena.sandbox.files` has the messages,
        and believes no answer."""
        ...

    def fork(self, count: int) -> Sequence[Forked]:
        """Boxes that go on from here, with the interpreter's memory and the files: all of them, or an error."""
        ...

    def ping(self) -> None:
        """BoxLost when the box does not answer."""
        ...

    def warm_up(self) -> None:
        """Does now what the first use of Python would have to wait for."""
        ...

    @property
    def alive(self) -> bool:
        """False once the box has hung up. Does not ask the box."""
        ...

    def close(self) -> None:
        """Ends everything in the box and returns when nothing of it is left. Forks of it live on. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Forked:
    box: Box
    left_behind: int
    """Processes of the parent that it did not take along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Programs that run in one process: one, or a group that shares it."""

    sources: Sequence[str]
    stdin: bytes = b""
    """Of a program alone."""
    grouped: bool = False
    limits: Limits
    more: int = 1
    """How many tasks are likely to follow: processes may be made ready for them."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    key: int
    results: Sequence[Result]
    """Of the first sources, in order; those behind them have not run."""
    failure: str = ""
    """Why the platform could not run the task, where there are no results."""


class Programs(Protocol):
    """Tasks of a box. Errors end it: OSError or WireError, and the box with it."""

    def fileno(self) -> int:
        """Becomes readable when there is something to collect, and writable when there is room to flush."""
        ...

    def give(self, key: int, task: Task) -> None:
        """Starts a task, or keeps what does not go out yet: see `flush`. Does not block."""
        ...

    def flush(self) -> bool:
        """Sends what could not be sent before; True when nothing is left."""
        ...

    def collect(self) -> Sequence[TaskDone]:
        """What has ended since. Blocks when there is nothing to read."""
        ...


class Conversation(Protocol):
    """A process that exchanges packets with the host, which times and stops it. What it says is the guest's word."""

    def met(self) -> Conversation:
        """Itself, once the process is there. Everything below comes after that."""
        ...

    def send(self, packet: bytes) -> None:
        """Of at most MAX_PACKET bytes. One that reads nothing makes us wait for two seconds at most; OSError then, and
        when it is gone."""
        ...

    def receive_soon(self) -> bytes | None:
        """A packet that comes within about a millisecond; None when none does, b"" when it has hung up."""
        ...

    def receive(self, wait_s: float) -> bytes | None:
        """The next packet, b"" when it has hung up. None when the time is over, or when it has printed something."""
        ...

    def become_stream(self, packet: bytes) -> None:
        """Sends a packet with a stream for the process, which carries all that is sent and received from now on."""
        ...

    def read_log(self) -> bytes:
        """Some of what it has printed, both streams; b"" when there is nothing more yet. Left unread, it makes the
        process wait."""
        ...

    def cpu_ns(self) -> int:
        """Of all its threads, exactly; 0 once it has ended."""
        ...

    def others_cpu_ns(self) -> int:
        """Of the processes it has started, those that have ended and were waited for included (by the tick)."""
        ...

    def freeze(self) -> None:
        """It and all that it has started stand still."""
        ...

    def thaw(self) -> None: ...

    def pin(self, cpus: set[int]) -> None:
        """It stays on these processors; it cannot undo that, nor can what it starts later."""
        ...

    def end(self, patience_s: float = 0.0) -> Result:
        """Ends it if it has not ended by itself within `patience_s`; how it ended, as the box saw it."""
        ...

    def drop(self) -> None:
        """Ends it without waiting for that: nobody asks how it went. Idempotent, also after `end`."""
        ...


class Backend(Protocol):
    def capabilities(self) -> Capabilities:
        """Raises IsolationUnavailable when no box can be made here."""
        ...

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> Box:
        """`limits` are those of the box's interpreter in memory and processes."""
        ...


@functools.cache
def load(name: str) -> Backend:
    """The backend of that name; BackendUnavailable says what to install."""
    place = BACKENDS.get(name)
    if place is None:
        others = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
        if name not in others:
            known = ", ".join(sorted({*BACKENDS, *others}))
            raise BackendUnavailable(f"no backend {name!r}; there is: {known}")
        return others[name].load()()
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)()
