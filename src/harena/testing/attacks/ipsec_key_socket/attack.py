import errno
import socket

from attacker import attempt, finish

attempt("AF_KEY", socket.socket, 15, socket.SOCK_RAW, 2, also=(errno.EAFNOSUPPORT,))
finish()
