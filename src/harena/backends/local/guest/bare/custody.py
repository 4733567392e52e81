"""Keeper of a box without namespaces. It stays outside the box, starts the loop, waits, ends every process of the box,
and removes what the box had on the host: its folder, its cgroups, its record.

Its order is JSON on descriptor 3, and the box's end of the host's socket is descriptor 4:
  uid      as whom the box runs; null: as the one who runs this
  base     the box's folder
  abi      the Landlock version to use
  rules    what the box may read: [path, rights]
  hidden   folders that its Python must not look into for modules
  bytes    size of its workspace
  files_filter   the seccomp filter of its file server
  cgroup, home, join, back, record   as in launch/keeper.py
"""

from __future__ import annotations

import _socket
import gc
import json
import os
import resource
import signal
import sys
import time

from .. import wire
from ..kernel import Kernel, doing, last_step
from .folders import empty_folder, enter_folder
from .landlock import LandlockRules, scope_signals
from .loop import BareLoop
from .processes import end_all

ORDER, CONTROL = 3, 4


def main(role, arguments):
    with open(ORDER, "rb") as file:
        order = json.load(file)
    kernel = Kernel()
    host = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.umask(0o022)
    # A guest must never outrank the loop that ends it, whatever the host is.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    kernel.prctl(36, 1)
    scoped = scope_signals(kernel, order["abi"], host)
    if not scoped and order["uid"] is None:
        complain("the kernel does not keep signals inside a box, and the box has no user of its own")
    wait, go = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            os.read(wait, 1)
            os.close(wait)
            serve(kernel, order, me)
        finally:
            os._exit(111)
    try:
        join(order, pid)
        os.write(go, b"x")
    except OSError as error:
        print(f"cannot join the cgroup: {error}", file=sys.stderr, flush=True)
        os.kill(pid, 9)
    os.closerange(0, 256)
    os.waitpid(pid, 0)
    end_all(scoped)
    for verb in (sweep_user, remove_files, remove_cgroups):
        try:
            verb(order)
        except OSError:
            pass  # the rest must go all the same
    os._exit(0)


def complain(text):
    print(text, file=sys.stderr, flush=True)
    os._exit(111)


def join(order, pid):
    for name in order["join"]:
        write(name, str(pid))
    for folder in order["home"]:
        write(f"{folder}/cgroup.subtree_control", "+memory +pids")


def write(name, text):
    with open(name, "w") as file:
        file.write(text)


def become_user(kernel, uid):
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.prctl(38, 1)


def drop_bounds(kernel):
    try:
        for capability in range(64):
            kernel.prctl(24, capability)
    except OSError:
        pass  # all are gone, or there is no right to drop them: no_new_privs gives none back


def serve(kernel, order, keeper):
    """The loop, as the box's user and without a right of its own."""
    doing("become the box's user")
    control = _socket.socket(fileno=CONTROL)
    loop = None
    try:
        drop_bounds(kernel)
        become_user(kernel, order["uid"])
        kernel.drop_capabilities()
        kernel.prctl(1, 9)
        if os.getppid() != keeper:
            os._exit(0)
        doing("take its share of limits")
        for which in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
            soft, hard = resource.getrlimit(which)
            if hard != resource.RLIM_INFINITY:
                resource.setrlimit(which, (min(soft, hard // 8), hard))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # guests get a limit of their own
        doing("enter its folder")
        os.chdir(order["base"])
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.close(null)
        for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
            if signal.getsignal(number) in (signal.SIG_IGN, signal.default_int_handler):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        loop = BareLoop(control, kernel, order)
        doing("use Landlock")
        try_landlock(kernel, order)
    except OSError as error:
        (loop or BareLoop(control, kernel, {**order, "rules": []})).send_error(0, error.errno, last_step())
        os._exit(111)
    os.environ.clear()
    gc.collect()
    gc.freeze()
    loop.send(wire.OP_PONG, 0, b"\0")
    loop.serve()


def try_landlock(kernel, order):
    """A kernel that has Landlock may have it switched off: found out here, and not by the first job."""
    pid = os.fork()
    if pid == 0:
        try:
            LandlockRules(kernel, order).enter([order["base"]])
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    status = os.waitpid(pid, 0)[1]
    if status:
        raise OSError(os.waitstatus_to_exitcode(status), "")


def as_user(uid, action):
    pid = os.fork()
    if pid == 0:
        try:
            become_user(Kernel(), uid)
            action()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def sweep_user(order):
    """A user that owns nothing but this box: whoever is left is the box's."""
    if order["uid"] is not None:
        as_user(order["uid"], lambda: os.kill(-1, signal.SIGKILL))


def remove_files(order):
    def remove():
        fd = enter_folder(order["base"], None)
        if fd is not None:
            empty_folder(fd)

    as_user(order["uid"], remove)
    os.rmdir(order["base"])


def remove_cgroups(order):
    for folder in order["cgroup"]:
        remove_tree(folder)
    os.unlink(order["record"])


def remove_tree(folder):
    """Remove a cgroup and those below it. A cgroup is busy for a moment after its last process has ended."""
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
    except OSError:
        return
    for tries in range(100):
        try:
            os.rmdir(folder)
            return
        except OSError:
            time.sleep(0.0005 * tries)
