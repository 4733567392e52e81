import socket

from attacker import UNREACHABLE, attempt, finish

attempt("the daemon", socket.socket(socket.AF_UNIX).connect, "\0harena-escape", also=UNREACHABLE)
finish()
