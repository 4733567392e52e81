"""Sessions and warm pools by owner. A server has one service; a process without a server has its own.

Guarantees: nobody sees or uses what belongs to another owner; an owner has at most `Rules.boxes` boxes, warm ones
included; `close` ends everything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Generator
from typing import Any

from harena.errors import BoxError, HarenaError, Retry, SpecError
from harena.journal import labelled
from harena.node.rules import Quotas
from harena.sandbox import backend as backends
from harena.sandbox.box import Sandbox
from harena.sandbox.network import Network
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Clocks, Limits, Spec
from harena.sessions.batches import BatchWork, Outlet, run_batch
from harena.sessions.errors import Conflict, NotFound
from harena.sessions.operations import Operation, Record
from harena.sessions.pools import ALLOCATION_S, UNSET, SessionClocks, WarmPool
from harena.sessions.records import Records
from harena.sessions.session import Session, new_id
from harena.sessions.steps import parse_steps

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
MAX_POOLS = 256
"""Pools of one owner on a server: one without warm boxes takes memory too."""
LOCAL = "local"
"""Owner of everything in a process without a server."""


class _NotAdded(Exception):
    """A session that has ended before anybody could use it."""

    def __init__(self, reason: HarenaError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Service:
    def __init__(
        self,
        quotas: Quotas | None = None,
        clocks: SessionClocks | None = None,
        *,
        backend: str = "local",
        records: Records | None = None,
    ) -> None:
        """`quotas`: what owners may hold and ask for; None: everything. `clocks`: those of sessions for which nobody
        gives others. `backend`: makes the boxes. `records`: journals and accounts of owners."""
        self._backend = backend
        self._quotas = quotas
        self._clocks = clocks or SessionClocks()
        self.records = records or Records()
        self._batches: set[Outlet] = set()
        self._lock = threading.Lock()
        self._pools: dict[tuple[str, str, str], WarmPool] = {}
        self._sessions: dict[str, dict[str, Session]] = {}
        self._closed = False

    # ---- pools ----

    def create_pool(
        self,
        owner: str,
        name: str,
        *,
        namespace: str = "default",
        image: str | None = None,
        spec: Spec | None = None,
        limits: Limits | None = None,
        replicas: int = 1,
        clocks: SessionClocks | None = None,
    ) -> Record:
        """Start to create a pool. `clocks`: those of sessions from the pool for which nobody gives others."""
        for what, text in (("name", name), ("namespace", namespace)):
            if not NAME.fullmatch(text):
                raise SpecError(f"{what} {text[:80]!r}: 1 to 63 letters, digits and . _ - inside")
        _check_replicas(replicas)
        self.records.check(owner)
        spec, limits = self._admit(image, spec, limits)
        key = owner, namespace, name
        with self._lock:
            self._check_open()
            if key in self._pools:
                raise Conflict(f"there is a pool {name!r} in {namespace!r} already")
            if self._quotas is not None and sum(one[0] == owner for one in self._pools) >= MAX_POOLS:
                raise BoxError(f"the server allows each owner {MAX_POOLS} pools: delete some", retry=Retry.SAFE)
            self._take(owner, replicas)
            pool = WarmPool(key, spec, limits, replicas, clocks or SessionClocks(), self._backend)
            self._pools[key] = pool
        return pool.view()

    def pool(self, owner: str, name: str, namespace: str = "default") -> WarmPool:
        with self._lock:
            pool = self._pools.get((owner, namespace, name))
        if pool is None:
            raise NotFound(f"no pool {name[:80]!r} in {namespace[:80]!r}")
        return pool

    def pools(self, owner: str) -> list[Record]:
        with self._lock:
            mine = [pool for key, pool in self._pools.items() if key[0] == owner]
        return [pool.view() for pool in mine]

    def scale_pool(self, owner: str, name: str, namespace: str = "default", *, replicas: int) -> Record:
        """Keep another number of boxes ready. Ends a drain."""
        _check_replicas(replicas)
        if replicas > self.pool(owner, name, namespace).replicas:
            self.records.check(owner)
        return self._resize(owner, name, namespace, replicas, draining=False)

    def drain_pool(self, owner: str, name: str, namespace: str = "default") -> Record:
        """Close the warm boxes and lend no more. Sessions that came from the pool continue."""
        return self._resize(owner, name, namespace, 0, draining=True)

    def _resize(self, owner: str, name: str, namespace: str, replicas: int, *, draining: bool) -> Record:
        pool = self.pool(owner, name, namespace)
        with self._lock:
            if self._pools.get(pool.key) is not pool:
                raise NotFound(f"no pool {name[:80]!r} in {namespace[:80]!r}")
            fewer = pool.replicas - replicas
            if fewer < 0:
                self._take(owner, -fewer)
            pool.replicas, pool.draining = replicas, draining
        pool.resize()
        if fewer > 0:
            self._give_back(owner, fewer)
        return pool.view()

    def delete_pool(self, owner: str, name: str, namespace: str = "default") -> None:
        """Close the warm boxes. Sessions that came from the pool continue."""
        pool = self.pool(owner, name, namespace)
        with self._lock:
            if self._pools.get(pool.key) is not pool:
                return  # somebody else was first
            del self._pools[pool.key]
            replicas = pool.replicas
        pool.close()
        self._give_back(owner, replicas)

    # ---- sessions ----

    def create_session(
        self,
        owner: str,
        *,
        pool_ref: str | None = None,
        namespace: str = "default",
        image: str | None = None,
        spec: Spec | None = None,
        limits: Limits | None = None,
        clocks: SessionClocks | None = None,
        keep_steps: bool = False,
        run: str = "",
        agent: str = "",
        journal: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Create a session from a pool, an image or a spec. Clocks that are not given are those of the pool, or of the
        service. `run` and `agent`: labels of its usage and its journal. `journal`: where to record it, unless `records`
        do."""
        self.records.check(owner, run, agent)
        if pool_ref is not None and (image, spec, limits) != (None, None, None):
            raise SpecError("pool_ref: a session from a pool has the pool's image, spec and limits")
        clocks = clocks or SessionClocks()
        with self._room(owner):
            if pool_ref is not None:
                pool = self.pool(owner, pool_ref, namespace)
                clocks = clocks.or_else(pool.clocks).or_else(self._clocks)
                box = pool.lease(clocks.allocation_s or ALLOCATION_S)
                session_id = self._attach(box, owner, run, agent, journal)
                return self._add(owner, box, pool, clocks, keep_steps, session_id)
            clocks = clocks.or_else(self._clocks)
            spec, limits = self._admit(image, spec, limits)
            start_s = clocks.allocation_s or ALLOCATION_S
            box = Sandbox(spec, backend=self._backend, limits=limits, clocks=Clocks(start_s=start_s))
            session_id = self._attach(box, owner, run, agent, journal)
            return self._add(owner, box, None, clocks, keep_steps, session_id)

    def _attach(
        self, box: Sandbox, owner: str, run: str = "", agent: str = "", journal: str | os.PathLike[str] | None = None
    ) -> str:
        """Record and account for the box of a new session, and return the id of that session."""
        session_id = new_id()
        try:
            self.records.attach(box, owner, session_id, run, agent)
            if journal is not None:
                box.record(journal)
        except BaseException:
            box.close()
            raise
        return session_id

    def fork(self, owner: str, session_id: str, at: str | None = None) -> Session:
        """Create a session that continues from another one: from now, with the interpreter's memory, or with the
        workspace of a snapshot or a step."""
        self.records.check(owner)
        parent = self.session(owner, session_id)
        with self._room(owner):
            if at is None:
                forked_id = new_id()
                with labelled(session=forked_id):  # names the journal of the fork
                    box = parent.fork_box()
            else:
                snapshot = parent.find(at)
                box = Sandbox(
                    parent.box.spec, backend=self._backend, limits=parent.box.limits, clocks=parent.box.clocks
                )
                try:
                    box.restore(snapshot)
                except BaseException:
                    box.close()
                    raise
                forked_id = self._attach(box, owner, *self.records.labels(parent.box))
            clocks = SessionClocks(idle_s=parent.idle_s, lifetime_s=parent.lifetime_s)
            return self._add(owner, box, None, clocks, parent.keep_steps, forked_id)

    def _add(
        self,
        owner: str,
        box: Sandbox,
        pool: WarmPool | None,
        clocks: SessionClocks,
        keep_steps: bool,
        session_id: str,
    ) -> Session:
        def ended(session: Session) -> None:
            with self._lock:
                mine = self._sessions.get(owner, {})
                mine.pop(session.id, None)
                if not mine:
                    self._sessions.pop(owner, None)
                if pool is not None:
                    pool.allocated -= 1
            self._give_back(owner, 1)

        idle_s, lifetime_s = (None if one is UNSET else one for one in (clocks.idle_s, clocks.lifetime_s))
        quota = None if self._quotas is None else self._quotas.of(owner)
        session = Session(
            box,
            idle_s=idle_s,
            lifetime_s=lifetime_s,
            keep_steps=keep_steps,
            on_end=ended,
            quota=quota,
            session_id=session_id,
        )
        with self._lock:
            closed = self._closed
            if pool is not None:
                pool.allocated += 1
            if not session.ended:  # its lifetime may be over already
                self._sessions.setdefault(owner, {})[session.id] = session
        if closed:
            session.end("the service has ended")  # gives the place back
            raise _NotAdded(BoxError("the service is stopping; try another one", retry=Retry.SAFE))
        return session

    def session(self, owner: str, session_id: str) -> Session:
        with self._lock:
            session = self._sessions.get(owner, {}).get(session_id)
        if session is None:
            raise NotFound(f"no session {session_id[:80]!r}: it has ended, or it is not yours")
        return session

    def sessions(self, owner: str) -> list[Session]:
        with self._lock:
            return list(self._sessions.get(owner, {}).values())

    @property
    def session_count(self) -> int:
        with self._lock:
            return sum(map(len, self._sessions.values()))

    def boxes_held(self, owner: str) -> int:
        """Boxes of an owner in sessions, warm pools and connections."""
        return len(self.sessions(owner)) if self._quotas is None else self._quotas.of(owner).held("boxes")

    def set_network(self, owner: str, session_id: str, network: Network | None) -> None:
        session = self.session(owner, session_id)
        if self._quotas is not None and network is not None:
            self._quotas.rules.check_network(network)
        session.set_network(network)

    # ---- evaluators ----

    def prepare_evaluation(
        self,
        owner: str,
        session_id: str,
        steps: object,
        *,
        image: str | None = None,
        spec: Spec | None = None,
        limits: Limits | None = None,
        operation_id: str | None = None,
        keep_going: bool = False,
        trace_id: str = "",
    ) -> tuple[Session, Operation, Callable[[], None] | None]:
        """Prepare steps in a second box that has a copy of the session's workspace. The session's box sees nothing of
        it, and its history does not name it. Without an image or a spec, the box is like that of the session, but has
        no network."""
        session = self.session(owner, session_id)
        parsed = parse_steps(steps)
        if image is None and spec is None:
            box_spec = dataclasses.replace(session.box.spec, network=None)
            limits = limits or session.box.limits
            if self._quotas is not None:
                self._quotas.rules.check_limits(limits)
        else:
            box_spec, limits = self._admit(image, spec, limits)

        def run(operation: Operation) -> Record:
            self.records.check(owner)
            snapshot = session.copy_workspace()
            self._take(owner, 1)
            try:
                with Sandbox(box_spec, backend=self._backend, limits=limits) as box:
                    box.restore(snapshot)
                    hidden = Session(box, session_id=self._attach(box, owner, *self.records.labels(session.box)))
                    inner, work = hidden.prepare(
                        steps, operation_id=operation.id, keep_going=keep_going, trace_id=trace_id
                    )
                    assert work is not None
                    work()
                    return {**inner.outcome(), "sessionId": session.id}
            finally:
                self._give_back(owner, 1)

        described = [dataclasses.asdict(step) for step in parsed]
        wanted = json.dumps(["evaluate", keep_going, described, repr(box_spec), repr(limits)], sort_keys=True)
        return session, *session.once(operation_id or secrets.token_hex(12), wanted, run)

    # ---- batches ----

    def start_batch(
        self,
        owner: str,
        work: BatchWork,
        start: Callable[[Callable[[], None]], bool],
        *,
        pool_ref: str | None = None,
        namespace: str = "default",
        image: str | None = None,
        spec: Spec | None = None,
    ) -> Outlet:
        """Run programs in boxes of a pool, or in boxes of their own. `start` runs something in a thread, or returns
        False. The owner needs room for as many boxes as a batch uses at once."""
        if pool_ref is not None and (image, spec) != (None, None):
            raise SpecError("pool_ref: a batch on a pool has the pool's image and spec")
        self.records.check(owner, work.run, work.agent)
        observe = self.records.account_for(owner, work.run, work.agent)
        warm = None if pool_ref is None else self.pool(owner, pool_ref, namespace)
        if warm is not None:
            warm.check_open()
        limits = work.limits or (None if warm is None else warm.limits)
        spec, limits = self._admit(image, spec, limits)
        work = dataclasses.replace(work, limits=limits)
        with self._lock:
            self._check_open()
        count = backends.cores(self._backend, None)
        self._take(owner, count)
        outlet = Outlet()

        def run() -> None:
            error: Exception | None = BoxError("the batch failed")
            try:
                if warm is not None:
                    run_batch(warm.ready_pool(warm.clocks.allocation_s or ALLOCATION_S), work, outlet, observe)
                else:
                    with SandboxPool(spec, warm=0, max_live=count, limits=limits, backend=self._backend) as pool:
                        run_batch(pool, work, outlet, observe)
                error = None
            except HarenaError as failure:
                error = failure
            finally:  # a reader that has seen the end has its boxes back
                self._give_back(owner, count)
                with self._lock:
                    self._batches.discard(outlet)
                outlet.end(error)

        with self._lock:
            self._batches.add(outlet)
        if not start(run):
            self._give_back(owner, count)
            with self._lock:
                self._batches.discard(outlet)
            raise BoxError("the server has too many requests; try again later", retry=Retry.SAFE)
        return outlet

    # ---- life ----

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
            sessions = [session for mine in self._sessions.values() for session in mine.values()]
            self._pools.clear()
            batches = list(self._batches)
        for outlet in batches:
            outlet.close()
        for pool in pools:
            pool.close()
        for session in sessions:
            with contextlib.suppress(HarenaError):
                session.end("the service has ended")

    def _admit(self, image: str | None, spec: Spec | None, limits: Limits | None) -> tuple[Spec, Limits]:
        limits = limits or Limits()
        if image is not None:
            if spec is not None and spec.image is not None:
                raise SpecError("image: give it in the spec, or alone")
            spec = dataclasses.replace(spec or Spec(), image=image)
        spec = spec or Spec()
        return (spec if self._quotas is None else self._quotas.rules.admit(spec, limits)), limits

    @contextlib.contextmanager
    def _room(self, owner: str) -> Generator[None]:
        """Take the place of a session, which gives it back at its end, unless it cannot be created."""
        with self._lock:
            self._check_open()
        self._take(owner, 1)
        try:
            yield
        except _NotAdded as error:
            raise error.reason from None
        except BaseException:
            self._give_back(owner, 1)
            raise

    def _take(self, owner: str, count: int) -> None:
        if self._quotas is not None:
            self._quotas.of(owner).take("boxes", count)

    def _give_back(self, owner: str, count: int) -> None:
        if self._quotas is not None:
            self._quotas.of(owner).give_back("boxes", count)

    def _check_open(self) -> None:
        if self._closed:
            raise BoxError("the service is stopping; try another one", retry=Retry.SAFE)


def _check_replicas(replicas: int) -> None:
    if not 0 <= replicas <= 10_000:
        raise SpecError(f"replicas={replicas}: from 0 to 10000")


def session_view(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "phase": "Released" if session.ended else "Bound",
        "boxId": session.box.id,
        "image": session.box.spec.image,
        "isolation": session.box.isolation,
        "idleSeconds": session.idle_s,
        "lifetimeSeconds": session.lifetime_s,
        "keepSteps": session.keep_steps,
        "createdAt": session.created_at,
    }
