import ctypes
import os
import struct

from attacker import attempt, finish, others, syscall

MADV_PAGEOUT = 21
for pid in {*others(), 1}:
    for name in ("process_vm_readv", "process_vm_writev"):
        attempt(f"{name} {pid}", syscall, name, pid, 0, 0, 0, 0, 0)
    attempt(f"move_pages {pid}", syscall, "move_pages", pid, 0, 0, 0, 0, 0)
    attempt(f"migrate_pages {pid}", syscall, "migrate_pages", pid, 0, 0, 0)
    attempt(f"kcmp {pid}", syscall, "kcmp", pid, pid, 0, 0, 0)
for pid in others():
    handle = syscall("pidfd_open", pid, 0)
    range_ = ctypes.create_string_buffer(struct.pack("QQ", 0x10000, 4096))
    attempt(f"process_madvise {pid}", syscall, "process_madvise", handle, range_, 1, MADV_PAGEOUT, 0)
    os.close(handle)
attempt("process_mrelease", syscall, "process_mrelease", 0, 0)
finish()
