"""What a job of a box without namespaces may reach: Landlock's rules for files, and its scope of signals."""

from __future__ import annotations

import os
import stat
import struct

from ..kernel import SCOPES_ABI

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_CHAR, MAKE_BLOCK = 1, 2, 4, 8, 1 << 6, 1 << 11
READ = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14
# What a job may read of its first process: not `net`, `mounts` and `cgroup`, which tell of the machine, and not `task`,
# which has them too.
OWN_PROC = (
    "auxv",
    "cmdline",
    "comm",
    "environ",
    "fd",
    "fdinfo",
    "limits",
    "maps",
    "mem",
    "smaps",
    "stat",
    "statm",
    "status",
)
SIGNALS = 2  # Landlock's scope of signals; 1 is that of abstract sockets


class LandlockRules:
    """What every job of the box may read, as descriptors that are opened once."""

    def __init__(self, kernel, order):
        self.kernel, self.abi, self.made = kernel, order["abi"], []
        every = (1 << 13) - 1 | (1 << 13 if self.abi >= 2 else 0) | (1 << 14 if self.abi >= 3 else 0)
        self.every, self.write = every, every & ~(MAKE_CHAR | MAKE_BLOCK)
        for path, rights in order["rules"]:
            self.add(path, rights)
        sizes = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}
        attributes = struct.pack("<QQQ", self.every, 3, 1 | SIGNALS)[: sizes.get(self.abi, 24)]
        self.attributes = kernel.buffer(attributes)

    def add(self, path, rights):
        rule = self.rule(path, rights)
        if rule:
            self.made.append((self.kernel.buffer(rule[0]), rule[1]))

    def rule(self, path, rights):
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return None  # it is gone, or hidden from this user by its mode
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= OF_FILES
        return struct.pack("<Qi", rights & self.every, fd), fd

    def build(self, writable):
        """A ruleset: what all jobs may read, this process's own /proc, and these folders."""
        call = self.kernel.call
        extra = [self.rule("/proc/self", READ_DIR)]
        extra += [self.rule(f"/proc/self/{name}", READ & ~EXECUTE) for name in OWN_PROC]
        extra += [self.rule(path, self.write) for path in writable]
        ruleset = call(444, self.attributes[1], len(self.attributes[0]), 0)
        for (_, at), _ in self.made:
            call(445, ruleset, 1, at, 0)
        for found in extra:
            if found:
                _kept, at = self.kernel.buffer(found[0])
                call(445, ruleset, 1, at, 0)
                os.close(found[1])
        return ruleset

    def enter(self, writable):
        ruleset = self.build(writable)
        self.kernel.call(446, ruleset, 0)
        os.close(ruleset)


scopes = []  # the ruleset, once it was made: each who enters it has a domain of its own


def make_scope(kernel):
    if not scopes:
        room, at = kernel.buffer(struct.pack("<QQQ", 0, 0, SIGNALS))
        scopes.append(kernel.call(444, at, len(room), 0))


def scope_signals(kernel, abi, outsider):
    """Lets this process and what it starts signal only each other. True when the kernel does so: then kill(-1) is a
    blow that hits all of them at once and nobody else, and `outsider` cannot be reached."""
    if abi < SCOPES_ABI:
        return False
    make_scope(kernel)
    kernel.prctl(38, 1)
    kernel.call(446, scopes[0], 0)
    try:
        os.kill(outsider, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False
