"""Warm pods of a cluster beside cold ones and beside `kubectl exec`, in the same run.

    KUBECONFIG=… python benchmarks/kubernetes.py --image IMAGE [--json FILE] [--rounds N]

IMAGE has `harena serve`, and the custom resources are in the cluster (kubectl apply -f deploy/k8s/crds). The benchmark
runs an operator of its own in a namespace of its own.

Must: claim to first result p50 at most 150 ms and a quarter of a cold pod; a box in a pod that is already claimed
15 ms; exec 6 ms and 15 times faster than `kubectl exec`; a pool of 20 is filled again within 15 s; the
operator takes at most 120 MB and makes at most 4 requests for a claim.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harena import Sandbox
from harena.kube import config, names
from harena.kube.api import KubeApi, path

BURST = 20
WAIT_S = 180.0
LIGHT = {"spec": {"containers": [{"name": "sidecar", "resources": {"requests": {"cpu": "10m"}}}]}}
"""Twice the burst fits on a node of two cores."""


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def median(times: list[float]) -> float:
    return round(statistics.median(times), 2)


class Cluster:
    def __init__(self, image: str) -> None:
        self.api = KubeApi(config.load())
        self.image = image
        self.namespace = f"harena-bench-{secrets.token_hex(3)}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    def __enter__(self) -> Cluster:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.api.create("/api/v1/namespaces", body)
        command = [sys.executable, "-m", "harena", "operator", "run", "--server-image", self.image]
        command += ["--namespace", self.namespace, "--lease-namespace", self.namespace, "--port", str(self.port)]
        self.operator = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *exc: object) -> None:
        for pool in self.api.list(path(self.namespace, "warmpools"))["items"]:
            self.api.delete(path(self.namespace, "warmpools", pool["metadata"]["name"]))
        end = time.monotonic() + 60
        while self.api.list(path(self.namespace, "warmpools"))["items"] and time.monotonic() < end:
            time.sleep(0.2)
        self.operator.terminate()
        self.operator.wait()
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    def pool(self, name: str, **spec: Any) -> str:
        meta = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": names.API_VERSION, "kind": "WarmPool", "metadata": meta, "spec": spec}
        self.api.create(path(self.namespace, "warmpools"), body)
        self.wait(name)
        return f"kubernetes://{self.namespace}/{name}"

    def ready(self, name: str) -> int:
        listed = self.api.list(path(self.namespace, "pods"), labels=f"{names.POOL}={name},{names.STATE}={names.IDLE}")
        conditions = [pod["status"].get("conditions") or () for pod in listed["items"]]
        return sum(any(one["type"] == "Ready" and one["status"] == "True" for one in part) for part in conditions)

    def wait(self, name: str) -> None:
        wanted = self.api.get(path(self.namespace, "warmpools", name))["spec"]["replicas"]
        end = time.monotonic() + WAIT_S
        while self.ready(name) < wanted:
            if time.monotonic() > end:
                raise SystemExit(f"pool {name} was not ready within {WAIT_S:g} s")
            time.sleep(0.05)

    def requests(self) -> int:
        """Requests of the operator about objects; those about its Lease come with time, not with claims."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        counted = re.findall(r'method="(\w+)",what="objects"} (\d+)', text)
        return sum(int(number) for method, number in counted if method != "WATCH")

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.operator.pid}/status").read_text()
        return round(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024, 1)


def first_result(url: str) -> None:
    with Sandbox(url) as box:
        assert box.exec(["echo", "hi"]).ok


def measure(image: str, rounds: int, burst: int) -> dict[str, float]:
    found: dict[str, float] = {}
    with Cluster(image) as cluster:
        warm, cold = (
            cluster.pool(name, replicas=count, template=LIGHT) for name, count in (("warm", burst), ("cold", 0))
        )
        many = cluster.pool("many", replicas=1, boxesPerPod=64, template=LIGHT)
        first_result(warm)
        cold_times, warm_times = [], []
        for _ in range(rounds):
            cluster.wait("warm")
            warm_times.append(timed(lambda: first_result(warm)))
            cold_times.append(timed(lambda: first_result(cold)))
        found["claim_to_result_p50_ms"], found["cold_pod_p50_ms"] = median(warm_times), median(cold_times)
        with Sandbox(many) as box:
            box.exec(["true"])
            found["box_in_claimed_pod_p50_ms"] = median([timed(lambda: first_result(many)) for _ in range(5 * rounds)])
        with Sandbox(warm) as box:
            box.exec(["echo", "hi"])
            labels = f"{names.POOL}=warm,{names.STATE}={names.ALLOCATED}"
            pods = cluster.api.list(path(cluster.namespace, "pods"), labels=labels)["items"]
            live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
            command = ["kubectl", "-n", cluster.namespace, "exec", live[0]["metadata"]["name"], "--", "echo", "hi"]
            ours, theirs = [], []
            for _ in range(5 * rounds):
                ours.append(timed(lambda: box.exec(["echo", "hi"])))
                theirs.append(timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)))
        found["exec_p50_ms"], found["kubectl_exec_p50_ms"] = median(ours), median(theirs)
        cluster.wait("warm")
        time.sleep(5)  # what follows the last claim is written
        before = cluster.requests()
        boxes = [Sandbox(warm) for _ in range(burst)]
        start = time.monotonic()
        time.sleep(0.5)
        cluster.wait("warm")
        found[f"refill_of_{burst}_s"] = round(time.monotonic() - start, 2)
        for box in boxes:
            box.close()
        time.sleep(5)
        found["requests_per_claim"] = round((cluster.requests() - before) / burst, 2)
        found["operator_mb"] = cluster.memory_mb()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default=os.environ.get("HARENA_SERVER_IMAGE"), required=False)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--burst", type=int, default=BURST, help="claims at once, and idle pods of the pool (20)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.image:
        parser.error("--image: give an image that has `harena serve`")
    found = measure(args.image, args.rounds, args.burst)
    for name, value in found.items():
        print(f"{name:28} {value}")
    if args.json:
        args.json.write_text(json.dumps({"load": os.getloadavg()[0], **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
