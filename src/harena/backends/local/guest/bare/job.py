"""One job of a box without namespaces: its init, its main process, its limits.

There is no pid namespace: the init of a job is the subreaper of all that the job starts, and ends it with one kill(-1).
Landlock's signal scope keeps that kill inside the job; where the kernel has no such scope, the init goes through the
children one by one.
"""

from __future__ import annotations

import _signal
import _socket
import collections
import errno
import fcntl
import os
import resource
import signal
import struct
import time

from .. import wire
from ..job import (
    JOINS,
    OWN,
    REPORT,
    REPORT_END,
    START_END,
    STARTED,
    STDIO,
    Job,
    execute_command,
    limit,
    not_started,
    send_terminal,
)
from ..kernel import SCOPES_ABI, WALL, doing, last_step, take
from ..wire import KIND_EXEC, KIND_TRUSTED, SPAWN, SPAWN_FRESH_FS, SPAWN_PTY
from .landlock import LandlockRules, make_scope, scope_signals
from .places import Places
from .processes import EVERY_SIGNAL, end_all, set_mask

FRESH = "fresh"


class BareJob(Job):
    """Its init ends what the job has started, and then itself."""

    asked_ns, reported, parked, frugal = 0, False, None, False

    def kill(self, why):
        self.ended = self.ended or why
        self.end()

    def end(self):
        if self.spec.kind == KIND_TRUSTED:
            os.kill(self.pid, 9)
            return
        self.asked_ns = self.asked_ns or time.monotonic_ns()
        os.kill(self.pid, signal.SIGTERM)
        os.kill(self.pid, signal.SIGCONT)


class Surroundings:
    """What the jobs of a box have in common."""

    def __init__(self, kernel, order, config=None):
        self.kernel, self.order, self.config = kernel, order, config
        self.rules = LandlockRules(kernel, order)
        self.base, self.abi, self.files_filter = order["base"], order["abi"], bytes.fromhex(order["files_filter"])
        self.own = Places(f"{self.base}/workspace", f"{self.base}/tmp")
        if self.abi >= SCOPES_ABI:
            make_scope(kernel)

    hooks = False

    def inhabit(self, places):
        """The main process learns where its files are; the template has more to do here."""

    def rehearse(self):
        """What a parked process does while nobody waits."""

    def fresh(self, init):
        folder = f"{self.base}/{FRESH}/{init}"
        return Places(f"{folder}/workspace", f"{folder}/tmp")


def make_job(around, spec, fds, counted, loop, command=None, flags=0):
    """Starts a job's init and returns its pid; in the job's main process, now a guest, its places."""
    doing("fork")
    pid = around.kernel.clone_bare(flags)
    if pid == 0:
        try:
            return 0, init_main(around, spec, fds, counted, loop, command)
        except OSError as error:
            fail(fds, error.errno or errno.EIO, last_step())
        except BaseException as error:
            fail(fds, errno.EIO, f"{last_step()} ({error!r})"[:200])
    return pid, None


def fail(fds, number, step):
    try:
        os.write(fds[START_END], b"F" + struct.pack("<i", number) + step.encode())
    finally:
        os._exit(111)


def init_main(around, spec, fds, counted, loop, command):
    """The job's init. Comes back only in its child, the main process. `spec` is None for one that waits for its order,
    on the descriptor in place of the start end."""
    kernel, me = around.kernel, os.getpid()
    set_mask(EVERY_SIGNAL)
    for number in (signal.SIGCHLD, signal.SIGTERM):  # a module may have left handlers
        _signal.signal(number, _signal.SIG_DFL)
    os.setsid()
    doing("parent death signal")
    kernel.prctl(1, signal.SIGTERM)
    if os.getppid() != loop:
        os._exit(0)
    doing("adopt orphans")
    kernel.prctl(36, 1)
    kernel.prctl(4, 0)
    doing("scope of signals")
    scoped = scope_signals(kernel, around.abi, loop)
    places = around.own
    if spec is None or spec.flags & SPAWN_FRESH_FS:
        doing("make the folders of a program")
        places = around.fresh(me)
        os.mkdir(os.path.dirname(places.workspace), 0o700)
        os.mkdir(places.workspace, 0o755)
        os.mkdir(places.tmp, 0o700)
    if spec is not None and spec.flags & SPAWN_PTY:
        doing("open a terminal")
        send_terminal(fds)
    doing("start the process")
    main = kernel.clone(0) if around.hooks else kernel.clone_bare()
    if main == 0:
        around.inhabit(places)
        if spec is None:
            return wait_parked(around, fds, places)
        become(around, spec, fds, counted, command, places)
        return places
    os.write(fds[REPORT_END], OWN.pack(time.process_time_ns()))
    os.dup2(fds[REPORT_END], 0)
    kernel.close_range(1)
    watch_over(main, scoped)


def watch_over(main, scoped):
    """Waits for the main process, or for the loop's word, and ends the rest."""
    status, peak = -1, 0
    while status == -1:
        number = _signal.sigwait((signal.SIGCHLD, signal.SIGTERM))
        if number == signal.SIGTERM:
            break
        while True:
            pid, how, usage = os.wait4(-1, WALL | os.WNOHANG)
            if pid == 0:
                break
            peak = max(peak, usage.ru_maxrss)
            if pid == main:
                status = how
                break
    end_all(scoped)
    try:
        if status != -1:
            os.write(0, REPORT.pack(status, peak))
    finally:
        os._exit(0)


def become(around, spec, fds, counted, command, places):
    """Turns the main process into a guest. A command is executed here."""
    join(fds[JOINS])
    doing("landlock rules")
    terminal = [os.ttyname(fds[0])] if spec.flags & SPAWN_PTY else []
    ruleset = around.rules.build([places.workspace, places.tmp, *terminal])
    start, ruleset = settle_descriptors(around.kernel, fds, command, keep=ruleset)
    if spec.flags & SPAWN_PTY:
        doing("terminal")
        fcntl.ioctl(0, 0x540E, 0)
        fcntl.ioctl(0, 0x5414, struct.pack("HHHH", spec.rows, spec.cols, 0, 0))
    try:
        os.chdir(places.real(os.fsdecode(command[2])) if command else places.workspace)
    except OSError as error:
        not_started(start, error)
    limit_resources(around, spec, counted)
    code = around.files_filter if is_file_server(spec) else around.config.filters[spec.profile]
    confine(around, code, ruleset)
    os.write(start, b"R" + STARTED.pack(time.monotonic_ns()))
    if command is None:
        os.close(start)
        return
    try:
        execute_command(*command[:2])
    except OSError as error:
        not_started(start, error)


def is_file_server(spec):
    return spec.kind == wire.KIND_SERVER and spec.profile == wire.PROFILE_PROGRAM


def wait_parked(around, fds, places):
    """The main process of a program that nobody has ordered yet: a guest already, but for its limits."""
    kernel = around.kernel
    doing("landlock rules")
    ruleset = around.rules.build([places.workspace, places.tmp])
    order, ruleset = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (fds[START_END], ruleset))
    fds[START_END] = order
    join(fds[JOINS])
    kernel.close_range(3, 63)
    kernel.close_range(max(order, ruleset) + 1)
    sock = _socket.socket(fileno=order)
    set_mask(())
    os.setsid()
    os.chdir(places.workspace)
    confine(around, around.config.filters[wire.PROFILE_PROGRAM], ruleset)
    around.rehearse()
    data, ancillary, _, _ = sock.recvmsg(4096, _socket.CMSG_SPACE(4 * 16), _socket.MSG_CMSG_CLOEXEC)
    given = []
    for _level, _kind, content in ancillary:
        given += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    if not data:
        os._exit(0)
    mask, counted, spec = unpack_order(data)
    given = iter(given)
    fds = [next(given) if mask >> number & 1 else -1 for number in range(mask.bit_length())]
    try:
        start, _ = settle_descriptors(kernel, fds, None, session=False)
        limit_resources(around, spec, counted)
    except OSError as error:
        fail(fds, error.errno or errno.EIO, last_step())
    os.write(start, b"R" + STARTED.pack(time.monotonic_ns()))
    os.close(start)
    return places


ORDER = struct.Struct("<HHIQ")


def pack_order(fds, job, running):
    mask = sum(1 << number for number, fd in enumerate(fds) if fd >= 0)
    return ORDER.pack(mask, bool(job.slot), job.frugal, running) + SPAWN.pack(*job.spec)


def unpack_order(data):
    mask, counted, frugal, running = ORDER.unpack_from(data)
    return mask, counted, SpecWithRunning(*SPAWN.unpack_from(data, ORDER.size), running, frugal)


Parked = collections.namedtuple("Parked", "pid sock report slot")
SpecWithRunning = collections.namedtuple("Spec", (*wire.SPAWN_FIELDS, "running", "frugal"))


def join(fds):
    doing("join cgroup")
    for fd in fds:
        os.write(fd, b"0")


def settle_descriptors(kernel, fds, command, session=True, keep=-1):
    """Gives the main process its descriptors and no others; returns those that it still needs before it is a guest."""
    doing("stdio")
    set_mask(())
    if command is not None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
    keep, start, *ends = [
        fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) if fd >= 0 else -1 for fd in (keep, fds[START_END], *fds[STDIO])
    ]
    for number, fd in enumerate(ends):
        if fd >= 0:
            os.dup2(fd, number, inheritable=number < 3)
        else:
            kernel.close_range(number, number)
    fds[START_END] = start  # where a failure is told
    first = 6
    for fd in sorted(fd for fd in (start, keep) if fd >= 0):
        if first < fd:
            kernel.close_range(first, fd - 1)
        first = fd + 1
    kernel.close_range(first)
    if session:
        os.setsid()
    return start, keep


def limit_resources(around, spec, counted):
    doing("rlimits")
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, spec.nofile)
    limit(resource.RLIMIT_MEMLOCK, 8 << 20)
    limit(resource.RLIMIT_RTPRIO, 0)
    limit(resource.RLIMIT_SIGPENDING, 1024)
    limit(resource.RLIMIT_MSGQUEUE, 0)
    limit(resource.RLIMIT_FSIZE, 0 if spec.frugal else spec.fs_bytes or around.order["bytes"])
    limit(resource.RLIMIT_NPROC, spec.running + spec.processes + 1)
    if spec.cpu_ns:
        limit(resource.RLIMIT_CPU, spec.cpu_ns // 1_000_000_000 + 2)
    if spec.kind != KIND_EXEC and spec.memory:
        used = int(take("/proc/self/statm").split()[5]) * os.sysconf("SC_PAGESIZE")
        limit(resource.RLIMIT_DATA, spec.memory + used)


def confine(around, code, ruleset):
    kernel = around.kernel
    doing("no_new_privs")
    kernel.prctl(38, 1)
    doing("landlock")
    kernel.call(446, ruleset, 0)
    os.close(ruleset)
    kernel.prctl(4, 1)  # the loop gave up all capabilities before
    doing("seccomp")
    kernel.seccomp(code)
