"""One thread that waits for the sockets of all boxes with a network, and calls whoever they belong to.

Callbacks do a bounded amount of work and never block. An exception in one is reported and ends what it belongs to, not
the thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from harena.sandbox import owner

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
TICK_S = 0.1
"""How often deadlines are checked while there are any."""
BATCH = 64
"""Ready descriptors that are served before others are looked for."""

T = TypeVar("T")


class SocketHandler(Protocol):
    def ready(self, fd: int, events: int) -> None:
        """Called when a descriptor is ready."""
        ...

    def failed(self) -> None:
        """Called when `ready` raised an exception: close everything."""
        ...


class Ticking(Protocol):
    def tick(self, now: float) -> None:
        """Called about every TICK_S."""
        ...


class NetworkLoop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, READ)
        self._handlers: dict[int, SocketHandler] = {}
        self._ticking: dict[Ticking, None] = {}
        self._posted: deque[Callable[[], object]] = deque()
        self._tick_at = 0.0
        self.open = 0
        """Connections of all boxes."""
        owner.register(self)
        self._thread = threading.Thread(target=self._run, name="harena-network", daemon=True)
        self._thread.start()

    # ---- from any thread ----

    def post(self, action: Callable[[], object]) -> None:
        """Call a function in the thread of the loop, some time soon."""
        self._posted.append(action)
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def call(self, action: Callable[[], T]) -> T:
        """Call a function in the thread of the loop and return its result."""
        if threading.current_thread() is self._thread:  # a finalizer may run anywhere
            return action()
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(action())
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self.post(run)
        while not done.wait(1.0):
            if not self._thread.is_alive():
                raise RuntimeError("the thread of the network has ended")
        if errors:
            raise errors[0]
        return results[0]

    # ---- from the thread of the loop ----

    def watch(self, fd: int, events: int, handler: SocketHandler) -> None:
        """Wait for events of a descriptor, or for others than before. 0: only for errors and hang-ups."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Call this before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def tick(self, who: Ticking, wanted: bool) -> None:
        if wanted:
            self._ticking[who] = None
        else:
            self._ticking.pop(who, None)

    def poll_now(self) -> None:
        """Serve everything that is ready at this moment, a few times over."""
        for _ in range(4):
            if not self._serve(0):
                return

    def _run(self) -> None:
        while True:
            self._serve(TICK_S if self._ticking else -1)
            now = time.monotonic()
            if self._ticking and now >= self._tick_at:
                self._tick_at = now + TICK_S
                for one in list(self._ticking):
                    self.guarded(functools.partial(one.tick, now))

    def _serve(self, timeout_s: float) -> int:
        ready = self._epoll.poll(timeout_s, BATCH)
        served = 0
        for fd, events in ready:
            if fd == self._wake:
                with contextlib.suppress(OSError):
                    os.eventfd_read(self._wake)
                while self._posted:
                    self.guarded(self._posted.popleft())
                continue
            handler = self._handlers.get(fd)
            if handler is None:  # an earlier one of this batch has closed it
                continue
            served += 1
            if not self.guarded(functools.partial(handler.ready, fd, events)):
                self.guarded(handler.failed)
        return served

    def guarded(self, action: Callable[[], object]) -> bool:
        """Call a function. Returns False if it raised an exception, which is reported."""
        try:
            action()
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
            return False
        return True

    def abandon(self) -> None:
        """Close the copies that a forked child has. What the parent's epoll watches is not affected."""
        self._epoll.close()
        os.close(self._wake)
        self._handlers = {}


_loop: NetworkLoop | None = None
_lock = threading.Lock()


def shared() -> NetworkLoop:
    """Return the loop of this process. It is started on first use."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = NetworkLoop()
        return _loop


def _forget_loop() -> None:
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)
