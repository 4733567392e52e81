"""What a client holds in a node: boxes, processes, conversations, connections to ports, and lanes of programs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from harena.errors import BoxError, BoxLost, HarenaError, WireError
from harena.node import messages
from harena.node.link import Message
from harena.node.rules import OwnerQuota, RequestBudget
from harena.sandbox.backend import Box, Conversation, Programs, Task
from harena.sandbox.process import CHUNK, Process

T = TypeVar("T")

TASKS = 64
"""Programs that a client may give to one box ahead of their results."""


class Send(Protocol):
    def __call__(self, message: Message, data: bytes = b"", /) -> None:
        """Send a message to the client. Raises OSError once it is disconnected."""
        ...


@dataclasses.dataclass(slots=True)
class HeldBox:
    """A box that a client holds."""

    box: Box


@dataclasses.dataclass(slots=True)
class Talk:
    conversation: Conversation


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


class GuestSocket:
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


class ProgramLane:
    """Runs tasks of a box in a thread, which ends when no task is left. Then the box can be used for other things."""

    def __init__(self, requests: RequestBudget, box: Box, send: Send) -> None:
        self.handle = 0
        self._requests = requests
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
            if len(self._sizes) >= TASKS or not self._requests.hold(size):
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
            self._requests.let_go(size)

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
            self._requests.let_go(size)
        pairs = [messages.result_out(result) for result in results]
        self._send(
            {"lane": self.handle, "key": key, "results": [head for head, _ in pairs], "failure": failure},
            b"".join(data for _, data in pairs),
        )


class Holdings:
    """Boxes, processes, conversations and connections of one client, by handle. A client that has gone gets no more."""

    def __init__(self, quota: OwnerQuota | None) -> None:
        self._quota = quota
        self._handles = itertools.count(1)
        self._things: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.closed = False
        self.output_of: dict[int, int] = {}
        """Most bytes of output that a process or a conversation may have."""

    def make(self, what: str, make: Callable[[], list[T]], count: int = 1) -> list[tuple[int, T]]:
        """Create what the client will hold. A client that has gone meanwhile never gets it."""
        if self._quota is not None:
            self._quota.take(what, count)
        try:
            made = make()
        except BaseException:
            if self._quota is not None:
                self._quota.give_back(what, count)
            raise
        handles = [self.keep(thing) for thing in made]
        if None in handles:
            raise BoxLost("the client has gone")
        return [(handle, thing) for handle, thing in zip(handles, made, strict=True) if handle is not None]

    def keep(self, thing: object) -> int | None:
        """Return the handle of a thing; None if the client has gone, and the thing with it."""
        with self._lock:
            handle = next(self._handles)
            if not self.closed:
                self._things[handle] = thing
                return handle
        self.discard(thing)
        return None

    def discard(self, thing: object) -> None:
        """End a thing that is no longer in `_things`."""
        _end(thing)
        self.returned(thing)

    def returned(self, thing: object) -> None:
        what = (
            "boxes"
            if isinstance(thing, HeldBox)
            else "processes"
            if isinstance(thing, Process | Talk | GuestSocket)
            else ""
        )
        if what and self._quota is not None:
            self._quota.give_back(what)

    def pop(self, handle: int, kind: type[T]) -> T | None:
        """Take a thing away from the client: of several calls, one gets it."""
        with self._lock:
            if not isinstance(self._things.get(handle), kind):
                return None
            self.output_of.pop(handle, None)
            return self._things.pop(handle)

    def get(self, handle: int, kind: type[T]) -> T:
        thing = self._things.get(handle)
        if not isinstance(thing, kind):
            raise BoxLost("the node does not have that any more")
        return thing

    def lane(self, handle: int) -> ProgramLane | None:
        """None if its box was closed."""
        found = self._things.get(handle)
        return found if isinstance(found, ProgramLane) else None

    def lane_of(self, box: Box) -> int | None:
        with self._lock:
            found = (handle for handle, one in self._things.items() if isinstance(one, ProgramLane) and one.box is box)
            return next(found, None)

    def forget_lanes(self, box: Box) -> None:
        with self._lock:
            for handle, thing in list(self._things.items()):
                if isinstance(thing, ProgramLane) and thing.box is box:
                    del self._things[handle]

    def box_count(self) -> int:
        with self._lock:
            return sum(isinstance(thing, HeldBox) for thing in self._things.values())

    def close(self) -> list[object]:
        """Keep nothing from now on. Returns what was held, for `discard`."""
        with self._lock:
            self.closed = True
            things = list(self._things.values())
            self._things.clear()
        return things


def _end(thing: object) -> None:
    with contextlib.suppress(Exception):
        if isinstance(thing, HeldBox):
            thing.box.close()
        elif isinstance(thing, Talk):
            thing.conversation.drop()
        elif isinstance(thing, Process | GuestSocket):
            thing.close()
