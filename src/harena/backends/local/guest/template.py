"""The warm Python of a box without the native library: forks itself when the loop asks, each fork a guest.

It never sees a byte of what programs are given or write, so that none of it is left in the memory of the next.
"""

from __future__ import annotations

import _socket
import gc
import os

from .job import ORDER, PID, Config, Spec, make_job
from .kernel import PARENT, Kernel, close_all, receive_fds
from .wire import SPAWN
from .zygote import guest_main, load, shut_threads, warm_up


def main(role, preload):
    load(preload)
    kernel, sock = Kernel(), _socket.socket(fileno=3)
    config = Config(sock.recv(1 << 20))
    warm_up()
    shut_threads()
    gc.collect()
    gc.freeze()
    sock.send(b"ready")
    while True:
        data, fds = receive_fds(sock, 4096)
        if not data:
            os._exit(0)
        mask, counted = ORDER.unpack_from(data)
        spec, given = Spec(*SPAWN.unpack_from(data, ORDER.size)), iter(fds)
        ends = [next(given) if mask >> number & 1 else -1 for number in range(mask.bit_length())]
        try:
            pid = make_job(kernel, config, spec, ends, counted, flags=PARENT)
        except OSError as error:
            pid = -error.errno
        if pid == 0:
            sock.detach()
            return guest_main()
        close_all(fds)
        sock.send(PID.pack(pid))
