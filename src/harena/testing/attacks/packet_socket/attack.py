import errno
import socket

from attacker import attempt, finish

for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM, 10):
    attempt(f"AF_PACKET type {kind}", socket.socket, 17, kind, 0x0300, also=(errno.EAFNOSUPPORT,))
finish()
