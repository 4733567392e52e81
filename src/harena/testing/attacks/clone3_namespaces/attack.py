import ctypes
import os
import struct

from attacker import attempt, finish, syscall


def clone3(flags):
    arguments = struct.pack("11Q", flags, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    pid = syscall("clone3", ctypes.create_string_buffer(arguments, 88), 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


attempt("clone3", clone3, 0)
attempt("clone3 user", clone3, 0x10000000)
attempt("clone3 user and net", clone3, 0x50000000)
finish()
