"""Boxes on several nodes. Each stays on the node that created it.

Guarantees: a node that dies costs only its own boxes; while another node is healthy, no call waits for a dead one,
which a background thread tries again; nodes may join and leave at any time. It is no scheduler: nodes refuse boxes
themselves, and a refused one goes to another node.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Callable
from random import Random
from typing import TypeVar

from harena.backends.cluster import choice
from harena.backends.cluster.choice import NodeHealth
from harena.backends.cluster.roster import Roster
from harena.errors import BackendUnavailable, BoxError, BoxLost, HarenaError, IsolationUnavailable, Retry
from harena.node import client
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import Limits, Spec

T = TypeVar("T")

LOOK_S = 0.25
"""How often the background thread looks at the list of nodes."""
ASK_S = 2.0
"""How often a healthy node is asked for its load."""
IDLE_S = 60.0
"""The background thread ends when nobody has used the backend for this time."""
FIRST_S = 30.0
"""How long to wait for the first node that answers."""
MORE_S = 1.0
"""How long to wait for the other nodes then."""


class ClusterNode:
    """A node and the connection to it."""

    def __init__(self, name: str, roster: Roster) -> None:
        self.health = NodeHealth(name=name)
        self.lock = threading.Lock()
        self.asked_at = 0.0
        self.asking = False
        self.asked_once = False
        self.removed = False
        self.capabilities: Capabilities | None = None
        self._roster = roster
        self._connecting = threading.Lock()
        self._connection: Connection | None = None
        self._rng = Random()

    def connect(self) -> Connection:
        with self._connecting:
            if self._connection is None or not self._connection.usable:
                self._connection = None
                self._connection = self._roster.connect(self.health.name)
            return self._connection

    def ask(self) -> Capabilities:
        """Ask for its load, and what it can do. Raises HarenaError."""
        connection = self.connect()
        if self.capabilities is None:
            self.capabilities = client.capabilities(connection)
        before = self.health.boxes
        found = client.load(connection)
        with self.lock:
            self.health = choice.answered(
                self.health,
                cores=found.cores,
                total=found.boxes,
                ours_before=before,
                leaving=self.removed or found.stopping,
            )
        self.asked_once = True
        self.let_go()
        return self.capabilities

    def notice_loss(self) -> None:
        """Count a lost connection as a failure."""
        connection = self._connection
        if connection is not None and not connection.usable and self.health.failures == 0:
            self.note_failure()

    def note_failure(self) -> None:
        with self.lock:
            self.health = choice.failed(self.health, now=time.monotonic(), rng=self._rng)

    def note_refusal(self) -> None:
        with self.lock:
            self.health = choice.refused(self.health, now=time.monotonic())

    def leave(self) -> None:
        with self.lock:
            self.removed = True
            self.health = dataclasses.replace(self.health, leaving=True)
        self.let_go()

    def let_go(self) -> None:
        """Disconnect from a node that is left, once its last box is closed, so that it need not wait for us."""
        if self.health.leaving and self.health.boxes == 0:
            self._connection = None

    def count(self, change: int) -> None:
        with self.lock:
            self.health = dataclasses.replace(self.health, boxes=self.health.boxes + change)
        if change < 0:
            self.let_go()


class ClusterBox(NodeBox):
    backend = "cluster"

    def stay_on(self, node: ClusterNode) -> ClusterBox:
        """Count the box, which `node` has counted already, until it ends."""
        self._cluster_node = node
        self._uncount = weakref.finalize(self, node.count, -1)
        return self

    @property
    def node(self) -> str:
        """The node that has the box."""
        return self._cluster_node.health.name

    @property
    def leaving(self) -> bool:
        """True if its node shall get no more work."""
        return self._cluster_node.health.leaving

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._uncount()

    def _forked(self, handle: int, id: str) -> NodeBox:
        box = super()._forked(handle, id)
        if isinstance(box, ClusterBox):
            self._cluster_node.count(1)
            box.stay_on(self._cluster_node)
        return box


class ClusterBackend:
    def __init__(self, roster: Roster, *, rng: Random | None = None) -> None:
        self._roster = roster
        self._rng = rng or Random()
        self._lock = threading.Lock()
        self._nodes: dict[str, ClusterNode] = {}
        self._changed = threading.Condition()
        self._used_at = time.monotonic()
        self._closed = False
        self._watcher = 0
        """The process whose thread looks after the nodes; 0 if there is none."""
        self.refresh()

    # ---- verbs of a backend ----

    def capabilities(self) -> Capabilities:
        """What every node can do, with the cores of all. Waits for the first node, and a moment for the others."""
        self._use()
        nodes = self._list()
        started = time.monotonic()
        with self._changed:
            while True:
                waited = time.monotonic() - started
                pending = [node for node in nodes if not node.asked_once]
                some = any(node.health.healthy for node in nodes)
                if not pending or (some and waited > MORE_S) or waited > FIRST_S:
                    break
                self._changed.wait(0.05)
        found = [node.capabilities for node in nodes if node.health.healthy and node.capabilities is not None]
        if not found:
            found = [self._on_some_node(ClusterNode.ask)]  # raises why there is none
        return dataclasses.replace(
            found[0],
            landlock=min(one.landlock for one in found),
            counts_memory=all(one.counts_memory for one in found),
            forks=all(one.forks for one in found),
            isolation="full" if all(one.isolation == "full" for one in found) else "restricted",
            not_covered=tuple(dict.fromkeys(text for one in found for text in one.not_covered)),
            notes=tuple(dict.fromkeys(text for one in found for text in one.notes)),
            cores=self.cores_now(),
        )

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> ClusterBox:
        client.refuse_network(spec, "cluster")
        return self._on_some_node(lambda node: self._create_on(node, spec, limits, start_s))

    def cores_now(self) -> int:
        """Processors of the nodes that are healthy. Asks nobody."""
        return sum(node.health.cores for node in self._list() if node.health.healthy and node.asked_once)

    def close(self) -> None:
        """Disconnect from all nodes and end the background thread. Their boxes end with it."""
        with self._lock:
            self._closed = True
        for node in self._list():
            node.leave()
        self._roster.close()

    # ---- placing ----

    def _on_some_node(self, action: Callable[[ClusterNode], T]) -> T:
        """Do something on one node, and on the next if that one cannot."""
        self._use()
        self.refresh()
        errors: dict[str, HarenaError] = {}
        nodes = {node.health.name: node for node in self._list()}
        for node in nodes.values():
            node.notice_loss()
        first = choice.attempts([node.health for node in nodes.values()], now=time.monotonic(), rng=self._rng)
        last = [name for name, node in nodes.items() if name not in first and not node.health.leaving]
        for name in (*first, *last):  # a node that failed a moment ago is better than none
            node = nodes[name]
            try:
                node.connect()
            except HarenaError as error:
                node.note_failure()
                errors[name] = error
                continue
            try:
                return action(node)
            except BoxLost as error:  # nothing of a guest has run yet
                node.note_failure()
                errors[name] = error
            except IsolationUnavailable as error:
                errors[name] = error
            except BoxError as error:
                if error.retry is not Retry.SAFE:
                    raise
                node.note_refusal()
                errors[name] = error
        raise _none_left(errors)

    def _create_on(self, node: ClusterNode, spec: Spec, limits: Limits, start_s: float) -> ClusterBox:
        node.count(1)
        try:
            connection = node.connect()
            box = ClusterBox(connection, *client.create(connection, spec, limits, start_s))
        except BaseException:
            node.count(-1)
            raise
        return box.stay_on(node)

    # ---- nodes that come and go ----

    def refresh(self) -> None:
        """Take nodes from the list, and those that are not in it any more out of use."""
        names = self._roster.names()
        with self._lock:
            left = [self._nodes.pop(name) for name in list(self._nodes) if name not in set(names)]
            for name in names:
                if name not in self._nodes:
                    self._nodes[name] = ClusterNode(name, self._roster)
        for node in left:
            node.leave()

    def _list(self) -> list[ClusterNode]:
        with self._lock:
            return list(self._nodes.values())

    def _use(self) -> None:
        with self._lock:
            self._used_at = time.monotonic()
            if self._watcher == os.getpid():
                return
            self._watcher = os.getpid()
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="harena-nodes", daemon=True).start()

    def look_after(self) -> bool:
        """Read the list again, and ask the nodes whose time has come. Returns False when nobody uses the backend."""
        if self._closed:
            return False
        self.refresh()
        nodes, now = self._list(), time.monotonic()
        for node in nodes:
            node.notice_loss()
            health = node.health
            due = health.retry_at if health.failures else node.asked_at + ASK_S
            if now >= due and not node.asking:
                node.asking = True
                threading.Thread(target=self._ask, args=(node,), name="harena-nodes-ask", daemon=True).start()
        with self._lock:
            busy = any(node.health.boxes for node in nodes) or now - self._used_at < IDLE_S
            if not busy:
                self._watcher = 0
        return busy

    def _ask(self, node: ClusterNode) -> None:
        try:
            node.ask()
        except (HarenaError, OSError):
            node.note_failure()
        finally:
            node.asked_at = time.monotonic()
            node.asking = False
            with self._changed:
                node.asked_once = True
                self._changed.notify_all()


def _watch(backend: weakref.ref[ClusterBackend]) -> None:
    while (found := backend()) is not None and found.look_after():
        del found
        time.sleep(LOOK_S)


def _none_left(errors: dict[str, HarenaError]) -> HarenaError:
    if not errors:
        return BoxError("all nodes are leaving: add nodes to the list, or wait for them", retry=Retry.SAFE)
    kinds = {type(error) for error in errors.values()}
    if kinds <= {BackendUnavailable} or kinds <= {IsolationUnavailable}:
        return next(iter(errors.values()))
    text = "; ".join(f"{name}: {error}" for name, error in list(errors.items())[:3])
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return BoxError(f"none of {len(errors)} nodes could create a box: {text}{more}", retry=Retry.SAFE)
