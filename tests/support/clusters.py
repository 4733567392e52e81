"""A Kubernetes cluster for tests: KUBECONFIG names it. Each run has namespaces and an operator of its own there."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harena.errors import BoxError
from harena.kube import config, names
from harena.kube.api import KubeApi, KubeError, path
from harena.operator import crds
from support import podimage

DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
WAIT_S = 90.0
PYTHON_IMAGE = os.environ.get("HARENA_TEST_PYTHON_IMAGE", "local/python:3")
"""An image with Python 3.11 that the cluster has or can pull, for executor containers."""


def api() -> KubeApi:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("host: no cluster; KUBECONFIG names one")
    found = KubeApi(config.load())
    try:
        found.get("/version")
    except BoxError as error:
        pytest.skip(f"host: the cluster of KUBECONFIG does not answer: {error}")
    return found


def image() -> str:
    """The image of pods: HARENA_TEST_POD_IMAGE, or one made by the program that HARENA_TEST_MKIMAGE names."""
    given, maker = os.environ.get("HARENA_TEST_POD_IMAGE"), os.environ.get("HARENA_TEST_MKIMAGE")
    if given:
        return given
    if not maker:
        pytest.skip("host: no image for pods; set HARENA_TEST_POD_IMAGE, or HARENA_TEST_MKIMAGE")
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer.tar"
        podimage.layer(layer)
        name = f"local/harena-test:{podimage.digest(layer)[:16]}"
        command = [maker, name, "--base", PYTHON_IMAGE, "--layer", str(layer), "--entrypoint", "/usr/local/bin/harena"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return name


def apply_definitions(found: KubeApi) -> None:
    for crd in crds.CRDS.values():
        name = crd["metadata"]["name"]
        try:
            found.create(path(None, DEFINITIONS), crd)
        except KubeError as error:
            if error.status != 409:
                raise
            known = found.get(path(None, DEFINITIONS, name))
            version = {"resourceVersion": known["metadata"]["resourceVersion"]}
            found.replace(path(None, DEFINITIONS, name), {**crd, "metadata": {**crd["metadata"], **version}})
        until(lambda name=name: established(found, name), f"the definition {name} is established")


def established(found: KubeApi, name: str) -> bool:
    status = found.get(path(None, DEFINITIONS, name)).get("status") or {}
    return any(one["type"] == "Established" and one["status"] == "True" for one in status.get("conditions") or ())


@contextlib.contextmanager
def namespace(found: KubeApi) -> Iterator[str]:
    name = f"harena-test-{secrets.token_hex(4)}"
    found.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        for kind in ("tasks", "sandboxes", "warmpools"):  # nobody is left who would take the finalizers away
            for one in found.list(path(name, kind))["items"]:
                with contextlib.suppress(KubeError):
                    found.patch(path(name, kind, one["metadata"]["name"]), {"metadata": {"finalizers": None}})
        found.delete(f"/api/v1/namespaces/{name}")


@dataclass
class Operator:
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def start_operator(namespace: str, image: str, folder: Path) -> Operator:
    log = folder / f"operator-{secrets.token_hex(3)}.log"
    command = [sys.executable, "-m", "harena", "operator", "run", "--server-image", image]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*command, "--namespace", namespace, "--lease-namespace", namespace],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    return Operator(process, log)


@dataclass
class World:
    """A namespace with an operator."""

    api: KubeApi
    namespace: str
    image: str
    folder: Path
    operator: Operator

    def make(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        kinds = {"warmpools": "WarmPool", "sandboxes": "Sandbox", "tasks": "Task"}
        meta = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": names.API_VERSION, "kind": kinds[kind], "metadata": meta, "spec": spec}
        return self.api.create(path(self.namespace, kind), body)

    def pool(self, name: str, replicas: int = 1, **spec: Any) -> str:
        """A pool that is ready."""
        self.make("warmpools", name, replicas=replicas, **spec)
        self.ready(name)
        return name

    def ready(self, name: str) -> None:
        until(lambda: self.status("warmpools", name).get("phase") == "Ready", f"pool {name} is ready", self.log)

    def log(self) -> str:
        return self.operator.log.read_text()[-3000:]

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            return self.api.get(path(self.namespace, kind, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def status(self, kind: str, name: str) -> dict[str, Any]:
        return (self.get(kind, name) or {}).get("status") or {}

    def pods(self, pool: str, **labels: str) -> list[dict[str, Any]]:
        selector = ",".join(
            [f"{names.POOL}={pool}", *(f"{names.GROUP}/{key}={value}" for key, value in labels.items())]
        )
        listed = self.api.list(path(self.namespace, "pods"), labels=selector)["items"]
        return [pod for pod in listed if not pod["metadata"].get("deletionTimestamp")]

    def of_pool(self, kind: str, pool: str) -> list[dict[str, Any]]:
        listed = self.api.list(path(self.namespace, kind))["items"]
        return [one for one in listed if one["spec"].get("poolRef") == pool]

    def evict(self, pod: str) -> bool:
        """Evict a pod as a drained node does. Returns False if a budget forbids it, or it is gone."""
        return evict(self.api, self.namespace, pod)

    def events(self, reason: str) -> list[str]:
        listed = self.api.list(path(self.namespace, "events"))["items"]
        return [event["message"] for event in listed if event["reason"] == reason]

    def url(self, pool: str) -> str:
        return f"kubernetes://{self.namespace}/{pool}"


def evict(api: KubeApi, namespace: str, pod: str) -> bool:
    meta = {"name": pod, "namespace": namespace}
    for version in ("policy/v1", "policy/v1beta1"):  # the older one before Kubernetes 1.22
        body = {"apiVersion": version, "kind": "Eviction", "metadata": meta}
        try:
            api.create(path(namespace, "pods", pod, "eviction"), body)
            return True
        except KubeError as error:
            if error.status in (404, 429):
                return False
            if error.status != 400:
                raise
    return False


def kill_processes(uid: str) -> bool:
    """Kill every process of a pod with SIGKILL, where its node is this machine. Returns whether there was one."""
    names_of_pod = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    killed = False
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if any(name in (entry / "cgroup").read_text() for name in names_of_pod):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed = True
    return killed


def process_of_api_server() -> int:
    """The API server of KUBECONFIG, where it is a process of this machine."""
    port = urlsplit(config.load().server).port
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"kube-apiserver") and f"--secure-port={port}".encode() in b"=".join(words):
                    return int(entry.name)
    pytest.skip("host: the API server is not a process of this machine")


def until(holds: Callable[[], object], what: str, why: Callable[[], str] = str, within_s: float = WAIT_S) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}\n{why()}"
        time.sleep(0.1)
