"""Decides what a box may reach. Pure: an answer depends only on the rules and on the arguments."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable

from harena.errors import SpecError
from harena.sandbox.network import NAMES, Address, Block, Network, Rule, clean_name


def _blocks(text: str) -> tuple[Block, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


PRIVATE = _blocks("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7")
"""Addresses of networks that are not the internet. A rule must lie inside one of these, or names need the switch."""
METADATA = _blocks(
    "169.254.0.0/16 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32 "
    "fd00:ec2::/96 fd20:ce::254/128 fd00:c1::a9fe:a9fe/128"
)
"""Where clouds give credentials to whoever asks."""
SPECIAL = (
    *METADATA,
    *_blocks(
        "0.0.0.0/8 127.0.0.0/8 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
        "224.0.0.0/4 240.0.0.0/4 "
        "::/96 ::1/128 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/32 2002::/16 5f00::/16 fe80::/10 "
        "fec0::/10 ff00::/8"
    ),
)
"""Addresses that are not somebody's server on the internet, and those that contain an IPv4 address."""


@functools.lru_cache(maxsize=4096)
def special_block(address: Address) -> Block | None:
    """Return the first block of SPECIAL and PRIVATE that an address is in: the most special one."""
    return next((block for block in (*SPECIAL, *PRIVATE) if _inside(address, block)), None)


def normal(address: Address) -> Address:
    """Return the IPv4 address in a mapped IPv6 address, and every other address without its scope."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.scope_id is not None:
            return ipaddress.IPv6Address(int(address))
    return address


def _inside(address: Address, block: Block) -> bool:
    return address.version == block.version and address in block


def _subnet(inner: Block, outer: Block) -> bool:
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)


class Refused(Exception):
    """What the guest wants is not allowed. The text is the reason, for the report."""

    def __init__(self, reason: str, *, shown: str | None = None) -> None:
        """`shown`: what the guest may know, where the reason tells more than that."""
        super().__init__(reason)
        self.shown = shown


class Policy:
    def __init__(self, network: Network, is_own: Callable[[Address], bool]) -> None:
        """`is_own` says whether an address belongs to this host."""
        self.network = network
        self._is_own = is_own
        self._rules = network.rules

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(rule.port for rule in self._rules if rule.port is not None)

    def knows_name(self, name: str) -> bool:
        """Whether a name is allowed on some port, so that a box may have an address for it."""
        return any(rule.matches_name(name) for rule in self._rules)

    def refuses_name(self, name: str, port: int) -> str | None:
        """Return why a name is refused, or None. What it resolves to is checked by `refuses_resolved`."""
        rules = [rule for rule in self._rules if rule.matches_name(name)]
        if not rules:
            return "no rule allows this name"
        if not any(rule.port in (port, None) for rule in rules):
            return "no rule allows this port of the name"
        return None

    def refuses_address(self, address: Address, port: int) -> str | None:
        """Return why an address that the guest itself named is refused, or None."""
        address = normal(address)
        rules = self._covering(address, port)
        if not rules:
            return "no rule allows this address and port"
        return self._refuses_kind(address, rules)

    def refuses_resolved(self, address: Address, port: int) -> str | None:
        """Return why an allowed name may not lead to this address, or None."""
        address = normal(address)
        if not self._refuses_kind(address, self._covering(address, port)):
            return None
        if self.network.private_names and not self._special(address) and not self._is_own(address):
            return None
        return f"the name resolves to {address}, which is {self._kind(address)}, and no rule names that address"

    def _covering(self, address: Address, port: int) -> list[Rule]:
        return [
            rule
            for rule in self._rules
            if rule.block is not None and rule.port in (port, None) and _inside(address, rule.block)
        ]

    def _refuses_kind(self, address: Address, rules: list[Rule]) -> str | None:
        """Rules that cover a special address count only where they are about special addresses."""
        blocks = [rule.block for rule in rules if rule.block is not None]
        special = special_block(address)  # so that 100.64.0.0/10 does not name the metadata address inside it
        named = any(block.prefixlen == block.max_prefixlen for block in blocks)
        if special is not None and not named and not any(_subnet(block, special) for block in blocks):
            return f"the address is {self._kind(address)}, and no rule is about such addresses alone"
        if not named and self._is_own(address):
            return "the address is the host's own, and no rule names it"
        return None

    @staticmethod
    def _special(address: Address) -> bool:
        return any(_inside(address, block) for block in SPECIAL)

    def _kind(self, address: Address) -> str:
        if address.is_loopback:
            return "a loopback address"
        if any(_inside(address, block) for block in METADATA) or address.is_link_local:
            return "a link-local or metadata address"
        if any(_inside(address, block) for block in PRIVATE):
            return "a private address"
        return "a special address" if self._special(address) else "the host's own"


def parse_host(text: str) -> Address | str | None:
    """Parse a host that a guest wrote: an address, a name in its normal form, or None."""
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        return normal(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not text.isascii():
        return None
    try:
        return clean_name(text)
    except SpecError:
        return None


class Names:
    """Addresses that stand for names inside a box. None is used twice, so an old one never leads elsewhere."""

    MOST = 4096

    def __init__(self) -> None:
        self._addresses: dict[str, ipaddress.IPv4Address] = {}
        self._names: dict[Address, str] = {}

    def address(self, name: str) -> ipaddress.IPv4Address | None:
        """Return the address of an allowed name, or None if there are too many names."""
        found = self._addresses.get(name)
        if found is None and len(self._addresses) < self.MOST:
            found = NAMES.network_address + (257 + len(self._addresses))
            self._addresses[name] = found
            self._names[found] = name
        return found

    def name(self, address: Address) -> str | None:
        return self._names.get(address)
