"""Host side of a box's persistent interpreter: runs source, enforces time limits, collects output."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from harena.backends.local import outcome, wire
from harena.backends.local.channel import Channel, NoAnswer
from harena.errors import BoxClosed, BoxError, BoxLost, Retry, WireError
from harena.sandbox import owner
from harena.sandbox.spec import Limits, Result, Usage, Verdict

FORK_S = 60.0
ANSWER_S = 5.0
"""Time for an interpreter to answer once its forks exist or are refused, and for forks once it has answered."""
TICK_S = 0.5
"""How often to check for a report of the zygote that another thread may have read."""
HANG_UP_S = 2.0
"""Time for an interpreter that has closed its socket to end before it is killed."""
CPU_CHECK_S = 0.05
MAX_ANSWER = 1 << 16
"""Maximum size of the interpreter's answer, which says only how a run ended; output is sent separately."""
ENDED = "; the interpreter has ended and its variables are gone"


class Interpreter:
    """One interpreter process. When it ends for any reason, its state is lost and `alive` is False."""

    def __init__(
        self, python: Channel, job: int, limits: Limits, sock: socket.socket, stdout: int, stderr: int
    ) -> None:
        self._python = python
        self.job = job
        self.limits = limits
        self._sock = sock
        self._out = (stdout, stderr)
        self._reader = wire.Reader(MAX_ANSWER)
        self._next = 1
        self._cpu_ns = 0
        self.alive = True
        self._busy = threading.Lock()
        self._stopped = False
        sock.setblocking(False)
        for fd in self._out:
            os.set_blocking(fd, False)
        self._owner = owner.register(self)

    def run(self, source: str, limits: Limits) -> Result:
        owner.check(self._owner, "the interpreter")
        with self._busy:
            try:
                self._send(wire.encode_call({"op": "run"}, source.encode("utf-8", "surrogatepass")))
                return self._follow(limits)
            except WireError:
                self._give_up()
                raise
            finally:
                if self._stopped:
                    self._close()

    def fork(self, count: int, all_started: Callable[[], bool]) -> int:
        """Make the interpreter fork itself. Returns the number of its other processes, which are not copied.
        `all_started` asks the zygote, and raises if it has refused a fork."""
        try:
            return self._follow_fork(count, all_started)
        except WireError:
            self._give_up()
            raise

    def _follow_fork(self, count: int, all_started: Callable[[], bool]) -> int:
        self._send(wire.encode_call({"op": "fork", "count": count}))
        deadline = time.monotonic() + FORK_S
        refused: BoxError | None = None
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._python.fileno(), select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            poll.poll(min(left, TICK_S) * 1000)
            answer, gone = self._receive()
            if gone:
                self._give_up()
                raise BoxLost("the interpreter ended while it was forked")
            if answer is not None:
                if refused is not None:
                    raise refused
                message, _ = wire.parse_answer(answer.body)
                others, number = message.get("others"), message.get("errno")
                if isinstance(others, int) and 0 <= others < 1 << 22:
                    return others
                raise BoxLost(f"the interpreter could not be forked: {_reason(number)}", retry=Retry.SAFE)
            try:
                if refused is None and all_started():
                    deadline = min(deadline, time.monotonic() + ANSWER_S)
            except BoxError as error:
                refused, deadline = error, min(deadline, time.monotonic() + ANSWER_S)
        self._give_up()
        raise refused or BoxLost("the interpreter did not answer while it was forked and has been ended")

    def _send(self, body: bytes) -> None:
        self._sock.setblocking(True)
        try:
            self._sock.sendall(wire.frame(wire.Op.CALL, self._next, body))
        except OSError:
            pass  # it is gone: following it finds out how
        finally:
            self._sock.setblocking(False)

    def _follow(self, limits: Limits) -> Result:
        """Wait until the answer comes, the process ends, or a limit is reached. The output of a run is written before
        its answer, so all of it has arrived when the answer is there."""
        started = time.monotonic()
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        room = limits.output_bytes
        poll = select.poll()
        for fd in (self._sock.fileno(), *self._out, self._python.exclusive.fileno()):
            poll.register(fd, select.POLLIN)
        answer: wire.Frame | None = None
        ended = wire.Ended.SELF
        while answer is None:
            left = started + limits.wall_s - time.monotonic()
            if left <= 0:
                ended = wire.Ended.WALL
                break
            if limits.cpu_s is not None:
                left = min(left, CPU_CHECK_S)
            ready = {fd for fd, _ in poll.poll(left * 1000 + 1)}
            if not ready and limits.cpu_s is not None and self._cpu_s(keep=True) > limits.cpu_s:
                ended = wire.Ended.CPU
                break
            gone = False
            if self._sock.fileno() in ready:
                answer, gone = self._receive()
            if answer is None and self._python.fileno() in ready:
                gone = gone or self._has_ended()
            for fd, into in zip(self._out, parts, strict=True):
                if fd in ready or answer is not None or gone:
                    room -= self._read(fd, into, room, poll)
            if room < 0:
                ended = wire.Ended.OUTPUT
                break
            if gone:
                break
        if self._stopped:
            raise BoxClosed("the box was closed while the source ran")
        wall_s = time.monotonic() - started
        written = limits.output_bytes - max(0, room)
        stdout, stderr = b"".join(parts[0]), b"".join(parts[1])
        if answer is None or ended != wire.Ended.SELF:
            return self._end(limits, ended, stdout, stderr, written)
        code, said = self._understand(answer)
        usage = Usage(cpu_s=self._cpu_s(), wall_s=wall_s, peak_mb=self._peak_mb, bytes=written)
        verdict, detail = Verdict.OK, ""
        hits, self._hits = self._hits & ~outcome.SEEN_AT_PROCESSES, 0
        if code:
            status = wire.Done(0, code << 8, hits, 0, 0, 0, 0, 0, 0, b"", b"", b"")
            verdict, detail = outcome.judge(status, limits, said=said, what="the source")
        return Result(
            verdict=verdict, exit_code=code, signal=None, stdout=stdout, stderr=stderr, usage=usage, detail=detail
        )

    def _give_up(self) -> None:
        """Give up an interpreter that sends invalid data; the next run starts another one."""
        with contextlib.suppress(BoxLost):
            self._python.request(wire.Op.KILL, struct.pack("<II", self.job, 0))
            if self._ended is None:
                self._python.wait(self.job, 30)
        self._python.forget(self.job)
        self._close()

    def _has_ended(self) -> bool:
        """Ask the zygote whether it has ended, since a child may still hold the interpreter's socket."""
        self._ended = self._ended or self._python.check(self.job)
        return self._ended is not None

    _ended: wire.Frame | None = None

    def _receive(self) -> tuple[wire.Frame | None, bool]:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return None, False
        except OSError:
            data = b""
        if not data:
            return None, True
        frames = self._reader.feed(data)
        for frame in frames:
            if frame.id == self._next and frame.op == wire.Op.ANSWER:
                self._next += 1
                return frame, False
        if frames:
            raise WireError("the interpreter answered a request that was not made")
        return None, False

    @staticmethod
    def _read(fd: int, into: list[bytes], room: int, poll: select.poll) -> int:
        """Read everything available, keep at most `room` bytes, and return the number of bytes read."""
        total = 0
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return total
            if not data:
                with contextlib.suppress(KeyError):
                    poll.unregister(fd)
                return total
            into.append(data[: max(0, room - total)])
            total += len(data)
            if total > room:
                return total

    @staticmethod
    def _understand(answer: wire.Frame) -> tuple[int, str]:
        message, _ = wire.parse_answer(answer.body)
        code, said = message.get("exit"), message.get("limit")
        if not isinstance(code, int) or not 0 <= code <= 255 or said not in {"-", "M", "P"}:
            raise WireError("the interpreter sent a malformed answer")
        return code, said

    def _cpu_s(self, *, keep: bool = False) -> float:
        """CPU time used since the last call without `keep`."""
        frame = self._python.request(wire.Op.USAGE, wire.U32.pack(self.job))
        if frame.op != wire.Op.PONG or len(frame.body) != 24:
            self._peak_mb = 0.0
            return 0.0
        cpu_ns, peak_kb, hits = struct.unpack("<QQQ", frame.body)
        self._hits |= hits & 0xFF
        used = max(0, cpu_ns - self._cpu_ns)
        if not keep:
            self._cpu_ns = cpu_ns
        self._peak_mb = round(peak_kb / 1024, 3)
        return used / 1e9

    _peak_mb = 0.0
    _hits = 0

    def _end(self, limits: Limits, ended: int, stdout: bytes, stderr: bytes, written: int) -> Result:
        """End the interpreter if it still runs. The zygote's report says how it ended."""
        report = self._ended
        try:
            if report is None and ended == wire.Ended.SELF:
                with contextlib.suppress(NoAnswer):
                    report = self._python.wait(self.job, HANG_UP_S)
                ended = wire.Ended.HOST if report is None else ended
            if ended != wire.Ended.SELF:
                self._python.request(wire.Op.KILL, struct.pack("<II", self.job, 0))
            done = outcome.done_of(report or self._python.wait(self.job, 30), "of the interpreter")
        finally:
            self._python.forget(self.job)
            self._close()
        if ended != wire.Ended.SELF:
            done = done._replace(ended=ended)
        done = done._replace(stdout=stdout, stderr=stderr, written=written)
        result = outcome.result_of(done, limits, what="the source")
        detail = (result.detail or "the source ended the interpreter") + ENDED
        return Result(
            verdict=result.verdict,
            exit_code=result.exit_code,
            signal=result.signal,
            stdout=stdout,
            stderr=stderr,
            usage=result.usage,
            detail=detail,
        )

    def abandon(self) -> None:
        self._close()

    def close(self) -> None:
        """Close its descriptors. If a run is active in another thread, that thread is notified and closes them."""
        self._stopped = True
        if self._busy.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._busy.release()
        else:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._sock.close()
        for fd in self._out:
            os.close(fd)

    def kill(self) -> None:
        if self.alive:
            self.close()
            with contextlib.suppress(BoxLost):
                self._python.request(wire.Op.KILL, struct.pack("<II", self.job, 0))
                if self._busy.acquire(timeout=0):
                    self._busy.release()
                    self._python.wait(self.job, 30)
            self._python.ignore(self.job)


def _reason(number: object) -> str:
    if number == errno.EUSERS or number == errno.ENOSPC:
        return "Linux nests user namespaces at most 32 deep, and each generation of forks is one deeper"
    return os.strerror(number) if isinstance(number, int) and 0 < number < 4096 else "it gave no reason"
