import socket

from attacker import UNREACHABLE, attempt, finish


def connect():
    socket.socket(socket.AF_UNIX).connect("\0harena-escape")


attempt("the daemon", connect, also=UNREACHABLE)
finish()
