"""Warm pools, and the clocks of sessions that come from them."""

from __future__ import annotations

import dataclasses
import enum
import threading
import time

from harena.errors import BoxError, Retry, SpecError
from harena.sandbox.box import Sandbox
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Limits, Spec
from harena.sessions.errors import Conflict
from harena.sessions.operations import Record
from harena.sessions.session import now

MAX_LIFE_S = 7 * 86400.0
ALLOCATION_S = 60.0
"""How long a session waits for its box, if nobody says otherwise."""


class Unset(enum.Enum):
    """A clock that was not given; None means that there is none."""

    UNSET = 0


UNSET = Unset.UNSET
Seconds = float | None | Unset


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionClocks:
    """Clocks of sessions for which nobody gave others."""

    idle_s: Seconds = UNSET
    lifetime_s: Seconds = UNSET
    allocation_s: float | None = None
    """Time to wait for a box."""

    def __post_init__(self) -> None:
        for what in ("idle_s", "lifetime_s", "allocation_s"):
            value: Seconds = getattr(self, what)
            if isinstance(value, int | float) and not 0 < value <= MAX_LIFE_S:
                raise SpecError(f"{what}={value:g}: more than 0, and at most {MAX_LIFE_S:g} seconds")

    def or_else(self, other: SessionClocks) -> SessionClocks:
        return SessionClocks(
            idle_s=other.idle_s if self.idle_s is UNSET else self.idle_s,
            lifetime_s=other.lifetime_s if self.lifetime_s is UNSET else self.lifetime_s,
            allocation_s=other.allocation_s if self.allocation_s is None else self.allocation_s,
        )


class WarmPool:
    """A pool that is created in the background."""

    def __init__(
        self,
        key: tuple[str, str, str],
        spec: Spec,
        limits: Limits,
        replicas: int,
        clocks: SessionClocks,
        backend: str = "local",
    ) -> None:
        self.key = key
        self._backend = backend
        self.clocks = clocks
        self.limits = limits
        self.draining = False
        self.spec = spec
        self.replicas = replicas
        self.allocated = 0
        self.created_at = now()
        self.ended = threading.Event()
        """Set once the pool is ready or has failed."""
        self.error: Exception | None = None
        self.pool: SandboxPool | None = None
        self._deleted = False
        self._lock = threading.Lock()
        threading.Thread(target=self._fill, args=(limits,), name="harena-warm-pool", daemon=True).start()

    def _fill(self, limits: Limits) -> None:
        try:
            pool = SandboxPool(self.spec, warm=self.replicas, max_live=1 << 20, limits=limits, backend=self._backend)
            with self._lock:
                self.pool = pool
            if self._deleted:
                pool.close()
            else:
                pool.resize(self.replicas)  # which may have changed meanwhile
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()

    def lease(self, wait_s: float) -> Sandbox:
        end = time.monotonic() + wait_s
        return self.ready_pool(wait_s).lease(queue_s=max(0.0, end - time.monotonic()))

    def ready_pool(self, wait_s: float) -> SandboxPool:
        self.check_open()
        if not self.ended.wait(wait_s):
            raise BoxError(f"pool {self.key[2]!r} was not ready within {wait_s:g} s", retry=Retry.SAFE)
        if self.pool is None:
            raise self.error or BoxError("the pool has no boxes", retry=Retry.NEVER)
        return self.pool

    def check_open(self) -> None:
        if self.draining:
            raise Conflict(f"pool {self.key[2]!r} is being drained: scale it up to use it again")

    def resize(self) -> None:
        """Bring the pool to its number of replicas."""
        with self._lock:
            pool = self.pool
        if pool is not None:
            pool.resize(self.replicas)

    def close(self) -> None:
        with self._lock:
            self._deleted = True
            pool = self.pool
        if pool is not None:
            pool.close()

    def view(self) -> Record:
        ready = len(self.pool.ready) if self.pool is not None else 0
        phase = "Failed" if self.error is not None else "Ready" if ready >= self.replicas else "Scaling"
        if self.draining:
            phase = "Draining" if self.allocated or ready else "Drained"
        return {
            "name": self.key[2],
            "namespace": self.key[1],
            "image": self.spec.image,
            "replicas": self.replicas,
            "phase": phase if self.ended.is_set() else "Pending",
            "message": "" if self.error is None else str(self.error),
            "ready": ready,
            "allocated": self.allocated,
            "total": ready + self.allocated,
            "createdAt": self.created_at,
        }

    def status(self) -> Record:
        view = self.view()
        return {
            "total": view["total"],
            "ready_idle": view["ready"],
            "allocated": view["allocated"],
            "available": view["ready"],
        }
