"""Socket to a box, shared by threads: each answer is given to the thread that waits for it.

Guarantees: an answer with an unknown id, or bytes that are not a valid answer, end the channel with WireError; waiting
threads then get BoxLost. The channel has no thread of its own: one of the waiting threads reads for all.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections import deque

from harena.backends.local import wire
from harena.errors import BoxError, BoxLost, Retry, WireError, WrongProcess
from harena.sandbox import owner

READ_BYTES = 1 << 16  # a larger one is mapped and unmapped by malloc for each read
MAX_ANSWERS = 4
"""Maximum number of answers kept for one request; no request has more than three."""
NOBODY = -1
"""No request has this id."""
TICK_S = 1.0
"""How often a blocked read checks its deadline."""


class NoAnswer(BoxLost, TimeoutError):
    """The box did not answer in the time it had."""


class Channel:
    def __init__(
        self, sock: socket.socket, name: str, *, takes_fds: bool = False, max_frame: int = wire.MAX_REPORT
    ) -> None:
        self._sock = sock
        self._name = name
        self._takes_fds = takes_fds
        self._ids = itertools.count(1)
        self._reader = wire.Reader(max_frame)
        self._send_lock = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._reading = False
        self._expected: set[int] = set()
        self._ignored: set[int] = set()
        self._arrived: dict[int, deque[wire.Frame]] = {}
        self._outputs: dict[int, wire.Output] = {}
        self._fds: deque[int] = deque()
        self._lost: BaseException | None = None
        owner.register(self)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(TICK_S), 0))

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def exclusive(self) -> socket.socket:
        """Return the socket itself, for one owner who waits for many answers at once and makes no other request
        meanwhile."""
        self._check()
        return self._sock

    @property
    def alive(self) -> bool:
        """False once the box is disconnected. Asks the kernel, not the box."""
        if self._lost is not None:
            return False
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLRDHUP)
        return not any(event & (select.POLLHUP | select.POLLRDHUP | select.POLLERR) for _, event in poll.poll(0))

    def request(
        self, op: int, body: bytes = b"", fds: tuple[int, ...] = (), *, timeout_s: float = 30.0, room: int = 0
    ) -> wire.Frame:
        id = self.post(op, body, fds, room=room)
        try:
            return self.wait(id, timeout_s)
        finally:
            self.forget(id)

    def post(self, op: int, body: bytes = b"", fds: tuple[int, ...] = (), *, room: int = 0) -> int:
        """Send a request whose answers are waited for by id, until `forget`. `room`: bytes of output that may come
        before its answer."""
        id = next(self._ids) & 0xFFFFFFFF
        data = wire.frame(op, id, body, len(fds))
        with self._changed:
            self._check()
            self._expected.add(id)
            if room:
                self._outputs[id] = wire.Output(room)
        try:
            with self._send_lock:
                self._send(data, fds)
        except (OSError, WireError) as error:
            self._fail(error)
            self._check()
        return id

    def _send(self, data: bytes, fds: tuple[int, ...]) -> None:
        view, rights = memoryview(data), wire.rights(fds)
        while view:
            try:
                view = view[self._sock.sendmsg([view], rights, socket.MSG_DONTWAIT) :]
                rights = []
            except BlockingIOError:
                self._make_room()

    def _make_room(self) -> None:
        """Wait until the box can read more. It does not read while it waits for us to read, so read if no thread
        does."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLOUT)
        ready = poll.poll(TICK_S * 1000)
        if any(event & select.POLLOUT for _, event in ready) or not ready:
            return
        with self._changed:
            if self._reading:
                self._changed.wait(0.01)
                return
            self._reading = True
        try:
            self._read_once(NOBODY)
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def tell(self, op: int, body: bytes) -> None:
        """Send a request whose answer is ignored."""
        self.ignore(self.post(op, body))

    def ignore(self, id: int) -> None:
        """Discard all further answers to this request."""
        with self._changed:
            arrived = self._arrived.pop(id, ())
            self._expected.discard(id)
            self._outputs.pop(id, None)
            if all(frame.op == wire.Op.STARTED for frame in arrived):
                self._ignored.add(id)

    def wait(self, id: int, timeout_s: float | None) -> wire.Frame:
        """Return the next answer to a request. Raises BoxLost if the channel ends first or the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                while True:
                    if queue := self._arrived.get(id):
                        return queue.popleft()
                    self._check()
                    if not self._reading:
                        self._reading = True
                        break
                    self._changed.wait(TICK_S)
                    self._check_time(deadline)
            try:
                left = TICK_S if deadline is None else deadline - time.monotonic()
                mine = self._read_once(id) if left >= TICK_S or self._readable(max(0, left)) else None
            except (OSError, WireError) as error:
                self._fail(error)
                continue
            finally:
                with self._changed:
                    self._reading = False
                    if self._changed_waiters():
                        self._changed.notify_all()
            if mine is not None:
                return mine
            self._check_time(deadline)

    def check(self, id: int) -> wire.Frame | None:
        """Return an answer that has already arrived, without waiting."""
        with self._changed:
            if queue := self._arrived.get(id):
                return queue.popleft()
            self._check()
            if self._reading:
                return None
            self._reading = True
        try:
            if not self._readable():
                return None
            return self._read_once(id)
        except (OSError, WireError) as error:
            self._fail(error)
            self._check()
            return None
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def _readable(self, within_s: float = 0) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def forget(self, id: int) -> None:
        with self._changed:
            self._expected.discard(id)
            self._outputs.pop(id, None)
            for frame in self._arrived.pop(id, ()):
                for fd in frame.fds:
                    os.close(fd)

    def close(self) -> None:
        self._fail(BoxLost(f"{self._name}: closed", retry=Retry.NEVER))

    def abandon(self) -> None:
        """Close the socket without ending the connection. A box ends when its last host socket closes, so a forked
        child must not keep its parent's boxes alive."""
        self._changed = threading.Condition(threading.Lock())
        self._lost = WrongProcess(self._name)
        for fd in (self._sock.detach(), *self._fds):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()

    def _changed_waiters(self) -> bool:
        return len(self._expected) > 1

    def _read_once(self, mine: int) -> wire.Frame | None:
        """Read what is available and distribute it. The frame for the reading thread is returned directly."""
        try:
            if self._takes_fds:
                data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, socket.CMSG_SPACE(wire.MAX_FDS * 4))
                self._keep_fds(ancillary)
            else:
                data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        if not data:
            raise WireError("it ended the connection")
        found: wire.Frame | None = None
        for frame in self._reader.feed(data):
            if frame.op == wire.Op.STARTED and frame.carries and self._fds:
                frame = frame._replace(fds=(self._fds.popleft(),))
            elif frame.op == wire.Op.DONE:
                frame = frame._replace(earlier=self._outputs.pop(frame.id, None))
            elif frame.op == wire.Op.OUTPUT:
                self._keep_output(frame)
                continue
            if frame.id == mine and found is None and not self._arrived.get(mine):
                found = frame
                continue
            with self._changed:
                if frame.id not in self._expected:
                    if frame.id in self._ignored:
                        if frame.op != wire.Op.STARTED:  # the last word on it
                            self._ignored.discard(frame.id)
                        continue
                    if frame.op == wire.Op.DONE or frame.id == 0:
                        continue  # the end of something that nobody waits for any more
                    raise WireError(f"it answered a request {frame.id} that was not made")
                queue = self._arrived.setdefault(frame.id, deque())
                if len(queue) >= MAX_ANSWERS:
                    raise WireError("it answered one request over and over")
                queue.append(frame)
        return found

    def _keep_output(self, frame: wire.Frame) -> None:
        with self._changed:
            output, expected = self._outputs.get(frame.id), frame.id in self._expected
        if output is not None:
            output.add(frame.body)
        elif expected:
            raise WireError("it sent output of something that has none")

    def _keep_fds(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level != socket.SOL_SOCKET or kind != socket.SCM_RIGHTS:
                continue
            fds = array.array("i", data[: len(data) - len(data) % 4])
            for fd in fds:
                if len(self._fds) < wire.MAX_FDS:
                    os.set_inheritable(fd, False)
                    self._fds.append(fd)
                else:
                    os.close(fd)

    def _check(self) -> None:
        if self._lost is not None:
            if isinstance(self._lost, BoxError):
                raise self._lost
            raise BoxLost(f"{self._name}: {self._lost}") from self._lost

    def _check_time(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise NoAnswer(f"{self._name}: no answer in time")

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._lost is None:
                self._lost = error
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
                self._sock.close()
                while self._fds:
                    os.close(self._fds.popleft())
            self._changed.notify_all()
