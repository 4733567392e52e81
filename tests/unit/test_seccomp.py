"""The filter against a naive reading of the policy, for every number, and against this machine's kernel."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harena import errors
from harena.backends.local.policy import bpf, callpage, seccomp, syscalls
from harena.backends.local.policy.seccomp import Profile

MACHINES = ("x86_64", "aarch64")
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FORK_FLAGS = 0x3402_9011
"""CLONE_NEWUSER, NEWPID, NEWNS, NEWUTS, CLONE_PARENT, CLONE_PIDFD and SIGCHLD: all that a guest may not say itself."""

ALLOW, KILL = 0x7FFF0000, 0x80000000
LOW = 0xFFFFFFFF

Instruction = tuple[int, int, int, int]

every_filter = pytest.mark.parametrize(
    ("machine", "profile"), [(machine, profile) for machine in MACHINES for profile in Profile]
)
every_filter_by_chance = pytest.mark.parametrize(
    ("machine", "profile"),
    [
        pytest.param(machine, profile, marks=[] if machine == os.uname().machine else [pytest.mark.thorough])
        for machine in MACHINES
        for profile in Profile
    ],
)


def refuse(number: int) -> int:
    return 0x50000 | number


def assemble(profile: Profile, machine: str | None = None) -> bytes:
    return seccomp.assemble(profile, machine, fork_flags=FORK_FLAGS if profile is Profile.INTERPRETER else None)


def instructions(code: bytes) -> list[Instruction]:
    return list(struct.iter_unpack("<HBBI", code))  # pyright: ignore[reportReturnType]


def run(
    program: Sequence[Instruction], arch: int, number: int, args: Sequence[int] = (), reads: list[int] | None = None
):
    """Classic BPF, as far as the filters use it. An IndexError is a jump out of the program."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(*args, 0, 0, 0, 0, 0, 0)[:6])
    accumulator = at = 0
    while True:
        operation, then, otherwise, value = program[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
                if reads is not None:
                    reads.append(value)
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x15:
                at += then if accumulator == value else otherwise
            case 0x35:
                at += then if accumulator >= value else otherwise
            case 0x45:
                at += then if accumulator & value else otherwise
            case 0x06:
                return value
            case _:
                raise AssertionError(f"operation {operation:#x}")


def setid(mode: int) -> int:
    return refuse(errno.EPERM) if mode & 0o6000 else ALLOW


def create(flags: int, mode: int) -> int:
    return setid(mode) if flags & (os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)) else ALLOW


def node(mode: int) -> int:
    plain = mode & 0o170000 in (0, 0o100000, 0o010000, 0o140000)
    return setid(mode) if plain else refuse(errno.EPERM)


def allow_if(condition: bool) -> int:
    return ALLOW if condition else refuse(errno.EPERM)


PRCTL = {1, 2, 3, 15, 16, 21, 23, 29, 30, *range(36, 43), 0x41555856}
PRCTL_OF_COMMANDS = {7, 8, 27, 47, 50, 51, 52}
IOCTL = {
    *(*range(0x5401, 0x5405), *range(0x5409, 0x5412), 0x5413, 0x5414, 0x541B, *range(0x5420, 0x5423), 0x5424, 0x5425),
    *(0x5429, 0x5441, *range(0x5450, 0x5453), 0x80045430, 0x40045431, 0x802C542A, *range(0x402C542B, 0x402C542E)),
}
IOCTL_OF_COMMANDS = {
    *(2, 0x40049409, 0x4020940D, 0x80086601, 0x80045200, 0xC020660B, 0x8905, 0x8910, 0x8912, 0x8913, 0x8915),
    *(0x8919, 0x891B, 0x8921, 0x8927, 0x8933),
}
FCNTL = {*range(12), 15, 16, 36, 37, 38, 1027, 1030, 1031, 1032, 1033, 1034}
SOCKET_OPTIONS = {*range(2, 22), 29, 30, 31, 35, 38, 39}
INTERNET_OPTIONS = {
    0: {1, 2, 8, *range(10, 15), 24, *range(32, 37)},
    6: {*range(1, 13), 18, 23, 25, 30},
    41: {*range(16, 22), *range(23, 27), 49, 51, 66, 67},
}


def prctl(profile: Profile, option: int, value: int) -> int:
    if option == 4:
        return allow_if(value == 1)
    more = {Profile.SESSION: PRCTL_OF_COMMANDS, Profile.INTERPRETER: {24, 47}}.get(profile, set())
    return allow_if(option in PRCTL | more)


def socket_option(profile: Profile, level: int, option: int) -> int:
    offline = profile in (Profile.PROGRAM, Profile.TALK)
    levels = {1: SOCKET_OPTIONS} | ({} if offline else INTERNET_OPTIONS)
    return ALLOW if option in levels.get(level, ()) else refuse(errno.ENOPROTOOPT)


def not_urgent(flags: int) -> int:
    return refuse(errno.EOPNOTSUPP) if flags & 1 else ALLOW


def socket(profile: Profile, family: int, kind: int, protocol: int) -> int:
    if family == 1:
        return ALLOW
    if profile in (Profile.PROGRAM, Profile.TALK) or family not in (2, 10):
        return refuse(errno.EAFNOSUPPORT)
    if kind & 0xF not in (1, 2):
        return refuse(errno.EPERM)
    return ALLOW if protocol in (0, 6, 17) else refuse(errno.EPROTONOSUPPORT)


NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
CLONE_PARENT = 0x8000

CONDITIONAL: dict[str, Callable[[Sequence[int]], int]] = {
    "chmod": lambda a: setid(a[1]),
    "fchmod": lambda a: setid(a[1]),
    "creat": lambda a: setid(a[1]),
    "mkdir": lambda a: setid(a[1]),
    "fchmodat": lambda a: setid(a[2]),
    "fchmodat2": lambda a: setid(a[2]),
    "mkdirat": lambda a: setid(a[2]),
    "open": lambda a: create(a[1], a[2]),
    "openat": lambda a: create(a[2], a[3]),
    "mknod": lambda a: node(a[1]),
    "mknodat": lambda a: node(a[2]),
    "fcntl": lambda a: allow_if(a[1] in FCNTL),
    "mmap": lambda a: allow_if(not a[3] & 0x40000),
    "madvise": lambda a: allow_if(a[2] != 12),
    "prlimit64": lambda a: allow_if(a[0] == 0),
    "sendto": lambda a: not_urgent(a[3]),
    "sendmsg": lambda a: not_urgent(a[2]),
    "sendmmsg": lambda a: not_urgent(a[3]),
    "personality": lambda a: allow_if(a[0] in (0, LOW)),
    "sched_setscheduler": lambda a: allow_if(a[1] & ~0x40000000 in (0, 3, 5)),
    "socketpair": lambda a: ALLOW if a[0] == 1 else refuse(errno.EAFNOSUPPORT),
    "clone": lambda a: allow_if(not a[0] & (NAMESPACES | CLONE_PARENT)),
}
BY_PROFILE: dict[str, Callable[[Profile, Sequence[int]], int]] = {
    "socket": lambda profile, a: socket(profile, *a[:3]),
    "ioctl": lambda profile, a: allow_if(a[1] in IOCTL or (profile is Profile.SESSION and a[1] in IOCTL_OF_COMMANDS)),
    "prctl": lambda profile, a: prctl(profile, *a[:2]),
    "setsockopt": lambda profile, a: socket_option(profile, *a[1:3]),
    "getsockopt": lambda profile, a: socket_option(profile, *a[1:3]),
}
UNCOUNTED = {"memfd_create", "mq_open", "msgget", "semget", "shmget"}
OF_COMMANDS = """
    get_mempolicy pkey_alloc pkey_free pkey_mprotect ioprio_set capset setfsgid setfsuid setgid setgroups setregid
    setresgid setresuid setreuid setuid mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl
    msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget landlock_restrict_self
"""


def test_memory_that_is_nobodys_is_out_of_reach_where_nothing_counts_it() -> None:
    for profile in Profile:
        flags = FORK_FLAGS if profile is Profile.INTERPRETER else None
        counted = seccomp.policy(profile, flags)
        watched = seccomp.policy(profile, flags, counted=False)
        assert {name for name in watched if counted.get(name) != watched[name]} == {*UNCOUNTED, "fcntl"}
        code = instructions(seccomp.assemble(profile, "x86_64", fork_flags=flags, counted=False))
        for name in UNCOUNTED:
            number = syscalls.NUMBERS["x86_64"][name]
            assert run(code, ARCH["x86_64"], number, [0] * 6) == refuse(errno.ENOSYS)
        F_SETPIPE_SZ = 1031
        assert run(code, ARCH["x86_64"], syscalls.NUMBERS["x86_64"]["fcntl"], [0, F_SETPIPE_SZ]) == refuse(errno.EPERM)


@pytest.mark.parametrize("profile", [Profile.PROGRAM, Profile.TALK, Profile.INTERPRETER])
def test_python_programs_do_without_what_only_commands_need(profile: Profile) -> None:
    of_programs = seccomp.policy(profile)
    of_commands = seccomp.policy(Profile.SESSION)
    forks_itself = {"capset"} if profile is Profile.INTERPRETER else set[str]()
    assert {name for name in of_commands if name not in of_programs} == set(OF_COMMANDS.split()) - forks_itself


def test_debuggers_and_netlink_are_for_commands_that_ask() -> None:
    plain, more = (seccomp.policy(Profile.SESSION, allow=allow) for allow in ((), ("ptrace", "netlink")))
    assert more.keys() - plain.keys() == {"ptrace", "process_vm_readv", "process_vm_writev"}
    assert {name for name in plain if plain[name] != more[name]} == {"socket", "prctl", "personality"}
    for profile in (Profile.PROGRAM, Profile.TALK, Profile.INTERPRETER):
        assert seccomp.policy(profile, allow=("ptrace", "netlink")) == seccomp.policy(profile)
    code = instructions(seccomp.assemble(Profile.SESSION, "x86_64", allow=("netlink",)))
    number = syscalls.NUMBERS["x86_64"]["socket"]
    AF_NETLINK, SOCK_RAW, ROUTE, SOCK_DIAG = 16, 3, 0, 4
    assert run(code, ARCH["x86_64"], number, [AF_NETLINK, SOCK_RAW, ROUTE]) == ALLOW
    assert run(code, ARCH["x86_64"], number, [AF_NETLINK, SOCK_RAW, SOCK_DIAG]) == refuse(errno.EPROTONOSUPPORT)


DENIED_NAMES = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd mount umount2 pivot_root move_mount fsopen fsconfig
    fsmount fspick open_tree open_tree_attr mount_setattr statmount listmount chroot unshare setns bpf perf_event_open
    userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register open_by_handle_at
    name_to_handle_at init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct
    quotactl quotactl_fd clock_settime settimeofday adjtimex clock_adjtime sethostname setdomainname syslog iopl ioperm
    modify_ldt vhangup lookup_dcookie nfsservctl move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node
    fanotify_init fanotify_mark memfd_secret vmsplice remap_file_pages uselib ustat sysfs _sysctl afs_syscall tuxcall
    vserver security sync syncfs io_setup io_submit sched_setattr tee process_madvise mseal map_shadow_stack
"""
DENIED = DENIED_NAMES.split()


def naive(machine: str, profile: Profile, number: int, args: Sequence[int]) -> int:
    name = next((name for name, known in syscalls.NUMBERS[machine].items() if known == number), None)
    low = [arg & LOW for arg in args]
    if name is None:
        return refuse(errno.ENOSYS)
    if name in BY_PROFILE:
        return BY_PROFILE[name](profile, low)
    if name == "clone" and profile is Profile.INTERPRETER and args[0] == FORK_FLAGS:
        return ALLOW
    if name in CONDITIONAL:
        return CONDITIONAL[name](low)
    if name in DENIED:
        return refuse(errno.EPERM)
    action = seccomp.policy(profile).get(name, refuse(errno.EPERM))
    assert isinstance(action, int), f"{name} is checked; the test does not know how"
    return action


INTERESTING = [
    *(0, 1, 2, 3, 5, 6, 10, 16, 17, 35, 40, 62, 132, 262, 0o644, 0o4755, 0o2755, 0o1777, 0o100, 0o101, 0o20200000),
    *(0o10644, 0o20666, 0o60666, 0o100644, 0o104755, 0o140777, 0x5401, 0x5412, 0x541C, 0x5423, 0x80001, 0x80003),
    *(PRCTL | PRCTL_OF_COMMANDS | IOCTL | IOCTL_OF_COMMANDS | FCNTL | SOCKET_OPTIONS),
    *(
        4,
        12,
        22,
        26,
        41,
        50,
        64,
        67,
        68,
        78,
        200,
        1024,
        1025,
        1026,
        0x8914,
        0x5408,
        0x5412,
        0x5415,
        0x541C,
        0x5423,
        0xB701,
    ),
    *(0x1200011, 0x3D0F00, 0x4111, 0x8011, 0x40000003, FORK_FLAGS, FORK_FLAGS | 1 << 32, LOW, 2**64 - 1),
    *(1 << bit for bit in range(64)),
]
arguments = st.lists(st.sampled_from(INTERESTING) | st.integers(0, 2**64 - 1), min_size=6, max_size=6)


@every_filter
def test_every_number_is_answered_as_the_policy_says(machine: str, profile: Profile):
    program = instructions(assemble(profile, machine))
    for number in range(600):
        for args in ([0] * 6, [2**64 - 1] * 6, [0, 0o100, 0o4755, 0o6000, 0, 0], [FORK_FLAGS] * 6):
            assert run(program, ARCH[machine], number, args) == naive(machine, profile, number, args), (number, args)


@every_filter_by_chance
@settings(deadline=None, max_examples=400)
@given(number=st.integers(0, 600) | st.integers(0, LOW), args=arguments)
def test_any_call_is_answered_as_the_policy_says(machine: str, profile: Profile, number: int, args: list[int]):
    program = instructions(assemble(profile, machine))
    assert run(program, ARCH[machine], number, args) == naive(machine, profile, number, args)


@every_filter
@pytest.mark.parametrize("name", sorted({*CONDITIONAL, *BY_PROFILE}))
def test_each_value_of_a_checked_argument_decides_as_the_policy_says(machine: str, profile: Profile, name: str):
    number = syscalls.NUMBERS[machine].get(name)
    if number is None:
        return
    program = instructions(assemble(profile, machine))
    for value in INTERESTING:
        for args in (
            [value] * 6,
            [value, 0, 0, 0],
            [0, value, 0, 0],
            [0, 0, value, 0],
            [2, 1, value, 0],
            [2, value, 6, 0],
            [3, 1, value, 0],
            [3, 0, value, 0],
            [3, 6, value, 0],
            [3, 41, value, 0],
            [4, value, 0, 0],
        ):
            assert run(program, ARCH[machine], number, args) == naive(machine, profile, number, args), args


@every_filter_by_chance
@settings(deadline=None, max_examples=400)
@given(name=st.sampled_from(sorted({*CONDITIONAL, *BY_PROFILE})), args=arguments)
def test_any_checked_call_decides_as_the_policy_says(machine: str, profile: Profile, name: str, args: list[int]):
    number = syscalls.NUMBERS[machine].get(name)
    if number is not None:
        program = instructions(assemble(profile, machine))
        assert run(program, ARCH[machine], number, args) == naive(machine, profile, number, args)


@every_filter
def test_what_a_box_must_never_do_is_refused(machine: str, profile: Profile):
    program = instructions(assemble(profile, machine))
    numbers = syscalls.NUMBERS[machine]
    for name in DENIED:
        if name in numbers:
            assert run(program, ARCH[machine], numbers[name]) == refuse(errno.EPERM), name
    for name in ("clone3", "openat2", "seccomp", "landlock_create_ruleset", "landlock_add_rule"):
        assert run(program, ARCH[machine], numbers[name]) == refuse(errno.ENOSYS), name


@every_filter
def test_a_foreign_architecture_is_killed(machine: str, profile: Profile):
    program = instructions(assemble(profile, machine))
    i386, arm, other = 0x40000003, 0x40000028, ARCH["aarch64" if machine == "x86_64" else "x86_64"]
    for arch in (0, i386, arm, other):
        assert {run(program, arch, number) for number in range(600)} == {KILL}


@pytest.mark.parametrize("profile", list(Profile))
def test_x32_calls_do_not_exist(profile: Profile):
    program = instructions(assemble(profile, "x86_64"))
    assert {run(program, ARCH["x86_64"], 0x40000000 | n) for n in range(600)} == {refuse(errno.ENOSYS)}


@every_filter
def test_a_filter_is_small_and_well_formed(machine: str, profile: Profile):
    program = instructions(assemble(profile, machine))
    assert len(program) < 350
    assert program[-1][0] == 0x06
    for at, (operation, then, otherwise, value) in enumerate(program):
        furthest = value if operation == 0x05 else max(then, otherwise)
        assert at + furthest + 1 < len(program) or operation == 0x06


@every_filter
def test_calls_always_allowed_are_decided_by_number_alone(machine: str, profile: Profile):
    # The kernel then remembers the answer and no longer runs the filter for them.
    program = instructions(assemble(profile, machine))
    for name, action in seccomp.policy(profile).items():
        number = syscalls.NUMBERS[machine].get(name)
        if action == ALLOW and number is not None:
            reads: list[int] = []
            run(program, ARCH[machine], number, reads=reads)
            assert reads == [4, 0], name


def test_the_page_is_what_the_policy_makes():
    page = Path(__file__).parents[2] / "docs" / "system-calls.md"
    assert page.read_text() == callpage.page(), "run `make calls`"


@pytest.mark.parametrize("profile", list(Profile))
def test_the_page_has_every_call_that_a_profile_allows(profile: Profile):
    checked = set(" ".join(callpage.CONDITIONS).split())
    words = set(callpage.page().replace("|", " ").split())
    for name, action in seccomp.policy(profile).items():
        assert name in words or action == seccomp.ENOSYS, name
        assert isinstance(action, int) != (name in checked) or action == seccomp.EPERM, name


SOCKET, OPENAT = (seccomp.policy(Profile.SESSION)[name] for name in ("socket", "openat"))
ANSWER_TO_ZEROS = {SOCKET: refuse(errno.EAFNOSUPPORT), OPENAT: ALLOW}


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=500),
    actions=st.lists(st.integers(0, 40) | st.sampled_from([SOCKET, OPENAT]), min_size=2, max_size=60),
)
def test_search_finds_the_action_over_any_distance(lengths: list[int], actions: list[seccomp.Action]):
    by_number = [actions[i % len(actions)] for i, length in enumerate(lengths) for _ in range(length)]
    assembler = bpf.Assembler()
    assembler.search(by_number)
    assembler.load(0)
    program = instructions(assembler.code())
    for number in (*range(len(by_number) + 3), LOW):
        action = by_number[min(number, len(by_number) - 1)]
        assert run(program, 0, number) == ANSWER_TO_ZEROS.get(action, action)


@pytest.mark.parametrize("between", range(245, 262))
@pytest.mark.parametrize("nearer_first", [False, True])
def test_jumps_reach_any_distance(between: int, nearer_first: bool):
    assembler = bpf.Assembler()
    allowed, checked = assembler.action(ALLOW), assembler.action(OPENAT)
    for _ in range(between):
        assembler.load(0)
    assembler.jump(0x15, 7, *((checked, allowed) if nearer_first else (allowed, checked)))
    assembler.load(0)
    program = instructions(assembler.code())
    args = [0, 0, 0o100, 0o4755]
    equal, other = (refuse(errno.EPERM), ALLOW) if nearer_first else (ALLOW, refuse(errno.EPERM))
    assert (run(program, 0, 7, args), run(program, 0, 8, args)) == (equal, other)


def test_policy_names_only_calls_that_exist():
    known = {name for numbers in syscalls.NUMBERS.values() for name in numbers}
    assert set(seccomp.policy(Profile.SESSION)) <= known


@pytest.mark.parametrize(
    ("machine", "header"), [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")]
)
def test_numbers_are_those_of_the_kernel_headers(machine: str, header: str):
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"host: no {path}")
    names: dict[int, set[str]] = {}
    for name, number in re.findall(
        r"^#define __NR(?:3264)?_(?!syscalls)(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE
    ):
        names.setdefault(int(number), set()).update((name, f"new{name}"))
    ours = {number: name for name, number in syscalls.NUMBERS[machine].items()}
    both = names.keys() & ours.keys()
    assert len(both) > 250
    assert [ours[number] for number in both if ours[number] not in names[number]] == []
    assert [names[n] for n in range(300) if n in names and n not in ours and n not in range(244, 260)] == []


def test_an_unknown_machine_is_named():
    with pytest.raises(errors.IsolationUnavailable, match="riscv64"):
        seccomp.assemble(Profile.SESSION, "riscv64")


def test_fork_flags_belong_to_the_interpreter():
    with pytest.raises(ValueError, match="INTERPRETER"):
        seccomp.assemble(Profile.SESSION, "x86_64", fork_flags=FORK_FLAGS)
    with pytest.raises(ValueError, match="INTERPRETER"):
        seccomp.assemble(Profile.INTERPRETER, "x86_64")
    with pytest.raises(ValueError, match="32 bits"):
        seccomp.assemble(Profile.INTERPRETER, "x86_64", fork_flags=1 << 32)


# From here on, this machine's kernel.

MACHINE = os.uname().machine
NUMBERS = syscalls.NUMBERS.get(MACHINE, {})
real_kernel = pytest.mark.skipif(sys.platform != "linux" or not NUMBERS, reason="host: no filter for this machine")

INSTALL = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
code = bytes.fromhex(sys.argv[1])
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0) == 0
def answer(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(arg % 2**64) for arg in args))
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "ok"
"""


def confined(source: str, *argv: str, profile: Profile = Profile.SESSION) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", INSTALL + source, assemble(profile).hex(), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def output(source: str, *argv: str, profile: Profile = Profile.SESSION) -> str:
    done = confined(source, *argv, profile=profile)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(calls: dict[str, tuple[int, ...]], profile: Profile = Profile.SESSION) -> dict[str, str]:
    """What the kernel says to each call, by name; `name/anything` to make one twice."""
    asked = [(NUMBERS[name.partition("/")[0]], *args) for name, args in calls.items()]
    return dict(
        zip(calls, output(f"print(*(answer(*call) for call in {asked!r}))", profile=profile).split(), strict=True)
    )


@real_kernel
@pytest.mark.parametrize("profile", list(Profile))
def test_kernel_refuses_what_the_filter_denies(profile: Profile):
    # Arguments that mean nothing, should a call get through after all; vhangup takes none and is left alone.
    calls = {name: (-1,) * 6 for name in DENIED if name in NUMBERS and name != "vhangup"}
    assert set(answers(calls, profile).values()) == {"EPERM"}
    assert answers({"clone3": (-1, -1), "openat2": (-1,) * 4}, profile) == {"clone3": "ENOSYS", "openat2": "ENOSYS"}


@real_kernel
def test_kernel_refuses_namespaces_by_clone():
    flags = {"clone/user": 0x10000011, "clone/net": 0x40000011, "clone/parent": 0x8011}
    assert set(answers({name: (flag, 0, 0, 0, 0) for name, flag in flags.items()}).values()) == {"EPERM"}


@real_kernel
def test_only_the_interpreter_may_clone_with_the_flags_it_was_given():
    # A thread without shared memory: the kernel itself calls that invalid, and nothing is started.
    call = {"clone/exact": (0x10010011,), "clone/high": (0x10010011 | 1 << 32,), "clone/other": (0x10000011,)}
    code = seccomp.assemble(Profile.INTERPRETER, fork_flags=0x10010011).hex()
    source = f"print(*(answer({NUMBERS['clone']}, *args) for args in {list(call.values())!r}))"
    command = [sys.executable, "-I", "-c", INSTALL + source, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["EINVAL", "EPERM", "EPERM"]


@real_kernel
def test_socket_families_by_profile():
    calls = {
        "socket/unix": (1, 1, 0),
        "socket/tcp": (2, 1, 0),
        "socket/udp6": (10, 0x80002, 17),
        "socket/raw": (2, 3, 255),
        "socket/icmp": (2, 2, 1),
        "socket/sctp": (2, 1, 132),
        "socket/netlink": (16, 3, 0),
        "socket/packet": (17, 3, 0),
        "socket/alg": (38, 5, 0),
        "socket/vsock": (40, 1, 0),
        "socketpair/tcp": (2, 1, 0, 0),
    }
    session = answers(calls)
    assert list(session.values())[1] == "ok"
    assert session["socket/udp6"] in ("ok", "EAFNOSUPPORT")  # the host may have no IPv6
    expected = ["ok", "EPERM", "EPROTONOSUPPORT", "EPROTONOSUPPORT", *["EAFNOSUPPORT"] * 5]
    assert [answer for name, answer in session.items() if name not in ("socket/tcp", "socket/udp6")] == expected
    program = answers(calls, Profile.PROGRAM)
    assert program.pop("socket/unix") == "ok"
    assert set(program.values()) == {"EAFNOSUPPORT"}


@real_kernel
def test_no_file_gets_a_setuid_or_setgid_bit(tmp_path: Path):
    source = """
import stat
os.chdir(sys.argv[2])
def refused(call, *args):
    try: call(*args)
    except PermissionError: return True
open("plain", "w").close()
os.chmod("plain", 0o1755), os.mkdir("folder", 0o700), os.mkfifo("fifo", 0o600)
os.mknod("file", 0o600), os.mknod("socket", stat.S_IFSOCK | 0o600)
plain = os.open("plain", os.O_RDWR | os.O_CREAT, 0o600)
new = os.O_RDWR | os.O_CREAT
assert refused(os.chmod, "plain", 0o4755) and refused(os.fchmod, plain, 0o2755)
assert refused(os.open, "a", new, 0o4755) and refused(os.open, ".", os.O_RDWR | os.O_TMPFILE, 0o4755)
assert refused(os.mkdir, "b", 0o2755) and refused(os.mknod, "c", stat.S_IFREG | 0o4755)
assert refused(os.mknod, "d", stat.S_IFCHR | 0o600, os.makedev(1, 3))
assert answer(int(sys.argv[3]), -100, 0, 0o4755, 0) == "EPERM"
print(not any(os.stat(name).st_mode & 0o6000 for name in os.listdir()))
"""
    assert output(source, str(tmp_path), str(NUMBERS["fchmodat2"])) == "True\n"


@real_kernel
def test_terminal_scheduler_and_filter_calls_that_reach_others_are_refused():
    calls = {
        "ioctl/sti": (-1, 0x5412, 0),
        "ioctl/setd": (-1, 0x5423 | 1 << 32, 0),
        "ioctl/winsize": (-1, 0x5413, 0),
        "personality/query": (0xFFFFFFFF,),
        "personality/no-aslr": (0x0040000,),
        "sched_setscheduler/fifo": (0, 1, 0),
        "prctl/mm": (35, 0, 0, 0, 0),
        "seccomp/listener": (1, 8, 0),
        "seccomp/filter": (1, 0, 0),
    }
    expected = ["EPERM", "EPERM", "EBADF", "ok", "EPERM", "EPERM", "EPERM", "ENOSYS", "ENOSYS"]
    assert list(answers(calls).values()) == expected


@real_kernel
def test_unknown_and_x32_numbers_do_not_exist():
    assert output("print(answer(5000), answer(0x40000000 | 39), answer(450 + 100))").split() == ["ENOSYS"] * 3


@real_kernel
@pytest.mark.skipif(MACHINE != "x86_64", reason="host: int 0x80 is x86")
def test_an_i386_call_kills_the_process():
    source = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, getpid; int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert confined(source).returncode == -signal.SIGSYS


PYTHON = """
import asyncio, concurrent.futures, multiprocessing, random, shutil, socket, sqlite3, subprocess, tempfile, threading
import select, signal, time

assert subprocess.run(["/bin/sh", "-c", "echo hi | cat"], capture_output=True, check=True).stdout == b"hi\\n"

seen = []
threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert sorted(seen) == list(range(8))

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
    assert pool.submit(pow, 2, 5).result() == 32

with tempfile.TemporaryDirectory() as folder:
    with sqlite3.connect(folder + "/db") as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table t(x)")
        db.executemany("insert into t values(?)", [(i,) for i in range(100)])
        assert db.execute("select sum(x) from t").fetchone() == (4950,)
    db.close()
    shutil.copytree(folder, folder + "/copy")
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.fchmod(file.fileno(), 0o755)

async def echo(family):
    async def serve(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    path = tempfile.mktemp()
    if family == "unix":
        server = await asyncio.start_unix_server(serve, path)
        reader, writer = await asyncio.open_unix_connection(path)
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    assert await reader.readline() == b"hello\\n"
    writer.close()
    server.close()
    process = await asyncio.create_subprocess_exec("/bin/echo", "sub", stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"sub\\n"

for family in sys.argv[2:]:
    asyncio.run(echo(family))

master, slave = os.openpty()
os.write(slave, b"pty")
assert select.select([master], [], [], 5)[0]
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.02)
os.memfd_create("x"), os.eventfd(0), os.pidfd_open(os.getpid()), os.sched_setaffinity(0, os.sched_getaffinity(0))
os.nice(1), random.SystemRandom().random()
print("done")
"""


@real_kernel
@pytest.mark.parametrize(("profile", "families"), [(Profile.SESSION, ("unix", "inet")), (Profile.PROGRAM, ("unix",))])
def test_python_works_under_the_filter(profile: Profile, families: tuple[str, ...]):
    assert output(PYTHON, *families, profile=profile) == "done\n"


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


SHELL = "import subprocess; print(subprocess.run(sys.argv[2:], check=True, capture_output=True, text=True).stdout)"


@real_kernel
def test_c_compiles_and_runs_under_the_filter(tmp_path: Path):
    source = tmp_path / "hello.c"
    source.write_text(
        "#include <pthread.h>\n#include <stdio.h>\n"
        'static void *say(void *x) { puts("hello"); return x; }\n'
        "int main(void) { pthread_t t; pthread_create(&t, 0, say, 0); return pthread_join(t, 0); }\n"
    )
    build = f"{tool('gcc')} -O1 -pthread -o {tmp_path}/hello {source} && {tmp_path}/hello"
    assert output(SHELL, "/bin/sh", "-c", build).strip() == "hello"


@real_kernel
def test_git_works_under_the_filter(tmp_path: Path):
    script = (
        f"export GIT_CONFIG_GLOBAL=/dev/null; cd {tmp_path} && {tool('git')} init -q . && echo a > a && git add a &&"
        " git -c user.name=a -c user.email=a@b commit -qm first && git gc -q && git clone -q . copy && git -C copy log"
    )
    assert "first" in output(SHELL, "/bin/sh", "-c", script)
