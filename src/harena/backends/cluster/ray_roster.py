"""Nodes of a Ray cluster: `SandboxPool("ray://auto")`. On each node that is used runs one actor with the boxes.

What Ray itself sends is trusted as Ray trusts its workers. What the guests print comes as bytes, which are checked as
those of any other node.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from harena.backends.cluster.ray_node import BoxActor
from harena.errors import BackendUnavailable, BoxError, Retry, SpecError
from harena.node.connection import Connection
from harena.node.link import Link

SCHEME = "ray://"
LIST_S = 0.5
"""How often Ray is asked for its nodes."""
START_S = 60.0
"""Time for the actor of a node to start: Ray starts a Python process for it."""
IN_FLIGHT = 4
"""Calls of an actor that are under way; what is to be sent meanwhile goes with the next one."""
PIECE = 1 << 20
FINISH_S = 10.0
"""Time for threads to leave Ray, when their actors have ended."""
AHEAD = 16
"""Pieces that an actor may send before the client has read them."""


class RayRoster:
    def __init__(self, url: str, token: str | None) -> None:
        if token is not None:
            raise SpecError(f"{url}: a Ray cluster takes no token; whoever can connect to it may use it")
        self._url = url
        self._ray = _connect(url)
        self._gate = RayGate(self._ray)
        self._lock = threading.Lock()
        self._names: tuple[str, ...] = ()
        self._cores: dict[str, int] = {}
        self._listed_at = 0.0
        self._streams: weakref.WeakSet[RayStream] = weakref.WeakSet()
        atexit.register(self.close)  # Ray's own comes after it, and a call into Ray after that would end the process

    def names(self) -> Sequence[str]:
        """The nodes with processors. A head without any gets no boxes."""
        with self._lock:
            if time.monotonic() < self._listed_at + LIST_S:
                return self._names
            with contextlib.suppress(Exception), self._gate.enter():  # if Ray fails, the last list is the best there is
                found = {
                    node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]
                }
                self._cores = {name: cores for name, cores in found.items() if cores > 0}
                self._names = tuple(self._cores)
            self._listed_at = time.monotonic()
            return self._names

    def connect(self, name: str) -> Connection:
        stream = RayStream(self._ray, self._gate, name, self._cores.get(name, 1))
        self._streams.add(stream)
        return Connection(Link.to_node(stream), is_server=True, name=f"Ray node {name[:12]}")

    def close(self) -> None:
        """End the actors, and call Ray no more. Idempotent."""
        for stream in list(self._streams):
            stream.hang_up()
        self._gate.close()


def _connect(url: str) -> Any:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise BackendUnavailable("boxes on a Ray cluster need Ray: pip install 'harena[ray]'") from None
    address = url.removeprefix(SCHEME)
    if not ray.is_initialized():
        try:
            ray.init(address=address or "auto", log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise BoxError(
                f"{url}: no Ray cluster there ({type(error).__name__}: {str(error)[:200]}); start one with `ray start "
                "--head`, or give ray://HOST:PORT",
                retry=Retry.SAFE,
            ) from None
    return ray


class RayGate:
    """Lets threads call Ray as long as it is there. A call after its end would start a new cluster, or end the
    process."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._changed = threading.Condition()
        self._inside = 0
        self.closed = False

    @contextlib.contextmanager
    def enter(self) -> Generator[None]:
        with self._changed:
            if self.closed or not self._ray.is_initialized():
                raise OSError("the connection to Ray was closed")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let no more in, and wait for those inside."""
        with self._changed:
            self.closed = True
            self._changed.wait_for(lambda: self._inside == 0, FINISH_S)


class RayStream:
    """Carries the bytes of a link in calls of an actor. What is sent while calls are under way is joined."""

    def __init__(self, ray: Any, gate: RayGate, node: str, cores: int) -> None:
        self._ray = ray
        self._gate = gate
        affinity: Any = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        try:
            with gate.enter():
                self._start(affinity(node_id=node, soft=False), cores)
        except Exception as error:
            raise BoxError(
                f"Ray node {node[:12]} started no actor: {type(error).__name__}: {str(error)[:200]}", retry=Retry.SAFE
            ) from None
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._size = 0
        self._ended = False
        threading.Thread(target=self._work, name="harena-ray-send", daemon=True).start()

    def _start(self, place: Any, cores: int) -> None:
        ray = self._ray
        kind = ray.remote(concurrency_groups={"out": 1})(BoxActor)
        self._actor: Any = kind.options(num_cpus=0, max_restarts=0, scheduling_strategy=place).remote(cores)
        ready = self._actor.__ray_ready__.remote()
        deadline = time.monotonic() + START_S
        while not ray.wait([ready], timeout=0.5)[0]:
            if self._gate.closed or time.monotonic() > deadline:
                ray.kill(self._actor)
                raise TimeoutError(f"it was not ready within {START_S:g} s")
        ray.get(ready)
        answers = self._actor.answers.options(
            num_returns="streaming", concurrency_group="out", _generator_backpressure_num_objects=AHEAD
        )
        self._pieces = iter(answers.remote())

    def send(self, data: bytes, deadline: float | None) -> None:
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._ended or self._size < IN_FLIGHT * PIECE, left):
                raise TimeoutError("the node does not read")
            if self._ended:
                raise OSError("the node has ended")
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify_all()

    def _work(self) -> None:
        calls: deque[Any] = deque()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or self._waiting)
                    if self._ended:
                        return
                    data = memoryview(b"".join(self._waiting))
                    self._waiting.clear()
                    self._size = 0
                    self._changed.notify_all()
                for start in range(0, len(data), PIECE):
                    with self._gate.enter():
                        calls.append(self._actor.feed.remote(next(self._numbers), bytes(data[start : start + PIECE])))
                        while len(calls) >= IN_FLIGHT:
                            self._ray.get(calls.popleft())
        except Exception:  # the actor has ended, or found the stream broken
            self.hang_up()

    def receive(self) -> bytes:
        try:
            with self._gate.enter():
                return self._ray.get(next(self._pieces))
        except Exception as error:  # RayActorError, StopIteration, or Ray itself has ended
            raise OSError(f"the node has ended: {type(error).__name__}") from None

    def hang_up(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        with contextlib.suppress(Exception), self._gate.enter():  # it is gone already, or Ray is
            self._ray.kill(self._actor)

    def close(self) -> None:
        self.hang_up()

    def abandon(self) -> None:
        """A forked child has no connection to Ray."""
