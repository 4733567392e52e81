"""What the attacks share. Shipped into the box beside each of them, so it imports nothing but the standard library.

An attack calls `attempt` for everything it tries and ends with `finish`, which prints `denied` or what got through.
An error that shows the kernel looked at the arguments (EINVAL, EFAULT, ...) is not a refusal: the door was open.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
from typing import Any

TARGET: dict[str, Any] = globals().get("TARGET") or json.load(sys.stdin)
"""Where the host's secrets, listeners and processes are; the runner fills it in."""

HOME, TMP = os.environ.get("HOME", "/workspace"), os.environ.get("TMPDIR", "/tmp")
"""The folders where this execution may write: /workspace and /tmp, where the isolation tier can name them so."""

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)
READ_ONLY = (errno.EROFS,)
UNREACHABLE = (
    errno.ECONNREFUSED,
    errno.ENETUNREACH,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.ESOCKTNOSUPPORT,
    errno.EPROTONOSUPPORT,
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN)

# Numbers on x86_64 and on aarch64.
SYSCALLS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "exit": (60, 93),
    "fanotify_init": (300, 262),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "sched_setattr": (314, 274),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "setfsuid": (122, 151),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

escapes: list[str] = []


def attempt(what: str, action: Any, *args: Any, also: tuple[int, ...] = ()) -> Any:
    """Try it. Only EPERM, EACCES, EROFS, ENOSYS and the errors in `also` are refusals; otherwise its value comes back."""
    try:
        value = action(*args)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, *also):
            escaped(f"{what}: not refused, only failed: {error}")
        return None
    escaped(f"{what}: gave {value!r}"[:200])
    return value


def escaped(what: str) -> None:
    escapes.append(what)


def finish() -> None:
    print("\n".join(f"ESCAPED: {what}" for what in escapes) or "denied", flush=True)


@functools.cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def syscall(name: str | int, *args: Any) -> int:
    """The bare system call, by name or number; a failure is an OSError."""
    import ctypes

    libc = _libc()
    number = name if isinstance(name, int) else SYSCALLS[name][os.uname().machine == "aarch64"]
    ctypes.set_errno(0)
    value = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if value == -1:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return value


def touch(path: str, flags: int) -> str:
    """Open and close; opening alone changes nothing, so it is safe to try on what would be dangerous to write."""
    os.close(os.open(path, flags))
    return path


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096)


def rewrite(path: str) -> None:
    """Writes what is there already. A file that can only be written counts as changed once it is open."""
    with open(path, "wb", buffering=0) as file:
        try:
            now = read(path)
        except OSError:
            return
        file.write(now)


def status(field: str) -> str:
    with open("/proc/self/status") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith(field + ":"))


def others() -> list[int]:
    """The box's own processes above this one: never the attacker's to touch."""
    return sorted({1, os.getppid()} - {0, os.getpid()})


def pids() -> list[str]:
    """Every process that /proc shows; where it may not be listed, those that are worth a try."""
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except PermissionError:
        known = {1, os.getpid(), os.getppid(), TARGET["victim_pid"], TARGET["host_pid"]}
        return [str(pid) for pid in sorted(known)]


def daemonise() -> bool:
    """True in a grandchild that has left the session, carries the attack's mark as its name, and ignores signals."""
    import signal

    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    mark()
    return True


def mark() -> None:
    """Names this process so that the runner finds it on the host should it outlive the attack."""
    PR_SET_NAME = 15
    syscall("prctl", PR_SET_NAME, TARGET["mark"].encode(), 0, 0, 0)
