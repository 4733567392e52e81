"""Async versions of Sandbox, SandboxPool and Process: the same boxes, with each call awaited in a thread.

A cancelled `exec` or `call` ends its execution, and a cancelled `run` ends its interpreter with all variables; the box
and everything else in it stay. Any other cancelled call, such as a file operation, closes the box, because it is
unknown how much of it was done, unless the call ends by itself within a moment. An object that was being created when
the call was cancelled (a box, a lease, a fork, a process) is ended as soon as it exists. A cancelled `map` stops at its
next result, at the latest after its `wall_s`. Reading from a process and waiting for it may be cancelled freely:
nothing is lost, and the process continues.

One file, however long: each class only repeats its twin, and what they add, these rules, is in the functions on top.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import os
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from harena.errors import BoxClosed
from harena.sandbox.box import Sandbox, Stop
from harena.sandbox.files import MAX_ENTRIES, Snapshot
from harena.sandbox.pool import Determinism, SandboxPool
from harena.sandbox.process import CHUNK, Process, Stream
from harena.sandbox.shell import Shell
from harena.sandbox.spec import MB, Clocks, FileInfo, Limits, Result, Spec

if TYPE_CHECKING:
    from harena.sandbox.network import Network, NetworkReport

CALLS = 256
"""Maximum number of blocking calls at once, in all loops of the process; further calls queue."""
CONTROLS = 32
"""Threads reserved for calls that end something: these must not queue behind the calls they end."""
MOMENT_S = 0.05
"""How long a cancelled call may take to end by itself before the box is closed."""
SLICE_S = 0.5
"""Waits are split into pieces of this length, so that a cancelled wait frees its thread."""

P = ParamSpec("P")
T = TypeVar("T")


@functools.cache
def _threads(kind: str) -> concurrent.futures.ThreadPoolExecutor:
    count = {"calls": CALLS, "control": CONTROLS}[kind]
    name = "harena-async" if kind == "calls" else "harena-async-control"
    return concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix=name)


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call. If it is cancelled, the call ends by itself, and nobody sees its result."""
    return await asyncio.wrap_future(_threads("calls").submit(function, *args, **kwargs))


async def control(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a short call that ends something."""
    return await asyncio.wrap_future(_threads("control").submit(function, *args, **kwargs))


async def _guarded(close: Callable[[str], object], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a call of a box. If it is cancelled, `close` ends the call, if necessary by closing the box."""
    job = _threads("calls").submit(function, *args, **kwargs)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        if not job.cancel():
            await to_the_end(control(_end, job, close))
        raise


def _end(job: concurrent.futures.Future[Any], close: Callable[[str], object]) -> None:
    concurrent.futures.wait([job], timeout=MOMENT_S)
    if not job.done():
        close("a call was cancelled before its end")
        concurrent.futures.wait([job], timeout=5)


async def to_the_end(awaitable: Awaitable[object]) -> None:
    """Wait for the end even if the waiting task is cancelled, and raise the cancellation afterwards."""
    task = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def made(discard: Callable[[T], object], make: Callable[[], T]) -> T:
    """Run a call that creates an object. If it is cancelled, the object is discarded once it exists."""
    job = _threads("calls").submit(make)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        job.add_done_callback(functools.partial(_discard, discard))
        raise


def _discard(discard: Callable[[T], object], job: concurrent.futures.Future[T]) -> None:
    if not job.cancelled() and job.exception() is None:
        discard(job.result())


class _Closing(Protocol):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


C = TypeVar("C", bound=_Closing)


class Opening(Coroutine[Any, Any, C]):
    """An object that is being created: `await` it, or use `async with`, which closes it at the end."""

    def __init__(self, coroutine: Coroutine[Any, Any, C]) -> None:
        self._coroutine = coroutine
        self._entered: C | None = None

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, C]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> C:
        self._entered = await self._coroutine
        return await self._entered.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        if self._entered is not None:
            await self._entered.__aexit__(*exc)


class AsyncStream:
    """Output stream of a process: `async for chunk in process.stdout`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._turn = asyncio.Lock()
        self._ready = asyncio.Event()
        self._open = True
        # The loop watches a duplicate: another thread may close the stream's descriptor, and its number may be reused.
        self._watched = os.dup(stream.fileno())
        self._release = weakref.finalize(self, os.close, self._watched)

    async def read(self, max_bytes: int = CHUNK, timeout_s: float | None = None) -> bytes:
        """Return some bytes as soon as there are any; b"" at the end. Raises TimeoutError if none came in time."""
        async with asyncio.timeout(timeout_s), self._turn:
            try:
                while self._open:
                    try:
                        data = self._stream.read(max_bytes, 0.0)
                    except TimeoutError:
                        await self._readable()
                        continue
                    self._open = bool(data)
                    return data
                return b""
            finally:
                if not self._open:
                    self._release()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready.clear()
        loop.add_reader(self._watched, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            loop.remove_reader(self._watched)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    def close(self) -> None:
        """Stop reading; pending reads see the end of the stream."""
        self._open = False
        self._ready.set()
        if not self._turn.locked():
            self._release()


class AsyncProcess:
    """A running command in a box; the async version of Process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.stdout = AsyncStream(process.stdout)
        self.stderr = AsyncStream(process.stderr) if process.stderr is not None else None
        self._unread: tuple[list[bytes], list[bytes]] = ([], [])
        self._turn = asyncio.Lock()
        self._result: Result | None = None

    async def write(self, data: bytes) -> None:
        """Write to stdin. Raises BrokenPipeError if the process no longer reads. If the call is cancelled while the
        process reads too slowly, the process is ended, because it is unknown how much was written."""
        await _guarded(lambda _: self._process.close(), self._process.write, data)

    def close_stdin(self) -> None:
        self._process.close_stdin()

    async def send_signal(self, number: int) -> None:
        """Signal the first process only; `kill` ends all of them. Does nothing if the process has ended."""
        await control(self._process.send_signal, number)

    async def kill(self) -> None:
        """End the whole process tree."""
        await control(self._process.kill)

    def resize(self, rows: int, cols: int) -> None:
        self._process.resize(rows, cols)

    async def wait(self, timeout_s: float | None = None) -> Result:
        """Wait for the end and return the result, with output that was not read yet. Raises TimeoutError if the
        process has not ended in time; it continues to run."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                if self._result is None:
                    self._result = await self._end()
                return self._result
        except TimeoutError:
            raise TimeoutError(f"the process has not ended within timeout_s={timeout_s:g}; it goes on") from None

    async def _end(self) -> Result:
        self._process.close_stdin()
        streams = [self.stdout] if self.stderr is None else [self.stdout, self.stderr]
        await asyncio.gather(*map(_collect, streams, self._unread))
        while True:
            try:
                job = _threads("calls").submit(self._process.wait, SLICE_S)
                result = await asyncio.wrap_future(job)
            except TimeoutError:
                continue
            stdout, stderr = map(b"".join, self._unread)
            return dataclasses.replace(result, stdout=stdout + result.stdout, stderr=stderr + result.stderr)

    async def close(self) -> None:
        """End the process if it still runs, and close its streams. Idempotent."""
        try:
            await to_the_end(control(self._process.close))
        finally:
            self.stdout.close()
            if self.stderr is not None:
                self.stderr.close()

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def _collect(stream: AsyncStream, into: list[bytes]) -> None:
    async for chunk in stream:
        into.append(chunk)


class AsyncShell:
    """A shell that stays; the async version of Shell. A cancelled command ends the shell."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def exec(self, command: str, *, timeout_s: float | None = None, output_bytes: int | None = None) -> Result:
        """Run a command in the shell and return its output and exit code; see Shell.exec."""
        run = functools.partial(self._shell.exec, timeout_s=timeout_s, output_bytes=output_bytes)
        return await _guarded(lambda _: self._shell.close(), run, command)

    @property
    def alive(self) -> bool:
        return self._shell.alive

    async def close(self) -> None:
        await to_the_end(control(self._shell.close))

    async def __aenter__(self) -> AsyncShell:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncSandbox:
    """Async version of Sandbox. Create it with `async with AsyncSandbox() as box` or `await AsyncSandbox.create()`."""

    def __init__(
        self,
        spec: Spec | str | None = None,
        *,
        backend: str = "local",
        token: str | None = None,
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        self._make = functools.partial(
            Sandbox, spec, backend=backend, token=token, limits=limits, clocks=clocks, journal=journal
        )
        self._box: Sandbox | None = None

    @classmethod
    async def create(
        cls,
        spec: Spec | str | None = None,
        *,
        backend: str = "local",
        token: str | None = None,
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> AsyncSandbox:
        made = cls(spec, backend=backend, token=token, limits=limits, clocks=clocks, journal=journal)
        return await made.__aenter__()

    @classmethod
    def of(cls, box: Sandbox) -> AsyncSandbox:
        """Wrap an existing box."""
        this = cls()
        this._box = box
        return this

    async def __aenter__(self) -> AsyncSandbox:
        if self._box is None:
            self._box = await made(_close, self._make)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, reason: str = "it was closed") -> None:
        """End everything in the box. Its forks continue to run. Idempotent."""
        if self._box is not None:
            await to_the_end(control(self._box.close, reason))

    @property
    def sync(self) -> Sandbox:
        """The synchronous box; its methods block."""
        if self._box is None:
            raise BoxClosed("the box is not made yet: `async with` it, or use `await AsyncSandbox.create()`")
        return self._box

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def lineage(self) -> tuple[str, ...]:
        """The ids of the boxes this one was forked from, the oldest first."""
        return self.sync.lineage

    @property
    def left_behind(self) -> int:
        """Number of the parent's processes that a fork does not have."""
        return self.sync.left_behind

    @property
    def alive(self) -> bool:
        """False before the box is created, and once it is closed or disconnected."""
        return self._box is not None and self._box.alive

    @property
    def closed(self) -> bool:
        return self._box is not None and self._box.closed

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self._box.id if self._box else 'not made'}{' closed' if self.closed else ''}>"

    async def _call(self, method: Callable[Concatenate[Sandbox, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await _guarded(self.sync.close, method, self.sync, *args, **kwargs)

    # ---- commands and Python ----

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """Run a command to its end. Processes that it left running end with it; use `start` to keep them."""
        stop = Stop()
        run = functools.partial(self.sync.exec, stdin=stdin, env=env, cwd=cwd, limits=limits, stop=stop)
        return await _guarded(lambda _: stop(), run, argv)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
    ) -> Opening[AsyncProcess]:
        """Start a command; use `await` or `async with`. With `pty` it has a terminal, and stderr is part of stdout."""

        async def start() -> AsyncProcess:
            make = functools.partial(self.sync.start, env=env, cwd=cwd, limits=limits, pty=pty, rows=rows, cols=cols)
            return AsyncProcess(await made(Process.close, functools.partial(make, argv)))

        return Opening(start())

    def shell(
        self,
        argv: Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limits: Limits | None = None,
    ) -> Opening[AsyncShell]:
        """Start a shell that stays, as `Sandbox.shell` does; use `await` or `async with`."""

        async def start() -> AsyncShell:
            make = functools.partial(self.sync.shell, argv, env=env, cwd=cwd, limits=limits)
            return AsyncShell(await made(Shell.close, make))

        return Opening(start())

    async def run(self, source: str, *, limits: Limits | None = None) -> Result:
        """Run source in the box's persistent interpreter, which keeps its variables until it ends."""
        stop = Stop()
        return await _guarded(lambda _: stop(), functools.partial(self.sync.run, limits=limits, stop=stop), source)

    async def call(
        self,
        source: str,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        limits: Limits | None = None,
    ) -> Result:
        """Call a function that source defines, in a new process, with JSON arguments. `value` is its result."""
        stop = Stop()
        call = functools.partial(self.sync.call, limits=limits, stop=stop)
        return await _guarded(lambda _: stop(), call, source, name, args, kwargs)

    async def set_network(self, network: Network | None) -> None:
        await self._call(Sandbox.set_network, network)

    async def network_report(self) -> NetworkReport:
        return await self._call(Sandbox.network_report)

    async def connect(self, port: int, *, timeout_s: float = 10.0) -> socket.socket:
        """Return a socket that is connected to a port of the box; see `asyncio.open_connection(sock=...)`."""
        connect = functools.partial(self.sync.connect, port, timeout_s=timeout_s)
        sock = await made(socket.socket.close, connect)
        sock.setblocking(False)
        return sock

    async def ping(self) -> None:
        await self._call(Sandbox.ping)

    async def fork(self, count: int = 1) -> list[AsyncSandbox]:
        """Copy the live box, including the interpreter's memory (copy on write) and the workspace."""
        boxes = await made(_close_all, functools.partial(self.sync.fork, count))
        return [AsyncSandbox.of(box) for box in boxes]

    # ---- files ----

    async def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """Return the contents of a file. Raises BoxFileTooLarge if there is more than the cap."""
        return await self._call(Sandbox.read, path, max_bytes)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Replace a file in one step. Missing folders are created."""
        await self._call(Sandbox.write, path, data, mode=mode)

    async def sha256(self, path: str) -> str:
        """Return the digest of a file, computed in the box."""
        return await self._call(Sandbox.sha256, path)

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        await self._call(Sandbox.remove, path)

    async def upload(self, source: str | os.PathLike[str], path: str = ".") -> int:
        """Copy a folder of the host into the box. Returns the number of entries."""
        return await self._call(Sandbox.upload, source, path)

    async def download(self, path: str, target: str | os.PathLike[str], *, max_bytes: int = 256 * MB) -> int:
        """Copy a folder of the box to the host. Returns the number of entries."""
        return await self._call(Sandbox.download, path, target, max_bytes=max_bytes)

    async def snapshot(self) -> Snapshot:
        """Save the current workspace. The interpreter's memory is not part of it; `fork` copies that."""
        return await self._call(Sandbox.snapshot)

    async def restore(self, snapshot: Snapshot) -> None:
        await self._call(Sandbox.restore, snapshot)

    # Last, because in the class its name hides the type.
    async def list(
        self, path: str = ".", *, recursive: bool = False, max_entries: int = MAX_ENTRIES
    ) -> Sequence[FileInfo]:
        return await self._call(Sandbox.list, path, recursive=recursive, max_entries=max_entries)


def _close(box: Sandbox) -> None:
    box.close("the call that made it was cancelled")


def _close_all(boxes: Sequence[Sandbox]) -> None:
    for box in boxes:
        _close(box)


class AsyncSandboxPool:
    """Async version of SandboxPool. Create it with `async with AsyncSandboxPool() as pool` or `await create()`."""

    def __init__(
        self,
        spec: Spec | str | None = None,
        *,
        warm: int | None = None,
        backend: str = "local",
        token: str | None = None,
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        max_live: int | None = None,
        max_starting: int = 2,
        stragglers: int = 4,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        self._make = functools.partial(
            SandboxPool,
            spec,
            warm=warm,
            backend=backend,
            token=token,
            limits=limits,
            clocks=clocks,
            max_live=max_live,
            max_starting=max_starting,
            stragglers=stragglers,
            journal=journal,
        )
        self._pool: SandboxPool | None = None

    @classmethod
    async def create(
        cls,
        spec: Spec | str | None = None,
        *,
        warm: int | None = None,
        backend: str = "local",
        token: str | None = None,
        limits: Limits | None = None,
        clocks: Clocks | None = None,
        max_live: int | None = None,
        max_starting: int = 2,
        stragglers: int = 4,
        journal: str | os.PathLike[str] | None = None,
    ) -> AsyncSandboxPool:
        pool = cls(
            spec,
            warm=warm,
            backend=backend,
            token=token,
            limits=limits,
            clocks=clocks,
            max_live=max_live,
            max_starting=max_starting,
            stragglers=stragglers,
            journal=journal,
        )
        return await pool.__aenter__()

    async def __aenter__(self) -> AsyncSandboxPool:
        if self._pool is None:
            self._pool = await made(SandboxPool.close, self._make)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the boxes that are not leased; leased ones end with their lease. Idempotent."""
        if self._pool is not None:
            await to_the_end(control(self._pool.close))

    @property
    def sync(self) -> SandboxPool:
        """The synchronous pool; its methods block."""
        if self._pool is None:
            raise BoxClosed("the pool is not made yet: `async with` it, or use `await AsyncSandboxPool.create()`")
        return self._pool

    def lease(self, *, ttl_s: float | None = None, queue_s: float | None = None) -> Opening[AsyncSandbox]:
        """Lease a box until it is closed or ttl_s is over; use `await` or `async with`. Raises QueueTimeout if none is
        free within queue_s (default: clocks.queue_s)."""

        async def lease() -> AsyncSandbox:
            return AsyncSandbox.of(await made(_close, functools.partial(self.sync.lease, ttl_s=ttl_s, queue_s=queue_s)))

        return Opening(lease())

    async def map(
        self,
        programs: Sequence[str],
        *,
        limits: Limits | None = None,
        group: int | None = None,
        stdin: Sequence[bytes] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[Result]:
        """Run Python programs. Results are in input order; `progress(done, total)` is called in the loop's thread."""
        loop = asyncio.get_running_loop()
        given_up = threading.Event()

        def report(done: int, total: int) -> None:
            if given_up.is_set():
                raise BoxClosed("the batch was cancelled")
            if progress is not None:
                loop.call_soon_threadsafe(progress, done, total)

        run = functools.partial(self.sync.map, limits=limits, group=group, stdin=stdin, progress=report)
        job = _threads("calls").submit(run, programs)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def check_deterministic(self, program: str, *, runs: int = 3, limits: Limits | None = None) -> Determinism:
        """Run a program in several interpreters with different hash seeds and memory layouts, and compare."""
        job = _threads("calls").submit(self.sync.check_deterministic, program, runs=runs, limits=limits)
        return await asyncio.wrap_future(job)
