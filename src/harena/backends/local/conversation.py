"""Process in a box that exchanges packets with the host, which measures its CPU time.

Guarantees: the process that is timed, paused and pinned is the one that was started, as identified by the kernel; `end`
ends it and everything it started. Packets are neither trusted nor parsed here; the caller must do that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
import weakref

from harena.backends.local import outcome, wire
from harena.backends.local.channel import Channel, NoAnswer
from harena.errors import BoxError, BoxLost, WireError
from harena.sandbox import owner
from harena.sandbox.backend import Turn, take_turn
from harena.sandbox.spec import Limits, Result

START_S = 30.0
_CREDENTIALS = struct.Struct("3i")
_BUFFER = 212_992
"""Socket buffer size that Linux grants to any process by default; it then allows twice that."""
_MAX_OTHERS = 512
QUICK_US = 1000
"""How long `receive_soon` waits (the kernel rounds up to its tick)."""
SEND_S = 2
"""Time limit for sending. A process that does not read must not block the host, and will not answer either."""
RECEIVE = 1 << 16
"""Receive size; a longer packet comes in pieces, or is truncated and refused."""
LOG_BYTES = 1 << 16
NO_CLOCK = (~(1 << 27) << 3) | 2
"""Clock of a process number that no kernel gives."""


class LocalConversation:
    def __init__(
        self,
        channel: Channel,
        job: int,
        limits: Limits,
        box: str,
        sock: socket.socket,
        log: int,
        isolation: str,
        *,
        stream: socket.socket | None = None,
        cpus: set[int] | None = None,
    ) -> None:
        self._channel = channel
        self._job = job
        self._box = box
        self._isolation = isolation
        self._limits = limits
        self._sock = sock
        self._log = log
        """Its printed output, both streams; non-blocking."""
        self._stream = stream
        self._cpus = cpus
        self._poll = select.poll()
        self._poll.register(log, select.POLLIN)
        self._watch(stream or sock)
        self._pid = 0
        """Its pid as seen by this process."""
        self._pidfd = -1
        self._clock = NO_CLOCK
        self._frozen_others: list[int] = []
        self._sockets = [sock] if stream is None else [sock, stream]
        self._release = weakref.finalize(self, _close, self._sockets, log)
        self._release.atexit = False
        self._owner = owner.register(self)

    @classmethod
    def start(
        cls, channel: Channel, spawn: wire.Spawn, limits: Limits, box: str, isolation: str = "full"
    ) -> LocalConversation:
        """Request the process; `met` waits for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log, log_theirs = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            os.set_blocking(log, False)
            job = channel.post(wire.Op.SPAWN, spawn.encode(), (null, log_theirs, log_theirs, theirs.fileno()))
        except BaseException:
            ours.close()
            os.close(log)
            raise
        finally:
            theirs.close()
            os.close(log_theirs)
            os.close(null)
        return cls(channel, job, limits, box, ours, log, isolation)

    @classmethod
    def start_command(
        cls,
        channel: Channel,
        spawn: wire.Spawn,
        limits: Limits,
        box: str,
        isolation: str,
        cpus: set[int],
    ) -> LocalConversation:
        """Request a command that has one stream as stdin and stdout. Our own code speaks first, on another socket that
        the command does not get."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            sock, hello = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(hello)
            ours.enter_context(sock)
            stream, stdio = socket.socketpair()
            theirs.enter_context(stdio)
            ours.enter_context(stream)
            log, log_theirs = os.pipe()
            theirs.callback(os.close, log_theirs)
            ours.callback(os.close, log)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            os.set_blocking(log, False)
            fds = (stdio.fileno(), stdio.fileno(), log_theirs, hello.fileno())
            job = channel.post(wire.Op.SPAWN, spawn.encode(), fds)
            ours.pop_all()
        return cls(channel, job, limits, box, sock, log, isolation, stream=stream, cpus=cpus)

    def met(self) -> LocalConversation:
        """Wait until the process exists and is identified, and return the conversation."""
        self._check()
        try:
            if self._cpus is not None:
                self._let_go_on(self._cpus)
            frame = self._channel.wait(self._job, START_S)
            if frame.op != wire.Op.STARTED:
                outcome.done_of(frame, self._box)
                raise WireError("the box did not say that the process was started")
            if self._cpus is None:
                self._identify()
            return self
        except BaseException:
            self.drop()
            raise

    def _identify(self) -> None:
        self._pid = _first_word(self._sock, self._box)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            self._pidfd = os.pidfd_open(self._pid)
        self._clock = (~self._pid << 3) | 2  # as clock_getcpuclockid(3) makes it

    def _let_go_on(self, cpus: set[int]) -> None:
        """A command waits, before its program is loaded, until it is pinned: what it starts is pinned as well."""
        with contextlib.suppress(WireError):  # it was not started: the box's report says why
            self._identify()
            if cpus:
                self.pin(cpus)
            with contextlib.suppress(OSError):
                self._sock.send(b"g")

    # ---- packets ----

    def _watch(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, QUICK_US))
        self._fd = sock.fileno()
        self._poll.register(self._fd, select.POLLIN)

    def send(self, packet: bytes) -> None:
        if self._stream is not None:
            return self._stream.sendall(packet)
        self._sock.send(packet)
        return None

    def receive_soon(self) -> bytes | None:
        try:
            return (self._stream or self._sock).recv(RECEIVE)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it ended before it read all; what it sent before that is still to come
            return self.receive_soon()

    def receive(self, wait_s: float) -> bytes | None:
        sock = self._stream or self._sock
        deadline = time.monotonic() + wait_s
        while True:
            try:
                return sock.recv(RECEIVE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
                if not any(fd == self._fd for fd, _ in ready):
                    return None
            except ConnectionResetError:
                continue  # as above; the end comes after it

    def turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        return take_turn(self, wait_s, cpu_ns)

    def send_descriptor(self, packet: bytes, descriptor: int) -> None:
        """Send a packet with a copy of a descriptor, such as memory to share. Only where the box is on this machine."""
        socket.send_fds(self._sock, [packet], [descriptor])

    def become_stream(self, packet: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._sock, [packet], [theirs.fileno()])
        self._poll.unregister(self._fd)
        self._stream = ours
        self._sockets.append(ours)
        self._watch(ours)

    def read_log(self) -> bytes:
        try:
            data = os.read(self._log, LOG_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._log)  # nobody can print any more
        return data

    # ---- time ----

    def cpu_ns(self) -> int:
        """Exact CPU time of all its threads; 0 once it has ended."""
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return 0

    def freeze(self) -> None:
        self._check()
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        # What it has started may start more meanwhile: looks until all that are there stand.
        frozen: set[int] = set()
        while new := set(self.others()) - frozen:
            for pid in new:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)
            frozen |= new
        self._frozen_others = [*frozen]

    def thaw(self) -> None:
        self._check()
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        for pid in self._frozen_others:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        self._frozen_others = []

    def others(self) -> list[int]:
        """Other processes in its pid namespace: everything it started, including orphans. They are below the init of
        the namespace, which is its parent."""
        parent = _parent(self._pid)
        found: list[int] = []
        level = [parent] if parent > 1 else []
        while level and len(found) < _MAX_OTHERS:
            level = [child for pid in level for child in _children(pid)]
            found += level
        return [pid for pid in found if pid != self._pid]

    def others_cpu_ns(self) -> int:
        """CPU time of the processes it has started, including ended ones that were waited for (accurate to the
        tick)."""
        total = _waited_ns(self._pid)
        for pid in self.others():
            with contextlib.suppress(OSError):
                total += time.clock_gettime_ns((~pid << 3) | 2)
        return total

    def pin(self, cpus: set[int]) -> None:
        """Bind it to processors. Neither it nor processes it starts later can undo this."""
        self._check()
        try:
            os.sched_setaffinity(self._pid, cpus)
        except ProcessLookupError:
            pass
        except PermissionError:
            if self._isolation == "full":
                raise  # in a container root may not do so to processes of other users: see docs/isolation.md

    def end(self, patience_s: float = 0.0) -> Result:
        """End the process if it has not ended by itself within `patience_s`. Returns how it ended, as seen by the
        box."""
        self._check()
        try:
            frame = self._channel.check(self._job)
            if frame is None and patience_s:
                with contextlib.suppress(NoAnswer):
                    frame = self._channel.wait(self._job, patience_s)
            killed = frame is None
            if frame is None:
                self._channel.request(wire.Op.KILL, struct.pack("<II", self._job, 0))
                frame = self._channel.wait(self._job, START_S)
            done = outcome.done_of(frame, self._box)
            if killed:
                done = done._replace(ended=wire.Ended.HOST)
            return outcome.marked(outcome.result_of(done, self._limits, what="the process"), self._isolation)
        finally:
            self._let_go()

    def drop(self) -> None:
        """End the process without waiting for the result."""
        if not self._release.alive:
            return
        try:
            with contextlib.suppress(BoxError):
                self._channel.tell(wire.Op.KILL, struct.pack("<II", self._job, 0))
        finally:
            self._channel.ignore(self._job)
            self._let_go()

    def _check(self) -> None:
        owner.check(self._owner, f"a process in box {self._box}")

    def _let_go(self) -> None:
        self._channel.forget(self._job)
        self.abandon()

    def abandon(self) -> None:
        self._release()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _first_word(sock: socket.socket, box: str) -> int:
    """Pid of the process that sent the first packet: our own code, before it runs any other."""
    sock.settimeout(START_S)
    try:
        data, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    except TimeoutError:
        raise BoxLost(f"box {box}: a process was started and said nothing") from None
    sock.settimeout(None)
    for level, kind, body in ancillary:
        if data == b"h" and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid = _CREDENTIALS.unpack(body)[0]
            if pid > 0:
                return pid
    raise WireError(f"box {box}: a process did not say who it is")


def _close(sockets: list[socket.socket], log: int) -> None:
    for sock in sockets:
        sock.close()
    os.close(log)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _waited_ns(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[13]) + int(fields[14])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (OSError, ValueError):
        pass
    return found
