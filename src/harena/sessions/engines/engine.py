"""What the SDK needs of a service: the same calls on pools of this process and on a server."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from harena.errors import SpecError
from harena.node import variables
from harena.sandbox.network import Network, NetworkReport
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Spec
from harena.sessions.batches import BatchWork
from harena.sessions.operations import OnOutput, OnStep, Record
from harena.sessions.pools import UNSET, SessionClocks
from harena.sessions.service import LOCAL, Service, session_view


class SessionVerbs(Protocol):
    """What can be done with a session."""

    def execute(
        self,
        session_id: str,
        steps: object,
        *,
        operation_id: str,
        keep_going: bool,
        trace_id: str,
        on_step: OnStep | None,
        on_output: OnOutput | None,
    ) -> Record: ...

    def evaluate(
        self,
        session_id: str,
        steps: object,
        *,
        image: str | None,
        spec: Spec | None,
        limits: Limits | None,
        operation_id: str,
        keep_going: bool,
        trace_id: str,
    ) -> Record: ...

    def history(self, session_id: str) -> list[Record]: ...

    def trajectory(self, session_id: str) -> Iterator[Record]: ...

    def reward(self, session_id: str, reward: float | None, *, done: bool, seq: int | None) -> None: ...

    def write(self, session_id: str, path: str, data: bytes) -> str:
        """Return the SHA-256 of the data."""
        ...

    def read(self, session_id: str, path: str) -> bytes: ...

    def snapshot(self, session_id: str) -> str: ...

    def restore(self, session_id: str, name: str) -> None: ...

    def start_terminal(
        self, session_id: str, *, command: list[str], cwd: str | None, rows: int, cols: int
    ) -> Process: ...

    def set_network(self, session_id: str, network: Network | None) -> None: ...

    def network_report(self, session_id: str) -> NetworkReport: ...


class SessionEngine(Protocol):
    """Where pools and sessions are made."""

    def create_pool(
        self,
        name: str,
        namespace: str,
        *,
        image: str | None,
        spec: Spec | None,
        limits: Limits | None,
        replicas: int,
        idle_s: float | None,
        lifetime_s: float | None,
        allocation_s: float | None,
    ) -> Record: ...

    def scale_pool(self, name: str, namespace: str, replicas: int) -> Record: ...

    def drain_pool(self, name: str, namespace: str) -> Record: ...

    def batch(
        self,
        programs: Sequence[str],
        *,
        stdin: Sequence[bytes] | None,
        limits: Limits | None,
        pool_ref: str | None,
        namespace: str,
        image: str | None,
        spec: Spec | None,
        run: str,
        agent: str,
    ) -> Iterator[Record]: ...

    def pool(self, name: str, namespace: str) -> Record: ...

    def pool_status(self, name: str, namespace: str) -> Record: ...

    def delete_pool(self, name: str, namespace: str) -> None: ...

    def create_session(self, **options: Any) -> Record: ...

    def delete_session(self, session_id: str) -> None: ...

    def fork(self, session_id: str, at: str | None) -> Record: ...

    def holder(self, session_id: str) -> SessionVerbs:
        """Return what carries out the verbs of a session. Raises NotFound where it can tell that there is none."""
        ...


class LocalEngine:
    """Pools and sessions of this process. They end with it."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def create_pool(
        self,
        name: str,
        namespace: str,
        *,
        image: str | None,
        spec: Spec | None,
        limits: Limits | None,
        replicas: int,
        idle_s: float | None,
        lifetime_s: float | None,
        allocation_s: float | None,
    ) -> Record:
        return self.service.create_pool(
            LOCAL,
            name,
            namespace=namespace,
            image=image,
            spec=spec,
            limits=limits,
            replicas=replicas,
            clocks=_clocks(idle_s, lifetime_s, allocation_s),
        )

    def scale_pool(self, name: str, namespace: str, replicas: int) -> Record:
        return self.service.scale_pool(LOCAL, name, namespace, replicas=replicas)

    def drain_pool(self, name: str, namespace: str) -> Record:
        return self.service.drain_pool(LOCAL, name, namespace)

    def batch(
        self,
        programs: Sequence[str],
        *,
        stdin: Sequence[bytes] | None,
        limits: Limits | None,
        pool_ref: str | None,
        namespace: str,
        image: str | None,
        spec: Spec | None,
        run: str,
        agent: str,
    ) -> Iterator[Record]:
        work = BatchWork(programs=programs, stdin=stdin, limits=limits, run=run, agent=agent)
        start = self.service.start_batch
        return iter(start(LOCAL, work, _in_thread, pool_ref=pool_ref, namespace=namespace, image=image, spec=spec))

    def pool(self, name: str, namespace: str) -> Record:
        return self.service.pool(LOCAL, name, namespace).view()

    def pool_status(self, name: str, namespace: str) -> Record:
        return self.service.pool(LOCAL, name, namespace).status()

    def delete_pool(self, name: str, namespace: str) -> None:
        self.service.delete_pool(LOCAL, name, namespace)

    def create_session(self, **options: Any) -> Record:
        clocks = _clocks(*(options.pop(name) for name in ("idle_s", "lifetime_s", "allocation_s")))
        return session_view(self.service.create_session(LOCAL, clocks=clocks, **options))

    def delete_session(self, session_id: str) -> None:
        self.service.session(LOCAL, session_id).end()

    def holder(self, session_id: str) -> LocalEngine:
        return self

    def execute(
        self,
        session_id: str,
        steps: object,
        *,
        operation_id: str,
        keep_going: bool,
        trace_id: str,
        on_step: OnStep | None,
        on_output: OnOutput | None,
    ) -> Record:
        operation, work = self.service.session(LOCAL, session_id).prepare(
            steps,
            operation_id=operation_id,
            keep_going=keep_going,
            trace_id=trace_id,
            output=on_output is not None,
        )
        if on_step is None and on_output is None:
            if work is not None:
                work()
            return operation.outcome()
        if work is not None:  # in a thread of its own, so that a callback that fails or waits does not disturb it
            threading.Thread(target=work, name="harena-session-steps", daemon=True).start()
        return operation.follow(on_step, on_output)

    def evaluate(
        self,
        session_id: str,
        steps: object,
        *,
        image: str | None,
        spec: Spec | None,
        limits: Limits | None,
        operation_id: str,
        keep_going: bool,
        trace_id: str,
    ) -> Record:
        _, operation, work = self.service.prepare_evaluation(
            LOCAL,
            session_id,
            steps,
            image=image,
            spec=spec,
            limits=limits,
            operation_id=operation_id,
            keep_going=keep_going,
            trace_id=trace_id,
        )
        if work is not None:
            work()
        return operation.outcome()

    def history(self, session_id: str) -> list[Record]:
        return self.service.session(LOCAL, session_id).history()

    def trajectory(self, session_id: str) -> Iterator[Record]:
        return map(json.loads, self.service.session(LOCAL, session_id).trajectory())

    def reward(self, session_id: str, reward: float | None, *, done: bool, seq: int | None) -> None:
        self.service.session(LOCAL, session_id).reward(reward, done=done, seq=seq)

    def write(self, session_id: str, path: str, data: bytes) -> str:
        return self.service.session(LOCAL, session_id).write(path, data, hashlib.sha256(data).hexdigest())

    def read(self, session_id: str, path: str) -> bytes:
        return self.service.session(LOCAL, session_id).read(path)

    def snapshot(self, session_id: str) -> str:
        return self.service.session(LOCAL, session_id).snapshot()

    def restore(self, session_id: str, name: str) -> None:
        self.service.session(LOCAL, session_id).restore(name)

    def fork(self, session_id: str, at: str | None) -> Record:
        return session_view(self.service.fork(LOCAL, session_id, at))

    def start_terminal(self, session_id: str, *, command: list[str], cwd: str | None, rows: int, cols: int) -> Process:
        start = self.service.session(LOCAL, session_id).start_terminal
        return start(command, cwd=cwd, rows=rows, cols=cols)

    def set_network(self, session_id: str, network: Network | None) -> None:
        self.service.set_network(LOCAL, session_id, network)

    def network_report(self, session_id: str) -> NetworkReport:
        return self.service.session(LOCAL, session_id).network_report()


def _clocks(idle_s: float | None, lifetime_s: float | None, allocation_s: float | None) -> SessionClocks:
    return SessionClocks(
        idle_s=UNSET if idle_s is None else idle_s,
        lifetime_s=UNSET if lifetime_s is None else lifetime_s,
        allocation_s=allocation_s,
    )


def _in_thread(work: Callable[[], None]) -> bool:
    threading.Thread(target=work, name="harena-batch", daemon=True).start()
    return True


@functools.cache
def _local() -> LocalEngine:
    service = Service()
    atexit.register(service.close)
    return LocalEngine(service)


os.register_at_fork(after_in_child=_local.cache_clear)  # a child has none of its parent's boxes


_shared: weakref.WeakValueDictionary[tuple[str, str | None], SessionEngine] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()
"""Engines of servers and clusters, which sessions of a process share for their connections."""


def find(server: str | None, token: str | None, cluster: bool | str | None = None) -> SessionEngine:
    """Return the engine of a server (`server`, else HARENA_SERVER), of a cluster (`cluster`: True or the name of a
    kubeconfig's context, else HARENA_KUBERNETES), or of this process."""
    if server and cluster:
        raise SpecError("server, cluster: sessions are on one of them")
    cluster = cluster or (variables.kubernetes() if not server and cluster is None else None)
    server = server or (variables.server() if not cluster else None)
    if cluster:
        from harena.kube import config
        from harena.sessions.engines.kubernetes import KubernetesEngine

        context = cluster if isinstance(cluster, str) else None
        return _share((f"kubernetes {config.named()}", context), lambda: KubernetesEngine(context))
    if server:
        from harena.sessions.engines.remote import RemoteEngine

        key = server, token or variables.token()
        return _share(key, lambda: RemoteEngine(*key))
    return _local()


def _share(key: tuple[str, str | None], make: Callable[[], SessionEngine]) -> SessionEngine:
    with _shared_lock:
        made = _shared.get(key)
        if made is None:
            made = _shared[key] = make()
    return made
