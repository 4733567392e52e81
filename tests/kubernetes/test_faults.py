"""Sessions of a cluster while operators, pods and the way to the API server are killed: nothing leaks, and each session
ends in one true state."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from harena import SandboxSession
from harena.errors import BoxError, HarenaError, Retry
from harena.kube import names
from harena.kube.api import path
from harena.kube.claims import PoolClient
from support import clusters
from support.api_outage import CuttableApi
from support.clusters import World, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.services, pytest.mark.serial, pytest.mark.timeout(600)]

STEPS = 4
DONE, LOST = "done", "lost"
OUTAGE_S = 10.0


def use(world: World, pool: str, number: int) -> str:
    """One session. Returns how it ended; what it is told must be true in any case."""
    try:
        with SandboxSession(pool_ref=pool, namespace=world.namespace, cluster=True, timeout=180) as session:
            for step in range(STEPS):
                script = f"echo {number} >> log; sleep 0.5; cat log"
                ran = session.execute([{"name": f"s{step}", "command": ["sh", "-c", script]}])["status"]
                if ran["state"] != "Succeeded":
                    raise BoxError(str(ran), retry=Retry.SAFE)
                assert ran["stdout"] == f"{number}\n" * (step + 1)
            return DONE
    except HarenaError as error:
        return f"{LOST}: {error}"


def kill_operator(world: World, pool: str) -> bool:
    world.operator.kill()
    world.operator = clusters.start_operator(world.namespace, world.image, world.folder)
    return True


def delete_pod(world: World, pool: str) -> bool:
    for pod in world.pods(pool, state="allocated")[:1]:
        world.api.delete(path(world.namespace, "pods", pod["metadata"]["name"]), grace_s=0)
        return True
    return False


def evict_pod(world: World, pool: str) -> bool:
    for pod in world.pods(pool, state="allocated")[:1]:
        return world.evict(pod["metadata"]["name"])
    return False


def kill_pod(world: World, pool: str) -> bool:
    """Kill every process of a pod, where its node is this machine."""
    for pod in world.pods(pool, state="allocated")[:1]:
        return clusters.kill_processes(pod["metadata"]["uid"])
    return False


HARMS: list[Callable[[World, str], bool]] = [delete_pod, kill_operator, evict_pod, kill_pod]


# Python itself drops a socket whose peer resets it between connect and handshake, and says so when it is collected.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [pytest.param(count, marks=pytest.mark.soak) for count in (10, 100)])
def test_every_session_ends_in_one_true_state_whatever_is_killed(world: World, number: int) -> None:
    pool = world.pool(f"harmed-{number}", 3, idleSeconds=2)
    done: list[Callable[[World, str], bool]] = []
    with ThreadPoolExecutor(5) as threads:
        ends: list[Future[str]] = [threads.submit(use, world, pool, at) for at in range(number)]
        todo = HARMS * (number // 10)
        while todo and not all(end.done() for end in ends):
            if todo[0](world, pool):
                done.append(todo.pop(0))
            time.sleep(2)
    found = [end.result() for end in ends]
    lost = [end for end in found if end != DONE]
    assert set(done) >= {delete_pod, kill_operator, evict_pod}, "too few were harmed"
    assert len(lost) <= len(done) - done.count(kill_operator), lost  # no session but those whose pod was killed
    nothing_is_left(world, pool)


def nothing_is_left(world: World, pool: str) -> None:
    until(lambda: not world.pods(pool, state="allocated"), "released pods are gone", world.log)
    until(lambda: len(world.pods(pool, state="idle")) == 3, "the pool is full again, and not fuller", world.log)
    until(lambda: not world.of_pool("sandboxes", pool), "no Sandbox is left", world.log)
    world.api.delete(path(world.namespace, "warmpools", pool))
    until(lambda: world.get("warmpools", pool) is None, "the pool is gone", world.log)
    until(lambda: not world.pods(pool), "so are its pods", world.log)
    secrets = path(world.namespace, "secrets")
    until(lambda: not world.api.list(secrets, labels=f"{names.POOL}={pool}")["items"], "and their Secrets", world.log)


def test_sessions_continue_without_the_api_server_and_claims_after_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = world.pool("cut-off", 3, idleSeconds=2)
    with CuttableApi(tmp_path) as way:
        monkeypatch.setenv("KUBECONFIG", str(way.kubeconfig))
        world.operator.stop()
        world.operator = clusters.start_operator(world.namespace, world.image, world.folder)
        client = PoolClient(clusters.api(), world.namespace, pool)
        with SandboxSession(pool_ref=pool, namespace=world.namespace, cluster=True, timeout=120) as session:
            way.cut()
            cut_at = time.monotonic()
            with pytest.raises(BoxError) as refused:
                client.claim(5)
            assert refused.value.retry is Retry.SAFE
            while time.monotonic() - cut_at < OUTAGE_S:
                ran = session.execute([{"name": "a", "command": ["echo", "still here"]}])
                assert ran["status"]["stdout"] == "still here\n"
            way.restore()
            client.release(client.claim(60))
            assert session.execute([{"name": "b", "command": ["echo", "b"]}])["status"]["state"] == "Succeeded"
        nothing_is_left(world, pool)
        assert world.operator.process.poll() is None, "the operator did not survive it"
        world.operator.stop()
    monkeypatch.undo()
    world.operator = clusters.start_operator(world.namespace, world.image, world.folder)


@pytest.mark.soak  # its pods were once not ready within 90 s on a busy machine
def test_a_stopped_api_server_delays_and_breaks_nothing(world: World) -> None:
    server = clusters.process_of_api_server()
    pool = world.pool("stopped", 3, idleSeconds=2)
    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(use, world, pool, at) for at in range(6)]
        until(lambda: world.pods(pool, state="allocated"), "some sessions have begun", world.log)
        os.kill(server, signal.SIGSTOP)
        try:
            time.sleep(OUTAGE_S)
        finally:
            os.kill(server, signal.SIGCONT)
        assert [end.result() for end in ends] == [DONE] * 6
    nothing_is_left(world, pool)


def test_a_claim_without_an_operator_says_so_and_the_next_operator_leaves_nothing(world: World) -> None:
    pool = world.pool("alone", 0)
    world.operator.stop()
    try:
        with pytest.raises(HarenaError, match="operator"):
            PoolClient(world.api, world.namespace, pool).claim(3)
    finally:
        world.operator = clusters.start_operator(world.namespace, world.image, world.folder)
    until(lambda: not world.of_pool("sandboxes", pool), "no Sandbox is left", world.log)
    world.api.delete(path(world.namespace, "warmpools", pool))
    until(lambda: world.get("warmpools", pool) is None, "the pool is gone", world.log)
