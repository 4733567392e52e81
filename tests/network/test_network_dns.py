"""The box's DNS: hostile queries, and what allowed and other names get."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.network import dns

FAKE = ipaddress.IPv4Address("198.18.1.1")


def query(name: bytes, kind: int = dns.A, *, flags: int = 0x0100, count: int = 1, family: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".") if label) + b"\0"
    return struct.pack(">HHHHHH", 7, flags, count, 0, 0, 0) + labels + struct.pack(">HH", kind, family)


def ask(data: bytes) -> dns.DnsAnswer | None:
    return dns.answer(data, lambda name: FAKE if name == "ok.example" else dns.NO_SUCH_NAME)


def code(answer: dns.DnsAnswer | None) -> int:
    assert answer is not None
    return answer.data[3] & 0xF


def test_an_allowed_name_has_one_address() -> None:
    answer = ask(query(b"OK.example"))
    assert answer is not None
    assert answer.data.endswith(FAKE.packed)
    assert struct.unpack(">HHHHHH", answer.data[:12]) == (7, 0x8180, 1, 1, 0, 0)
    assert b"\2OK\7example\0" in answer.data  # as it was asked: some clients compare
    assert answer.denied is None


@pytest.mark.parametrize("kind", [dns.AAAA, 65, 16, 15])
def test_other_records_of_an_allowed_name_are_empty(kind: int) -> None:
    answer = ask(query(b"ok.example", kind))
    assert code(answer) == dns.NO_ERROR
    assert answer is not None
    assert struct.unpack(">HHHHHH", answer.data[:12])[3] == 0


def test_another_name_does_not_exist_and_is_reported() -> None:
    answer = ask(query(b"secret-data.evil.example"))
    assert code(answer) == dns.NO_SUCH_NAME
    assert answer is not None
    assert answer.denied == "secret-data.evil.example"
    assert code(ask(query(b"\x1b[2J.example"))) == dns.NO_SUCH_NAME


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 11,
        query(b"ok.example") + b"\0" * 2000,
        query(b"ok.example", flags=0x8100),
    ],
)
def test_what_is_no_query_gets_no_answer(data: bytes) -> None:
    assert ask(data) is None


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\xc0\x0c" + b"\0\1\0\1",  # a pointer to itself
        struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\1a\xc0\x0c\0\1\0\1",
        struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x3fabc",
        struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\1a" * 130 + b"\0\0\1\0\1",  # longer than any name
        query(b"ok.example", count=2),
        query(b"ok.example", count=0),
        query(b"ok.example")[:-1],
    ],
)
def test_malformed_queries_are_told_so(data: bytes) -> None:
    assert code(ask(data)) == dns.FORMAT_ERROR


def test_other_operations_and_classes_are_refused() -> None:
    assert code(ask(query(b"ok.example", flags=0x2800))) == dns.NOT_IMPLEMENTED
    assert code(ask(query(b"ok.example", family=3))) == dns.REFUSED


@given(st.binary(max_size=1500))
def test_any_bytes_are_answered_briefly_or_not_at_all(data: bytes) -> None:
    answer = ask(data)
    if answer is not None:
        assert answer.data[:2] == data[:2]
        assert len(answer.data) <= len(data) + 16
        assert answer.data[2] & 0x80
