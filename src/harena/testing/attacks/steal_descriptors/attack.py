import os

from attacker import attempt, finish, others, syscall

for pid in others():
    try:
        handle = syscall("pidfd_open", pid, 0)
    except OSError:
        handle = 0
    for fd in range(16):
        attempt(f"pidfd_getfd {pid} {fd}", syscall, "pidfd_getfd", handle, fd, 0)
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        names = ["0", "1", "2", "3"]
    for fd in names:
        attempt(f"/proc/{pid}/fd/{fd}", os.open, f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
attempt("pidfd_getfd of nothing", syscall, "pidfd_getfd", 0, 0, 0)
finish()
