"""What the doctor tries in a box, as data. Each probe is a piece of Python for the box; the doctor puts TOOLS and the
host's targets (`T`) in front of it and `finish()` behind it.

No probe can hurt a host whose limits do not hold: every bomb stops by itself at a few times what it was allowed, and
what would be dangerous to write is only opened.

One file, however long: it is a list, and to see what is not tried one reads all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harena.sandbox.spec import Verdict

EXEC, RUN, MAP, FORK = "exec", "run", "map", "fork"
"""The ways into a box: a command, its persistent interpreter, a fresh program of a pool, a fork of the interpreter
(where the launcher can make one)."""

FORK_FLAGS = 0x7802_C111
"""clone() flags of a fork of a live interpreter: the one way to a user namespace that a filter leaves open, and only to
the interpreter."""

ROOMY: dict[str, Any] = {"memory_mb": 128, "processes": 32, "output_bytes": 1 << 18}
TIGHT: dict[str, Any] = {"memory_mb": 128, "processes": 8, "output_bytes": 1 << 16, "open_files": 64, "cpu_s": 20}
"""What probes may use; the bombs get the tight ones."""
RLIMITS = {"CORE": 0, "NOFILE": 64, "MEMLOCK": 8 << 20, "RTPRIO": 0, "NPROC": 18, "CPU": 22, "DATA": 1 << 30}
"""The most that the tight ones may leave."""

# Calls that no guest may make, with their numbers on x86_64 and on aarch64. Not taken from the filter that is tested: a
# name that gets lost there must still be tried.
REFUSED = """
    _sysctl:156:- acct:163:89 add_key:248:217 adjtimex:159:171 afs_syscall:183:- bpf:321:280 cachestat:451:451
    chroot:161:51 clock_adjtime:305:266 clock_settime:227:112 clone3:435:435 create_module:174:- delete_module:176:106
    epoll_ctl_old:214:- epoll_wait_old:215:- fanotify_init:300:262 fanotify_mark:301:263 file_getattr:468:468
    file_setattr:469:469 finit_module:313:273 fsconfig:431:431 fsmount:432:432 fsopen:430:430 fspick:433:433
    get_kernel_syms:177:- get_thread_area:211:- getpmsg:181:- init_module:175:105 io_cancel:210:3 io_destroy:207:1
    io_getevents:208:4 io_pgetevents:333:292 io_setup:206:0 io_submit:209:2 io_uring_enter:426:426
    io_uring_register:427:427 io_uring_setup:425:425 ioperm:173:- iopl:172:- kcmp:312:272 kexec_file_load:320:294
    kexec_load:246:104 keyctl:250:219 landlock_add_rule:445:445 landlock_create_ruleset:444:444 listmount:458:458
    lookup_dcookie:212:18 lsm_get_self_attr:459:459 lsm_list_modules:461:461 lsm_set_self_attr:460:460
    map_shadow_stack:453:453 mbind:237:235 memfd_secret:447:447 migrate_pages:256:238 modify_ldt:154:- mount:165:40
    mount_setattr:442:442 move_mount:429:429 move_pages:279:239 mseal:462:462 name_to_handle_at:303:264
    nfsservctl:180:42 open_by_handle_at:304:265 open_tree:428:428 open_tree_attr:467:467 openat2:437:437
    perf_event_open:298:241 pidfd_getfd:438:438 pivot_root:155:41 process_madvise:440:440 process_mrelease:448:448
    process_vm_readv:310:270 process_vm_writev:311:271 ptrace:101:117 putpmsg:182:- query_module:178:- quotactl:179:60
    quotactl_fd:443:443 reboot:169:142 remap_file_pages:216:234 request_key:249:218 sched_setattr:314:274
    seccomp:317:277 security:185:- set_mempolicy:238:237 set_mempolicy_home_node:450:450 set_thread_area:205:-
    setdomainname:171:162 sethostname:170:161 setns:308:268 settimeofday:164:170 statmount:457:457 swapoff:168:225
    swapon:167:224 sync:162:81 syncfs:306:267 sysfs:139:- syslog:103:116 tee:276:77 tuxcall:184:- umount2:166:39
    unshare:272:97 uselib:134:- userfaultfd:323:282 ustat:136:- vhangup:153:58 vmsplice:278:75 vserver:236:-
"""

_REFUSED_NUMBERS = {
    name: tuple(int(number) if number != "-" else None for number in numbers)
    for name, *numbers in (entry.split(":") for entry in REFUSED.split())
}

TOOLS = '''
import errno, os, socket, sys

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ESRCH, errno.EROFS)
UNREACHABLE = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT,
               errno.ESOCKTNOSUPPORT)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
NUMBERS = {  # on x86_64 and on aarch64
    "fcntl": (72, 25), "getsockopt": (55, 209), "madvise": (28, 233), "mmap": (9, 222), "prlimit64": (302, 261),
    "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206), "setsockopt": (54, 208),
    "capset": (126, 91), "chmod": (90, None), "clone": (56, 220), "creat": (85, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "ioctl": (16, 29), "mkdir": (83, None), "mkdirat": (258, 34),
    "mknod": (133, None), "mknodat": (259, 33), "open": (2, None), "openat": (257, 56), "personality": (135, 92),
    "prctl": (157, 167), "sched_setscheduler": (144, 119), "shmget": (29, 194),
    "socket": (41, 198), "socketpair": (53, 199),
    REFUSED_NUMBERS
}
refusals, escapes = [], []


def attempt(what, action, *args, also=()):
    """Only EPERM, EACCES, ENOSYS and the errors in `also` are refusals: others show that the door was open."""
    try:
        value = action(*args)
    except OSError as error:
        if isinstance(error, TimeoutError):
            error.errno = errno.ETIMEDOUT
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, *also):
            refusals.append(errno.errorcode[error.errno])
        else:
            escapes.append(f"{what} was not refused, only failed: {error}")
    else:
        escapes.append(f"{what} gave {value!r}"[:200])


def check(what, held):
    refusals.append("") if held else escapes.append(what)


def finish():
    for escape in escapes:
        print("ESCAPED:", escape)
    if not escapes:
        print("denied", len(refusals), *sorted({name for name in refusals if name}), flush=True)


def syscall(name, *args):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = NUMBERS[name][os.uname().machine == "aarch64"]
    if number is None:
        raise OSError(errno.ENOSYS, "not on this machine")
    value = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if value == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value


def read(path):
    with open(path, "rb") as file:
        return file.read(4096)


def touch(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags | os.O_NONBLOCK))


def status(name):
    with open("/proc/self/status") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith(name + ":"))


def talk(family, kind, address):
    with socket.socket(family, kind) as client:
        client.settimeout(0.3)
        client.connect(address)
        client.send(b"doctor")
        return client.recv(16)


def mounts():
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            _, _, _, _, target, options, *propagation = before.split()
            yield target, after.split()[0], options.split(","), propagation


def others():
    return sorted({1, os.getppid()} - {0, os.getpid()})
'''.replace("REFUSED_NUMBERS", f"**{_REFUSED_NUMBERS!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    name: str
    source: str
    ways: tuple[str, ...] = (EXEC, RUN, MAP)
    verdicts: tuple[Verdict, ...] = (Verdict.OK,)
    """OK means that the piece itself says `denied`; others are limits that must have ended it."""
    wall_s: float = 5
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Beyond the tight ones of a bomb."""
    bomb: bool = False
    """It tries to use more than it may, and gets little."""
    target: str = ""
    """What of the host it aims at: a name in targets.Host, looked at before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    name: str
    source: str
    answer: str
    """What it prints when the box works."""
    ways: tuple[str, ...] = (EXEC, RUN, MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Something a program leaves behind, and how the next program in the same box would notice."""

    name: str
    leave: str
    """Prints `left` when it could leave it."""
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    name: str
    held: bool
    detail: str


CONTROLS = (
    Control(name="works.compute", source="print(6 * 7)", answer="42"),
    Control(
        name="works.workspace",
        source="""
with open("doctor-note", "w") as file:
    file.write("hello")
with open("doctor-note") as file:
    print(file.read())
""",
        answer="hello",
    ),
    Control(
        name="works.child",
        source="""
import subprocess
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout.strip())
""",
        answer="child",
    ),
    Control(
        name="works.threads",
        source="""
import threading
seen = []
threads = [threading.Thread(target=seen.append, args=(1,)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(seen))
""",
        answer="4",
    ),
    Control(
        name="works.own_loopback",
        source="""
import socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    client.send(b"hello")
    print(server.accept()[0].recv(16).decode())
""",
        answer="hello",
        ways=(EXEC, RUN),
    ),
)

PROBES = (
    Probe(
        name="network.tcp",
        source='attempt("TCP to the host", talk, socket.AF_INET, socket.SOCK_STREAM, T["tcp"], also=UNREACHABLE)',
        target="tcp",
    ),
    Probe(
        name="network.udp",
        source="""
attempt("UDP to the host", talk, socket.AF_INET, socket.SOCK_DGRAM, T["udp"], also=(*UNREACHABLE, errno.ETIMEDOUT))
""",
        target="udp",
    ),
    Probe(
        name="network.abstract_sockets",
        source="""
for kind, name in ((socket.SOCK_STREAM, T["stream"]), (socket.SOCK_DGRAM, T["dgram"])):
    attempt(f"abstract socket {name}", talk, socket.AF_UNIX, kind, "\\0" + name, also=UNREACHABLE)
""",
        target="abstract",
    ),
    Probe(
        name="network.unix_sockets",
        source="""
attempt("a socket in a host folder", talk, socket.AF_UNIX, socket.SOCK_STREAM, T["socket"],
        also=(*NOT_THERE, errno.EAFNOSUPPORT))
""",
        target="path",
    ),
    Probe(
        name="network.families",
        source="""
# A network namespace does not bind AF_VSOCK and others; those that reach into the kernel are many.
for family in range(64):
    if family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            attempt(f"socket family {family}", socket.socket, family, kind, also=(errno.EAFNOSUPPORT,))
for family in (socket.AF_INET, socket.AF_INET6):
    attempt("a raw socket", socket.socket, family, socket.SOCK_RAW, 1, also=UNREACHABLE)
    for kind, protocol in ((socket.SOCK_STREAM, 262), (socket.SOCK_DGRAM, 136), (socket.SOCK_STREAM, 132)):
        attempt(f"socket protocol {protocol}", socket.socket, family, kind, protocol, also=UNREACHABLE)
    attempt("socketpair", syscall, "socketpair", family, socket.SOCK_STREAM, 0, b" " * 8, also=UNREACHABLE)
""",
    ),
    Probe(
        name="network.programs",
        source="""
for family in (socket.AF_INET, socket.AF_INET6):
    attempt("an internet socket", socket.socket, family, also=(errno.EAFNOSUPPORT,))
""",
        ways=(MAP,),
    ),
    Probe(
        name="network.interfaces",
        source="""
if T["restricted"]:
    for name in ("dev", "tcp", "unix", "route"):
        attempt(f"/proc/net/{name}", read, f"/proc/net/{name}")
    finish()
    sys.exit()
names = {line.split(":")[0].strip() for line in read("/proc/net/dev").decode().splitlines()[2:]}
check(f"interfaces {names}", names <= {"lo"})
check("it sees the host's listener", f":{T['tcp'][1]:04X} " not in read("/proc/net/tcp").decode())
check("it sees the host's sockets", T["stream"] not in read("/proc/net/unix").decode())
check("it has a route", len(read("/proc/net/route").splitlines()) < 2)
""",
    ),
    Probe(
        name="files.read_host",
        source="""
up = "../" * 20
for path in T["secrets"]:
    for door in ("", f"/proc/self/root/{up}", f"/proc/self/cwd/{up}", *(f"/proc/{pid}/root/{up}" for pid in others())):
        attempt(door + path, read, door + path, also=NOT_THERE)
# An image has such files of its own.
HOST = () if T["image"] else ("/etc/shadow", "/etc/ssh", "/var/log", "/var/lib", "/home", "/boot", "/run/dbus")
for path in (*HOST, "/proc/1/environ"):
    if path != "/proc/1/environ" or os.getpid() != 1:
        attempt(path, os.listdir if os.path.isdir(path) else read, path, also=NOT_THERE)
""",
        target="secrets",
    ),
    Probe(
        name="files.write_host",
        source="""
FILES = ("/usr/bin/env", sys.executable, os.__file__, "/etc/passwd", "/etc/hosts")
FOLDERS = ("/", "/usr", "/usr/bin", "/etc", os.path.dirname(os.__file__))
# Those of an image are the box's own.
for path in (*(() if T["image"] else FILES), "/.harena/guest/start.py", "/.harena/init"):
    attempt(f"opening {path} for writing", touch, path, os.O_RDWR, also=NOT_THERE)
for folder in (*(() if T["image"] else FOLDERS), "/dev", "/.harena", "/.harena/guest", "/proc/self"):
    attempt(f"a file in {folder}", touch, f"{folder}/doctor", os.O_WRONLY | os.O_CREAT, also=NOT_THERE)
""",
    ),
    Probe(
        name="files.read_only_mounts",
        source="""
# Landlock refuses first, and hides what a mount would allow: so the mounts are looked at.
for target, kind, options, propagation in mounts():
    own = target in ("/workspace", "/tmp", "/dev/shm") or kind in ("proc", "devpts") or target.startswith("/dev/")
    if T["image"]:  # its root is writable, and Landlock leaves /proc to the mount
        own = (own and kind != "proc") or (target == "/" and kind == "overlay")
    check(f"{target} is writable", own or "ro" in options)
    check(f"{target} follows mounts of the host", not propagation)
""",
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="files.landlock",
        source="""
def rename():
    with open("/proc/self/comm", "w") as file:
        file.write("doctor")
# Every process may rename itself; that it cannot is the word of Landlock, or of a /proc that is read-only.
if T["landlock"]:
    attempt("writing to /proc", rename, also=(errno.EROFS,))
else:
    check("the kernel has no Landlock", True)
""",
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="files.hard_links",
        source="""
for source in (*T["secrets"], "/usr/bin/env", "/etc/passwd", "/proc/self/exe", "/dev/null"):
    attempt(f"hard link to {source}", os.link, source, "hard", also=(*NOT_THERE, errno.EXDEV))
""",
        target="secrets",
    ),
    Probe(
        name="processes.seen",
        source="""
try:
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
except PermissionError:
    pids = [T["victim"], T["host"], 1]
for pid in pids:
    try:
        words = read(f"/proc/{pid}/cmdline")
    except OSError:
        words = b""
    check(f"process {pid} of the host", T["mark"].encode() not in words)
""",
    ),
    Probe(
        name="processes.own",
        source="""
check("/proc shows another namespace", os.readlink("/proc/self") == str(os.getpid()))
found = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()} - {1, os.getpid(), os.getppid()}
check(f"processes of others: {found}", not found)
check("it shares a session", os.getsid(0) == os.getpid())
with open("/proc/1/status") as file:
    init = dict(line.split(":", 1) for line in file)
# A handler that a module left there would run in memory that is not the guest's.
# No process blocks KILL (9) and STOP (19), and through the C library none blocks 32 and 33.
deaf = int(init["SigBlk"], 16) | 1 << 8 | 1 << 18 | 3 << 31
check(f"pid 1 hears signals, it blocks {init['SigBlk'].strip()}", deaf == (1 << 64) - 1)
""",
        ways=(EXEC, MAP),  # an interpreter sees its children and its forks
    ),
    Probe(
        name="processes.signals",
        source="""
import signal
for pid in (T["victim"], -T["victim"], T["host"], 1):
    if pid == 1 or not os.path.exists(f"/proc/{abs(pid)}"):  # or the number is one of the box's own
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError as error:
            refusals.append(errno.errorcode[error.errno])
check("pid 1 is gone", os.path.exists("/proc/1"))
""",
        ways=(EXEC, RUN),
        target="victim",
    ),
    Probe(
        name="processes.ptrace",
        source="""
import ctypes
for pid in {*others(), 1}:
    attempt(f"attach to {pid}", syscall, "ptrace", 16, pid, 0, 0)
    attempt(f"seize {pid}", syscall, "ptrace", 0x4206, pid, 0, 0)
for pid in others():
    place = (ctypes.c_void_p * 2)(id(pid), 8)
    for name in ("process_vm_readv", "process_vm_writev"):
        attempt(f"{name} of {pid}", syscall, name, pid, place, 1, place, 1, 0)
    attempt(f"memory of {pid}", touch, f"/proc/{pid}/mem", os.O_RDWR, also=NOT_THERE)
    attempt(f"descriptors of {pid}", syscall, "pidfd_getfd", 0, 3, 0)
""",
    ),
    Probe(
        name="privilege.setuid",
        source="""
# In an image a guest is root among its own ids: others do not exist, or becoming one is only pretended.
first = 70000 if T["image"] else 0
CALLS = ((os.setuid, first), (os.setgid, first), (os.setgroups, [first]), (os.setresuid, first, first, first))
for call, *ids in CALLS:
    if T["image"] != "single":
        attempt(call.__name__, call, *ids, also=(errno.EINVAL,))
    else:
        call(*ids)
open("tool", "w").close()
for mode in () if T["image"] else (0o4755, 0o2755):
    attempt(f"chmod {mode:o}", os.chmod, "tool", mode)
attempt("capset", syscall, "capset", b"\\x22\\x05\\x08\\x20\\0\\0\\0\\0", b"\\xff" * 24)
check("privileges can be gained by running a file", status("NoNewPrivs") == "1")
allowed = {"": 0, "full": 0x800000FB, "single": 0x8000003A}[T["image"]]
for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", *(() if T["shared_user"] else ("CapBnd",))):
    check(f"{name} {status(name)}", int(status(name), 16) & ~allowed == 0)
for name in ("Uid", "Gid"):
    ids = set(status(name).split())
    usual = {"0" if T["image"] else "1000"}
    check(f"{name} {ids}", ids == usual or (T["restricted"] and len(ids) == 1 and ids != {"0"}))
""",
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="privilege.mount_flags",
        source="""
for target, kind, options, _ in mounts():
    check(f"{target} honours setuid bits", "nosuid" in options)
    device = target.startswith("/dev/") and target.count("/") == 2
    check(f"{target} honours device nodes", "nodev" in options or device or kind == "devpts")
    check(f"{target} can be executed from", "noexec" in options or kind not in ("proc", "devpts"))
""",
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="privilege.mounts",
        source="""
attempt("tmpfs", syscall, "mount", b"none", b"/tmp", b"tmpfs", 0, 0)
attempt("a bind mount", syscall, "mount", b"/proc", b"/tmp", b"", 4096, 0)
attempt("remounting / writable", syscall, "mount", b"", b"/", b"", 32 | 4096, 0)
attempt("unmounting", syscall, "umount2", b"/proc", 2)
attempt("pivot_root", syscall, "pivot_root", b"/tmp", b"/tmp")
attempt("chroot", syscall, "chroot", b"/tmp")
attempt("fsopen", syscall, "fsopen", b"tmpfs", 0)
attempt("open_tree", syscall, "open_tree", -100, b"/", 1)
attempt("move_mount", syscall, "move_mount", -1, b"", -1, b"", 4)
attempt("mount_setattr", syscall, "mount_setattr", -100, b"/", 0, 0, 0)
attempt("open_by_handle_at", syscall, "open_by_handle_at", -100, 0, 0)
""",
    ),
    Probe(
        name="privilege.devices",
        source="""
import stat
for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 10, 229)):
    if T["image"] != "single":
        attempt(f"device {major}:{minor}", os.mknod, "/workspace/device", kind | 0o666, os.makedev(major, minor))
        continue
    os.mknod("/workspace/device", kind | 0o666, os.makedev(major, minor))  # with one id it is pretended
    check(f"device {major}:{minor} was made", not os.path.lexists("/workspace/device"))
for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "net/tun", "loop-control", "vsock"):
    attempt(f"/dev/{name}", touch, f"/dev/{name}", os.O_RDONLY, also=NOT_THERE)
""",
    ),
    Probe(
        name="kernel.proc_writes",
        source="""
for path in ("sys/kernel/core_pattern", "sys/kernel/hostname", "sys/kernel/modprobe", "sys/kernel/randomize_va_space",
             "sys/vm/overcommit_memory", "sys/vm/drop_caches", "sys/fs/file-max", "sysrq-trigger"):
    attempt(f"/proc/{path}", touch, f"/proc/{path}", also=NOT_THERE)
def dodge():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
attempt("hiding from the memory killer", dodge, also=NOT_THERE)
def become():
    with open("/proc/self/uid_map", "w") as file:
        file.write("0 0 4294967295")
attempt("a new uid map", become, also=NOT_THERE)
""",
    ),
    Probe(
        name="kernel.sys_writes",
        source="""
if not T["image"] or os.listdir("/sys"):  # an image may have an empty folder there
    attempt("/sys", os.listdir, "/sys", also=NOT_THERE)
for path in ("kernel/uevent_helper", "power/state", "fs/cgroup/cgroup.procs", "fs/cgroup/release_agent"):
    attempt(f"/sys/{path}", touch, f"/sys/{path}", also=NOT_THERE)
""",
    ),
    Probe(
        name="kernel.user_namespaces",
        source="""
NEW = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000}
for name, flag in NEW.items():
    attempt(f"unshare {name}", syscall, "unshare", flag)
def clone():
    if syscall("clone", NEW["user"] | 17, 0, 0, 0, 0) == 0:
        os._exit(0)
attempt("clone into a user namespace", clone)
for name, flag in NEW.items():
    def clone_both():
        if syscall("clone", NEW["user"] | flag | 17, 0, 0, 0, 0) == 0:
            os._exit(0)
    attempt(f"clone into user and {name} namespaces", clone_both)
def clone_sibling():
    if syscall("clone", 0x8000 | 17, 0, 0, 0, 0) == 0:
        os._exit(0)
attempt("clone of a sibling", clone_sibling)
# As an interpreter forks itself when the host asks, which only then may be: without a stack a child would end at once.
attempt("clone as for a fork", syscall, "clone", FORK_FLAGS, 8, 0, 0, 0)
with open("/proc/self/ns/user") as own:
    attempt("setns", syscall, "setns", own.fileno(), 0)
""".replace("FORK_FLAGS", hex(FORK_FLAGS)),
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="kernel.refused_calls",
        source="""
for name in REFUSED:
    attempt(f"call {name}", syscall, name, *[-1] * 6)
""".replace("REFUSED", repr([entry.split(":")[0] for entry in REFUSED.split()])),
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="kernel.refused_arguments",
        source="""
# Each fails in another way where the filter lets it through: there is no such file, descriptor or process.
import stat
SETUID, NOWHERE, CREATE = 0o4755, b"/nowhere/doctor", os.O_CREAT | os.O_WRONLY
SET_ID_BITS = (
    ("chmod", NOWHERE, SETUID), ("fchmod", -1, SETUID), ("fchmodat", -1, b"x", SETUID),
    ("fchmodat2", -1, b"x", SETUID, 0), ("creat", NOWHERE, SETUID), ("open", NOWHERE, CREATE, SETUID),
    ("openat", -1, b"x", CREATE, SETUID), ("openat", -1, b"x", os.O_TMPFILE | os.O_WRONLY, SETUID),
    ("mkdir", NOWHERE, SETUID), ("mkdirat", -1, b"x", SETUID),
)
NODES = (
    ("mknod", NOWHERE, stat.S_IFCHR | 0o600, 259), ("mknodat", -1, b"x", stat.S_IFBLK | 0o600, 259),
    ("mknodat", -1, b"x", stat.S_IFIFO | SETUID, 0),
)
for name, *arguments in (
    *(() if T["image"] else SET_ID_BITS), *(() if T["image"] == "single" else NODES),
    ("ioctl", -1, 0x5412), ("ioctl", -1, 0x541C), ("ioctl", -1, 0x5423), ("prctl", 35, -1, 0, 0, 0),
    ("prctl", 62, -1, 0, 0, 0), ("personality", 0x0040000), ("personality", 0x0400000),
    ("sched_setscheduler", -1, 1, 0), ("sched_setscheduler", -1, 2, 0), ("sched_setscheduler", -1, 6, 0),
    ("fcntl", -1, 1024, 1), ("getsockopt", -1, 0, 64, 0, 0), ("setsockopt", -1, 1, 26, 0, 0),
    ("setsockopt", -1, 0, 64, 0, 0), ("madvise", 0, 0, 12), ("mmap", 0, 0, 0, 0x40022, -1, 0),
    ("prlimit64", -1, 7, 0, 0), ("sendmmsg", -1, 0, 1, 1), ("sendmsg", -1, 0, 1), ("sendto", -1, 0, 0, 1, 0, 0),
):
    attempt(f"call {name} {arguments}", syscall, name, *arguments, also=(errno.EOPNOTSUPP, errno.ENOPROTOOPT))
""",
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(name="kernel.bpf", source='attempt("bpf", syscall, "bpf", 0, 0, 0)'),
    Probe(
        name="kernel.userfaultfd",
        source='for flags in (0, 1): attempt("userfaultfd", syscall, "userfaultfd", flags)',
    ),
    Probe(name="kernel.io_uring", source='attempt("io_uring_setup", syscall, "io_uring_setup", 8, 0)'),
    Probe(
        name="kernel.keyctl",
        source="""
attempt("keyctl", syscall, "keyctl", 0, -3, 1)
attempt("add_key", syscall, "add_key", b"user", b"doctor", b"x", 1, -3)
attempt("request_key", syscall, "request_key", b"user", b"doctor", 0, -3)
""",
    ),
    Probe(
        name="kernel.perf_event_open", source='attempt("perf_event_open", syscall, "perf_event_open", 0, 0, -1, -1, 0)'
    ),
    Probe(
        name="kernel.code_and_log",
        source="""
attempt("init_module", syscall, "init_module", 0, 0, 0)
attempt("finit_module", syscall, "finit_module", -1, b"", 0)
attempt("kexec_load", syscall, "kexec_load", 0, 0, 0, 0)
attempt("swapon", syscall, "swapon", b"/workspace/none", 0)
attempt("the kernel's log", syscall, "syslog", 3, b" " * 64, 64)
""",
    ),
    Probe(
        name="inherited.descriptors",
        source="""
for fd in range(3, 256):
    try:
        where = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
    # A way to talk to the box's own init is no way to the host; a file or a folder would be.
    check(f"descriptor {fd} is {where}", where.startswith(("socket:", "pipe:", "anon_inode:", "/dev/null", "/proc/")))
check("descriptors were looked at", True)
""",
    ),
    Probe(
        name="inherited.environment",
        source="""
check("it sees the host's variables", T["mark"] not in os.environ and T["mark"] not in str(os.environ))
check("a variable names the host", not any(name.startswith(("SUDO_", "SSH_", "DBUS_", "XDG_")) for name in os.environ))
""",
    ),
    Probe(
        name="limits.rlimits",
        source="""
import resource
unlimited = resource.RLIM_INFINITY
for name, most in T["rlimits"].items():
    if name == "DATA" and T["way"] == "exec" or name == "CPU" and T["way"] in ("run", "fork"):
        continue  # commands meet the cgroup or the watch; an interpreter's time is counted for each call
    soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    check(f"RLIMIT_{name} is {hard}", soft == hard != unlimited and hard <= most)
""",
        bomb=True,
        ways=(EXEC, RUN, MAP, FORK),
    ),
    Probe(
        name="limits.time",
        source="""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
while True: pass
""",
        verdicts=(Verdict.TIME,),
        wall_s=0.2,
        bomb=True,
    ),
    Probe(
        name="limits.processes",
        source="""
import time
for _ in range(12):  # few: behind the cgroup stands an rlimit of twice as many
    if os.fork() == 0:
        time.sleep(1)
        os._exit(0)
escapes.append("12 processes at once")
""",
        verdicts=(Verdict.PROCESSES,),
        bomb=True,
    ),
    Probe(
        name="limits.threads",
        source="""
import threading, time
for _ in range(12):
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
escapes.append("12 threads at once")
""",
        verdicts=(Verdict.PROCESSES,),
        bomb=True,
    ),
    Probe(
        name="limits.memory",
        source="""
held = [b"x" * (8 << 20) for _ in range(64)]
escapes.append(f"{len(held) * 8} MiB of memory")
""",
        verdicts=(Verdict.MEMORY,),
        bomb=True,
    ),
    Probe(
        name="limits.disk",
        source="""
def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 32 << 20:
                written += file.write(b"x" * (1 << 20))
    finally:
        os.unlink(path)
    return f"{written >> 20} MiB"
for folder in (os.getcwd(), os.environ.get("TMPDIR", "/tmp"), "/dev/shm"):
    attempt(f"filling {folder}", fill, f"{folder}/bomb", also=(*FULL, *NOT_THERE))
""",
        bomb=True,
    ),
    Probe(
        name="limits.inodes",
        source="""
for folder in ("/workspace", "/tmp", "/dev/shm"):
    check(f"{os.statvfs(folder).f_files} files in {folder}", 0 < os.statvfs(folder).f_files <= 32768)
""",
        bomb=True,
        ways=(EXEC, RUN, MAP),
    ),
    Probe(
        name="limits.cpu",
        source="""
import time
while time.process_time() < 1: pass  # behind the watch stands an rlimit of two seconds more
escapes.append("a second of processor time")
""",
        verdicts=(Verdict.TIME,),
        limits={"cpu_s": 0.1},
        wall_s=30,
        bomb=True,
        ways=(EXEC, MAP),
    ),
    Probe(
        name="limits.output",
        source="""
for _ in range(64):
    print("x" * 65535, flush=True)
escapes.append("4 MiB of output")
""",
        verdicts=(Verdict.OUTPUT,),
        bomb=True,
    ),
    Probe(
        name="limits.descriptors",
        source="""
held = []
def hold():
    while len(held) < 1000:
        held.append(os.dup(1))
    return len(held)
attempt("descriptors", hold, also=(errno.EMFILE,))
for fd in held: os.close(fd)
""",
        bomb=True,
    ),
)

JUNK = """
import os
for fd in range(3, 64):
    try:
        os.write(fd, b"junk" * 16)
    except OSError:
        pass
"""
"""Says something on every line it finds. Its own may break; the box's own must not be among them."""

MEET = """
import socket, time
print(os.readlink("/proc/self/ns/ipc"))
server = socket.socket(socket.AF_UNIX)
server.bind("\\0doctor-meets")
server.listen()
server.settimeout(0.4)
try:
    server.accept()
except TimeoutError:
    print("alone")
else:
    print("met")
"""
VISIT = """
import time
print(os.readlink("/proc/self/ns/ipc"))
end = time.monotonic() + 0.3
while time.monotonic() < end:
    try:
        socket.socket(socket.AF_UNIX).connect("\\0doctor-meets")
    except OSError as error:
        time.sleep(0.01)
    else:
        escapes.append("a socket of another program")
        break
check("it is alone", True)
"""
"""Two programs that run in one box at the same time, and look for each other on an abstract socket."""

LEAVE_BEHIND = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        os.execv("/bin/sleep", [T["mark"] + "-left", "20"])
    os._exit(0)
os.wait()
print("left")
"""
LEFT_FOR_FORK = """
import subprocess
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0doctor-forks")
listener.listen()
for folder in ("/workspace", "/tmp", "/dev/shm"):
    open(f"{folder}/doctor-parent", "w").close()
try:
    syscall("shmget", 4343, 4096, 0o1666)
except OSError:
    pass
sleeper = subprocess.Popen(["sleep", "30"])
attempt("a fork that nobody asked for", syscall, "clone", FORK_FLAGS, 8, 0, 0, 0)
check("user namespaces may be made", read("/proc/sys/user/max_user_namespaces").strip() == b"0")
namespaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "mnt", "net", "ipc")}
print(*escapes or ["left"])
""".replace("FORK_FLAGS", hex(FORK_FLAGS))
LOOK_IN_FORK = """
def connect():
    socket.socket(socket.AF_UNIX).connect("\\0doctor-forks")
for name, link in namespaces.items():
    check(f"it shares the {name} namespace", os.readlink(f"/proc/self/ns/{name}") != link)
attempt("a socket of the parent", connect, also=UNREACHABLE)
attempt("a System V segment of the parent", syscall, "shmget", 4343, 4096, 0o666, also=NOT_THERE)
check("/proc is not its own", os.readlink("/proc/self") == str(os.getpid()))
for pid in filter(str.isdigit, os.listdir("/proc")):
    check(f"process {pid} is its parent's", not read(f"/proc/{pid}/cmdline").startswith(b"sleep"))
check("it lost its parent's files", os.path.exists("/workspace/doctor-parent") and os.path.exists("/tmp/doctor-parent"))
check("user namespaces may be made", read("/proc/sys/user/max_user_namespaces").strip() == b"0")
check("its parent's shared memory", not os.path.exists("/dev/shm/doctor-parent"))
finish()
"""
LEFT_BY_FORK = """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    os.path.exists(f"{folder}/doctor-parent") and os.unlink(f"{folder}/doctor-parent")
    open(f"{folder}/doctor-fork", "w").close()
print("left")
"""
LOOK_AFTER_FORK = """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    check(f"the fork wrote to {folder}", not os.path.exists(f"{folder}/doctor-fork"))
    check(f"the fork removed from {folder}", os.path.exists(f"{folder}/doctor-parent"))
attempt("a fork that nobody asked for", syscall, "clone", FORK_FLAGS, 8, 0, 0, 0)
check("user namespaces may be made", read("/proc/sys/user/max_user_namespaces").strip() == b"0")
sleeper.kill()
sleeper.wait()
finish()
""".replace("FORK_FLAGS", hex(FORK_FLAGS))
"""What the interpreter of a box leaves before it is forked, and where each of the two looks for the other."""

TRACES = (
    Trace(
        name="next.files",
        leave="""
import os
for folder in (os.getcwd(), os.environ["TMPDIR"], "/dev/shm"):
    try:
        open(f"{folder}/doctor-left", "w").close()
    except PermissionError:
        assert folder == "/dev/shm"
print("left")
""",
        look="""
for folder in (os.getcwd(), os.environ["TMPDIR"], "/dev/shm"):
    check(f"a file in {folder}", not os.path.lexists(f"{folder}/doctor-left"))
""",
    ),
    Trace(
        name="next.environment",
        leave='import os\nos.environ["DOCTOR_LEFT"] = "1"\nos.putenv("DOCTOR_LEFT", "1")\nos.chdir("/")\nprint("left")',
        look="""
check("a variable", "DOCTOR_LEFT" not in os.environ)
check("the working folder", os.getcwd() == os.environ["HOME"])
""",
    ),
    Trace(
        name="next.modules",
        leave="""
import builtins, json, math, sys
math.sqrt = json.loads = lambda *args: "patched"
builtins.len = lambda thing: 0
sys.modules["doctor_left"] = math
print("left")
""",
        look="""
import json, math
check("a patched math.sqrt", math.sqrt(9) == 3)
check("a patched json.loads", json.loads("[1]") == [1])
check("a patched len", len("abc") == 3)
check("a planted module", "doctor_left" not in sys.modules)
""",
    ),
    Trace(
        name="next.memory",
        leave='''
left = """doctor-left-a-secret"""
print("left")
''',
        look="""
secret = "-".join(("doctor", "left", "a", "secret")).encode()
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        bounds, rights, *_, = line.split()
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        if rights.startswith("r") and "[v" not in line:
            try:
                memory.seek(start)
                found += memory.read(end - start).count(secret)
            except (OSError, OverflowError):
                pass
check(f"{found} traces of it in memory", found <= 1)  # one is the word that is looked for
""",
    ),
    Trace(
        name="next.shared_memory",
        leave='try:\n    syscall("shmget", 4242, 4096, 0o1666)\nexcept OSError: pass\nprint("left")',
        look='attempt("a System V segment", syscall, "shmget", 4242, 4096, 0o666, also=NOT_THERE)',
    ),
    Trace(
        name="next.processes",
        leave="""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(30)
    os._exit(0)
print("left")
""",
        look="""
known = {1, os.getpid(), os.getppid()}
found = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()} - known
check(f"processes {found}", not found)
""",
    ),
)
