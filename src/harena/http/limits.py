"""How much one address may ask for. A network of IPv6 (/64) counts as one address. With Redis, replicas also count
together: what one of them allowed, the others know of.

A peer on this machine's loopback is bounded by quotas and the queue only, but for logins: whoever runs programs here
has better ways to keep the machine busy, and a page and its tests ask much at once.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Protocol

from harena.access import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    read: Rate = Rate(per_s=50, burst=300)
    write: Rate = Rate(per_s=10, burst=60)
    upload: Rate = Rate(per_s=1, burst=20)
    worker: Rate = Rate(per_s=200, burst=1000)
    """Requests of a worker on another machine, which makes several for each short job."""
    login: Rate = Rate(per_s=0.2, burst=10)
    spare_loopback: bool = True
    body_bytes: int = 512 * 1024
    """Maximum body of a request that is not an upload. An environment's rules and sample agent fit."""
    upload_slack_bytes: int = 1 << 20
    """Bytes that an upload may have beyond the code, for fields and boundaries."""
    answer_bytes: int = 64 << 20
    """Maximum body of a worker's answer: replays of all episodes."""
    body_grace_s: float = 15.0
    """A body has this long, and then must have come at `body_rate` on average."""
    body_rate: float = 16 * 1024
    body_max_s: float = 900.0
    streams: int = 1000
    streams_per_address: int = 20
    uploads_at_once: int = 8
    """Held in memory at the same moment; more wait."""
    head_bytes: int = 64 << 10
    """Size of a request's first line and headers together."""
    head_lines: int = 100
    head_s: float = 10.0
    """Seconds from the connection, or the first byte, to the end of the head."""
    trailer_bytes: int = 8 << 10
    pipelined: int = 16
    """Requests of one connection that wait for the answer before them."""
    write_s: float = 30.0
    """A client that reads nothing for so long is gone."""
    connections: int = 2000
    connections_of_address: int = 100
    connections_of_loopback: int = 500
    """Programs on this machine share one address."""


class SharedLimits(Protocol):
    """Limits that hold for all replicas together, where there is a place to count."""

    async def take(self, kind: str, address: str, *, per_s: float, burst: float) -> float:
        """As `Buckets.take`."""
        ...


def address_of(client: tuple[str, int] | None) -> tuple[str, bool]:
    """What counts as one address, and whether it is this machine's loopback."""
    if client is None:  # a Unix socket
        return "local", True
    try:
        found = ipaddress.ip_address(client[0])
    except ValueError:
        return client[0], False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False)), False
    return str(found), found.is_loopback
