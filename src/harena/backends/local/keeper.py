"""Stays outside a box that bubblewrap makes, like the first process of native/box.c: starts it, waits, and removes what
it had on the host (cgroups, its record) when it ends, however it ends.

A program of its own, run as `python -I -S keeper.py` with its order on descriptor 3 and the box's end of the host's
socket as 4; it imports little, because every box waits for it. The order is NUL-ended words in pairs:
  bwrap PATH | arg WORD       what to execute, with descriptors 4 and up
  uid NUMBER                  as whom: where root is the host, no process of a box is root's
  source PATH                 for such a user, root binds these to STAGE/0, STAGE/1, …, where that user can reach them
  join PATH                   a cgroup.procs file to write the box's first process into
  cgroup PATH | record PATH   to be removed in the end
"""

from __future__ import annotations

import os
import stat
import sys
import time

ORDER, CONTROL = 3, 4
STAGE = "/tmp"
"""Where the sources are bound, in a mount namespace that only bubblewrap sees; any folder that exists everywhere."""
NEWNS, PRIVATE, BIND, REC, NOSUID, NODEV = 0x20000, 1 << 18, 4096, 16384, 2, 4


def main() -> None:
    with open(ORDER, "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")]
    order: dict[str, list[str]] = {}
    for verb, value in zip(words[::2], words[1::2], strict=False):
        order.setdefault(verb, []).append(value)
    os.setsid()
    # A guest must never outrank the loop that ends it, whatever the host is.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    told, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            start(order, tell, wait)
        except OSError as error:
            print(f"cannot start {order['bwrap'][0]}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(111)
    os.close(tell)
    ignore_signals()
    try:
        if "join" in order:
            join(told, order["join"])
            os.write(go, b"x")
    except (OSError, ValueError, KeyError) as error:
        print(f"cannot join the cgroup: {error}", file=sys.stderr, flush=True)
        os.kill(pid, 9)
    os.closerange(0, 256)
    status = os.waitpid(pid, 0)[1]
    for folder in order.get("cgroup", []):
        remove_tree(folder)
    try:
        os.unlink(order["record"][0])
    finally:
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def ignore_signals() -> None:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def start(order: dict[str, list[str]], tell: int, wait: int) -> None:
    if "uid" in order:
        uid = int(order["uid"][0])
        stage(order.get("source", []))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    argv = order["bwrap"][:1]
    if "join" in order:
        argv += ["--info-fd", str(tell), "--block-fd", str(wait)]
        os.set_inheritable(tell, True)
        os.set_inheritable(wait, True)
    os.execve(argv[0], argv + order["arg"], {})


def stage(sources: list[str]) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.c_char_p
    libc.mount.argtypes = [text, text, text, ctypes.c_ulong, text]

    def mount(source: bytes | None, target: str, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
        if libc.mount(source, os.fsencode(target), kind, flags, options):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    if libc.unshare(NEWNS):
        raise OSError(ctypes.get_errno(), "make a mount namespace")
    mount(None, "/", None, REC | PRIVATE)
    opened = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    mount(b"tmpfs", STAGE, b"tmpfs", NOSUID | NODEV, b"mode=755")
    for number, fd in enumerate(opened):
        target = f"{STAGE}/{number}"
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mount(b"/proc/self/fd/%d" % fd, target, None, BIND | REC)
        os.close(fd)


def join(told: int, files: list[str]) -> None:
    """Moves the box's first process into its cgroup, once it has a cgroup namespace that shows its parent."""
    import json

    with open(told, "rb") as file:
        pid = json.load(file)["child-pid"]
    for name in files:
        with open(name, "w") as procs:
            procs.write(str(pid))


def remove_tree(folder: str) -> None:
    """A cgroup and those below it; one is busy for a moment after its last process has ended."""
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
    except OSError:
        return
    for _ in range(200):
        try:
            return os.rmdir(folder)
        except OSError:
            time.sleep(0.001)
    return None


if __name__ == "__main__":
    main()
