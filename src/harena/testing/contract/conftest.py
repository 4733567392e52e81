"""The contract: what every way of making a box must do. Each test runs unchanged on every variant.

Another launcher or backend is one more line in VARIANTS.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from harena import Clocks, IsolationUnavailable, Limits, Sandbox, SandboxPool, Spec
from harena.sandbox import backend
from harena.testing import BACKEND, forget_what_was_found


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    backend: str = "local"
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Set while boxes of this variant are made."""
    without: tuple[str, ...] = ()
    """Tests that do not apply to it."""


ISOLATION = ("test_visible.py", "test_quotas.py", "test_memory.py", "test_limits.py", "test_like_python.py")
VARIANTS = [
    Variant(name="native"),
    Variant(
        name="no-cgroups",
        env={"HARENA_CGROUPS": "off"},
        without=("test_files.py", "test_snapshot.py", "test_spec_contract.py"),  # where cgroups have no part
    ),
    # Its own side of the box is Python too: there are no forks of live boxes, and a rootfs must have a Python.
    # Its boxes are the local ones, so what a box withstands need not be tried again each time.
    Variant(name="relay", backend="relay", without=ISOLATION),
    Variant(name="bubblewrap", env={"HARENA_LAUNCHER": "bubblewrap"}, without=("test_fork.py", "test_rootfs_")),
]

ONLY = os.environ.get("HARENA_CONTRACT_VARIANT")
"""Runs one of Harena's own variants alone."""
CHOSEN = [Variant(name=BACKEND, backend=BACKEND)] if BACKEND else [v for v in VARIANTS if ONLY in (None, v.name)]


@pytest.fixture(scope="module", params=CHOSEN, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Iterator[Variant]:
    chosen: Variant = request.param
    with pytest.MonkeyPatch.context() as patch:
        for name, value in chosen.env.items():
            patch.setenv(name, value)
        forget_what_was_found()
        try:
            found = backend.load(chosen.backend).capabilities()
        except IsolationUnavailable as error:
            pytest.skip(f"{chosen.name}: {error}")
        if request.path.name == "test_fork.py" and not found.forks:
            pytest.skip(f"{chosen.name} does not fork live boxes")
        yield chosen
    forget_what_was_found()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def applies(item: pytest.Item) -> bool:
        variant = getattr(item, "callspec", None) and item.callspec.params.get("variant")  # pyright: ignore
        return not (isinstance(variant, Variant) and any(name in item.nodeid for name in variant.without))

    config.hook.pytest_deselected(items=[item for item in items if not applies(item)])
    items[:] = filter(applies, items)


class MakeBox(Protocol):
    def __call__(self, *, limits: Limits | None = None, clocks: Clocks | None = None, **spec: Any) -> Sandbox: ...


@pytest.fixture
def make_box(variant: Variant) -> Iterator[MakeBox]:
    """Makes boxes of the variant; keyword arguments beside limits and clocks are those of Spec."""
    with contextlib.ExitStack() as boxes:

        def make(*, limits: Limits | None = None, clocks: Clocks | None = None, **spec: Any) -> Sandbox:
            box = Sandbox(Spec(**spec), backend=variant.backend, limits=limits, clocks=clocks)
            return boxes.enter_context(box)

        yield make


@pytest.fixture
def box(make_box: MakeBox) -> Sandbox:
    return make_box()


@pytest.fixture
def make_pool(variant: Variant) -> Iterator[Callable[..., SandboxPool]]:
    with contextlib.ExitStack() as pools:

        def make(*, warm: int = 1, max_live: int = 4, **spec: Any) -> SandboxPool:
            pool = SandboxPool(Spec(**spec), warm=warm, max_live=max_live, backend=variant.backend)
            return pools.enter_context(pool)

        yield make


@pytest.fixture
def pool(make_pool: Callable[..., SandboxPool]) -> SandboxPool:
    return make_pool()


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
            self._box = Sandbox(Spec(workspace_mb=8), backend=self._backend)
        return self._box

    @property
    def pool(self) -> SandboxPool:
        if self._pool is None:
            self._pool = SandboxPool(Spec(workspace_mb=8), warm=1, max_live=1, backend=self._backend)
        return self._pool

    def close(self) -> None:
        for one in (self._box, self._pool):
            if one is not None:
                one.close()
        self._box = self._pool = None


@pytest.fixture(scope="module")
def shared(variant: Variant) -> Iterator[Shared]:
    with contextlib.closing(Shared(variant.backend)) as shared:
        yield shared


@pytest.fixture
def ends_on_host() -> Callable[[str], None]:
    """Asserts that no process of this machine carries the marker in its command line, or soon does no more."""

    def check(marker: str) -> None:
        end = time.monotonic() + 5
        while (found := processes_with(marker)) and time.monotonic() < end:
            time.sleep(0.01)
        assert found == []

    return check


@pytest.fixture
def runs_on_host() -> Callable[[str], None]:
    """The control of `ends_on_host`: waits until a process with the marker is there."""

    def check(marker: str) -> None:
        end = time.monotonic() + 20
        while not (found := processes_with(marker)) and time.monotonic() < end:
            time.sleep(0.01)
        assert found

    return check


@pytest.fixture
def marker() -> str:
    """An argument for `sleep` that no other process has."""
    return f"{40000 + int.from_bytes(os.urandom(3))}.{os.getpid()}"


def processes_with(marker: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
