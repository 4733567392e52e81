"""What a peer offers to be measured by: single operations, and ways to run programs. Measures nothing itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Once = Callable[[], Callable[[], object] | None]
"""One measured operation; it raises where the sandbox did not do the work. What it returns is called off the clock."""
Run = Callable[[str], str]
"""A program's source to its stdout."""
Batch = Callable[[Sequence[str], float], list[str | None]]
"""Programs and a timeout in seconds for each, to their stdouts; None where it timed out."""


class Unavailable(Exception):
    """The peer cannot be measured on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    once: Mapping[str, Once] = field(default_factory=dict[str, Once])
    """Metric to the operation whose wall time it is."""
    run: Run | None = None
    """Called from two threads at once."""
    batch: Batch | None = None
    """In place of `run`, where the peer has two workers of its own."""


def command(*argv: str, prints: str = "") -> Once:
    def once() -> None:
        output(argv, prints)

    return once


def output(argv: Sequence[str], prints: str | None = None) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode or (prints is not None and done.stdout != prints):
        raise RuntimeError(f"{argv[0]} exited {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
