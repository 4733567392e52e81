"""A box as its user sees it: run commands and Python in it, move files, take snapshots, fork it, close it.

Guarantees: after `close` nothing of the box is left; what a guest does is a value, what the platform fails at is an
exception. Does not isolate: backends do. Any method may be called from any thread; runs of the interpreter take turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from harena.errors import BoxClosed, BoxError, BoxLost, Retry, SpecError, WireError
from harena.sandbox import backend, outcome, owner, wire
from harena.sandbox import interpreter as interpreters
from harena.sandbox.alarm import ALARM
from harena.sandbox.channel import Channel, NoAnswer
from harena.sandbox.files import MAX_ENTRIES, Files, Snapshot
from harena.sandbox.interpreter import Interpreter
from harena.sandbox.process import Process
from harena.sandbox.spec import MB, WORKSPACE, Clocks, FileInfo, Limits, Result, Spec, Verdict
from harena.sandbox.talk import Talk

SESSION, PROGRAM, INTERPRETER, TALK = 0, 1, 2, 3
"""The seccomp profiles of a box's configuration."""
GRACE_S = 30.0
"""How much longer than the guest's own limit the host waits for the box's word."""
FILES_MEMORY = 256 * MB
RUNNER_BYTES = 256
"""What the runner in a program's process writes to the result pipe of its own: CPU time, limits, exit code."""
MAX_FORKS = 32
MAX_VIEWS = 200
TERMINAL = "xterm-256color"
"""What a command with a terminal is told to write for, unless the caller says otherwise: what nearly all understand."""

P = ParamSpec("P")
T = TypeVar("T")


def _touches(method: Callable[Concatenate[Sandbox, P], T]) -> Callable[Concatenate[Sandbox, P], T]:
    """Refuses on a closed box, and keeps the idle clock from running while the call does."""

    @functools.wraps(method)
    def wrapped(self: Sandbox, *args: P.args, **kwargs: P.kwargs) -> T:
        self.begin_call()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.end_call()

    return wrapped


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


def _request(channel: Channel, spawn: wire.Spawn, limits: Limits, stop: Stop | None) -> wire.Frame:
    """One execution, to its end."""
    timeout_s = limits.wall_s + GRACE_S
    if stop is None:
        return channel.request(wire.Op.SPAWN, spawn.encode(), timeout_s=timeout_s, room=spawn.room)
    job = channel.post(wire.Op.SPAWN, spawn.encode(), room=spawn.room)
    try:
        with stop.ends(lambda: channel.tell(wire.Op.KILL, struct.pack("<II", job, 0))):
            return channel.wait(job, timeout_s)
    finally:
        channel.forget(job)


class Core:
    """What the boxes of one lineage share: the backend's box. It ends with the last of them."""

    def __init__(self, box: backend.Box) -> None:
        self.box = box
        self._lock = threading.Lock()
        self._views = {0}

    def join(self) -> int:
        """A number for one more box of the lineage."""
        with self._lock:
            view = next(number for number in itertools.count(1) if number not in self._views)
            if view >= MAX_VIEWS:
                raise BoxError(f"a lineage has at most {MAX_VIEWS} boxes at once: close some", retry=Retry.SAFE)
            self._views.add(view)
            return view

    @property
    def shared(self) -> bool:
        return len(self._views) > 1

    def leave(self, view: int) -> None:
        with self._lock:
            self._views.discard(view)
            last = not self._views
        if last:
            self.box.close()


class Sandbox:
    def __init__(
        self,
        spec: Spec | None = None,
        *,
        backend: str = "local",
        limits: Limits | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.spec = spec or Spec()
        self.limits = limits or Limits()
        self.clocks = clocks or Clocks()
        core = Core(_load(backend).create(self.spec, start_s=self.clocks.start_s))
        self._set_up(core, view=0, parent=None, interpreter=None)

    def _set_up(self, core: Core, *, view: int, parent: Sandbox | None, interpreter: Interpreter | None) -> None:
        self.id = core.box.id if view == 0 else f"{core.box.id}.{view}"
        self.lineage: tuple[str, ...] = () if parent is None else (*parent.lineage, parent.id)
        """The ids of the boxes this one was forked from, the oldest first."""
        self.left_behind = 0
        """Processes of the parent that a fork did not take along."""
        self._core = core
        self._view = view
        self._interpreter = interpreter
        self._files: Files | None = None
        self._files_job = 0
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._run_lock = threading.RLock()
        self._calls = 0
        self._used_at = time.monotonic()
        self._closed: str | None = None
        self._owned: list[Interpreter | Files] = [] if interpreter is None else [interpreter]
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _let_go, self._owner, core, view, self._owned)
        self.on_close: Callable[[], object] | None = None
        self._start_clocks()

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
        """Runs a command to its end. What it left running ends with it; `start` is for what should stay. With `stop`
        another thread can end it; so for `run` and `call`."""
        limits = limits or self.limits
        spawn = self._command(argv, env, cwd, limits, wire.Flag.CAPTURE, stdin=stdin)
        frame = _request(self._init, spawn, limits, stop)
        return outcome.result_of(outcome.done_of(frame, self.id), limits, what=argv[0])

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
        """Starts a command and returns at once. With `pty` it has a terminal, and stderr comes with stdout."""
        limits = limits or self.limits
        if pty and "TERM" not in self._core.box.env:
            env = {"TERM": TERMINAL, **(env or {})}
        flags = wire.Flag.NOTIFY | (wire.Flag.PTY if pty else wire.Flag(0))
        spawn = self._command(argv, env, cwd, limits, flags, rows=rows, cols=cols)
        init = self._init
        with contextlib.ExitStack() as theirs:
            ours: list[int] = []
            fds: list[int] = []
            for for_writing in () if pty else (True, False, False):
                read, write = os.pipe()
                ours.append(write if for_writing else read)
                fds.append(read if for_writing else write)
                theirs.callback(os.close, fds[-1])
            try:
                id = init.post(wire.Op.SPAWN, spawn.encode(), tuple(fds))
                frame = init.wait(id, GRACE_S)
                if frame.op != wire.Op.STARTED or (pty and not frame.fds):
                    outcome.done_of(frame, self.id)
                    raise WireError("the box did not say that the command was started")
            except BaseException:
                for fd in ours:
                    os.close(fd)
                raise
        if pty:
            ours = [frame.fds[0], frame.fds[0]]
        else:
            for fd in frame.fds:
                os.close(fd)  # nobody asked for any
        process = Process(
            init, id, limits, argv[0], stdin=ours[0], stdout=ours[1], stderr=None if pty else ours[2], pty=pty
        )
        self._processes.add(process)
        return process

    def _command(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        limits: Limits,
        flags: wire.Flag,
        *,
        stdin: bytes = b"",
        rows: int = 0,
        cols: int = 0,
    ) -> wire.Spawn:
        words: Sequence[Any] = argv  # a caller without a type checker may hand over anything
        if isinstance(argv, str) or not argv or not all(isinstance(word, str) and "\0" not in word for word in words):
            raise SpecError(
                "argv: a non-empty list of words without NUL bytes; for a shell line use ['sh', '-c', line]"
            )
        for name, value in (env or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise SpecError(f"env {name!r}: not a usable name or value")
        folder = os.path.join(WORKSPACE, cwd or "")
        if "\0" in folder:
            raise SpecError("cwd: a path cannot hold a NUL byte")
        return wire.Spawn(
            kind=wire.Kind.EXEC,
            flags=flags,
            argv=tuple(map(os.fsencode, argv)),
            env=tuple(os.fsencode(f"{name}={value}") for name, value in {**self._core.box.env, **(env or {})}.items()),
            cwd=os.fsencode(folder),
            stdin=stdin,
            profile=SESSION,
            view=self._view,
            rows=rows,
            cols=cols,
            **_limit_fields(limits),
        )

    # ---- Python ----

    @_touches
    def run(self, source: str, *, limits: Limits | None = None, stop: Stop | None = None) -> Result:
        """Runs source in the box's persistent interpreter, which keeps its variables until it ends. Time and output
        are limited per run; memory and processes are those of the box's limits, set when the interpreter starts."""
        limits = limits or self.limits
        with self._run_lock:
            if stop is not None and stop.requested:
                raise BoxError("the run was stopped before its turn came", retry=Retry.SAFE)
            if self._interpreter is None or not self._interpreter.alive:
                self._interpreter = self._start_interpreter()
            interpreter = self._interpreter
            with contextlib.nullcontext() if stop is None else stop.ends(interpreter.kill):
                if not interpreter.alive:
                    raise BoxError("the run was stopped before it began", retry=Retry.SAFE)
                return interpreter.run(source, limits)

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
        """Calls a function that source defines, in a process of its own, with JSON arguments; `value` is its answer."""
        limits = limits or self.limits
        payload = call_payload(source, name, args, kwargs or {})
        spawn = program_spawn(payload, limits, fresh_mb=None, view=self._view, answer_bytes=limits.output_bytes)
        frame = _request(self._python, spawn, limits, stop)
        return call_result(outcome.done_of(frame, self.id), limits, name)

    def _start_interpreter(self) -> Interpreter:
        python = self._python
        ours, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        payload = b"S" + _piece(json.dumps({"role": "interpreter"}).encode())
        flags = wire.Flag.FORKABLE | wire.Flag.NOTIFY
        limits = _limit_fields(self.limits)
        limits.update(wall_ns=0, output=0, cpu_ns=0)  # these are kept per run, by the host
        limits["fs_bytes"] = self.spec.workspace_mb * MB  # of the workspace that a fork of it gets
        spawn = wire.Spawn(
            kind=wire.Kind.SERVER, flags=flags, profile=INTERPRETER, view=self._view, payload=payload, **limits
        )
        try:
            job = python.post(wire.Op.SPAWN, spawn.encode(), (null, out[1], err[1], theirs.fileno()))
            frame = python.wait(job, GRACE_S)
            if frame.op != wire.Op.STARTED:
                outcome.done_of(frame, self.id)
                raise WireError("the box did not say that the interpreter was started")
        except BaseException:
            ours.close()
            os.close(out[0])
            os.close(err[0])
            raise
        finally:
            theirs.close()
            for fd in (null, out[1], err[1]):
                os.close(fd)
        interpreter = Interpreter(python, job, self.limits, ours, out[0], err[0])
        self._owned.append(interpreter)
        return interpreter

    @_touches
    def talk(self, source: str, *, limits: Limits | None = None) -> Talk:
        """Runs source in a process of its own, on empty files of its own, that talks to the caller over a socket:
        descriptor 5 in there, `Talk.sock` out here, packets of at most Talk.MAX_PACKET bytes. The clocks
        of `limits` are left to the caller, and so is the end: `Talk.end`. Returns before the process is there:
        `Talk.met` waits for it."""
        limits = limits or self.limits
        payload = b"T" + _piece(source.encode("utf-8", "surrogatepass"))
        fields = _limit_fields(limits)
        fields.update(wall_ns=0, cpu_ns=0, output=0)
        spawn = wire.Spawn(
            kind=wire.Kind.SERVER,
            flags=wire.Flag.NOTIFY | wire.Flag.FRESH_FS,
            profile=TALK,
            fs_bytes=self.spec.workspace_mb * MB,
            view=self._view,
            payload=payload,
            **fields,
        )
        return Talk.start(self._python, spawn, limits, self.id)

    # ---- forks ----

    @_touches
    def fork(self, count: int = 1) -> list[Sandbox]:
        """Boxes that go on from here: the interpreter's memory and the files of the workspace and /tmp go along, copy
        on write and copied. Other processes stay behind (`left_behind` of a fork says how many), and so do threads.
        A file that the interpreter holds open is shared with its forks, as after any fork. Forks outlive this box."""
        if not 1 <= count <= MAX_FORKS:
            raise SpecError(f"fork({count}): from 1 to {MAX_FORKS} at once")
        with self._run_lock:
            if self._interpreter is None or not self._interpreter.alive:
                self._interpreter = self._start_interpreter()
            running = sum(not process.ended for process in list(self._processes))
            forks: list[_Fork] = []
            boxes: list[Sandbox] = []
            try:
                for _ in range(count):
                    forks.append(_Fork(self._core, self._core.join()))
                    self._announce_fork(forks[-1], self._interpreter)
                others = self._interpreter.fork(count, lambda: all(self._has_started(fork) for fork in forks))
                for fork in forks:
                    boxes.append(self._adopt_fork(fork, others + running))
            except BaseException:
                self._give_up_forks(forks, boxes, self._interpreter.job)
                raise
            return boxes

    def _announce_fork(self, fork: _Fork, interpreter: Interpreter) -> None:
        try:
            body = struct.pack("<II", interpreter.job, fork.view)
            fork.job = self._python.post(wire.Op.ALLOW_FORKS, body, fork.theirs)
            frame = self._python.wait(fork.job, GRACE_S)
            if frame.op != wire.Op.PONG:
                outcome.done_of(frame, self.id)
        finally:
            fork.close_theirs()

    def _give_up_forks(self, forks: list[_Fork], boxes: list[Sandbox], job: int) -> None:
        """One that is missing spoils all: nothing stays of those that were announced, cloned or made."""
        with contextlib.suppress(BoxLost):
            self._python.request(wire.Op.CANCEL_FORKS, wire.U32.pack(job))
        for box in boxes:
            box.close("another fork of the same call failed")
        for fork in forks:
            fork.drop()

    def _has_started(self, fork: _Fork) -> bool:
        if fork.pid == 0 and (frame := self._python.check(fork.job)) is not None:
            fork.pid = self._started(frame)
        return fork.pid != 0

    def _started(self, frame: wire.Frame) -> int:
        if frame.op != wire.Op.STARTED:
            outcome.done_of(frame, self.id)
            raise WireError("the box did not say that the fork was started")
        return wire.U32.unpack(frame.body)[0]

    def _adopt_fork(self, fork: _Fork, left_behind: int) -> Sandbox:
        try:
            pid = fork.pid or self._started(self._python.wait(fork.job, interpreters.ANSWER_S))
        except NoAnswer:
            raise BoxLost("the interpreter says that it was forked, and no fork came up") from None
        answer = self._init.request(wire.Op.VIEW, struct.pack("<II", fork.view, pid))
        if answer.op != wire.Op.PONG:
            outcome.done_of(answer, self.id)
        interpreter = Interpreter(self._python, fork.job, self.limits, fork.sock, *fork.outputs)
        box = Sandbox.__new__(Sandbox)
        box.spec, box.limits, box.clocks = self.spec, self.limits, self.clocks
        box._set_up(self._core, view=fork.view, parent=self, interpreter=interpreter)
        box.left_behind = left_behind
        fork.adopted = True
        return box

    # ---- files ----

    @_touches
    def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """A file's contents; BoxFileTooLarge when there is more than the cap."""
        return self._file_server().read(path, max_bytes)

    @_touches
    def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Replaces a file in one step; its folders are made."""
        self._file_server().write(path, data.encode() if isinstance(data, str) else data, mode)

    @_touches
    def list(self, path: str = ".", *, recursive: bool = False, max_entries: int = MAX_ENTRIES) -> list[FileInfo]:
        return self._file_server().list(path, recursive=recursive, max_entries=max_entries)

    @_touches
    def sha256(self, path: str) -> str:
        """The digest of a file, computed in the box."""
        return self._file_server().sha256(path)

    @_touches
    def remove(self, path: str) -> None:
        """A file, or a folder with all it holds."""
        self._file_server().remove(path)

    @_touches
    def upload(self, source: str | os.PathLike[str], path: str = ".") -> int:
        """Copies a folder of the host into the box; returns the number of entries."""
        return self._file_server().upload(Path(source), path)

    @_touches
    def download(self, path: str, target: str | os.PathLike[str], *, max_bytes: int = 256 * MB) -> int:
        """Copies a folder of the box to the host; returns the number of entries."""
        return self._file_server().download(path, Path(target), max_bytes)

    @_touches
    def snapshot(self) -> Snapshot:
        """The workspace as it is now. What the interpreter holds in memory is not part of it: `fork` takes that."""
        return self._file_server().snapshot(self.spec.workspace_mb * MB)

    @_touches
    def restore(self, snapshot: Snapshot) -> None:
        self._file_server().restore(snapshot, self.spec.workspace_mb * MB)

    def _file_server(self) -> Files:
        with self._lock:
            if self._files is None:
                self._files = Files(self._start_file_server())
                self._owned.append(self._files)
            return self._files

    def _start_file_server(self) -> Channel:
        python = self._python
        ours, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDWR)
        limits = Limits(processes=2, open_files=256)
        payload = b"S" + _piece(json.dumps({"role": "files"}).encode())
        fields = _limit_fields(limits)
        fields.update(wall_ns=0, output=0, memory=FILES_MEMORY + self.spec.workspace_mb * MB)
        spawn = wire.Spawn(
            kind=wire.Kind.SERVER, flags=wire.Flag.NOTIFY, profile=PROGRAM, view=self._view, payload=payload, **fields
        )
        try:
            self._files_job = python.post(wire.Op.SPAWN, spawn.encode(), (null, null, null, theirs.fileno()))
            frame = python.wait(self._files_job, GRACE_S)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(null)
            theirs.close()
        if frame.op != wire.Op.STARTED:
            python.forget(self._files_job)
            ours.close()
            outcome.done_of(frame, self.id)
        python.ignore(self._files_job)
        return Channel(ours, f"files of box {self.id}", max_frame=wire.MAX_FRAME)

    # ---- life ----

    @_touches
    def ping(self) -> None:
        """Asks the box's init for an answer; BoxLost when there is none."""
        if self._init.request(wire.Op.PING).op != wire.Op.PONG:
            raise BoxLost(f"box {self.id} answers nonsense", retry=Retry.NEVER)

    def warm_up(self) -> None:
        """Starts the box's zygote now instead of at the first use of Python or files."""
        owner.check(self._owner, f"box {self.id}")
        self._python  # noqa: B018

    @property
    def alive(self) -> bool:
        """False once the box is closed or has hung up."""
        return self._closed is None and self._init.alive

    @property
    def python_channel(self) -> Channel:
        """For the pool, which speaks to the zygote itself."""
        return self._python

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def close(self, reason: str = "it was closed") -> None:
        """Ends everything in the box. Forks of it live on. Idempotent. Does nothing in a forked child of its owner."""
        if os.getpid() != self._owner:
            self._closed = self._closed or reason
            return
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
        for process in list(self._processes):
            process.close()
        if self._core.shared:
            self._end_view()  # others of the lineage live on: only what is ours may end
        self._finalizer()
        if self.on_close is not None:
            self.on_close()

    def _end_view(self) -> None:
        with contextlib.suppress(BoxLost):
            if self._interpreter is not None:
                self._interpreter.kill()
            if self._view:
                for channel in (self._init, self._python):
                    channel.request(wire.Op.VIEW, struct.pack("<II", self._view, 0))

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}{' closed' if self.closed else ''}>"

    @property
    def _init(self) -> Channel:
        return self._core.box.init

    @property
    def _python(self) -> Channel:
        return self._core.box.python

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
            ALARM.at(now + lifetime, lambda: _close_for(this, f"its lifetime_s={lifetime:g} is over"))
        if idle is not None:
            ALARM.at(now + idle, lambda: _close_when_idle(this, idle))


def _let_go(process: int, core: Core, view: int, owned: list[Interpreter | Files]) -> None:
    """Release a box that was closed, or dropped without being closed. A forked child has released its copies."""
    if os.getpid() != process:
        return
    for one in owned:
        one.close()
    core.leave(view)


class _Fork:
    """A fork that was announced: its view, and the host's ends of its socket and streams."""

    def __init__(self, core: Core, view: int) -> None:
        self._core = core
        self.view = view
        self.job = 0
        self.pid = 0
        """Process id of its init, once it has started."""
        self.adopted = False
        self.sock, self._their_sock = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        self.outputs = (out[0], err[0])
        self.theirs = (self._their_sock.fileno(), out[1], err[1])

    def close_theirs(self) -> None:
        self._their_sock.close()
        for fd in self.theirs[1:]:
            os.close(fd)

    def drop(self) -> None:
        if not self.adopted:
            self.adopted = True
            with contextlib.suppress(BoxLost):
                self._core.box.python.ignore(self.job)
                for channel in (self._core.box.init, self._core.box.python):
                    channel.request(wire.Op.VIEW, struct.pack("<II", self.view, 0))
            self._core.leave(self.view)
            self.sock.close()
            for fd in self.outputs:
                os.close(fd)


def _close_for(this: weakref.ref[Sandbox], reason: str) -> None:
    box = this()
    if box is not None:
        box.close(reason)


def _close_when_idle(this: weakref.ref[Sandbox], idle_s: float) -> float | None:
    """Closes the box, or says when to look again."""
    box = this()
    if box is None or box.closed:
        return None
    with box._lock:  # pyright: ignore[reportPrivateUsage]
        due = time.monotonic() if box._calls else box._used_at  # pyright: ignore[reportPrivateUsage]
    if due + idle_s > time.monotonic():
        return due + idle_s
    box.close(f"it was idle for idle_s={idle_s:g}")
    return None


@functools.cache
def _load(name: str) -> backend.Backend:
    return backend.load(name)


# ---- programs, as the pool uses them too ----


def _piece(data: bytes) -> bytes:
    return wire.U32.pack(len(data)) + data


def _limit_fields(limits: Limits) -> dict[str, Any]:
    return {
        "wall_ns": int(limits.wall_s * 1e9),
        "cpu_ns": int((limits.cpu_s or 0) * 1e9),
        "memory": limits.memory_mb * MB,
        "output": limits.output_bytes,
        "processes": limits.processes,
        "nofile": limits.open_files,
    }


def program_payload(source: str, stdin: bytes = b"") -> bytes:
    return b"P" + _piece(source.encode("utf-8", "surrogatepass")) + _piece(stdin)


def group_payload(sources: Sequence[str], output_bytes: int) -> bytes:
    pieces = (source.encode("utf-8", "surrogatepass") for source in sources)
    return b"G" + _piece(str(output_bytes).encode()) + b"".join(map(_piece, pieces))


def call_payload(source: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    if not name.isidentifier():
        raise SpecError(f"call {name!r}: not the name of a function")
    try:
        request = {"source": source, "name": name, "args": [*args], "kwargs": {**kwargs}}
        return b"C" + _piece(json.dumps(request, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise SpecError(f"call {name}: its arguments are not JSON: {error}") from None


def program_spawn(
    payload: bytes,
    limits: Limits,
    *,
    fresh_mb: int | None,
    view: int = 0,
    records: int = 0,
    ahead: int = 0,
    batch: bool = False,
    answer_bytes: int = 0,
) -> wire.Spawn:
    """A fork of the zygote; with `fresh_mb` on files of its own, else on the box's workspace. `answer_bytes`: for what
    it answers beside its output, a value or the records of a group."""
    fresh = wire.Flag.FRESH_FS if fresh_mb is not None else wire.Flag(0)
    return wire.Spawn(
        kind=wire.Kind.PROGRAM,
        flags=wire.Flag.CAPTURE | fresh | (wire.Flag.BATCH if batch else wire.Flag(0)),
        profile=SESSION if fresh_mb is None else PROGRAM,
        fs_bytes=(fresh_mb or 0) * MB,
        view=view,
        records=records,
        ahead=ahead,
        payload=payload,
        result=RUNNER_BYTES + answer_bytes,
        **_limit_fields(limits),
    )


def program_result(done: wire.Done, limits: Limits) -> Result:
    records = wire.parse_records(done.result, 8)
    said = next((record.decode() for record in records if record in {b"M", b"P"}), "-")
    return outcome.result_of(done, limits, said=said, what="the program")


def call_result(done: wire.Done, limits: Limits, name: str) -> Result:
    records = wire.parse_records(done.result, 8)
    said = next((record.decode() for record in records if record in {b"M", b"P"}), "-")
    result = outcome.result_of(done, limits, said=said, what=name)
    values = [record[1:] for record in records if record[:1] == b"V"]
    if not result.ok or not values:
        if result.ok:
            return _replace(result, verdict=Verdict.EXIT, detail=f"{name} ended without an answer")
        return result
    try:
        value = wire.parse_json(values[0])
    except wire.ValueTooLarge as error:
        return _replace(result, verdict=Verdict.OUTPUT, exit_code=None, detail=f"{name}: {error}")
    except WireError as error:
        return _replace(result, verdict=Verdict.EXIT, detail=f"{name}: {error}")
    return _replace(result, value=value)


def _replace(result: Result, **changes: Any) -> Result:
    return dataclasses.replace(result, **changes)
