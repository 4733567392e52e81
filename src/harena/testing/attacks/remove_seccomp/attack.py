import ctypes
import struct

from attacker import attempt, escaped, finish, status, syscall

PR_SET_SECCOMP, SECCOMP_SET_MODE_FILTER = 22, 1
allow = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000), 8)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow)), 16)
for name, args in (
    ("prctl", (PR_SET_SECCOMP, 0, 0, 0, 0)),
    ("prctl", (PR_SET_SECCOMP, 2, program, 0, 0)),
    ("seccomp", (SECCOMP_SET_MODE_FILTER, 0, program)),
    ("seccomp", (SECCOMP_SET_MODE_FILTER, 4, program)),
):
    try:
        syscall(name, *args)
    except OSError:
        pass
if status("Seccomp") != "2":
    escaped(f"seccomp mode {status('Seccomp')}")
attempt("unshare user after it", syscall, "unshare", 0x10000000)
attempt("bpf after it", syscall, "bpf", 0, 0, 0)
finish()
