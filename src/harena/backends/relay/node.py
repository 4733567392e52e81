"""Server side of the relay: a process that holds boxes of a backend and serves requests, each in its own thread. It
ends, with all of its boxes, when the client disconnects. `python -m harena.backends.relay.node DESCRIPTOR`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from harena.backends.relay import link
from harena.backends.relay.link import Link, Message
from harena.errors import BoxError, BoxLost, SpecError, WireError
from harena.sandbox import backend
from harena.sandbox.backend import Box, Conversation, Programs, Stop, Task
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Result

Answer = tuple[Message, bytes]
NOTHING: Answer = ({}, b"")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
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
    def __init__(self, link: Link, backend_name: str = "local") -> None:
        self._link = link
        self._backend = backend.load(backend_name)
        self._handles = itertools.count(1)
        self._things: dict[int, Any] = {}
        self._stops: dict[int, Stop] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        while (received := self._link.receive()) is not None:
            message, data = received
            verb = message.pop("verb", None)
            if verb == "give":  # in order, and it does not block
                lane = self._things.get(message["handle"])
                if isinstance(lane, _Lane):  # else its box was closed, and nobody waits for the task
                    lane.give(message["key"], link.task_in(message["task"], data))
            else:
                threading.Thread(target=self._answer, args=(verb, message, data), daemon=True).start()
        for thing in list(self._things.values()):
            if isinstance(thing, _Held):
                with contextlib.suppress(Exception):
                    thing.box.close()

    def _answer(self, verb: str, message: Message, data: bytes) -> None:
        number = message.pop("request")
        try:
            if verb not in VERBS:
                raise WireError(f"no verb {verb!r}")
            value, more = VERBS[verb](self, Request(number, message, data))
            self._link.send({"answer": number, "value": value}, more)
        except Exception as error:
            with contextlib.suppress(OSError):
                self._link.send({"answer": number, "error": link.error_out(error)})

    def keep(self, thing: object) -> int:
        with self._lock:
            handle = next(self._handles)
            self._things[handle] = thing
            return handle

    def thing(self, handle: int, kind: type[T]) -> T:
        thing = self._things.get(handle)
        if not isinstance(thing, kind):
            raise BoxLost("the node does not have that any more")
        return thing

    # ---- boxes ----

    def box(self, request: Request) -> Box:
        return self.thing(request["handle"], _Held).box

    def capabilities(self, request: Request) -> Answer:
        return dataclasses.asdict(self._backend.capabilities()), b""

    def create(self, request: Request) -> Answer:
        spec = link.spec_in(request["spec"])
        box = self._backend.create(spec, limits=request.limits, start_s=request["start_s"])
        return {"handle": self.keep(_Held(box)), "id": box.id}, b""

    def execute(self, request: Request, run: Callable[[Stop], Result]) -> Answer:
        stop = Stop()
        with self._lock:
            self._stops[request.number] = stop
        try:
            return link.result_out(run(stop))
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
            lambda stop: box.exec(argv, stdin=request.data, env=env, cwd=cwd, limits=request.limits, stop=stop),
        )

    def run(self, request: Request) -> Answer:
        box = self.box(request)
        return self.execute(request, lambda stop: box.run(request.source, limits=request.limits, stop=stop))

    def call(self, request: Request) -> Answer:
        box, given = self.box(request), request["given"]
        return self.execute(
            request,
            lambda stop: box.call(
                request.source, request["name"], given["args"], given["kwargs"], limits=request.limits, stop=stop
            ),
        )

    def ask_files(self, request: Request) -> Answer:
        return self.box(request).ask_files(request["message"], request.data)

    def fork(self, request: Request) -> Answer:
        forks = self.box(request).fork(request["count"])
        return {
            "forks": [
                {"handle": self.keep(_Held(fork.box)), "id": fork.box.id, "left_behind": fork.left_behind}
                for fork in forks
            ]
        }, b""

    def alive(self, request: Request) -> Answer:
        return {"alive": self.box(request).alive}, b""

    def ping(self, request: Request) -> Answer:
        self.box(request).ping()
        return NOTHING

    def warm_up(self, request: Request) -> Answer:
        self.box(request).warm_up()
        return NOTHING

    def close(self, request: Request) -> Answer:
        held = self._things.pop(request["handle"], None)
        if isinstance(held, _Held):
            for handle, thing in list(self._things.items()):
                if isinstance(thing, _Lane) and thing.box is held.box:
                    del self._things[handle]
            held.box.close()
        return NOTHING

    # ---- processes ----

    def process(self, request: Request) -> Process:
        return self.thing(request["handle"], Process)

    def start(self, request: Request) -> Answer:
        process = self.box(request).start(
            request["argv"],
            env=request["env"],
            cwd=request["cwd"],
            limits=request.limits,
            pty=request["pty"],
            rows=request["rows"],
            cols=request["cols"],
        )
        return {"handle": self.keep(process)}, b""

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
        return link.result_out(self.process(request).wait(request["timeout_s"]))

    def forget(self, request: Request) -> Answer:
        process = self._things.pop(request["handle"], None)
        if isinstance(process, Process):
            process.close()
        return NOTHING

    # ---- programs and conversations ----

    def programs(self, request: Request) -> Answer:
        lane = _Lane(self._link, self.box(request))
        lane.handle = self.keep(lane)
        return {"handle": lane.handle}, b""

    def converse(self, request: Request) -> Answer:
        return {"handle": self.keep(_Talk(self.box(request).converse(request.source, limits=request.limits)))}, b""

    def talk(self, request: Request) -> Conversation:
        return self.thing(request["handle"], _Talk).conversation

    def met(self, request: Request) -> Answer:
        self.talk(request).met()
        return NOTHING

    def send(self, request: Request) -> Answer:
        self.talk(request).send(request.data)
        return NOTHING

    def receive_soon(self, request: Request) -> Answer:
        packet = self.talk(request).receive_soon()
        return {"ready": packet is not None}, packet or b""

    def receive(self, request: Request) -> Answer:
        packet = self.talk(request).receive(request["wait_s"])
        return {"ready": packet is not None}, packet or b""

    def become_stream(self, request: Request) -> Answer:
        self.talk(request).become_stream(request.data)
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
        talk = self.talk(request)
        del self._things[request["handle"]]
        return link.result_out(talk.end(request["patience_s"]))

    def drop(self, request: Request) -> Answer:
        talk = self._things.pop(request["handle"], None)
        if isinstance(talk, _Talk):
            talk.conversation.drop()
        return NOTHING


VERBS: dict[str, Callable[[Node, Request], Answer]] = {
    method.__name__: method
    for method in (
        *(Node.capabilities, Node.create, Node.stop, Node.exec, Node.run, Node.call, Node.ask_files, Node.fork),
        *(Node.alive, Node.ping, Node.warm_up, Node.close, Node.start, Node.read, Node.close_stream, Node.write),
        *(Node.close_stdin, Node.signal, Node.resize, Node.wait, Node.forget, Node.programs, Node.converse),
        *(Node.met, Node.send, Node.receive_soon, Node.receive, Node.become_stream, Node.read_log, Node.cpu_ns),
        *(Node.others_cpu_ns, Node.freeze, Node.thaw, Node.pin, Node.end, Node.drop),
    )
}
"""Verbs that a client may request, in addition to `give`."""


@dataclasses.dataclass(slots=True)
class _Talk:
    conversation: Conversation


class _Lane:
    """Runs tasks of a box in a thread, which ends when no task is left. Then the box can be used for other things."""

    def __init__(self, link: Link, box: Box) -> None:
        self.handle = 0
        self._link = link
        self.box = box
        self._given: deque[tuple[int, Task]] = deque()
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._bell)
        self._busy = False

    def give(self, key: int, task: Task) -> None:
        with self._lock:
            self._given.append((key, task))
            os.eventfd_write(self._bell, 1)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            self._run(self.box.programs())
        except (OSError, WireError, BoxError):
            with contextlib.suppress(OSError):
                self._link.send({"lane": self.handle, "lost": True})

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
        pairs = [link.result_out(result) for result in results]
        self._link.send(
            {"lane": self.handle, "key": key, "results": [head for head, _ in pairs], "failure": failure},
            b"".join(data for _, data in pairs),
        )


def _wait_for_the_client(number: int, frame: object) -> None:
    """Handle Ctrl-C without ending, since the client will disconnect. If it were ignored, every box would ignore it
    too."""


def main() -> None:
    signal.signal(signal.SIGINT, _wait_for_the_client)
    Node(Link(socket.socket(fileno=int(sys.argv[1])))).serve()
    os._exit(0)  # threads may still wait for what is gone


if __name__ == "__main__":
    main()
