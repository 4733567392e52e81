"""Sandbox: run commands and Python in a box, move files, take snapshots, fork and close it.

Guarantees: after `close` nothing of the box is left; guest failures are values, platform failures are exceptions. The
isolation itself is done by backends. Any method may be called from any thread; runs of the interpreter take turns.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from harena.errors import BoxClosed, JournalError, SpecError
from harena.sandbox import backend as backends
from harena.sandbox import owner
from harena.sandbox.alarm import ALARM, ScheduledCall
from harena.sandbox.backend import Conversation, Programs, Stop
from harena.sandbox.files import MAX_ENTRIES, Files, Snapshot
from harena.sandbox.process import Process
from harena.sandbox.shell import Shell
from harena.sandbox.spec import MB, Clocks, FileInfo, Limits, Result, Spec, given_or_default

if TYPE_CHECKING:
    from harena.journal import Journal
    from harena.sandbox.border.observed import Observer
    from harena.sandbox.network import Network, NetworkReport

MAX_FORKS = 32

P = ParamSpec("P")
T = TypeVar("T")


def _touches(method: Callable[Concatenate[Sandbox, P], T]) -> Callable[Concatenate[Sandbox, P], T]:
    """Refuse calls on a closed box, and pause the idle clock during a call."""

    @functools.wraps(method)
    def wrapped(self: Sandbox, *args: P.args, **kwargs: P.kwargs) -> T:
        self.begin_call()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.end_call()

    return wrapped


class Sandbox:
    def __init__(
        self,
        spec: Spec | str | None = None,
        *,
        image: str | None = None,
        backend: str = "local",
        token: str | None = None,
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
    ) -> None:
        """`Sandbox("https://host:8700", token=…)` is a box on a server; with a spec, give the URL as `backend`.
        journal: record everything that crosses the border of the box, in this new file or a new file of this folder."""
        spec, backend = backends.where(spec, backend)
        if spec is not None and image is not None:
            raise SpecError("image: give it in the spec, or alone")
        self.spec = given_or_default("spec", spec, Spec) if image is None else Spec(image=image)
        self.limits = given_or_default("limits", limits, Limits)
        self.clocks = given_or_default("clocks", clocks, Clocks)
        made = backends.load(backend, token).create(self.spec, limits=self.limits, start_s=self.clocks.start_s)
        self._set_up(made, parent=None)
        if journal is not None:
            try:
                self.record(journal)
            except BaseException:
                self.close()
                raise

    def _set_up(self, box: backends.Box, *, parent: Sandbox | None) -> None:
        self.id = box.id
        self.isolation = getattr(box, "isolation", "full")
        """The isolation tier of this box."""
        self.lineage: tuple[str, ...] = () if parent is None else (*parent.lineage, parent.id)
        """The ids of the boxes this one was forked from, the oldest first."""
        self.left_behind = 0
        """Number of the parent's processes that a fork does not have."""
        self.on_close: Callable[[], object] | None = None
        self._box = box
        self._files = Files(box.ask_files)
        self._lock = threading.Lock()
        self._calls = 0
        self._used_at = time.monotonic()
        self._closed: str | None = None
        self._owner = os.getpid()
        self._rings: list[ScheduledCall] = []
        self._start_clocks()

    # ---- observers ----

    def record(self, journal: str | os.PathLike[str] | Journal) -> Journal:
        """Record what crosses the border of the box from now on. See `journal` of the constructor."""
        from harena.sandbox.border.journaling import JournalObserver, open_journal

        if self.journal is not None:
            raise SpecError(f"box {self.id} has the journal {self.journal.path} already")
        opened = open_journal(journal, self.id)
        try:
            observer = JournalObserver(opened, self.id, self.spec, self.limits)
        except JournalError:
            opened.close()
            raise
        self.observe(observer)
        return opened

    def observe(self, observer: Observer) -> None:
        """Show the observer everything that crosses the border of the box from now on."""
        from harena.sandbox.border.observed import ObservedBox

        self._box = ObservedBox(self._box, observer)
        self._files = Files(self._box.ask_files)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those of `observe` and `record`, the latest first."""
        found: list[Observer] = []
        box: Any = self._box
        while (observer := getattr(box, "observer", None)) is not None:
            found.append(observer)
            box = box.inner
        return tuple(found)

    @property
    def journal(self) -> Journal | None:
        """The journal of the box, if it has one."""
        observers: tuple[Any, ...] = self.observers
        return next((one.journal for one in observers if hasattr(one, "journal")), None)

    # ---- commands ----

    @_touches
    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
        stop: Stop | None = None,
    ) -> Result:
        """Run a command to its end. Processes that it left running end with it; use `start` to keep them. With `stop`,
        another thread can end it; the same holds for `run` and `call`."""
        check_command(argv, env, cwd)
        limits = limits or self.limits
        return self._box.exec(argv, stdin=stdin, env=env or {}, cwd=cwd or "", limits=limits, stop=stop)

    @_touches
    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
    ) -> Process:
        """Start a command and return at once. With `pty` it has a terminal, and stderr is part of stdout."""
        check_command(argv, env, cwd)
        limits = limits or self.limits
        return self._box.start(argv, env=env or {}, cwd=cwd or "", limits=limits, pty=pty, rows=rows, cols=cols)

    @_touches
    def shell(
        self,
        argv: Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
    ) -> Shell:
        """Start a shell that keeps its variables, functions, working folder and background jobs from one
        `Shell.exec` to the next: the one that the image names (SHELL), else bash, or sh where there is none. `limits`
        apply to the shell with all its jobs, but `wall_s` and `output_bytes` to each command."""
        of_image = getattr(self._box, "shell_of_image", ())
        make: Callable[..., Shell] = getattr(self._box, "observed_shell", Shell)
        return make(
            self, self._files.head, argv=argv, of_image=of_image, env=env or {}, cwd=cwd, limits=limits or self.limits
        )

    # ---- Python ----

    @_touches
    def run(self, source: str, *, limits: Limits | None = None, stop: Stop | None = None) -> Result:
        """Run source in the box's persistent interpreter, which keeps its variables until it ends. Time and output are
        limited per run; memory and processes are limited by the box's limits, set when the interpreter starts."""
        return self._box.run(source, limits=limits or self.limits, stop=stop)

    @_touches
    def call(
        self,
        source: str,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        stop: Stop | None = None,
    ) -> Result:
        """Call a function that source defines, in a new process, with JSON arguments. `value` is its result."""
        check_call(name)
        return self._box.call(source, name, args, kwargs or {}, limits=limits or self.limits, stop=stop)

    @_touches
    def programs(self, observer: Observer | None = None) -> Programs:
        """Run many programs in parallel, for the pool. Meanwhile the box can be used for nothing else. The observer
        sees these programs alone."""
        if observer is None:
            return self._box.programs()
        from harena.sandbox.border.observed import ObservedBox

        return ObservedBox(self._box, observer).programs()

    @_touches
    def converse(self, source: str, *, limits: Limits | None = None) -> Conversation:
        """Run source in a new process, on its own empty files, that exchanges packets with the caller: over descriptor
        5 in the box, with `send` and `receive` outside. The caller must enforce the clocks of `limits` and end the
        process with `Conversation.end`. Returns before the process exists: `Conversation.met` waits for it."""
        return self._box.converse(source, limits=limits or self.limits)

    @_touches
    def converse_with(self, argv: Sequence[str], *, cpus: set[int], limits: Limits | None = None) -> Conversation:
        """Run a command of an image in the same way: what it reads from stdin is what `send` sends, what it writes to
        stdout is what `receive` returns, in any pieces, and stderr is its log. It is bound to `cpus`, if there are any,
        before it runs. Needs a box from an image."""
        check_command(argv, None, None)
        return self._box.converse_with(argv, limits=limits or self.limits, cpus=cpus)

    # ---- forks ----

    @_touches
    def fork(self, count: int = 1) -> list[Sandbox]:
        """Create boxes that continue from here. They have the interpreter's memory (copy on write) and copies of the
        files of the workspace and /tmp. Other processes and threads are not copied (`left_behind` of a fork is the
        number of such processes). Files that the interpreter holds open are shared with its forks, as after any fork.
        Forks outlive this box."""
        if not 1 <= count <= MAX_FORKS:
            raise SpecError(f"fork({count}): from 1 to {MAX_FORKS} at once")
        return [self._adopt(forked) for forked in self._box.fork(count)]

    def _adopt(self, forked: backends.Forked) -> Sandbox:
        box = Sandbox.__new__(Sandbox)
        box.spec, box.limits, box.clocks = self.spec, self.limits, self.clocks
        box._set_up(forked.box, parent=self)
        box.left_behind = forked.left_behind
        return box

    # ---- network ----

    @_touches
    def set_network(self, network: Network | None) -> None:
        """Replace what the box may reach, with caps that count from now on; None closes its network. Connections that
        are no longer allowed are cut before this returns. The box must have been created with a network
        (`Spec.network`); `Network()` allows nothing. Forks keep the network that their parent had."""
        if self.spec.network is None:
            raise SpecError(
                "set_network: the box was created without one; give Spec(network=Network()) to open it later"
            )
        self._box.set_network(network)

    @_touches
    def network_report(self) -> NetworkReport:
        """Return what the box did with its network since it was created, and which attempts were refused."""
        return self._box.network_report()

    @_touches
    def connect(self, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """Return a socket that is connected to a port on the box's loopback interface. The box needs no network for
        it. Raises OSError if nothing listens there. What comes from the socket is the guest's."""
        if isinstance(port, bool) or not 1 <= port <= 65535:
            raise SpecError(f"connect({port!r}): a port is from 1 to 65535")
        return self._box.connect(port, timeout_s)

    # ---- files ----

    @_touches
    def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """Return the contents of a file. Raises BoxFileTooLarge if there is more than the cap."""
        return self._files.read(path, max_bytes)

    @_touches
    def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Replace a file in one step. Missing folders are created."""
        self._files.write(path, data.encode() if isinstance(data, str) else data, mode)

    @_touches
    def list(self, path: str = ".", *, recursive: bool = False, max_entries: int = MAX_ENTRIES) -> list[FileInfo]:
        return self._files.list(path, recursive=recursive, max_entries=max_entries)

    @_touches
    def sha256(self, path: str) -> str:
        """Return the digest of a file, computed in the box."""
        return self._files.sha256(path)

    @_touches
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        self._files.remove(path)

    @_touches
    def upload(self, source: str | os.PathLike[str], path: str = ".") -> int:
        """Copy a folder of the host into the box. Returns the number of entries."""
        return self._files.upload(Path(source), path)

    @_touches
    def download(self, path: str, target: str | os.PathLike[str], *, max_bytes: int = 256 * MB) -> int:
        """Copy a folder of the box to the host. Returns the number of entries."""
        return self._files.download(path, Path(target), max_bytes)

    @_touches
    def snapshot(self) -> Snapshot:
        """Save the current workspace. The interpreter's memory is not part of it; `fork` copies that."""
        return self._files.snapshot(self.spec.workspace_mb * MB)

    @_touches
    def restore(self, snapshot: Snapshot) -> None:
        self._files.restore(snapshot, self.spec.workspace_mb * MB)

    # ---- life ----

    @_touches
    def ping(self) -> None:
        """Check that the box answers. Raises BoxLost if it does not."""
        self._box.ping()

    def warm_up(self) -> None:
        """Start Python and the file server now, so that their first use does not have to wait."""
        owner.check(self._owner, f"box {self.id}")
        self._box.warm_up()

    @property
    def alive(self) -> bool:
        """False once the box is closed or disconnected."""
        return self._closed is None and self._box.alive

    @property
    def leaving(self) -> bool:
        """True if the box works, but its node shall get no more work: it was taken from the list, or is stopping."""
        return bool(getattr(self._box, "leaving", False))

    @property
    def node(self) -> str:
        """The node that has the box, where there are several; else empty."""
        return str(getattr(self._box, "node", ""))

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def close(self, reason: str = "it was closed") -> None:
        """End everything in the box. Its forks continue to run. Idempotent. Does nothing in a forked child of the
        owner."""
        if os.getpid() != self._owner:
            self._closed = self._closed or reason
            return
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
        for ring in self._rings:
            ring.cancel()
        self._box.close()
        if self.on_close is not None:
            self.on_close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}{' closed' if self.closed else ''}>"

    def begin_call(self) -> None:
        owner.check(self._owner, f"box {self.id}")
        with self._lock:
            if self._closed is not None:
                raise BoxClosed(f"box {self.id}: {self._closed}")
            self._calls += 1

    def end_call(self) -> None:
        with self._lock:
            self._calls -= 1
            self._used_at = time.monotonic()

    def _start_clocks(self) -> None:
        this: weakref.ref[Sandbox] = weakref.ref(self)
        now = time.monotonic()
        lifetime, idle = self.clocks.lifetime_s, self.clocks.idle_s
        if lifetime is not None:
            reason = f"its lifetime_s={lifetime:g} is over"
            self._rings.append(ALARM.at(now + lifetime, lambda: _close_for(this, reason)))
        if idle is not None:
            self._rings.append(ALARM.at(now + idle, lambda: _close_when_idle(this, idle)))

    def close_at(self, when: float, reason: str) -> None:
        """Close the box at that monotonic time, also if nobody holds it any more."""
        self._rings.append(ALARM.at(when, lambda: self.close(reason)))


def check_call(name: str) -> None:
    if not name.isidentifier():
        raise SpecError(f"call {name[:80]!r}: not the name of a function")


def check_command(argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None) -> None:
    words: Sequence[Any] = argv  # a caller without a type checker may hand over anything
    if isinstance(argv, str) or not argv or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise SpecError("argv: a non-empty list of words without NUL bytes; for a shell line use ['sh', '-c', line]")
    for name, value in (env or {}).items():
        if not name or "=" in name or "\0" in name + value:
            raise SpecError(f"env {name!r}: not a usable name or value")
    if "\0" in (cwd or ""):
        raise SpecError("cwd: a path cannot hold a NUL byte")


def _close_for(this: weakref.ref[Sandbox], reason: str) -> None:
    box = this()
    if box is not None:
        box.close(reason)


def _close_when_idle(this: weakref.ref[Sandbox], idle_s: float) -> float | None:
    """Close the box, or return when to check again."""
    box = this()
    if box is None or box.closed:
        return None
    with box._lock:  # pyright: ignore[reportPrivateUsage]
        due = time.monotonic() if box._calls else box._used_at  # pyright: ignore[reportPrivateUsage]
    if due + idle_s > time.monotonic():
        return due + idle_s
    box.close(f"it was idle for idle_s={idle_s:g}")
    return None
