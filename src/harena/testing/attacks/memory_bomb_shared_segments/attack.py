import ctypes

from attacker import FULL, attempt, finish, syscall

IPC_CREAT, SIZE = 0o1000, 16 << 20


def hide():
    for key in range(100, 140):
        where = syscall("shmat", syscall("shmget", key, SIZE, IPC_CREAT | 0o600), 0, 0)
        ctypes.memset(where, 1, SIZE)
        syscall("shmdt", where)


attempt("640 MiB in shared segments", hide, also=FULL)
finish()
