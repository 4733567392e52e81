"""Generates docs/system-calls.md from the policy in seccomp.py: `make calls`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable

from harena.backends.local.policy import seccomp, syscalls
from harena.backends.local.policy.seccomp import Profile

CONDITIONS: dict[str, str] = {
    "chmod fchmod fchmodat fchmodat2 creat mkdir mkdirat": "without the setuid and setgid bits",
    "open openat": "without those bits where a file is created",
    "mknod mknodat": "regular files, FIFOs and sockets",
    "clone": "without new namespaces and CLONE_PARENT; the interpreter may fork itself with one exact set of flags, "
    "which works only while the host asks for it",
    "mmap": "without MAP_HUGETLB: the machine has one pool of huge pages",
    "madvise": "not MADV_MERGEABLE: merged pages tell what neighbours have",
    "prlimit64": "of the caller",
    "personality": "to ask, or the usual one; with `ptrace` allowed also ADDR_NO_RANDOMIZE",
    "sched_setscheduler": "SCHED_OTHER, SCHED_BATCH, SCHED_IDLE",
    "socket": "AF_UNIX; commands and the interpreter also AF_INET and AF_INET6 with TCP or UDP; with `netlink` allowed "
    "commands also NETLINK_ROUTE",
    "socketpair": "AF_UNIX",
    "sendto sendmsg sendmmsg": "not MSG_OOB",
    "fcntl": "the commands below; F_SETPIPE_SZ only where a cgroup counts memory; locks as below",
    "ioctl": "the requests below; in a box with GPUs (`Spec.gpus`) also those of NVIDIA's driver: type F, below 256, "
    "0x30000001 and 0x30000002",
    "prctl": "the options below; PR_SET_DUMPABLE only to 1, since the watch could not read the memory of others; "
    "PR_SET_PTRACER with `ptrace` allowed; the interpreter may give up capabilities, as its forks do",
    "setsockopt getsockopt": "the options below; programs and agents only those of sockets",
}
"""Conditions of calls for which the filter checks the arguments."""


def _lines(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"


def _names(values: Iterable[str]) -> str:
    return " ".join(sorted(values))


def _allowed(profile: Profile) -> set[str]:
    flags = 1 if profile is Profile.INTERPRETER else None
    return {name for name, action in seccomp.policy(profile, flags).items() if action != seccomp.ENOSYS}


def page() -> str:
    """The whole page."""
    total = len({name for numbers in syscalls.NUMBERS.values() for name in numbers})
    parts = [
        "# System calls",
        "This page is made from `seccomp.py` (`make calls`). What is not on it is refused with EPERM, and what has no "
        "number here with ENOSYS; a foreign architecture ends the process. [The threat model](threat-model.md) says "
        "what this is good for.",
        _counts(total),
        "## For all",
        "\n".join(
            [_row("kind", "calls"), _row("---", "---")]
            + [_row(kind, _names(names.split())) for kind, names in seccomp.EVERYBODY.items()]
        ),
        "## For commands alone",
        "Programs of `pool.map`, agents and the persistent interpreter run Python and do without these.",
        "\n".join(
            [_row("calls", "why"), _row("---", "---")]
            + [_row(names, why) for names, why in seccomp.COMMANDS_ONLY.items()]
        ),
        "## By their arguments",
        "\n".join(
            [_row("calls", "allowed"), _row("---", "---")] + [_row(names, why) for names, why in CONDITIONS.items()]
        ),
        "\n".join(
            [
                _row("of", "for all", "for commands also"),
                _row("---", "---", "---"),
                _row("prctl", _names(seccomp.PRCTL.values()), _names(seccomp.PRCTL_OF_COMMANDS.values())),
                _row("ioctl", _names(seccomp.TERMINALS.values()), _names(seccomp.FILES_AND_INTERFACES.values())),
                _row("fcntl", _names(seccomp.FCNTL.values()), ""),
                _row("fcntl, locks", _names(seccomp.LOCKING.values()), ""),
                _row("options of sockets", _names(seccomp.SOCKET_OPTIONS.values()), ""),
            ]
        ),
        "Of TCP and IP, for commands and the interpreter: "
        + _names([*seccomp.TCP_OPTIONS.values(), *seccomp.IP_OPTIONS.values(), *seccomp.IPV6_OPTIONS.values()])
        + ". Not among them, and refused with ENOPROTOOPT: packet filters (compiled ones share memory with the whole "
        "machine), netfilter's tables, multicast routing, TCP's upper-layer protocols.",
        "## As if the kernel had none",
        f"ENOSYS, since callers know how to do without: {_names(seccomp.MISSING.split())}.",
        f"Where no cgroup counts memory, also {_names(seccomp.NOBODYS.split())}: what they hold is in no process's "
        "resident memory.",
        "Where a box shows inodes of the host (see the threat model), locks (`flock` and those of `fcntl`) and "
        "`inotify_add_watch` are refused with EPERM.",
    ]
    return "\n\n".join(part if part.startswith(("|", "#")) else _lines(part) for part in parts) + "\n"


def _counts(total: int) -> str:
    rows = [_row("profile", "who", f"calls allowed, of {total}"), _row("---", "---", "---")]
    who = {
        Profile.SESSION: "commands: `exec`, `start`, terminals",
        Profile.PROGRAM: "programs of `pool.map`; no network at all",
        Profile.TALK: "agents of a match; as programs, and they cannot leave their processor",
        Profile.INTERPRETER: "`run` and `call`",
    }
    return "\n".join(
        rows + [_row(profile.name.lower(), text, str(len(_allowed(profile)))) for profile, text in who.items()]
    )


if __name__ == "__main__":
    sys.stdout.write(page())
