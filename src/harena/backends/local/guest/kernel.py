"""The system calls that Python has no name for, and small helpers of the box without the native library."""

from __future__ import annotations

import _socket
import ctypes
import errno
import os
import stat
import struct

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET, PARENT = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x8000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC = 1, 2, 4, 8, 32, 4096, 16384
WALL = 0x40000000  # wait for every kind of child
SCOPES_ABI = 6  # from here on Landlock keeps abstract sockets apart
GUEST_ID = 1000

_step = ""


def doing(step):
    """Notes what this process is about to do, for the report if it fails."""
    global _step
    _step = step


def last_step():
    return _step


class Kernel:
    """The system calls that Python has no name for."""

    def __init__(self):
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
            number = ctypes.get_errno()
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
        room = ctypes.create_string_buffer(data, len(data))
        return room, ctypes.addressof(room)

    def clone(self, flags):
        """fork() into new namespaces."""
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        pid = self._libc.syscall(self._clone, flags | 17, 0, 0, 0, 0, 0)
        python.PyOS_AfterFork_Parent() if pid else python.PyOS_AfterFork_Child()
        return self.check(pid)

    def clone_bare(self, flags=0):
        """fork() without Python's own hooks, which cost a third of it. For a process of one thread, whose child needs
        none of them: see zygote_main."""
        return self.check(self._libc.syscall(self._clone, flags | 17, 0, 0, 0, 0, 0))

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
        self.check(self._libc.capset(ctypes.c_void_p(head[1]), ctypes.c_void_p(data[1])))

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


def take_all(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def number_after(name, path):
    words = take(path).partition(name)[2].split()
    return int(words[0]) if words else 0


def close_all(fds, *names):
    """Closes descriptors of a list or a dict and marks them so."""
    for key in names or (fds if isinstance(fds, dict) else range(len(fds))):
        if fds[key] >= 0:
            os.close(fds[key])
        fds[key] = -1


def receive_fds(sock, size):
    data, ancillary, _, _ = sock.recvmsg(size, _socket.CMSG_SPACE(4 * 16), _socket.MSG_CMSG_CLOEXEC)
    fds = []
    for level, kind, content in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
    return data, fds


def stdin_with(data):
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    fd = os.memfd_create("stdin")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
