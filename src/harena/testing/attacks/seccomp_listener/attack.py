import ctypes
import struct

from attacker import attempt, finish, syscall

SET_MODE_FILTER, NEW_LISTENER, SPEC_ALLOW, RET_ALLOW = 1, 8, 4, 0x7FFF0000
allow = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, RET_ALLOW), 8)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow)), 16)
attempt("a filter with a notifier", syscall, "seccomp", SET_MODE_FILTER, NEW_LISTENER, program)
attempt("a filter that lets speculation loose", syscall, "seccomp", SET_MODE_FILTER, SPEC_ALLOW, program)
finish()
