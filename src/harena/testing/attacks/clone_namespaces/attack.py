import os
import signal

from attacker import attempt, finish, syscall


def clone(flags):
    pid = syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt(f"clone {flag:#x}", clone, flag)
    attempt(f"clone user and {flag:#x}", clone, flag | 0x10000000)
finish()
