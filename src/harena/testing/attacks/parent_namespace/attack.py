import fcntl
import os

from attacker import attempt, finish

NS_GET_USERNS, NS_GET_PARENT = 0xB701, 0xB702
for name in ("user", "pid"):
    fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
    attempt(f"parent of {name}", fcntl.ioctl, fd, NS_GET_PARENT)
    os.close(fd)
fd = os.open("/proc/self/ns/user", os.O_RDONLY)
attempt("owner of user", fcntl.ioctl, fd, NS_GET_USERNS)
os.close(fd)
finish()
