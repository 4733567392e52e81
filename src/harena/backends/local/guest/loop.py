"""pid 1 of a box without the native library: takes the host's requests, keeps the jobs, and reports how they ended.

Follows native/serve.c, where the reasons are. It never runs a guest: programs are forked from another process, the
template, which never sees a byte of what they are given or write.

One file: what it serves is in one class, in the order of serve.c, so that the two can be compared.
"""

from __future__ import annotations

import _socket
import errno
import gc
import json
import os
import select
import signal
import struct
import time

from . import wire
from .job import ORDER, OWN, PID, REPORT, START_END, STARTED, TERMINAL_END, Config, Job, Slot, Spec, make_job
from .kernel import WALL, Kernel, close_all, doing, last_step, receive_fds, stdin_with, take
from .root import settle
from .watch import Watch, cpu_of, look_at, peak_of
from .wire import HEAD, KIND_EXEC, KIND_TRUSTED, SPAWN, SPAWN_PTY, U32

STREAMS = {"out": wire.STREAM_OUT, "err": wire.STREAM_ERR, "res": wire.STREAM_RESULT}
OUTPUT_BLOCK = 1 << 16
MAX_JOBS, START_S = 128, 20
NO_FORKS = "be forked: a fork of a live box needs the native launcher (install a C compiler and reinstall harena)"


class Loop:
    new_job, no_forks = Job, NO_FORKS

    def __init__(self, control, kernel=None):
        self.kernel, self.control, self.config, self.folders = kernel or Kernel(), control, None, []
        self.jobs, self.slots, self.slots_made, self.template, self.template_job = [], [], 0, None, None
        self.watch, self.poll, self.places = Watch(), select.poll(), {}
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
                os._exit(0)
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def send(self, op, id, body=b"", fd=-1):
        data = HEAD.pack(wire.MAGIC, op, int(fd >= 0), id, len(body)) + body
        try:
            if fd >= 0:
                data = data[self.control.sendmsg([data], [(1, 1, struct.pack("i", fd))]) :]
            self.control.sendall(data)
        except OSError:
            os._exit(0)  # the host is gone

    def send_error(self, id, number, step):
        self.send(wire.OP_ERROR, id, struct.pack("<i", number or errno.EIO) + step.encode()[:1000])

    def handle_request(self):
        data, fds = receive_fds(self.control, HEAD.size)
        if not data:
            os._exit(0)
        magic, op, _, id, length = HEAD.unpack(data + self.receive(HEAD.size - len(data)))
        if magic != wire.MAGIC or length > wire.MAX_FRAME:
            os._exit(3)
        body = self.receive(length)
        try:
            if op == wire.OP_PING:
                self.send(wire.OP_PONG, id, body)
            elif op == wire.OP_SPAWN:
                self.spawn(id, body, fds)
            elif op == wire.OP_KILL:
                self.kill_request(id, *struct.unpack("<II", body))
            elif op == wire.OP_USAGE:
                self.usage_request(id, *U32.unpack(body))
            elif op == wire.OP_CONFIG:
                self.config, self.config_body = Config(body), body
                self.folders, fds = (fds, []) if self.config.cgroups else ([], fds)
                self.configured()
                self.send(wire.OP_PONG, id)
            elif op == wire.OP_ALLOW_FORKS:
                self.send_error(id, errno.ENOSYS, self.no_forks)
            else:
                self.send_error(id, errno.ENOSYS, "unknown request")
        except (struct.error, IndexError, ValueError):
            self.send_error(id, errno.EPROTO, "malformed request")
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def configured(self):
        """Called when the configuration has come."""

    # starts

    def spawn(self, id, body, fds):
        job = self.new_job(id, Spec(*SPAWN.unpack_from(body)))
        spec, at, pieces = job.spec, SPAWN.size, []
        for length in (spec.strings_len, spec.cwd_len, spec.stdin_len, spec.payload_len):
            pieces.append(body[at : at + length])
            at += length
        if (
            at != len(body)
            or not KIND_EXEC <= spec.kind <= KIND_TRUSTED
            or spec.profile >= wire.PROFILES
            or spec.view
            or self.config is None
        ):
            return self.send_error(id, errno.EPROTO, "malformed request")
        try:
            if len(self.jobs) >= MAX_JOBS:
                raise OSError(errno.EAGAIN, "")
            doing("start the job")
            words = pieces[0].split(b"\0")
            argv, env = words[: spec.argc], words[spec.argc : spec.argc + spec.envc]
            env = dict(word.split(b"=", 1) for word in env)
            if spec.kind == KIND_TRUSTED:
                return self.start_template(job, argv, env)
            self.set_up_stdio(job, pieces[2], fds)
            self.start(job, (argv, env, pieces[1].rstrip(b"\0")) if spec.kind == KIND_EXEC else None)
        except OSError as error:
            number, step = error.errno, last_step()
            self.discard(job)
            return self.send_error(id, number, step)
        job.started = job.started or time.monotonic_ns()
        job.deadline = job.started + spec.wall_ns if spec.wall_ns else 0
        self.watch.expect(job.started)
        self.jobs.append(job)
        self.watch_fd(job, "pid", job.pidfd)
        for name in ("out", "err", "res"):
            self.watch_fd(job, name, job.fds[name])
        if job.fds["hand"] >= 0:
            job.give = memoryview(U32.pack(spec.payload_len) + pieces[3])
            self.hand_over(job)
        if spec.flags & wire.SPAWN_NOTIFY:
            self.send(wire.OP_STARTED, id, U32.pack(job.pid), job.fds["master"])
            close_all(job.fds, "master")
        return None

    def pipe(self, job, name, end, *, to_us=True):
        read, write = os.pipe()
        ours, job.ends[end] = (read, write) if to_us else (write, read)
        os.set_blocking(ours, False)
        job.fds[name] = ours

    def set_up_stdio(self, job, stdin, fds):
        doing("stdio")
        if job.spec.flags & SPAWN_PTY:
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            job.fds["terminal"], job.ends[TERMINAL_END] = ours.detach(), theirs.detach()
            return
        if job.spec.flags & wire.SPAWN_CAPTURE:
            self.pipe(job, "out", 1)
            self.pipe(job, "err", 2)
            job.ends[0] = stdin_with(stdin)
        else:
            if len(fds) < 3:
                raise OSError(errno.EINVAL, "")
            job.ends[:3], fds[:3] = fds[:3], [-1] * 3
            if len(fds) > 3:
                job.ends[5], fds[3] = fds[3], -1
        if job.spec.kind == wire.KIND_PROGRAM:
            self.pipe(job, "res", 3)
        if job.spec.kind != KIND_EXEC:
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
        job.pid = self.make(job, command, job.ends + joins)
        job.pidfd = self.kernel.call(434, job.pid, 0)
        close_all(job.ends)
        self.await_start(job)
        if job.spec.flags & SPAWN_PTY:
            self.take_terminal(job)

    def make(self, job, command, fds):
        if command is not None:
            return make_job(self.kernel, self.config, job.spec, fds, bool(job.slot), command)
        return self.ask_template(job, fds)

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
        said, fd = b"", job.fds["start"]
        poll = select.poll()
        poll.register(fd, self.IN)
        while poll.poll(START_S * 1000):
            data = os.read(fd, 4096)
            said += data
            if not data or (len(said) == 1 + STARTED.size and said[:1] == b"R" and job.spec.kind != KIND_EXEC):
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
        job.slot = self.free_slot(job.spec.memory, job.spec.processes)

    def free_slot(self, memory, processes):
        doing("cgroup")
        for slot in [slot for slot in self.slots if not slot.busy]:
            if slot.limit(memory, processes):
                break
            self.slots.remove(slot)
            slot.remove()
        else:
            self.slots_made += 1
            slot = Slot(self.slots_made, self.config.cgroups, self.folders)
            self.slots.append(slot)
            slot.limit(memory, processes)
        slot.busy = True
        return slot

    def discard(self, job):
        """A job that did not start."""
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
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("ll", START_S, 0))
        job.pid = os.fork()
        if job.pid == 0:
            try:
                os.dup2(theirs.fileno(), 3)
                self.kernel.close_range(4)
                os.execve(argv[0], argv, env)
            finally:
                os._exit(127)
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
                self.send(wire.OP_STARTED, job.id, U32.pack(job.pid))
        else:
            self.drain(job, what)
            if job.said is not None and not job.ended:
                self.end_waiting(job)

    def drain(self, job, what):
        """Reads what is there. Output beyond the limit ends the job; the part that fits is kept."""
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
                self.send(wire.OP_OUTPUT, job.id, U32.pack(STREAMS[what]) + into)
                into.clear()
            if len(chunk) > room:
                job.kill(wire.ENDED_OUTPUT)
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
        self.end_init(job)

    def end_init(self, job):
        os.kill(job.pid, 9)

    def finish(self, job):
        wall_ns = time.monotonic_ns() - job.started
        for what in job.data:
            self.drain(job, what)
        _, status, usage = os.wait4(job.pid, WALL)
        job.how = status
        if job.spec.kind == KIND_TRUSTED:
            self.unwatch(self.template.fileno())
            self.template.close()
            self.template = self.template_job = None
        else:
            status = self.read_report(job, usage)
        done = self.describe(job, status, wall_ns)
        self.let_go(job)
        self.send(wire.OP_DONE, job.id, done)

    def describe(self, job, status, wall_ns):
        job.hits |= job.slot.hits() if job.slot else 0
        data = [bytes(job.data[what]) for what in ("out", "err", "res")]
        done = wire.DONE.pack(
            job.ended, status, job.hits, job.exec_errno, wall_ns, max(0, job.cpu_ns - (job.cpu_base or 0)), job.peak_kb,
            job.written, *map(len, data), job.records,
        )  # fmt: skip
        return b"".join((done, *data))

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
                return job, job.pid if job.spec.kind == KIND_TRUSTED else int(children[0]) if children else 0
        return None, 0

    def kill_request(self, id, target, number):
        job, pid = self.find(target)
        if job is None:
            return self.send_error(id, errno.ESRCH, "no such execution")
        try:
            if number == 0:
                job.kill(wire.ENDED_HOST)
            elif pid:
                os.kill(pid, number)
            else:
                raise ProcessLookupError(errno.ESRCH, "")
        except OSError as error:
            return self.send_error(id, error.errno, "signal")
        return self.send(wire.OP_PONG, id)

    def usage_request(self, id, target):
        job, pid = self.find(target)
        cpu_ns = cpu_of(pid)
        if job is None or cpu_ns is None:
            return self.send_error(id, errno.ESRCH, "no such execution")
        self.watch.look(time.monotonic_ns(), self.jobs, self.template_job)
        hits, job.hits = job.hits | (job.slot.hits() if job.slot else 0), 0
        return self.send(wire.OP_PONG, id, struct.pack("<QQQ", max(cpu_ns, job.cpu_ns), peak_of(pid), hits))

    # time, memory and processes

    def patience_ms(self, now):
        times = [job.deadline for job in self.jobs if job.deadline and not job.ended]
        if any(job.spec.kind != KIND_TRUSTED and not job.ended for job in self.jobs):
            times.append(self.watch.next_ns)
        return None if not times else max(0, min(60000, (min(times) - now) // 1_000_000 + 1))

    def enforce_time(self, now):
        late = [job for job in self.jobs if job.deadline and not job.ended and now >= job.deadline]
        if late or now >= self.watch.next_ns:
            self.watch.look(now, self.jobs, self.template_job)
        for job in late:
            job.kill(wire.ENDED_WALL)


def main(role, arguments):
    """Finishes the box's root where bubblewrap could not, gives up every capability, and serves."""
    control, steps = int(arguments[0]), json.loads(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:  # what the host ignores, the guest need not
            signal.signal(number, signal.SIG_DFL)
    loop = Loop(_socket.socket(fileno=control))
    try:
        own_inodes = settle(loop.kernel, steps)
    except OSError as error:
        loop.send_error(0, error.errno, last_step())
        os._exit(111)
    gc.collect()
    gc.freeze()
    loop.send(wire.OP_PONG, 0, bytes([own_inodes]))
    loop.serve()
