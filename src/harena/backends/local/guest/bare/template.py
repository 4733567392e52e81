"""The warm Python of a box without namespaces: forks itself when the loop asks, each fork a guest.

Like ../template.py it never sees a byte of what programs are given or write. Landlock confines it before it starts, as
it imports the modules that the spec names. It also forks programs that nobody has ordered yet, which wait, confined.
"""

from __future__ import annotations

import _socket
import json
import os
import sys

from .. import files, program, zygote
from ..job import Config
from ..kernel import PARENT, Kernel
from ..template import serve
from ..zygote import load, warm_up
from .job import ORDER, Surroundings, make_job, unpack_order
from .places import GuardedOs, files_at


class Inhabited(Surroundings):
    def inhabit(self, places):
        zygote.WORKSPACE, program.tmp = places.workspace, places.tmp
        zygote.FileServer = lambda settings: files_at(places, self.order["bytes"])(settings)
        if self.order["uid"] is None:
            files.os = GuardedOs(self.base)
        if places is not self.own:
            os.environ["HOME"], os.environ["TMPDIR"] = places.workspace, places.tmp

    def rehearse(self):
        warm_up()


def main(role, preload):
    kernel, sock = Kernel(), _socket.socket(fileno=3)
    config, order = Config(sock.recv(1 << 20)), json.loads(sock.recv(1 << 20))
    sys.path[:] = [path for path in sys.path if path not in order["hidden"]]
    load(preload)
    around, loop = Inhabited(kernel, order, config), os.getppid()
    around.hooks = bool(preload)  # of modules that the spec names

    def unpack(data):
        if len(data) == ORDER.size:  # for a program that waits for its order
            return (*ORDER.unpack(data)[:2], None, False)
        return (*unpack_order(data), True)

    def make(spec, ends, counted):
        return make_job(around, spec, ends, counted, loop, flags=PARENT)[0]

    serve(sock, unpack, make)
