import errno
import os

from attacker import attempt, finish, syscall

attempt("the queue", syscall, "mq_open", b"harena", os.O_RDWR, 0, None, also=(errno.ENOENT,))
finish()
