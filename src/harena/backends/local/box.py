"""Boxes of the local backend. Verbs are sent as frames to the box's init and zygote (its warm interpreter).

Guarantees: after `close` nothing of the box is left; guest failures are values, platform failures are exceptions. Any
method may be called from any thread; runs of the interpreter take turns. A box and its forks form a lineage and share
one enclosure.

One file, however long: every verb takes the box's locks and must leave the lineage as `close` expects it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import itertools
import json
import os
import socket
import struct
import termios
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from harena.backends.local import interpreter as interpreters
from harena.backends.local import outcome, programs, wire
from harena.backends.local.channel import Channel, NoAnswer
from harena.backends.local.conversation import LocalConversation
from harena.backends.local.interpreter import Interpreter
from harena.backends.local.programs import Lane, limit_fields, piece
from harena.errors import BoxError, BoxLost, Retry, SpecError, Unsupported, WireError
from harena.network.gateway import Gateway
from harena.sandbox import owner
from harena.sandbox.backend import Forked, Stop
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import Process, Written
from harena.sandbox.spec import MB, Limits, Result, Spec

GRACE_S = 30.0
"""How much longer than the guest's own limit the host waits for the box's report."""
ANSWER_S = 60.0
"""Time limit of the file server for one request."""
FILES_MEMORY = 256 * MB
MAX_VIEWS = 200
TERMINAL = "xterm-256color"
"""Default TERM for commands with a terminal, which nearly all software supports."""


class HasShell(Protocol):
    """The root of a box from an image, as far as boxes know it."""

    @property
    def shell(self) -> tuple[str, ...]: ...


class Enclosure(Protocol):
    """Namespaces with an init and, once it is needed, a warm Python: see `launch`."""

    id: str
    isolation: str
    """Its tier, which every result names."""
    env: dict[str, str]
    """Environment variables of guests."""
    cwd: str
    """Folder in which commands start."""
    ids: str
    """User ids of a box from an image: full or single."""

    @property
    def init(self) -> Channel:
        """Channel to the init, which runs commands: wire.Op.SPAWN with Kind.EXEC."""
        ...

    @property
    def python(self) -> Channel:
        """Channel to the zygote, a warm Python of the host that becomes the file server. Started on first use."""
        ...

    @property
    def runner(self) -> Channel:
        """Channel to the process that runs the guest's Python: Kind.PROGRAM and Kind.SERVER."""
        ...

    @property
    def image(self) -> HasShell | None:
        """The root of a box from an image."""
        ...

    def loops(self) -> Sequence[Channel]:
        """Channels to the processes that may know views."""
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
        self,
        lineage: Lineage,
        *,
        spec: Spec,
        limits: Limits,
        view: int = 0,
        interpreter: Interpreter | None = None,
        network: Network | None = None,
        holder: int = 0,
    ) -> None:
        self.id = lineage.enclosure.id if view == 0 else f"{lineage.enclosure.id}.{view}"
        self.isolation = lineage.enclosure.isolation
        image = lineage.enclosure.image
        self.shell_of_image = () if image is None else image.shell
        """Command with which the image runs lines of a shell."""
        self._spec = spec
        self._limits = limits
        self._lineage = lineage
        self._view = view
        self._holder = holder
        """Process in the box that holds the view's namespaces, where the zygote does not know it yet."""
        self._interpreter = interpreter
        self._files: Channel | None = None
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._run_lock = threading.RLock()
        self._files_lock = threading.RLock()
        """Keeps requests to the file server of a box from an image apart from forks."""
        self._views = [view]
        """All views that the box has lived in."""
        self._owned: list[Interpreter | Channel | Gateway] = [] if interpreter is None else [interpreter]
        self._owner = os.getpid()
        self._gateway: Gateway | None = None
        self._network = network
        if spec.network is not None:
            make_socket = functools.partial(_make_socket, lineage.enclosure.init, view, True)
            self._gateway = Gateway(network, make_socket, f"box {self.id}")
            self._owned.append(self._gateway)
        self._finalizer = weakref.finalize(self, _let_go, self._owner, lineage, self._views, self._owned)

    @property
    def _init(self) -> Channel:
        return self._lineage.enclosure.init

    @property
    def _python(self) -> Channel:
        return self._lineage.enclosure.python

    @property
    def _runner(self) -> Channel:
        return self._lineage.enclosure.runner

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
        reported = self._reporter()
        frame = _request(self._init, spawn, limits, stop)
        return self._named(reported(outcome.result_of(outcome.done_of(frame, self.id), limits, what=argv[0])))

    def _named(self, result: Result) -> Result:
        """The result, with the tier of the box, and the ids of a box from an image."""
        ids = self._lineage.enclosure.ids
        result = outcome.marked(result, self.isolation)
        return dataclasses.replace(result, ids=ids) if ids else result

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
        reported = self._reporter()
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
        control = _Command(
            init,
            id,
            limits,
            argv[0],
            terminal=ours[0] if pty else -1,
            reported=lambda result: self._named(reported(result)),
        )
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
            cwd=os.fsencode(os.path.join(self._lineage.enclosure.cwd, cwd)),
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
                reported = self._reporter()
                return self._named(reported(interpreter.run(source, limits)))

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
        reported = self._reporter()
        frame = _request(self._runner, spawn, limits, stop)
        return self._named(reported(programs.call_result(outcome.done_of(frame, self.id), limits, name)))

    def programs(self) -> Lane:
        enclosure = self._lineage.enclosure
        return Lane(self._runner, self.id, self._spec.workspace_mb, isolation=self.isolation, ids=enclosure.ids)

    def _live_interpreter(self) -> Interpreter:
        if self._interpreter is None or not self._interpreter.alive:
            self._interpreter = self._start_interpreter()
        return self._interpreter

    def _start_interpreter(self) -> Interpreter:
        python = self._runner
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
        return LocalConversation.start(self._runner, spawn, limits, self.id, self.isolation)

    def converse_with(self, argv: Sequence[str], *, limits: Limits, cpus: set[int]) -> LocalConversation:
        if self._lineage.enclosure.image is None:
            raise Unsupported("converse_with: only in a box from an image")
        spawn = self._command(argv, {}, "", limits, wire.Flag.NOTIFY | wire.Flag.FRESH_FS)
        spawn = dataclasses.replace(
            spawn, profile=wire.Profile.TALK, fs_bytes=self._spec.workspace_mb * MB, wall_ns=0, cpu_ns=0, output=0
        )
        return LocalConversation.start_command(self._init, spawn, limits, self.id, self.isolation, cpus)

    # ---- forks ----

    def fork(self, count: int) -> list[Forked]:
        with self._run_lock:
            running = sum(not process.ended for process in list(self._processes))
            if self._lineage.enclosure.image is not None and self._spec.network is not None:
                raise Unsupported("fork: a box from an image that has a network cannot be forked")
            if self._lineage.enclosure.image is not None and (self._interpreter is None or not self._interpreter.alive):
                return [Forked(box, running) for box in self._fork_files(count)]
            interpreter = self._live_interpreter()
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

    def _fork_files(self, count: int) -> list[LocalBox]:
        """Fork a box from an image in which no interpreter runs, also where the image has none: the files are all that
        there is to copy. If nothing else runs in the box, its changes become a layer that it shares with its forks."""
        boxes: list[LocalBox] = []
        with self._files_lock:
            self._freeze()
            try:
                for _ in range(count):
                    view = self._lineage.join()
                    try:
                        pid = self._make_view(view, over=False)
                    except BaseException:
                        self._lineage.leave(view)
                        raise
                    boxes.append(LocalBox(self._lineage, spec=self._spec, limits=self._limits, view=view, holder=pid))
            except BaseException:
                for box in boxes:
                    box.close()
                raise
        return boxes

    def _make_view(self, view: int, *, over: bool) -> int:
        spawn = wire.Spawn(
            kind=wire.Kind.VIEW,
            flags=wire.Flag.NOTIFY,
            fs_bytes=self._spec.workspace_mb * MB,
            view=self._view,
            ahead=view,
            records=int(over),
        )
        return self._started(self._init.request(wire.Op.SPAWN, spawn.encode(), timeout_s=GRACE_S))

    def _freeze(self) -> None:
        """Continue in another view, on top of what was changed so far. Where that is not possible, because something
        runs or because it was done too often, forks copy what was changed."""
        try:
            view = self._lineage.join()
        except BoxError:
            return
        try:
            self._holder = self._make_view(view, over=True)
        except BoxError:
            self._lineage.leave(view)
            return
        if self._files is not None:
            self._files.close()
            self._files = None
        self._view = view
        self._views.append(view)
        # A request that another thread has just sent may still name the view before this one.
        for old in [old for old in self._views[:-2] if old]:
            self._close_view(old)
            self._views.remove(old)
            self._lineage.leave(old)

    def _announce_fork(self, fork: _Fork, interpreter: Interpreter) -> None:
        try:
            body = struct.pack("<II", interpreter.job, fork.view)
            fork.job = self._runner.post(wire.Op.ALLOW_FORKS, body, fork.theirs)
            frame = self._runner.wait(fork.job, GRACE_S)
            if frame.op != wire.Op.PONG:
                outcome.done_of(frame, self.id)
        finally:
            fork.close_theirs()

    def _give_up_forks(self, forks: list[_Fork], boxes: list[LocalBox], job: int) -> None:
        """Undo all forks if one is missing: remove those that were announced, cloned or created."""
        with contextlib.suppress(BoxLost):
            self._runner.request(wire.Op.CANCEL_FORKS, wire.U32.pack(job))
        for box in boxes:
            box.close()
        for fork in forks:
            fork.drop()

    def _has_started(self, fork: _Fork) -> bool:
        if fork.pid == 0 and (frame := self._runner.check(fork.job)) is not None:
            fork.pid = self._started(frame)
        return fork.pid != 0

    def _started(self, frame: wire.Frame) -> int:
        if frame.op != wire.Op.STARTED:
            outcome.done_of(frame, self.id)
            raise WireError("the box did not say that the fork was started")
        return wire.U32.unpack(frame.body)[0]

    def _adopt_fork(self, fork: _Fork) -> LocalBox:
        try:
            pid = fork.pid or self._started(self._runner.wait(fork.job, interpreters.ANSWER_S))
        except NoAnswer:
            raise BoxLost("the interpreter says that it was forked, and no fork came up") from None
        answer = self._init.request(wire.Op.VIEW, struct.pack("<II", fork.view, pid))
        if answer.op != wire.Op.PONG:
            outcome.done_of(answer, self.id)
        interpreter = Interpreter(self._runner, fork.job, self._limits, fork.sock, *fork.outputs)
        box = LocalBox(
            self._lineage,
            spec=self._spec,
            limits=self._limits,
            view=fork.view,
            interpreter=interpreter,
            network=self._network,
            holder=pid if self._lineage.enclosure.image is not None else 0,
        )
        fork.adopted = True
        return box

    # ---- network ----

    def set_network(self, network: Network | None) -> None:
        if self._gateway is None:
            raise SpecError("set_network: the box was created without a network")
        self._network = None  # what a fork gets, if this fails
        self._gateway.set(network)
        self._network = network

    def network_report(self) -> NetworkReport:
        return NetworkReport() if self._gateway is None else self._gateway.report()

    def connect(self, port: int, timeout_s: float) -> socket.socket:
        try:
            return self._connect(socket.AF_INET, "127.0.0.1", port, timeout_s)
        except ConnectionRefusedError as refused:
            try:  # "localhost" is this one for some servers
                return self._connect(socket.AF_INET6, "::1", port, timeout_s)
            except OSError:
                raise refused from None

    def _connect(self, family: int, host: str, port: int, timeout_s: float) -> socket.socket:
        sock = _make_socket(self._init, self._view, False, family, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def _reporter(self) -> Callable[[Result], Result]:
        """Return a function that adds to a result what the network did from now until it is called."""
        gateway = self._gateway
        if gateway is None:
            return lambda result: result
        watch = gateway.watch()
        return lambda result: dataclasses.replace(result, network=gateway.report(watch))

    # ---- files ----

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        if self._lineage.enclosure.image is None:
            return self._ask_files(message, data)
        with self._files_lock:
            return self._ask_files(message, data)

    def _ask_files(self, message: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
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
        if self._holder:
            answer = python.request(wire.Op.VIEW, struct.pack("<II", self._view, self._holder))
            if answer.op != wire.Op.PONG:
                outcome.done_of(answer, self.id)
            self._holder = 0
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

    def changes(self) -> int:
        """Descriptor of the folder with what guests changed in a box from an image: the upper folder of its overlay, in
        the box's mounts. Its content is as hostile as the guests were."""
        frame = self._init.request(wire.Op.CHANGES)
        if frame.op != wire.Op.STARTED or len(frame.fds) != 1:
            outcome.done_of(frame, self.id)
            raise WireError("the box did not send its changed files")
        return frame.fds[0]

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
            for view in self._views:
                self._close_view(view)

    def _close_view(self, view: int) -> None:
        for channel in self._lineage.enclosure.loops() if view else ():
            channel.request(wire.Op.VIEW, struct.pack("<II", view, 0))


class _Command:
    """Control of a started command."""

    def __init__(
        self,
        init: Channel,
        id: int,
        limits: Limits,
        what: str,
        *,
        terminal: int,
        reported: Callable[[Result], Result],
    ) -> None:
        self._init = init
        self._id = id
        self._limits = limits
        self._what = what
        self._terminal = terminal
        """The host's descriptor of the terminal, which the streams of the process close."""
        self._reported = reported

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
        return self._reported(outcome.result_of(done, self._limits, what=self._what))

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


def _make_socket(init: Channel, view: int, routed: bool, family: int, kind: int) -> socket.socket:
    """Create a socket in the network of a view."""
    frame = init.request(wire.Op.SOCKET, wire.SOCKET.pack(view, family, kind, routed))
    if frame.op == wire.Op.ERROR:
        number, step = wire.parse_error(frame.body)
        if number == errno.ENOSYS:
            raise Unsupported(
                "this box cannot be connected to: that needs the native launcher and the full isolation tier"
            )
        if number == errno.EAFNOSUPPORT:
            raise OSError(number, os.strerror(number))
        raise BoxError(f"the box could not {step}: {os.strerror(number)}", retry=Retry.SAFE)
    if frame.op != wire.Op.STARTED or not frame.fds:
        raise WireError("the box did not give a socket")
    try:
        sock = socket.socket(fileno=frame.fds[0])
    except OSError:
        os.close(frame.fds[0])
        raise WireError("the box gave something else than a socket") from None
    if (sock.family, sock.type) != (family, kind):
        sock.close()
        raise WireError("the box gave another socket than it was asked for")
    return sock


def _let_go(process: int, lineage: Lineage, views: list[int], owned: list[Interpreter | Channel | Gateway]) -> None:
    """Release a box that was closed, or dropped without being closed. A forked child has released its copies."""
    if os.getpid() != process:
        return
    for one in owned:
        one.close()
    for view in views:
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
                self._lineage.enclosure.runner.ignore(self.job)
                for channel in self._lineage.enclosure.loops():
                    channel.request(wire.Op.VIEW, struct.pack("<II", self.view, 0))
            self._lineage.leave(self.view)
            self.sock.close()
            for fd in self.outputs:
                os.close(fd)
