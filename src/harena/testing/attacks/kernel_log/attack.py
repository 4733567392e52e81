import ctypes
import os

from attacker import ABSENT, attempt, finish, syscall, touch

for path in ("/proc/kmsg", "/dev/kmsg"):
    attempt(path, touch, path, os.O_RDONLY | os.O_NONBLOCK, also=ABSENT)
buffer = ctypes.create_string_buffer(4096)
attempt("syslog READ_ALL", syscall, "syslog", 3, buffer, 4096)
attempt("syslog SIZE_BUFFER", syscall, "syslog", 10, 0, 0)
finish()
