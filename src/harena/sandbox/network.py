"""What a box may reach over the network, and what it tried. Plain frozen data; `harena.network` enforces it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from harena.errors import SpecError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Block: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

NAMES = ipaddress.IPv4Network("198.18.0.0/15")
"""Addresses that stand for allowed names inside a box."""
PROXY_PORT = 3128
"""Port of the HTTP proxy on the loopback interface of a box."""
DNS_PORT = 53
MAX_RULES = 256
MAX_PORTS = 64
"""Distinct ports of a network: each is a listening socket in the box."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `Network.allow`: a name or a block of addresses, and a port."""

    name: str | None
    """A name, "*.example.org" (every name below it, not itself) or "*" (every name)."""
    block: Block | None
    port: int | None
    """None: every port."""

    def matches_name(self, name: str) -> bool:
        if self.name is None:
            return False
        if self.name == "*":
            return True
        if self.name.startswith("*."):
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a box may reach: nothing but what `allow` names. Everything goes through a proxy on the host.

    Each entry is `host:port`. A host is a name ("example.org"), a wildcard ("*.example.org"; "*" is every name), an
    address ("10.1.2.3", "[2001:db8::1]") or a block of addresses ("10.0.0.0/8", "[2001:db8::/32]"). A port is a number
    or "*"; entries with "*" work only for programs that use the proxy of the environment (HTTPS_PROXY).

    Loopback, link-local, metadata, multicast and private addresses, and those of the host, are refused unless an entry
    names them: an address, or a block that lies inside the special block. "0.0.0.0/0" is the public internet.
    """

    allow: Sequence[str] = ()
    private_names: bool = False
    """Let allowed names resolve to private addresses (10.0.0.0/8 and the like), though no entry names the address."""
    max_open: int = 64
    """Connections at once. Further ones wait."""
    max_connections: int = 10_000
    """Connections in all, including refused ones. Then every further one is refused."""
    max_bytes: int = 1 << 30
    """Bytes in all, in both directions. Then every connection is cut."""
    connect_s: float = 10.0
    """Time to say where a connection goes (the first bytes of TLS or HTTP), to resolve the name and to connect."""
    idle_s: float = 300.0
    """A connection without a byte in either direction is cut after this time."""

    def __post_init__(self) -> None:
        if isinstance(self.allow, str) or not isinstance(self.allow, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError("Network.allow: give a list, also for a single entry")
        object.__setattr__(self, "allow", tuple(self.allow))
        if len(self.allow) > MAX_RULES:
            raise SpecError(f"Network.allow: at most {MAX_RULES} entries")
        ports = {parse_rule(entry).port for entry in self.allow}
        if len(ports) > MAX_PORTS:
            raise SpecError(f"Network.allow: at most {MAX_PORTS} different ports")
        for name, low, high in (
            ("max_open", 1, 1024),
            ("max_connections", 0, 1 << 40),
            ("max_bytes", 0, 1 << 60),
        ):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise SpecError(f"Network.{name}={value!r}: must be a whole number from {low} to {high}")
        for name in ("connect_s", "idle_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.05 <= value <= 86400:
                raise SpecError(f"Network.{name}={value!r}: must be a number of seconds from 0.05 to 86400")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(map(parse_rule, self.allow))


@dataclass(frozen=True, slots=True)
class Denied:
    """An attempt that was refused, with how often it was made."""

    target: str
    """What the guest tried to reach: "name:port", "address:port", or a name that it looked up. The guest's own text,
    cleaned and cut."""
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkReport:
    """What a box did with its network."""

    connections: int = 0
    """Connections that were allowed."""
    bytes_out: int = 0
    """Bytes that the box sent through them."""
    bytes_in: int = 0
    refused: int = 0
    """Attempts that were refused."""
    denied: tuple[Denied, ...] = ()
    """The first different ones of them, at most 100."""


@lru_cache(maxsize=4096)
def parse_rule(entry: str) -> Rule:
    """Parse an entry of `Network.allow`. Raises SpecError."""
    if not isinstance(entry, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"Network.allow {entry!r}: give text such as 'example.org:443'")
    host, colon, port_text = entry.rpartition(":")
    if not colon or not host or not (port_text == "*" or re.fullmatch(r"[0-9]{1,5}", port_text)):
        raise SpecError(
            f"Network.allow {entry[:80]!r}: give host:port, such as 'example.org:443' or '[2001:db8::1]:443'"
        )
    port = None if port_text == "*" else int(port_text)
    if port is not None and not 1 <= port <= 65535:
        raise SpecError(f"Network.allow {entry[:80]!r}: a port is from 1 to 65535")
    if (block := _block(host, entry)) is not None:
        _check_block(block, port, entry)
        return Rule(None, block, port)
    name = host[2:] if host.startswith("*.") else host
    if name != "*":
        name = clean_name(name, entry)
    return Rule(f"*.{name}" if host.startswith("*.") else name, None, port)


def _block(host: str, entry: str) -> Block | None:
    bracketed = host.startswith("[") and host.endswith("]")
    text = host[1:-1] if bracketed else host
    try:
        block = ipaddress.ip_network(text)
    except ValueError as error:
        if bracketed or "/" in host or ":" in host:
            raise SpecError(f"Network.allow {entry[:80]!r}: not a block of addresses ({error})") from None
        return None
    if (block.version == 6) != bracketed:
        raise SpecError(
            f"Network.allow {entry[:80]!r}: write IPv6 in brackets, as [2001:db8::/32]:443, and IPv4 without"
        )
    return block


def _check_block(block: Block, port: int | None, entry: str) -> None:
    if isinstance(block, ipaddress.IPv4Network) and block.subnet_of(NAMES):
        raise SpecError(f"Network.allow {entry[:80]!r}: {NAMES} stands for names inside a box")
    if isinstance(block, ipaddress.IPv6Network):
        if block.network_address.ipv4_mapped is not None and block.prefixlen >= 96:
            raise SpecError(f"Network.allow {entry[:80]!r}: write an IPv4 address as such")
        if block.network_address.scope_id is not None:
            raise SpecError(f"Network.allow {entry[:80]!r}: an address with a scope belongs to one machine")
    own = PROXY_PORT, DNS_PORT
    if port in own and block.prefixlen == block.max_prefixlen and block.network_address.is_loopback:
        raise SpecError(f"Network.allow {entry[:80]!r}: inside a box, port {port} of the loopback is the network's own")


def clean_name(name: str, entry: str | None = None) -> str:
    """Return a host name in lower case and ASCII. Raises SpecError for what is not a host name."""
    what = f"Network.allow {entry[:80]!r}" if entry else f"name {name[:80]!r}"
    try:
        text = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        raise SpecError(f"{what}: not a host name") from None
    text = text.lower().removesuffix(".")
    labels = text.split(".")
    if not text or len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise SpecError(f"{what}: not a host name; a wildcard stands alone in front, as in '*.example.org:443'")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        raise SpecError(f"{what}: neither a name nor an address in its usual form")
    if labels[-1] == "localhost":
        raise SpecError(f"{what}: name the host's loopback by address, as in '127.0.0.1:8000'")
    return text
