"""Which node gets the next box, and when a failed node is tried again. Pure functions: the time and the random numbers
are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
"""Time until a failed node is tried again: after its first failure, and at most."""
FULL_S = 1.0
"""How long a node that refused a box is asked only after the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """What is known of a node."""

    name: str
    cores: int = 1
    boxes: int = 0
    """Boxes of this process there, including those that are being created."""
    others: int = 0
    """Boxes of other clients there, when the node was last asked."""
    failures: int = 0
    """How often it has failed since it last answered."""
    retry_at: float = 0.0
    full_until: float = 0.0
    leaving: bool = False
    """True if it gets no new boxes: it was taken from the list, or is stopping."""

    @property
    def load(self) -> float:
        return (self.boxes + self.others) / max(1, self.cores)

    @property
    def healthy(self) -> bool:
        return self.failures == 0 and not self.leaving


def attempts(nodes: Sequence[NodeHealth], *, now: float, rng: Random) -> list[str]:
    """Return the nodes to ask for a box, in this order, until one creates it: the less loaded of two healthy nodes
    chosen at random, the other healthy ones, those that have just refused a box, and those that failed. Of the failed
    ones only those whose time has come, unless no node is healthy."""
    staying = [node for node in nodes if not node.leaving]
    healthy = [node for node in staying if node.healthy]
    free = [node for node in healthy if node.full_until <= now]
    first = min(rng.sample(free, min(2, len(free))), key=lambda node: node.load, default=None)
    rest = sorted((node for node in healthy if node is not first), key=lambda node: (node.full_until > now, node.load))
    failed = sorted((node for node in staying if not node.healthy), key=lambda node: node.retry_at)
    due = [node for node in failed if node.retry_at <= now] if healthy else failed
    return [node.name for node in ([first] if first else []) + rest + due]


def failed(node: NodeHealth, *, now: float, rng: Random) -> NodeHealth:
    """The node did not answer. The time until the next try doubles with each failure, and is spread so that many
    clients do not return at once."""
    wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(node.failures, 16))
    return replace(node, failures=node.failures + 1, retry_at=now + wait_s * rng.uniform(0.5, 1.0))


def answered(node: NodeHealth, *, cores: int, total: int, ours_before: int, leaving: bool) -> NodeHealth:
    """The node said how many boxes it has. `ours_before` of them were ours when it was asked: those that came or went
    since then are counted as ours too."""
    others = max(0, total - max(ours_before, node.boxes))
    return replace(node, failures=0, retry_at=0.0, cores=cores, others=others, leaving=leaving)


def refused(node: NodeHealth, *, now: float) -> NodeHealth:
    """The node is well, but creates no more boxes for now."""
    return replace(node, full_until=now + FULL_S)
