"""Backend with boxes on several nodes: `Sandbox("harena://n1,n2,n3")`, `"nodes:FILE"` or `"ray://auto"`.

`choice` decides which node gets a box and when a failed node is tried again; `cluster` holds the connections; `roster`
and `ray_roster` say which nodes there are and how to reach them.
"""

from __future__ import annotations

from harena.backends.cluster.cluster import ClusterBackend
from harena.backends.cluster.roster import roster_of

__all__ = ["ClusterBackend", "by_list", "by_ray"]


def by_list(url: str, token: str | None = None) -> ClusterBackend:
    """Nodes that are servers (`harena serve`), named in the URL or in a file."""
    return ClusterBackend(roster_of(url, token))


def by_ray(url: str, token: str | None = None) -> ClusterBackend:
    """The nodes of a Ray cluster."""
    from harena.backends.cluster.ray_roster import RayRoster

    return ClusterBackend(RayRoster(url, token))
