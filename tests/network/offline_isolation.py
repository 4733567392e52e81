"""A network opens nothing else: the attacks on sockets, namespaces and processes, in boxes that have one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path

import pytest

from harena import Network, Sandbox, SandboxPool, Spec
from harena.testing.attacks import test_attacks as attacks
from harena.testing.attacks.test_attacks import Attack, Target
from harena.testing.attacks.test_attacks import host as host

NAMES = """
    host_tcp_loopback host_udp_loopback host_abstract_socket vsock netlink_socket raw_sockets socket_families
    socket_filters clone_namespaces clone3_namespaces unshare_namespaces enter_namespaces become_root steal_descriptors
    host_processes ptrace_others memory_of_init_through_proc proc_sys_writes kill_init
"""
SPEC = Spec(network=Network(allow=["a.example:443", "*.example:80", "10.0.0.0/8:*"]))
CASES = [
    pytest.param(attack, door, id=f"{attack.name}-{door}")
    for attack in attacks.ATTACKS
    if attack.name in NAMES.split()
    for door in attack.how
]


class Ring(attacks.Attacked):
    @cached_property
    def box(self) -> Sandbox:
        box = Sandbox(SPEC, limits=self.limits)
        box.write("attacker.py", attacks.TOOLKIT.encode())
        return box

    @cached_property
    def pool(self) -> SandboxPool:
        return SandboxPool(SPEC, warm=1, limits=self.limits)


@pytest.fixture(scope="module")
def ring(host: Target) -> Iterator[Ring]:
    with closing(Ring(host.target())) as ring:
        yield ring


@pytest.mark.parametrize(("attack", "door"), CASES)
def test_attack_is_held(attack: Attack, door: str, ring: Ring, host: Target, tmp_path: Path) -> None:
    if not attack.own_box:
        return attacks.hold(attack, door, ring, host, tmp_path)
    with closing(Ring(host.target(), attack.bounds)) as own:
        own.works(door)
        attacks.hold(attack, door, own, host, tmp_path)


def test_every_attack_is_there() -> None:
    assert {case.values[0].name for case in CASES} == set(NAMES.split())
