"""Boxes of the local backend. Verbs are sent as frames to the box's init and zygote (its warm interpreter).

Guarantees: after `close` nothing of the box is left; guest failures are values, platform failures are exceptions. Any
method may be called from any thread; runs of the interpreter take turns. A box and its forks form a lineage and share
one enclosure.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import socket
import struct
import termios
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harena.backends.local import interpreter as interpreters
from harena.backends.local import outcome, programs, wire
from harena.backends.local.channel import Channel, NoAnswer
from harena.backends.local.conversation import LocalConversation
from harena.backends.local.interpreter import Interpreter
from harena.backends.local.programs import Lane, limit_fields, piece
from harena.errors import BoxError, BoxLost, Retry, WireError
from harena.sandbox import owner
from harena.sandbox.backend import Forked, Stop
from harena.sandbox.process import Process, Written
from harena.sandbox.spec import MB, WORKSPACE, Limits, Result, Spec

GRACE_S = 30.0
"""How much longer than the guest's own limit the host waits for the box's report."""
ANSWER_S = 60.0
"""Time limit of the file server for one request."""
FILES_MEMORY = 256 * MB
MAX_VIEWS = 200
TERMINAL = "xterm-256color"
"""Default TERM for commands with a terminal, which nearly all software supports."""


class Enclosure(Protocol):
    """Namespaces with an init and, once it is needed, a warm Python: see `launch`."""

    id: str
    env: dict[str, str]
    """Environment variables of guests."""

    @property
    def init(self) -> Channel:
        """Channel to the init, which runs commands: wire.Op.SPAWN with Kind.EXEC."""
        ...

    @property
    def python(self) -> Channel:
        """Channel to the zygote, which runs Python: Kind.PROGRAM and Kind.SERVER. Started on first use."""
        ...

    def close(self) -> None:
        """End everything in the enclosure and return when nothing of it is left. Idempotent."""
        ...


class Lineage:
    """A box and its forks. They share the enclosure, which ends with the last of them."""

    def __init__(self, enclosure: Enclosure) -> None:
        self.enclosure = enclosure
        self._lock = threading.Lock()
        self._views = {0}

    def join(self) -> int:
        """Return a number for another box of the lineage."""
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
            self.enclosure.close()


class LocalBox:
    def __init__(
        self, lineage: Lineage, *, spec: Spec, limits: Limits, view: int = 0, interpreter: Interpreter | None = None
    ) -> None:
        self.id = lineage.enclosure.id if view == 0 else f"{lineage.enclosure.id}.{view}"
        self._spec = spec
        self._limits = limits
        self._lineage = lineage
        self._view = view
        self._interpreter = interpreter
        self._files: Channel | None = None
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._run_lock = threading.RLock()
        self._owned: list[Interpreter | Channel] = [] if interpreter is None else [interpreter]
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _let_go, self._owner, lineage, view, self._owned)

    @property
    def _init(self) -> Channel:
        return self._lineage.enclosure.init

    @property
    def _python(self) -> Channel:
        return self._lineage.enclosure.python

    # ---- commands ----

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
        spawn = self._command(argv, env, cwd, limits, wire.Flag.CAPTURE, stdin=stdin)
        frame = _request(self._init, spawn, limits, stop)
        return outcome.result_of(outcome.done_of(frame, self.id), limits, what=argv[0])

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
        if pty and "TERM" not in self._lineage.enclosure.env:
            env = {"TERM": TERMINAL, **env}
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
        control = _Command(init, id, limits, argv[0], terminal=ours[0] if pty else -1)
        process = Process(
            control, limits, argv[0], stdin=ours[0], stdout=ours[1], stderr=None if pty else ours[2], pty=pty
        )
        self._processes.add(process)
        return process

    def _command(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        limits: Limits,
        flags: wire.Flag,
        *,
        stdin: bytes = b"",
        rows: int = 0,
        cols: int = 0,
    ) -> wire.Spawn:
        given = {**self._lineage.enclosure.env, **env}
        return wire.Spawn(
            kind=wire.Kind.EXEC,
            flags=flags,
            argv=tuple(map(os.fsencode, argv)),
            env=tuple(os.fsencode(f"{name}={value}") for name, value in given.items()),
            cwd=os.fsencode(os.path.join(WORKSPACE, cwd)),
            stdin=stdin,
            profile=wire.Profile.SESSION,
            view=self._view,
            rows=rows,
            cols=cols,
            **limit_fields(limits),
        )

    # ---- Python ----

    def run(self, source: str, *, limits: Limits, stop: Stop | None) -> Result:
        with self._run_lock:
            if stop is not None and stop.requested:
                raise BoxError("the run was stopped before its turn came", retry=Retry.SAFE)
            interpreter = self._live_interpreter()
            with contextlib.nullcontext() if stop is None else stop.ends(interpreter.kill):
                if not interpreter.alive:
                    raise BoxError("the run was stopped before it began", retry=Retry.SAFE)
                return interpreter.run(source, limits)

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
        payload = programs.call_payload(source, name, args, kwargs)
        spawn = programs.spawn(payload, limits, fresh_mb=None, view=self._view, answer_bytes=limits.output_bytes)
        frame = _request(self._python, spawn, limits, stop)
        return programs.call_result(outcome.done_of(frame, self.id), limits, name)

    def programs(self) -> Lane:
        return Lane(self._python, self.id, self._spec.workspace_mb)

    def _live_interpreter(self) -> Interpreter:
        if self._interpreter is None or not self._interpreter.alive:
            self._interpreter = self._start_interpreter()
        return self._interpreter

    def _start_interpreter(self) -> Interpreter:
        python = self._python
        ours, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        payload = wire.Mode.SERVER + piece(json.dumps({"role": "interpreter"}).encode())
        flags = wire.Flag.FORKABLE | wire.Flag.NOTIFY
        limits = limit_fields(self._limits)
        limits.update(wall_ns=0, output=0, cpu_ns=0)  # these are kept per run, by the host
        limits["fs_bytes"] = self._spec.workspace_mb * MB  # of the workspace that a fork of it gets
        spawn = wire.Spawn(
            kind=wire.Kind.SERVER,
            flags=flags,
            profile=wire.Profile.INTERPRETER,
            view=self._view,
            payload=payload,
            **limits,
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
        interpreter = Interpreter(python, job, self._limits, ours, out[0], err[0])
        self._owned.append(interpreter)
        return interpreter

    def converse(self, source: str, *, limits: Limits) -> LocalConversation:
        payload = wire.Mode.TALK + piece(source.encode("utf-8", "surrogatepass"))
        fields = limit_fields(limits)
        fields.update(wall_ns=0, cpu_ns=0, output=0)
        spawn = wire.Spawn(
            kind=wire.Kind.SERVER,
            flags=wire.Flag.NOTIFY | wire.Flag.FRESH_FS,
            profile=wire.Profile.TALK,
            fs_bytes=self._spec.workspace_mb * MB,
            view=self._view,
            payload=payload,
            **fields,
        )
        return LocalConversation.start(self._python, spawn, limits, self.id)

    # ---- forks ----

    def fork(self, count: int) -> list[Forked]:
        with self._run_lock:
            interpreter = self._live_interpreter()
            running = sum(not process.ended for process in list(self._processes))
            forks: list[_Fork] = []
            boxes: list[LocalBox] = []
            try:
                for _ in range(count):
                    forks.append(_Fork(self._lineage, self._lineage.join()))
                    self._announce_fork(forks[-1], interpreter)
                others = interpreter.fork(count, lambda: all(self._has_started(fork) for fork in forks))
                for fork in forks:
                    boxes.append(self._adopt_fork(fork))
            except BaseException:
                self._give_up_forks(forks, boxes, interpreter.job)
                raise
            return [Forked(box, others + running) for box in boxes]

    def _announce_fork(self, fork: _Fork, interpreter: Interpreter) -> None:
        try:
            body = struct.pack("<II", interpreter.job, fork.view)
            fork.job = self._python.post(wire.Op.ALLOW_FORKS, body, fork.theirs)
            frame = self._python.wait(fork.job, GRACE_S)
            if frame.op != wire.Op.PONG:
                outcome.done_of(frame, self.id)
        finally:
            fork.close_theirs()

    def _give_up_forks(self, forks: list[_Fork], boxes: list[LocalBox], job: int) -> None:
        """Undo all forks if one is missing: remove those that were announced, cloned or created."""
        with contextlib.suppress(BoxLost):
            self._python.request(wire.Op.CANCEL_FORKS, wire.U32.pack(job))
        for box in boxes:
            box.close()
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

    def _adopt_fork(self, fork: _Fork) -> LocalBox:
        try:
            pid = fork.pid or self._started(self._python.wait(fork.job, interpreters.ANSWER_S))
        except NoAnswer:
            raise BoxLost("the interpreter says that it was forked, and no fork came up") from None
        answer = self._init.request(wire.Op.VIEW, struct.pack("<II", fork.view, pid))
        if answer.op != wire.Op.PONG:
            outcome.done_of(answer, self.id)
        interpreter = Interpreter(self._python, fork.job, self._limits, fork.sock, *fork.outputs)
        box = LocalBox(self._lineage, spec=self._spec, limits=self._limits, view=fork.view, interpreter=interpreter)
        fork.adopted = True
        return box

    # ---- files ----

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            if self._files is None:
                self._files = self._start_file_server()
                self._owned.append(self._files)
            channel = self._files
        frame = channel.request(wire.Op.CALL, wire.encode_call(message, data), timeout_s=ANSWER_S)
        if frame.op != wire.Op.ANSWER:
            raise WireError("the file server sent something else than an answer")
        return wire.parse_answer(frame.body)

    def _start_file_server(self) -> Channel:
        python = self._python
        ours, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDWR)
        limits = Limits(processes=2, open_files=256)
        payload = wire.Mode.SERVER + piece(json.dumps({"role": "files"}).encode())
        fields = limit_fields(limits)
        fields.update(wall_ns=0, output=0, memory=FILES_MEMORY + self._spec.workspace_mb * MB)
        spawn = wire.Spawn(
            kind=wire.Kind.SERVER,
            flags=wire.Flag.NOTIFY,
            profile=wire.Profile.PROGRAM,
            view=self._view,
            payload=payload,
            **fields,
        )
        try:
            job = python.post(wire.Op.SPAWN, spawn.encode(), (null, null, null, theirs.fileno()))
            frame = python.wait(job, GRACE_S)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(null)
            theirs.close()
        if frame.op != wire.Op.STARTED:
            python.forget(job)
            ours.close()
            outcome.done_of(frame, self.id)
        python.ignore(job)
        return Channel(ours, f"files of box {self.id}", max_frame=wire.MAX_FRAME)

    # ---- life ----

    def ping(self) -> None:
        if self._init.request(wire.Op.PING).op != wire.Op.PONG:
            raise BoxLost(f"box {self.id} answers nonsense", retry=Retry.NEVER)

    def warm_up(self) -> None:
        owner.check(self._owner, f"box {self.id}")
        self._python  # noqa: B018

    @property
    def alive(self) -> bool:
        return self._init.alive

    def close(self) -> None:
        for process in list(self._processes):
            process.close()
        if self._lineage.shared and self._finalizer.alive:
            self._end_view()  # others of the lineage live on: only what is ours may end
        self._finalizer()

    def _end_view(self) -> None:
        with contextlib.suppress(BoxLost):
            if self._interpreter is not None:
                self._interpreter.kill()
            if self._view:
                for channel in (self._init, self._python):
                    channel.request(wire.Op.VIEW, struct.pack("<II", self._view, 0))


class _Command:
    """Control of a started command."""

    def __init__(self, init: Channel, id: int, limits: Limits, what: str, *, terminal: int) -> None:
        self._init = init
        self._id = id
        self._limits = limits
        self._what = what
        self._terminal = terminal
        """The host's descriptor of the terminal, which the streams of the process close."""

    def signal(self, number: int) -> None:
        self._init.request(wire.Op.KILL, struct.pack("<II", self._id, number))

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def wait(self, timeout_s: float, written: Written) -> Result:
        done = outcome.done_of(self._init.wait(self._id, timeout_s), self._what)
        done = done._replace(
            stderr=written.tail,
            written=written.count,
            ended=wire.Ended.OUTPUT if written.over else done.ended,
        )
        return outcome.result_of(done, self._limits, what=self._what)

    def forget(self) -> None:
        self._init.forget(self._id)


def _request(channel: Channel, spawn: wire.Spawn, limits: Limits, stop: Stop | None) -> wire.Frame:
    """Run one execution to its end."""
    timeout_s = limits.wall_s + GRACE_S
    if stop is None:
        return channel.request(wire.Op.SPAWN, spawn.encode(), timeout_s=timeout_s, room=spawn.room)
    job = channel.post(wire.Op.SPAWN, spawn.encode(), room=spawn.room)
    try:
        with stop.ends(lambda: channel.tell(wire.Op.KILL, struct.pack("<II", job, 0))):
            return channel.wait(job, timeout_s)
    finally:
        channel.forget(job)


def _let_go(process: int, lineage: Lineage, view: int, owned: list[Interpreter | Channel]) -> None:
    """Release a box that was closed, or dropped without being closed. A forked child has released its copies."""
    if os.getpid() != process:
        return
    for one in owned:
        one.close()
    lineage.leave(view)


class _Fork:
    """An announced fork: its number, and the host's ends of its socket and streams."""

    def __init__(self, lineage: Lineage, view: int) -> None:
        self._lineage = lineage
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
                self._lineage.enclosure.python.ignore(self.job)
                for channel in (self._lineage.enclosure.init, self._lineage.enclosure.python):
                    channel.request(wire.Op.VIEW, struct.pack("<II", self.view, 0))
            self._lineage.leave(self.view)
            self.sock.close()
            for fd in self.outputs:
                os.close(fd)
