"""The zygote: a warm Python that is forked for every execution.

It imports the preload modules and gives itself to the loop of the native library. The library forks it, and each fork
comes back here as a guest, with no rights left, to run a program, to be the persistent interpreter, or to look after
files. Nothing of that is a wall: it runs beside hostile code in the guest's own process.
"""

from __future__ import annotations

import _signal
import errno
import gc
import io
import json
import os
import signal
import struct
import sys
import time

from . import program, wire
from .files import FileServer
from .program import (
    RESULT_FD,
    cut,
    execute,
    finish,
    give_stdin,
    new_main,
    read_payload,
    reseed,
    run_call,
    run_group,
    run_one,
    text_of,
    write_all,
)
from .wire import HEAD, U32

SERVER_FD = 5
WORKSPACE = "/workspace"
RUNS_REMEMBERED = 256
_exit, _getpid = os._exit, os.getpid  # bound before programs run, which may replace them


# ---- what a fork becomes ----


def guest_main(rehearse=False):
    program.main_pid = os.getpid()
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # without the enums that `signal` makes of numbers
    if rehearse:
        warm_up()
    payload = read_payload()
    mode, pieces = bytes(payload[:1]), cut(payload[1:])
    if mode == wire.MODE_SERVER:
        serve(json.loads(pieces[0]))
    if mode == wire.MODE_TALK:
        talk(pieces[0])
    sys.path.insert(0, WORKSPACE)
    if b"import" in pieces[0] or mode == wire.MODE_GROUP:
        reseed()  # without an import there is no way to a generator
    write_all(RESULT_FD, struct.pack("<Q", time.process_time_ns()))
    if mode == wire.MODE_PROGRAM:
        give_stdin(pieces[1])
        run_one(pieces[0])
    elif mode == wire.MODE_CALL:
        run_call(pieces[0])
    elif mode == wire.MODE_GROUP:
        run_group(pieces[1:], int(pieces[0]))
    _exit(125)


def talk(source):
    """What the host trusts to speak first on the socket, and then to become what it does not trust."""
    reseed()
    write_all(SERVER_FD, b"h")  # tells the host, by the kernel's word, which process this is
    code, _ = execute(text_of(source), new_main(), "<talk>")
    finish()
    _exit(code)


# ---- servers: the persistent interpreter, and the one that looks after files ----


def receive(fd, size):
    parts = []
    while size:
        chunk = os.read(fd, min(size, 1 << 20))
        if not chunk:
            _exit(0)
        parts.append(chunk)
        size -= len(chunk)
    return b"".join(parts)


def serve(settings):
    handle = {"files": FileServer, "interpreter": GuestInterpreter}[settings["role"]](settings).handle
    while True:
        os.set_blocking(SERVER_FD, True)  # a guest may have found it and made it otherwise
        magic, op, _, id, length = HEAD.unpack(receive(SERVER_FD, HEAD.size))
        if magic != wire.MAGIC or op != wire.OP_CALL or length > wire.MAX_FRAME:
            _exit(3)
        body = receive(SERVER_FD, length)
        (size,) = U32.unpack_from(body)
        request = json.loads(body[U32.size : U32.size + size])
        try:
            answer, blob = handle(request, body[U32.size + size :])
        except OSError as error:
            answer, blob = {"errno": error.errno or errno.EIO, "detail": error.strerror or str(error)}, b""
        answer(id) if callable(answer) else reply(id, answer, blob)


def reply(id, answer, blob=b""):
    text = json.dumps(answer).encode()
    head = HEAD.pack(wire.MAGIC, wire.OP_ANSWER, 0, id, U32.size + len(text) + len(blob))
    write_all(SERVER_FD, b"".join((head, U32.pack(len(text)), text, blob)))


class GuestInterpreter:
    """Keeps one module for all runs of a session."""

    native = None  # the native library and ctypes.pythonapi, where forks are possible
    load_native = None  # loads them at the first fork

    def __init__(self, settings):
        self.names, self.runs = new_main(), 0
        sys.path.insert(0, WORKSPACE)
        reseed()

    def handle(self, request, blob):
        if request["op"] == "fork":
            return self.fork(request["count"]), b""
        code, limit = execute(text_of(blob), self.names, self.next_name())
        if _getpid() != program.main_pid:
            finish()  # a child that the source forked came back here: it ends, the interpreter answers
            _exit(code)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass
        return {"exit": code, "limit": limit.decode()}, b""

    def next_name(self):
        """A name for the source of one run: functions outlive their run, so each has lines of its own. Old ones are
        dropped, for a session may be endless."""
        self.runs += 1
        try:
            # Two files written within a tick of the kernel's clock leave the folder's time as it was.
            finder = sys.path_importer_cache.get(WORKSPACE)
            if finder is not None:
                finder.invalidate_caches()
            sys.modules["linecache"].cache.pop(f"<run {self.runs - RUNS_REMEMBERED}>", None)
        except Exception:
            pass  # the guest has put something of its own in these places
        return f"<run {self.runs}>"

    def fork(self, count):
        """Forks this process, memory and all. Each fork goes on from here with a socket of its own and answers
        nothing; the state of `random` is copied like everything else, which Python's own fork would not do."""
        if self.native is None and self.load_native is not None:
            GuestInterpreter.native = self.load_native()
        native, python = self.native
        others = len([name for name in os.listdir("/proc") if name.isdigit()]) - 2
        random = sys.modules["random"]
        for _ in range(count):
            state = random.getstate()
            python.PyOS_BeforeFork()
            pid = native.zygote_fork()
            if pid == 0:
                python.PyOS_AfterFork_Child()
                random.setstate(state)
                program.main_pid = os.getpid()
                return lambda id: None
            python.PyOS_AfterFork_Parent()
            if pid < 0:
                return {"errno": -pid, "detail": os.strerror(-pid)}
        return {"others": max(0, others)}


# ---- the zygote ----


COMMON = [
    "json",
    "re",
    "math",
    "collections",
    "itertools",
    "random",
    "typing",
    "functools",
    "string",
    "heapq",
    "bisect",
    "datetime",
    "traceback",
    "copy",
    "operator",
    "dataclasses",
    "enum",
    "io",
    "atexit",
    "threading",
]

WARM_UP = b"def f(x):\n    return str([x])\nfor i in range(2): print('%s' % f(i)[3:], end='')\n"
REHEARSAL = wire.MODE_PROGRAM + U32.pack(len(WARM_UP)) + WARM_UP + U32.pack(0)
SILENT = io.TextIOWrapper(io.BytesIO(), "utf-8")


def warm_up():
    """Runs a program as `guest_main` would, up to its end: so it has its own copy of the pages that any program writes
    to, while nobody waits. Nothing comes out of it."""
    loud, sys.stdout = sys.stdout, SILENT
    try:
        exec(compile("print(1)", "<warm>", "exec"), {})
    finally:
        sys.stdout = loud
    data = b""
    data += REHEARSAL[:4]
    data += REHEARSAL[4:]
    payload = memoryview(data)
    mode, pieces = bytes(payload[:1]), cut(payload[1:])
    if b"import" not in pieces[0] and mode == wire.MODE_PROGRAM:
        write_all(RESULT_FD, struct.pack("<Q", time.process_time_ns())[8:])
        give_stdin(pieces[1])
        execute(text_of(pieces[0]), new_main())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        write_all(RESULT_FD, (U32.pack(2) + b"X" + bytes((0,)))[6:])


def load(preload):
    for name in COMMON:
        __import__(name)
    load_named(preload)


def load_named(preload):
    for name in preload:
        if name.startswith("+"):
            sys.path.append(name[1:])  # where the packages of the spec are
        elif name.startswith("^"):
            # Requirements of the spec: ahead of installed packages, and after the standard library, which they must
            # not replace here.
            places = [at for at, path in enumerate(sys.path) if path.endswith(("/site-packages", "/dist-packages"))]
            sys.path.insert(min(places, default=len(sys.path)), name[1:])
        else:
            __import__(name)


def shut_threads():
    """Libraries with threads (BLAS) shut them in the handlers of libc's fork. A clone() that is not libc's runs no
    handlers, and leaves a child that waits for threads it does not have: so fork once before."""
    pid = os.fork()
    if pid == 0:
        _exit(0)
    os.waitpid(pid, 0)


def main(role, arguments):
    if role == "--check":
        return load(arguments)
    library, (cpu, *preload) = role, arguments
    zygote_main(library, int(cpu), preload)


def zygote_main(library, cpu, preload):
    import ctypes

    load(preload)
    native = ctypes.PyDLL(library)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warm_up()
    gc.collect()
    gc.freeze()
    GuestInterpreter.native = native, ctypes.pythonapi
    hooks = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    serve_forks = native.zygote_serve
    if preload:
        hooks[0]()
    flags = serve_forks(3, cpu)
    # Running Python's own hooks costs a third of a fork. The standard library needs none of them here: this thread is
    # the only one, before and after, and `reseed` does what the one for `random` would. Other modules may need theirs.
    if preload:
        hooks[1]()
    guest_main(rehearse=not flags & wire.SPAWN_BATCH)
