"""Every layer of a box's isolation, and how to take it away: the table that the doctor's mutation test is made from.

A layer is removed by editing a copy of the C sources (native), of the modules in guest/ (bubblewrap), or by patching the Python that
decides (both). `seen_by` names the doctor's probes of which one must fail then. An edit that fits nothing fails the
test, so the table follows the code; and every protective word of the C sources (PROTECTIVE) must be in an edit of some
layer, or in NO_LAYER with the reason, so the code cannot leave the table behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

PROTECTIVE = re.compile(
    r"\b(?:ATTR_(?:RDONLY|NOSUID|NODEV)\b(?! \d)|MS_(?:RDONLY|NOSUID|NODEV|NOEXEC|PRIVATE)|CLONE_NEW\w+|RLIMIT_\w+"
    r"|PR_\w+|MADV_\w+|SYS_(?:seccomp|landlock_restrict_self|close_range|capset)|(?:umount2|setsid|setgroups|setresuid|setresgid"
    r"|drop_bounds|drop_held|drop_capabilities|slot_join|protect)(?=\()|memset\(&all, 0xff)"
)
"""What takes something away from a guest, as the C sources write it."""


GUEST = "guest"


class Edit(NamedTuple):
    file: str
    old: str
    """A regular expression; each place that it fits is changed."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    name: str
    seen_by: tuple[str, ...]
    native: tuple[Edit, ...] = ()
    bubblewrap: tuple[Edit, ...] = ()
    cgroups: bool | None = None
    """It is seen only where there are cgroups (True), or only where there are none (False): others stand before it."""
    root: bool = False
    """Only where the host is root there is such a layer."""
    run_as: tuple[str, ...] = ()
    """Commands in front of the doctor's, to be a host that has what the layer takes away."""
    fork_flags: int = 0
    """Also taken out of what the filter lets an interpreter clone with."""
    grace_s: float | None = None
    """How long the host waits for an answer beyond its clock, where none will come."""
    refused: bool = False
    """Without it no box comes up: the launcher itself notices."""


def box(old: str, new: str = "") -> Edit:
    return Edit("box.c", old, new)


def confine(old: str, new: str = "") -> Edit:
    return Edit("confine.c", old, new)


def job(old: str, new: str = "") -> Edit:
    return Edit("job.c", old, new)


def fork(old: str, new: str = "") -> Edit:
    return Edit("fork.c", old, new)


def zygote(old: str, new: str = "") -> Edit:
    return Edit("zygote.c", old, new)


def image(old: str, new: str = "", file: str = "image.c") -> Edit:
    return Edit(file, old, new)


def guest(old: str, new: str = "") -> Edit:
    """In whichever modules of the folder guest it fits."""
    return Edit(GUEST, old, new)


def bwrap(old: str, new: str = "") -> Edit:
    """One of bubblewrap's arguments; without `new` it is left out."""
    return Edit("arguments", old, new)


def layer(name: str, *edits: Edit, by: str, **options: Any) -> Layer:
    native = tuple(edit for edit in edits if edit.file.endswith((".c", ".h")))
    bubblewrap = tuple(edit for edit in edits if edit not in native)
    return Layer(name=name, seen_by=tuple(by.split()), native=native, bubblewrap=bubblewrap, **options)


LAYERS = (
    # ---- the box: its namespaces, its root, its init ----
    layer(
        "user namespace of the box",
        box(r"CLONE_NEWUSER \| (?=CLONE_NEWPID \| CLONE_NEWNS)"),
        by="inherited.init",
        refused=True,
    ),
    layer(
        "pid namespace of the box",
        box(r"CLONE_NEWPID \| (?=CLONE_NEWNS)"),
        bwrap("--unshare-pid"),
        by="inherited.init",
        refused=True,
    ),
    layer("mount namespace of the box", box(r"CLONE_NEWNS \| (?=CLONE_NEWNET)"), by="inherited.init", refused=True),
    layer(
        "network namespace of the box",
        box(r"CLONE_NEWNET \| (?=CLONE_NEWIPC)"),
        box(r"loopback_up\(\)", "0"),
        bwrap("--unshare-net"),
        by="inherited.init",
    ),
    layer(
        "ipc namespace of the box",
        box(r"CLONE_NEWIPC \| (?=CLONE_NEWUTS)"),
        bwrap("--unshare-ipc"),
        by="inherited.init",
    ),
    layer(
        "uts namespace of the box",
        box(r"CLONE_NEWUTS \| (?=CLONE_NEWCGROUP)"),
        box(r"sethostname\(first, strlen\(first\)\)", "0"),
        by="inherited.init",
    ),
    layer("cgroup namespace of the box", box(r" \| CLONE_NEWCGROUP"), bwrap("--unshare-cgroup"), by="inherited.init"),
    layer(
        "mounts apart from the host's",
        box(r"mount\(NULL, \"/\", NULL, MS_REC \| MS_PRIVATE, NULL\)", "0"),
        by="files.read_only_mounts",
        root=True,
        run_as=("unshare", "--mount", "--propagation", "shared"),
    ),
    layer(
        "a root without the host's below",
        box(r"umount2\(\"\.\", MNT_DETACH\)", "0"),
        by="files.read_host",
        refused=True,
    ),
    layer(
        "read-only root",
        box(r"(?<=  )protect\(\"/\"\);"),
        bwrap("--remount-ro", "--chdir"),
        by="files.read_only_mounts",
    ),
    layer(
        "read-only binds",
        box(r"attributes\.set \|= ATTR_RDONLY;", "{}"),
        bwrap("--ro-bind", "--bind"),
        by="files.read_only_mounts",
    ),
    layer(
        "binds without setuid", box(r"(?<=attributes = \{\.set = )ATTR_NOSUID(?=\};)", "0"), by="privilege.mount_flags"
    ),
    layer("binds without devices", box(r"attributes\.set \|= ATTR_NODEV;", "{}"), by="privilege.mount_flags"),
    layer(
        "parts of the root made read-only",
        box(r"ATTR_RDONLY \| (?=ATTR_NOSUID)"),
        guest(r"REMOUNT \| RDONLY \|", "REMOUNT |"),
        by="files.read_only_mounts",
    ),
    layer(
        "tmpfs of the box without setuid",
        box(r"(?<=path, \"tmpfs\", )MS_NOSUID \| "),
        guest(r"(?<=path, b\"tmpfs\", )NOSUID \| (?=NODEV, options)"),
        by="privilege.mount_flags",
    ),
    layer(
        "tmpfs of the box without devices",
        box(r"(?<=path, \"tmpfs\", MS_NOSUID) \| MS_NODEV"),
        guest(r"(?<=NOSUID) \| NODEV(?=, options)"),
        by="privilege.mount_flags",
    ),
    layer("terminals without setuid", job(r"(?<=\"devpts\", )MS_NOSUID \| "), by="privilege.mount_flags"),
    layer("terminals without programs", job(r"(?<=\"devpts\", MS_NOSUID) \| MS_NOEXEC"), by="privilege.mount_flags"),
    layer(
        "sized tmpfs of the box",
        box(r"(?<=MS_NOSUID \| MS_NODEV, )second", "NULL"),
        guest(r"NODEV, options\.encode\(\)", "NODEV, None"),
        by="limits.disk",
    ),
    layer(
        "the guest's user",
        box(r"setresuid\(id, id, id\)", "0"),
        by="inherited.init privilege.setuid",
        root=True,
        refused=True,
    ),
    layer(
        "the guest's group",
        box(r"setresgid\(id, id, id\) \|\| "),
        by="inherited.init privilege.setuid",
        root=True,
        refused=True,
    ),
    layer(
        "no groups of the host",
        box(r"setgroups\(0, NULL\) \|\| "),
        by="inherited.init",
        root=True,
        run_as=("setpriv", "--groups", "54321"),
    ),
    layer(
        "an init without capabilities",
        box(r"\) \|\| drop_capabilities\([^)]*\)\) die\(", ")) die("),
        guest(r"(?<=prctl\(38, 1\)\n)    kernel\.drop_capabilities\(\)\n(?=    null)"),
        by="inherited.init",
    ),
    layer(
        "an init that gains no privileges", box(r"prctl\(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0\) \|\| "), by="inherited.init"
    ),
    layer(
        "an init without the host's descriptors",
        box(r"syscall\(SYS_close_range, box_control \+ 1, ~0u, 0\);"),
        by="inherited.init",
    ),
    *(
        layer(f"{flag.lower()} /proc of the box", box(old), by="privilege.mount_flags")
        for flag, old in (
            ("NOSUID", r"(?<=path, \"proc\", )MS_NOSUID \| "),
            ("NODEV", r"(?<=path, \"proc\", MS_NOSUID) \| MS_NODEV"),
            ("NOEXEC", r"(?<=MS_NODEV) \| MS_NOEXEC(?=, NULL)"),
        )
    ),
    layer(
        "root without setuid",
        box(r"(?<=ROOT, \"tmpfs\", )MS_NOSUID \| "),
        box(r"(?<=ATTR_RDONLY) \| ATTR_NOSUID"),
        by="privilege.mount_flags",
    ),
    layer("root without devices", box(r"(?<=ROOT, \"tmpfs\", MS_NOSUID) \| MS_NODEV"), by="privilege.mount_flags"),
    # ---- each execution: its namespaces and mounts ----
    layer(
        "user namespace of an execution", job(r"flags \|= CLONE_NEWUSER;", "{}"), by="privilege.setuid", refused=True
    ),
    layer(
        "pid namespace of an execution",
        job(r"CLONE_NEWPID \| (?=CLONE_NEWNS)"),
        guest(r"NEWUSER \| NEWPID \| NEWNS", "NEWUSER | NEWNS"),
        by="processes.own",
        refused=True,
    ),
    layer(
        "mount namespace of an execution",
        job(r"CLONE_NEWNS \| (?=CLONE_NEWIPC)"),
        guest(r"NEWUSER \| NEWPID \| NEWNS", "NEWUSER | NEWPID"),
        by="next.files",
        refused=True,
    ),
    layer(
        "ipc namespace of an execution",
        job(r"CLONE_NEWIPC \| (?=extra)"),
        guest(r"NEWIPC \| \(0 if", "(0 if"),
        by="network.meetings",
    ),
    layer(
        "sockets of an execution of its own",
        confine(r"spec->flags & SPAWN_FRESH_FS \? LANDLOCK_SCOPE_ABSTRACT : 0", "0"),
        guest(r"(?<=, every, 0, )alone", "0"),
        by="network.meetings",
    ),
    layer(
        "network namespace of an execution where Landlock has no scopes",
        job(r"landlock_abi\(\) < 6\) flags \|= CLONE_NEWNET", "0) flags |= 0"),
        confine(r"abi >= 6", "0"),
        by="network.meetings",
    ),
    layer(
        "files of an execution of its own",
        job(r"if \(job->spec\.flags & SPAWN_FRESH_FS\) \{", "if (0) {"),
        guest(r"    if spec\.flags & SPAWN_FRESH_FS:\n        size", "    if 0:\n        size"),
        by="next.files",
    ),
    layer(
        "tmpfs of an execution without setuid",
        job(r"(?<=path, \"tmpfs\", )MS_NOSUID \| "),
        guest(r"(?<=path, b\"tmpfs\", )NOSUID \| (?=NODEV, size)"),
        by="privilege.mount_flags",
    ),
    layer(
        "tmpfs of an execution without devices",
        job(r"(?<=path, \"tmpfs\", MS_NOSUID) \| MS_NODEV"),
        guest(r"(?<=NOSUID) \| NODEV(?=, size)"),
        by="privilege.mount_flags",
    ),
    layer(
        "sized files of an execution",
        job(r"size=%llu,nr_inodes", "size=%llu0000,nr_inodes"),
        guest(r"size=%d,nr", "size=%d0000,nr"),
        by="limits.disk",
    ),
    layer(
        "counted files of an execution",
        job(r"nr_inodes=16384", "nr_inodes=1638400"),
        guest(r"nr_inodes=16384", "nr_inodes=1638400"),
        by="limits.inodes",
    ),
    layer(
        "/proc of an execution of its own",
        job(r"if \(mount\(\"proc\"[^)]*\)\)", "if (0)"),
        guest(r"(?<=\n)    kernel\.mount\(b\"proc\".*\n"),
        by="processes.own",
    ),
    layer(
        "/proc without setuid",
        job(r"(?<= : \"/proc\", \"proc\", )MS_NOSUID \| "),
        guest(r"(?<=b\"proc\", )NOSUID \| "),
        by="privilege.mount_flags",
    ),
    layer(
        "/proc without devices",
        job(r"(?<=\"proc\", MS_NOSUID) \| MS_NODEV"),
        guest(r"(?<=b\"proc\", NOSUID) \| NODEV"),
        by="privilege.mount_flags",
    ),
    layer(
        "/proc without programs",
        job(r"(?<=MS_NODEV) \| MS_NOEXEC(?= \| read_only)"),
        guest(r"(?<=NOSUID \| NODEV) \| NOEXEC"),
        by="privilege.mount_flags",
    ),
    layer("read-only /proc of an interpreter", job(r"\? MS_RDONLY : 0", "? 0 : 0"), by="files.landlock"),
    layer(
        "an init that hears no signal",
        job(r"memset\(&all, 0xff, sizeof all\);", "sigemptyset(&all);"),
        by="processes.own",
    ),
    layer(
        "a session of its own",
        job(r": setsid\(\) < 0\)", ": 0)"),
        zygote(r"setsid\(\) < 0 \|\| "),
        guest(r"    os\.setsid\(\)\n(?=    if spec\.flags & SPAWN_PTY)"),
        by="processes.own",
    ),
    layer(
        "no descriptor of the zygote",
        zygote(r"if \(syscall\(SYS_close_range, kept \+ 1, ~0u, 0\)\) goto failed;"),
        guest(r"    kernel\.close_range\(6, start - 1\)\n    kernel\.close_range\(start \+ 1\)\n"),
        by="inherited.descriptors",
        cgroups=True,  # it has no others than those of cgroups
    ),
    layer(
        "memory that programs do not inherit",
        Edit("vault.c", r"madvise\(block, size, MADV_DONTFORK\)", "0"),
        by="next.memory",
    ),
    layer(
        "guests in their cgroup",
        job(r"(?<=int slot_join\(struct job \*job, pid_t pid\) \{\n)", "  return 0;\n"),
        guest(r"    for fd in fds\[JOINS\]:\n        os\.write\(fd, b\"0\"\)\n"),
        by="limits.memory",
        cgroups=True,
    ),
    layer(
        "memory of the cgroup",
        job(r"write_number\(slot->memory_max, spec->memory\)", "0"),
        guest(r"            self\.put\(self\.places\[0\], self\.limit_file.*\n"),
        by="limits.memory",
        cgroups=True,
    ),
    layer(
        "processes of the cgroup",
        job(r"write_number\(slot->pids_max, processes\)", "0"),
        guest(r"            self\.put\(self\.places\[-1\], \"pids\.max\".*\n"),
        by="limits.processes",
        cgroups=True,
    ),
    # ---- what turns a process into a guest ----
    layer(
        "Landlock",
        confine(r"landlock_abi\(\) &&", "0 &&"),
        guest(r"    kernel\.landlock\(config.*\n"),
        by="files.landlock",
    ),
    layer(
        "Landlock, in a command",
        confine(r"ruleset >= 0 && syscall\(SYS_landlock_restrict_self, ruleset, 0\)", "0"),
        by="files.landlock",
    ),
    layer(
        "Landlock, in Python", confine(r"\|\| syscall\(SYS_landlock_restrict_self, ruleset, 0\)"), by="files.landlock"
    ),
    layer(
        "reading as all that Landlock leaves",
        confine(r"\? rules\.fs : LANDLOCK_READ", "? rules.fs : rules.fs"),
        guest(r"\(b\"/\", 0b1101\)", '(b"/", every)'),
        by="files.landlock",
    ),
    layer(
        "no new privileges",
        box(r"prctl\(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0\) \|\| "),
        confine(r"prctl\(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0\)", "0"),
        by="privilege.setuid inherited.init",
        refused=True,
    ),
    layer(
        "an empty bounding set",
        confine(r"(?<=if \()drop_bounds\(config\.image\.keep\)(?=\) return \"cap)", "0"),
        confine(r"return drop_bounds\(keep\) \|\| drop_held\(keep\)", "return drop_held(keep)"),
        guest(r"            for capability in range\(64\):\n.*\n"),
        by="privilege.setuid inherited.init",
    ),
    layer(
        "no capability, in Python",
        confine(r"(?<=  )if \(config\.image\.full && .* return \"capabilities\";"),
        guest(r"(?<=\"capabilities\"\)\n)    kernel\.drop_capabilities\(\)\n"),
        by="privilege.setuid",
    ),
    layer(
        "the filter",
        confine(r"return syscall\(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program\) \?", "(void)program; return 0 ?"),
        guest(r"    kernel\.seccomp\(.*\n"),
        by="kernel.refused_calls",
    ),
    *(
        layer(f"RLIMIT_{name}", confine(*native), guest(python), by="limits.rlimits", run_as=run_as, root=bool(run_as))
        for name, native, python, run_as in (
            (
                "CORE",
                (r"limit\(RLIMIT_CORE, 0\) \|\| ",),
                r"    limit\(resource\.RLIMIT_CORE.*\n",
                ("prlimit", "--core=unlimited"),
            ),
            ("NOFILE", (r"limit\(RLIMIT_NOFILE, spec->nofile\) \|\| ",), r"    limit\(resource\.RLIMIT_NOFILE.*\n", ()),
            (
                "MEMLOCK",
                (r"limit\(RLIMIT_MEMLOCK, 8 << 20\) \|\| ",),
                r"    limit\(resource\.RLIMIT_MEMLOCK.*\n",
                ("prlimit", "--memlock=unlimited"),
            ),
            (
                "RTPRIO",
                (r" \|\| limit\(RLIMIT_RTPRIO, 0\)",),
                r"    limit\(resource\.RLIMIT_RTPRIO.*\n",
                ("prlimit", "--rtprio=50"),
            ),
            ("NPROC", (r"  if \(limit\(RLIMIT_NPROC.*\n",), r"    limit\(resource\.RLIMIT_NPROC.*\n", ()),
            ("CPU", (r"  if \(spec->cpu_ns && limit\(RLIMIT_CPU.*\n",), r"    if spec\.cpu_ns:\n.*RLIMIT_CPU.*\n", ()),
            (
                "DATA",
                (r"(?<=return )limit\(RLIMIT_DATA, [^;]*(?=;)", "0"),
                r"        limit\(resource\.RLIMIT_DATA.*\n",
                (),
            ),
        )
    ),
    # ---- what is watched and counted ----
    layer(
        "watched memory",
        Edit("watch.c", r"job_kill\(job, ENDED_MEMORY\)", "(void)0"),
        guest(r"kill\(ENDED_MEMORY\)", "kill(0)"),
        by="limits.memory",
        cgroups=False,
    ),
    layer("watched processor time", Edit("watch.c", r"else if \(job->spec\.cpu_ns[^;]*;", ""), by="limits.cpu"),
    layer(
        "the wall clock",
        Edit("serve.c", r"job_kill\(&jobs\[i\], ENDED_WALL\)", "{}"),
        by="limits.time",
        refused=True,
        grace_s=1.0,
    ),
    layer("counted output", Edit("serve.c", r"if \(keep < \(size_t\)got\) \{", "if (0) {"), by="limits.output"),
    layer(
        "the end of all at an end",
        job(r"    if \(tell < 0\) break;.*\n", "    if (tell < 0) continue;\n"),
        by="processes.left_behind",
    ),
    # ---- forks of a live interpreter ----
    layer(
        "user namespaces of an interpreter",
        job(r"if \(\(job->spec\.flags & SPAWN_FORKABLE \|\| job->holds\) && !job->view && ", "if (0 && "),
        by="next.fork",
    ),
    layer(
        "clones that the kernel asks about",
        fork(r"(?<=int forks_listen\(void\) \{\n)", "  return 0;\n"),
        fork(r"syscall\(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program\)", "-1"),
        by="next.fork",
    ),
    layer("user namespaces after a fork", fork(r"(?<=\.allowed = )\"0\"", '"1000000"'), by="next.fork"),
    layer(
        "user namespaces in a fork",
        fork(r"put\(\"sys/user/max_user_namespaces\", \"0\"\)", "0"),
        by="next.fork",
    ),
    layer("/proc of a fork", fork(r"raw5\(SYS_mount,[^;]*", "0"), by="next.fork"),
    layer("read-only /proc of a fork", fork(r" \| MS_RDONLY(?=, 0\))"), by="files.landlock", refused=True),
    *(
        layer(f"{flag.lower()} /proc of a fork", fork(old), by="privilege.mount_flags")
        for flag, old in (
            ("NOSUID", r"(?<=\"proc\", )MS_NOSUID \| "),
            ("NODEV", r"(?<=\"proc\", MS_NOSUID) \| MS_NODEV"),
            ("NOEXEC", r" \| MS_NOEXEC"),
        )
    ),
    layer("tmpfs of a fork without setuid", fork(r"(?<=\"tmpfs\", )MS_NOSUID \| "), by="privilege.mount_flags"),
    layer(
        "tmpfs of a fork without devices", fork(r"(?<=\"tmpfs\", MS_NOSUID) \| MS_NODEV"), by="privilege.mount_flags"
    ),
    *(
        layer(f"{path} of a fork", fork(rf"if \(own_copy\(\"{path}\".*?\)\) return", "if (0) return"), by="next.fork")
        for path in ("/workspace", "/tmp", "/dev/shm")
    ),
    *(
        layer(
            f"{name} namespace of a fork",
            Edit("harena.h", rf"(?<=FORK_FLAGS \\\n)([^\n]*?)(?:CLONE_NEW{name.upper()} \| )", r"\1"),
            by="next.fork",
            fork_flags=flag,
            refused=name != "ipc",
        )
        for name, flag in (("user", 1 << 28), ("pid", 1 << 29), ("ns", 1 << 17), ("net", 1 << 30), ("ipc", 1 << 27))
    ),
    layer(
        "no capability in a fork",
        zygote(r"if \(drop_capabilities\(fork_keep\)\) no_fork\(farewell\);"),
        by="privilege.setuid",
    ),
)

IMAGE_LAYERS = (
    layer(
        "a read-only /proc in an image",
        image(r"(?<=job->view \|\| )config\.image\.on \|\| ", "", "job.c"),
        by="files.read_only_mounts",
    ),
    layer(
        "an image without setuid", image(r"(?<=\"\.\./root\", \"overlay\", )MS_NOSUID \| "), by="privilege.mount_flags"
    ),
    layer("an image without devices", image(r"(?<=\"overlay\", MS_NOSUID) \| MS_NODEV"), by="privilege.mount_flags"),
    layer(
        "a job inside the image",
        image(r"return chdir\(IMAGE_ROOT\) \|\| chroot\(\"\.\"\) \?", "return 0 ?"),
        by="files.read_only_mounts",
        refused=True,
    ),
    layer(
        "an interpreter without the box's own root below",
        image(
            r"(?<=syscall\(SYS_pivot_root, \"\.\", \"\.\"\) \|\| )umount2\(\"\.\", MNT_DETACH\) \|\| (?=chdir\(\"/\"\)\) return)"
        ),
        by="files.read_only_mounts",
        refused=True,
    ),
    layer(
        "bounded capabilities of root in an image",
        image(r"(?<=if \()drop_bounds\(config\.image\.keep\)(?=\) return)", "0", "confine.c"),
        by="privilege.setuid",
    ),
    layer(
        "few capabilities of Python in an image",
        image(r"(?<=  )if \(config\.image\.full && .* return \"capabilities\";", "", "confine.c"),
        by="privilege.setuid",
    ),
    layer(
        "few capabilities of the init of an image",
        image(r"\) \|\| drop_capabilities\([^)]*\)\) die\(", ")) die(", "box.c"),
        by="inherited.init",
    ),
    layer(
        "the filter of Python in an image",
        image(r"return filter_calls\(spec\);\n\}\n$", "return NULL;\n}\n", "confine.c"),
        by="kernel.refused_calls",
    ),
)
"""Layers that only a box from an image has, or has in another way: tests/integration/test_layers.py."""

NO_LAYER = {
    r"mount\(\"overlay\", path.*": "without an upper folder it cannot be written; bind_source sets the flags again",
    r"umount2\(stages.*": "clears away what the mounts were made in",
    r"RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE|syscall\(SYS_capset, &head, held\)": "quotas of the host's user, which have tests of their own",
    r"(?s)static void use_all_descriptors.*?\n\}": "gives, and takes nothing away",
    r"(?s)static int mount_proc.*?\n\}": "a helper of ours",
    r"PR_SET_PDEATHSIG": "ends a box with its host: tests/integration/test_lifecycle.py kills each of them",
    r"PR_SET_DUMPABLE": "gives a right, and takes none away",
    r"return drop_held\(config\.image\.keep\) \?": "at execve a command loses what is beyond its bounds, too",
    r"(?s)int drop_(?:bounds|held)\(uint64_t keep\) \{.*?\n\}|int drop_(?:bounds|capabilities)\(uint64_t keep\).*": (
        "how; the layers are where it is called"
    ),
    r"(?s)int keep_across_exec\(.*?\n\}": "gives, and takes nothing away",
    r"&& drop_bounds\(0\)": "a user other than root has no capability to bound",
    r"mount\(\"tmpfs\", \"\.\./upper\".*": "seen through the overlay alone, whose flags count",
    r"syscall\(SYS_close_range, kept \+ 1, ~0u, 0\)\) goto failed;\n  if \(job->spec": "all of them are close-on-exec, too",
    r"if \(setsid\(\) < 0\) goto failed;\n  step = \"become": "there is no terminal to take",
    r"if \(prctl\(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0\) \|\| \(job": "set again by confine, and needed here by a listener",
    r"flags \|= CLONE_NEWNET;\n  if \(!job->view": "a fork without an interpreter: tests/images/test_image_boxes.py",
    r"unshare\(CLONE_NEWNS\)": "of a helper of ours",
    r"(?s)_Noreturn void mounter_main.*?\n\}": "a process of ours, whose rights have a test in tests/images/test_image_boxes.py",
    r"mount\(\"tmpfs\", \"\.\./uppers\".*": "holds mount points, and no guest sees it",
    r"chdir\(IMAGE_ASIDE\).*": "the image of a fork: tests/images/test_image_boxes.py",
    r"!step && mount\(\"proc\", IMAGE_ROOT.*": "a fork without an interpreter; each execution in it mounts its own",
    r"(?:static void protect|protect\(inside|int slot_adopt|slot_join\((?:job|struct)).*": "how; the layers are what it does",
    r"#define (?:SYS|NO)_.*|/\*(?s:.)*?\*/": "words",
    r"syscall\(SYS_clone, CLONE_NEWUSER \| SIGCHLD": "a namespace that only holds a map for a mount",
    r"enter\(helper->\w+, [^)]*\)|int spaces = .*|syscall\(SYS_setns, maker.*": "enters namespaces, and makes none",
    r"\n  setsid\(\);": "keeps the keeper from signals of the host's terminal",
    r"return setsid\(\) < 0 \|\| ioctl": "the kernel gives a terminal to none but the leader of a session",
    r"syscall\(SYS_close_range, 0, ~0u, 0\)": "of the keeper, which runs no guest",
    r"raw\d\(SYS_close_range.*": "of the init of an execution, which runs no guest",
    r"syscall\(SYS_close_range, fd < 0.*": "all of them are close-on-exec, too",
    r"syscall\(SYS_close_range, 3 \+ count, ~0u, 0\)": "of the zygote, which is ours; guests get none of its own",
}
"""Protective words that are none, with the reason."""
