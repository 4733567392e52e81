import os

from attacker import finish, syscall

try:
    syscall("mq_open", b"harena", os.O_CREAT | os.O_RDWR, 0o666, None)
except OSError:
    pass
finish()
