"""The loop of a box without namespaces, which serves its jobs.

The box is a folder of the host with the box's files, and Landlock shows a job that folder, what the host's order names,
and nothing else.
"""

from __future__ import annotations

import _socket
import errno
import json
import os
import select
import signal
import struct
import time

from .. import wire
from ..job import PID, REPORT_END, START_END
from ..kernel import SCOPES_ABI, WALL, doing, take
from ..loop import START_S, Loop
from ..watch import Watch, cpu_of, look_at, peak_of
from ..wire import KIND_PROGRAM, KIND_TRUSTED, SPAWN_FRESH_FS, U32
from .folders import remove_folder, weigh
from .job import FRESH, ORDER, BareJob, Parked, SpecWithRunning, Surroundings, is_file_server, make_job, pack_order
from .landlock import READ, LandlockRules
from .processes import below, children_of, end_one_by_one, send

PARKED, PARKED_BYTES, PARKED_PROCESSES = 2, 64 << 20, 4
SWEEP_NS, DISK_NS = 2_000_000_000, 100_000_000
NO_FORKS = "be forked: a fork of a live box needs the full isolation tier"


class BareWatch(Watch):
    """Looks at the box's own processes: /proc shows those of the whole machine."""

    def __init__(self):
        super().__init__()
        self.sockets = None

    def pids(self, jobs):
        return [pid for job in jobs for pid in (job.pid, *below(job.pid))]

    def few_sockets(self, used):
        self.sockets = used if self.sockets is None else min(self.sockets, used)
        return super().few_sockets(used - self.sockets)


class BareLoop(Loop):
    new_job, no_forks = BareJob, NO_FORKS

    def __init__(self, control, kernel, order):
        super().__init__(control, kernel)
        self.order, self.around = order, Surroundings(kernel, order)
        self.watch = BareWatch()
        self.parked, self.parking, self.removing = [], [], {}
        self.disk_next, self.full, self.used = 0, False, 0
        kernel.prctl(36, 1)

    def configured(self):
        self.around.config = self.config

    # starts

    def running(self):
        """How many processes a job may find there already, by which RLIMIT_NPROC goes: it counts those of a user."""
        if self.order["uid"] is None:
            return int(take("/proc/loadavg").split()[3].split(b"/")[1]) + 64
        others = sum(job.spec.processes + 2 for job in self.jobs if job.spec.kind != KIND_TRUSTED)
        return 2 + 2 * PARKED + others + len(self.removing)

    def make(self, job, command, ends):
        # In a full box a job may read and remove, and write nothing, until there is room again.
        job.frugal = self.full and not job.spec.flags & SPAWN_FRESH_FS and not is_file_server(job.spec)
        spec = SpecWithRunning(*job.spec, self.running(), job.frugal)
        if command is not None:
            pid, _ = make_job(self.around, spec, ends, bool(job.slot), os.getpid(), command)
            return pid
        pid = self.give_order(job) if job.parked else None
        return pid or self.ask_template(job, ends)

    def ask_template(self, job, ends):
        doing("reach the box's Python")
        if self.template is None:
            raise OSError(errno.ESRCH, "")
        self.settle_parking(wait=True)
        given = [fd for fd in ends if fd >= 0]
        data = pack_order(ends, job, self.running())
        self.template.sendmsg([data], [(1, 1, struct.pack(f"{len(given)}i", *given))])
        return self.pid_from_template()

    def pid_from_template(self):
        (pid,) = PID.unpack(self.template.recv(PID.size) or PID.pack(-errno.ESRCH))
        if pid < 0:
            raise OSError(-pid, "")
        return pid

    def take_slot(self, job):
        """A program that waits for its order is in its cgroup already: to join one takes the kernel long."""
        if job.spec.kind == KIND_PROGRAM and job.spec.flags & SPAWN_FRESH_FS:
            if not self.parked:
                self.settle_parking(wait=True)
            if self.parked:
                job.parked = self.parked.pop(0)
                job.slot = job.parked.slot
                if job.slot:
                    job.slot.limit(job.spec.memory, job.spec.processes)
                return
        super().take_slot(job)

    def give_order(self, job):
        """Hands a job to the parked process; its pid, or None if that has ended."""
        parked, job.parked = job.parked, None
        ends = [*job.ends[:REPORT_END], -1]
        given = [fd for fd in ends if fd >= 0]
        try:
            order = pack_order(ends, job, self.running())
            parked.sock.sendmsg([order], [(1, 1, struct.pack(f"{len(given)}i", *given))])
        except OSError:
            send(parked.pid, signal.SIGKILL)
            os.waitpid(parked.pid, WALL)
            os.close(parked.report)
            return None
        finally:
            parked.sock.close()
        # Its init wrote to this pipe, and will: the one that was made for the job is not used.
        os.close(job.fds["report"])
        os.close(job.ends[REPORT_END])
        job.fds["report"], job.ends[REPORT_END] = parked.report, -1
        return parked.pid

    def park(self):
        """Asks the template for programs ahead; `settle_parking` takes its answers."""
        while self.template_ready and len(self.parked) + len(self.parking) < PARKED:
            slot = self.free_slot(PARKED_BYTES, PARKED_PROCESSES) if self.folders else None
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            report, write = os.pipe()
            os.set_blocking(report, False)
            fds = [-1] * START_END + [theirs.fileno(), write, *(slot.joins if slot else [])]
            given = [fd for fd in fds if fd >= 0]
            mask = sum(1 << number for number, fd in enumerate(fds) if fd >= 0)
            self.template.sendmsg([ORDER.pack(mask, 0, 0, 0)], [(1, 1, struct.pack(f"{len(given)}i", *given))])
            theirs.close()
            os.close(write)
            self.parking.append((ours, report, slot))

    def settle_parking(self, wait=False):
        if not self.template_ready:
            return
        poll = select.poll()
        poll.register(self.template.fileno(), self.IN)
        while self.parking and (wait or poll.poll(0)):
            pid = self.pid_from_template()
            self.parked.append(Parked(pid, *self.parking.pop(0)))

    def start_template(self, job, argv, env):
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("ll", START_S, 0))
        loop = os.getpid()
        job.pid = os.fork()
        if job.pid == 0:
            try:
                self.kernel.prctl(1, 9)
                if os.getppid() != loop:
                    os._exit(0)
                os.dup2(theirs.fileno(), 3)
                self.kernel.close_range(4)
                os.setsid()
                os.chdir(self.around.own.workspace)
                rules = LandlockRules(self.kernel, self.order)
                rules.add("/proc", READ)  # its forks are shown their own part of it alone
                self.kernel.prctl(38, 1)
                rules.enter([self.around.base])
                os.execve(argv[0], argv, env)
            finally:
                os._exit(127)
        theirs.close()
        job.pidfd = self.kernel.call(434, job.pid, 0)
        ours.send(self.config_body)
        ours.send(json.dumps(self.order).encode())
        self.template, self.template_job = ours, job
        self.jobs.append(job)
        self.watch_fd(job, "pid", job.pidfd)
        self.watch_fd(job, "template", ours.fileno())

    def react(self, job, what):
        if what != "template":
            return super().react(job, what)
        try:
            if self.template_ready:
                return self.settle_parking()
            if self.template.recv(16) != b"ready":
                raise OSError(errno.ESRCH, "")
            self.template_ready = True
            self.send(wire.OP_STARTED, job.id, U32.pack(job.pid))
            return self.park()
        except OSError:  # it has ended, which its pidfd says as well
            self.template_ready = False
            return self.unwatch(self.template.fileno())

    template_ready = False

    # ends

    def discard(self, job):
        if job.parked:
            job.parked.sock.close()
            os.close(job.parked.report)
        if job.pid:
            job.end()
            os.waitpid(job.pid, WALL)
            self.forget_folder(job)
        self.let_go(job)

    def end_waiting(self, job):
        """A program has said its last word. If it is alone, the answer need not wait for its init: a process that was
        sent SIGKILL starts no other one, and one that had a child would show it here, or its init would."""
        if job.reported:
            return
        pid = self.find(job.id)[1]
        own_ns, entry = cpu_of(pid), look_at(pid)
        if own_ns is not None and entry is not None:
            job.cpu_ns, job.peak_kb = max(job.cpu_ns, own_ns + entry[4]), max(job.peak_kb, peak_of(pid))
        if pid:
            send(pid, signal.SIGKILL)
        if not pid or children_of(pid) or any(child != pid for child in children_of(job.pid)):
            return job.end()
        wall_ns = time.monotonic_ns() - job.started
        for what in job.data:
            self.drain(job, what)
        job.reported, job.deadline, job.ended = True, 0, job.ended or wire.ENDED_SELF
        self.send(wire.OP_DONE, job.id, self.describe(job, job.said, wall_ns))
        return None

    def read_report(self, job, usage):
        status = super().read_report(job, usage)
        # A program that has said its last word was killed by `end_waiting`, and its init may have seen that first.
        return status if job.said is None else job.said

    def let_go(self, job):
        super().let_go(job)
        if job.spec.kind != KIND_TRUSTED:
            self.park()

    def finish(self, job):
        folder_of = job.pid if job.spec.flags & SPAWN_FRESH_FS else 0
        if job.spec.kind == KIND_TRUSTED:
            self.template_ready = False
            for parked in [*self.parked, *(Parked(0, *one) for one in self.parking)]:
                parked.sock.close()
                os.close(parked.report)
                if parked.pid:
                    send(parked.pid, signal.SIGTERM)
            self.parked, self.parking = [], []
        if job.reported:
            job.how = os.waitpid(job.pid, WALL)[1]
            self.let_go(job)
        else:
            super().finish(job)
        if os.WIFSIGNALED(job.how):
            self.end_strays()
        if folder_of:
            self.forget_folder(job)

    def end_strays(self):
        """Processes that have come to this one, because the init above them was killed."""
        ours = {job.pid for job in self.jobs} | {pid for pid, *_ in self.parked} | set(self.removing)
        self.settle_parking(wait=True)
        ours |= {pid for pid, *_ in self.parked}
        for pid in children_of(os.getpid()):
            if pid not in ours:
                end_one_by_one(pid)
                send(pid, signal.SIGKILL)

    def forget_folder(self, job):
        """Removes the files of a program; if there are any, beside the loop."""
        folder = f"{self.around.base}/{FRESH}/{job.pid}"
        try:
            for name in ("workspace", "tmp"):
                os.rmdir(f"{folder}/{name}")
            os.rmdir(folder)
            return
        except OSError:
            pass
        pid = os.fork()
        if pid == 0:
            try:
                self.kernel.prctl(1, 9)
                remove_folder(folder)
            finally:
                os._exit(0)
        self.removing[pid] = folder

    def enforce_time(self, now):
        super().enforce_time(now)
        for job in self.jobs:
            if self.order["uid"] is None and job.threads > job.spec.processes and not job.ended:
                job.kill(wire.ENDED_CPU)  # the watch has noted why
            if job.asked_ns and now > job.asked_ns + SWEEP_NS and self.around.abi < SCOPES_ABI:
                end_one_by_one(job.pid)  # its init may have been stopped
                send(job.pid, signal.SIGKILL)
        self.watch_disk(now)
        for pid in list(self.removing):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.removing[pid]

    def end_if_full(self, jobs, places, most):
        used = max(weigh(folder, 4 * most) for folder in (places.workspace, places.tmp))
        if used > most:
            for job in jobs:
                job.kill(wire.ENDED_DISK)
        return used

    def watch_disk(self, now):
        jobs = [job for job in self.jobs if job.spec.kind != KIND_TRUSTED and not job.ended and not job.reported]
        jobs = [job for job in jobs if not is_file_server(job.spec)]
        if now < self.disk_next or not any(now - job.started > DISK_NS for job in jobs):
            return
        shared = [job for job in jobs if not job.spec.flags & SPAWN_FRESH_FS]
        for job in jobs:
            if job not in shared:
                most = job.spec.fs_bytes * 9 // 8  # one file may have that size, beside others
                self.end_if_full([job], self.around.fresh(job.pid), most)
        if shared:
            before, most = self.used, self.order["bytes"] * 9 // 8
            # A server that was there before may have no part in it: it goes only if what is there still grows.
            victims = [job for job in shared if job.spec.kind != wire.KIND_SERVER and not job.frugal]
            self.used = self.end_if_full(victims, self.around.own, most)
            self.full = self.used > most
            if self.used > before > most or self.used > 4 * most:
                for job in shared:
                    job.kill(wire.ENDED_DISK)
        self.disk_next = now + max(DISK_NS, 20 * (time.monotonic_ns() - now))
