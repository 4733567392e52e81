"""Runs the guest's Python: one program, a call of a function, or a group of programs.

It shares the process with hostile code, which can write to the result pipe as well: the host believes neither.
"""

from __future__ import annotations

import _thread
import builtins
import errno
import io
import json
import os
import random
import sys
import time
import types

from .wire import RECORD, U32

RESULT_FD, HAND_FD = 3, 4
PATIENCE_S = 0.2
OUR_FILES = __file__.rpartition("/")[0] + "/"

# Programs may replace any builtin; what must work after them is bound here, before they run.
_BUILTINS = dict(vars(builtins))
_write, _exit, _len, _perf = os.write, os._exit, len, time.perf_counter
_cpu, _sleep, _getpid = time.process_time, time.sleep, os.getpid
main_pid = 0
tmp = "/tmp"


def write_all(fd, data, write=_write, len=_len, memoryview=memoryview):
    view = memoryview(data)
    while len(view):
        view = view[write(fd, view) :]


def put_record(data, pack=U32.pack, len=_len, write_all=write_all):
    write_all(RESULT_FD, pack(len(data)) + data)


def new_main():
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    return vars(main)


def complain(error):
    """Prints the traceback of a guest's exception without our own frames, as the guest's own hook would have it."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OUR_FILES):
        trace = trace.tb_next
    try:
        if sys.excepthook is not sys.__excepthook__:
            return sys.excepthook(type(error), error, trace)
        traceback.print_exception(type(error), error, trace, file=sys.stderr)
    except BaseException:
        os.write(2, b"an exception that cannot be printed\n")


def exit_code_of(error):
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def limit_of(error):
    """Which limit an uncaught exception speaks of: M memory, P processes, or nothing."""
    if isinstance(error, MemoryError):
        return b"M"
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:
        return b"P"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return b"P"
    return b"-"


def text_of(source):
    """The text that the host sent. It is compiled as text: a coding cookie speaks of the file that it came from."""
    return source.decode("utf-8", "surrogatepass")


def remember(text, name):
    """Lets tracebacks, warnings and `inspect` find the lines of a source that is in no file."""
    import linecache

    linecache.cache[name] = len(text), None, io.StringIO(text, None).readlines(), name


def execute(text, names, name="<program>"):
    """Runs source; (exit code, limit)."""
    try:
        if text[:1] == "\ufeff":
            text = text[1:]  # the mark that some editors begin a file with
        remember(text, name)
        exec(compile(text, name, "exec", dont_inherit=True), names)  # without our own `from __future__`
    except SystemExit as error:
        return exit_code_of(error), b"-"
    except BaseException as error:
        complain(error)
        return 1, limit_of(error)
    return 0, b"-"


def finish():
    """What an interpreter does at its end, as far as guests can see it."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None and _thread._count():
            threading._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
    except BaseException as error:
        complain(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass


def reseed():
    """What a fork must not share with its siblings: the generators that were seeded at import."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def run_one(source):
    code, limit = execute(text_of(source), new_main())
    end(code, limit)


def end(code, limit):
    """Says how it ended and waits to be killed: the answer is on its way before the kernel takes us down. A child that
    the program forked comes by here too, and simply ends."""
    finish()
    if limit != b"-":
        put_record(limit)
    if _getpid() != main_pid:
        _exit(code)
    put_record(b"X" + bytes((code,)))
    _sleep(PATIENCE_S)
    _exit(code)  # nobody understood: something else was written there before


def run_call(request):
    call = json.loads(request)
    names = new_main()
    code, limit = execute(call["source"], names)
    if code == 0 and limit == b"-":
        try:
            value = names[call["name"]](*call["args"], **call["kwargs"])
            put_record(b"V" + json.dumps(value, allow_nan=False).encode())
        except KeyError as error:
            if error.args == (call["name"],) and call["name"] not in names:
                print(f"the source defines no {call['name']}", file=sys.stderr)
            else:
                complain(error)
            code = 1
        except SystemExit as error:
            code = exit_code_of(error)
        except BaseException as error:
            complain(error)
            code, limit = 1, limit_of(error)
    end(code, limit)


class Capped(io.RawIOBase):
    """Collects what one program of a group prints, up to the limit, then says so by raising."""

    def __init__(self, room):
        self.parts, self.room, self.over = [], room, False

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        if len(data) > self.room[0]:
            self.over = True
            data = data[: self.room[0]]
        self.parts.append(data)
        self.room[0] -= len(data)
        if self.over:
            raise OutputLimit
        return len(data)


class OutputLimit(BaseException):
    pass


def run_group(sources, output_bytes):
    """Runs programs of one owner one after the other in this process. A program that breaks the process is found by
    the host, which sends what was behind it to a new one."""
    clear, update = vars(builtins).clear, vars(builtins).update
    wrapper, record, put, execute_ = io.TextIOWrapper, RECORD.pack, put_record, execute
    real = sys.stdout, sys.stderr
    for source in sources:
        room = [output_bytes]
        out, err = Capped(room), Capped(room)
        sys.stdout = wrapper(io.BufferedWriter(out), "utf-8", write_through=False)
        sys.stderr = wrapper(io.BufferedWriter(err), "utf-8", "backslashreplace", write_through=False)
        wall, cpu = _perf(), _cpu()
        try:
            code, limit = execute_(text_of(source), new_main())
        except BaseException:
            code, limit = 1, b"-"
        clear()
        update(_BUILTINS)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass
        wall, cpu = _perf() - wall, _cpu() - cpu
        if out.over or err.over:
            limit = b"O"
        stdout, stderr = b"".join(out.parts), b"".join(err.parts)
        sys.stdout, sys.stderr = real
        if _getpid() != main_pid:
            _exit(code)
        put(record(limit, code, cpu, wall, len(stdout), len(stderr)) + stdout + stderr)
    _sleep(PATIENCE_S)
    _exit(0)


def give_stdin(data):
    if data:
        try:
            fd = os.open(tmp, os.O_TMPFILE | os.O_RDWR)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                raise
            fd = os.open(f"{tmp}/stdin", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            os.unlink(f"{tmp}/stdin")
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        os.dup2(fd, 0)
        os.close(fd)


def read_payload():
    data = b""
    need = U32.size
    while len(data) < need:
        chunk = os.read(HAND_FD, need - len(data))
        if not chunk:
            _exit(0)  # never handed anything: the zygote let us go
        data += chunk
        if need == U32.size and len(data) == need:
            need += U32.unpack(data)[0]
    os.close(HAND_FD)
    return memoryview(data)[U32.size :]


def cut(view):
    """The length-prefixed pieces of a payload."""
    pieces, at = [], 0
    while at < len(view):
        (length,) = U32.unpack_from(view, at)
        at += U32.size
        pieces.append(bytes(view[at : at + length]))
        at += length
    return pieces
