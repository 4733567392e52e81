import ctypes
import struct

from attacker import attempt, finish, syscall

event = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
attempt("own", syscall, "perf_event_open", event, 0, -1, -1, 0)
attempt("machine", syscall, "perf_event_open", event, -1, 0, -1, 0)
finish()
