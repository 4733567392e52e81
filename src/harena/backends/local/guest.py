"""Code that runs inside a box: one file, standard library only, run by the Python of the box.

Started as `python guest.py LIBRARY CPU PRELOAD...` with the host's socket as descriptor 3, it imports the preload
modules, then serves: the native library's loop forks it for every execution, and each fork comes back here as a guest,
with no rights left, to run a program, to be the persistent interpreter, or to serve files. None of that enforces
isolation: it shares a process with hostile code, and the host trusts nothing that it writes.

The last part is the native loop in Python, for a box without the library. That part does set up the isolation. It is in
this file because an image must contain only one file.
"""

from __future__ import annotations

import _signal
import _thread
import builtins
import collections
import errno
import gc
import io
import json
import os
import random
import signal
import stat
import struct
import sys
import time
import types

MIN_PYTHON = (3, 8)  # of the box; this file is read by no older one
RESULT_FD, HAND_FD, SERVER_FD = 3, 4, 5
HEAD = struct.Struct("<IHHII")
U32 = struct.Struct("<I")
RECORD = struct.Struct("<ciddII")
MAGIC, CALL, ANSWER = 0x314E5248, 16, 80
MAX_FRAME = 64 << 20
BATCH = 32
WORKSPACE = "/workspace"
RUNS_REMEMBERED = 256
MAX_RANGES = 100_000
GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)

# Programs may replace any builtin; what must work after them is bound here, before they run.
_BUILTINS = dict(vars(builtins))
_write, _exit, _len, _perf = os.write, os._exit, len, time.perf_counter
_cpu, _sleep, _getpid = time.process_time, time.sleep, os.getpid
PATIENCE_S = 0.2
main_pid = 0


# ---- programs ----


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
    """Print the traceback of a guest's exception without our own frames, using the guest's own hook."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == complain.__code__.co_filename:
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
    """Limit that caused an uncaught exception: M memory, P processes, or nothing."""
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
    """Let tracebacks, warnings and `inspect` find the lines of a source that is not in a file."""
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
    """Do what an interpreter does at its end, as far as guests can see it."""
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
    """Seed the random generators again, which forks must not share with their siblings."""
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
    """Collects output of one program of a group, and raises when it exceeds the limit."""

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
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
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


def guest_main(rehearse=False):
    global main_pid
    main_pid = os.getpid()
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # without the enums that `signal` makes of numbers
    if rehearse:
        warm_up()
    payload = read_payload()
    mode, pieces = bytes(payload[:1]), cut(payload[1:])
    if mode == b"S":
        serve(json.loads(pieces[0]))
    if mode == b"T":
        talk(pieces[0])
    sys.path.insert(0, WORKSPACE)
    if b"import" in pieces[0] or mode == b"G":
        reseed()  # without an import there is no way to a generator
    write_all(RESULT_FD, struct.pack("<Q", time.process_time_ns()))
    if mode == b"P":
        give_stdin(pieces[1])
        run_one(pieces[0])
    elif mode == b"C":
        run_call(pieces[0])
    elif mode == b"G":
        run_group(pieces[1:], int(pieces[0]))
    _exit(125)


def talk(source):
    """Run trusted code that sends the first packet on the socket and then becomes the untrusted guest."""
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
    handle = {"files": Files, "interpreter": Interpreter}[settings["role"]](settings).handle
    while True:
        os.set_blocking(SERVER_FD, True)  # a guest may have found it and made it otherwise
        magic, op, _, id, length = HEAD.unpack(receive(SERVER_FD, HEAD.size))
        if magic != MAGIC or op != CALL or length > MAX_FRAME:
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
    head = HEAD.pack(MAGIC, ANSWER, 0, id, U32.size + len(text) + len(blob))
    write_all(SERVER_FD, b"".join((head, U32.pack(len(text)), text, blob)))


class Interpreter:
    """Keeps one module for all runs of a session."""

    native = None  # the native library and ctypes.pythonapi, where forks are possible

    def __init__(self, settings):
        self.names, self.runs = new_main(), 0
        sys.path.insert(0, WORKSPACE)
        reseed()

    def handle(self, request, blob):
        if request["op"] == "fork":
            return self.fork(request["count"]), b""
        code, limit = execute(text_of(blob), self.names, self.next_name())
        if _getpid() != main_pid:
            finish()  # a child that the source forked came back here: it ends, the interpreter answers
            _exit(code)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass
        return {"exit": code, "limit": limit.decode()}, b""

    def next_name(self):
        """Name for the source of one run. Functions outlive their run, so each run keeps its own lines. Old ones are
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
        """Fork this process with its memory. Each fork continues from here with its own socket and answers
        nothing; the state of `random` is copied like everything else, which Python's own fork would not do."""
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
                global main_pid
                main_pid = os.getpid()
                return lambda id: None
            python.PyOS_AfterFork_Parent()
            if pid < 0:
                return {"errno": -pid, "detail": os.strerror(-pid)}
        return {"others": max(0, others)}


def safe_kind(mode):
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def entry_of(path, name):
    info = os.lstat(path)
    kind = safe_kind(info.st_mode)
    target = os.readlink(path) if kind == "symlink" else None
    return [
        name,
        kind,
        info.st_size,
        stat.S_IMODE(info.st_mode),
        info.st_mtime_ns,
        target,
        info.st_ino,
        info.st_ctime_ns,
        info.st_blocks * 512,
    ]


class Opened:
    """Paths that their owner shut to himself, opened for as long as a snapshot or a restore needs them. Leaving gives
    each its mode back, or the one that was wanted for it meanwhile."""

    def __init__(self):
        self.modes, self.times = {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.modes:
            path = max(self.modes, key=len)  # what lies inside comes first
            try:
                self.insist(path, os.chmod, path, self.modes[path])
                if path in self.times:
                    os.utime(path, ns=(self.times[path], self.times[path]))
            except FileNotFoundError:
                pass
            del self.modes[path]

    def want(self, folder, mode, mtime_ns):
        self.modes[folder], self.times[folder] = mode & 0o1777, mtime_ns

    def open(self, path):
        info = os.lstat(path)
        mode = stat.S_IMODE(info.st_mode)
        need = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o400}.get(stat.S_IFMT(info.st_mode), 0)
        if mode & need != need and info.st_uid == os.getuid():
            self.modes.setdefault(path, mode)
            os.chmod(path, mode | need)

    def open_way(self, path):
        """Opens the folders that lead to a path."""
        end = path.find("/", 1)
        while end > 0:
            self.open(path[:end])
            end = path.find("/", end + 1)

    def insist(self, path, action, *arguments):
        """Does it, on the second try with the way opened."""
        try:
            return action(*arguments)
        except PermissionError:
            self.open_way(path)
            return action(*arguments)

    def open_file(self, path):
        """For reading, on the second try with everything opened."""
        try:
            return open_file(path, os.O_NOFOLLOW)
        except PermissionError:
            self.open_way(path)
            self.open(path)
            return open_file(path, os.O_NOFOLLOW)


def walk(top, prefix="", depth=0, opened=None):
    if depth > 200:
        raise OSError(errno.ELOOP, "folders are nested more than 200 deep", top)
    try:
        if opened:
            opened.open(top)
        with os.scandir(top) as entries:
            names = sorted(entry.name for entry in entries)
    except FileNotFoundError:
        if depth:
            return  # it went while we looked
        raise
    for name in names:
        path, shown = f"{top}/{name}", f"{prefix}{name}"
        try:
            entry = entry_of(path, shown)
        except FileNotFoundError:
            continue
        yield entry
        if entry[1] == "dir":
            yield from walk(path, shown + "/", depth + 1, opened)


def open_file(path, flags=0):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "is a folder", path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_at(fd, offset, size):
    """Up to size bytes; fewer only at the file's end."""
    parts = []
    while size > 0:
        chunk = os.pread(fd, min(size, 1 << 20), offset)
        if not chunk:
            break
        parts.append(chunk)
        offset += len(chunk)
        size -= len(chunk)
    return b"".join(parts)


def data_ranges(fd, size):
    """Where a file with holes has data: [start, end] each."""
    ranges, at = [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole to the end
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < at:
            ranges.append([start, at])
        if len(ranges) > MAX_RANGES:
            raise OSError(errno.EFBIG, f"a file with more than {MAX_RANGES} holes")
    return ranges


def part_of(path, token):
    """Where a file is put together. Its name is short: the file's own may be as long as names can be."""
    return f"{os.path.dirname(path)}/.{os.getpid()}.{token}.part"


def write_part(path, token, offset, data):
    """One piece of a file that comes in several; `finish_part` puts it in its place."""
    beside = part_of(path, token)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        write_all(fd, data)
    except BaseException:
        os.unlink(beside)
        raise
    finally:
        os.close(fd)


def finish_part(path, token, size, mode):
    """Replaces in one step, so that a reader never sees half of it."""
    beside = part_of(path, token)
    try:
        os.truncate(beside, size)
        os.chmod(beside, mode & 0o1777)
        os.replace(beside, path)
    except BaseException:
        os.chmod(beside, 0o600)  # in a folder that is shut it stays, for a second try
        os.unlink(beside)
        raise


def write_file(path, data, mode):
    write_part(path, 0, 0, data)
    finish_part(path, 0, len(data), mode)


def check_writable(path):
    """A file is replaced, which its folder's rights decide; its own shall count as well, as where it is opened."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise OSError(errno.EISDIR, "is a folder", path)
    if os.path.isfile(path) and not os.path.islink(path) and not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, "not writable", path)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        try:
            shutil.rmtree(path)
        except PermissionError:
            open_folders(path)
            shutil.rmtree(path)
    else:
        os.unlink(path)


def open_folders(top):
    """Lets the owner into folders that he made read-only."""
    os.chmod(top, 0o700)
    with os.scandir(top) as entries:
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        open_folders(folder)


def make(path, kind, mode, mtime_ns, target, data):
    """One entry of a described state. Without data a file keeps what it has. Modes and times of folders come last."""
    if kind == "part":
        return write_part(path, target, mtime_ns, data)
    if kind == "whole":
        kind, (token, size) = "file", target
        finish_part(path, token, size, mode)
    if kind == "dir":
        os.makedirs(path, exist_ok=True)
        return
    if kind == "symlink":
        if os.path.lexists(path):
            remove(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    elif data is None:
        os.chmod(path, mode & 0o1777)
    else:
        write_file(path, data, mode)
    os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


class Files:
    """File operations with the guest's own rights: links lead only where the guest could go itself."""

    def __init__(self, settings):
        os.umask(0o022)

    def handle(self, request, blob):
        return getattr(self, "do_" + request["op"])(request, blob)

    def do_read(self, request, blob):
        """Ranges of a file, and which file it was: a second call may find another one."""
        with Opened() as opened:
            fd = opened.open_file(request["path"]) if request["insist"] else open_file(request["path"])
            try:
                data = [read_at(fd, start, end - start) for start, end in request["ranges"]]
                info = os.fstat(fd)
            finally:
                os.close(fd)
        return {"file": info.st_ino, "size": info.st_size}, b"".join(data)

    def do_ranges(self, request, blob):
        with Opened() as opened:
            fd = opened.open_file(request["path"])
            try:
                info = os.fstat(fd)
                return {"ranges": data_ranges(fd, info.st_size), "file": info.st_ino, "size": info.st_size}, b""
            finally:
                os.close(fd)

    def do_write(self, request, blob):
        path, token = request["path"], request["token"]
        if request["offset"] == 0:
            check_writable(path)
        write_part(path, token, request["offset"], blob)
        if request["last"]:
            finish_part(path, token, request["offset"] + len(blob), request["mode"])
        return {}, b""

    def do_list(self, request, blob):
        entries = []
        now = time.time_ns()
        top = request["path"]
        with Opened() as opened:
            for entry in (
                walk(top, opened=opened if request["insist"] else None)
                if request["recursive"]
                else (entry_of(f"{top}/{n}", n) for n in sorted(os.listdir(top)))
            ):
                entries.append(entry)
                if len(entries) > request["max_entries"]:
                    raise OSError(errno.EFBIG, f"more than {request['max_entries']} entries", top)
        return {"entries": entries, "now": now}, b""

    def do_sha256(self, request, blob):
        import hashlib

        digest = hashlib.sha256()
        fd = open_file(request["path"])
        try:
            while chunk := os.read(fd, 1 << 20):
                digest.update(chunk)
        finally:
            os.close(fd)
        return {"sha256": digest.hexdigest()}, b""

    def do_remove(self, request, blob):
        remove(request["path"])
        return {}, b""

    def do_fetch(self, request, blob):
        """Several files, one after the other; -1 for one that is gone or no longer a file."""
        sizes, parts, room = [], [], request["max_bytes"]
        with Opened() as opened:
            for path in request["paths"]:
                try:
                    fd = opened.open_file(path) if request["insist"] else open_file(path)
                except OSError as error:
                    if error.errno not in GONE:
                        raise
                    sizes.append(-1)
                    continue
                try:
                    data = read_at(fd, 0, room + 1)
                finally:
                    os.close(fd)
                if len(data) > room:
                    raise OSError(errno.EFBIG, f"larger than the {request['max_bytes']} bytes asked for", path)
                sizes.append(len(data))
                parts.append(data)
                room -= len(data)
        return {"sizes": sizes}, b"".join(parts)

    def do_apply(self, request, blob):
        """Brings the folder to a described state: removals, then folders, files, links, then modes and times."""
        at = 0
        with Opened() as opened:
            for path in request["remove"]:
                try:
                    opened.insist(path, remove, path)
                except FileNotFoundError:
                    pass
            for path, kind, mode, mtime_ns, target, size in request["make"]:
                data = blob[at : at + size] if size >= 0 else None
                at += max(0, size)
                opened.insist(path, make, path, kind, mode, mtime_ns, target, data)
                if kind == "dir":
                    opened.want(path, mode, mtime_ns)
        return {}, b""


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
REHEARSAL = b"P" + U32.pack(len(WARM_UP)) + WARM_UP + U32.pack(0)
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
    if b"import" not in pieces[0] and mode == b"P":
        write_all(RESULT_FD, struct.pack("<Q", time.process_time_ns())[8:])
        give_stdin(pieces[1])
        execute(text_of(pieces[0]), new_main())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        write_all(RESULT_FD, (U32.pack(2) + b"X" + bytes((0,)))[6:])


def load(preload):
    for name in COMMON:
        __import__(name)
    for name in preload:
        if name.startswith("+"):
            sys.path.append(name[1:])  # where the packages of the spec are
        else:
            __import__(name)


def shut_threads():
    """Libraries with threads (BLAS) shut them in the handlers of libc's fork. A clone() that is not libc's runs no
    handlers, and leaves a child that waits for threads it does not have: so fork once before."""
    pid = os.fork()
    if pid == 0:
        _exit(0)
    os.waitpid(pid, 0)


def zygote_main(library, cpu, preload):
    import ctypes

    load(preload)
    native = ctypes.PyDLL(library)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warm_up()
    gc.collect()
    gc.freeze()
    Interpreter.native = native, ctypes.pythonapi
    hooks = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    serve_forks = native.zygote_serve
    if preload:
        hooks[0]()
    flags = serve_forks(3, int(cpu))
    # Running Python's own hooks costs a third of a fork. The standard library needs none of them here: this thread is
    # the only one, before and after, and `reseed` does what the one for `random` would. Other modules may need theirs.
    if preload:
        hooks[1]()
    guest_main(rehearse=not flags & BATCH)


# ---- the loop in Python, for a box without the native library ----
#
# Follows native/serve.c, job.c, watch.c and confine.c, where the reasons are. Run as `guest.py --loop CONTROL STEPS` it
# is pid 1 of the box: it keeps the jobs and never runs a guest. Run as `guest.py --template PRELOAD...` it is the warm
# interpreter that programs are forked from; it never sees a byte of what they are given or write, so that none of it is
# left in the memory of the next.

SPAWN = struct.Struct("<IIQQQQQIIIIIIIIIIIIHHI")
DONE = struct.Struct("<IiIiQQQQIIII")
OWN, REPORT, STARTED = struct.Struct("<Q"), struct.Struct("<iQ"), struct.Struct("<Q")
ORDER = struct.Struct("<HH")
PID = struct.Struct("<q")
Spec = collections.namedtuple(
    "Spec",
    "kind flags wall_ns cpu_ns memory output fs_bytes processes nofile profile view records ahead"
    " argc envc strings_len cwd_len stdin_len payload_len rows cols result",
)
OP_PING, OP_SPAWN, OP_KILL, OP_CONFIG, OP_ALLOW_FORKS, OP_USAGE = 1, 2, 3, 4, 5, 7
OP_PONG, OP_DONE, OP_STARTED, OP_ERROR, OP_OUTPUT = 65, 66, 67, 68, 69
STREAMS = {"out": 0, "err": 1, "res": 2}
OUTPUT_BLOCK = 1 << 16
NO_FORKS = "be forked: a fork of a live box needs the native launcher (install a C compiler and reinstall harena)"
EXEC, PROGRAM, SERVER, TRUSTED = 1, 2, 3, 4
CAPTURE, PTY, FRESH_FS, NOTIFY = 1, 2, 4, 16
ENDED_SELF, ENDED_WALL, ENDED_CPU, ENDED_MEMORY, ENDED_OUTPUT, ENDED_HOST = range(6)
GUEST_ID, MAX_JOBS, LEFT_BYTES = 1000, 128, 8 << 20
START_S, WATCH_NS, WATCH_IDLE_NS = 20, 20_000_000, 100_000_000
THREAD_KB, OBJECT_BYTES, INODE_BYTES, MAPPING_BYTES = 24, 256, 1280, 320
LOCKS_MOST, LOOK_CLOSER_KB, LOOK_S, SOCKETS_FEW = 8192, 8192, 0.05, 64
NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET, PARENT = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x8000
SCOPES_ABI = 6  # from here on Landlock keeps abstract sockets apart
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC = 1, 2, 4, 8, 32, 4096, 16384
WALL = 0x40000000  # wait for every kind of child
TERMINALS = b"newinstance,ptmxmode=0666,mode=0620,max=32"
TERMINAL_END = 5  # where a job with a terminal, which has no server's socket, sends the host's end of it
STDIO, START_END, REPORT_END, JOINS = slice(0, 6), 6, 7, slice(8, None)  # the descriptors that a job's init gets

SLOT_FILES = {  # by version: the limit, what is used, swap, how often the limit killed
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.swappiness", "memory.oom_control"),
    2: ("memory.max", "memory.current", "memory.swap.max", "memory.events"),
}
TICK_NS, PAGE_KB = 1_000_000_000 // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE") // 1024

_step = ""  # what this process is about to do, for the report if it fails


def doing(step):
    global _step
    _step = step


class Kernel:
    """System calls that Python does not provide."""

    def __init__(self):
        import ctypes
        import fcntl  # noqa: F401 - here once, and not in every fork
        import resource  # noqa: F401

        self.ctypes = ctypes
        libc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL: clone() comes back in the child with it
        long, text = ctypes.c_long, ctypes.c_char_p
        self._libc, self._clone = libc, {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        libc.syscall.argtypes, libc.syscall.restype = [long] * 7, long
        libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        libc.mount.argtypes = [text, text, text, ctypes.c_ulong, text]
        libc.unshare.argtypes = [ctypes.c_int]
        try:
            self.landlock_abi = self.call(444, 0, 0, 1)
        except OSError:
            self.landlock_abi = 0  # the kernel has none: the mount namespace is the wall

    def check(self, result):
        if result < 0:
            number = self.ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def call(self, number, *args):
        return self.check(self._libc.syscall(number, *args, *[0] * (6 - len(args))))

    def prctl(self, option, *args):
        return self.check(self._libc.prctl(option, *args, *[0] * (4 - len(args))))

    def mount(self, source, target, kind, flags, options=None):
        self.check(self._libc.mount(source, target, kind, flags, options))

    def unshare(self, flags):
        self.check(self._libc.unshare(flags))

    def buffer(self, data):
        """Bytes with an address; they live as long as what is returned first."""
        room = self.ctypes.create_string_buffer(data, len(data))
        return room, self.ctypes.addressof(room)

    def clone(self, flags):
        """fork() into new namespaces."""
        python = self.ctypes.pythonapi
        python.PyOS_BeforeFork()
        pid = self._libc.syscall(self._clone, flags | 17, 0, 0, 0, 0, 0)
        python.PyOS_AfterFork_Parent() if pid else python.PyOS_AfterFork_Child()
        return self.check(pid)

    def close_range(self, first, last=0xFFFFFFFF):
        try:
            self.call(436, first, last)
        except OSError:
            os.closerange(first, min(last, os.sysconf("SC_OPEN_MAX")) + 1)

    def drop_capabilities(self):
        try:
            self.prctl(47, 4)  # the ambient set
            for capability in range(64):
                self.prctl(24, capability)  # the bounding set
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
        head, data = self.buffer(struct.pack("<Ii", 0x20080522, 0)), self.buffer(bytes(24))
        self.check(self._libc.capset(self.ctypes.c_void_p(head[1]), self.ctypes.c_void_p(data[1])))

    def landlock(self, writable, alone):
        """`alone`: not even on an abstract socket does it meet those that share its network namespace."""
        abi = self.landlock_abi
        if not abi:
            return
        every = (1 << 13) - 1 | (1 << 13 if abi >= 2 else 0) | (1 << 14 if abi >= 3 else 0)
        rules = struct.pack("<QQQ", every, 0, alone) if abi >= SCOPES_ABI else struct.pack("<Q", every)
        room, at = self.buffer(rules)
        ruleset = self.call(444, at, len(room), 0)
        for path, rights in [(b"/", 0b1101), *((path, every) for path in writable)]:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= 0b111 | 1 << 14
            _rule, at = self.buffer(struct.pack("<Qi", rights, fd))
            self.call(445, ruleset, 1, at, 0)
            os.close(fd)
        self.call(446, ruleset, 0)
        os.close(ruleset)

    def seccomp(self, code):
        if not code:
            raise OSError(errno.ENOENT, "not configured")
        code, at = self.buffer(code)
        _program, at = self.buffer(struct.pack("HxxxxxxQ", len(code) // 8, at))
        self.prctl(22, 2, at)


class Config:
    """Configuration from the host: four filters, the kind of cgroups, the writable paths."""

    def __init__(self, body):
        self.filters, at = [], 0
        for _ in range(4):
            (length,) = U32.unpack_from(body, at)
            self.filters.append(body[at + U32.size : at + U32.size + length])
            at += U32.size + length
        self.cgroups = body[at]
        self.writable = [path for path in body[at + 1 :].split(b"\0") if path]


def put(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def take(path, size=4096):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def map_ids():
    put("/proc/self/setgroups", b"deny")
    put("/proc/self/uid_map", b"%d %d 1" % (GUEST_ID, GUEST_ID))
    put("/proc/self/gid_map", b"%d %d 1" % (GUEST_ID, GUEST_ID))


# -- one job: its init and its main process --


def make_job(kernel, config, spec, fds, counted, command=None, flags=0):
    """Start a job's init in its own namespaces and return its pid; 0 in the job's main process, now a guest."""
    flags |= NEWUSER | NEWPID | NEWNS
    if spec.flags & FRESH_FS:
        flags |= NEWIPC | (0 if kernel.landlock_abi >= SCOPES_ABI else NEWNET)
    doing("clone namespaces")
    pid = kernel.clone(flags)
    if pid == 0:
        try:
            init_main(kernel, config, spec, fds, counted, command)
        except OSError as error:
            os.write(fds[START_END], b"F" + struct.pack("<i", error.errno or errno.EIO) + _step.encode())
            _exit(111)
        except BaseException as error:
            os.write(fds[START_END], b"F" + struct.pack("<i", errno.EIO) + f"{_step} ({error!r})".encode()[:200])
            _exit(112)
    return pid


def init_main(kernel, config, spec, fds, counted, command):
    """pid 1 of the job. Comes back only in its child, the main process."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # a module may have left handlers
    doing("parent death signal")
    kernel.prctl(1, 9)
    doing("map the user")
    map_ids()
    if spec.flags & FRESH_FS:
        size = b"size=%d,nr_inodes=16384," % spec.fs_bytes
        for path, mode in ((b"/workspace", b"mode=755"), (b"/tmp", b"mode=1777"), (b"/dev/shm", b"mode=1777")):
            doing("mount " + path.decode())
            kernel.mount(b"tmpfs", path, b"tmpfs", NOSUID | NODEV, size + mode)
    doing("mount /proc")
    kernel.mount(b"proc", b"/proc", b"proc", NOSUID | NODEV | NOEXEC)
    doing("mount /dev/pts")
    if spec.flags & FRESH_FS:  # no terminals, as in native/job.c; bubblewrap's are everybody's
        kernel.mount(b"tmpfs", b"/dev/pts", b"tmpfs", NOSUID | NODEV | NOEXEC | RDONLY, b"size=4k,nr_inodes=2")
    else:
        kernel.mount(b"devpts", b"/dev/pts", b"devpts", NOSUID | NOEXEC, TERMINALS)
    if spec.flags & PTY:
        doing("open a terminal")
        send_terminal(fds)
    doing("start the process")
    main = os.fork()
    if main == 0:
        return become(kernel, config, spec, fds, counted, command)
    os.write(fds[REPORT_END], OWN.pack(time.process_time_ns()))
    os.dup2(fds[REPORT_END], 0)
    kernel.close_range(1)
    peak = 0
    while True:
        pid, status, usage = os.wait4(-1, WALL)
        peak = max(peak, usage.ru_maxrss)
        if pid == main:
            os.write(0, REPORT.pack(status, peak))
            _exit(0)


def send_terminal(fds):
    """Opens the job's terminal on its own instance, where its name is found, and sends the host's end to the loop."""
    import _socket

    master, slave = os.openpty()
    sock, fds[TERMINAL_END] = _socket.socket(fileno=fds[TERMINAL_END]), -1
    sock.sendmsg([b"t"], [(1, 1, struct.pack("i", master))])
    sock.close()
    fds[:3] = slave, os.dup(slave), os.dup(slave)
    os.close(master)


def become(kernel, config, spec, fds, counted, command):
    """Turn the main process into a guest: set its descriptors and limits, drop its rights. A command is executed
    here."""
    import fcntl

    doing("join cgroup")
    for fd in fds[JOINS]:
        os.write(fd, b"0")
    doing("stdio")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if command is not None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    start, *ends = [
        fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) if fd >= 0 else -1 for fd in (fds[START_END], *fds[STDIO])
    ]
    for number, fd in enumerate(ends):
        if fd >= 0:
            os.dup2(fd, number, inheritable=number < 3)
        else:
            kernel.close_range(number, number)
    kernel.close_range(6, start - 1)
    kernel.close_range(start + 1)
    os.setsid()
    if spec.flags & PTY:
        doing("terminal")
        fcntl.ioctl(0, 0x540E, 0)
        fcntl.ioctl(0, 0x5414, struct.pack("HHHH", spec.rows, spec.cols, 0, 0))
    try:
        os.chdir(command[2] if command else "/workspace")
    except OSError as error:
        not_started(start, error)
    confine(kernel, config, spec, counted)
    os.write(start, b"R" + STARTED.pack(time.monotonic_ns()))
    if command is None:
        return os.close(start)
    try:
        execute_command(*command[:2])
    except OSError as error:
        not_started(start, error)


def not_started(start, error):
    os.write(start, b"X" + struct.pack("<i", error.errno or errno.EIO))
    _exit(127)


def execute_command(argv, env):
    """As execvpe does, with the PATH that the command itself gets."""
    if b"/" in argv[0]:
        return execute_file(argv[0], argv, env)
    number = errno.ENOENT
    for folder in env.get(b"PATH", b"/bin:/usr/bin").split(b":"):
        try:
            execute_file(os.path.join(folder or b".", argv[0]), argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            number = errno.EACCES if error.errno == errno.EACCES else number
    raise OSError(number, os.strerror(number))


def execute_file(path, argv, env):
    try:
        os.execve(path, argv, env)
    except ValueError:
        raise OSError(errno.ENOENT, "no name") from None
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], env)


def limit(which, value):
    import resource

    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def confine(kernel, config, spec, counted):
    """See native/confine.c. `counted`: a cgroup bounds the processes too."""
    import resource

    doing("rlimits")
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, spec.nofile)
    limit(resource.RLIMIT_MEMLOCK, 8 << 20)
    limit(resource.RLIMIT_RTPRIO, 0)
    limit(resource.RLIMIT_SIGPENDING, 1024)
    limit(resource.RLIMIT_MSGQUEUE, 256 << 10)
    limit(resource.RLIMIT_NPROC, (spec.processes + 1) * (2 if counted else 1))
    if spec.cpu_ns:
        limit(resource.RLIMIT_CPU, spec.cpu_ns // 1_000_000_000 + 2)
    if spec.kind != EXEC and spec.memory:
        used = int(take("/proc/self/statm").split()[5]) * os.sysconf("SC_PAGESIZE")
        limit(resource.RLIMIT_DATA, spec.memory + used)
    doing("no_new_privs")
    kernel.prctl(38, 1)
    doing("landlock")
    kernel.landlock(config.writable, bool(spec.flags & FRESH_FS))
    doing("capabilities")
    kernel.drop_capabilities()
    kernel.prctl(4, 1)
    doing("seccomp")
    kernel.seccomp(config.filters[spec.profile])


# -- cgroups --


class Slot:
    """A cgroup that jobs use one after the other."""

    def __init__(self, number, version, folders):
        self.busy, self.set, self.seen = False, (0, 0), (0, 0)
        self.limit_file, self.usage_file, swap, self.events = SLOT_FILES[version]
        self.places = [(folder, f"{os.getpid()}-{number}") for folder in folders]
        for folder, name in self.places:
            os.mkdir(name, 0o755, dir_fd=folder)
        self.joins = [self.open(place, "cgroup.procs", os.O_WRONLY) for place in self.places]
        try:
            self.put(self.places[0], swap, b"0")
        except OSError:
            pass  # a kernel without swap accounting: nothing to turn off

    @staticmethod
    def open(place, file, flags):
        return os.open(f"{place[1]}/{file}", flags | os.O_CLOEXEC, dir_fd=place[0])

    def put(self, place, file, text):
        fd = self.open(place, file, os.O_WRONLY)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)

    def limit(self, memory, processes):
        """False when what earlier jobs left (files in the workspace) would count against the next one."""
        if int(self.read(self.places[0], self.usage_file)[0]) > LEFT_BYTES:
            return False
        if self.set != (memory, processes):
            self.put(self.places[0], self.limit_file, b"%d" % memory)
            self.put(self.places[-1], "pids.max", b"%d" % processes)
            self.set = memory, processes
        return True

    def remove(self):
        """What is still charged to it becomes its parent's."""
        close_all(self.joins)
        for folder, name in self.places:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                pass  # the keeper will

    def read(self, place, file):
        fd = self.open(place, file, os.O_RDONLY)
        try:
            return os.read(fd, 4096).split()
        finally:
            os.close(fd)

    def counter(self, place, file, key):
        try:
            words = self.read(place, file)
            return int(words[words.index(key) + 1])
        except (OSError, ValueError):
            return 0

    def hits(self):
        """1: the process limit was hit since the last job, 2: the memory limit."""
        kills = self.counter(self.places[0], self.events, b"oom_kill")
        refusals = self.counter(self.places[-1], "pids.events", b"max")
        then, self.seen = self.seen, (kills, refusals)
        return (2 if kills > then[0] else 0) | (1 if refusals > then[1] else 0)


# -- the loop --


class Job:
    def __init__(self, id, spec):
        self.id, self.spec, self.pid, self.pidfd, self.slot = id, spec, 0, -1, None
        self.ends = [-1] * 6  # what the main process will have as 0 to 5
        self.fds = {
            "out": -1,
            "err": -1,
            "res": -1,
            "hand": -1,
            "report": -1,
            "start": -1,
            "master": -1,
            "terminal": -1,
        }
        self.data = {"out": bytearray(), "err": bytearray(), "res": bytearray()}
        self.give = memoryview(b"")
        self.written = self.answered = self.records = self.ended = self.hits = self.exec_errno = 0
        self.cpu_base, self.unread, self.record_size, self.record_left, self.record_head = None, bytearray(), 0, 0, b""
        self.started = self.deadline = self.peak_kb = self.cpu_ns = self.kernel_kb = self.slabs_kb = self.sockets_kb = 0
        self.said = None  # the wait status that a program announced before it ended


class Loop:
    def __init__(self, control):
        import select

        self.kernel, self.control, self.config, self.folders = Kernel(), control, None, []
        self.jobs, self.slots, self.slots_made, self.template, self.template_job = [], [], 0, None, None
        self.next_watch, self.watch_every, self.slabs_kb = 0, WATCH_NS, 0
        self.poll, self.places = select.poll(), {}
        self.IN, self.OUT = select.POLLIN, select.POLLOUT
        self.poll.register(control.fileno(), self.IN)

    def serve(self):
        while True:
            ready = self.poll.poll(self.patience_ms(time.monotonic_ns()))
            self.enforce_time(time.monotonic_ns())
            for fd, _ in ready:
                if fd in self.places:
                    self.react(*self.places[fd])
            if any(fd == self.control.fileno() for fd, _ in ready):
                self.handle_request()

    # frames

    def receive(self, size):
        parts = []
        while size:
            data = self.control.recv(min(size, 1 << 20))
            if not data:
                _exit(0)
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def send(self, op, id, body=b"", fd=-1):
        data = HEAD.pack(MAGIC, op, int(fd >= 0), id, len(body)) + body
        try:
            if fd >= 0:
                data = data[self.control.sendmsg([data], [(1, 1, struct.pack("i", fd))]) :]
            self.control.sendall(data)
        except OSError:
            _exit(0)  # the host is gone

    def send_error(self, id, number, step):
        self.send(OP_ERROR, id, struct.pack("<i", number or errno.EIO) + step.encode()[:1000])

    def handle_request(self):
        data, fds = receive_fds(self.control, HEAD.size)
        if not data:
            _exit(0)
        magic, op, _, id, length = HEAD.unpack(data + self.receive(HEAD.size - len(data)))
        if magic != MAGIC or length > MAX_FRAME:
            _exit(3)
        body = self.receive(length)
        try:
            if op == OP_PING:
                self.send(OP_PONG, id, body)
            elif op == OP_SPAWN:
                self.spawn(id, body, fds)
            elif op == OP_KILL:
                self.kill_request(id, *struct.unpack("<II", body))
            elif op == OP_USAGE:
                self.usage_request(id, *U32.unpack(body))
            elif op == OP_CONFIG:
                self.config, self.config_body = Config(body), body
                self.folders, fds = (fds, []) if self.config.cgroups else ([], fds)
                self.send(OP_PONG, id)
            elif op == OP_ALLOW_FORKS:
                self.send_error(id, errno.ENOSYS, NO_FORKS)
            else:
                self.send_error(id, errno.ENOSYS, "unknown request")
        except (struct.error, IndexError, ValueError):
            self.send_error(id, errno.EPROTO, "malformed request")
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    # starts

    def spawn(self, id, body, fds):
        job = Job(id, Spec(*SPAWN.unpack_from(body)))
        spec, at, pieces = job.spec, SPAWN.size, []
        for length in (spec.strings_len, spec.cwd_len, spec.stdin_len, spec.payload_len):
            pieces.append(body[at : at + length])
            at += length
        if at != len(body) or not EXEC <= spec.kind <= TRUSTED or spec.profile > 3 or spec.view or self.config is None:
            return self.send_error(id, errno.EPROTO, "malformed request")
        try:
            if len(self.jobs) >= MAX_JOBS:
                raise OSError(errno.EAGAIN, "")
            doing("start the job")
            words = pieces[0].split(b"\0")
            argv, env = words[: spec.argc], words[spec.argc : spec.argc + spec.envc]
            env = dict(word.split(b"=", 1) for word in env)
            if spec.kind == TRUSTED:
                return self.start_template(job, argv, env)
            self.set_up_stdio(job, pieces[2], fds)
            self.start(job, (argv, env, pieces[1].rstrip(b"\0")) if spec.kind == EXEC else None)
        except OSError as error:
            number, step = error.errno, _step
            self.discard(job)
            return self.send_error(id, number, step)
        job.started = job.started or time.monotonic_ns()
        job.deadline = job.started + spec.wall_ns if spec.wall_ns else 0
        self.next_watch, self.watch_every = min(self.next_watch, job.started + WATCH_NS), WATCH_NS
        self.jobs.append(job)
        self.watch_fd(job, "pid", job.pidfd)
        for name in ("out", "err", "res"):
            self.watch_fd(job, name, job.fds[name])
        if job.fds["hand"] >= 0:
            job.give = memoryview(U32.pack(spec.payload_len) + pieces[3])
            self.hand_over(job)
        if spec.flags & NOTIFY:
            self.send(OP_STARTED, id, U32.pack(job.pid), job.fds["master"])
            close_all(job.fds, "master")
        return None

    def pipe(self, job, name, end, *, to_us=True):
        read, write = os.pipe()
        ours, job.ends[end] = (read, write) if to_us else (write, read)
        os.set_blocking(ours, False)
        job.fds[name] = ours

    def set_up_stdio(self, job, stdin, fds):
        doing("stdio")
        if job.spec.flags & PTY:
            import _socket

            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            job.fds["terminal"], job.ends[TERMINAL_END] = ours.detach(), theirs.detach()
            return
        if job.spec.flags & CAPTURE:
            self.pipe(job, "out", 1)
            self.pipe(job, "err", 2)
            job.ends[0] = stdin_with(stdin)
        else:
            if len(fds) < 3:
                raise OSError(errno.EINVAL, "")
            job.ends[:3], fds[:3] = fds[:3], [-1] * 3
            if len(fds) > 3:
                job.ends[5], fds[3] = fds[3], -1
        if job.spec.kind == PROGRAM:
            self.pipe(job, "res", 3)
        if job.spec.kind != EXEC:
            self.pipe(job, "hand", 4, to_us=False)

    def start(self, job, command):
        """Makes the job's init and waits until the main process is a guest; no guest code has run before."""
        self.take_slot(job)
        doing("start the job's init")
        job.fds["report"], report = os.pipe()
        job.ends.append(report)
        job.fds["start"], start = os.pipe()
        job.ends.insert(START_END, start)
        os.set_blocking(job.fds["report"], False)
        joins = job.slot.joins if job.slot else []
        if command is not None:
            job.pid = make_job(self.kernel, self.config, job.spec, job.ends + joins, bool(job.slot), command)
        else:
            job.pid = self.ask_template(job, job.ends + joins)
        job.pidfd = self.kernel.call(434, job.pid, 0)
        close_all(job.ends)
        self.await_start(job)
        if job.spec.flags & PTY:
            self.take_terminal(job)

    def ask_template(self, job, fds):
        doing("reach the box's Python")
        if self.template is None:
            raise OSError(errno.ESRCH, "")
        mask = sum(1 << number for number, fd in enumerate(fds) if fd >= 0)
        data = ORDER.pack(mask, bool(job.slot)) + SPAWN.pack(*job.spec)
        given = [fd for fd in fds if fd >= 0]
        self.template.sendmsg([data], [(1, 1, struct.pack(f"{len(given)}i", *given))])
        (pid,) = PID.unpack(self.template.recv(PID.size) or PID.pack(-errno.ESRCH))
        if pid < 0:
            raise OSError(-pid, "")
        return pid

    def await_start(self, job):
        import select

        said, fd = b"", job.fds["start"]
        poll = select.poll()
        poll.register(fd, self.IN)
        while poll.poll(START_S * 1000):
            data = os.read(fd, 4096)
            said += data
            if not data or (len(said) == 1 + STARTED.size and said[:1] == b"R" and job.spec.kind != EXEC):
                break
        close_all(job.fds, "start")
        if said[:1] == b"F":
            doing(said[5:].decode())
            raise OSError(*struct.unpack("<i", said[1:5]), "")
        if said[:1] == b"R":  # the loop may be told later, when others have the processor
            (job.started,) = STARTED.unpack(said[1 : 1 + STARTED.size])
            said = said[1 + STARTED.size :]
        elif said[:1] != b"X":
            doing("start the job's init")
            raise OSError(errno.ECHILD, "")
        if said:
            (job.exec_errno,) = struct.unpack("<i", said[1:])

    def take_terminal(self, job):
        import _socket

        doing("open a terminal")
        sock = _socket.socket(fileno=job.fds["terminal"])
        job.fds["terminal"] = -1
        _, fds = receive_fds(sock, 1)
        sock.close()
        if len(fds) != 1:
            raise OSError(errno.EPROTO, "")
        job.fds["master"] = fds[0]

    def take_slot(self, job):
        if not self.folders:
            return
        doing("cgroup")
        for slot in [slot for slot in self.slots if not slot.busy]:
            if slot.limit(job.spec.memory, job.spec.processes):
                break
            self.slots.remove(slot)
            slot.remove()
        else:
            self.slots_made += 1
            slot = Slot(self.slots_made, self.config.cgroups, self.folders)
            self.slots.append(slot)
            slot.limit(job.spec.memory, job.spec.processes)
        slot.busy, job.slot = True, slot

    def discard(self, job):
        """Remove a job that did not start."""
        if job.pid:
            os.kill(job.pid, 9)
            os.waitpid(job.pid, WALL)
        self.let_go(job)

    def let_go(self, job):
        for fd in (job.pidfd, *(job.fds[name] for name in ("out", "err", "res", "hand"))):
            self.unwatch(fd)
        close_all(job.fds)
        close_all(job.ends)
        if job.pidfd >= 0:
            os.close(job.pidfd)
        if job.slot:
            job.slot.busy = False
        if job in self.jobs:
            self.jobs.remove(job)

    def start_template(self, job, argv, env):
        import _socket

        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("ll", START_S, 0))
        job.pid = os.fork()
        if job.pid == 0:
            try:
                os.dup2(theirs.fileno(), 3)
                self.kernel.close_range(4)
                os.execve(argv[0], argv, env)
            finally:
                _exit(127)
        theirs.close()
        job.pidfd = self.kernel.call(434, job.pid, 0)
        ours.send(self.config_body)
        self.template, self.template_job = ours, job
        self.jobs.append(job)
        self.watch_fd(job, "pid", job.pidfd)
        self.watch_fd(job, "template", ours.fileno())

    # what jobs write, and their ends

    def watch_fd(self, job, what, fd, events=None):
        if fd >= 0:
            self.places[fd] = job, what
            self.poll.register(fd, events or self.IN)

    def unwatch(self, fd):
        if self.places.pop(fd, None):
            self.poll.unregister(fd)

    def react(self, job, what):
        if what == "pid":
            self.finish(job)
        elif what == "hand":
            self.hand_over(job)
        elif what == "template":
            self.unwatch(self.template.fileno())
            try:
                ready = self.template.recv(16) == b"ready"
            except OSError:
                ready = False
            if ready:
                self.send(OP_STARTED, job.id, U32.pack(job.pid))
        else:
            self.drain(job, what)
            if job.said is not None and not job.ended:
                self.end_waiting(job)

    def drain(self, job, what):
        """Read available output. Output beyond the limit ends the job; the part within the limit is kept."""
        fd, into = job.fds[what], job.data.get(what)
        while fd >= 0:
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                break
            room = job.spec.result - job.answered if what == "res" else job.spec.output - job.written
            into += chunk[:room]
            if what != "res":
                job.written += min(len(chunk), room)
            else:
                job.answered += min(len(chunk), room)
                self.follow_records(job, chunk[:room])
            if len(into) >= OUTPUT_BLOCK:
                self.send(OP_OUTPUT, job.id, U32.pack(STREAMS[what]) + into)
                into.clear()
            if len(chunk) > room:
                self.kill(job, ENDED_OUTPUT)
            if not chunk or len(chunk) > room:
                self.unwatch(fd)
                close_all(job.fds, what)
                break

    def follow_records(self, job, chunk):
        """Each whole record of a group restarts the wall clock; the last one, or X and an exit code, is the end."""
        data = job.unread
        data += chunk
        at = 0
        if job.cpu_base is None:
            if len(data) < OWN.size:
                return
            (job.cpu_base,) = OWN.unpack_from(data)
            at = OWN.size
        while job.said is None:
            if job.record_left:
                step = min(job.record_left, len(data) - at)
                job.record_head += data[at : at + step][: 2 - len(job.record_head)]
                at += step
                job.record_left -= step
                if job.record_left:
                    break
            else:
                if len(data) - at < U32.size:
                    break
                job.record_size = job.record_left = U32.unpack_from(data, at)[0]
                job.record_head = b""
                at += U32.size
                if job.record_left:
                    continue
            if job.spec.records:
                job.records += 1
                job.deadline = time.monotonic_ns() + job.spec.wall_ns
                job.said = 0 if job.records == job.spec.records else None
            elif job.record_size == 2 and job.record_head[:1] == b"X":
                job.said = job.record_head[1] << 8
        del data[:at]

    def hand_over(self, job):
        fd = job.fds["hand"]
        try:
            while job.give:
                job.give = job.give[os.write(fd, job.give) :]
        except BlockingIOError:
            if fd not in self.places:
                self.watch_fd(job, "hand", fd, self.OUT)
            return
        except OSError:
            pass  # it has ended already
        self.unwatch(fd)
        close_all(job.fds, "hand")
        job.give = memoryview(b"")

    def end_waiting(self, job):
        """A program has said its last word. What it used is asked for first: the kernel does not tell of the killed."""
        pid = self.find(job.id)[1]
        own_ns, entry = cpu_of(pid), look_at(pid)
        if own_ns is not None and entry is not None:
            job.cpu_ns, job.peak_kb = max(job.cpu_ns, own_ns + entry[4]), max(job.peak_kb, peak_of(pid))
        os.kill(job.pid, 9)

    def kill(self, job, why):
        job.ended = job.ended or why
        os.kill(job.pid, 9)  # not reaped yet, so it is still the one

    def finish(self, job):
        wall_ns = time.monotonic_ns() - job.started
        for what in job.data:
            self.drain(job, what)
        _, status, usage = os.wait4(job.pid, WALL)
        if job.spec.kind == TRUSTED:
            self.unwatch(self.template.fileno())
            self.template.close()
            self.template = self.template_job = None
        else:
            status = self.read_report(job, usage)
        job.hits |= job.slot.hits() if job.slot else 0
        data = [bytes(job.data[what]) for what in ("out", "err", "res")]
        done = DONE.pack(
            job.ended,
            status,
            job.hits,
            job.exec_errno,
            wall_ns,
            max(0, job.cpu_ns - (job.cpu_base or 0)),
            job.peak_kb,
            job.written,
            *map(len, data),
            job.records,
        )
        self.let_go(job)
        self.send(OP_DONE, job.id, b"".join((done, *data)))

    def read_report(self, job, usage):
        """What the job's init said in the end; -1 for one that was killed."""
        said = os.read(job.fds["report"], OWN.size + REPORT.size)
        own_ns = OWN.unpack_from(said)[0] if said else 0
        status, peak_kb = REPORT.unpack_from(said, OWN.size) if len(said) > OWN.size else (-1, 0)
        cpu_ns = int((usage.ru_utime + usage.ru_stime) * 1e9) - own_ns
        job.peak_kb = max(job.peak_kb, peak_kb)
        job.cpu_ns = max(cpu_ns, job.cpu_ns if status == -1 else 0, 0)
        return job.said if status == -1 and job.said is not None else status

    # requests about jobs

    def find(self, id):
        """A job by its id, and its first process as this pid namespace numbers it."""
        for job in self.jobs:
            if job.id == id:
                children = take(f"/proc/{job.pid}/task/{job.pid}/children").split()
                return job, job.pid if job.spec.kind == TRUSTED else int(children[0]) if children else 0
        return None, 0

    def kill_request(self, id, target, number):
        job, pid = self.find(target)
        if job is None:
            return self.send_error(id, errno.ESRCH, "no such execution")
        try:
            if number == 0:
                self.kill(job, ENDED_HOST)
            elif pid:
                os.kill(pid, number)
            else:
                raise ProcessLookupError(errno.ESRCH, "")
        except OSError as error:
            return self.send_error(id, error.errno, "signal")
        return self.send(OP_PONG, id)

    def usage_request(self, id, target):
        job, pid = self.find(target)
        cpu_ns = cpu_of(pid)
        if job is None or cpu_ns is None:
            return self.send_error(id, errno.ESRCH, "no such execution")
        self.watch(time.monotonic_ns())
        hits, job.hits = job.hits | (job.slot.hits() if job.slot else 0), 0
        return self.send(OP_PONG, id, struct.pack("<QQQ", max(cpu_ns, job.cpu_ns), peak_of(pid), hits))

    # time, memory and processes

    def patience_ms(self, now):
        times = [job.deadline for job in self.jobs if job.deadline and not job.ended]
        if any(job.spec.kind != TRUSTED and not job.ended for job in self.jobs):
            times.append(self.next_watch)
        return None if not times else max(0, min(60000, (min(times) - now) // 1_000_000 + 1))

    def enforce_time(self, now):
        late = [job for job in self.jobs if job.deadline and not job.ended and now >= job.deadline]
        if late or now >= self.next_watch:
            self.watch(now)
        for job in late:
            self.kill(job, ENDED_WALL)

    def watch(self, now):
        """Check the processes of all jobs: CPU time, their number, and memory if no cgroup limits it."""
        self.next_watch = now + self.watch_every
        if not any(now - job.started > WATCH_NS // 4 for job in self.jobs if job.spec.kind != TRUSTED):
            return
        inits = {job.pid: job for job in self.jobs}
        seen = {int(pid): entry for pid in os.listdir("/proc") if pid.isdigit() and (entry := look_at(pid))}
        template = seen.get(self.template_job.pid) if self.template_job else None
        totals = {job: [0, 0, 0] for job in self.jobs}
        members = {job: [] for job in self.jobs}
        for pid, (_, cpu_ns, rss_kb, threads, reaped_ns, place) in list(seen.items()):
            if pid in inits:  # it waits for whom the guest's processes left behind; what it uses itself is ours
                totals[inits[pid]][0] += reaped_ns
                continue
            job = self.job_of(pid, seen, inits)
            if job is not None:
                unseen_kb = 0 if job.slot else threads * THREAD_KB + beside_rss_kb(place)
                members[job].append((place, rss_kb, unseen_kb))
                shared = template[2] if template and job.spec.kind != EXEC else 0
                for number, value in enumerate((cpu_ns, max(0, rss_kb - shared), threads)):
                    totals[job][number] += value
        self.look_closer(members)
        self.watch_sockets(members)
        idle = True
        for job, (cpu_ns, rss_kb, threads) in totals.items():
            if job.spec.kind == TRUSTED or job.ended:
                continue
            idle &= job.cpu_ns == cpu_ns
            job.peak_kb, job.cpu_ns = max(job.peak_kb, rss_kb), max(job.cpu_ns, cpu_ns)  # it may just have ended
            if threads >= job.spec.processes:
                job.hits |= 4
            kernel_kb = job.kernel_kb + job.sockets_kb
            used_kb = kernel_kb + (0 if job.slot else rss_kb + sum(unseen for _, _, unseen in members[job]))
            if (
                job.spec.memory
                and used_kb * 1024 > job.spec.memory
                and (job.slot or job.spec.memory < 1024 * (kernel_kb + share_kb(members[job])))
            ):
                self.kill(job, ENDED_MEMORY)
            elif job.spec.cpu_ns and cpu_ns > job.spec.cpu_ns + (job.cpu_base or 0):
                self.kill(job, ENDED_CPU)
        # A process that used no CPU since the last check has not grown either: check less often, to save time.
        self.watch_every = min(self.watch_every * 2, WATCH_IDLE_NS) if idle else WATCH_NS

    @staticmethod
    def job_of(pid, seen, inits):
        """By parents, as far as they go. One that ended meanwhile has left its children to another: ask again."""
        for _ in range(len(seen) + 64):
            if pid in inits:
                return inits[pid]
            entry = seen.get(pid)
            if entry is not None and entry[0] and entry[0] not in seen:
                entry = seen[pid] = look_at(pid) or entry
                if entry[0] not in seen and (parent := look_at(entry[0])):
                    seen[entry[0]] = parent
            if entry is None or entry[0] not in seen:
                return None
            pid = entry[0]
        return None

    @staticmethod
    def watch_sockets(members):
        """The buffers of sockets, where no cgroup counts them: see native/watch.c."""
        watched = [job for job in members if not job.slot and job.spec.memory and job.spec.kind != TRUSTED]
        for job in watched:
            job.sockets_kb = 0
        if not watched or number_after(b"used ", "/proc/self/net/sockstat") < SOCKETS_FEW:
            return
        held = buffered_kb()
        for job in watched if held else ():
            for place, _, _ in members[job]:
                names = listed(f"/proc/{place}/fd")
                if names is None:
                    job.sockets_kb += sum(held.values())
                for name in names or ():
                    try:
                        job.sockets_kb += held.pop(os.readlink(f"/proc/{place}/fd/{name}"), 0)
                    except OSError:
                        pass

    def look_closer(self, members):
        """What only descriptors and mappings show, when the machine's slabs have grown: see native/watch.c."""
        now_kb = number_after(b"\nSUnreclaim:", "/proc/meminfo")
        self.slabs_kb = min(self.slabs_kb or now_kb, now_kb)
        closer = now_kb >= self.slabs_kb + LOOK_CLOSER_KB
        if closer:
            self.slabs_kb = now_kb
        for job, found in members.items():
            if job.spec.kind == TRUSTED or job.ended or not job.spec.memory:
                continue
            job.slabs_kb = min(job.slabs_kb or now_kb, now_kb)
            if closer:
                job.kernel_kb = held_kb(job, [place for place, _, _ in found], now_kb - job.slabs_kb)


def look_at(pid):
    """Parent, CPU time, resident memory, threads of a process, the CPU time of the children it has waited for, and its
    place in /proc: that of a thread where the first one has ended, since the kernel then shows no memory elsewhere."""
    fields = take(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # its name may hold anything
    if len(fields) < 22:
        return None
    used_ns, reaped_ns = (sum(map(int, fields[at : at + 2])) * TICK_NS for at in (11, 13))
    threads, pages, place = int(fields[17]), int(fields[21]), str(pid)
    if fields[0] == b"Z" and threads > 1:
        for thread in listed(f"/proc/{pid}/task"):
            mine = take(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split()
            if len(mine) >= 22 and int(mine[21]):
                pages, place = int(mine[21]), f"{pid}/task/{thread}"
                break
    elif fields[0] == b"Z":
        threads = 0
    return int(fields[1]), used_ns + reaped_ns, pages * PAGE_KB, threads, reaped_ns, place


def buffered_kb():
    """What the sockets of this network namespace hold, by the name that descriptors have of them."""
    import _socket

    held = {}
    unix = struct.pack("<BBHIIIII", 1, 0, 0, 0xFFFFFFFF, 0, 1 << 5, 0, 0)
    inet = [struct.pack("<BBBxI48x", family, kind, 1 << 6, 0xFFFFFFFF) for family in (2, 10) for kind in (6, 17)]
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 4)
    try:
        for request, size, inode_at, attribute in [(unix, 16, 4, 5), *((one, 72, 68, 7) for one in inet)]:
            sock.send(struct.pack("<IHHII", 16 + len(request), 20, 0x301, 0, 0) + request)
            more = True
            while more:
                data, at = sock.recv(1 << 16), 0
                while at < len(data):
                    length, kind = struct.unpack_from("<IH", data, at)
                    more = kind not in (2, 3)
                    if not more:
                        break
                    (inode,) = U32.unpack_from(data, at + 16 + inode_at)
                    here = at + 16 + size
                    while here + 4 <= at + length:
                        long, name = struct.unpack_from("<HH", data, here)
                        if name == attribute and long >= 4 + 24:
                            words = struct.unpack_from("<6I", data, here + 4)
                            held[f"socket:[{inode}]"] = (words[0] + words[2] + words[5]) // 1024
                        here += max(4, long + 3 & ~3)
                    at += length + 3 & ~3
    finally:
        sock.close()
    return held


def listed(path):
    """None where it must not be read; empty where it is gone."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None


def beside_rss_kb(place):
    """Page tables, and what was swapped out."""
    text = take(f"/proc/{place}/status")
    return sum(int((text.partition(name)[2].split() or (0,))[0]) for name in (b"\nVmPTE:", b"\nVmSwap:"))


def share_kb(members):
    """What processes have, with a page that several share counted once. One that hides it is held to all it maps."""
    total = 0
    for place, rss_kb, unseen_kb in members:
        words = take(f"/proc/{place}/smaps_rollup").partition(b"\nPss:")[2].split()
        gone = not words and not os.path.exists(f"/proc/{place}")
        total += unseen_kb + (int(words[0]) if words else 0 if gone else rss_kb)
    return total


def held_kb(job, places, grown_kb):
    """How much of the kernel's memory a job holds by descriptors and mappings: see native/watch.c."""
    held, locks, hidden, until = 0, 0, False, time.thread_time() + LOOK_S
    for place in places:
        names = listed(f"/proc/{place}/fdinfo")
        hidden |= names is None
        for name in names or ():
            text = b"\n" + take_all(f"/proc/{place}/fdinfo/{name}")
            locks += text.count(b"\nlock:")
            held += text.count(b"\ntfd:") * OBJECT_BYTES + text.count(b"\ninotify ") * INODE_BYTES
            if locks > LOCKS_MOST or time.thread_time() > until:
                break
        if not job.slot:
            held += take_all(f"/proc/{place}/maps").count(b"\n") * MAPPING_BYTES
        hidden |= time.thread_time() > until
    if locks > LOCKS_MOST:
        return job.spec.memory // 1024 + 1
    kb = 0 if job.slot else held // 1024
    return max(kb, grown_kb) if hidden and (locks or not job.slot) else kb


def take_all(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def cpu_of(pid):
    """None for one that is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) if pid else None
    except OSError:
        return None


def peak_of(pid):
    return number_after(b"\nVmHWM:", f"/proc/{pid}/status")


def number_after(name, path):
    words = take(path).partition(name)[2].split()
    return int(words[0]) if words else 0


def close_all(fds, *names):
    """Closes descriptors of a list or a dict and marks them so."""
    for key in names or (fds if isinstance(fds, dict) else range(len(fds))):
        if fds[key] >= 0:
            os.close(fds[key])
        fds[key] = -1


def stdin_with(data):
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    fd = os.memfd_create("stdin")
    write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def receive_fds(sock, size):
    import _socket

    data, ancillary, _, _ = sock.recvmsg(size, _socket.CMSG_SPACE(4 * 16), _socket.MSG_CMSG_CLOEXEC)
    fds = []
    for level, kind, content in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    return data, fds


def template_main(preload):
    """Forks itself when the loop asks; each fork comes back here as a guest."""
    import _socket

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
            _exit(0)
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


def loop_main(control, steps):
    """Finish the box's root where bubblewrap could not, drop all capabilities, and serve."""
    import _socket

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:  # what the host ignores, the guest need not
            signal.signal(number, signal.SIG_DFL)
    loop = Loop(_socket.socket(fileno=control))
    try:
        own_inodes = settle(loop.kernel, steps)
    except OSError as error:
        loop.send_error(0, error.errno, _step)
        _exit(111)
    gc.collect()
    gc.freeze()
    loop.send(OP_PONG, 0, bytes([own_inodes]))
    loop.serve()


def share_quotas(kernel):
    """Limit a box to an eighth of its user's inotify and signal quotas: see native/box.c."""
    import resource

    for which in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
        soft, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(which, (min(soft, hard // 8), hard))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # guests get their own limit
    pid = kernel.clone(NEWPID | NEWNS)  # bubblewrap's /proc is read-only, and another one needs a pid namespace
    if pid == 0:
        try:
            kernel.mount(b"proc", b"/proc", b"proc", NOSUID | NODEV | NOEXEC)
            for name in ("instances", "watches"):
                most = take(f"/proc/sys/fs/inotify/max_user_{name}")
                if most:  # else a kernel without inotify
                    put(f"/proc/sys/user/max_inotify_{name}", b"%d" % (int(most) // 8 + 1))
            _exit(0)
        except OSError as error:
            _exit(error.errno)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise OSError(abs(number), "")


def cover(kernel, targets):
    """Give read-only files their own inodes, as native/box.c does and explains; False if that is not possible.
    They come from a tmpfs that the box's own /tmp hides afterwards."""
    doing("mount tmpfs /tmp")
    kernel.mount(b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, b"size=32m,mode=755")
    os.mkdir("/tmp/nothing")
    mounted = [line.split()[4] for line in take_all("/proc/self/mountinfo").splitlines()]
    own = True
    for number, target in enumerate(targets):
        source, path = os.open(target, os.O_PATH | os.O_CLOEXEC), os.fsencode(target)
        try:
            if stat.S_ISDIR(os.fstat(source).st_mode):
                own &= not any(place.startswith(path + b"/") for place in mounted)
                layers = b"lowerdir=/proc/self/fd/%d:/tmp/nothing" % source
                if own:
                    kernel.mount(b"overlay", path, b"overlay", RDONLY | NOSUID | NODEV, layers)
            else:
                copy = b"/tmp/%d" % number
                with open(copy, "xb") as file:
                    file.write(take_all(target))
                os.chmod(copy, os.fstat(source).st_mode & 0o755)
                kernel.mount(copy, path, None, BIND)
                kernel.mount(None, path, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
        except OSError:
            own = False
        finally:
            os.close(source)
    return own


def settle(kernel, steps):
    doing("make namespaces (user, mount)")
    kernel.unshare(NEWUSER | NEWNS)
    map_ids()
    kept = [os.open(target, os.O_PATH | os.O_CLOEXEC) for verb, target, _ in steps if verb == "again"]
    os.umask(0o022)
    own_inodes = cover(kernel, [target for verb, target, _ in steps if verb == "cover"])
    for verb, target, options in steps:
        doing(f"{verb} {target}")
        path = os.fsencode(target)
        if verb == "tmpfs":
            kernel.mount(b"tmpfs", path, b"tmpfs", NOSUID | NODEV, options.encode())
        elif verb == "remove":
            os.unlink(path)
        elif verb == "ro":
            kernel.mount(None, path, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
        elif verb == "again":
            source = kept.pop(0)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if stat.S_ISDIR(os.fstat(source).st_mode):
                os.makedirs(path, exist_ok=True)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            kernel.mount(b"/proc/self/fd/%d" % source, path, None, BIND | REC)
            os.close(source)
    doing("mount /proc to limit what it may take")
    share_quotas(kernel)
    doing("give up capabilities")
    kernel.prctl(38, 1)
    kernel.drop_capabilities()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    return own_inodes


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    sys.argv[:] = ["program.py"]  # what programs will see, as if each were such a file
    sys.orig_argv = [sys.executable, *sys.argv]
    if role == "--loop":
        loop_main(int(arguments[0]), json.loads(arguments[1]))
    elif role == "--template":
        template_main(arguments)
    elif role == "--check":
        load(arguments)  # for its complaints, where a zygote did not start
    else:
        zygote_main(role, arguments[0], arguments[1:])
