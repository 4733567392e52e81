"""SandboxSession and WarmPoolManager, with the names and arguments that users of warm pools know.

They work on pools of this process; on a server: `server=` or HARENA_SERVER, with `token=` or HARENA_TOKEN; or on a
Kubernetes cluster: `cluster=True`, `cluster="CONTEXT"` or HARENA_KUBERNETES.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Self

from harena.errors import BoxClosed, BoxError, Retry
from harena.node import variables
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Spec
from harena.sessions.engines import engine
from harena.sessions.errors import NotFound
from harena.sessions.operations import OnOutput, OnStep, Record

POLL_S = 0.02


def is_ready(pool: Record, timeout: float, end: float) -> bool:
    """Whether a pool is ready. Raises BoxError if it has failed, TimeoutError after `end`."""
    if pool.get("phase") == "Failed":
        raise BoxError(f"pool {pool.get('name')!r} failed: {pool.get('message')}", retry=Retry.NEVER)
    ready = pool.get("phase") == "Ready"
    if not ready and time.monotonic() > end:
        raise TimeoutError(f"pool {pool.get('name')!r} was not ready within {timeout:g} s")
    return ready


class WarmPoolManager:
    """Creates, inspects and deletes warm pools of one namespace."""

    def __init__(
        self,
        namespace: str = "default",
        *,
        server: str | None = None,
        token: str | None = None,
        cluster: bool | str | None = None,
    ) -> None:
        self.namespace = namespace
        self._engine = engine.find(server, token, cluster)

    def create_warmpool(
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
        """Start to create a pool that keeps `replicas` boxes ready, and return at once. idle_s, lifetime_s and
        allocation_s (time to wait for a box) hold for sessions from the pool that have none of their own."""
        return self._engine.create_pool(
            name,
            self.namespace,
            image=image,
            spec=spec,
            limits=limits,
            replicas=replicas,
            idle_s=idle_s,
            lifetime_s=lifetime_s,
            allocation_s=allocation_s,
        )

    def scale_warmpool(self, name: str, replicas: int) -> Record:
        """Keep another number of boxes ready. Ends a drain."""
        return self._engine.scale_pool(name, self.namespace, replicas)

    def drain_warmpool(self, name: str) -> Record:
        """Close the boxes that wait, and lend no more. Sessions that came from the pool continue."""
        return self._engine.drain_pool(name, self.namespace)

    def run_batch(
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
    ) -> Iterator[Record]:
        """Run Python programs, each in a fresh process, and yield each one's record with its `index` as soon as it has
        ended. They run ahead of the reader by a few megabytes of results. On a server, programs whose results were lost
        with a connection run again. run, agent: labels of its usage."""
        return self._engine.batch(
            programs,
            stdin=stdin,
            limits=limits,
            pool_ref=pool_ref,
            namespace=self.namespace,
            image=image,
            spec=spec,
            run=run or variables.run(),
            agent=agent or variables.agent(),
        )

    def wait_for_warmpool_ready(self, name: str, timeout: float = 300.0) -> Record:
        """Wait until all boxes of the pool are ready. Raises BoxError if the pool fails, TimeoutError if it takes too
        long."""
        end = time.monotonic() + timeout
        while not is_ready(found := self.get_warmpool(name), timeout, end):
            time.sleep(getattr(self._engine, "poll_s", POLL_S))
        return found

    def get_warmpool(self, name: str) -> Record:
        return self._engine.pool(name, self.namespace)

    def get_pool_status(self, name: str) -> Record:
        """Return the numbers of boxes: total, ready_idle, allocated and available."""
        return self._engine.pool_status(name, self.namespace)

    def delete_warmpool(self, name: str) -> None:
        """Close the boxes that wait. Sessions that came from the pool continue."""
        self._engine.delete_pool(name, self.namespace)


class SandboxSession:
    """A box that executes lists of steps. Use it in a `with` block, or call create_sandbox and delete_sandbox."""

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
        """pool_ref, image or spec: where the box comes from. keep_alive: the end of a `with` block leaves the session
        to its idle and lifetime clocks. timeout: seconds to wait for the box; those of the pool, or 60, unless given.
        keep_steps: take a snapshot after each step, for `restore` and `fork`. journal: a file or folder for
        `trajectory`; a server has its own. run, agent: labels of its usage."""
        self._options = {
            "pool_ref": pool_ref,
            "namespace": namespace,
            "image": image,
            "spec": spec,
            "limits": limits,
            "allocation_s": timeout,
            "idle_s": idle_s,
            "lifetime_s": lifetime_s,
            "keep_steps": keep_steps,
            "journal": journal,
            "run": run or variables.run(),
            "agent": agent or variables.agent(),
        }
        self.keep_alive = keep_alive
        self.sandbox: Record | None = None
        """What is known of the box: id, phase, image, isolation."""
        self._engine = engine.find(server, token, cluster)
        self._callbacks: list[OnStep] = []

    @property
    def session_id(self) -> str:
        if self.sandbox is None:
            raise BoxClosed("the session has no sandbox: use `with`, or call create_sandbox()")
        return self.sandbox["id"]

    @property
    def _holder(self) -> engine.SessionVerbs:
        return self._engine.holder(self.session_id)

    def create_sandbox(self) -> Record:
        """Take a box from the pool, or create it. Does nothing if the session has one."""
        if self.sandbox is None:
            self.sandbox = self._engine.create_session(**self._options)
        return self.sandbox

    def delete_sandbox(self) -> None:
        """End the session with everything in its box. Idempotent."""
        if self.sandbox is not None:
            session_id, self.sandbox = self.session_id, None
            with contextlib.suppress(NotFound):  # a clock was first
                self._engine.delete_session(session_id)

    # ---- steps ----

    def execute(
        self,
        steps: list[Record],
        *,
        operation_id: str | None = None,
        trace_id: str = "",
        keep_going: bool = False,
        on_output: OnOutput | None = None,
    ) -> Record:
        """Run steps in order; stop at the first that fails unless `keep_going`. The same operation_id never runs twice:
        its result is returned again. `on_output` is called with each piece of output as it comes: {"step": 0,
        "stream": "stdout", "data": "…"}."""
        return self._execute(steps, operation_id, trace_id, keep_going, None, on_output)

    def execute_with_callback(
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
        return self._execute(steps, operation_id, trace_id, keep_going, callback, on_output)

    def _execute(
        self,
        steps: list[Record],
        operation_id: str | None,
        trace_id: str,
        keep_going: bool,
        callback: OnStep | None,
        on_output: OnOutput | None,
    ) -> Record:
        calls = [*self._callbacks, *([] if callback is None else [callback])]

        def tell(record: Record) -> None:
            for call in calls:
                call(record)

        return self._holder.execute(
            self.session_id,
            steps,
            operation_id=operation_id or secrets.token_hex(12),
            keep_going=keep_going,
            trace_id=trace_id,
            on_step=tell if calls else None,
            on_output=on_output,
        )

    def register_callback(self, callback: OnStep) -> None:
        """Call it with the result of each step."""
        self._callbacks.append(callback)

    def unregister_callback(self, callback: OnStep) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def evaluate(
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
        """Run steps in a second box that has a copy of this session's files, and return the result as `execute` does.
        What runs in the session sees neither that box nor its files, and the history does not name it. Without an
        image or a spec, the box is like that of the session, but has no network."""
        return self._holder.evaluate(
            self.session_id,
            steps,
            image=image,
            spec=spec,
            limits=limits,
            operation_id=operation_id or secrets.token_hex(12),
            keep_going=keep_going,
            trace_id=trace_id,
        )

    def history(self) -> list[Record]:
        """Return every step that has run, in order."""
        return self._holder.history(self.session_id)

    def create_interactive_shell(
        self, command: list[str] | None = None, *, cwd: str | None = None, rows: int = 24, cols: int = 80
    ) -> Process:
        """Start a shell, or a command, with a terminal: `write` types, `stdout.read` returns what appears, `resize`
        changes its size. It ends with the session. On a server it is a WebSocket connection, and ends with that too."""
        return self._holder.start_terminal(self.session_id, command=command or [], cwd=cwd, rows=rows, cols=cols)

    def trajectory(self) -> list[Record]:
        """Return every action so far with its full observation, reward, done, usage and fault. Needs a journal."""
        return list(self._holder.trajectory(self.session_id))

    def reward(self, reward: float | None, *, done: bool = False, seq: int | None = None) -> None:
        """Record the reward of the latest step, or of the action with this `seq` in the trajectory."""
        self._holder.reward(self.session_id, reward, done=done, seq=seq)

    # ---- network ----

    def set_network(self, network: Network | None) -> None:
        """Replace what the box may reach; None closes its network. Connections that are no longer allowed are cut. The
        session must have been created with a network, as in spec=Spec(network=Network())."""
        self._holder.set_network(self.session_id, network)

    def network_report(self) -> NetworkReport:
        """Return what the box did with its network, and which attempts were refused."""
        return self._holder.network_report(self.session_id)

    # ---- files and snapshots ----

    def upload(self, path: str, data: bytes) -> str:
        """Replace a file in the box, and return its SHA-256, which was checked on arrival."""
        return self._holder.write(self.session_id, path, data)

    def download(self, path: str) -> bytes:
        return self._holder.read(self.session_id, path)

    def snapshot(self) -> str:
        """Save the workspace, and return the name of the snapshot."""
        return self._holder.snapshot(self.session_id)

    def restore(self, name: str) -> None:
        """Restore the workspace from a snapshot, or from a step such as "step-3" with keep_steps."""
        self._holder.restore(self.session_id, name)

    def fork(self, at: str | None = None) -> SandboxSession:
        """Create a session that continues from here with the interpreter's memory, or with the workspace of a snapshot
        or a step."""
        made = self._engine.fork(self.session_id, at)
        fork = SandboxSession.__new__(SandboxSession)
        fork._options, fork._engine, fork._callbacks = self._options, self._engine, []
        fork.keep_alive, fork.sandbox = self.keep_alive, made
        return fork

    # ---- life ----

    def __enter__(self) -> Self:
        self.create_sandbox()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.keep_alive:
            self.delete_sandbox()
