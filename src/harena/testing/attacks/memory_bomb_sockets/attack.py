import os
import socket
import time

from attacker import escaped, finish


def hide():
    """Fills sockets until there are no more; how much they hold."""
    held, kept = 0, []
    try:
        while True:
            kept.append(socket.socketpair())
            kept[-1][0].setblocking(False)
            try:
                while True:
                    held += kept[-1][0].send(b"x" * 65536)
            except BlockingIOError:
                pass
    except OSError:
        return held, kept


reader, writer = os.pipe()
for _ in range(12):
    if os.fork() == 0:
        held, kept = hide()
        os.write(writer, b"%10d" % held)
        time.sleep(1)
        os._exit(0)
os.close(writer)
total = 0
while part := os.read(reader, 10):
    total += int(part)
if total > 192 << 20:
    escaped(f"{total >> 20} MiB held in sockets under a limit of 64 MiB")
finish()
