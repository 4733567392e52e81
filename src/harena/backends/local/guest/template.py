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

    def unpack(data):
        mask, counted = ORDER.unpack_from(data)
        return mask, counted, Spec(*SPAWN.unpack_from(data, ORDER.size)), False

    def make(spec, ends, counted):
        return make_job(kernel, config, spec, ends, counted, flags=PARENT)

    serve(sock, unpack, make)


def serve(sock, unpack, make):
    """Takes the loop's orders. `unpack` reads one: which descriptors it has, whether it is counted, its spec, and
    whether the guest must rehearse; `make` forks. Returns in a fork that is done."""
    warm_up()
    shut_threads()
    gc.collect()
    gc.freeze()
    sock.send(b"ready")
    while True:
        data, fds = receive_fds(sock, 4096)
        if not data:
            os._exit(0)
        mask, counted, spec, rehearse = unpack(data)
        given = iter(fds)
        ends = [next(given) if mask >> number & 1 else -1 for number in range(mask.bit_length())]
        try:
            pid = make(spec, ends, counted)
        except OSError as error:
            pid = -error.errno
        if pid == 0:
            sock.detach()
            return guest_main(rehearse=rehearse)
        close_all(fds)
        sock.send(PID.pack(pid))
