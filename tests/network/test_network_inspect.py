"""The first bytes of connections: TLS server names, HTTP hosts, requests to the proxy, and tricks with each."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.network.inspect import (
    Inspector,
    Named,
    OneRequest,
    ProxyRequest,
    Refused,
    proxy_request,
)
from harena.network.tls import TlsNames, parse_hello, split_hello


def hello(name: str | None) -> bytes:
    """A real one, of OpenSSL."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ours, theirs, server_hostname=name).do_handshake()
    return theirs.read()


def in_records(data: bytes, size: int) -> bytes:
    """The same handshake message, in records of another size."""
    message = data[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def with_extension(data: bytes, kind: int, body: bytes) -> bytes:
    message = bytearray(data[9:])
    at = 34
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    extensions = bytes(message[at + 2 :]) + kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body
    message = message[:at] + len(extensions).to_bytes(2, "big") + extensions
    whole = b"\1" + len(message).to_bytes(3, "big") + bytes(message)
    return b"\x16\x03\x01" + len(whole).to_bytes(2, "big") + whole


def name_in(data: bytes) -> str | None:
    found = split_hello(data)
    assert found is not None
    return parse_hello(found[0]).name


def test_the_server_name_is_found_in_any_split_of_records() -> None:
    data = hello("Pypi.Example")
    assert name_in(data) == "pypi.example"
    for size in (64, 100, 500):
        assert name_in(in_records(data, size)) == "pypi.example"
    assert name_in(hello(None)) is None


def test_a_part_of_a_hello_is_not_decided() -> None:
    data = hello("pypi.example")
    for end in range(len(data)):
        assert split_hello(data[:end]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x17\x03\x03\0\1a",
        b"\x16\x02\x00\0\1a",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\0\1\2",  # not a ClientHello
        b"\x16\x03\x01\0\4\1\xff\xff\xff",
        b"\x16\x03\x01\0\1\1" * 20,
        b"\x16\x03\x01\x3f\xff\1\0\x3f\xfb" + b"\0" * 20000,
    ],
)
def test_what_is_not_a_hello_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        split_hello(data)


def test_hidden_and_doubled_server_names_are_refused() -> None:
    data = hello("pypi.example")
    other = b"\0\x0f\0\0\x0cevil.example"
    for kind, body in ((0xFE0D, b"\0" * 40), (0xFFCE, b"\0" * 40), (0, other)):
        found = split_hello(with_extension(data, kind, body))
        assert found is not None
        with pytest.raises(Refused):
            parse_hello(found[0])
    for body in (b"\0\2\0\0", b"\0\x0a\0\0\1a\0\0\1b", b"\0\4\1\0\1a", b"\0\6\0\0\3\x1b[2", b"\0\x0c\0\0\x09127.0.0.1"):
        found = split_hello(with_extension(hello(None), 0, body))
        assert found is not None
        with pytest.raises(Refused):
            parse_hello(found[0])


@given(st.binary(max_size=600))
def test_any_bytes_after_a_hellos_head_are_parsed_or_refused(data: bytes) -> None:
    with contextlib.suppress(Refused):
        parse_hello(data)


def feed(inspector: Inspector, data: bytes, step: int) -> bytes:
    return b"".join(inspector.feed(data[at : at + step]) for at in range(0, len(data), step))


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("port", [443, 8443])
def test_tls_to_a_name_must_be_for_it(port: int, step: int) -> None:
    data = hello("pypi.example") + b"later"
    assert feed(Named("pypi.example", port), data[:-5], step) + b"later" == data
    for wrong in (hello("other.example"), hello(None)):
        inspector = Named("pypi.example", port)
        with pytest.raises(Refused):
            feed(inspector, wrong, step)
        assert not inspector.settled


def test_nothing_of_a_hello_is_sent_before_it_is_whole() -> None:
    data = hello("pypi.example")
    inspector = Named("pypi.example", 443)
    assert feed(inspector, data[:-1], 1) == b""
    assert not inspector.settled
    assert inspector.feed(data[-1:]) == data
    assert inspector.settled


def test_port_443_is_for_tls_only() -> None:
    with pytest.raises(Refused):
        Named("pypi.example", 443).feed(b"SSH-2.0-x\r\n")
    with pytest.raises(Refused):
        Named("pypi.example", 443).feed(b"GET / HTTP/1.1\r\nHost: pypi.example\r\n\r\n")


RETRY = b"\x14\x03\x03\0\1\1"
"""A change of cipher, which clients send before a second ClientHello."""


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_second_hello_must_be_for_the_same_name(step: int) -> None:
    first, evil = hello("pypi.example"), hello("evil.example")
    assert feed(TlsNames("pypi.example"), first + RETRY + first + b"\x17\x03\x03\0\3abc", step).endswith(b"abc")
    odd_version = evil[:9] + b"\x04\x04" + evil[11:]
    early = with_extension(first, 42, b"") + b"\x17\x03\x03\0\3abc"
    for data in (
        first + evil,
        first + RETRY + evil,
        first + RETRY + in_records(evil, 64),
        first + RETRY + b"\x16\x03\x03\0\1\1" + in_records(b"12345" + evil[6:], 64),
        first + RETRY + odd_version,
        first + b"\x16\x03\x03\0\0" + evil,
        first + b"\x17\x03\x03\0\0" + evil,
        early + RETRY + evil,
    ):
        inspector = TlsNames("pypi.example")
        with pytest.raises(Refused, match="another server name"):
            feed(inspector, data, step)


@pytest.mark.parametrize("step", [1, 100_000])
def test_what_is_encrypted_passes(step: int) -> None:
    first = hello("pypi.example")
    for later in (
        b"\x16\x03\x03\0\x46\x10" + bytes(69) + RETRY + b"\x16\x03\x03\0\x28\1\0" + bytes(38),  # TLS 1.2
        RETRY + b"\x16\x03\x03\0\x28" + b"\7" * 40,  # TLS 1.2, resumed
        RETRY + b"\x17\x03\x03\0\4abcd" + hello("evil.example"),
        b"\x15\x03\x03\0\2\2\x28",
    ):
        assert feed(TlsNames("pypi.example"), first + later, step) == first + later


@pytest.mark.parametrize(
    "first", [b"\x15\x03\x01\0\2\1\x5a", b"\x14\x03\x01\0\1\1", b"\x17\x03\x01\0\0", b"\x16\x03\1\0\0"]
)
@pytest.mark.parametrize("step", [1, 100_000])
def test_no_record_in_front_of_a_hello_hides_it(first: bytes, step: int) -> None:
    """Servers in Go ignore a warning there, and OpenSSL an empty record."""
    with pytest.raises(Refused):
        feed(Named("pypi.example", 8443), first + hello("evil.example"), step)


def test_a_hello_has_its_records_to_itself() -> None:
    data = hello("pypi.example")
    longer = data[:3] + (len(data) - 5 + 100).to_bytes(2, "big") + data[5:]
    with pytest.raises(Refused, match="more than a ClientHello"):
        TlsNames("pypi.example").feed(longer)


@pytest.mark.parametrize("step", [1, 3, 100_000])
@pytest.mark.parametrize(
    "data",
    [
        b"\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"\n\n \r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"STEAL / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"\tGET / http/1.1\r\nHost: b.example\r\n\r\n",
        b"STEAL /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: b.example\r\n\r\n",
    ],
)
def test_http_in_disguise_is_refused_on_other_ports(data: bytes, step: int) -> None:
    with pytest.raises(Refused):
        feed(Named("a.example", 8080), data, step)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: a.example", b"GET http://a.example/ HTTP/1.1"])
def test_no_header_takes_long_to_read(head: bytes) -> None:
    """One thread reads for all boxes. The process is ended if it takes more than a minute; white space took hours."""
    data = head + b"\r\nX:" + b" \t" * 15_000 + b"\1\r\n\r\n"
    source = (
        "import sys\nfrom harena.network.inspect import Named, Refused, proxy_request\ndata = sys.stdin.buffer.read()\n"
        "for read in Named('a.example', 80).feed, proxy_request:\n try: read(data)\n except Refused: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", source], input=data, capture_output=True, timeout=60, check=True)
    assert done.stdout.count(b"refused") == 2


def test_other_protocols_pass_on_other_ports() -> None:
    assert Named("db.example", 5432).feed(b"\0\0\0\x08\x04\xd2\x16\x2f") == b"\0\0\0\x08\x04\xd2\x16\x2f"
    inspector = Named("git.example", 9418)
    assert inspector.feed(b"G") == b""  # it may become a GET
    assert inspector.feed(b"OT ") == b"GOT "
    for data in (
        b"SSH-2.0-x\r\nGET / HTTP/1.1\r\n",
        b"\0\0\nHTTP/",
        b"ruok",
        b"EHLO a.example\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ):
        assert feed(Named("db.example", 5432), data, 1) == data


GOOD = (
    b"POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nhost: a.example:80\r\n\r\n"
)
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n1F\r\n" + b"x" * 31 + b"\r\n0\r\nT: 1\r\n\r\n"
)


@pytest.mark.parametrize("step", [1, 5, 10_000])
def test_every_plain_request_is_checked(step: int) -> None:
    data = GOOD + CHUNKED + GOOD
    assert feed(Named("a.example", 80), data, step) == data
    with pytest.raises(Refused, match="another host"):
        feed(Named("a.example", 80), data + GOOD.replace(b"a.example", b"b.example"), step)
    with pytest.raises(Refused, match="another host"):
        feed(Named("a.example", 8080), GOOD, step)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example:81\r\n\r\n",
        b"GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET http://a.example@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"CONNECT b.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: 1\n\nHost: b.example\r\nHost: a.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: 1\r\n Host: b.example\r\nHost: a.example\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: +1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n1;x=\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
        b"\x7fELF",
    ],
)
def test_requests_for_others_and_ambiguous_ones_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        Named("a.example", 80).feed(data)


def test_a_tunnel_is_asked_for_by_name_or_address() -> None:
    assert proxy_request(b"CONNECT a.example:443 HTTP/1.1\r\n") is None
    assert proxy_request(b"CONNECT A.Example:443 HTTP/1.1\r\n\r\nmore") == ProxyRequest("a.example", 443, True, b"more")
    found = proxy_request(b"CONNECT [::ffff:127.0.0.1]:22 HTTP/1.1\r\n\r\n")
    assert found is not None
    assert found.where == ipaddress.IPv4Address("127.0.0.1")


def test_a_proxied_request_reaches_its_server_in_its_usual_form() -> None:
    head = b"GET http://a.example:81/x?y HTTP/1.1\r\nHost: a.example:81\r\nProxy-Authorization: secret\r\nX-Drop: 1\r\n"
    found = proxy_request(head + b"Connection: keep-alive, X-Drop\r\nAccept: */*\r\nContent-Length: 2\r\n\r\nhi")
    assert found is not None
    assert (found.where, found.port, found.tunnel) == ("a.example", 81, False)
    expected = (
        b"GET /x?y HTTP/1.1\r\nHost: a.example:81\r\nConnection: close\r\naccept: */*\r\ncontent-length: 2\r\n\r\nhi"
    )
    assert found.rest == expected
    for step in (1, 1000):
        assert feed(OneRequest(found.rest), found.rest + b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", step) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"GET http://a.example@b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
        b"CONNECT a.example HTTP/1.1\r\n\r\n",
        b"CONNECT a.example:0 HTTP/1.1\r\n\r\n",
        b"CONNECT 127.1:22 HTTP/1.1\r\n\r\n",
        b"CONNECT 0x7f000001:22 HTTP/1.1\r\n\r\n",
        b"CONNECT 2130706433:22 HTTP/1.1\r\n\r\n",
        b"CONNECT a.example:443 HTTP/2\r\n\r\n",
        b"\x16\x03\x01" + b"\0" * 40_000,
    ],
)
def test_other_requests_to_the_proxy_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        proxy_request(data)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_to_a_name_pass_whole_or_are_refused(data: bytes, step: int) -> None:
    inspector = Named("a.example", 9000)
    try:
        sent = feed(inspector, data, step)
    except Refused:
        return
    assert data.startswith(sent)
