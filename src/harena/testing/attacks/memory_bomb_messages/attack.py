import ctypes

from attacker import FULL, attempt, finish

libc = ctypes.CDLL(None, use_errno=True)
message = ctypes.create_string_buffer(b"\x01" + bytes(7) + b"x" * 8192)


def hide():
    for key in range(1000, 17_000):
        queue = libc.msgget(key, 0o1600)
        for _ in range(2):
            if queue < 0 or libc.msgsnd(queue, message, 8192, 0o4000):
                raise OSError(ctypes.get_errno(), f"after {key - 1000} queues")


attempt("250 MiB in message queues", hide, also=FULL)
finish()
