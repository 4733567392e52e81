import ctypes
import errno
import mmap
import os

from attacker import attempt, escaped, finish

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(os.__file__, os.O_RDONLY)
before = os.pread(fd, 4096, 0)


def overwrite(flags):
    where = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, flags, fd, ctypes.c_long(0))
    memory = os.open("/proc/self/mem", os.O_RDWR)
    try:
        os.pwrite(memory, b"#" * 16, where)
    finally:
        os.close(memory)


try:
    overwrite(mmap.MAP_PRIVATE)
except OSError:
    pass
attempt("write to a shared mapping", overwrite, mmap.MAP_SHARED, also=(errno.EIO, errno.EFAULT))
if os.pread(fd, 4096, 0) != before:
    escaped("the read-only file changed")
os.close(fd)
finish()
