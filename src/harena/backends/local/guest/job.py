"""One job of a box without the native library: its namespaces, its init, its limits, its cgroup.

Follows native/job.c and native/confine.c, where the reasons are.
"""

from __future__ import annotations

import _socket
import collections
import errno
import fcntl
import os
import resource
import signal
import struct
import time

from .kernel import (
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NODEV,
    NOEXEC,
    NOSUID,
    RDONLY,
    SCOPES_ABI,
    WALL,
    close_all,
    doing,
    last_step,
    map_ids,
    take,
)
from .wire import KIND_EXEC, PROFILES, SPAWN_FIELDS, SPAWN_FRESH_FS, SPAWN_PTY, U32

Spec = collections.namedtuple("Spec", SPAWN_FIELDS)
OWN, REPORT = struct.Struct("<Q"), struct.Struct("<iQ")  # what a job's init says: CPU time of its own; status and peak
STARTED = struct.Struct("<Q")  # when the first process of a job was about to execute
ORDER, PID = struct.Struct("<HH"), struct.Struct("<q")  # what the loop asks of a template, and its answer
TERMINALS = b"newinstance,ptmxmode=0666,mode=0620,max=32"
TERMINAL_END = 5  # where a job with a terminal, which has no server's socket, sends the host's end of it
STDIO, START_END, REPORT_END, JOINS = slice(0, 6), 6, 7, slice(8, None)  # the descriptors that a job's init gets
LEFT_BYTES = 8 << 20
SLOT_FILES = {  # by version: the limit, what is used, swap, how often the limit killed
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.swappiness", "memory.oom_control"),
    2: ("memory.max", "memory.current", "memory.swap.max", "memory.events"),
}


class Job:
    """What the loop knows of a job."""

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
        self.threads = self.how = 0
        self.said = None  # the wait status that a program announced before it ended

    def kill(self, why):
        self.ended = self.ended or why
        os.kill(self.pid, 9)  # not reaped yet, so it is still the one


class Config:
    """What the host says once: a filter for each profile, the kind of cgroups, the paths that stay writable."""

    def __init__(self, body):
        self.filters, at = [], 0
        for _ in range(PROFILES):
            (length,) = U32.unpack_from(body, at)
            self.filters.append(body[at + U32.size : at + U32.size + length])
            at += U32.size + length
        self.cgroups = body[at]
        self.writable = [path for path in body[at + 1 :].split(b"\0") if path]


def make_job(kernel, config, spec, fds, counted, command=None, flags=0):
    """Starts a job's init in namespaces of its own and returns its pid; 0 in the job's main process, now a guest."""
    flags |= NEWUSER | NEWPID | NEWNS
    if spec.flags & SPAWN_FRESH_FS:
        flags |= NEWIPC | (0 if kernel.landlock_abi >= SCOPES_ABI else NEWNET)
    doing("clone namespaces")
    pid = kernel.clone(flags)
    if pid == 0:
        try:
            init_main(kernel, config, spec, fds, counted, command)
        except OSError as error:
            os.write(fds[START_END], b"F" + struct.pack("<i", error.errno or errno.EIO) + last_step().encode())
            os._exit(111)
        except BaseException as error:
            os.write(fds[START_END], b"F" + struct.pack("<i", errno.EIO) + f"{last_step()} ({error!r})".encode()[:200])
            os._exit(112)
    return pid


def init_main(kernel, config, spec, fds, counted, command):
    """pid 1 of the job. Comes back only in its child, the main process."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # a module may have left handlers
    doing("parent death signal")
    kernel.prctl(1, 9)
    doing("map the user")
    map_ids()
    if spec.flags & SPAWN_FRESH_FS:
        size = b"size=%d,nr_inodes=16384," % spec.fs_bytes
        for path, mode in ((b"/workspace", b"mode=755"), (b"/tmp", b"mode=1777"), (b"/dev/shm", b"mode=1777")):
            doing("mount " + path.decode())
            kernel.mount(b"tmpfs", path, b"tmpfs", NOSUID | NODEV, size + mode)
    doing("mount /proc")
    kernel.mount(b"proc", b"/proc", b"proc", NOSUID | NODEV | NOEXEC)
    doing("mount /dev/pts")
    if spec.flags & SPAWN_FRESH_FS:  # no terminals, as in native/job.c; bubblewrap's are everybody's
        kernel.mount(b"tmpfs", b"/dev/pts", b"tmpfs", NOSUID | NODEV | NOEXEC | RDONLY, b"size=4k,nr_inodes=2")
    else:
        kernel.mount(b"devpts", b"/dev/pts", b"devpts", NOSUID | NOEXEC, TERMINALS)
    if spec.flags & SPAWN_PTY:
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
            os._exit(0)


def send_terminal(fds):
    """Opens the job's terminal on its own instance, where its name is found, and sends the host's end to the loop."""
    master, slave = os.openpty()
    sock, fds[TERMINAL_END] = _socket.socket(fileno=fds[TERMINAL_END]), -1
    sock.sendmsg([b"t"], [(1, 1, struct.pack("i", master))])
    sock.close()
    fds[:3] = slave, os.dup(slave), os.dup(slave)
    os.close(master)


def become(kernel, config, spec, fds, counted, command):
    """Turns the main process into a guest: its descriptors, its limits, no rights. A command is executed here."""
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
    if spec.flags & SPAWN_PTY:
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
    os._exit(127)


def execute_command(argv, env):
    """Execute as execvpe does, with the PATH that the command itself gets."""
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
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def confine(kernel, config, spec, counted):
    """See native/confine.c. `counted`: a cgroup bounds the processes too."""
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
    if spec.kind != KIND_EXEC and spec.memory:
        used = int(take("/proc/self/statm").split()[5]) * os.sysconf("SC_PAGESIZE")
        limit(resource.RLIMIT_DATA, spec.memory + used)
    doing("no_new_privs")
    kernel.prctl(38, 1)
    doing("landlock")
    kernel.landlock(config.writable, bool(spec.flags & SPAWN_FRESH_FS))
    doing("capabilities")
    kernel.drop_capabilities()
    kernel.prctl(4, 1)
    doing("seccomp")
    kernel.seccomp(config.filters[spec.profile])


# ---- cgroups ----


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
