"""The contract: what every way of making a box must do. Each test runs unchanged on every variant.

Another launcher or backend is one more line in VARIANTS.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from harena import Clocks, HarenaError, IsolationUnavailable, Limits, Sandbox, SandboxPool
from harena.sandbox import backend
from harena.sandbox.spec import default_isolation
from harena.testing import BACKEND, IMAGE, forget_what_was_found, make_spec
from harena.testing.boxserver import box_server
from harena.testing.contract.shared import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    backend: str = "local"
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Set while boxes of this variant are made."""
    without: tuple[str, ...] = ()
    """Tests that do not apply to it."""
    server: tuple[str, ...] | None = None
    """Options of a server to start for it; its URL is the backend. None: it needs none."""
    nodes: int = 1
    """How many such servers; of several the list is the backend."""
    core: tuple[str, ...] = ("",)
    """Tests that `make test` runs; the others are marked thorough."""


ISOLATION = ("test_visible.py", "test_quotas.py", "test_memory.py", "test_limits.py", "test_like_python.py")
WITHOUT_NAMESPACES = (
    # There are no mounts. /workspace and /tmp have other names inside, and nothing else can be put into the root:
    "test_visible.py",
    "test_exec.py::test_file_that_cannot_be_executed_is_exit_code_126",
    "test_exec.py::test_bare_name_is_looked_up_in_the_path_that_the_command_gets",
    "test_exec.py::test_environment_adds_to_the_boxs_own",
    "test_exec.py::test_starts_in_the_workspace",
    "test_exec.py::test_cwd_is_relative_to_the_workspace_or_absolute",
    "test_files.py::test_absolute_paths_are_those_of_the_box",
    "test_like_python.py::test_workspace_is_the_first_place_of_imports",
    "test_shell.py::test_a_command_that_ignores_interrupts_is_ended_all_the_same",
    "test_shell.py::test_two_shells_of_a_box_do_not_meet",
    "test_shell.py::test_closing_a_shell_ends_its_jobs_and_removes_its_files",
    "test_snapshot.py::test_restore_leaves_tmp_and_running_processes_alone",
    "test_start.py::test_sees_environment_and_cwd",
    "test_converse.py::test_each_has_empty_files_and_nothing_of_the_one_before",
    "test_quotas.py::test_box_with_more_mounts_",
    "test_quotas.py::test_terminals_of_one_execution_",
    "test_spec_contract.py::test_environment_is_there_for_every_door",
    "test_spec_contract.py::test_mount_",
    "test_spec_contract.py::test_writable_mount_",
    "test_spec_contract.py::test_rootfs_",
    "test_spec_contract.py::test_hostname",
    # The disk is counted and not bounded by the kernel, except for a single file:
    "test_limits.py::test_disk",
    "test_limits.py::test_number_of_files_on_disk",
    "test_snapshot.py::test_holes_of_sparse_files_are_kept",
    "test_spec_contract.py::test_workspace_and_tmp_have_the_size_asked_for",
    # A box of root has its own user, who must be able to reach the interpreter:
    "test_spec_contract.py::test_python_of_a_virtual_environment_",
    "test_spec_contract.py::test_python_that_is_too_old_",
    "test_spec_contract.py::test_oldest_python_",
    # Quotas of a user namespace; a box of root has a user of its own, and all of that user's:
    "test_quotas.py::test_greedy_box_",
    # A process cannot be cloned into namespaces:
    "test_fork.py",
)
"""What the restricted tier cannot do; tests/integration/test_restricted.py has what it does instead."""
OPEN_SERVER = ("--allow-path", "/", "--allow-package", "*", "--allow", "ptrace", "--allow", "netlink")
"""Options of a server that refuses little."""
VARIANTS = [
    Variant(name="native"),
    Variant(
        name="no-cgroups",
        env={"HARENA_CGROUPS": "off"},
        without=("test_files.py", "test_snapshot.py", "test_spec_contract.py"),  # where cgroups have no part
        core=("test_limits.py", "test_quotas.py"),
    ),
    # Its own side of the box is Python too: there are no forks of live boxes, and a rootfs must have a Python.
    # Its boxes are the local ones, so what a box withstands need not be tried again each time.
    Variant(
        name="relay", backend="relay", without=(*ISOLATION, "test_online_"), core=("test_exec.py", "test_files.py")
    ),
    Variant(
        name="remote",
        server=OPEN_SERVER,
        without=(*ISOLATION, "test_online_", "::test_writable_mount_"),  # those: tests/serve/test_remote.py
        core=("test_exec.py",),
    ),
    Variant(
        name="nodes",
        server=OPEN_SERVER,
        nodes=2,
        without=(*ISOLATION, "test_online_", "::test_writable_mount_"),
        core=(),
    ),
    Variant(
        name="restricted",
        env={"HARENA_ISOLATION": "restricted"},
        without=(*WITHOUT_NAMESPACES, "test_online_"),
        core=("test_exec.py",),
    ),
    Variant(
        name="bubblewrap",
        env={"HARENA_LAUNCHER": "bubblewrap"},
        without=("test_fork.py", "test_rootfs_", "test_online_"),
        core=("test_exec.py", "test_memory.py"),
    ),
]

ONLY = os.environ.get("HARENA_CONTRACT_VARIANT")
"""Runs one of Harena's own variants alone."""
OF_AN_IMAGE = (
    # its files, folders and environment are the image's
    "test_environment_adds_to_the_boxs_own",
    "test_environment_is_made_for_the_box",
    "test_root_has_only_what_is_needed",
    "test_other_folders_are_absent",
    "test_home_folders_show_nothing",
    "test_etc_has_only_what_tells_nothing_of_the_host",
    "test_software_finds_what_it_looks_for_in_etc",
    # it brings its Python and its packages, and imports nothing ahead
    "package",
    "test_python_",
    "test_rootfs_",
    "test_preload",
    "test_oldest_python",
    # its user is root among its own ids, and its root is writable: tests/images/test_image_boxes.py
    "test_guest_has_no_rights",
    "test_only_workspace_tmp_and_shm_can_be_written",
    "test_absolute_paths_are_those_of_the_box",
    "test_file_without_rights_is_neither_read_nor_replaced",
    "test_write_has_no_more_rights_than_the_guest",
)
"""Tests of what is otherwise in a box from an image."""
WITH_IMAGE = [
    Variant(name="image", backend=BACKEND or "local", without=OF_AN_IMAGE),
    Variant(
        name="image-no-cgroups",
        backend=BACKEND or "local",
        env={"HARENA_CGROUPS": "off"},
        without=(*OF_AN_IMAGE, "test_files.py", "test_snapshot.py", "test_spec_contract.py"),
    ),
]
OF_BACKEND = [
    Variant(name=BACKEND, backend=BACKEND, without=WITHOUT_NAMESPACES if default_isolation() == "restricted" else ())
]
CHOSEN = WITH_IMAGE if IMAGE else OF_BACKEND if BACKEND else VARIANTS
CHOSEN = [variant for variant in CHOSEN if ONLY in (None, variant.name)]


@pytest.fixture(scope="module", params=CHOSEN, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Variant]:
    chosen: Variant = request.param
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as servers:
        for name, value in chosen.env.items():
            patch.setenv(name, value)
        forget_what_was_found()
        if chosen.server is not None:
            folder = tmp_path_factory.mktemp("server")
            started = [servers.enter_context(box_server(folder, *chosen.server)) for _ in range(chosen.nodes)]
            patch.setenv("HARENA_TOKEN", started[0].token)
            urls = [server.url for server in started]
            chosen = replace(chosen, backend=urls[0] if len(urls) == 1 else f"harena://{','.join(urls)}")
        try:
            found = backend.load(chosen.backend).capabilities()
        except IsolationUnavailable as error:
            pytest.skip(f"{chosen.name}: {error}")
        if request.path.name == "test_fork.py" and not found.forks:
            pytest.skip(f"{chosen.name} does not fork live boxes")
        yield chosen
    forget_what_was_found()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def variant_of(item: pytest.Item) -> Variant | None:
        variant = getattr(item, "callspec", None) and item.callspec.params.get("variant")  # pyright: ignore
        return variant if isinstance(variant, Variant) else None

    def applies(item: pytest.Item) -> bool:
        variant = variant_of(item)
        return variant is None or not any(name in item.nodeid for name in variant.without)

    for item in items:
        variant = variant_of(item)
        if variant is not None and ONLY is None and not any(name in item.nodeid for name in variant.core):
            item.add_marker("thorough")
    config.hook.pytest_deselected(items=[item for item in items if not applies(item)])
    items[:] = filter(applies, items)


class MakeBox(Protocol):
    def __call__(self, *, limits: Limits | None = None, clocks: Clocks | None = None, **spec: Any) -> Sandbox: ...


@pytest.fixture
def make_box(variant: Variant) -> Iterator[MakeBox]:
    """Makes boxes of the variant; keyword arguments beside limits and clocks are those of Spec."""
    with contextlib.ExitStack() as boxes:

        def make(*, limits: Limits | None = None, clocks: Clocks | None = None, **spec: Any) -> Sandbox:
            box = Sandbox(make_spec(**spec), backend=variant.backend, limits=limits, clocks=clocks)
            return boxes.enter_context(box)

        yield make


SHARING = ("test_call.py", "test_converse.py", "test_exec.py", "test_files.py", "test_snapshot.py", "test_start.py")
"""Files whose tests use one box after the other, each with empty folders: a box that it makes costs a test most of its
time, and how boxes begin and end is the subject of other files."""
EMPTY = """
chmod -R u+rwx /workspace /tmp /dev/shm 2>/dev/null
find /workspace /tmp /dev/shm -mindepth 1 -delete && chmod 755 /workspace
"""


class Reused:
    """A box for one test after the other; a new one when a test lost it or left something that cannot be removed."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._box: Sandbox | None = None

    def take(self) -> Sandbox:
        if self._box is None:
            self._box = Sandbox(backend=self._backend)
        return self._box

    def give_back(self) -> None:
        try:
            clean = self._box is not None and self._box.alive and self._box.exec(["sh", "-c", EMPTY]).ok
        except HarenaError:
            clean = False
        if not clean:
            self.close()

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None


@pytest.fixture(scope="module")
def reused(variant: Variant) -> Iterator[Reused]:
    with contextlib.closing(Reused(variant.backend)) as reused:
        yield reused


@pytest.fixture
def box(request: pytest.FixtureRequest, make_box: MakeBox) -> Iterator[Sandbox]:
    if request.path.name not in SHARING:
        yield make_box()
        return
    reused: Reused = request.getfixturevalue("reused")
    yield reused.take()
    reused.give_back()


@pytest.fixture
def make_pool(variant: Variant) -> Iterator[Callable[..., SandboxPool]]:
    with contextlib.ExitStack() as pools:

        def make(*, warm: int = 1, max_live: int = 4, **spec: Any) -> SandboxPool:
            pool = SandboxPool(make_spec(**spec), warm=warm, max_live=max_live, backend=variant.backend)
            return pools.enter_context(pool)

        yield make


@pytest.fixture
def pool(make_pool: Callable[..., SandboxPool]) -> SandboxPool:
    return make_pool()


@pytest.fixture(scope="module")
def shared(variant: Variant) -> Iterator[Shared]:
    with contextlib.closing(Shared(variant.backend)) as shared:
        yield shared


@pytest.fixture
def ends_on_host() -> Callable[[str], None]:
    """Asserts that no process of this machine carries the marker in its command line, or soon does no more."""

    def check(marker: str) -> None:
        end = time.monotonic() + 20
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
