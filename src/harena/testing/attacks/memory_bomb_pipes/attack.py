import errno
import fcntl
import os

from attacker import FULL, attempt, finish

F_SETPIPE_SZ = 1031


def hide():
    for _ in range(600):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            fcntl.fcntl(writer, F_SETPIPE_SZ, 1 << 20)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
        os.write(writer, b"x" * (1 << 20))


attempt("600 full pipes", hide, also=FULL)
finish()
