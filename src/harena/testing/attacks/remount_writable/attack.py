import ctypes
import os
import struct

from attacker import READ_ONLY, attempt, finish, syscall, touch

MS_REMOUNT, MS_BIND, MS_PRIVATE, MS_SHARED = 32, 4096, 1 << 18, 1 << 20
for path in (b"/", b"/usr", b"/etc"):
    attempt(f"remount {path}", syscall, "mount", None, path, None, MS_REMOUNT, None)
    attempt(f"bind remount {path}", syscall, "mount", None, path, None, MS_REMOUNT | MS_BIND, None)
    attempt(f"share {path}", syscall, "mount", None, path, None, MS_SHARED, None)
    attempt(f"unshare {path}", syscall, "mount", None, path, None, MS_PRIVATE, None)
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", 0, 1, 0, 0))
    attempt(f"mount_setattr {path}", syscall, "mount_setattr", -100, path, 0, attributes, 32)
attempt("create in /usr", touch, "/usr/planted", os.O_WRONLY | os.O_CREAT, also=READ_ONLY)
finish()
