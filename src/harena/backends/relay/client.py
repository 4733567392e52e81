"""Client side of the relay: boxes whose verbs are requests to a node. The streams of a process are pipes of this
process, which threads fill and empty, so that streams behave as with other backends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from harena.backends.relay import link
from harena.backends.relay.link import Link, Message
from harena.errors import BoxError, BoxLost, Retry, WireError
from harena.sandbox import owner
from harena.sandbox.backend import Capabilities, Forked, Stop, Task, TaskDone
from harena.sandbox.process import CHUNK, Process, Written
from harena.sandbox.spec import Limits, Result, Spec

SLICE_S = 5.0
"""How long the node waits for an answer of a process before the client asks again."""

Answer = tuple[Message, bytes]


class RelayBackend:
    """Starts a node on this machine with the first box. The node ends with its last user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def capabilities(self) -> Capabilities:
        found, _ = self._node().call("capabilities")
        fields: Message = {**found, "notes": tuple(found["notes"])}
        return Capabilities(**fields)

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> RelayBox:
        node = self._node()
        made, _ = node.call("create", spec=link.spec_out(spec), limits=_limits(limits), start_s=start_s)
        return RelayBox(node, made["handle"], made["id"])

    def _node(self) -> Connection:
        with self._lock:
            if self._connection is None or not self._connection.usable:
                self._connection = Connection()
            return self._connection


class Answers:
    """What a node has yet to answer, and the thread that hands its answers out. Ends with the node."""

    def __init__(self, link: Link, process: subprocess.Popen[bytes]) -> None:
        self.link = link
        self.lost = False
        self.lock = threading.Lock()
        self.waiting: dict[int, Future[Answer]] = {}
        self.lanes: weakref.WeakValueDictionary[int, RelayPrograms] = weakref.WeakValueDictionary()
        self._process = process
        threading.Thread(target=self._read, name="harena-relay", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(WireError, ValueError, KeyError):
            while (received := self.link.receive()) is not None:
                self._hand_out(*received)
        with self.lock:
            self.lost = True
            waiting, lanes = list(self.waiting.values()), list(self.lanes.values())
            self.waiting.clear()
        for future in waiting:
            future.set_exception(BoxLost("the node of the box has ended"))
        for lane in lanes:
            lane.take(None, b"")
        self.link.close()
        self._process.wait()

    def _hand_out(self, message: Message, data: bytes) -> None:
        with self.lock:
            future = self.waiting.pop(message.get("answer", 0), None)
            lane = self.lanes.get(message.get("lane", 0))
        if lane is not None:
            lane.take(message, data)
        elif future is not None and "error" in message:
            future.set_exception(link.error_in(message["error"]))
        elif future is not None:
            future.set_result((message["value"], data))


class Connection:
    """Sends requests to a node, which ends when nobody has the connection any more."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "harena.backends.relay.node", str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._link = Link(ours)
        self._answers = Answers(self._link, process)
        self._ids = itertools.count(1)
        self._owner = owner.register(self)
        weakref.finalize(self, _hang_up, self._owner, self._link)

    @property
    def usable(self) -> bool:
        return not self._answers.lost and os.getpid() == self._owner

    def call(self, verb: str, data: bytes = b"", **arguments: Any) -> Answer:
        """Send a request and return the answer. Raises what the node raised."""
        return self.begin(verb, data, **arguments)[1].result()

    def begin(self, verb: str, data: bytes = b"", **arguments: Any) -> tuple[int, Future[Answer]]:
        owner.check(self._owner, "a node")
        future: Future[Answer] = Future()
        with self._answers.lock:
            if self._answers.lost:
                raise BoxLost("the node of the box has ended", retry=Retry.NEVER)
            number = next(self._ids)
            self._answers.waiting[number] = future
        try:
            self._link.send({"request": number, "verb": verb, **arguments}, data)
        except OSError as error:
            raise BoxLost(f"the node of the box has ended: {error}") from None
        return number, future

    def tell(self, verb: str, **arguments: Any) -> None:
        """Send a request without waiting for anything, also while the process ends."""
        with contextlib.suppress(OSError, BoxError):
            self.begin(verb, **arguments)

    def attach(self, lane: RelayPrograms) -> None:
        with self._answers.lock:
            self._answers.lanes[lane.handle] = lane

    def abandon(self) -> None:
        self._link.abandon()


def _hang_up(process: int, link: Link) -> None:
    if os.getpid() == process:  # a forked child has let go of its copy
        link.hang_up()


class RelayBox:
    def __init__(self, node: Connection, handle: int, id: str) -> None:
        self.id = id
        self._node = node
        self._handle = handle
        self._lane: RelayPrograms | None = None
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, node.tell, "close", handle=handle)

    def _call(self, verb: str, data: bytes = b"", **arguments: Any) -> Answer:
        return self._node.call(verb, data, handle=self._handle, **arguments)

    def _execute(self, stop: Stop | None, verb: str, data: bytes = b"", **arguments: Any) -> Result:
        number, future = self._node.begin(verb, data, handle=self._handle, **arguments)
        with contextlib.nullcontext() if stop is None else stop.ends(lambda: self._node.tell("stop", target=number)):
            return link.result_in(*future.result())

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
        return self._execute(stop, "exec", stdin, argv=[*argv], env={**env}, cwd=cwd, limits=_limits(limits))

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
        made, _ = self._call(
            "start", argv=[*argv], env={**env}, cwd=cwd, limits=_limits(limits), pty=pty, rows=rows, cols=cols
        )
        process = _process(self._node, made["handle"], limits, argv[0], pty=pty)
        self._processes.add(process)
        return process

    def run(self, source: str, *, limits: Limits, stop: Stop | None) -> Result:
        return self._execute(stop, "run", source.encode("utf-8", "surrogatepass"), limits=_limits(limits))

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
        given = link.json_arguments(name, args, kwargs)
        code = source.encode("utf-8", "surrogatepass")
        return self._execute(stop, "call", code, name=name, given=given, limits=_limits(limits))

    def programs(self) -> RelayPrograms:
        if self._lane is None:
            made, _ = self._call("programs")
            self._lane = RelayPrograms(self._node, made["handle"])
        return self._lane

    def converse(self, source: str, *, limits: Limits) -> RelayConversation:
        made, _ = self._call("converse", source.encode("utf-8", "surrogatepass"), limits=_limits(limits))
        return RelayConversation(self._node, made["handle"])

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> Answer:
        return self._call("ask_files", data, message=dict(message))

    def fork(self, count: int) -> list[Forked]:
        made, _ = self._call("fork", count=count)
        return [Forked(RelayBox(self._node, one["handle"], one["id"]), one["left_behind"]) for one in made["forks"]]

    def ping(self) -> None:
        self._call("ping")

    def warm_up(self) -> None:
        self._call("warm_up")

    @property
    def alive(self) -> bool:
        try:
            return self._call("alive")[0]["alive"] is True
        except BoxError:
            return False

    def close(self) -> None:
        for process in list(self._processes):
            process.close()
        if self._finalizer.detach() is not None:
            with contextlib.suppress(BoxLost):
                self._call("close")


# ---- processes ----


class _Control:
    def __init__(self, node: Connection, handle: int) -> None:
        self._node = node
        self._handle = handle

    def signal(self, number: int) -> None:
        self._node.call("signal", handle=self._handle, number=number)

    def resize(self, rows: int, cols: int) -> None:
        self._node.call("resize", handle=self._handle, rows=rows, cols=cols)

    def wait(self, timeout_s: float, written: Written) -> Result:
        """Wait for the end. The node has seen all output and determines the verdict."""
        return link.result_in(*self._node.call("wait", handle=self._handle, timeout_s=timeout_s))

    def forget(self) -> None:
        self._node.tell("forget", handle=self._handle)


def _process(node: Connection, handle: int, limits: Limits, what: str, *, pty: bool) -> Process:
    control = _Control(node, handle)
    if pty:
        terminal, theirs = socket.socketpair()
        _in_thread(_pump_in, node, handle, os.dup(theirs.fileno()))
        _in_thread(_pump_terminal, node, handle, theirs)
        fd = terminal.detach()
        return Process(control, limits, what, stdin=fd, stdout=fd, stderr=None, pty=True)
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    _in_thread(_pump_in, node, handle, stdin[0])
    _in_thread(_pump_out, node, handle, "stdout", stdout[1])
    _in_thread(_pump_out, node, handle, "stderr", stderr[1])
    return Process(control, limits, what, stdin=stdin[1], stdout=stdout[0], stderr=stderr[0], pty=False)


def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, name="harena-relay-stream", daemon=True).start()


def _pump_out(node: Connection, handle: int, stream: str, fd: int) -> None:
    """Copy output of the process into a local pipe. A full pipe makes the process wait."""
    try:
        with contextlib.suppress(OSError, BoxError), os.fdopen(fd, "wb", buffering=0) as file:
            while data := _read(node, handle, stream):
                view = memoryview(data)
                while view:
                    view = view[file.write(view) or 0 :]
    finally:
        node.tell("close_stream", handle=handle, stream=stream)


def _pump_terminal(node: Connection, handle: int, sock: socket.socket) -> None:
    with sock:
        _pump_out(node, handle, "stdout", os.dup(sock.fileno()))
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # both ways: a terminal has one descriptor


def _read(node: Connection, handle: int, stream: str) -> bytes:
    while True:
        answer, data = node.call("read", handle=handle, stream=stream, timeout_s=SLICE_S)
        if answer["ready"]:
            return data


def _pump_in(node: Connection, handle: int, fd: int) -> None:
    with contextlib.suppress(BoxError), os.fdopen(fd, "rb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while data := file.read(CHUNK):
                node.call("write", data, handle=handle)
        node.tell("close_stdin", handle=handle)


# ---- programs and conversations ----


class RelayPrograms:
    """The node runs the tasks and pushes the results; a local pipe signals that there are some."""

    def __init__(self, node: Connection, handle: int) -> None:
        self.handle = handle
        self._node = node
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._arrived: deque[tuple[Message | None, bytes]] = deque()
        weakref.finalize(self, os.close, self._bell)
        node.attach(self)

    def fileno(self) -> int:
        return self._bell

    def give(self, key: int, task: Task) -> None:
        try:
            self._node.begin("give", task.stdin, handle=self.handle, key=key, task=link.task_out(task))
        except BoxLost as error:
            raise WireError(str(error)) from None

    def flush(self) -> bool:
        return True

    def take(self, message: Message | None, data: bytes) -> None:
        self._arrived.append((message, data))
        os.eventfd_write(self._bell, 1)

    def collect(self) -> list[TaskDone]:
        os.eventfd_read(self._bell)
        ended: list[TaskDone] = []
        while self._arrived:
            message, data = self._arrived.popleft()
            if message is None or "lost" in message:
                raise WireError("the box ended")
            results: list[Result] = []
            for one in message["results"]:
                size = one["out"] + one["err"]
                results.append(link.result_in(one, data[:size]))
                data = data[size:]
            ended.append(TaskDone(message["key"], results, message["failure"]))
        return ended


class RelayConversation:
    """A conversation whose clocks are read by the node, on the machine of the process."""

    def __init__(self, node: Connection, handle: int) -> None:
        self._node = node
        self._handle = handle
        self._finalizer = weakref.finalize(self, node.tell, "drop", handle=handle)

    def _call(self, verb: str, data: bytes = b"", **arguments: Any) -> Answer:
        return self._node.call(verb, data, handle=self._handle, **arguments)

    def met(self) -> RelayConversation:
        self._call("met")
        return self

    def send(self, packet: bytes) -> None:
        self._call("send", packet)

    def receive_soon(self) -> bytes | None:
        answer, data = self._call("receive_soon")
        return data if answer["ready"] else None

    def receive(self, wait_s: float) -> bytes | None:
        answer, data = self._call("receive", wait_s=wait_s)
        return data if answer["ready"] else None

    def become_stream(self, packet: bytes) -> None:
        self._call("become_stream", packet)

    def read_log(self) -> bytes:
        return self._call("read_log")[1]

    def cpu_ns(self) -> int:
        return self._call("cpu_ns")[0]["ns"]

    def others_cpu_ns(self) -> int:
        return self._call("others_cpu_ns")[0]["ns"]

    def freeze(self) -> None:
        self._call("freeze")

    def thaw(self) -> None:
        self._call("thaw")

    def pin(self, cpus: set[int]) -> None:
        self._call("pin", cpus=sorted(cpus))

    def end(self, patience_s: float = 0.0) -> Result:
        self._finalizer.detach()
        return link.result_in(*self._call("end", patience_s=patience_s))

    def drop(self) -> None:
        self._finalizer()


def _limits(limits: Limits) -> Message:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
