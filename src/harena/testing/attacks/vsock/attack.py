import errno
import socket

from attacker import ABSENT, attempt, finish, touch

attempt("AF_VSOCK stream", socket.socket, 40, socket.SOCK_STREAM, also=(errno.EAFNOSUPPORT,))
attempt("AF_VSOCK datagram", socket.socket, 40, socket.SOCK_DGRAM, also=(errno.EAFNOSUPPORT,))
attempt("/dev/vsock", touch, "/dev/vsock", 0, also=ABSENT)
finish()
