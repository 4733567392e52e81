"""DNS for a box: parses queries and writes answers. Nothing is resolved here, and nothing of a query leaves the host.

Allowed names have an address of `harena.sandbox.network.NAMES`; the real one is asked for when the box connects. Every
other name does not exist.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import NamedTuple

MAX_QUERY = 1232
"""Bytes of a query. One question needs at most 271, and EDNS adds a few."""
A, AAAA, ANY, IN = 1, 28, 255, 1
TTL_S = 60
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = range(6)

_HEAD = struct.Struct(">HHHHHH")


class Query(NamedTuple):
    id: int
    recurse: bool
    name: str | None
    """The name in lower case; None if it contains bytes that a host name cannot have."""
    kind: int
    question: bytes
    """The question as it was asked, to be repeated in the answer."""


class DnsAnswer(NamedTuple):
    data: bytes
    denied: str | None
    """The name that was refused."""


def parse(data: bytes) -> Query | int | None:
    """Return the query, the code of the error to answer, or None if it is not a query at all."""
    if not _HEAD.size <= len(data) <= MAX_QUERY:
        return None
    id, flags, questions, answers, authorities, _ = _HEAD.unpack_from(data)
    if flags & 0x8000:  # an answer
        return None
    if flags & 0x7800:
        return NOT_IMPLEMENTED
    if questions != 1 or answers or authorities:
        return FORMAT_ERROR
    labels: list[bytes] = []
    at, length = _HEAD.size, 0
    while True:
        if at >= len(data):
            return FORMAT_ERROR
        size = data[at]
        if size == 0:
            break
        length += size + 1
        if (
            size > 63 or length > 254 or at + 1 + size > len(data)
        ):  # above 63: a pointer, which one question never needs
            return FORMAT_ERROR
        labels.append(data[at + 1 : at + 1 + size])
        at += 1 + size
    end = at + 5
    if end > len(data):
        return FORMAT_ERROR
    kind, family = struct.unpack_from(">HH", data, at + 1)
    if family not in (IN, ANY):
        return REFUSED
    name = b".".join(labels).lower()
    plain = bool(labels) and all(byte in _NAME_BYTES for label in labels for byte in label.lower())
    return Query(id, bool(flags & 0x0100), name.decode("ascii") if plain else None, kind, data[_HEAD.size : end])


_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


def answer(data: bytes, address_of: Callable[[str], ipaddress.IPv4Address | int]) -> DnsAnswer | None:
    """Answer a query. `address_of` returns the address that stands for a name, or the code of an error."""
    query = parse(data)
    if query is None:
        return None
    if isinstance(query, int):
        id, flags = struct.unpack_from(">HH", data)
        return DnsAnswer(_HEAD.pack(id, 0x8080 | (flags & 0x7900) | query, 0, 0, 0, 0), None)
    address = NO_SUCH_NAME if query.name is None else address_of(query.name)
    code = address if isinstance(address, int) else NO_ERROR
    records = b""
    if not isinstance(address, int) and query.kind in (A, ANY):
        records = struct.pack(">HHHIH", 0xC000 | _HEAD.size, A, IN, TTL_S, 4) + address.packed
    flags = 0x8080 | (0x0100 if query.recurse else 0) | code
    head = _HEAD.pack(query.id, flags, 1, 1 if records else 0, 0, 0)
    denied = None
    if code != NO_ERROR:
        denied = query.name if query.name is not None else query.question[:-4].decode("ascii", "replace")
    return DnsAnswer(head + query.question + records, denied)
