"""Claims of agent-sandbox (kubernetes-sigs), the upstream standard, as a client: SandboxTemplate, SandboxWarmPool and
SandboxClaim of extensions.agents.x-k8s.io/v1beta1, with pods that run our server.

Its controller makes the pods, all from one template. So they share one certificate and one token, from a Secret that
the caller creates: a guest that leaves its box could use the other pods of that pool. Our own operator gives each pod
its own.
"""

from __future__ import annotations

import contextlib
import time

from harena.errors import BoxError, QueueTimeout
from harena.kube import names
from harena.kube.api import KubeApi, KubeError, path
from harena.kube.claims import Claim, message_of, url_of
from harena.kube.objects import Object, items, part
from harena.node.place import Trust

API_VERSION = "extensions.agents.x-k8s.io/v1beta1"
POLL_S = 0.1


def template(name: str, pod_spec: Object) -> Object:
    """A SandboxTemplate. `pod_spec`: that of a pod of ours (`harena.operator.pods.make_pod`). Default deny is left to
    the controller, which manages a NetworkPolicy for each template."""
    spec = {"podTemplate": {"spec": pod_spec}, "networkPolicyManagement": "Managed"}
    return _object("SandboxTemplate", name, spec)


def warm_pool(name: str, template_name: str, replicas: int) -> Object:
    return _object("SandboxWarmPool", name, {"replicas": replicas, "sandboxTemplateRef": {"name": template_name}})


def claim_of(pool: str) -> Object:
    made = _object("SandboxClaim", "", {"warmPoolRef": {"name": pool}})
    made["metadata"] = {"generateName": f"{pool[:40]}-"}
    return made


class AgentSandboxClient:
    """Claims sandboxes of one warm pool."""

    def __init__(self, api: KubeApi, namespace: str, pool: str, *, token: str, trust: Trust) -> None:
        self._api = api
        self._namespace = namespace
        self._pool = pool
        self._token = token
        self._trust = trust

    def claim(self, wait_s: float) -> Claim:
        """Create a claim and wait until its sandbox has an address. Raises QueueTimeout."""
        deadline = time.monotonic() + wait_s
        made = self._api.create(path(self._namespace, f"{API_VERSION}/sandboxclaims"), claim_of(self._pool))
        name = str(made["metadata"]["name"])
        try:
            return self._ready(name, deadline)
        except BaseException:
            with contextlib.suppress(BoxError):
                self._delete(name)
            raise

    def _ready(self, name: str, deadline: float) -> Claim:
        why = "its controller has not answered"
        while time.monotonic() < deadline:
            with contextlib.suppress(KubeError):
                found = self._api.get(path(self._namespace, f"{API_VERSION}/sandboxclaims", name))
                ready = address_of(found)
                if ready is not None:
                    return self._claim(found, *ready)
                why = message_of(part(found, "status")) or why
            time.sleep(POLL_S)
        raise QueueTimeout(f"claim {self._namespace}/{name} was not ready in time: {why}")

    def _claim(self, found: Object, sandbox: str, address: str) -> Claim:
        return Claim(
            namespace=self._namespace,
            pool=self._pool,
            pod=sandbox,
            uid=str(found["metadata"]["uid"]),
            url=url_of(address),
            token=self._token,
            trust=self._trust,
            sandbox=str(found["metadata"]["name"]),
        )

    def release(self, claim: Claim) -> None:
        """Delete the claim; its controller deletes the sandbox. Idempotent."""
        self._delete(claim.sandbox)

    def _delete(self, name: str) -> None:
        self._api.delete(path(self._namespace, f"{API_VERSION}/sandboxclaims", name))


def address_of(found: Object) -> tuple[str, str] | None:
    """Name and address of the sandbox that a claim has; None before it is ready."""
    status = part(found, "status")
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in items(status, "conditions"))
    sandbox = part(status, "sandbox")
    addresses = items(sandbox, "podIPs")
    return (str(sandbox.get("name")), str(addresses[0])) if ready and addresses and sandbox.get("name") else None


def _object(kind: str, name: str, spec: Object) -> Object:
    labels = {"app.kubernetes.io/part-of": "harena", f"{names.GROUP}/by": "agent-sandbox"}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}
