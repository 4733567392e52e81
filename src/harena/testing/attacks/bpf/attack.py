import ctypes
import struct

from attacker import attempt, finish, syscall

BPF_MAP_CREATE, BPF_PROG_LOAD = 0, 5
array = ctypes.create_string_buffer(struct.pack("5I", 2, 4, 8, 1, 0), 128)
attempt("map", syscall, "bpf", BPF_MAP_CREATE, array, 128)
attempt("program", syscall, "bpf", BPF_PROG_LOAD, array, 128)
finish()
