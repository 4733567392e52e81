"""Async versions of SandboxSession and WarmPoolManager: the same calls, each awaited in a thread.

A cancelled `execute` or `evaluate` leaves its operation running: the same operation_id returns its result later. A
session that was being created when the call was cancelled is ended as soon as it exists. Callbacks are called in the
thread of the event loop, in order, before the call returns.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from harena.sandbox.aio import AsyncProcess, control, in_thread, made, to_the_end
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Spec
from harena.sessions.operations import OnOutput, OnStep, Record
from harena.sessions.sdk import POLL_S, SandboxSession, WarmPoolManager, is_ready

STOP_S = 60.0

P = ParamSpec("P")
T = TypeVar("T")


class AsyncWarmPoolManager:
    """Creates, inspects and deletes warm pools of one namespace."""

    def __init__(
        self,
        namespace: str = "default",
        *,
        server: str | None = None,
        token: str | None = None,
        cluster: bool | str | None = None,
    ) -> None:
        self.sync = WarmPoolManager(namespace, server=server, token=token, cluster=cluster)

    @property
    def namespace(self) -> str:
        return self.sync.namespace

    async def create_warmpool(
        self,
        name: str,
        image: str | None = None,
        replicas: int = 1,
        *,
        spec: Spec | None = None,
        limits: Limits | None = None,
        idle_s: float | None = None,
        lifetime_s: float | None = None,
        allocation_s: float | None = None,
    ) -> Record:
        """Start to create a pool that keeps `replicas` boxes ready, and return at once."""
        return await in_thread(
            self.sync.create_warmpool,
            name,
            image,
            replicas,
            spec=spec,
            limits=limits,
            idle_s=idle_s,
            lifetime_s=lifetime_s,
            allocation_s=allocation_s,
        )

    async def scale_warmpool(self, name: str, replicas: int) -> Record:
        """Keep another number of boxes ready. Ends a drain."""
        return await in_thread(self.sync.scale_warmpool, name, replicas)

    async def drain_warmpool(self, name: str) -> Record:
        """Close the boxes that wait, and lend no more. Sessions that came from the pool continue."""
        return await in_thread(self.sync.drain_warmpool, name)

    async def run_batch(
        self,
        programs: Sequence[str],
        *,
        stdin: Sequence[bytes] | None = None,
        pool_ref: str | None = None,
        image: str | None = None,
        spec: Spec | None = None,
        limits: Limits | None = None,
        run: str = "",
        agent: str = "",
    ) -> AsyncIterator[Record]:
        """Run Python programs, and yield each one's record as soon as it has ended. See WarmPoolManager.run_batch."""
        start = functools.partial(
            self.sync.run_batch,
            stdin=stdin,
            pool_ref=pool_ref,
            image=image,
            spec=spec,
            limits=limits,
            run=run,
            agent=agent,
        )
        results = await in_thread(start, programs)
        try:
            while (record := await in_thread(next, results, None)) is not None:
                yield record
        finally:
            await to_the_end(control(_stop, results))

    async def wait_for_warmpool_ready(self, name: str, timeout: float = 300.0) -> Record:
        """Wait until all boxes of the pool are ready. Raises BoxError if the pool fails, TimeoutError if it takes too
        long."""
        end = time.monotonic() + timeout
        while not is_ready(found := await self.get_warmpool(name), timeout, end):
            await asyncio.sleep(POLL_S)
        return found

    async def get_warmpool(self, name: str) -> Record:
        return await in_thread(self.sync.get_warmpool, name)

    async def get_pool_status(self, name: str) -> Record:
        """Return the numbers of boxes: total, ready_idle, allocated and available."""
        return await in_thread(self.sync.get_pool_status, name)

    async def delete_warmpool(self, name: str) -> None:
        """Close the boxes that wait. Sessions that came from the pool continue."""
        await in_thread(self.sync.delete_warmpool, name)


def _stop(results: Iterator[Record]) -> None:
    """End a batch that nobody reads any more. A `next` that still runs in its thread is over soon."""
    end = time.monotonic() + STOP_S
    while isinstance(results, Generator) and time.monotonic() < end:
        try:
            return results.close()
        except ValueError:  # it is running
            time.sleep(POLL_S)
    return None


class AsyncSandboxSession:
    """A box that executes lists of steps. Use it with `async with`, or call create_sandbox and delete_sandbox."""

    def __init__(
        self,
        pool_ref: str | None = None,
        namespace: str = "default",
        *,
        image: str | None = None,
        spec: Spec | None = None,
        limits: Limits | None = None,
        keep_alive: bool = False,
        timeout: float | None = None,
        idle_s: float | None = None,
        lifetime_s: float | None = None,
        keep_steps: bool = False,
        journal: str | os.PathLike[str] | None = None,
        run: str = "",
        agent: str = "",
        server: str | None = None,
        token: str | None = None,
        cluster: bool | str | None = None,
    ) -> None:
        """The arguments of SandboxSession."""
        self.sync = SandboxSession(
            pool_ref,
            namespace,
            image=image,
            spec=spec,
            limits=limits,
            keep_alive=keep_alive,
            timeout=timeout,
            idle_s=idle_s,
            lifetime_s=lifetime_s,
            keep_steps=keep_steps,
            journal=journal,
            run=run,
            agent=agent,
            server=server,
            token=token,
            cluster=cluster,
        )
        self._callbacks: list[OnStep] = []

    @classmethod
    def of(cls, session: SandboxSession) -> AsyncSandboxSession:
        """Wrap an existing session."""
        this = cls.__new__(cls)
        this.sync, this._callbacks = session, []
        return this

    @property
    def sandbox(self) -> Record | None:
        return self.sync.sandbox

    @property
    def session_id(self) -> str:
        return self.sync.session_id

    async def create_sandbox(self) -> Record:
        """Take a box from the pool, or create it. Does nothing if the session has one."""
        return await made(lambda _: self.sync.delete_sandbox(), self.sync.create_sandbox)

    async def delete_sandbox(self) -> None:
        """End the session with everything in its box. Idempotent."""
        await to_the_end(control(self.sync.delete_sandbox))

    async def _call(self, method: Callable[Concatenate[SandboxSession, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(method, self.sync, *args, **kwargs)

    # ---- steps ----

    async def execute(
        self,
        steps: list[Record],
        *,
        operation_id: str | None = None,
        trace_id: str = "",
        keep_going: bool = False,
        on_output: OnOutput | None = None,
    ) -> Record:
        """Run steps in order; stop at the first that fails unless `keep_going`. See SandboxSession.execute."""
        return await self.execute_with_callback(
            steps,
            None,
            operation_id=operation_id,
            trace_id=trace_id,
            keep_going=keep_going,
            on_output=on_output,
        )

    async def execute_with_callback(
        self,
        steps: list[Record],
        callback: OnStep | None = None,
        *,
        operation_id: str | None = None,
        trace_id: str = "",
        keep_going: bool = False,
        on_output: OnOutput | None = None,
    ) -> Record:
        """Like `execute`, and call `callback` too with each step's result when the step has ended."""
        loop = asyncio.get_running_loop()
        calls = [*self._callbacks, *([] if callback is None else [callback])]

        def tell(record: Record) -> None:
            for call in calls:
                loop.call_soon_threadsafe(call, record)

        return await self._call(
            SandboxSession.execute_with_callback,
            steps,
            tell if calls else None,
            operation_id=operation_id,
            trace_id=trace_id,
            keep_going=keep_going,
            on_output=None if on_output is None else functools.partial(loop.call_soon_threadsafe, on_output),
        )

    def register_callback(self, callback: OnStep) -> None:
        """Call it with the result of each step."""
        self._callbacks.append(callback)

    def unregister_callback(self, callback: OnStep) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    async def evaluate(
        self,
        steps: list[Record],
        *,
        image: str | None = None,
        spec: Spec | None = None,
        limits: Limits | None = None,
        operation_id: str | None = None,
        trace_id: str = "",
        keep_going: bool = False,
    ) -> Record:
        """Run steps in a second box that has a copy of this session's files. See SandboxSession.evaluate."""
        return await self._call(
            SandboxSession.evaluate,
            steps,
            image=image,
            spec=spec,
            limits=limits,
            operation_id=operation_id,
            trace_id=trace_id,
            keep_going=keep_going,
        )

    async def history(self) -> list[Record]:
        """Return every step that has run, in order."""
        return await self._call(SandboxSession.history)

    async def create_interactive_shell(
        self, command: list[str] | None = None, *, cwd: str | None = None, rows: int = 24, cols: int = 80
    ) -> AsyncProcess:
        """Start a shell, or a command, with a terminal. See SandboxSession.create_interactive_shell."""
        start = functools.partial(self.sync.create_interactive_shell, command, cwd=cwd, rows=rows, cols=cols)
        return AsyncProcess(await made(Process.close, start))

    async def trajectory(self) -> list[Record]:
        """Return every action so far with its full observation, reward, done, usage and fault. Needs a journal."""
        return await self._call(SandboxSession.trajectory)

    async def reward(self, reward: float | None, *, done: bool = False, seq: int | None = None) -> None:
        """Record the reward of the latest step, or of the action with this `seq` in the trajectory."""
        await self._call(SandboxSession.reward, reward, done=done, seq=seq)

    # ---- network ----

    async def set_network(self, network: Network | None) -> None:
        """Replace what the box may reach. See SandboxSession.set_network."""
        await self._call(SandboxSession.set_network, network)

    async def network_report(self) -> NetworkReport:
        """Return what the box did with its network, and which attempts were refused."""
        return await self._call(SandboxSession.network_report)

    # ---- files and snapshots ----

    async def upload(self, path: str, data: bytes) -> str:
        """Replace a file in the box, and return its SHA-256, which was checked on arrival."""
        return await self._call(SandboxSession.upload, path, data)

    async def download(self, path: str) -> bytes:
        return await self._call(SandboxSession.download, path)

    async def snapshot(self) -> str:
        """Save the workspace, and return the name of the snapshot."""
        return await self._call(SandboxSession.snapshot)

    async def restore(self, name: str) -> None:
        """Restore the workspace from a snapshot, or from a step such as "step-3" with keep_steps."""
        await self._call(SandboxSession.restore, name)

    async def fork(self, at: str | None = None) -> AsyncSandboxSession:
        """Create a session that continues from here. See SandboxSession.fork."""
        return AsyncSandboxSession.of(await made(SandboxSession.delete_sandbox, functools.partial(self.sync.fork, at)))

    # ---- life ----

    async def __aenter__(self) -> Self:
        await self.create_sandbox()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if not self.sync.keep_alive:
            await self.delete_sandbox()
