import socket

from attacker import TARGET, UNREACHABLE, attempt, finish


def connect(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(b"\0" + name.encode())
        client.send(b"hello from the box")


attempt("abstract stream socket", connect, socket.SOCK_STREAM, TARGET["abstract_stream"], also=UNREACHABLE)
attempt("abstract datagram socket", connect, socket.SOCK_DGRAM, TARGET["abstract_dgram"], also=UNREACHABLE)
finish()
