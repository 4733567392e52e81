"""The relay backend: what its node keeps, and for how long."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from harena import SandboxPool
from harena.sandbox import backend
from support.leaks import settle


def nodes() -> list[int]:
    """The nodes that this process has started."""
    found: list[int] = []
    for pid in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in map(int, pid.read_text().split()):
            if b"harena.backends.relay.node" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def test_closed_boxes_leave_no_descriptor_in_the_node() -> None:
    def batch() -> int:
        with SandboxPool(warm=1, max_live=1, backend="relay") as pool:
            assert pool.map(["print(1)"])[0].stdout == b"1\n"
        return sum(len(os.listdir(f"/proc/{node}/fd")) for node in nodes())

    batch()
    before = batch()
    counts = [batch() for _ in range(6)]
    assert settle(lambda: sum(len(os.listdir(f"/proc/{node}/fd")) for node in nodes()) <= before, True), counts


def test_a_node_that_nobody_uses_any_more_ends() -> None:
    with SandboxPool(warm=1, backend="relay") as pool:
        assert pool.map(["print(1)"])[0].ok
        assert nodes()
    del pool
    backend.load.cache_clear()
    gc.collect()
    assert settle(nodes, []) == []
