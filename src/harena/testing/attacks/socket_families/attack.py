import errno
import socket

from attacker import attempt, finish

for family in range(64):
    if family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        continue
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        attempt(f"socket family {family} type {kind}", socket.socket, family, kind, also=(errno.EAFNOSUPPORT,))
        attempt(f"socketpair family {family}", socket.socketpair, family, kind, 0, also=(errno.EAFNOSUPPORT,))
finish()
