"""The system calls a guest may make, as a seccomp filter. An allow-list: what is not named here is refused.

Promises: no way to a namespace, mount, key, module, trace of another process or socket family that a box has no use
for; no file with a setuid or setgid bit; nothing of a foreign architecture. Does not bound what the allowed calls
use (limits do), nor what they reach (namespaces and Landlock do), and installs nothing (the launcher does).

A refused call gets EPERM; one this table has no name for gets ENOSYS, and so does what callers know how to do
without. A foreign architecture is killed; x32 calls carry numbers far above the highest known one and get ENOSYS,
as from a kernel built without x32.
"""

from __future__ import annotations

import collections
import enum
import errno
import functools
import os
import struct
import sys
from typing import NamedTuple, TypeAlias

from harena.backends.local import syscalls
from harena.errors import IsolationUnavailable


class Profile(enum.Enum):
    SESSION = "session"
    """Processes of a session's box."""
    PROGRAM = "program"
    """Programs of `pool.map`: only AF_UNIX sockets."""
    TALK = "talk"
    """Agents of a match: as PROGRAM, and bound to the processors that the host chose."""
    INTERPRETER = "interpreter"
    """The persistent interpreter: may also clone() with one exact value of flags, to fork itself into namespaces."""


WORD = 0xFFFF_FFFF
ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
_ERRNO = 0x0005_0000
EPERM = _ERRNO | errno.EPERM
ENOSYS = _ERRNO | errno.ENOSYS
EAFNOSUPPORT = _ERRNO | errno.EAFNOSUPPORT
EPROTONOSUPPORT = _ERRNO | errno.EPROTONOSUPPORT


class Check(NamedTuple):
    """A look at half an argument: `then` if it is one of the values, after masking."""

    word: int
    values: tuple[int, ...]
    then: Action
    otherwise: Action
    mask: int = WORD


Action: TypeAlias = int | Check
"""What becomes of a call: a return value of the filter, or a check that leads to one."""


def _low(arg: int) -> int:
    # Both machines are little endian. The kernel reads the arguments checked here as 32 bits or less: the low half.
    return 16 + 8 * arg


def _high(arg: int) -> int:
    return _low(arg) + 4


_ALLOWED = """
    access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate fchdir
    fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate
    futimesat getcwd getdents getdents64 getxattr getxattrat lchown lgetxattr link linkat listxattr listxattrat
    llistxattr lremovexattr lseek lsetxattr lstat newfstatat pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev
    pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir
    sendfile setxattr setxattrat splice stat statfs statx symlink symlinkat sync_file_range tee truncate umask unlink
    unlinkat utime utimensat utimes write writev

    brk get_mempolicy madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect
    mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise

    arch_prctl execve execveat exit exit_group fork futex futex_requeue futex_wait futex_waitv futex_wake
    get_robust_list getcpu getpgid getpgrp getpid getppid getpriority getrlimit getrusage getsid gettid ioprio_get
    ioprio_set kill pidfd_open pidfd_send_signal prlimit64 restart_syscall rseq sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setparam sched_yield set_robust_list set_tid_address setpgid setpriority setrlimit setsid
    tgkill tkill vfork wait4 waitid

    alarm pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sigaltstack signalfd signalfd4

    clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times

    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch poll ppoll pselect6 select

    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto setsockopt shutdown

    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt shmget

    capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid setgroups
    setregid setresgid setresuid setreuid setuid

    getrandom landlock_add_rule landlock_create_ruleset landlock_restrict_self sysinfo uname
    uprobe uretprobe
"""
# By paragraph: files; memory; processes and threads; signals; time; waiting; sockets; System V and POSIX IPC (a
# namespace of the box); identity (without capabilities the kernel refuses what matters); the rest. uprobe and
# uretprobe are made by the kernel's own trampolines when the host's administrator traces a library.
#
# Left out though harmless-looking: vmsplice (pins pages across a fork: on kernels before 5.19 a child could read what
# its zygote wrote later), io_setup and its kin (one system-wide quota, fs.aio-max-nr), sync and syncfs (flush the
# host's disks; nobody sees sync() fail), sched_setattr (its arguments are behind a pointer), uselib and other fossils.

_MISSING = "clone3 openat2 cachestat file_getattr file_setattr lsm_get_self_attr lsm_list_modules lsm_set_self_attr"
# Their arguments are behind pointers that a filter cannot follow, or they are new: callers fall back on ENOSYS.

_NOBODYS = "memfd_create msgget shmget"
# What these hold is in no process's resident memory, which is all that can be watched where no cgroup counts.

_SETID = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE that is not O_DIRECTORY

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (clone() reads the bit of NEWTIME as part of the
# exit signal.) CLONE_PARENT would hand the child to whoever supervises the guest.
_CLONE_DENIED = 0x7E02_0000 | 0x0000_8000

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM_OR_DGRAM = (1, 2)
_TCP_OR_UDP = (0, 6, 17)  # others (SCTP, MPTCP, UDP-Lite…) load modules into the host's kernel

_TTY_DENIED = (0x5412, 0x541C, 0x5423)  # TIOCSTI and TIOCLINUX type for others; TIOCSETD loads line disciplines
_PRCTL_DENIED = (35, 62)  # PR_SET_MM; PR_SCHED_CORE, which keeps neighbours off the sibling thread
_SCHED_NORMAL = (0, 3, 5)  # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE
_SCHED_RESET_ON_FORK = 0x4000_0000
_S_IFMT = 0o170000
_PLAIN_NODES = (0, 0o100000, 0o010000, 0o140000)  # a regular file (both ways to say it), a FIFO, a socket
_SECCOMP_TSYNC = 1


def _without(arg: int, bits: int) -> Check:
    return Check(_low(arg), (0,), ALLOW, EPERM, mask=bits)


def _creating(flags: int, mode: int) -> Check:
    # Without these flags the mode is whatever the register held.
    return Check(_low(flags), (0,), ALLOW, _without(mode, _SETID), mask=_CREATES)


def _node(mode: int) -> Check:
    return Check(_low(mode), _PLAIN_NODES, ALLOW, EPERM, mask=_S_IFMT | _SETID)


_CHECKED: dict[str, Action] = {
    "chmod": _without(1, _SETID),
    "fchmod": _without(1, _SETID),
    "fchmodat": _without(2, _SETID),
    "fchmodat2": _without(2, _SETID),
    "creat": _without(1, _SETID),
    "mkdir": _without(1, _SETID),
    "mkdirat": _without(2, _SETID),
    "open": _creating(1, 2),
    "openat": _creating(2, 3),
    "mknod": _node(1),
    "mknodat": _node(2),
    "ioctl": Check(_low(1), _TTY_DENIED, EPERM, ALLOW),
    "prctl": Check(_low(0), _PRCTL_DENIED, EPERM, ALLOW),
    "personality": Check(_low(0), (0, WORD), ALLOW, EPERM),
    "sched_setscheduler": Check(_low(1), _SCHED_NORMAL, ALLOW, EPERM, mask=WORD & ~_SCHED_RESET_ON_FORK),
    # Further filters only take rights away; a listener, or speculation allowed again, is not that.
    "seccomp": _without(1, WORD & ~_SECCOMP_TSYNC),
    "socketpair": Check(_low(0), (_AF_UNIX,), ALLOW, EAFNOSUPPORT),
}


def policy(profile: Profile, fork_flags: int | None = None, *, counted: bool = True) -> dict[str, Action]:
    """What becomes of each call by name; a known one that is not here gets EPERM. `counted`: a cgroup counts memory
    that belongs to no process; without one there must be no way to it."""
    actions: dict[str, Action] = dict.fromkeys(_ALLOWED.split(), ALLOW)
    actions |= dict.fromkeys(_MISSING.split(), ENOSYS)
    if not counted:
        actions |= dict.fromkeys(_NOBODYS.split(), ENOSYS)
    actions |= _CHECKED
    unix = Check(_low(0), (_AF_UNIX,), ALLOW, EAFNOSUPPORT)
    protocol = Check(_low(2), _TCP_OR_UDP, ALLOW, EPROTONOSUPPORT)
    internet = Check(_low(1), _STREAM_OR_DGRAM, protocol, EPERM, mask=0xF)
    offline = profile in (Profile.PROGRAM, Profile.TALK)
    actions["socket"] = unix if offline else Check(_low(0), (_AF_INET, _AF_INET6), internet, unix)
    if profile is Profile.TALK:
        actions["sched_setaffinity"] = EPERM
    clone = _without(0, _CLONE_DENIED)
    actions["clone"] = clone
    if fork_flags is not None:
        actions["clone"] = Check(_low(0), (fork_flags,), Check(_high(0), (0,), ALLOW, clone), clone)
    return actions


def assemble(
    profile: Profile, machine: str | None = None, *, fork_flags: int | None = None, counted: bool = True
) -> bytes:
    """The filter as an array of struct sock_filter. `fork_flags` goes with Profile.INTERPRETER, and only with it."""
    if (profile is Profile.INTERPRETER) != (fork_flags is not None):
        raise ValueError("fork_flags goes with Profile.INTERPRETER, and only with it")
    if fork_flags is not None and not 0 < fork_flags <= WORD:
        raise ValueError(f"fork_flags={fork_flags:#x}: clone() takes 32 bits of flags")
    return _assemble(profile, machine or _own_machine(), fork_flags, counted)


def _own_machine() -> str:
    machine = os.uname().machine
    # A 32-bit userland under a 64-bit kernel: each of its calls would count as foreign.
    return machine if sys.maxsize > WORD else f"{machine} in 32-bit mode"


_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_ARCH_WORD, _NUMBER_WORD = 4, 0


@functools.lru_cache
def _assemble(profile: Profile, machine: str, fork_flags: int | None, counted: bool) -> bytes:
    if machine not in syscalls.NUMBERS:
        known = " or ".join(syscalls.NUMBERS)
        raise IsolationUnavailable(f"no seccomp filter for a {machine} machine", fix=f"use a 64-bit {known} host")
    actions = policy(profile, fork_flags, counted=counted)
    names = {number: name for name, number in syscalls.NUMBERS[machine].items()}
    by_number = [actions.get(names[n], EPERM) if n in names else ENOSYS for n in range(max(names) + 1)]
    assembler = Assembler()
    kill = assembler.action(KILL_PROCESS)
    assembler.search([*by_number, ENOSYS])
    search = assembler.load(_NUMBER_WORD)
    assembler.jump(_JEQ, _AUDIT_ARCH[machine], search, kill)
    assembler.load(_ARCH_WORD)
    return assembler.code()


_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JA, _JEQ, _JGE, _JSET = 0x05, 0x15, 0x35, 0x45
_REACH = 255  # a conditional jump has a byte for how far
_FEW = 3  # numbers told apart one by one rather than by halving: fewer instructions, hardly more steps


class Assembler:
    """Writes a program from its end to its start: jumps only go forward, so a target is there before its jumps.

    Places are counted from the end.
    """

    def __init__(self) -> None:
        self._backwards: list[tuple[int, int, int, int]] = []
        self._placed: dict[Action, int] = {}

    def code(self) -> bytes:
        return b"".join(struct.pack("<HBBI", *instruction) for instruction in reversed(self._backwards))

    def action(self, action: Action) -> int:
        """Where the action is carried out; written once, and again where a jump could not reach it."""
        place = self._placed.get(action)
        if place is None:
            place = self._emit(_RETURN, action) if isinstance(action, int) else self._check(action)
            self._placed[action] = place
        return place

    def search(self, by_number: list[Action]) -> int:
        """Finds the action for the number that is loaded; the last one also holds for every higher number."""
        starts = [n for n in range(len(by_number)) if n == 0 or by_number[n] != by_number[n - 1]]
        return self._tree(by_number, [*starts, len(by_number)])

    def load(self, word: int) -> int:
        """Loads a word of struct seccomp_data for what was written last."""
        return self._emit(_LOAD, word)

    def jump(self, operation: int, value: int, then: int, otherwise: int) -> int:
        then, otherwise = self._near(then), self._near(otherwise)
        here = len(self._backwards)
        return self._emit(operation, value, here - then - 1, here - otherwise - 1)

    def _tree(self, by_number: list[Action], bounds: list[int]) -> int:
        usual, others = _sort(by_number, bounds[0], bounds[-1])
        if len(others) <= min(_FEW, len(bounds) - 2):
            place = self.action(usual)
            for number in reversed(others):
                place = self.jump(_JEQ, number, self.action(by_number[number]), place)
            return place
        # To install a filter the kernel runs it once for every number: halve the numbers, not the ranges.
        middle = (bounds[0] + bounds[-1]) / 2
        half = min(range(1, len(bounds) - 1), key=lambda i: abs(bounds[i] - middle))
        above = self._tree(by_number, bounds[half:])
        below = self._tree(by_number, bounds[: half + 1])
        return self.jump(_JGE, bounds[half], above, below)

    def _check(self, check: Check) -> int:
        then, otherwise = self.action(check.then), self.action(check.otherwise)
        if check.values == (0,) and check.mask != WORD:
            self.jump(_JSET, check.mask, otherwise, then)
            return self.load(check.word)
        for value in reversed(check.values):
            otherwise = self.jump(_JEQ, value, then, otherwise)
        if check.mask != WORD:
            self._emit(_AND, check.mask)
        return self.load(check.word)

    def _near(self, place: int) -> int:
        if self._reaches(place):
            return place
        operation, _, _, value = self._backwards[place]
        if operation != _RETURN:
            return self._emit(_JA, len(self._backwards) - place - 1)
        if not self._reaches(self._placed[value]):
            self._placed[value] = self._emit(_RETURN, value)
        return self._placed[value]

    def _reaches(self, place: int) -> bool:
        # One less than a jump can: its other target may still need an instruction in between.
        return len(self._backwards) - place - 1 < _REACH

    def _emit(self, operation: int, value: int, then: int = 0, otherwise: int = 0) -> int:
        self._backwards.append((operation, then, otherwise, value))
        return len(self._backwards) - 1


def _sort(by_number: list[Action], start: int, stop: int) -> tuple[Action, list[int]]:
    """The usual action of a stretch, and the numbers in it that have another one."""
    [(usual, _)] = collections.Counter(by_number[start:stop]).most_common(1)
    if stop == len(by_number):
        usual = by_number[-1]  # what is usual here also gets every higher number
    return usual, [n for n in range(start, stop) if by_number[n] != usual]
