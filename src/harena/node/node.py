"""Server side of a link: holds boxes of a backend for one client and serves its requests in threads.

Guarantees: a request that `verbs` does not know never reaches a box; a client reaches only what it created itself;
the threads, waiting requests, boxes and processes of a client are bounded; `shut_down` ends everything it holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from harena.errors import BoxError, BoxLost, HarenaError, Retry, SpecError, WireError
from harena.node import messages, verbs
from harena.node.budget import OutputBudget
from harena.node.link import Message
from harena.node.rules import OwnerQuota, Rules
from harena.node.workers import Workers
from harena.sandbox import backend
from harena.sandbox.backend import Backend, Box, Conversation, Programs, Stop, Task
from harena.sandbox.process import CHUNK, Process
from harena.sandbox.spec import MB, Limits, Result

Answer = tuple[Message, bytes]
NOTHING: Answer = ({}, b"")
T = TypeVar("T")

THREADS = 256
"""Requests of one client that are served at once. A started command takes up to four."""
WAITING = 2048
"""Requests of one client that wait for a thread; more are refused."""
WAITING_BYTES = 256 * MB
"""Most bytes of requests of one client with rules that are served or wait. Its owner has a limit too."""
CONTROL_THREADS, CONTROL_WAITING = 32, 8192
"""The same for requests that end something: they must not wait behind what they end."""
CONTROL = {"stop", "close", "forget", "drop", "close_stream", "close_stdin", "signal", "hang_up"}
TASKS = 64
"""Programs that a client may give to one box ahead of their results."""

log = logging.getLogger("harena.node")


class Send(Protocol):
    def __call__(self, message: Message, data: bytes = b"", /) -> None:
        """Send a message to the client. Raises OSError once it is disconnected."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    verb: str
    number: int
    message: Message
    data: bytes

    def __getitem__(self, name: str) -> Any:
        return self.message[name]

    @property
    def limits(self) -> Limits:
        return Limits(**self.message["limits"])

    @property
    def source(self) -> str:
        return self.data.decode("utf-8", "surrogatepass")


@dataclasses.dataclass(slots=True)
class _Held:
    """A box that a client holds."""

    box: Box


class Node:
    def __init__(
        self,
        send: Send,
        served: Backend | None = None,
        *,
        rules: Rules | None = None,
        quota: OwnerQuota | None = None,
        status: Callable[[], tuple[int, bool]] | None = None,
        cores: int | None = None,
    ) -> None:
        """`served`: where the boxes come from; None: the local backend. `quota`: what the owner of the client may hold,
        shared with its other connections. `status`: how many boxes all clients hold, and whether the node is
        stopping. `cores`: processors of the boxes, if they are not all of this process."""
        self._cores = len(os.sched_getaffinity(0)) if cores is None else cores
        self._status = status
        self._send = send
        self._rules = rules
        self._quota = quota
        self._backend = served or backend.load("local")
        self._handles = itertools.count(1)
        self._things: dict[int, Any] = {}
        self._stops: dict[int, Stop] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._held_bytes = 0
        self._outputs = OutputBudget() if quota is None else quota.outputs
        self._output_of: dict[int, int] = {}
        self._work = Workers("harena-node", threads=THREADS, waiting=WAITING)
        self._control = Workers("harena-node-control", threads=CONTROL_THREADS, waiting=CONTROL_WAITING)

    def take(self, message: Message, data: bytes) -> None:
        """Serve a request, without blocking. Raises WireError if the client must be disconnected."""
        request = self.accept(message, data)
        if request is not None:
            self.answer_later(request)

    def accept(self, message: Message, data: bytes) -> Request | None:
        """Check a request, which `answer` or `answer_later` then serves; None if there is no more to do. Does not
        block. Raises WireError if the client must be disconnected."""
        verb, number = message.pop("verb", None), message.pop("request", None)
        if type(number) is not int or not 0 < number <= verbs.MAX_NUMBER:
            raise WireError("a request without a number")
        try:
            verbs.check(verb, message, data)
            if verb == "give":  # in order, and it does not block
                self._give(message, data)
                return None
        except HarenaError as error:
            refusal: Message = {"answer": number, "error": messages.error_out(error)}
            if verb == "give" and verbs.HANDLE(message.get("handle")) and verbs.HANDLE(message.get("key")):
                # its answers come by the lane
                refusal = {"lane": message["handle"], "key": message["key"], "error": messages.error_out(error)}
            self._refuse(refusal)
            return None
        return Request(verb, number, message, data)

    def answer_later(self, request: Request) -> None:
        """Answer in another thread."""
        if request.verb in CONTROL:
            if not self._control.run(lambda: self._answer(request)):
                raise WireError("the client floods the node")
            return
        size = len(request.data)
        held = self.hold(size)
        if not held or not self._work.run(lambda: self._serve(request)):
            if held:
                self.let_go(size)
            self._refuse_for_now(request)

    def answer(self, request: Request) -> None:
        """Answer in this thread."""
        if self.hold(len(request.data)):
            self._serve(request)
        else:
            self._refuse_for_now(request)

    def _refuse_for_now(self, request: Request) -> None:
        error = BoxError("too many requests at once; try again when some have ended", retry=Retry.SAFE)
        self._refuse({"answer": request.number, "error": messages.error_out(error)})

    def _refuse(self, refusal: Message) -> None:
        """Answer from another thread: the client may not be reading."""
        if not self._control.run(lambda: self._tell(refusal)):
            raise WireError("the client floods the node")

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            self._send(message)

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
            self._held_bytes += size
            if self._rules is None or self._held_bytes <= WAITING_BYTES:
                return True
        self.let_go(size)
        return False

    def let_go(self, size: int) -> None:
        with self._lock:
            self._held_bytes -= size
        if self._quota is not None:
            self._quota.give_back("requests")
            self._quota.give_back("bytes of requests", size)

    def _serve(self, request: Request) -> None:
        try:
            self._answer(request)
        finally:
            self.let_go(len(request.data))

    def _answer(self, request: Request) -> None:
        try:
            if self._closed:
                return
            with self._outputs.share(self._output(request.verb, request.message), lambda: self._closed):
                value, more = VERBS[request.verb](self, request)
                self._send({"answer": request.number, "value": value}, more)
        except Exception as error:
            if not isinstance(error, HarenaError | OSError | ValueError):
                log.exception("%s failed", request.verb)
            self._tell({"answer": request.number, "error": messages.error_out(error)})

    def _output(self, verb: str, message: Message) -> int:
        """Most bytes of output that the answer may have, for a client whose memory here is limited."""
        if self._rules is None:
            return 0
        if verb in ("exec", "run", "call"):
            return Limits(**message["limits"]).output_bytes
        return self._output_of.get(message["handle"], 0) if verb in ("wait", "end") else 0

    def shut_down(self) -> None:
        """End everything that the client holds. Idempotent."""
        with self._lock:
            self._closed = True
            things, stops = list(self._things.values()), list(self._stops.values())
            self._things.clear()
        self._outputs.wake()
        for stop in stops:
            with contextlib.suppress(Exception):
                stop()
        for thing in things:
            self._discard(thing)

    def _make(self, what: str, make: Callable[[], list[T]], count: int = 1) -> list[tuple[int, T]]:
        """Create what the client will hold. A client that has gone meanwhile never gets it."""
        if self._quota is not None:
            self._quota.take(what, count)
        try:
            made = make()
        except BaseException:
            if self._quota is not None:
                self._quota.give_back(what, count)
            raise
        handles = [self._keep(thing) for thing in made]
        if None in handles:
            raise BoxLost("the client has gone")
        return [(handle, thing) for handle, thing in zip(handles, made, strict=True) if handle is not None]

    def _keep(self, thing: object) -> int | None:
        """Return the handle of a thing; None if the client has gone, and the thing with it."""
        with self._lock:
            handle = next(self._handles)
            if not self._closed:
                self._things[handle] = thing
                return handle
        self._discard(thing)
        return None

    def _discard(self, thing: object) -> None:
        """End a thing that is no longer in `_things`."""
        _end(thing)
        self._returned(thing)

    def _returned(self, thing: object) -> None:
        what = (
            "boxes"
            if isinstance(thing, _Held)
            else "processes"
            if isinstance(thing, Process | _Talk | _GuestSocket)
            else ""
        )
        if what and self._quota is not None:
            self._quota.give_back(what)

    def _pop(self, handle: int, kind: type[T]) -> T | None:
        """Take a thing away from the client: of several calls, one gets it."""
        with self._lock:
            if not isinstance(self._things.get(handle), kind):
                return None
            self._output_of.pop(handle, None)
            return self._things.pop(handle)

    def thing(self, handle: int, kind: type[T]) -> T:
        thing = self._things.get(handle)
        if not isinstance(thing, kind):
            raise BoxLost("the node does not have that any more")
        return thing

    # ---- boxes ----

    def box(self, request: Request) -> Box:
        return self.thing(request["handle"], _Held).box

    def capabilities(self, request: Request) -> Answer:
        found = dataclasses.asdict(self._backend.capabilities()) | {"cores": self._cores}
        if self._rules is not None and not self._rules.network:
            found["network"] = False
        return found, b""

    def load(self, request: Request) -> Answer:
        boxes, stopping = self._status() if self._status is not None else (self._box_count(), False)
        return {"boxes": boxes, "cores": self._cores, "stopping": stopping}, b""

    def _box_count(self) -> int:
        with self._lock:
            return sum(isinstance(thing, _Held) for thing in self._things.values())

    def create(self, request: Request) -> Answer:
        spec, limits = messages.spec_in(request["spec"]), request.limits
        if self._rules is not None:
            spec = self._rules.admit(spec, limits)
        create = self._backend.create
        [(handle, held)] = self._make("boxes", lambda: [_Held(create(spec, limits=limits, start_s=request["start_s"]))])
        return {"handle": handle, "id": held.box.id, "isolation": getattr(held.box, "isolation", "full")}, b""

    def limits(self, request: Request) -> Limits:
        limits = request.limits
        if self._rules is not None:
            self._rules.check_limits(limits)
        return limits

    def execute(self, request: Request, run: Callable[[Stop], Result]) -> Answer:
        stop = Stop()
        with self._lock:
            self._stops[request.number] = stop
        try:
            return messages.result_out(run(stop))
        finally:
            with self._lock:
                del self._stops[request.number]

    def stop(self, request: Request) -> Answer:
        with self._lock:
            stop = self._stops.get(request["target"])
        if stop is not None:
            stop()
        return NOTHING

    def exec(self, request: Request) -> Answer:
        box, argv, env, cwd = self.box(request), request["argv"], request["env"], request["cwd"]
        return self.execute(
            request,
            lambda stop: box.exec(argv, stdin=request.data, env=env, cwd=cwd, limits=self.limits(request), stop=stop),
        )

    def run(self, request: Request) -> Answer:
        box = self.box(request)
        return self.execute(request, lambda stop: box.run(request.source, limits=self.limits(request), stop=stop))

    def call(self, request: Request) -> Answer:
        box, given = self.box(request), request["given"]
        return self.execute(
            request,
            lambda stop: box.call(
                request.source, request["name"], given["args"], given["kwargs"], limits=self.limits(request), stop=stop
            ),
        )

    def ask_files(self, request: Request) -> Answer:
        return self.box(request).ask_files(request["message"], request.data)

    def fork(self, request: Request) -> Answer:
        box, count = self.box(request), request["count"]
        behind: list[int] = []

        def fork() -> list[_Held]:
            forks = box.fork(count)
            behind.extend(forked.left_behind for forked in forks)
            return [_Held(forked.box) for forked in forks]

        made = self._make("boxes", fork, count)
        forks = [
            {"handle": handle, "id": held.box.id, "left_behind": left}
            for (handle, held), left in zip(made, behind, strict=True)
        ]
        return {"forks": forks}, b""

    def alive(self, request: Request) -> Answer:
        return {"alive": self.box(request).alive}, b""

    def ping(self, request: Request) -> Answer:
        self.box(request).ping()
        return NOTHING

    def warm_up(self, request: Request) -> Answer:
        self.box(request).warm_up()
        return NOTHING

    def close(self, request: Request) -> Answer:
        held = self._pop(request["handle"], _Held)
        if held is not None:
            with self._lock:
                for handle, thing in list(self._things.items()):
                    if isinstance(thing, _Lane) and thing.box is held.box:
                        del self._things[handle]
            try:
                held.box.close()
            finally:
                self._returned(held)
        return NOTHING

    # ---- network ----

    def set_network(self, request: Request) -> Answer:
        network = messages.network_in(request["network"])
        if self._rules is not None and network is not None:
            self._rules.check_network(network)
        self.box(request).set_network(network)
        return NOTHING

    def network_report(self, request: Request) -> Answer:
        return messages.report_out(self.box(request).network_report()), b""

    def connect(self, request: Request) -> Answer:
        box = self.box(request)

        def connect() -> list[_GuestSocket]:
            return [_GuestSocket(box.connect(request["port"], request["timeout_s"]))]

        [(handle, _)] = self._make("processes", connect)
        return {"handle": handle}, b""

    def pull(self, request: Request) -> Answer:
        data = self.thing(request["handle"], _GuestSocket).read(request["timeout_s"])
        return {"ready": data is not None}, data or b""

    def push(self, request: Request) -> Answer:
        self.thing(request["handle"], _GuestSocket).sock.sendall(request.data)
        return NOTHING

    def shut(self, request: Request) -> Answer:
        self.thing(request["handle"], _GuestSocket).sock.shutdown(socket.SHUT_WR)
        return NOTHING

    def hang_up(self, request: Request) -> Answer:
        guest = self._pop(request["handle"], _GuestSocket)
        if guest is not None:
            self._discard(guest)
        return NOTHING

    # ---- processes ----

    def process(self, request: Request) -> Process:
        return self.thing(request["handle"], Process)

    def start(self, request: Request) -> Answer:
        box = self.box(request)

        def start() -> list[Process]:
            return [
                box.start(
                    request["argv"],
                    env=request["env"],
                    cwd=request["cwd"],
                    limits=self.limits(request),
                    pty=request["pty"],
                    rows=request["rows"],
                    cols=request["cols"],
                )
            ]

        [(handle, _)] = self._make("processes", start)
        self._output_of[handle] = request.limits.output_bytes
        return {"handle": handle}, b""

    def read(self, request: Request) -> Answer:
        process = self.process(request)
        stream = process.stderr if request["stream"] == "stderr" else process.stdout
        if stream is None:
            raise SpecError("the process has no such stream")
        try:
            return {"ready": True}, stream.read(timeout_s=request["timeout_s"])
        except TimeoutError:
            return {"ready": False}, b""

    def close_stream(self, request: Request) -> Answer:
        process = self.process(request)
        stream = process.stderr if request["stream"] == "stderr" else process.stdout
        if stream is not None:
            stream.close()
        return NOTHING

    def write(self, request: Request) -> Answer:
        self.process(request).write(request.data)
        return NOTHING

    def close_stdin(self, request: Request) -> Answer:
        self.process(request).close_stdin()
        return NOTHING

    def signal(self, request: Request) -> Answer:
        if request["number"]:
            self.process(request).send_signal(request["number"])
        else:
            self.process(request).kill()
        return NOTHING

    def resize(self, request: Request) -> Answer:
        self.process(request).resize(request["rows"], request["cols"])
        return NOTHING

    def wait(self, request: Request) -> Answer:
        return messages.result_out(self.process(request).wait(request["timeout_s"]))

    def forget(self, request: Request) -> Answer:
        process = self._pop(request["handle"], Process)
        if process is not None:
            self._discard(process)
        return NOTHING

    # ---- programs and conversations ----

    def programs(self, request: Request) -> Answer:
        box = self.box(request)
        with self._lock:
            known = [handle for handle, one in self._things.items() if isinstance(one, _Lane) and one.box is box]
        if known:
            return {"handle": known[0]}, b""
        lane = _Lane(self, box, self._send)
        lane.handle = self._keep(lane) or 0
        return {"handle": lane.handle}, b""

    def _give(self, message: Message, data: bytes) -> None:
        lane = self._things.get(message["handle"])
        if not isinstance(lane, _Lane):
            return  # its box was closed, and nobody waits for the task
        task = messages.task_in(message["task"], data)
        if self._rules is not None:
            self._rules.check_limits(task.limits)
        lane.give(message["key"], task)

    def converse(self, request: Request) -> Answer:
        box, limits = self.box(request), self.limits(request)
        [(handle, _)] = self._make("processes", lambda: [_Talk(box.converse(request.source, limits=limits))])
        self._output_of[handle] = limits.output_bytes
        return {"handle": handle}, b""

    def converse_with(self, request: Request) -> Answer:
        box, limits, cpus = self.box(request), self.limits(request), set(request["cpus"])
        make = box.converse_with
        [(handle, _)] = self._make("processes", lambda: [_Talk(make(request["argv"], limits=limits, cpus=cpus))])
        self._output_of[handle] = limits.output_bytes
        return {"handle": handle}, b""

    def talk(self, request: Request) -> Conversation:
        return self.thing(request["handle"], _Talk).conversation

    def met(self, request: Request) -> Answer:
        self.talk(request).met()
        return NOTHING

    def send(self, request: Request) -> Answer:
        talk = self.talk(request)
        with told():
            talk.send(request.data)
        return NOTHING

    def receive_soon(self, request: Request) -> Answer:
        packet = self.talk(request).receive_soon()
        return {"ready": packet is not None}, packet or b""

    def receive(self, request: Request) -> Answer:
        packet = self.talk(request).receive(request["wait_s"])
        return {"ready": packet is not None}, packet or b""

    def turn(self, request: Request) -> Answer:
        turn = self.talk(request).turn(request["wait_s"], request["cpu_ns"])
        clocks = {"began_ns": turn.began_ns, "ended_ns": turn.ended_ns, "cpu_ns": turn.cpu_ns}
        return {"ready": turn.packet is not None, **clocks}, turn.packet or b""

    def become_stream(self, request: Request) -> Answer:
        talk = self.talk(request)
        with told():
            talk.become_stream(request.data)
        return NOTHING

    def read_log(self, request: Request) -> Answer:
        return {}, self.talk(request).read_log()

    def cpu_ns(self, request: Request) -> Answer:
        return {"ns": self.talk(request).cpu_ns()}, b""

    def others_cpu_ns(self, request: Request) -> Answer:
        return {"ns": self.talk(request).others_cpu_ns()}, b""

    def freeze(self, request: Request) -> Answer:
        self.talk(request).freeze()
        return NOTHING

    def thaw(self, request: Request) -> Answer:
        self.talk(request).thaw()
        return NOTHING

    def pin(self, request: Request) -> Answer:
        self.talk(request).pin(set(request["cpus"]))
        return NOTHING

    def end(self, request: Request) -> Answer:
        talk = self._pop(request["handle"], _Talk)
        if talk is None:
            raise BoxLost("the node does not have that any more")
        try:
            return messages.result_out(talk.conversation.end(request["patience_s"]))
        finally:
            self._returned(talk)

    def drop(self, request: Request) -> Answer:
        talk = self._pop(request["handle"], _Talk)
        if talk is not None:
            self._discard(talk)
        return NOTHING


VERBS: dict[str, Callable[[Node, Request], Answer]] = {
    method.__name__: method
    for method in (
        *(
            Node.capabilities,
            Node.load,
            Node.create,
            Node.stop,
            Node.exec,
            Node.run,
            Node.call,
            Node.ask_files,
            Node.fork,
        ),
        *(Node.alive, Node.ping, Node.warm_up, Node.close, Node.start, Node.read, Node.close_stream, Node.write),
        *(Node.close_stdin, Node.signal, Node.resize, Node.wait, Node.forget, Node.programs, Node.converse),
        Node.converse_with,
        *(
            Node.met,
            Node.send,
            Node.receive_soon,
            Node.receive,
            Node.turn,
            Node.become_stream,
            Node.read_log,
            Node.cpu_ns,
        ),
        *(Node.set_network, Node.network_report, Node.connect, Node.pull, Node.push, Node.shut, Node.hang_up),
        *(Node.others_cpu_ns, Node.freeze, Node.thaw, Node.pin, Node.end, Node.drop),
    )
}
"""Verbs that a client may request, in addition to `give`."""


@dataclasses.dataclass(slots=True)
class _Talk:
    conversation: Conversation


class _GuestSocket:
    """A connection to a port of a box."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)  # its readers and writers are threads of their own
        self.sock = sock

    def read(self, timeout_s: float) -> bytes | None:
        """Some bytes; none at the end, None if nothing came in time."""
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        return self.sock.recv(CHUNK) if poll.poll(timeout_s * 1000) else None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class _Lane:
    """Runs tasks of a box in a thread, which ends when no task is left. Then the box can be used for other things."""

    def __init__(self, node: Node, box: Box, send: Send) -> None:
        self.handle = 0
        self._node = node
        self._send = send
        self.box = box
        self._given: deque[tuple[int, Task]] = deque()
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._bell)
        self._busy = False
        self._lost = False
        self._sizes: dict[int, int] = {}

    def give(self, key: int, task: Task) -> None:
        with self._lock:
            if self._lost:
                raise BoxLost("the box of these programs is lost")
            if key in self._sizes:
                raise WireError("two programs with one key")
            size = len(task.stdin) + sum(map(len, task.sources))
            if len(self._sizes) >= TASKS or not self._node.hold(size):
                raise WireError(f"more than {TASKS} programs at once in one box, or too many requests")
            self._sizes[key] = size
            self._given.append((key, task))
            os.eventfd_write(self._bell, 1)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            self._run(self.box.programs())
        except (OSError, WireError, BoxError):
            self._lose()
            with contextlib.suppress(OSError):
                self._send({"lane": self.handle, "lost": True})
        except BaseException:
            self._lose()
            raise

    def _lose(self) -> None:
        with self._lock:
            self._lost = True
            sizes, self._sizes = self._sizes, {}
            self._given.clear()
        for size in sizes.values():
            self._node.let_go(size)

    def _run(self, programs: Programs) -> None:
        running = 0
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        while True:
            with self._lock:
                if not self._given and not running:
                    self._busy = False
                    return
            while self._given:
                programs.give(*self._given.popleft())
                running += 1
            poll.register(programs.fileno(), select.POLLIN | (0 if programs.flush() else select.POLLOUT))
            for fd, events in poll.poll():
                if fd == self._bell:
                    os.eventfd_read(self._bell)
                elif events & ~select.POLLOUT:
                    for ended in programs.collect():
                        running -= 1
                        self._tell(ended.key, ended.results, ended.failure)

    def _tell(self, key: int, results: Any, failure: str) -> None:
        with self._lock:
            size = self._sizes.pop(key, None)
        if size is not None:
            self._node.let_go(size)
        pairs = [messages.result_out(result) for result in results]
        self._send(
            {"lane": self.handle, "key": key, "results": [head for head, _ in pairs], "failure": failure},
            b"".join(data for _, data in pairs),
        )


@contextlib.contextmanager
def told() -> Generator[None]:
    """For what is sent to a process: any failure means that it is gone or does not read, which the client must be able
    to tell from a lost box. A guest can choose the error: ECONNRESET if it ends with packets unread."""
    try:
        yield
    except (HarenaError, BlockingIOError):
        raise
    except OSError as error:
        raise BrokenPipeError(error.errno, error.strerror) from None


def _end(thing: object) -> None:
    with contextlib.suppress(Exception):
        if isinstance(thing, _Held):
            thing.box.close()
        elif isinstance(thing, _Talk):
            thing.conversation.drop()
        elif isinstance(thing, Process | _GuestSocket):
            thing.close()
