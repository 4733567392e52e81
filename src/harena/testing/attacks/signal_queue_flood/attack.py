import ctypes
import os
import signal
import struct

from attacker import FULL, attempt, finish, syscall

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
info = ctypes.create_string_buffer(struct.pack("iii", signal.SIGRTMIN, 0, -1), 128)


def flood():
    for _ in range(200_000):
        syscall("rt_sigqueueinfo", os.getpid(), int(signal.SIGRTMIN), info)


attempt("200000 pending signals", flood, also=FULL)
finish()
