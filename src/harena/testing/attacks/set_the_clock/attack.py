import ctypes
import struct
import time

from attacker import attempt, finish, syscall

now = ctypes.create_string_buffer(struct.pack("qq", int(time.time()), 0))
attempt("settimeofday", syscall, "settimeofday", now, None)
attempt("clock_settime", syscall, "clock_settime", 0, now)
attempt("time.clock_settime", time.clock_settime, time.CLOCK_REALTIME, time.time())
finish()
