"""One box and one pool for all tests of a module."""

from __future__ import annotations

from harena import Sandbox, SandboxPool
from harena.testing import make_spec


class Shared:
    """A box and a pool that the tests of a module use one after the other, made anew when one of them lost it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._box: Sandbox | None = None
        self._pool: SandboxPool | None = None

    @property
    def box(self) -> Sandbox:
        if self._box is None or not self._box.alive:
            self.close()
            self._box = Sandbox(make_spec(workspace_mb=8), backend=self._backend)
        return self._box

    @property
    def pool(self) -> SandboxPool:
        if self._pool is None:
            self._pool = SandboxPool(make_spec(workspace_mb=8), warm=1, max_live=1, backend=self._backend)
        return self._pool

    def close(self) -> None:
        for one in (self._box, self._pool):
            if one is not None:
                one.close()
        self._box = self._pool = None
