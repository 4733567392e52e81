"""Client side of a link: boxes whose verbs are requests to a node. The streams of a process are pipes of this process,
which threads fill and empty, so that streams behave as with other backends.

The node is not trusted: a guest that has left its box may be the node. Its answers must be asked for, have a closed
schema (`link`) and come in time; the first one that does not ends the connection with all of its boxes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from harena.errors import BoxError, BoxLost, Retry, Unsupported, WireError
from harena.node import link, messages
from harena.node.link import Link, Message
from harena.sandbox import owner
from harena.sandbox.alarm import ALARM
from harena.sandbox.backend import MAX_PACKET, Capabilities, Forked, Stop, Task, TaskDone, Turn
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import CHUNK, Process, Written
from harena.sandbox.spec import MB, Limits, Result, Spec

SLICE_S = 5.0
"""How long the node waits for an answer of a process before the client asks again."""
GRACE_S = 60.0
"""How much longer than a verb may take the client waits for the node's answer. The node has shorter times of its own,
so only a node that is stuck or lies reaches this."""
SERVER_S = 90.0
"""The same in addition for a server."""
CLOSE_S = 20.0
LOAD_S = 20.0
"""A node that takes longer to report its load counts as failed."""
MAX_CONNECT_S = 60.0
RESULT_TEXT = 4096
"""JSON of one result in a list of them, without its detail."""

Answer = tuple[Message, bytes]


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


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request without an answer, and how large its answer may be."""

    future: Future[Answer]
    data: int
    text: int


class Answers:
    """What a node has yet to answer, and the thread that hands its answers out. Ends with the node."""

    def __init__(self, link: Link, ended: Callable[[], object], name: str) -> None:
        self.link = link
        self.lost = False
        self.name = name
        self.reason = f"{name} has ended"
        self.lock = threading.Lock()
        self.waiting: dict[int, _Asked] = {}
        self.lanes: weakref.WeakValueDictionary[int, NodePrograms] = weakref.WeakValueDictionary()
        self.given: dict[int, dict[int, tuple[int, int]]] = {}
        """For each lane the tasks without a result, with the sizes that it may have. A lane that was dropped stays here
        until its last result has come."""
        self._ended = ended
        threading.Thread(target=self._read, name="harena-node-client", daemon=True).start()

    def _read(self) -> None:
        try:
            while (received := self.link.receive_answer(self._max_text, self._room)) is not None:
                self._hand_out(*received)
        except Exception as error:  # whatever a node sends, somebody waits for the end of this thread
            self.reason = f"{self.name} broke its protocol: {str(error)[:200]}"
        with self.lock:
            self.lost = True
            waiting, lanes = list(self.waiting.values()), list(self.lanes.values())
            self.waiting.clear()
            self.given.clear()
        self.link.hang_up()
        for asked in waiting:
            asked.future.set_exception(BoxLost(self.reason))
        for lane in lanes:
            lane.take(None, b"")
        self.link.close()
        self._ended()

    def _max_text(self) -> int:
        with self.lock:
            texts = [asked.text for asked in self.waiting.values()]
            texts += [text for tasks in self.given.values() for _, text in tasks.values()]
        return max(texts, default=0)

    def _room(self, message: Message) -> int:
        with self.lock:
            if "answer" in message:
                asked = self.waiting.get(messages.whole(message["answer"]))
                if asked is None:
                    raise WireError("an answer that nobody asked for")
                if "error" in message:
                    messages.fields(message, "answer", "error")
                    return 0
                messages.fields(message, "answer", "value")
                return asked.data
            tasks = self.given.get(messages.whole(message.get("lane")))
            if tasks is None:
                raise WireError("a result that nobody asked for")
            if "lost" in message:
                messages.fields(message, "lane", "lost")
                return 0
            sizes = tasks.get(messages.whole(message.get("key")))
            if sizes is None:
                raise WireError("a result that nobody asked for")
            if "error" in message:
                messages.fields(message, "lane", "key", "error")
                return 0
            messages.fields(message, "lane", "key", "results", "failure")
            return sizes[0]

    def _hand_out(self, message: Message, data: bytes) -> None:
        if "answer" in message:
            with self.lock:
                asked = self.waiting.pop(message["answer"])
            if "error" in message:
                try:
                    error = messages.error_in(message["error"])
                except WireError as broken:
                    asked.future.set_exception(BoxLost(str(broken)))
                    raise
                asked.future.set_exception(error)
            else:
                asked.future.set_result((message["value"], data))
            return
        handle = message["lane"]
        with self.lock:
            lane = self.lanes.get(handle)
            tasks = self.given[handle]
            if "lost" in message:
                tasks.clear()
            else:
                del tasks[message["key"]]
            if not tasks and (lane is None or "lost" in message):
                del self.given[handle]
        if lane is not None:
            lane.take(message, data)


class Connection:
    """Sends requests to a node over a link, which is ended when nobody has the connection any more. `ended` is called
    when the node has disconnected. `is_server`: requests may wait there for others, so an answer may take longer, and a
    late one loses its call and not the connection, which has a liveness test of its own."""

    def __init__(
        self,
        link: Link,
        ended: Callable[[], object] = lambda: None,
        *,
        is_server: bool = False,
        name: str = "the node of the box",
    ) -> None:
        self._link = link
        self._name = name
        self._is_server = is_server
        self._answers = Answers(link, ended, name)
        self._ids = itertools.count(1)
        self._owner = owner.register(self)
        self._later: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
        threading.Thread(
            target=_tell_later, args=(weakref.ref(self), self._later), name="harena-node-client-later", daemon=True
        ).start()
        weakref.finalize(self, _hang_up, self._owner, self._link, self._later)

    @property
    def grace_s(self) -> float:
        """How much longer than a verb may take the answer is waited for."""
        return GRACE_S + (SERVER_S if self._is_server else 0.0)

    @property
    def usable(self) -> bool:
        return not self._answers.lost and os.getpid() == self._owner

    def call(
        self,
        verb: str,
        data: bytes = b"",
        *,
        seconds: float | None = 0.0,
        room: int = 0,
        text: int = link.SMALL_TEXT,
        **arguments: Any,
    ) -> Answer:
        """Send a request and return the answer. Raises what the node raised. `seconds`: how long the verb may take,
        None: as long as the node lives. `room` and `text` bound the bytes and the JSON of the answer."""
        return self.result(self.begin(verb, data, room=room, text=text, **arguments)[1], verb, seconds)

    def begin(
        self, verb: str, data: bytes = b"", *, room: int = 0, text: int = link.SMALL_TEXT, **arguments: Any
    ) -> tuple[int, Future[Answer]]:
        owner.check(self._owner, "a node")
        future: Future[Answer] = Future()
        with self._answers.lock:
            self._check()
            number = next(self._ids)
            self._answers.waiting[number] = _Asked(future, room, text)
        self._send({"request": number, "verb": verb, **arguments}, data, number)
        return number, future

    def result(self, future: Future[Answer], verb: str, seconds: float | None) -> Answer:
        try:
            value, data = future.result(None if seconds is None else seconds + self.grace_s)
        except TimeoutError:
            if future.done():  # the node's own word
                raise
            why = f"{self._name} did not answer {verb} in time"
            raise (BoxLost(why) if self._is_server else self.give_up(why)) from None
        if not isinstance(value, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self.give_up(f"{self._name} sent something else than an object")
        return value, data

    def _check(self) -> None:
        if self._answers.lost:
            raise BoxLost(f"{self._answers.reason}; nothing of this call was sent to it", retry=Retry.SAFE)

    def _send(self, message: Message, data: bytes, number: int | None) -> None:
        try:
            self._link.send(message, data, within_s=link.SEND_S)
        except OSError as error:
            raise self.give_up(f"{self._name} has ended: {error}") from None
        except BaseException:  # nothing was sent
            if number is not None:
                with self._answers.lock:
                    self._answers.waiting.pop(number, None)
            raise

    def give_up(self, why: str) -> BoxLost:
        """Disconnect from a node that does not keep to the protocol."""
        if not self._answers.lost:
            self._answers.reason = why
        self._link.hang_up()
        return BoxLost(why)

    @contextlib.contextmanager
    def checked(self) -> Any:
        """Disconnect if an answer is refused."""
        try:
            yield
        except WireError as error:
            raise self.give_up(f"{self._name} broke its protocol: {error}") from None

    def tell(self, verb: str, **arguments: Any) -> None:
        """Send a request without waiting for anything, also while the process ends."""
        with contextlib.suppress(OSError, BoxError):
            self.begin(verb, **arguments)

    def on_drop(self, thing: object, verb: str, handle: int) -> weakref.finalize[..., object]:
        """Tell the node when a thing is dropped. The collector may drop it in the middle of any call, one that sends
        among them, so nothing is sent from there."""
        return weakref.finalize(thing, self._later.put, (verb, handle))

    def attach(self, lane: NodePrograms) -> None:
        with self._answers.lock:
            self._check()
            self._answers.lanes[lane.handle] = lane

    def give(self, lane: int, key: int, task: Task) -> None:
        outputs = task.limits.output_bytes * len(task.sources)
        text = link.SMALL_TEXT + RESULT_TEXT * len(task.sources) + min(outputs, messages.MAX_WORDS * len(task.sources))
        with self._answers.lock:
            self._check()
            self._answers.given.setdefault(lane, {})[key] = (outputs, text)
        fields, data = messages.task_out(task)
        self._send({"request": next(self._ids), "verb": "give", "handle": lane, "key": key, "task": fields}, data, None)

    def abandon(self) -> None:
        self._link.abandon()


def _hang_up(process: int, link: Link, later: SimpleQueue[tuple[str, int] | None]) -> None:
    if os.getpid() == process:  # a forked child has let go of its copy
        link.hang_up()
    later.put(None)


def _tell_later(node: weakref.ref[Connection], later: SimpleQueue[tuple[str, int] | None]) -> None:
    """Tell the node what was dropped, until the connection itself is."""
    while (told := later.get()) is not None:
        verb, handle = told
        if (connection := node()) is not None:
            connection.tell(verb, handle=handle)
        del connection


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
        process = _process(self._node, self._handle_of(made), limits, argv[0], pty=pty)
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
        handle = self._handle_of(made)
        ours, theirs = socket.socketpair()
        copy = os.dup(theirs.fileno())
        _in_thread(_pump_socket, self._node, handle, theirs)
        _in_thread(_pump_to_socket, self._node, handle, copy)
        return ours

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
                self._call("close", seconds=CLOSE_S - GRACE_S)


# ---- processes ----


class _Control:
    def __init__(self, node: Connection, handle: int, room: int) -> None:
        self._node = node
        self._handle = handle
        self._room = room

    def signal(self, number: int) -> None:
        self._node.call("signal", handle=self._handle, number=number)

    def resize(self, rows: int, cols: int) -> None:
        self._node.call("resize", handle=self._handle, rows=rows, cols=cols)

    def wait(self, timeout_s: float, written: Written) -> Result:
        """Wait for the end. The node has seen all output and determines the verdict."""
        answer = self._node.call(
            "wait",
            seconds=timeout_s,
            room=self._room,
            text=2 * link.SMALL_TEXT,
            handle=self._handle,
            timeout_s=timeout_s,
        )
        with self._node.checked():
            return messages.result_in(*answer)

    def forget(self) -> None:
        self._node.tell("forget", handle=self._handle)


def _process(node: Connection, handle: int, limits: Limits, what: str, *, pty: bool) -> Process:
    control = _Control(node, handle, limits.output_bytes)
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
    threading.Thread(target=work, args=arguments, name="harena-node-client-stream", daemon=True).start()


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
        answer, data = node.call("read", room=CHUNK, handle=handle, stream=stream, timeout_s=SLICE_S)
        if answer.get("ready") is True:
            return data


def _pump_in(node: Connection, handle: int, fd: int) -> None:
    with contextlib.suppress(BoxError), os.fdopen(fd, "rb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while data := file.read(CHUNK):
                node.call("write", data, seconds=None, handle=handle)  # until the process reads it
        node.tell("close_stdin", handle=handle)


def _pump_socket(node: Connection, handle: int, sock: socket.socket) -> None:
    """Copy what comes from a port of the box into a local socket."""
    with sock:
        with contextlib.suppress(OSError, BoxError):
            while True:
                answer, data = node.call("pull", room=CHUNK, handle=handle, timeout_s=SLICE_S)
                if answer.get("ready") is True and not data:
                    break
                sock.sendall(data)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)


def _pump_to_socket(node: Connection, handle: int, fd: int) -> None:
    """Copy from a local socket to a port of the box, until the caller closes it."""
    with socket.socket(fileno=fd) as sock, contextlib.suppress(OSError, BoxError):
        while data := sock.recv(CHUNK):
            node.call("push", data, seconds=None, handle=handle)  # until the guest reads it
        node.call("shut", handle=handle)
        poll = select.poll()
        poll.register(sock, 0)
        poll.poll()  # closed by both sides
    node.tell("hang_up", handle=handle)


# ---- programs and conversations ----


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
