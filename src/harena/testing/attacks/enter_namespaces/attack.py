import os

from attacker import attempt, finish, others, syscall

for pid in [os.getpid(), *others()]:
    for name in ("user", "mnt", "net", "pid", "ipc", "uts", "cgroup", "time"):
        try:
            fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        attempt(f"setns {name} of {pid}", syscall, "setns", fd, 0)
        os.close(fd)
attempt("setns of nothing", syscall, "setns", 0, 0)
finish()
