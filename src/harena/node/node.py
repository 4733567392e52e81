"""Server side of a link: holds boxes of a backend for one client and serves its requests in threads.

Guarantees: a request that `verbs` does not know never reaches a box; a client reaches only what it created itself;
the threads, waiting requests, boxes and processes of a client are bounded; `shut_down` ends everything it holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import threading
from collections.abc import Callable

from harena.errors import BoxError, BoxLost, HarenaError, Retry, SpecError, WireError
from harena.node import messages, verbs
from harena.node.budget import OutputBudget
from harena.node.held import GuestSocket, HeldBox, Holdings, ProgramLane, Send, Talk, told
from harena.node.link import Message
from harena.node.rules import OwnerQuota, RequestBudget, Rules
from harena.node.verbs import Request
from harena.node.workers import Workers
from harena.sandbox import backend
from harena.sandbox.backend import Backend, Box, Conversation, Stop
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Result

Answer = tuple[Message, bytes]
NOTHING: Answer = ({}, b"")

THREADS = 256
"""Requests of one client that are served at once. A started command takes up to four."""
WAITING = 2048
"""Requests of one client that wait for a thread; more are refused."""
CONTROL_THREADS, CONTROL_WAITING = 32, 8192
"""The same for requests that end something: they must not wait behind what they end."""
CONTROL = {"stop", "close", "forget", "drop", "close_stream", "close_stdin", "signal", "hang_up"}

log = logging.getLogger("harena.node")


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
        self._held = Holdings(quota)
        self._requests = RequestBudget(rules, quota)
        self._stops: dict[int, Stop] = {}
        self._lock = threading.Lock()
        self._outputs = OutputBudget() if quota is None else quota.outputs
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
        held = self._requests.hold(size)
        if not held or not self._work.run(lambda: self._serve(request)):
            if held:
                self._requests.let_go(size)
            self._refuse_for_now(request)

    def answer(self, request: Request) -> None:
        """Answer in this thread."""
        if self._requests.hold(len(request.data)):
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

    def _serve(self, request: Request) -> None:
        try:
            self._answer(request)
        finally:
            self._requests.let_go(len(request.data))

    def _answer(self, request: Request) -> None:
        try:
            if self._held.closed:
                return
            with self._outputs.share(self._output(request.verb, request.message), lambda: self._held.closed):
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
        return self._held.output_of.get(message["handle"], 0) if verb in ("wait", "end") else 0

    def shut_down(self) -> None:
        """End everything that the client holds. Idempotent."""
        things = self._held.close()
        with self._lock:
            stops = list(self._stops.values())
        self._outputs.wake()
        for stop in stops:
            with contextlib.suppress(Exception):
                stop()
        for thing in things:
            self._held.discard(thing)

    # ---- boxes ----

    def box(self, request: Request) -> Box:
        return self._held.get(request["handle"], HeldBox).box

    def capabilities(self, request: Request) -> Answer:
        found = dataclasses.asdict(self._backend.capabilities()) | {"cores": self._cores}
        if self._rules is not None and not self._rules.network:
            found["network"] = False
        return found, b""

    def load(self, request: Request) -> Answer:
        boxes, stopping = self._status() if self._status is not None else (self._held.box_count(), False)
        return {"boxes": boxes, "cores": self._cores, "stopping": stopping}, b""

    def create(self, request: Request) -> Answer:
        spec, limits = messages.spec_in(request["spec"]), request.limits
        if self._rules is not None:
            spec = self._rules.admit(spec, limits)
        create = self._backend.create
        [(handle, held)] = self._held.make(
            "boxes", lambda: [HeldBox(create(spec, limits=limits, start_s=request["start_s"]))]
        )
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

        def fork() -> list[HeldBox]:
            forks = box.fork(count)
            behind.extend(forked.left_behind for forked in forks)
            return [HeldBox(forked.box) for forked in forks]

        made = self._held.make("boxes", fork, count)
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
        held = self._held.pop(request["handle"], HeldBox)
        if held is not None:
            self._held.forget_lanes(held.box)
            try:
                held.box.close()
            finally:
                self._held.returned(held)
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

        def connect() -> list[GuestSocket]:
            return [GuestSocket(box.connect(request["port"], request["timeout_s"]))]

        [(handle, _)] = self._held.make("processes", connect)
        return {"handle": handle}, b""

    def pull(self, request: Request) -> Answer:
        data = self._held.get(request["handle"], GuestSocket).read(request["timeout_s"])
        return {"ready": data is not None}, data or b""

    def push(self, request: Request) -> Answer:
        self._held.get(request["handle"], GuestSocket).sock.sendall(request.data)
        return NOTHING

    def shut(self, request: Request) -> Answer:
        self._held.get(request["handle"], GuestSocket).sock.shutdown(socket.SHUT_WR)
        return NOTHING

    def hang_up(self, request: Request) -> Answer:
        guest = self._held.pop(request["handle"], GuestSocket)
        if guest is not None:
            self._held.discard(guest)
        return NOTHING

    # ---- processes ----

    def process(self, request: Request) -> Process:
        return self._held.get(request["handle"], Process)

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

        [(handle, _)] = self._held.make("processes", start)
        self._held.output_of[handle] = request.limits.output_bytes
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
        process = self._held.pop(request["handle"], Process)
        if process is not None:
            self._held.discard(process)
        return NOTHING

    # ---- programs and conversations ----

    def programs(self, request: Request) -> Answer:
        box = self.box(request)
        known = self._held.lane_of(box)
        if known is not None:
            return {"handle": known}, b""
        lane = ProgramLane(self._requests, box, self._send)
        lane.handle = self._held.keep(lane) or 0
        return {"handle": lane.handle}, b""

    def _give(self, message: Message, data: bytes) -> None:
        lane = self._held.lane(message["handle"])
        if lane is None:
            return  # its box was closed, and nobody waits for the task
        task = messages.task_in(message["task"], data)
        if self._rules is not None:
            self._rules.check_limits(task.limits)
        lane.give(message["key"], task)

    def converse(self, request: Request) -> Answer:
        box, limits = self.box(request), self.limits(request)
        [(handle, _)] = self._held.make("processes", lambda: [Talk(box.converse(request.source, limits=limits))])
        self._held.output_of[handle] = limits.output_bytes
        return {"handle": handle}, b""

    def converse_with(self, request: Request) -> Answer:
        box, limits, cpus = self.box(request), self.limits(request), set(request["cpus"])
        make = box.converse_with
        [(handle, _)] = self._held.make("processes", lambda: [Talk(make(request["argv"], limits=limits, cpus=cpus))])
        self._held.output_of[handle] = limits.output_bytes
        return {"handle": handle}, b""

    def talk(self, request: Request) -> Conversation:
        return self._held.get(request["handle"], Talk).conversation

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
        talk = self._held.pop(request["handle"], Talk)
        if talk is None:
            raise BoxLost("the node does not have that any more")
        try:
            return messages.result_out(talk.conversation.end(request["patience_s"]))
        finally:
            self._held.returned(talk)

    def drop(self, request: Request) -> Answer:
        talk = self._held.pop(request["handle"], Talk)
        if talk is not None:
            self._held.discard(talk)
        return NOTHING


VERBS: dict[str, Callable[[Node, Request], Answer]] = {
    method.__name__: method
    for method in (
        *(Node.capabilities, Node.load, Node.create, Node.stop, Node.exec, Node.run, Node.call, Node.ask_files),
        *(Node.fork, Node.alive, Node.ping, Node.warm_up, Node.close, Node.start, Node.read, Node.close_stream),
        *(Node.write, Node.close_stdin, Node.signal, Node.resize, Node.wait, Node.forget, Node.programs),
        *(Node.converse, Node.converse_with, Node.met, Node.send, Node.receive_soon, Node.receive, Node.turn),
        *(Node.become_stream, Node.read_log, Node.cpu_ns, Node.set_network, Node.network_report, Node.connect),
        *(Node.pull, Node.push, Node.shut, Node.hang_up, Node.others_cpu_ns, Node.freeze, Node.thaw, Node.pin),
        *(Node.end, Node.drop),
    )
}
"""Verbs that a client may request, in addition to `give`."""
