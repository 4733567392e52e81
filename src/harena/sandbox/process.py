"""A command that runs in the background, with streams, signals and a terminal. Created by Sandbox.start."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal as signals
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from harena.errors import BoxClosed, SpecError
from harena.sandbox import owner
from harena.sandbox.spec import Limits, Result

CHUNK = 65536
TAIL = 4096
TICK_S = 1.0
"""How often a blocked write checks if the process was closed."""


@dataclass(frozen=True, slots=True)
class Written:
    """Output of a process, as the host saw it."""

    count: int
    over: bool
    """True if there was more output than the limit."""
    tail: bytes
    """The end of its standard error, where the verdict looks for error messages."""


class ProcessControl(Protocol):
    """The backend's side of a process. The streams are descriptors of the host."""

    def signal(self, number: int) -> None:
        """Signal the first process; 0 ends the whole tree. Does nothing if the process has ended."""
        ...

    def resize(self, rows: int, cols: int) -> None: ...

    def wait(self, timeout_s: float, written: Written) -> Result:
        """Return how the process ended, without its output. Raises TimeoutError if it has not ended."""
        ...

    def forget(self) -> None:
        """Declare that nobody will wait for the process."""
        ...


class Budget:
    """Bytes that a process may still write to both streams together. Writing more ends the process."""

    def __init__(self, control: ProcessControl, left: int) -> None:
        self._control = control
        self.left = left
        self.over = False

    def take(self, count: int) -> int:
        if count > self.left and not self.over:
            self.over = True
            self.kill()
        taken = min(count, self.left)
        self.left -= taken
        return taken

    def kill(self) -> None:
        self._control.signal(0)


class Stream:
    """Output stream of a process. Writing more than the limit ends the process."""

    def __init__(self, fd: int, budget: Budget) -> None:
        self._fd = fd
        self._budget = budget
        self._unread = bytearray()
        self._release = _closes(self, fd)
        self.tail = b""
        """The end of the output, whether read or not, where the verdict looks for error messages."""
        os.set_blocking(fd, False)
        self._owner = owner.register(self)

    tap: Callable[[bytes], object] | None = None
    """Called with what comes from the process, once."""

    def read(self, max_bytes: int = CHUNK, timeout_s: float | None = None) -> bytes:
        """Return some bytes as soon as there are any; b"" at the end. Raises TimeoutError if none came in time."""
        owner.check(self._owner, "the process")
        if max_bytes < 1:
            raise SpecError(f"max_bytes={max_bytes}: must be at least 1")
        if self._unread:
            data = bytes(self._unread[:max_bytes])
            del self._unread[:max_bytes]
            return data
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._fd >= 0:
            try:
                data = os.read(self._fd, min(max_bytes, CHUNK))
            except BlockingIOError:
                if not _wait_for([self._fd], select.POLLIN, deadline):
                    raise TimeoutError(f"the process wrote nothing within timeout_s={timeout_s:g}") from None
                continue
            except OSError:
                data = b""  # a terminal says EIO when its last process is gone
            if not data:
                self.close()
            data = data[: self._budget.take(len(data))]
            self.tail = (self.tail + data[-TAIL:])[-TAIL:]
            if self.tap is not None:
                self.tap(data)
            return data
        return b""

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def keep(self, data: bytes) -> None:
        """Put back bytes that were read; the next `read` returns them."""
        self._unread += data

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self._fd = -1
        self._release()

    def abandon(self) -> None:
        self.close()


class Process:
    """A running command in a box. If the object is dropped, the command continues without its streams."""

    def __init__(
        self,
        control: ProcessControl,
        limits: Limits,
        what: str,
        *,
        stdin: int,
        stdout: int,
        stderr: int | None,
        pty: bool,
    ) -> None:
        self._control = control
        self._limits = limits
        self._what = what
        self._budget = Budget(control, limits.output_bytes)
        self._result: Result | None = None
        self._closed = False
        self._pty = pty
        self._pipe = -1 if pty else stdin
        self._release = None if pty else _closes(self, stdin)
        self.stdout = Stream(stdout, self._budget)
        self.stderr = Stream(stderr, self._budget) if stderr is not None else None
        self._owner = owner.register(self)

    @property
    def _stdin(self) -> int:
        """Descriptor for input. A terminal has one descriptor for both directions."""
        return self.stdout.fileno() if self._pty else self._pipe

    _on_write: Callable[[str, bytes], object] | None = None
    _on_end: Callable[[Result | None], object] | None = None

    def observe(self, piece: Callable[[str, bytes], object], ended: Callable[[Result | None], object]) -> None:
        """Call `piece` with the name and the bytes of every stream, and `ended` with the result; None if nobody waited
        for it."""
        self._on_write, self._on_end = piece, ended
        self.stdout.tap = functools.partial(piece, "stdout")
        if self.stderr is not None:
            self.stderr.tap = functools.partial(piece, "stderr")

    def write(self, data: bytes) -> None:
        """Write to stdin. Raises BrokenPipeError if the process no longer reads."""
        owner.check(self._owner, self._what)
        if self._on_write is not None:
            self._on_write("stdin", data)
        view = memoryview(data)
        while view:
            fd = self._stdin
            if fd < 0:
                raise BrokenPipeError(errno.EPIPE, f"the stdin of {self._what} is closed")
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                if _wait_for([fd], select.POLLOUT, time.monotonic() + TICK_S).get(fd, 0) & GONE:
                    raise BrokenPipeError(errno.EPIPE, f"{self._what} has ended") from None
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise BrokenPipeError(errno.EPIPE, f"{self._what} has ended") from None

    def close_stdin(self) -> None:
        """Close stdin. A terminal cannot be closed this way: write b"\\x04" to it."""
        if self._release is not None:
            self._pipe = -1
            self._release()

    def send_signal(self, number: int) -> None:
        """Signal the first process only; `kill` ends all of them. Does nothing if the process has ended."""
        self._control.signal(signals.Signals(number))

    def kill(self) -> None:
        """End the whole process tree."""
        if self._result is None:
            self._budget.kill()

    def resize(self, rows: int, cols: int) -> None:
        owner.check(self._owner, self._what)
        if not self._pty:
            raise SpecError("resize: the process was not started with pty=True")
        if self.stdout.fileno() >= 0:
            self._control.resize(rows, cols)

    def wait(self, timeout_s: float | None = None) -> Result:
        """Wait for the end and return the result, with output that was not read yet. Raises TimeoutError if the
        process has not ended in time; it continues to run."""
        if self._result is not None:
            return self._result
        owner.check(self._owner, self._what)
        if self._closed:
            raise BoxClosed(f"{self._what} was closed before its end; nobody knows how it ended")
        self.close_stdin()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._drain(deadline)
        left = self._limits.wall_s + 30 if deadline is None else max(0.05, deadline - time.monotonic())
        budget, complaints = self._budget, (self.stderr or self.stdout).tail
        written = Written(self._limits.output_bytes - budget.left, budget.over, complaints)
        try:
            result = self._control.wait(left, written)
        except TimeoutError:
            raise TimeoutError(f"{self._what} has not ended in time; it goes on") from None
        self._control.forget()
        stdout, stderr = b"".join(self.stdout), b"".join(self.stderr or ())
        self._result = replace(result, stdout=stdout, stderr=stderr)
        self.close()
        return self._result

    @property
    def ended(self) -> bool:
        return self._result is not None

    def close(self) -> None:
        """End the process if it still runs, and close its streams. Idempotent."""
        if self._result is None:
            with contextlib.suppress(Exception):
                self.kill()
                self._control.forget()
        self._closed = True
        if self._on_end is not None:
            self._on_end(self._result)
        self.close_stdin()
        self.stdout.close()
        if self.stderr is not None:
            self.stderr.close()

    def abandon(self) -> None:
        self.close_stdin()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _drain(self, deadline: float | None) -> None:
        """Read both streams to their end, and keep the bytes for the next read or wait."""
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        parts: dict[Stream, list[bytes]] = {stream: [] for stream in streams}
        try:
            while live := {stream.fileno(): stream for stream in streams if stream.fileno() >= 0}:
                ready = _wait_for(live, select.POLLIN, deadline)
                if not ready:
                    raise TimeoutError(f"{self._what} has not ended in time; it goes on")
                for fd in ready:
                    parts[live[fd]].append(live[fd].read())
        finally:
            for stream, found in parts.items():
                stream.keep(b"".join(found))


GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


def _wait_for(fds: Iterable[int], events: int, deadline: float | None) -> dict[int, int]:
    """Wait for events on descriptors until the deadline. Uses poll, because select cannot handle descriptors above
    1023."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, events)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    return dict(poll.poll(left))


def _closes(owner: object, fd: int) -> weakref.finalize[..., object]:
    """Return a function that closes a descriptor once, also when its owner is dropped."""
    release = weakref.finalize(owner, os.close, fd)
    release.atexit = False
    return release
