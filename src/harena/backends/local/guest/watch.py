"""Memory, CPU and process limits of jobs, enforced by looking at /proc where no cgroup does.

Follows native/watch.c, where the reasons are.
"""

from __future__ import annotations

import _socket
import os
import struct
import time

from .kernel import number_after, take, take_all
from .wire import ENDED_CPU, ENDED_MEMORY, KIND_EXEC, KIND_TRUSTED, U32

WATCH_NS, WATCH_IDLE_NS = 20_000_000, 100_000_000
THREAD_KB, OBJECT_BYTES, INODE_BYTES, MAPPING_BYTES = 24, 256, 1280, 320
LOCKS_MOST, LOOK_CLOSER_KB, LOOK_S, SOCKETS_FEW = 8192, 8192, 0.05, 64
TICK_NS, PAGE_KB = 1_000_000_000 // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE") // 1024


class Watch:
    def __init__(self):
        self.next_ns, self.every_ns, self.slabs_kb = 0, WATCH_NS, 0

    def expect(self, now):
        """A job starts: looks often again."""
        self.next_ns, self.every_ns = min(self.next_ns, now + WATCH_NS), WATCH_NS

    def look(self, now, jobs, template_job):
        """Looks at the processes of all jobs: CPU time, how many there are, and memory where no cgroup bounds it."""
        self.next_ns = now + self.every_ns
        if not any(now - job.started > WATCH_NS // 4 for job in jobs if job.spec.kind != KIND_TRUSTED):
            return
        inits = {job.pid: job for job in jobs}
        seen = {pid: entry for pid in self.pids(jobs) if (entry := look_at(pid))}
        template = seen.get(template_job.pid) if template_job else None
        totals = {job: [0, 0, 0] for job in jobs}
        members = {job: [] for job in jobs}
        for pid, (_, cpu_ns, rss_kb, threads, reaped_ns, place) in list(seen.items()):
            if pid in inits:  # it waits for whom the guest's processes left behind; what it uses itself is ours
                totals[inits[pid]][0] += reaped_ns
                continue
            job = job_of(pid, seen, inits)
            if job is not None:
                unseen_kb = 0 if job.slot else threads * THREAD_KB + beside_rss_kb(place)
                members[job].append((place, rss_kb, unseen_kb))
                shared = template[2] if template and job.spec.kind != KIND_EXEC else 0
                for number, value in enumerate((cpu_ns, max(0, rss_kb - shared), threads)):
                    totals[job][number] += value
        self.look_closer(members)
        self.watch_sockets(members)
        idle = True
        for job, (cpu_ns, rss_kb, threads) in totals.items():
            if job.spec.kind == KIND_TRUSTED or job.ended:
                continue
            idle &= job.cpu_ns == cpu_ns
            job.peak_kb, job.cpu_ns = max(job.peak_kb, rss_kb), max(job.cpu_ns, cpu_ns)  # it may just have ended
            job.threads = threads
            if threads >= job.spec.processes:
                job.hits |= 4
            kernel_kb = job.kernel_kb + job.sockets_kb
            used_kb = kernel_kb + (0 if job.slot else rss_kb + sum(unseen for _, _, unseen in members[job]))
            if (
                job.spec.memory
                and used_kb * 1024 > job.spec.memory
                and (job.slot or job.spec.memory < 1024 * (kernel_kb + share_kb(members[job])))
            ):
                job.kill(ENDED_MEMORY)
            elif job.spec.cpu_ns and cpu_ns > job.spec.cpu_ns + (job.cpu_base or 0):
                job.kill(ENDED_CPU)
        # Who used no CPU since the last look has not grown either: look less often, Python's look costs something.
        self.every_ns = min(self.every_ns * 2, WATCH_IDLE_NS) if idle else WATCH_NS

    def pids(self, jobs):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]

    def few_sockets(self, used):
        return used < SOCKETS_FEW

    def watch_sockets(self, members):
        """The buffers of sockets, where no cgroup counts them: see native/watch.c."""
        watched = [job for job in members if not job.slot and job.spec.memory and job.spec.kind != KIND_TRUSTED]
        for job in watched:
            job.sockets_kb = 0
        if not watched or self.few_sockets(number_after(b"used ", "/proc/self/net/sockstat")):
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
            if job.spec.kind == KIND_TRUSTED or job.ended or not job.spec.memory:
                continue
            job.slabs_kb = min(job.slabs_kb or now_kb, now_kb)
            if closer:
                job.kernel_kb = held_kb(job, [place for place, _, _ in found], now_kb - job.slabs_kb)


def job_of(pid, seen, inits):
    """Find the job of a process by its parents. If one ended meanwhile, its children have another parent: ask again."""
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


def cpu_of(pid):
    """None for one that is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) if pid else None
    except OSError:
        return None


def peak_of(pid):
    return number_after(b"\nVmHWM:", f"/proc/{pid}/status")
