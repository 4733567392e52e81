"""Requests of a client to its node, and the answers.

The node is not trusted: a guest that has left its box may be the node. Its answers must be asked for, have a closed
schema (`messages`) and come in time; the first one that does not ends the connection with all of its boxes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from harena.errors import BoxError, BoxLost, Retry, WireError
from harena.node import link, messages
from harena.node.link import Link, Message
from harena.sandbox import owner
from harena.sandbox.backend import Task

GRACE_S = 60.0
"""How much longer than a verb may take the client waits for the node's answer. The node has shorter times of its own,
so only a node that is stuck or lies reaches this."""
SERVER_S = 90.0
"""The same in addition for a server."""
RESULT_TEXT = 4096
"""JSON of one result in a list of them, without its detail."""

Answer = tuple[Message, bytes]


class ResultLane(Protocol):
    """Programs of one box, whose results come without being asked for."""

    @property
    def handle(self) -> int: ...

    def take(self, message: Message | None, data: bytes) -> None:
        """Take a result; None if the node is lost. Does not block."""
        ...


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
        self.lanes: weakref.WeakValueDictionary[int, ResultLane] = weakref.WeakValueDictionary()
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

    def attach(self, lane: ResultLane) -> None:
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
