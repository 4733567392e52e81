"""The jail of `untar` from inside: namespaces, an own root, few capabilities, limits, a filter of system calls."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)

_CLONE = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429
_AT_FDCWD, _OPEN_TREE_CLONE, _O_CLOEXEC, _F_EMPTY_PATH = -100, 1, 0o2000000, 4
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 0x1000, 0x4000, 0x40000, 2
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR = 1, 38, 47, 4
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = sum(1 << number for number in (0, 1, 3, 4, 27, 31))
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, MKNOD and SETFCAP, over the ids of the layer only."""


_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_KILL, _EPERM, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000


def _numbers(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (entry.split("=") for entry in text.split())}


CALLS = {
    "x86_64": _numbers(
        """
        read=0 readv=19 write=1 openat=257 close=3 fstat=5 lstat=6 stat=4 newfstatat=262 lseek=8 mkdir=83
        mkdirat=258 unlink=87 unlinkat=263 rmdir=84 symlink=88 symlinkat=266 linkat=265 mknod=133
        mknodat=259 utimensat=280 chown=92 lchown=94 fchown=93 fchownat=260 chmod=90 fchmod=91 fchmodat=268
        setxattr=188 fsetxattr=190 ftruncate=77 sendfile=40 splice=275 readlink=89 readlinkat=267
        getdents64=217 chdir=80 fcntl=72 ioctl=16 brk=12 mmap=9 munmap=11 mremap=25 mprotect=10 madvise=28
        futex=202 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 restart_syscall=219 getrandom=318
        clock_gettime=228 exit=60 exit_group=231
        """
    ),
    "aarch64": _numbers(
        """
        read=63 readv=65 write=64 openat=56 close=57 fstat=80 newfstatat=79 lseek=62 mkdirat=34 unlinkat=35
        symlinkat=36 linkat=37 mknodat=33 utimensat=88 fchown=55 fchownat=54 fchmod=52 fchmodat=53
        setxattr=5 fsetxattr=7 ftruncate=46 sendfile=71 splice=76 readlinkat=78 getdents64=61 chdir=49
        fcntl=25 ioctl=29 brk=214 mmap=222 munmap=215 mremap=216 mprotect=226 madvise=233 futex=98
        rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 restart_syscall=128 getrandom=278
        clock_gettime=113 exit=93 exit_group=94
        """
    ),
}
"""System calls of the process inside: files, memory, its end. None for sockets, mounts, processes and signals."""


READER_CALLS = {
    "x86_64": _numbers("pread64=17 getxattr=191 lgetxattr=192 listxattr=194 llistxattr=195 open=2 getcwd=79 access=21"),
    "aarch64": _numbers("pread64=67 getxattr=8 lgetxattr=9 listxattr=11 llistxattr=12 getcwd=17 faccessat=48"),
}
"""Further system calls of the process that packs."""


def enter(folder: int, control: int, *, full: bool, is_foreign: bool = False) -> int:
    """Make the namespaces, wait for the ids, and make the folder the root. Returns as `os.fork`: 0 inside.

    A foreign folder is one of a box, in mounts of other namespaces, which can be a root but not be mounted."""
    if not is_foreign:
        os.fchdir(folder)
    _make_namespaces(control)
    _become_root(full)
    if is_foreign:
        os.fchdir(folder)
        os.chroot(".")
        os.chdir("/")
        return _fork()
    # The folder is named by "." alone: the ids of the layer may have no right to the folders above it.
    tree = _call("open_tree", _SYS_OPEN_TREE, _AT_FDCWD, b".", _OPEN_TREE_CLONE | _O_CLOEXEC)
    _call("move_mount", _SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, b"/", _F_EMPTY_PATH)
    os.fchdir(tree)
    os.close(tree)
    _pivot()
    return _fork()


def enter_layers(layers: list[bytes], control: int, *, full: bool) -> int:
    """Enter a jail as `enter` does. The root is a read-only overlay of the layers, the lowest first."""
    _make_namespaces(control)
    # Opened with the caller's own rights, which reach the folders above the layers, but in the new mounts.
    folders = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in layers]
    _become_root(full)
    # Of all folders of a system /proc is the one that no layer is below.
    _check("mount", _LIBC.mount(b"tmpfs", b"/proc", b"tmpfs", 0, b"size=4m,mode=755"))
    os.chdir("/proc")
    os.mkdir("root")
    os.mkdir("0")  # overlayfs wants two folders at least
    for number, folder in enumerate(folders, 1):
        os.mkdir(f"/proc/{number}")
        os.fchdir(folder)
        _check("mount", _LIBC.mount(b".", f"/proc/{number}".encode(), None, _MS_BIND | _MS_REC, None))
        os.close(folder)
    os.chdir("/proc")
    options = "userxattr,lowerdir=" + ":".join(str(number) for number in range(len(layers), -1, -1))
    _check("mount an overlay", _LIBC.mount(b"overlay", b"root", b"overlay", _MS_NOSUID | _MS_NODEV, options.encode()))
    os.chdir("root")
    _pivot()
    return _fork()


def _make_namespaces(control: int) -> None:
    _check("unshare", _LIBC.unshare(sum(_CLONE.values())))
    os.write(control, b"U")
    if os.read(control, 1) != b"G":
        os._exit(1)


def _become_root(full: bool) -> None:
    if full:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _check("mount", _LIBC.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))


def _pivot() -> None:
    _call("pivot_root", _SYS_PIVOT_ROOT[os.uname().machine], b".", b".")
    _check("umount", _LIBC.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _fork() -> int:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    alive, held = os.pipe()
    child = os.fork()
    if child:
        os.close(alive)
        return child
    os.close(held)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.set_blocking(alive, False)
    try:
        os.read(alive, 1)
    except BlockingIOError:
        os.close(alive)
        return 0
    os._exit(1)  # the parent died before its death could be a signal


def close(limits: dict[str, int], *, is_reader: bool = False) -> None:
    """Give up the rest: limits, capabilities, new privileges."""
    os.umask(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    _check("prctl", _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check("prctl", _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    low, high = _CAPABILITIES & 0xFFFFFFFF, _CAPABILITIES >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check("capset", _LIBC.capset(header, data))
    _filter(os.uname().machine, is_reader=is_reader)


def _filter(machine: str, *, is_reader: bool) -> None:
    """Refuse every system call that is not in `CALLS`, and end the process for calls of another architecture."""
    numbers = sorted({**CALLS[machine], **(READER_CALLS[machine] if is_reader else {})}.values())
    load, equal, answer = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (answer, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program += [(answer, 0, 0, _EPERM), (answer, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    descriptor = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    _check("seccomp", _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, descriptor, 0, 0))


def _call(name: str, number: int, *arguments: int | bytes) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    return _check(name, _LIBC.syscall(ctypes.c_long(number), *values))


def _check(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
