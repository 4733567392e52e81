"""Finishes the root of a box where bubblewrap has no option for it, and gives up every capability.

Follows native/box.c, where the reasons are.
"""

from __future__ import annotations

import errno
import os
import resource
import stat

from .kernel import (
    BIND,
    NEWNS,
    NEWPID,
    NEWUSER,
    NODEV,
    NOEXEC,
    NOSUID,
    RDONLY,
    REC,
    REMOUNT,
    doing,
    map_ids,
    put,
    take,
    take_all,
)


def share_quotas(kernel):
    """One box takes at most an eighth of what its user may have of inotify and signals: see native/box.c."""
    for which in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
        soft, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(which, (min(soft, hard // 8), hard))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # guests get a limit of their own
    pid = kernel.clone(NEWPID | NEWNS)  # bubblewrap's /proc is read-only, and another one needs a pid namespace
    if pid == 0:
        try:
            kernel.mount(b"proc", b"/proc", b"proc", NOSUID | NODEV | NOEXEC)
            for name in ("instances", "watches"):
                most = take(f"/proc/sys/fs/inotify/max_user_{name}")
                if most:  # else a kernel without inotify
                    put(f"/proc/sys/user/max_inotify_{name}", b"%d" % (int(most) // 8 + 1))
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    status = os.waitpid(pid, 0)[1]
    if status:
        raise OSError(os.WEXITSTATUS(status) or errno.EIO, "")


def cover(kernel, targets):
    """Gives what the box only reads inodes of its own, as native/box.c does and says why; False where that cannot be.
    They come from a tmpfs that the box's own /tmp hides afterwards."""
    doing("mount tmpfs /tmp")
    kernel.mount(b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, b"size=32m,mode=755")
    os.mkdir("/tmp/nothing")
    mounted = [line.split()[4] for line in take_all("/proc/self/mountinfo").splitlines()]
    own = True
    for number, target in enumerate(targets):
        source, path = os.open(target, os.O_PATH | os.O_CLOEXEC), os.fsencode(target)
        try:
            if stat.S_ISDIR(os.fstat(source).st_mode):
                own &= not any(place.startswith(path + b"/") for place in mounted)
                layers = b"lowerdir=/proc/self/fd/%d:/tmp/nothing" % source
                if own:
                    kernel.mount(b"overlay", path, b"overlay", RDONLY | NOSUID | NODEV, layers)
            else:
                copy = b"/tmp/%d" % number
                with open(copy, "xb") as file:
                    file.write(take_all(target))
                os.chmod(copy, os.fstat(source).st_mode & 0o755)
                kernel.mount(copy, path, None, BIND)
                kernel.mount(None, path, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
        except OSError:
            own = False
        finally:
            os.close(source)
    return own


def settle(kernel, steps):
    doing("make namespaces (user, mount)")
    kernel.unshare(NEWUSER | NEWNS)
    map_ids()
    kept = [os.open(target, os.O_PATH | os.O_CLOEXEC) for verb, target, _ in steps if verb == "again"]
    os.umask(0o022)
    own_inodes = cover(kernel, [target for verb, target, _ in steps if verb == "cover"])
    for verb, target, options in steps:
        doing(f"{verb} {target}")
        path = os.fsencode(target)
        if verb == "tmpfs":
            kernel.mount(b"tmpfs", path, b"tmpfs", NOSUID | NODEV, options.encode())
        elif verb == "remove":
            os.unlink(path)
        elif verb == "ro":
            kernel.mount(None, path, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
        elif verb == "again":
            source = kept.pop(0)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if stat.S_ISDIR(os.fstat(source).st_mode):
                os.makedirs(path, exist_ok=True)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            kernel.mount(b"/proc/self/fd/%d" % source, path, None, BIND | REC)
            os.close(source)
    doing("mount /proc to limit what it may take")
    share_quotas(kernel)
    doing("give up capabilities")
    kernel.prctl(38, 1)
    kernel.drop_capabilities()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    return own_inodes
