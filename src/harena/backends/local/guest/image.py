"""Python of an image: one process for each execution, started by the box's init and confined before its first line.

It does what a fork of the zygote does, with descriptors of the same numbers, but with nothing imported ahead.
"""

from __future__ import annotations

import os
import sys

from . import zygote

LIBRARY = "/.harena/zygote.so"


def main(role, arguments):
    for fd in range(3, 7):
        try:
            os.set_inheritable(fd, False)
        except OSError:
            pass  # not every execution has all of them
    sys.path[:] = [path for path in sys.path if path != "/.harena/guest"]
    zygote.load_named(arguments)
    zygote.GuestInterpreter.load_native = staticmethod(load_native)
    zygote.guest_main()


def load_native():
    """Load the native library, for forks of the interpreter. Raises OSError where the image's C library is not the one
    it was built with."""
    import ctypes

    return ctypes.PyDLL(LIBRARY), ctypes.pythonapi
