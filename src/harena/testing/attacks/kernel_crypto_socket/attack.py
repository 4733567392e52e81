import errno
import socket

from attacker import attempt, finish

attempt("AF_ALG", socket.socket, 38, socket.SOCK_SEQPACKET, also=(errno.EAFNOSUPPORT,))
finish()
