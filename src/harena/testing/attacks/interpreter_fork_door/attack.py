import os
import socket

import attacker
from attacker import ABSENT, READ_ONLY, TARGET, UNREACHABLE, attempt, finish, read, syscall, touch

# New user, pid, mount, net and ipc namespaces, CLONE_PARENT and SIGCHLD; then also CLONE_VM and CLONE_VFORK.
FORK_FLAGS = 0x78028011, 0x7802C111
IPT_SO_SET_REPLACE = 64


def tables():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        handle.setsockopt(socket.IPPROTO_IP, IPT_SO_SET_REPLACE, bytes(200))


def attack():
    for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup2", b"overlay"):
        attempt(f"mount {kind}", syscall, "mount", b"none", b"/tmp", kind, 0, b"")
    attempt("umount", syscall, "umount2", b"/proc", 2)
    attempt("fsopen", syscall, "fsopen", b"tmpfs", 0)
    attempt("unshare", syscall, "unshare", 0x10000000)
    attempt("chroot", os.chroot, "/tmp")
    attempt("iptables", tables)
    attempt("raw socket", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1, also=UNREACHABLE)
    attempt("packet socket", socket.socket, 17, socket.SOCK_RAW, 3, also=UNREACHABLE)
    attempt("netlink", socket.socket, 16, socket.SOCK_RAW, 0, also=UNREACHABLE)
    attempt("uid_map", touch, "/proc/self/uid_map", os.O_WRONLY, also=READ_ONLY)
    attempt("ip_forward", touch, "/proc/sys/net/ipv4/ip_forward", os.O_WRONLY, also=ABSENT + READ_ONLY)
    attempt("bpf", syscall, "bpf", 0, 0, 0)
    attempt("secret", read, TARGET["secret"], also=ABSENT)
    attempt("write to /usr", touch, "/usr/planted", os.O_WRONLY | os.O_CREAT, also=READ_ONLY)


reader, writer = os.pipe()
for flags in FORK_FLAGS:
    try:
        pid = syscall("clone", flags, 0, 0, 0, 0)
    except OSError:
        continue
    if pid == 0:
        attack()
        os.write(writer, "; ".join(attacker.escapes).encode() or b"nothing")
        os._exit(0)
    answer = os.read(reader, 65536)
    if answer != b"nothing":
        attacker.escaped(f"as root of its own namespaces: {answer.decode()}")
finish()
