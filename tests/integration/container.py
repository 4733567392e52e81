"""Runs a Python program as Docker's default profile would let it: `python container.py COMMAND...`.

Namespaces and mounts are refused by seccomp, and root has Docker's default capabilities alone. No cgroup can be written.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from harena.backends.local.policy import seccomp, syscalls

CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod,
audit_write, setfcap."""
NEEDS_SYS_ADMIN = """
    fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root setns umount2 unshare bpf
    perf_event_open quotactl sethostname setdomainname syslog add_key keyctl request_key userfaultfd
    io_uring_setup io_uring_enter io_uring_register
"""
NEW_NAMESPACES = 0x7E02_0000


def filter_of_docker() -> bytes:
    machine = os.uname().machine
    actions: dict[str, seccomp.Action] = dict.fromkeys(syscalls.NUMBERS[machine], seccomp.ALLOW)
    actions |= dict.fromkeys(NEEDS_SYS_ADMIN.split(), seccomp.EPERM)
    actions["clone3"] = seccomp.ENOSYS
    actions["clone"] = seccomp.Check(16, (0,), seccomp.ALLOW, seccomp.EPERM, mask=NEW_NAMESPACES)
    return seccomp.compiled(actions, machine)


def enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    if os.geteuid() == 0:
        for number in range(41):
            if number not in CAPABILITIES:
                libc.prctl(24, number, 0, 0, 0)
    code = filter_of_docker()
    room = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(room)))
    if os.geteuid() != 0:
        check(libc.prctl(38, 1, 0, 0, 0))  # root needs no such promise, as in a container
    check(libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0))
    if os.geteuid() == 0:
        mask = sum(1 << number for number in CAPABILITIES)
        head = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0))
        low, high = mask & 0xFFFF_FFFF, mask >> 32
        data = ctypes.create_string_buffer(struct.pack("<6I", low, low, 0, high, high, 0))
        check(libc.capset(head, data))


if __name__ == "__main__":
    enter()
    os.environ["HARENA_CGROUPS"] = "off"
    os.execvp(sys.argv[1], sys.argv[1:])
