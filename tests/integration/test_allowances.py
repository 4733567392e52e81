"""Spec.allow: what commands may do beyond the usual when the owner of a box says so."""

from __future__ import annotations

import pytest

from harena import Sandbox, SandboxPool, Spec
from harena.errors import SpecError

TRACE = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
ATTACH, DETACH = 16, 17
def attach(pid):
    return "traced" if libc.ptrace(ATTACH, pid, 0, 0) == 0 else os.strerror(ctypes.get_errno())
child = os.fork()
if child == 0:
    signal.pause()
print(attach(child), "/", attach(1), "/", attach(os.getppid()))
os.kill(child, 9)
"""
INTERFACES = """
import socket
try:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        request = b"\\x14\\0\\0\\0" + b"\\x12\\0\\x01\\x03" + b"\\x01\\0\\0\\0" + b"\\0" * 8  # RTM_GETLINK, all of them
        route.send(request)
        print(b"lo\\0" in route.recv(65536))
        new = b"\\x20\\0\\0\\0" + b"\\x10\\0\\x05\\x06" + b"\\x02\\0\\0\\0" + b"\\0" * 20  # RTM_NEWLINK
        route.send(new)
        answer = b""
        while answer[4:6] != b"\\x02\\0":
            answer = route.recv(65536)
        print(int.from_bytes(answer[16:20], "little", signed=True))
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.fixture(params=["native", "bubblewrap"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HARENA_LAUNCHER", request.param)
    return request.param


def test_a_command_may_trace_its_own_processes_and_nothing_else(launcher: str) -> None:
    with Sandbox(spec=Spec(allow=("ptrace",))) as box:
        result = box.exec(["python3", "-c", TRACE])
        traced, *others = result.stdout.decode().strip().split(" / ")
        assert traced == "traced", result
        assert set(others) == {"Operation not permitted"}
        assert b"PermissionError" in box.exec(["python3", "-c", "open('/proc/1/mem', 'r+b')"]).stderr


def test_nothing_is_traced_without_the_switch_or_by_programs(launcher: str) -> None:
    refused = ["Operation not permitted"] * 3
    with Sandbox() as box:
        assert box.exec(["python3", "-c", TRACE]).stdout.decode().strip().split(" / ") == refused
    with SandboxPool(warm=1, spec=Spec(allow=("ptrace", "netlink"))) as pool:
        traced, asked = pool.map([TRACE, INTERFACES])
        assert traced.stdout.decode().strip().split(" / ") == refused
        assert asked.stdout == b"OSError 97\n"


def test_a_command_may_read_the_interfaces_of_its_box_and_change_none() -> None:
    with Sandbox(spec=Spec(allow=("netlink",))) as box:
        assert box.exec(["python3", "-c", INTERFACES]).stdout.split() == [b"True", b"-1", b"OSError", b"93"]
    with Sandbox() as box:
        assert box.exec(["python3", "-c", INTERFACES]).stdout == b"OSError 97\n"


def test_an_unknown_allowance_is_named() -> None:
    with pytest.raises(SpecError, match=r"bpf.*ptrace and netlink"):
        Spec(allow=("bpf",))
