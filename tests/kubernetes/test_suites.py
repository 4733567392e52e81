"""The contract and the attacks that every backend must pass, unchanged, on boxes in pods.

The whole of both takes long: pytest -m soak tests/kubernetes/test_suites.py
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena import Sandbox
from harena.kube.api import path
from support.clusters import World, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.thorough, pytest.mark.serial, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
WITHOUT = {
    "test_online_": "boxes of this backend have no network",
    "test_mount": "the files of a pod are not the client's; its server allows no paths",
    "test_writable_mount_": "likewise",
    "test_rootfs_": "likewise",
    "package": "packages are those of the pod's image",
    "test_python_": "so is Python",
    "test_list_tells_kind_size_mode_and_target": "restricted guests of a server that is not root change no modes",
}
"""Tests of the contract that do not apply, and why."""
RESOURCES = {"limits": {"cpu": "2", "memory": "4Gi"}}
SHAPES: dict[str, dict[str, Any]] = {
    "many": {"replicas": 1, "boxesPerPod": 64, "diskMb": 2048},
    "single": {"replicas": 3, "boxesPerPod": 1, "diskMb": 1024},
}


@pytest.fixture
def pool(request: pytest.FixtureRequest, world: World) -> Iterator[str]:
    containers = [{"name": "sidecar", "resources": RESOURCES}]
    name = f"suite-{request.param}-{secrets.token_hex(2)}"
    yield world.pool(name, **SHAPES[request.param], idleSeconds=30, template={"spec": {"containers": containers}})
    world.api.delete(path(world.namespace, "warmpools", name))
    until(lambda: not world.pods(name), "no pods are left", world.log)


@pytest.mark.parametrize(
    ("pool", "suite"),
    [
        pytest.param("many", "contract/execution/test_exec.py", id="many-exec"),
        pytest.param("many", "contract", id="many-contract", marks=pytest.mark.soak),
        pytest.param("many", "attacks", id="many-attacks", marks=pytest.mark.soak),
        pytest.param("single", "contract", id="single-contract", marks=pytest.mark.soak),
        pytest.param("single", "attacks", id="single-attacks", marks=pytest.mark.soak),
    ],
    indirect=["pool"],
)
def test_the_suite_of_every_backend_holds(world: World, pool: str, suite: str) -> None:
    with Sandbox(world.url(pool)) as box:
        tier = box.isolation
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"src/harena/testing/{suite}"]
    which = f"not ({' or '.join(WITHOUT)})"
    env = {**os.environ, "HARENA_TEST_BACKEND": world.url(pool), "HARENA_ISOLATION": tier}
    done = subprocess.run([*command, "-k", which], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    until(lambda: not world.pods(pool, state="allocated"), "every pod was given back", world.log)
