"""Serves the one client of a process whose boxes nobody else uses: the relay's, or the host of a container. A server of
many clients uses `Node.take`.

Threads take turns to receive: the one that has a request leaves the next one to another and answers, so that no request
is handed from thread to thread.
"""

from __future__ import annotations

import contextlib
import threading

from harena.errors import WireError
from harena.node.link import Link
from harena.node.node import Node
from harena.node.verbs import Request
from harena.sandbox.backend import Backend

MAX_IDLE = 4
"""Threads that are kept for the next requests."""
MAX_BUSY = 1024
"""Requests that are answered by the threads that received them; further ones go to the node's workers, or wait."""


def serve(link: Link, backend: Backend) -> None:
    """Serve until the client disconnects; then end all of its boxes."""
    node = Node(link.send, backend)
    turns = _Turns(link, node)
    threading.Thread(target=turns.work, name="harena-node-turn", daemon=True).start()
    turns.over.wait()
    node.shut_down()


class _Turns:
    def __init__(self, link: Link, node: Node) -> None:
        self.over = threading.Event()
        self._link = link
        self._node = node
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._idle = 0
        """Number of threads that wait for their turn."""
        self._busy = 0

    def work(self) -> None:
        while True:
            with self._lock:
                if self._idle >= MAX_IDLE:
                    return
                self._idle += 1
            with self._turn:
                with self._lock:
                    self._idle -= 1
                    alone = self._idle == 0
                if self.over.is_set() or (request := self._next()) is None:
                    self.over.set()
                    return
            if alone:
                with contextlib.suppress(RuntimeError):  # no room for another thread: this one takes the next turn
                    threading.Thread(target=self.work, name="harena-node-turn", daemon=True).start()
            try:
                self._node.answer(request)
            except WireError:
                self.over.set()
                self._link.hang_up()
            finally:
                del request  # it may be large
                with self._lock:
                    self._busy -= 1

    def _next(self) -> Request | None:
        """The next request to answer in this thread; None at the end of the stream."""
        with contextlib.suppress(WireError):
            while (received := self._link.receive()) is not None:
                request = self._node.accept(*received)
                if request is None:
                    continue
                with self._lock:
                    here = self._busy < MAX_BUSY
                    self._busy += here
                if here:
                    return request
                self._node.answer_later(request)
        return None
