"""Warm pools, claims and sessions on a real cluster."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import ssl
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from harena import Sandbox, SandboxPool, SandboxSession, Spec, Verdict, WarmPoolManager
from harena.errors import BackendUnavailable, BoxError, BoxLost, IsolationUnavailable, SpecError
from harena.kube import names
from harena.kube.api import path
from harena.kube.claims import PoolClient
from harena.node.place import Trust
from harena.sessions.engines.remote import RemoteEngine
from harena.sessions.errors import NotFound
from support.clusters import PYTHON_IMAGE, World, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.services, pytest.mark.serial]

HELLO = [{"name": "hello", "type": "Command", "command": ["echo", "Hello, World!"]}]


@pytest.fixture(scope="module")
def pool(world: World) -> str:
    return world.pool("plain", 2, idleSeconds=2)


def test_the_sessions_of_the_contract_run_on_a_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_KUBERNETES", "1")
    manager = WarmPoolManager(namespace=world.namespace)
    manager.create_warmpool(name="my-python-pool", image=PYTHON_IMAGE, replicas=1)
    manager.wait_for_warmpool_ready("my-python-pool", timeout=90)
    with SandboxSession(pool_ref="my-python-pool", namespace=world.namespace) as session:
        result = session.execute(
            [
                *HELLO,
                {"name": "patch", "type": "FilePatch", "path": "a.py", "content": "print(6 * 7)"},
                {"name": "run", "type": "Command", "command": ["python3", "a.py"], "container": "executor"},
                {"name": "where", "type": "Command", "command": ["sh", "-c", "ls -d /opt/harena"]},
            ]
        )
        assert result["status"]["stdout"] == "Hello, World!\n42\n"
        assert result["status"]["steps"][-1]["exitCode"] != 0  # it is the image asked for, and not the server's
        assert session.sandbox is not None
        assert session.sandbox["isolation"] in ("full", "restricted")
        pods = world.pods("my-python-pool", state="allocated")
        assert [pod["metadata"]["name"] for pod in pods] == [session.sandbox["podName"]]
        assert pods[0]["metadata"]["labels"][names.SANDBOX]
    assert manager.get_pool_status("my-python-pool").keys() == {"total", "ready_idle", "allocated", "available"}
    manager.delete_warmpool("my-python-pool")
    with pytest.raises(NotFound, match="my-python-pool"):
        until(lambda: manager.get_warmpool("my-python-pool") is None, "the pool is gone")
    until(lambda: not world.pods("my-python-pool"), "its pods are gone")


def test_a_claimed_pod_is_replaced_and_leaves_nothing_behind(world: World, pool: str) -> None:
    world.ready(pool)
    with Sandbox(world.url(pool)) as box:
        result = box.exec(["echo", "hi"])
        assert (result.stdout, result.verdict) == (b"hi\n", Verdict.OK)
        assert result.isolation == box.isolation
        (claimed,) = world.pods(pool, state="allocated")
        name = claimed["metadata"]["name"]
        until(lambda: len(world.pods(pool, state="idle")) == 2, "the pool is filled again", world.log)
    until(lambda: world.get("pods", name) is None, "the pod is deleted", world.log)
    until(lambda: world.get("secrets", name) is None, "so is its Secret", world.log)


def test_a_spec_that_asks_for_the_full_tier_is_never_given_less(world: World, pool: str) -> None:
    with Sandbox(world.url(pool)) as box:
        if box.isolation == "full":
            pytest.skip("host: pods of this cluster make full boxes")
    with pytest.raises(IsolationUnavailable):
        Sandbox(Spec(isolation="full"), backend=world.url(pool))


def test_clients_at_once_never_get_the_same_pod(world: World) -> None:
    pool = world.pool("race", 4)

    def claim(_: int) -> str:
        client = PoolClient(world.api, world.namespace, pool)
        return client.claim(90).pod

    with ThreadPoolExecutor(8) as threads:
        claimed = list(threads.map(claim, range(8)))  # four warm ones, and cold ones for the others
    assert len(set(claimed)) == 8
    assert world.events("ColdStart")
    world.api.delete(path(world.namespace, "warmpools", pool))
    for name in claimed:
        world.api.delete(path(world.namespace, "pods", name), grace_s=0)


def test_many_boxes_of_one_client_share_a_pod(world: World) -> None:
    name = world.pool("many", 1, boxesPerPod=8)
    with SandboxPool(world.url(name), warm=2, max_live=4) as boxes:
        assert [result.stdout for result in boxes.map(["print(1)", "print(2)", "1/0"])][:2] == [b"1\n", b"2\n"]
        with boxes.lease() as one, boxes.lease() as other:
            one.write("secret", b"mine")
            assert other.exec(["cat", "secret"]).verdict is Verdict.EXIT
        assert len(world.pods(name, state="allocated")) == 1
    world.api.delete(path(world.namespace, "warmpools", name))


def test_nobody_reaches_a_pod_without_its_token_and_every_pod_proves_who_it_is(world: World, pool: str) -> None:
    world.ready(pool)
    client = PoolClient(world.api, world.namespace, pool)
    first, second = client.claim(90), client.claim(90)
    try:
        with pytest.raises(BackendUnavailable, match="token"):
            RemoteEngine(first.url, second.token, first.trust).history("x")  # pods do not share tokens
        with pytest.raises(BoxError, match="CERTIFICATE"):
            RemoteEngine(second.url, second.token, first.trust).history("x")  # nor names
        with pytest.raises(BoxError, match="CERTIFICATE"):
            RemoteEngine(first.url, first.token).history("x")  # the system knows no such authority
        with pytest.raises(SpecError, match="clear"):
            RemoteEngine(first.url.replace("https", "http"), first.token)
        address = first.url.removeprefix("https://")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain = http.client.HTTPConnection(address, timeout=10)
            plain.request("GET", "/healthz")
            plain.getresponse()
        with pytest.raises(ssl.SSLError):
            Trust("no certificate", "x").context()
        assert RemoteEngine(first.url, first.token, first.trust).metrics()
    finally:
        client.release(first)
        client.release(second)


def test_a_pod_may_do_nothing_that_it_does_not_need(world: World, pool: str) -> None:
    pod = world.pods(pool)[0]
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    assert not any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
    policy = world.get("networkpolicies", f"harena-{pool}")
    assert policy is not None
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert not policy["spec"].get("egress")
    probe = "import os; print(os.getuid()); print(os.path.exists('/var/run/secrets/kubernetes.io'))"
    with Sandbox(world.url(pool)) as box:
        assert box.run(probe).stdout.split()[1:] == [b"False"]
        for secret in ("/run/harena/tls.key", "/run/harena/tokens", "/proc/1/environ"):
            assert box.exec(["cat", secret]).verdict is Verdict.EXIT


def test_a_template_cannot_give_a_pod_more_rights(world: World) -> None:
    world.make("warmpools", "greedy", template={"spec": {"hostNetwork": True}})
    until(lambda: world.status("warmpools", "greedy").get("conditions"), "the operator has answered", world.log)
    (condition,) = world.status("warmpools", "greedy")["conditions"]
    assert condition["reason"] == "InvalidTemplate"
    assert "hostNetwork" in condition["message"]
    assert not world.pods("greedy")
    with pytest.raises(BoxError, match="hostNetwork"):
        WarmPoolManager(world.namespace, cluster=True).wait_for_warmpool_ready("greedy", 60)


def test_an_image_that_is_missing_is_said_in_words(world: World) -> None:
    manager = WarmPoolManager(world.namespace, cluster=True)
    template = {"spec": {"containers": [{"name": "executor", "image": "localhost/none:1", "imagePullPolicy": "Never"}]}}
    world.make("warmpools", "missing", template=template)
    with pytest.raises(BoxError, match=r"ErrImageNeverPull.*localhost/none:1"):
        manager.wait_for_warmpool_ready("missing", 90)
    assert world.events("ErrImageNeverPull")
    world.api.delete(path(world.namespace, "warmpools", "missing"))


def test_a_new_template_reaches_pods_by_the_update_strategy(world: World) -> None:
    for name, strategy in (("later", "OnReplenish"), ("now", "Recreate")):
        world.pool(name, 1, updateStrategy={"type": strategy})
    before = {name: world.pods(name)[0]["metadata"]["name"] for name in ("later", "now")}
    for name in before:
        change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
        world.api.patch(path(world.namespace, "warmpools", name), change)
    until(
        lambda: [pod["metadata"]["labels"].get("version") for pod in world.pods("now")] == ["2"],
        "the idle pod was replaced",
        world.log,
    )
    assert [pod["metadata"]["name"] for pod in world.pods("later")] == [before["later"]]
    client = PoolClient(world.api, world.namespace, "later")
    client.release(client.claim(60))
    until(
        lambda: [pod["metadata"]["labels"].get("version") for pod in world.pods("later")] == ["2"],
        "the next one is new",
        world.log,
    )
    for name in before:
        world.api.delete(path(world.namespace, "warmpools", name))


def test_a_pool_is_scaled_by_the_scale_subresource(world: World) -> None:
    name = world.pool("scaled", 0)
    where = path(world.namespace, "warmpools", name, "scale")
    scale = world.api.get(where)
    assert names.POOL in scale["status"]["selector"]
    world.api.patch(where, {"spec": {"replicas": 2}})
    until(lambda: world.status("warmpools", name).get("ready") == 2, "two pods are ready", world.log)
    world.api.patch(where, {"spec": {"replicas": 0}})
    until(lambda: not world.pods(name), "no pods are left", world.log)
    world.api.delete(path(world.namespace, "warmpools", name))


def test_claimed_pods_outlive_their_pool_and_are_removed_later(world: World) -> None:
    name = world.pool("shortlived", 1)
    with SandboxSession(pool_ref=name, namespace=world.namespace, cluster=True) as session:
        world.api.delete(path(world.namespace, "warmpools", name))
        until(lambda: world.get("warmpools", name) is None, "the pool is gone", world.log)
        assert session.execute(HELLO)["status"]["state"] == "Succeeded"
        assert len(world.pods(name)) == 1
    until(lambda: not world.pods(name), "its last pod is gone", world.log)


CLIENT = """
    import sys, time
    from harena import Sandbox
    box = Sandbox(sys.argv[1])
    print(box.exec(["echo", "up"]).stdout.decode(), flush=True)
    time.sleep(600)
"""


def test_the_pod_of_a_client_that_was_killed_is_removed(world: World, pool: str) -> None:
    world.ready(pool)
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), world.url(pool)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        (claimed,) = world.pods(pool, state="allocated")
        os.kill(client.pid, signal.SIGKILL)
    until(lambda: world.get("pods", claimed["metadata"]["name"]) is None, "its pod is gone", world.log)
    world.ready(pool)


def test_a_pod_that_is_killed_is_a_lost_box_and_is_replaced(world: World, pool: str) -> None:
    world.ready(pool)
    with contextlib.ExitStack() as stack:
        box = stack.enter_context(Sandbox(world.url(pool)))
        box.exec(["true"])
        (claimed,) = world.pods(pool, state="allocated")
        world.api.delete(path(world.namespace, "pods", claimed["metadata"]["name"]), grace_s=0)
        with pytest.raises(BoxLost):
            while True:
                box.exec(["sleep", "0.1"])
    with Sandbox(world.url(pool)) as again:
        assert again.exec(["true"]).ok
