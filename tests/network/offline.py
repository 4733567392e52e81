"""Runs tests in a network namespace of their own: `python offline.py FILE...`.

The namespace has a loopback interface and no route out, so that even a bug sends no packet. The loopback interface
has these addresses: a server of a test may listen on one of them that no box may reach.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import sys

ADDRESSES = ("169.254.169.254", "10.9.8.7", "93.184.216.34", "fd00:ec2::254")
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if uid else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running


def add(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """ip address add ADDRESS dev lo"""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = struct.pack("BBBBI", family, address.max_prefixlen, 2, 0, socket.if_nametoindex("lo"))  # 2: IFA_F_NODAD
    for kind in (1, 2):  # IFA_ADDRESS, IFA_LOCAL
        body += struct.pack("HH", 4 + len(address.packed), kind) + address.packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(struct.pack("IHHII", 16 + len(body), 20, 0x405, 1, 0) + body)  # RTM_NEWADDR
        error = -struct.unpack_from("i", sock.recv(4096), 16)[0]
    if error:
        raise OSError(error, f"address {address}")


if __name__ == "__main__":
    enter()
    for text in ADDRESSES:
        add(ipaddress.ip_address(text))
    import pytest

    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", *sys.argv[1:]]))
