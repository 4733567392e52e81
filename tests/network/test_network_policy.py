"""Which rules are accepted, and what they allow."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.errors import SpecError
from harena.network.policy import METADATA, PRIVATE, SPECIAL, Names, Policy, parse_host
from harena.sandbox.network import NAMES, Network


def policy(*allow: str, own: str = "", **more: object) -> Policy:
    return Policy(Network(allow=allow, **more), lambda address: str(address) in own.split())


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text)


@pytest.mark.parametrize(
    "entry",
    [
        "packages.example",
        ":443",
        "packages.example:",
        "packages.example:0",
        "packages.example:65536",
        "packages.example:http",
        "packages.example:-1",
        "https://packages.example:443",
        "packages.example/simple:443",
        "user@packages.example:443",
        "a*.example.org:443",
        "*.*.example.org:443",
        "*.:443",
        "pypi..org:443",
        "-a.org:443",
        "packages.example\n:443",
        "a" * 64 + ".org:443",
        "2001:db8::1:443",
        "[10.0.0.1]:443",
        "[2001:db8::1/32]:443",
        "10.0.0.1/8:5432",
        "10.0.0.256:80",
        "127.1:80",
        "2130706433:80",
        "0x7f000001:80",
        "localhost:80",
        "x.localhost:80",
        "[::ffff:10.0.0.1]:80",
        "[fe80::1%eth0]:80",
        "198.18.0.7:443",
        "198.18.0.0/16:443",
        "127.0.0.1:3128",
        "127.0.0.1:53",
        "[::1]:3128",
        "",
        443,
    ],
)
def test_nonsense_is_refused(entry: str) -> None:
    with pytest.raises(SpecError):
        Network(allow=[entry])


def test_a_network_is_a_list_with_sane_caps() -> None:
    for wrong in (
        {"allow": "packages.example:443"},
        {"max_open": 0},
        {"max_bytes": -1},
        {"max_bytes": 1.5},
        {"connect_s": 0},
    ):
        with pytest.raises(SpecError):
            Network(**wrong)
    with pytest.raises(SpecError):
        Network(allow=[f"a{n}.example:1" for n in range(257)])
    with pytest.raises(SpecError):
        Network(allow=[f"a.example:{n}" for n in range(1, 66)])
    assert Network(allow=["A.Example:1"]) == Network(allow=("A.Example:1",))


def test_a_name_is_allowed_on_its_port_only() -> None:
    rules = policy("pypi.example:443", "*.Example.org:443", "any.example:*", "bücher.example:80")
    assert rules.refuses_name("pypi.example", 443) is None
    assert rules.refuses_name("pypi.example", 80) == "no rule allows this port of the name"
    assert rules.refuses_name("xpypi.example", 443) == "no rule allows this name"
    assert rules.refuses_name("pypi.example.evil", 443) is not None
    assert rules.refuses_name("a.example.org", 443) is None
    assert rules.refuses_name("a.b.example.org", 443) is None
    assert rules.refuses_name("example.org", 443) is not None
    assert rules.refuses_name("notexample.org", 443) is not None
    assert rules.refuses_name("any.example", 7) is None
    assert rules.refuses_name("xn--bcher-kva.example", 80) is None
    assert rules.ports == {443, 80}
    assert not policy().knows_name("pypi.example")


def test_every_name_is_a_rule_too() -> None:
    assert policy("*:443").refuses_name("anything.example", 443) is None
    assert policy("*:443").refuses_address(address("8.8.8.8"), 443) is not None


def test_an_address_is_allowed_by_a_rule_about_it() -> None:
    rules = policy("10.0.0.0/8:5432", "[2001:db8::/32]:443", "8.8.8.8:53", "0.0.0.0/0:80")
    assert rules.refuses_address(address("10.1.2.3"), 5432) is None
    assert rules.refuses_address(address("10.1.2.3"), 5433) is not None
    assert rules.refuses_address(address("11.1.2.3"), 5432) is not None
    assert rules.refuses_address(address("::ffff:10.1.2.3"), 5432) is None
    assert rules.refuses_address(address("2001:db8::5"), 443) is None
    assert rules.refuses_address(address("93.184.216.34"), 80) is None
    assert rules.refuses_address(address("10.1.2.3"), 80) is not None


@pytest.mark.parametrize("block", [*SPECIAL, *PRIVATE, *METADATA])
def test_the_whole_internet_includes_no_special_address(block: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
    rules = policy("0.0.0.0/0:*", "[::/0]:*", "*:*")
    for one in (block[0], block[-1]):
        assert rules.refuses_address(one, 80) is not None
        assert rules.refuses_resolved(one, 80) is not None


SPECIAL_ONES = (
    "127.0.0.1 127.9.9.9 169.254.169.254 0.0.0.0 224.0.0.1 255.255.255.255 :: ::1 fe80::1 fd00:ec2::254 ::ffff:127.0.0.1 "
    "::ffff:169.254.169.254 64:ff9b::7f00:1 2002:7f00:1:: ff02::1 ::127.0.0.1 100.100.100.200 168.63.129.16 "
    "fd00:ec2::23 fd20:ce::254 fd00:c1::a9fe:a9fe"
)


@pytest.mark.parametrize("text", SPECIAL_ONES.split())
def test_special_addresses_need_a_rule_that_names_them(text: str) -> None:
    wide = policy("0.0.0.0/0:80", "[::/0]:80", "fc.example:80", "100.64.0.0/10:80", "[fc00::/7]:80", private_names=True)
    assert wide.refuses_address(address(text), 80) is not None
    assert wide.refuses_resolved(address(text), 80) is not None
    one = parse_host(text)
    assert not isinstance(one, str)
    assert one is not None
    shown = f"[{one}]" if one.version == 6 else str(one)
    assert policy(f"{shown}:80").refuses_address(address(text), 80) is None
    assert policy(f"{shown}:80").refuses_resolved(address(text), 80) is None


def test_a_name_that_resolves_to_a_private_address_needs_a_rule_or_the_switch() -> None:
    inside = address("10.1.2.3")
    assert "private" in (policy("a.example:80").refuses_resolved(inside, 80) or "")
    assert policy("a.example:80", private_names=True).refuses_resolved(inside, 80) is None
    assert policy("a.example:80", "10.0.0.0/8:80").refuses_resolved(inside, 80) is None
    assert policy("a.example:80", "10.0.0.0/8:81").refuses_resolved(inside, 80) is not None
    assert policy("a.example:80").refuses_resolved(address("93.184.216.34"), 80) is None


def test_the_hosts_own_addresses_need_a_rule_for_each() -> None:
    own = "93.184.216.34 10.0.0.5"
    public, inside = address("93.184.216.34"), address("10.0.0.5")
    assert policy("a.example:80", own=own).refuses_resolved(public, 80) is not None
    assert policy("0.0.0.0/0:80", own=own).refuses_address(public, 80) is not None
    assert policy("10.0.0.0/8:80", own=own).refuses_address(inside, 80) is not None
    assert policy("a.example:80", own=own, private_names=True).refuses_resolved(inside, 80) is not None
    assert policy("10.0.0.5:80", own=own).refuses_address(inside, 80) is None


@given(st.text(max_size=300))
def test_what_a_guest_writes_is_a_name_an_address_or_nothing(text: str) -> None:
    found = parse_host(text)
    if isinstance(found, str):
        assert found == found.lower()
        assert parse_host(found) == found


def test_addresses_of_names_are_never_used_twice() -> None:
    names = Names()
    given = [names.address(f"n{n}.example") for n in range(Names.MOST)]
    assert len(set(given)) == Names.MOST
    assert all(one in NAMES for one in given if one is not None)
    assert names.address("n0.example") == given[0]
    assert names.address("one.too.many") is None
    assert names.name(given[7]) == "n7.example"
