import errno
import fcntl
import os

from attacker import ABSENT, attempt, finish

TIOCSTI, TIOCLINUX = 0x5412, 0x541C
NOT_A_TERMINAL = (errno.ENOTTY, errno.EBADF, errno.EIO, errno.EINVAL)
try:
    terminals = [0, 1, 2, *os.openpty()]
except OSError:
    terminals = [0, 1, 2]
for fd in terminals:
    attempt(f"TIOCSTI on {fd}", fcntl.ioctl, fd, TIOCSTI, b"x", also=NOT_A_TERMINAL)
    attempt(f"TIOCLINUX on {fd}", fcntl.ioctl, fd, TIOCLINUX, b"\x03", also=NOT_A_TERMINAL)
attempt("/dev/tty", os.open, "/dev/tty", os.O_RDWR, also=ABSENT)
for fd in terminals[3:]:
    os.close(fd)
finish()
