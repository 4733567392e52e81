"""Seccomp filter of guests: an allow-list of system calls. Calls that are not named here are refused.

Guarantees: guests cannot use namespaces, mounts, keys, kernel modules, tracing of other processes, or socket families
that a box does not need; they cannot create files with a setuid or setgid bit, nor make calls of a foreign
architecture. The filter does not limit the resources that allowed calls use (limits do) or what they reach (namespaces
and Landlock do). The launcher installs it.

A refused call gets EPERM. Unknown calls, and calls that software can do without, get ENOSYS. A process that makes a
call of a foreign architecture is killed; x32 calls carry numbers far above the highest known one and get ENOSYS, as
from a kernel built without x32.

One file: most of it is the list itself, which is read as a whole; `bpf` compiles it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from harena.backends.local.policy.bpf import (
    ALLOW,
    EAFNOSUPPORT,
    ENOPROTOOPT,
    ENOSYS,
    EOPNOTSUPP,
    EPERM,
    EPROTONOSUPPORT,
    PRETEND,
    WORD,
    Action,
    Check,
    compiled,
    own_machine,
)
from harena.backends.local.wire import Profile


def _low(arg: int) -> int:
    # Both machines are little endian. The kernel reads the arguments checked here as 32 bits or less: the low half.
    return 16 + 8 * arg


def _high(arg: int) -> int:
    return _low(arg) + 4


EVERYBODY: dict[str, str] = {
    "files": """
        access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate
        fchdir fchown fchownat fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate
        futimesat getcwd getdents getdents64 getxattr getxattrat lchown lgetxattr link linkat listxattr listxattrat
        llistxattr lremovexattr lseek lsetxattr lstat newfstatat pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev
        pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir
        sendfile setxattr setxattrat splice stat statfs statx symlink symlinkat sync_file_range truncate umask unlink
        unlinkat utime utimensat utimes write writev""",
    "memory": """
        brk membarrier memfd_create mincore mlock mlock2 mlockall mprotect mremap msync munlock munlockall munmap""",
    "processes and threads": """
        arch_prctl execve execveat exit exit_group fork futex futex_requeue futex_wait futex_waitv futex_wake
        get_robust_list getcpu getpgid getpgrp getpid getppid getpriority getrlimit getrusage getsid gettid ioprio_get
        kill pidfd_open pidfd_send_signal restart_syscall rseq sched_get_priority_max sched_get_priority_min
        sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
        sched_setparam sched_yield set_robust_list set_tid_address setpgid setpriority setrlimit setsid tgkill tkill
        vfork wait4 waitid""",
    "signals": """
        alarm pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
        rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4""",
    "time": """
        clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
        timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
        times""",
    "waiting": """
        epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 inotify_add_watch
        inotify_init inotify_init1 inotify_rm_watch poll ppoll pselect6 select""",
    "sockets": "accept accept4 bind connect getpeername getsockname listen recvfrom recvmmsg recvmsg shutdown",
    "identity": "capget getegid geteuid getgid getgroups getresgid getresuid getuid",
    # uprobe and uretprobe are made by the kernel's own trampolines when the host's administrator traces a library.
    "the rest": "getrandom sysinfo uname uprobe uretprobe",
}
# Left out though harmless-looking: vmsplice (pins pages across a fork: on kernels before 5.19 a child could read what
# its zygote wrote later), io_setup and its kin (one system-wide quota, fs.aio-max-nr), sync and syncfs (flush the
# host's disks; nobody sees sync() fail), sched_setattr (its arguments are behind a pointer), tee, process_madvise,
# mseal, map_shadow_stack (nothing that was tried needs them), uselib and other fossils.

COMMANDS_ONLY: dict[str, str] = {
    "get_mempolicy": "numactl, torch and the JVM ask which memory is near",
    "pkey_alloc pkey_free pkey_mprotect": "V8 guards the code it makes with protection keys",
    "ioprio_set": "ionice; a box's class is at most its host's",
    "capset setfsgid setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid": (
        "tar, ssh, tmux and shells settle on the one user they already are; without capabilities the kernel refuses "
        "every other"
    ),
    "mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget "
    "semop semtimedop shmat shmctl shmdt shmget": "fakeroot, PostgreSQL, X11; in an IPC namespace of the execution",
    "landlock_restrict_self": "the launcher confines a command that it prepared; there is no way to make a ruleset",
}
"""Calls that software needs when it runs as a command, but Python programs do not need, with the reason."""

MISSING = """
    clone3 openat2 cachestat file_getattr file_setattr lsm_get_self_attr lsm_list_modules lsm_set_self_attr
    seccomp landlock_create_ruleset landlock_add_rule
"""
# Their arguments are behind pointers that a filter cannot follow, or they are new: callers fall back on ENOSYS. Filters
# and rules of a guest's own take kernel memory that the whole machine shares (compiled filters) or that only a cgroup
# counts (rules), and software that uses them can do without.

NOBODYS = "memfd_create mq_open msgget semget shmget"
# What these hold is in no process's resident memory, which is all that can be watched where no cgroup counts.

SHARED_IPC = """
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt shmget
"""
# In a box without namespaces these reach the queues and segments of the whole machine.

OWNERS = """
    chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr futimesat lchown lremovexattr lsetxattr
    removexattr removexattrat setxattr setxattrat utime utimensat utimes
"""
# Landlock does not restrict them: a guest that shares its user with the host could change modes and times of its files.

_SETID = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE that is not O_DIRECTORY

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (clone() reads the bit of NEWTIME as part of the
# exit signal.) CLONE_PARENT would make the child a child of the process that supervises the guest.
_CLONE_DENIED = 0x7E02_0000 | 0x0000_8000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM_OR_DGRAM = (1, 2)
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_TCP_OR_UDP = (0, 6, 17)  # others (SCTP, MPTCP, UDP-Lite…) load modules into the host's kernel

PRCTL: dict[int, str] = {
    1: "PR_SET_PDEATHSIG",
    2: "PR_GET_PDEATHSIG",
    3: "PR_GET_DUMPABLE",
    15: "PR_SET_NAME",
    16: "PR_GET_NAME",
    21: "PR_GET_SECCOMP",
    23: "PR_CAPBSET_READ",
    29: "PR_SET_TIMERSLACK",
    30: "PR_GET_TIMERSLACK",
    36: "PR_SET_CHILD_SUBREAPER",
    37: "PR_GET_CHILD_SUBREAPER",
    38: "PR_SET_NO_NEW_PRIVS",
    39: "PR_GET_NO_NEW_PRIVS",
    40: "PR_GET_TID_ADDRESS",
    41: "PR_SET_THP_DISABLE",
    42: "PR_GET_THP_DISABLE",
    0x41555856: "PR_GET_AUXV",
}
PRCTL_OF_COMMANDS: dict[int, str] = {
    7: "PR_GET_KEEPCAPS",
    8: "PR_SET_KEEPCAPS",
    27: "PR_GET_SECUREBITS",
    47: "PR_CAP_AMBIENT",
    50: "PR_SVE_SET_VL",
    51: "PR_SVE_GET_VL",
    52: "PR_GET_SPECULATION_CTRL",
}
_PR_SET_DUMPABLE = 4  # only to 1: with 0 a process hides its memory from the watch
_PR_SET_PTRACER = 0x59616D61
_PR_GIVE_UP = (24, 47)  # PR_CAPBSET_DROP, PR_CAP_AMBIENT: a fork of the interpreter drops what its namespace gave it

TERMINALS: dict[int, str] = {
    0x5401: "TCGETS",
    0x5402: "TCSETS",
    0x5403: "TCSETSW",
    0x5404: "TCSETSF",
    0x5409: "TCSBRK",
    0x540A: "TCXONC",
    0x540B: "TCFLSH",
    0x540C: "TIOCEXCL",
    0x540D: "TIOCNXCL",
    0x540E: "TIOCSCTTY",
    0x540F: "TIOCGPGRP",
    0x5410: "TIOCSPGRP",
    0x5411: "TIOCOUTQ",
    0x5413: "TIOCGWINSZ",
    0x5414: "TIOCSWINSZ",
    0x541B: "FIONREAD",
    0x5420: "TIOCPKT",
    0x5421: "FIONBIO",
    0x5422: "TIOCNOTTY",
    0x5424: "TIOCGETD",
    0x5425: "TCSBRKP",
    0x5429: "TIOCGSID",
    0x5441: "TIOCGPTPEER",
    0x5450: "FIONCLEX",
    0x5451: "FIOCLEX",
    0x5452: "FIOASYNC",
    0x8004_5430: "TIOCGPTN",
    0x4004_5431: "TIOCSPTLCK",
    0x802C_542A: "TCGETS2",
    0x402C_542B: "TCSETS2",
    0x402C_542C: "TCSETSW2",
    0x402C_542D: "TCSETSF2",
}
FILES_AND_INTERFACES: dict[int, str] = {
    2: "FIGETBSZ",
    0x4004_9409: "FICLONE",
    0x4020_940D: "FICLONERANGE",
    0x8008_6601: "FS_IOC_GETFLAGS",
    0x8004_5200: "RNDGETENTCNT",
    0xC020_660B: "FS_IOC_FIEMAP",
    0x8905: "SIOCATMARK",
    0x8910: "SIOCGIFNAME",
    0x8912: "SIOCGIFCONF",
    0x8913: "SIOCGIFFLAGS",
    0x8915: "SIOCGIFADDR",
    0x8919: "SIOCGIFBRDADDR",
    0x891B: "SIOCGIFNETMASK",
    0x8921: "SIOCGIFMTU",
    0x8927: "SIOCGIFHWADDR",
    0x8933: "SIOCGIFINDEX",
}

FCNTL: dict[int, str] = {
    0: "F_DUPFD",
    1: "F_GETFD",
    2: "F_SETFD",
    3: "F_GETFL",
    4: "F_SETFL",
    5: "F_GETLK",
    8: "F_SETOWN",
    9: "F_GETOWN",
    10: "F_SETSIG",
    11: "F_GETSIG",
    15: "F_SETOWN_EX",
    16: "F_GETOWN_EX",
    36: "F_OFD_GETLK",
    1027: "F_DUPFD_QUERY",
    1030: "F_DUPFD_CLOEXEC",
    1032: "F_GETPIPE_SZ",
    1033: "F_ADD_SEALS",
    1034: "F_GET_SEALS",
}
LOCKING: dict[int, str] = {6: "F_SETLK", 7: "F_SETLKW", 37: "F_OFD_SETLK", 38: "F_OFD_SETLKW"}
_F_SETPIPE_SZ = 1031  # a pipe of 1 MB that no process maps

_SOL_SOCKET, _IPPROTO_IP, _IPPROTO_TCP, _IPPROTO_IPV6 = 1, 0, 6, 41
SOCKET_OPTIONS: dict[int, str] = {
    2: "SO_REUSEADDR",
    3: "SO_TYPE",
    4: "SO_ERROR",
    5: "SO_DONTROUTE",
    6: "SO_BROADCAST",
    7: "SO_SNDBUF",
    8: "SO_RCVBUF",
    9: "SO_KEEPALIVE",
    10: "SO_OOBINLINE",
    11: "SO_NO_CHECK",
    12: "SO_PRIORITY",
    13: "SO_LINGER",
    14: "SO_BSDCOMPAT",
    15: "SO_REUSEPORT",
    16: "SO_PASSCRED",
    17: "SO_PEERCRED",
    18: "SO_RCVLOWAT",
    19: "SO_SNDLOWAT",
    20: "SO_RCVTIMEO",
    21: "SO_SNDTIMEO",
    29: "SO_TIMESTAMP",
    30: "SO_ACCEPTCONN",
    31: "SO_PEERSEC",
    35: "SO_TIMESTAMPNS",
    38: "SO_PROTOCOL",
    39: "SO_DOMAIN",
}
IP_OPTIONS: dict[int, str] = {
    1: "IP_TOS",
    2: "IP_TTL",
    8: "IP_PKTINFO",
    10: "IP_MTU_DISCOVER",
    11: "IP_RECVERR",
    12: "IP_RECVTTL",
    13: "IP_RECVTOS",
    14: "IP_MTU",
    24: "IP_BIND_ADDRESS_NO_PORT",
    32: "IP_MULTICAST_IF",
    33: "IP_MULTICAST_TTL",
    34: "IP_MULTICAST_LOOP",
    35: "IP_ADD_MEMBERSHIP",
    36: "IP_DROP_MEMBERSHIP",
}
TCP_OPTIONS: dict[int, str] = {
    1: "TCP_NODELAY",
    2: "TCP_MAXSEG",
    3: "TCP_CORK",
    4: "TCP_KEEPIDLE",
    5: "TCP_KEEPINTVL",
    6: "TCP_KEEPCNT",
    7: "TCP_SYNCNT",
    8: "TCP_LINGER2",
    9: "TCP_DEFER_ACCEPT",
    10: "TCP_WINDOW_CLAMP",
    11: "TCP_INFO",
    12: "TCP_QUICKACK",
    18: "TCP_USER_TIMEOUT",
    23: "TCP_FASTOPEN",
    25: "TCP_NOTSENT_LOWAT",
    30: "TCP_FASTOPEN_CONNECT",
}
IPV6_OPTIONS: dict[int, str] = {
    16: "IPV6_UNICAST_HOPS",
    17: "IPV6_MULTICAST_IF",
    18: "IPV6_MULTICAST_HOPS",
    19: "IPV6_MULTICAST_LOOP",
    20: "IPV6_JOIN_GROUP",
    21: "IPV6_LEAVE_GROUP",
    23: "IPV6_MTU_DISCOVER",
    24: "IPV6_MTU",
    25: "IPV6_RECVERR",
    26: "IPV6_V6ONLY",
    49: "IPV6_RECVPKTINFO",
    51: "IPV6_RECVHOPLIMIT",
    66: "IPV6_RECVTCLASS",
    67: "IPV6_TCLASS",
}
_MSG_OOB = 1

_SCHED_NORMAL = (0, 3, 5)  # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE
_SCHED_RESET_ON_FORK = 0x4000_0000
_S_IFMT = 0o170000
_PLAIN_NODES = (0, 0o100000, 0o010000, 0o140000)  # a regular file (both ways to say it), a FIFO, a socket
_MAP_HUGETLB = 0x4_0000
_MADV_MERGEABLE = 12
_ADDR_NO_RANDOMIZE = 0x0004_0000


def _without(arg: int, bits: int) -> Check:
    return Check(_low(arg), (0,), ALLOW, EPERM, mask=bits)


def _only(arg: int, values: Iterable[int], otherwise: Action = EPERM) -> Check:
    return Check(_low(arg), tuple(values), ALLOW, otherwise)


def _creating(flags: int, mode: int) -> Check:
    # Without these flags the mode is whatever the register held.
    return Check(_low(flags), (0,), ALLOW, _without(mode, _SETID), mask=_CREATES)


def _node(mode: int) -> Check:
    return Check(_low(mode), _PLAIN_NODES, ALLOW, EPERM, mask=_S_IFMT | _SETID)


def _not_urgent(flags: int) -> Check:
    # Out-of-band data over unix sockets is code that nobody uses and that has let sandboxes down.
    return Check(_low(flags), (0,), ALLOW, EOPNOTSUPP, mask=_MSG_OOB)


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
    "sched_setscheduler": Check(_low(1), _SCHED_NORMAL, ALLOW, EPERM, mask=WORD & ~_SCHED_RESET_ON_FORK),
    "socketpair": Check(_low(0), (_AF_UNIX,), ALLOW, EAFNOSUPPORT),
    "mmap": _without(3, _MAP_HUGETLB),  # a pool of the whole machine, and no resident memory
    "madvise": Check(_low(2), (_MADV_MERGEABLE,), EPERM, ALLOW),  # merged pages tell what neighbours have
    "prlimit64": _only(0, [0]),  # of the caller: a box's other processes are not its business
    "sendto": _not_urgent(3),
    "sendmsg": _not_urgent(2),
    "sendmmsg": _not_urgent(3),
}


_SETID_CALLS = "chmod fchmod fchmodat fchmodat2 creat mkdir mkdirat open openat"
_IDENTITY = "setfsgid setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid"
_OWNERSHIP = "chown fchown fchownat lchown"


def _of_image(ids: str, set_id_bits: bool) -> dict[str, Action]:
    """What differs in a box from an image, whose guests are root among their own ids. With one id, changes of owners
    and users are not made and succeed, which package managers are content with."""
    actions: dict[str, Action] = dict.fromkeys(_IDENTITY.split(), ALLOW)
    if ids == "single":
        actions |= dict.fromkeys([*_IDENTITY.split(), *_OWNERSHIP.split()], PRETEND)
        for name, mode in (("mknod", 1), ("mknodat", 2)):
            actions[name] = Check(_low(mode), _PLAIN_NODES, ALLOW, PRETEND, mask=_S_IFMT | _SETID)
    if set_id_bits:
        actions |= dict.fromkeys(_SETID_CALLS.split(), ALLOW)
    return actions


def _socket(profile: Profile, allow: Collection[str]) -> Check:
    unix: Action = Check(_low(0), (_AF_UNIX,), ALLOW, EAFNOSUPPORT)
    if profile in (Profile.PROGRAM, Profile.TALK):
        return unix
    if "netlink" in allow and profile is Profile.SESSION:
        route = Check(_low(2), (0,), ALLOW, EPROTONOSUPPORT)
        unix = Check(_low(0), (_AF_NETLINK,), route, unix)
    protocol = Check(_low(2), _TCP_OR_UDP, ALLOW, EPROTONOSUPPORT)
    internet = Check(_low(1), _STREAM_OR_DGRAM, protocol, EPERM, mask=0xF)
    return Check(_low(0), (_AF_INET, _AF_INET6), internet, unix)


def _socket_options(profile: Profile) -> Check:
    """Checks for setsockopt and getsockopt: level, then option. Not allowed: packet filters, netfilter's tables,
    multicast routing, TCP's upper-layer protocols."""
    known: Action = ENOPROTOOPT
    if profile not in (Profile.PROGRAM, Profile.TALK):
        levels = ((_IPPROTO_IPV6, IPV6_OPTIONS), (_IPPROTO_IP, IP_OPTIONS), (_IPPROTO_TCP, TCP_OPTIONS))
        for level, options in levels:
            known = Check(_low(1), (level,), _only(2, options, ENOPROTOOPT), known)
    return Check(_low(1), (_SOL_SOCKET,), _only(2, SOCKET_OPTIONS, ENOPROTOOPT), known)


def _prctl(profile: Profile, allow: Collection[str]) -> Check:
    values = {*PRCTL, *(PRCTL_OF_COMMANDS if profile is Profile.SESSION else ())}
    if profile is Profile.INTERPRETER:
        values.update(_PR_GIVE_UP)
    if "ptrace" in allow and profile is Profile.SESSION:
        values.add(_PR_SET_PTRACER)
    return Check(_low(0), (_PR_SET_DUMPABLE,), _only(1, [1]), _only(0, values))


def _with_gpus(others: Action) -> Check:
    """Requests of NVIDIA's driver: those of type 'F', and of its unified memory, which are plain small numbers."""
    memory = Check(_low(1), (0,), ALLOW, Check(_low(1), (0x3000_0001, 0x3000_0002), ALLOW, others), mask=0xFFFF_FF00)
    return Check(_low(1), (ord("F") << 8,), ALLOW, memory, mask=0xFF00)


def policy(
    profile: Profile,
    fork_flags: int | None = None,
    *,
    counted: bool = True,
    own_inodes: bool = True,
    allow: Collection[str] = (),
    ids: str = "",
    set_id_bits: bool = False,
    gpus: bool = False,
) -> dict[str, Action]:
    """Return the action for each call by name; known calls that are not listed get EPERM. `counted`: a cgroup counts
    memory that belongs to no process; otherwise such memory is refused. `own_inodes`: read-only files have their own
    inodes; otherwise locks and watches are refused. `allow`: the permissions of `Spec.allow`, for commands only.
    `ids`: full or single, in a box from an image. `set_id_bits`: its files may have them, because no file that a guest
    can write is seen by the host. `gpus`: requests of NVIDIA's driver are allowed."""
    commands = profile is Profile.SESSION
    actions: dict[str, Action] = dict.fromkeys(" ".join(EVERYBODY.values()).split(), ALLOW)
    if commands:
        actions |= dict.fromkeys(" ".join(COMMANDS_ONLY).split(), ALLOW)
    actions |= dict.fromkeys(MISSING.split(), ENOSYS)
    if not counted:
        actions |= dict.fromkeys(NOBODYS.split(), ENOSYS)
    actions |= _CHECKED
    if ids:
        actions |= _of_image(ids, set_id_bits)
    commands_of_fcntl = [*FCNTL, *([_F_SETPIPE_SZ] if counted else ()), *(LOCKING if own_inodes else ())]
    actions["fcntl"] = _only(1, commands_of_fcntl)
    if not own_inodes:
        actions |= {"flock": EPERM, "inotify_add_watch": EPERM}
    actions["ioctl"] = _only(1, [*TERMINALS, *(FILES_AND_INTERFACES if commands else ())])
    if gpus:
        actions["ioctl"] = _with_gpus(actions["ioctl"])
    actions["prctl"] = _prctl(profile, allow)
    actions["setsockopt"] = actions["getsockopt"] = _socket_options(profile)
    actions["socket"] = _socket(profile, allow)
    persona = {0, WORD}
    if commands and "ptrace" in allow:
        actions |= dict.fromkeys(("ptrace", "process_vm_readv", "process_vm_writev"), ALLOW)
        persona.add(_ADDR_NO_RANDOMIZE)  # gdb's, for what it debugs
    actions["personality"] = _only(0, persona)
    if profile is Profile.TALK:
        actions["sched_setaffinity"] = EPERM
    if profile is Profile.INTERPRETER:
        actions["capset"] = ALLOW  # see _PR_GIVE_UP
    clone = _without(0, _CLONE_DENIED)
    actions["clone"] = clone
    if fork_flags is not None:
        actions["clone"] = Check(_low(0), (fork_flags,), Check(_high(0), (0,), ALLOW, clone), clone)
    return actions


def policy_without_namespaces(profile: Profile, *, counted: bool, owns: bool) -> dict[str, Action]:
    """Return the actions for a box that shares the machine's namespaces. `owns`: whoever the guest is owns nothing but
    the box's files; otherwise modes, times and owners of files cannot be changed."""
    actions = policy(profile, counted=counted, own_inodes=False)
    actions |= dict.fromkeys(SHARED_IPC.split(), ENOSYS)
    # A socket with an address reaches the network, or a socket file of the host, which Landlock does not guard. Pairs
    # of datagram sockets can still be sent to an address; the others cannot.
    actions |= {"socket": EAFNOSUPPORT, "bind": EPERM, "connect": EPERM, "listen": EPERM}
    pairs = Check(_low(1), (_SOCK_STREAM, _SOCK_SEQPACKET), ALLOW, EPROTONOSUPPORT, mask=0xF)
    actions["socketpair"] = Check(_low(0), (_AF_UNIX,), pairs, EAFNOSUPPORT)
    # Only of the caller itself: others of its user may be the host's.
    for name in ("sched_setaffinity", "sched_setparam", "sched_setscheduler"):
        if actions[name] != EPERM:
            actions[name] = Check(_low(0), (0,), actions[name], EPERM)
    actions["setpriority"] = Check(_low(0), (_PRIO_PROCESS,), _only(1, [0]), EPERM)
    if "ioprio_set" in actions:
        actions["ioprio_set"] = Check(_low(0), (_IOPRIO_WHO_PROCESS,), _only(1, [0]), EPERM)
    if not owns:
        actions |= dict.fromkeys(OWNERS.split(), EPERM)
    return actions


@functools.lru_cache
def assemble_without_namespaces(profile: Profile, *, counted: bool, owns: bool) -> bytes:
    return compiled(policy_without_namespaces(profile, counted=counted, owns=owns), own_machine())


def assemble(
    profile: Profile,
    machine: str | None = None,
    *,
    fork_flags: int | None = None,
    counted: bool = True,
    own_inodes: bool = True,
    allow: Collection[str] = (),
    ids: str = "",
    set_id_bits: bool = False,
    gpus: bool = False,
) -> bytes:
    """Return the filter as an array of struct sock_filter. `fork_flags` is used with Profile.INTERPRETER only."""
    if (profile is Profile.INTERPRETER) != (fork_flags is not None):
        raise ValueError("fork_flags goes with Profile.INTERPRETER, and only with it")
    if fork_flags is not None and not 0 < fork_flags <= WORD:
        raise ValueError(f"fork_flags={fork_flags:#x}: clone() takes 32 bits of flags")
    return _assemble(
        profile, machine or own_machine(), fork_flags, counted, own_inodes, frozenset(allow), ids, set_id_bits, gpus
    )


@functools.lru_cache
def _assemble(
    profile: Profile,
    machine: str,
    fork_flags: int | None,
    counted: bool,
    own_inodes: bool,
    allow: frozenset[str],
    ids: str,
    set_id_bits: bool,
    gpus: bool,
) -> bytes:
    actions = policy(
        profile,
        fork_flags,
        counted=counted,
        own_inodes=own_inodes,
        allow=allow,
        ids=ids,
        set_id_bits=set_id_bits,
        gpus=gpus,
    )
    return compiled(actions, machine)
