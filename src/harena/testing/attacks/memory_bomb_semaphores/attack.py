import ctypes

from attacker import FULL, attempt, finish

libc = ctypes.CDLL(None, use_errno=True)


def hide():
    for number in range(60):
        if libc.semget(0, 32000, 0o1600) < 0:
            raise OSError(ctypes.get_errno(), f"after {number} sets of 4 MiB")


attempt("240 MiB in semaphores", hide, also=FULL)
finish()
