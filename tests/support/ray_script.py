"""Uses a Ray cluster of two nodes on this machine, one of which is killed, and writes what it saw to a file, as JSON. A process of
its own: Ray stays in the process that has used it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import ray
from ray.cluster_utils import Cluster

from harena import BoxError, BoxLost, Limits, Sandbox, SandboxPool
from harena.backends.cluster import ClusterBackend
from harena.backends.cluster import cluster as nodes
from harena.sandbox import backend
from harena.testing.contract.conftest import processes_with

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


def main() -> dict[str, Any]:
    nodes.ASK_S = 0.2
    seen: dict[str, Any] = {}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    url = f"ray://{cluster.address}"
    found = cast(
        "ClusterBackend", backend.load(url, None)
    )  # connects to the head: the node of a driver cannot be killed
    other = cluster.add_node(**NODE)
    try:
        found.capabilities()
        until(lambda: found.cores_now() == 2)  # a pool does not wait for slow nodes
        with SandboxPool(url) as pool:
            seen["nodes of the pool"] = len({box.node for box in pool.ready})
            seen["boxes of the pool"] = len(pool.ready)
            results = pool.map([f"print({number})" for number in range(300)])
            seen["outputs"] = [int(result.stdout) for result in results] == list(range(300))
            seen["verdicts"] = [
                one.verdict.value for one in pool.map(["1/0", "while True: pass"], limits=Limits(wall_s=1))
            ]
            seen |= use_one_box(url)
            boxes = a_box_on_each_of(2, url)
            lost, kept = boxes[other.node_id], boxes[cluster.head_node.node_id]
            seen |= kill_amid_a_batch(pool, lambda: cluster.remove_node(other, allow_graceful=False), lost, kept)
            cluster.add_node(**NODE)
            seen["joined"] = joins(url, boxes)
            kept.close()
    finally:
        found.close()  # before Ray ends
        ray.shutdown()
        cluster.shutdown()
    return seen


def use_one_box(url: str) -> dict[str, Any]:
    with Sandbox(url) as box:
        box.write("large", b"x" * (5 << 20))
        process = box.start(["cat"])
        process.write(b"echoed")
        process.close_stdin()
        (fork,) = box.fork()
        with fork:
            return {
                "file": len(box.read("large")),
                "stream": (process.stdout.read() if process.stdout else b"").decode(),
                "fork": fork.node == box.node and len(fork.read("large")),
            }


def a_box_on_each_of(count: int, url: str) -> dict[str, Sandbox]:
    """Create boxes until each of `count` nodes has one: which node is chosen depends on its load at that moment."""
    boxes: dict[str, Sandbox] = {}

    def create() -> bool:
        box = Sandbox(url)
        if boxes.setdefault(box.node, box) is not box:
            box.close()
        return len(boxes) == count

    until(create)
    return boxes


def kill_amid_a_batch(pool: SandboxPool, kill: Any, lost: Sandbox, kept: Sandbox) -> dict[str, Any]:
    errors: list[BoxError] = []

    def wait() -> None:
        try:
            lost.exec(["sleep", "41999.5"], limits=Limits(wall_s=300))
        except BoxError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: bool(processes_with("41999.5")))

    def progress(done: int, of: int) -> None:
        if done == 100:
            kill()

    results = pool.map([f"print({number})" for number in range(400)], progress=progress)
    thread.join(60)
    found: dict[str, Any] = {
        "after the death": [int(result.stdout) for result in results] == list(range(400)),
        "lost call": [(type(error) is BoxLost, error.retry.value) for error in errors],
        "kept box": kept.exec(["echo", "kept"]).stdout.decode(),
        "left behind": until(lambda: not processes_with("41999.5")),
    }
    try:
        lost.exec(["true"])
    except BoxLost as error:
        found["later call"] = error.retry.value
    return found


def joins(url: str, before: dict[str, Sandbox]) -> bool:
    """Whether a node that joined gets boxes."""

    def look() -> bool:
        with Sandbox(url) as one, Sandbox(url) as two:
            return bool({one.node, two.node} - set(before))

    return until(look)


def until(look: Any, within_s: float = 60) -> bool:
    end = time.monotonic() + within_s
    while not (seen := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return seen


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(main()))
