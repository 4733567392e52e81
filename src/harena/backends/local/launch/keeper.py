"""Keeper process of a box that bubblewrap creates. Like the first process of native/box.c, it stays outside the box,
starts it, waits, and removes what it had on the host (cgroups, its record) when it ends for any reason.

It is a separate program, run as `python -I -S keeper.py` with its order on descriptor 3 and the box's end of the host's
socket as 4. It imports little, because every box waits for it. The order is NUL-ended words in pairs:
  bwrap PATH | arg WORD       what to execute, with descriptors 4 and up
  uid NUMBER                  as whom: where root is the host, no process of a box is root's
  source PATH | mode ro|rw    for such a user, root binds these to STAGE/0, STAGE/1, …, where that user can reach them;
                              what is rw belongs to that user there, and on the disk to whom it belonged
  home PATH | join PATH | back PATH   cgroups of version 2, as in native/box.c
  cgroup PATH | record PATH   to be removed in the end
"""

from __future__ import annotations

import os
import signal
import stat
import struct
import sys
import time

ORDER, CONTROL = 3, 4
STAGE = "/tmp"
"""Where the sources are bound, in a mount namespace that only bubblewrap sees; any folder that exists everywhere."""
NEWNS, NEWUSER, PRIVATE, BIND, REC, NOSUID, NODEV = 0x20000, 0x10000000, 1 << 18, 4096, 16384, 2, 4
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that must not end a keeper before its box; its parent blocks them when it starts the keeper."""
EMPTY_PATH, AT_FDCWD, IDMAP = 0x1000, -100, 0x100000


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
    enter(order.get("home", []))
    pid = os.fork()
    if pid == 0:
        try:
            start(order, tell, wait)
        except OSError as error:
            print(f"cannot start {order['bwrap'][0]}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(111)
    os.close(tell)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        if "join" in order:
            join(told, pid, order)
            os.write(go, b"x")
    except (OSError, ValueError, KeyError) as error:
        print(f"cannot join the cgroup: {error}", file=sys.stderr, flush=True)
        os.kill(pid, 9)
    os.closerange(0, 256)
    status = await_end(pid)
    for folder in order.get("cgroup", []):
        remove_tree(folder)
    try:
        os.unlink(order["record"][0])
    finally:
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def await_end(pid: int) -> int:
    """Return the status of bubblewrap once the whole box has ended; children of a killed bubblewrap end a little
    later."""
    KeeperCalls().adopt_orphans()
    status = 0
    while True:
        try:
            ended, how = os.wait()
        except ChildProcessError:
            return status
        status = how if ended == pid else status


def start(order: dict[str, list[str]], tell: int, wait: int) -> None:
    share_quotas()
    if os.geteuid() == 0 and int(order.get("uid", ["0"])[0]) == 0 and not alone():
        raise PermissionError(1, "no user is named for a guest of root")
    if "uid" in order:
        uid = int(order["uid"][0])
        stage(order["source"], order["mode"], uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    argv = order["bwrap"][:1]
    if "join" in order:
        argv += ["--info-fd", str(tell), "--block-fd", str(wait)]
        os.set_inheritable(tell, True)
        os.set_inheritable(wait, True)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execve(argv[0], argv + order["arg"], {})


def alone() -> bool:
    """Whether root is the only user of a user namespace, and therefore an ordinary user of the host."""
    with open("/proc/self/uid_map") as file:
        return [line.split()[2] for line in file] == ["1"]


def share_quotas() -> None:
    """Limit all boxes of a user together to half of the user's queued signals: see native/box.c."""
    import resource

    for which in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
        soft, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(which, (min(soft, hard // 2), hard))


class KeeperCalls:
    """System calls that Python does not provide."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.argtypes = [ctypes.c_long] * 7
        self._libc.syscall.restype = ctypes.c_long
        text = ctypes.c_char_p
        self._libc.mount.argtypes = [text, text, text, ctypes.c_ulong, text]

    def _check(self, result: int, what: str) -> int:
        if result < 0:
            number = self._ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result

    def unshare(self, flags: int) -> None:
        self._check(self._libc.unshare(flags), "make namespaces")

    def adopt_orphans(self) -> None:
        self._check(self._libc.prctl(36, 1, 0, 0, 0), "adopt orphans")

    def mount(self, source: bytes | None, target: str, kind: bytes | None, flags: int, options: bytes | None) -> None:
        self._check(self._libc.mount(source, os.fsencode(target), kind, flags, options), f"mount {target}")

    def mount_as(self, source: int, owner: int, target: str) -> None:
        """Bind a folder so that files of its owner on disk belong to another user in the mount."""
        empty, path = (self._ctypes.create_string_buffer(word) for word in (b"", os.fsencode(target)))
        attributes = self._ctypes.create_string_buffer(struct.pack("<QQQQ", IDMAP, 0, 0, owner), 32)
        at, to, what = (self._ctypes.addressof(room) for room in (empty, path, attributes))

        def call(number: int, *args: int) -> int:
            return self._check(self._libc.syscall(number, *args, *[0] * (6 - len(args))), f"mount {target}")

        tree = call(428, source, at, 1 | EMPTY_PATH | os.O_CLOEXEC)  # open_tree
        call(442, tree, at, EMPTY_PATH, what, 32)  # mount_setattr
        call(429, tree, at, AT_FDCWD, to, 4)  # move_mount
        os.close(tree)


def stage(sources: list[str], modes: list[str], uid: int) -> None:
    kernel = KeeperCalls()
    kernel.unshare(NEWNS)
    kernel.mount(None, "/", None, REC | PRIVATE, None)
    opened = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    kernel.mount(b"tmpfs", STAGE, b"tmpfs", NOSUID | NODEV, b"mode=755")
    for number, (fd, mode) in enumerate(zip(opened, modes, strict=True)):
        target, info = f"{STAGE}/{number}", os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        if mode == "rw":
            owner = owner_as(kernel, info, uid)
            kernel.mount_as(fd, owner, target)
            os.close(owner)
        else:
            kernel.mount(b"/proc/self/fd/%d" % fd, target, None, BIND | REC, None)
        os.close(fd)


def owner_as(kernel: KeeperCalls, info: os.stat_result, uid: int) -> int:
    """Create a user namespace in which the owner of a file is this user."""
    made, make = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.unshare(NEWUSER)
        os.write(make, b"x")
        while True:
            time.sleep(60)
    os.read(made, 1)
    for file, id in (("uid_map", info.st_uid), ("gid_map", info.st_gid)):
        with open(f"/proc/{pid}/{file}", "w") as maps:
            maps.write(f"{id} {uid} 1")
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(made)
    os.close(make)
    return fd


def enter(folders: list[str]) -> None:
    for folder in folders:
        try:
            write(f"{folder}/cgroup.procs", "0")
        except OSError as error:
            print(f"cannot enter the cgroup {folder}: {error}", file=sys.stderr, flush=True)
            os._exit(111)


def join(told: int, bwrap: int, order: dict[str, list[str]]) -> None:
    """Moves bubblewrap and the box's first process into their cgroup, once there is a cgroup namespace that shows its
    parent, and this one back: a cgroup that gives controllers to those below it has no process of its own."""
    import json

    with open(told, "rb") as file:
        pid = json.load(file)["child-pid"]
    for name in order["join"]:
        write(name, str(pid))
        write(name, str(bwrap))
    for name in order.get("back", []):
        write(name, "0")
    for folder in order.get("home", []):
        write(f"{folder}/cgroup.subtree_control", "+memory +pids")


def write(name: str, text: str) -> None:
    with open(name, "w") as file:
        file.write(text)


def remove_tree(folder: str) -> None:
    """Remove a cgroup and those below it. A cgroup is busy for a moment after its last process has ended."""
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
    except OSError:
        return
    for tries in range(100):
        try:
            return os.rmdir(folder)
        except OSError:
            time.sleep(0.0005 * tries)
    return None


if __name__ == "__main__":
    main()
