"""Sandboxes and Tasks on a real cluster, and what happens when operators are killed or meet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harena import SandboxSession
from harena.kube import names
from harena.kube.api import KubeError, path
from support import clusters
from support.clusters import World, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.services, pytest.mark.serial]


@pytest.fixture(scope="module")
def pool(world: World) -> Iterator[str]:
    yield world.pool("tasks", 1)
    world.api.delete(path(world.namespace, "warmpools", "tasks"))


def state(world: World, task: str) -> str:
    return world.status("tasks", task).get("state", "")


def test_a_task_runs_its_steps_and_its_sandbox_is_released(world: World, pool: str) -> None:
    world.make("sandboxes", "one-off", poolRef=pool, ttlSecondsAfterFinished=1)
    world.make(
        "tasks",
        "hello",
        sandboxRef="one-off",
        steps=[
            {"name": "write", "type": "FilePatch", "path": "a.txt", "content": "from a file\n"},
            {"name": "read", "type": "Command", "command": ["cat", "a.txt"], "container": "executor"},
            {"name": "env", "type": "Command", "command": ["sh", "-c", "echo $NAME >&2"], "env": {"NAME": "harena"}},
        ],
    )
    until(lambda: state(world, "hello") in ("Succeeded", "Failed"), "the task has ended", world.log)
    status = world.status("tasks", "hello")
    assert (status["state"], status["stdout"], status["stderr"], status["exitCode"]) == (
        "Succeeded",
        "from a file\n",
        "harena\n",
        0,
    )
    assert status["startedAt"] <= status["completedAt"]
    assert [step["name"] for step in status["steps"]] == ["write", "read", "env"]
    assert status["steps"][1]["isolation"] in ("full", "restricted")
    until(lambda: world.get("sandboxes", "one-off") is None, "the sandbox is released, and then deleted", world.log)
    assert world.events("Released")


def test_a_failed_step_and_a_timeout_end_a_task_in_words(world: World, pool: str) -> None:
    world.make("sandboxes", "failing", poolRef=pool, keepAlive=True)
    world.make("tasks", "bad", sandboxRef="failing", steps=[{"name": "no", "command": ["sh", "-c", "exit 3"]}])
    world.make(
        "tasks", "slow", sandboxRef="failing", timeout="1s", steps=[{"name": "sleep", "command": ["sleep", "60"]}]
    )
    for name in ("bad", "slow"):
        until(lambda name=name: state(world, name) in ("Succeeded", "Failed"), f"{name} has ended", world.log)
        assert state(world, name) == "Failed"
    assert world.status("tasks", "bad")["exitCode"] == 3
    assert "sleep" in world.status("tasks", "slow")["message"]
    assert world.status("sandboxes", "failing")["phase"] == "Bound"
    pod = world.status("sandboxes", "failing")["podName"]
    world.api.delete(path(world.namespace, "sandboxes", "failing"))
    until(lambda: world.get("sandboxes", "failing") is None, "the sandbox is gone", world.log)
    until(lambda: world.get("pods", pod) is None, "so is its pod", world.log)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("warmpools", {"replicas": -1}),
        ("warmpools", {"isolation": "none"}),
        ("sandboxes", {}),
        ("tasks", {"sandboxRef": "s", "steps": []}),
        ("tasks", {"sandboxRef": "s", "timeout": "soon", "steps": [{"name": "a"}]}),
        ("tasks", {"sandboxRef": "s", "steps": [{"name": "a", "type": "Delete"}]}),
        ("tasks", {"sandboxRef": "s", "steps": [{"name": "a", "container": "host"}]}),
    ],
)
def test_the_schemas_refuse_what_means_nothing(world: World, kind: str, spec: dict[str, object]) -> None:
    with pytest.raises(KubeError) as refused:
        world.make(kind, "wrong", **spec)
    assert refused.value.status == 422


def test_a_sandbox_without_a_pool_says_so(world: World) -> None:
    world.make("sandboxes", "lost", poolRef="nowhere")
    until(lambda: world.status("sandboxes", "lost").get("conditions"), "the operator has answered", world.log)
    (condition,) = world.status("sandboxes", "lost")["conditions"]
    assert "nowhere" in condition["message"]
    world.api.delete(path(world.namespace, "sandboxes", "lost"))


def test_a_killed_operator_harms_no_session_and_no_step_runs_twice(world: World, pool: str) -> None:
    world.ready(pool)
    world.make("sandboxes", "survivor", poolRef=pool, keepAlive=True)
    script = "echo ran >> log; sleep 5; cat log"
    world.make(
        "tasks", "long", sandboxRef="survivor", timeout="90s", steps=[{"name": "once", "command": ["sh", "-c", script]}]
    )
    until(lambda: state(world, "long") == "Running", "the task runs", world.log)
    until(lambda: world.status("sandboxes", "survivor").get("session"), "its session is written down", world.log)
    world.ready(pool)
    with SandboxSession(pool_ref=pool, namespace=world.namespace, cluster=True) as session:
        time.sleep(1)  # the step has begun
        world.operator.kill()
        assert session.execute([{"name": "a", "command": ["echo", "alive"]}])["status"]["stdout"] == "alive\n"
        world.operator = clusters.start_operator(world.namespace, world.image, world.folder)
        until(lambda: state(world, "long") in ("Succeeded", "Failed"), "the next operator ends the task", world.log)
        assert world.status("tasks", "long")["stdout"] == "ran\n"
        assert session.execute([{"name": "b", "command": ["echo", "still"]}])["status"]["stdout"] == "still\n"
    world.ready(pool)
    assert len(world.pods(pool, state="idle")) == 1
    world.api.delete(path(world.namespace, "sandboxes", "survivor"))
    until(lambda: not world.pods(pool, state="allocated"), "nothing is left", world.log)


def test_of_two_operators_one_acts_and_the_other_takes_over(world: World, tmp_path: Path) -> None:
    other = clusters.start_operator(world.namespace, world.image, tmp_path)
    try:
        name = world.pool("shared", 2)
        assert len(world.pods(name)) == 2
        with ThreadPoolExecutor(4) as threads:
            sessions = [
                SandboxSession(pool_ref=name, namespace=world.namespace, cluster=True, timeout=90) for _ in range(4)
            ]
            list(threads.map(lambda session: session.create_sandbox(), sessions))
            pods = {session.sandbox["podName"] for session in sessions if session.sandbox}
            assert len(pods) == 4
            world.operator.kill()  # the leader, or the one that waits: nobody notices
            list(threads.map(lambda session: session.delete_sandbox(), sessions))
        until(lambda: not world.pods(name, state="allocated"), "released pods are gone", other.log.read_text)
        until(lambda: len(world.pods(name, state="idle")) == 2, "two are idle", other.log.read_text)
        world.api.delete(path(world.namespace, "warmpools", name))
        until(lambda: world.get("warmpools", name) is None, "the other one leads now", other.log.read_text)
        until(lambda: not world.pods(name), "no pods are left", other.log.read_text)
        until(lambda: not _secrets(world, name), "no Secrets are left", other.log.read_text)
    finally:
        other.stop()
        world.operator = clusters.start_operator(world.namespace, world.image, world.folder)


def _secrets(world: World, pool: str) -> list[object]:
    return world.api.list(path(world.namespace, "secrets"), labels=f"{names.POOL}={pool}")["items"]
