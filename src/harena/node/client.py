"""Boxes whose verbs are requests to a node. The node is not trusted: `connection` and `messages` check its answers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harena.errors import BoxError, BoxLost, Unsupported, WireError
from harena.node import connection, link, messages, streams
from harena.node.connection import Answer, Connection
from harena.node.link import Message
from harena.sandbox.alarm import ALARM
from harena.sandbox.backend import MAX_PACKET, Capabilities, Forked, Stop, Task, TaskDone, Turn
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import CHUNK, Process
from harena.sandbox.spec import MB, Limits, Result, Spec

CLOSE_S = 20.0
LOAD_S = 20.0
"""A node that takes longer to report its load counts as failed."""
MAX_CONNECT_S = 60.0

NO_NETWORK = "boxes of the backend {} have no network: use the backend local"


def capabilities(node: Connection, *, network: bool = False) -> Capabilities:
    """What the node's backend says. `network`: the boxes of this backend may have one."""
    found, _ = node.call("capabilities", text=2 * link.SMALL_TEXT)
    with node.checked():
        return messages.capabilities_in(found if network else {**found, "network": False})


@dataclass(frozen=True, slots=True)
class NodeLoad:
    boxes: int
    """Boxes of all clients."""
    cores: int
    stopping: bool
    """True if the node ends when its clients have gone."""


def load(node: Connection) -> NodeLoad:
    found, _ = node.call("load", seconds=LOAD_S - node.grace_s)
    with node.checked():
        found = messages.fields(found, "boxes", "cores", "stopping")
        return NodeLoad(
            messages.whole(found["boxes"]),
            messages.whole(found["cores"], 1, messages.MAX_CORES),
            messages.yes(found["stopping"]),
        )


def refuse_network(spec: Spec, backend: str) -> None:
    """For boxes whose node has no network to give."""
    if spec.network is not None:
        raise Unsupported(NO_NETWORK.format(backend))


def create(node: Connection, spec: Spec, limits: Limits, start_s: float) -> tuple[int, str, str]:
    """Make a box in the node. Returns its handle, its id and its isolation tier."""
    arguments: Message = {"spec": messages.spec_out(spec), "limits": messages.limits_out(limits), "start_s": start_s}
    made, _ = node.call("create", seconds=start_s, **arguments)
    with node.checked():
        made = messages.fields(made, "handle", "id", "isolation")
        return messages.whole(made["handle"]), _id(made["id"]), messages.word(made["isolation"], messages.TIERS)


def _id(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-z.]{1,64}", value):
        raise WireError("the node sent something else than the id of a box")
    return value


class NodeBox:
    backend = "node"
    """The name of the backend that made it."""

    def __init__(
        self, node: Connection, handle: int, id: str, isolation: str, admit: Callable[[Limits], None] | None = None
    ) -> None:
        """`admit` is called with the limits of each execution before it starts."""
        self.id = id
        self._admit = admit or _admit
        self.isolation = isolation
        self._node = node
        self._handle = handle
        self._lane: NodePrograms | None = None
        self._turn = threading.Lock()
        """Runs take turns here, so that waiting for another run is not part of the time for an answer."""
        self._processes: weakref.WeakSet[Process] = weakref.WeakSet()
        self._finalizer = node.on_drop(self, "close", handle)

    def _call(self, verb: str, data: bytes = b"", **arguments: Any) -> Answer:
        return self._node.call(verb, data, handle=self._handle, **arguments)

    def _handle_of(self, made: Message) -> int:
        with self._node.checked():
            return messages.whole(messages.fields(made, "handle")["handle"])

    def _execute(self, stop: Stop | None, verb: str, data: bytes, limits: Limits, **arguments: Any) -> Result:
        self._admit(limits)
        text = link.SMALL_TEXT + messages.MAX_WORDS + (limits.output_bytes if verb == "call" else 0)
        number, future = self._node.begin(
            verb,
            data,
            room=limits.output_bytes,
            text=text,
            handle=self._handle,
            limits=messages.limits_out(limits),
            **arguments,
        )
        with contextlib.nullcontext() if stop is None else stop.ends(lambda: self._node.tell("stop", target=number)):
            answer = self._node.result(future, verb, limits.wall_s)
        with self._node.checked():
            return messages.result_in(*answer)

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
        return self._execute(stop, "exec", stdin, limits, argv=[*argv], env={**env}, cwd=cwd)

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
        self._admit(limits)
        made, _ = self._call(
            "start",
            argv=[*argv],
            env={**env},
            cwd=cwd,
            limits=messages.limits_out(limits),
            pty=pty,
            rows=rows,
            cols=cols,
        )
        process = streams.process(self._node, self._handle_of(made), limits, argv[0], pty=pty)
        self._processes.add(process)
        return process

    def run(self, source: str, *, limits: Limits, stop: Stop | None) -> Result:
        with self._turn:
            return self._execute(stop, "run", source.encode("utf-8", "surrogatepass"), limits)

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
        given = messages.json_arguments(name, args, kwargs)
        code = source.encode("utf-8", "surrogatepass")
        return self._execute(stop, "call", code, limits, name=name, given=given)

    def programs(self) -> NodePrograms:
        if self._lane is None:
            made, _ = self._call("programs")
            self._lane = NodePrograms(self._node, self._handle_of(made), self._admit)
        return self._lane

    def converse(self, source: str, *, limits: Limits) -> NodeConversation:
        self._admit(limits)
        made, _ = self._call("converse", source.encode("utf-8", "surrogatepass"), limits=messages.limits_out(limits))
        return NodeConversation(self._node, self._handle_of(made), limits)

    def converse_with(self, argv: Sequence[str], *, limits: Limits, cpus: set[int]) -> NodeConversation:
        self._admit(limits)
        made, _ = self._call("converse_with", argv=[*argv], limits=messages.limits_out(limits), cpus=sorted(cpus))
        return NodeConversation(self._node, self._handle_of(made), limits)

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> Answer:
        # Files checks what comes back; these are the sizes of a local box's answers.
        return self._call("ask_files", data, message=dict(message), room=link.MAX_REQUEST, text=link.FILES_TEXT)

    def fork(self, count: int) -> list[Forked]:
        with self._turn:
            made, _ = self._call("fork", count=count)
        forks: list[Forked] = []
        with self._node.checked():
            found = messages.items(messages.fields(made, "forks")["forks"], count)
            if len(found) != count:
                raise WireError("another number of forks than was asked for")
            for one in found:
                one = messages.fields(one, "handle", "id", "left_behind")
                box = self._forked(messages.whole(one["handle"]), _id(one["id"]))
                forks.append(Forked(box, messages.whole(one["left_behind"], 0, 1 << 22)))
        return forks

    def _forked(self, handle: int, id: str) -> NodeBox:
        return type(self)(self._node, handle, id, self.isolation, self._admit)

    def set_network(self, network: Network | None) -> None:
        self._call("set_network", network=messages.network_out(network))

    def network_report(self) -> NetworkReport:
        answer, _ = self._call("network_report", text=messages.REPORT_TEXT)
        with self._node.checked():
            return messages.report_in(answer)

    def connect(self, port: int, timeout_s: float) -> socket.socket:
        timeout_s = min(timeout_s, MAX_CONNECT_S)
        made, _ = self._call("connect", seconds=timeout_s, port=port, timeout_s=timeout_s)
        return streams.port(self._node, self._handle_of(made))

    def ping(self) -> None:
        self._call("ping")

    def warm_up(self) -> None:
        self._call("warm_up")

    @property
    def alive(self) -> bool:
        try:
            return self._call("alive")[0].get("alive") is True
        except BoxError:
            return False

    def close(self) -> None:
        for process in list(self._processes):
            process.close()
        if self._finalizer.detach() is not None:
            with contextlib.suppress(BoxLost):
                self._call("close", seconds=CLOSE_S - connection.GRACE_S)


class NodePrograms:
    """The node runs the tasks and pushes the results; a local pipe signals that there are some."""

    def __init__(self, node: Connection, handle: int, admit: Callable[[Limits], None]) -> None:
        self.handle = handle
        self._node = node
        self._admit = admit
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._arrived: deque[tuple[Message | None, bytes]] = deque()
        self._lock = threading.Lock()
        self._running: dict[int, tuple[int, float]] = {}
        """Number of programs of each task without a result, and when the node must have answered."""
        self._watched = False
        weakref.finalize(self, os.close, self._bell)
        node.attach(self)

    def fileno(self) -> int:
        return self._bell

    def give(self, key: int, task: Task) -> None:
        self._admit(task.limits)
        deadline = time.monotonic() + task.limits.wall_s * len(task.sources) + self._node.grace_s
        with self._lock:
            self._running[key] = len(task.sources), deadline
            watch, self._watched = not self._watched, True
        if watch:
            ALARM.at(deadline, _LaneKeeper(self))
        try:
            self._node.give(self.handle, key, task)
        except BoxLost as error:
            raise WireError(str(error)) from None

    def overdue(self) -> float | None:
        """Give up a node that has kept a task for too long. Returns when to look again."""
        with self._lock:
            first = min((deadline for _, deadline in self._running.values()), default=None)
            if first is None:
                self._watched = False
        if first is not None and first <= time.monotonic():
            self._node.give_up("the node of the box did not finish a program in time")
            return None
        return first

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
                with self._lock:
                    self._running.clear()  # nothing more comes
                raise WireError("the box ended")
            with self._lock:
                count, _ = self._running.pop(message["key"])
            if "error" in message:
                with self._node.checked():
                    error = messages.error_in(message["error"])
                if self._arrived:
                    os.eventfd_write(self._bell, 1)
                raise error
            try:
                results = messages.results_in(message["results"], data, count)
                failure = messages.words(message["failure"])
                if not results and not failure:
                    raise WireError("the node sent neither results nor why there are none")
            except WireError as error:
                self._node.give_up(str(error))
                raise
            ended.append(TaskDone(message["key"], results, failure))
        return ended


class _LaneKeeper:
    """Looks after a lane without keeping it."""

    def __init__(self, lane: NodePrograms) -> None:
        self._lane = weakref.ref(lane)

    def __call__(self) -> float | None:
        lane = self._lane()
        return None if lane is None else lane.overdue()


class NodeConversation:
    """A conversation whose clocks are read by the node, on the machine of the process."""

    def __init__(self, node: Connection, handle: int, limits: Limits) -> None:
        self._node = node
        self._handle = handle
        self._limits = limits
        self._finalizer = node.on_drop(self, "drop", handle)

    def _call(self, verb: str, data: bytes = b"", **arguments: Any) -> Answer:
        return self._node.call(verb, data, handle=self._handle, **arguments)

    def met(self) -> NodeConversation:
        self._call("met")
        return self

    def send(self, packet: bytes) -> None:
        self._call("send", packet)

    def receive_soon(self) -> bytes | None:
        answer, data = self._call("receive_soon", room=MAX_PACKET)
        return data if answer.get("ready") is True else None

    def receive(self, wait_s: float) -> bytes | None:
        answer, data = self._call("receive", seconds=wait_s, room=MAX_PACKET, wait_s=wait_s)
        return data if answer.get("ready") is True else None

    def turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        answer, data = self._call("turn", seconds=wait_s, room=MAX_PACKET, wait_s=wait_s, cpu_ns=cpu_ns)
        with self._node.checked():
            answer = messages.fields(answer, "ready", "began_ns", "ended_ns", "cpu_ns")
            began, ended, cpu = (
                messages.whole(answer[name], 0, 1 << 63) for name in ("began_ns", "ended_ns", "cpu_ns")
            )
            if ended < began:
                raise WireError("a wait that ended before it began")
            return Turn(data if messages.yes(answer["ready"]) else None, began, ended, cpu)

    def become_stream(self, packet: bytes) -> None:
        self._call("become_stream", packet)

    def read_log(self) -> bytes:
        return self._call("read_log", room=MB)[1]

    def cpu_ns(self) -> int:
        return self._nanoseconds("cpu_ns")

    def others_cpu_ns(self) -> int:
        return self._nanoseconds("others_cpu_ns")

    def _nanoseconds(self, verb: str) -> int:
        answer, _ = self._call(verb)
        with self._node.checked():
            return messages.whole(messages.fields(answer, "ns")["ns"], 0, 1 << 63)

    def freeze(self) -> None:
        self._call("freeze")

    def thaw(self) -> None:
        self._call("thaw")

    def pin(self, cpus: set[int]) -> None:
        self._call("pin", cpus=sorted(cpus))

    def end(self, patience_s: float = 0.0) -> Result:
        self._finalizer.detach()
        room = self._limits.output_bytes + CHUNK
        answer = self._call("end", seconds=patience_s, room=room, text=2 * link.SMALL_TEXT, patience_s=patience_s)
        with self._node.checked():
            return messages.result_in(*answer)

    def drop(self) -> None:
        self._finalizer()


def _admit(limits: Limits) -> None:
    """Admit every execution: the node has its own rules."""
