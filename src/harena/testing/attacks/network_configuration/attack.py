import contextlib
import errno
import fcntl
import socket
import struct

from attacker import ABSENT, attempt, finish, touch

with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as handle:
    request = struct.pack("16sH14s", b"lo", 0x1 | 0x100, b"")
    for name, number in (("SIOCSIFFLAGS", 0x8914), ("SIOCSIFMTU", 0x8922), ("SIOCBRADDBR", 0x89A0)):
        attempt(name, fcntl.ioctl, handle, number, request, also=(errno.ENOTTY, errno.ENOPKG))
attempt("/dev/net/tun", touch, "/dev/net/tun", 2, also=ABSENT)
finish()
