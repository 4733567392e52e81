"""What a box without namespaces can see, and how its keeper is started.

There are no mounts: Landlock shows parts of the host's files where they are. They are the same parts that a full box
shows, as far as the host has them at the same paths: /usr, public files of /etc, the interpreter, the packages of the
spec, some devices. Generated files (/etc/passwd, /etc/hosts) have no place, so these names are refused.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harena.backends.local.launch import etc, plan, registry
from harena.errors import IsolationUnavailable, Unsupported
from harena.sandbox.spec import MB, Spec

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READ = EXECUTE | READ_FILE | READ_DIR
SCOPES_ABI = 6
"""The first version of Landlock that keeps signals and abstract sockets inside a box."""
DEVICES = tuple(f"/dev/{name}" for name in plan.DEVICES)
PROC = (
    "cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version", "sys/kernel/cap_last_cap",
    "sys/kernel/ngroups_max", "sys/kernel/osrelease", "sys/kernel/pid_max", "sys/kernel/random", "sys/vm/max_map_count",
    "sys/vm/overcommit_memory",
)  # fmt: skip
"""Files of /proc that say nothing about a process. Of processes a job sees only its first one, as /proc/self."""
LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "idle_test", "config-*", "*.a", "ensurepip")
"""Parts of an interpreter that a staged copy leaves out."""
NOT_COVERED = (
    "processes, the network and System V ipc are the machine's own: guests are refused them, not given others",
    "numbers of processes, and names and sizes of files that the box's user can reach, can be found out",
    "the workspace is a folder of the host: /workspace and /tmp are known to the API only, workspace_mb is sampled",
    "no sockets with an address, file locks, file watches, /dev/shm, terminals of a guest's own, forks of live boxes",
)


@dataclass(frozen=True, slots=True)
class View:
    """What a box sees of the host."""

    executable: str
    rules: tuple[tuple[str, int], ...]
    hidden: tuple[str, ...]
    env: dict[str, str]
    entries: tuple[Path, ...]
    """Packages of the spec, for links in the box's folder."""
    requirements: str = ""
    """Folder of the installed requirements."""


def refuse(spec: Spec) -> None:
    """Refuse what this tier cannot do."""
    needs = "needs the full isolation tier"
    for name, value in (("rootfs", spec.rootfs), ("image", spec.image), ("network", spec.network)):
        if value is not None:
            raise Unsupported(f"{name} {needs}")
    if spec.gpus not in (0, ()):
        raise Unsupported(f"gpus {needs}")
    if spec.allow:
        raise Unsupported(f"allow {needs}")
    if spec.hostname != "box":
        raise Unsupported(f"hostname {needs}: a restricted box has the machine's")
    for mount in spec.mounts:
        if mount.writable or os.path.normpath(mount.target) != os.path.realpath(mount.source):
            raise Unsupported(
                f"mount of {mount.source} at {mount.target}: a restricted box shows folders read-only and where they "
                "are (source and target the same); others need the full isolation tier"
            )


def check(abi: int, uid: int | None) -> None:
    """Refuse a host where this tier would protect nothing."""
    if abi == 0:
        raise IsolationUnavailable(
            "this kernel has no Landlock, or it is switched off, and the restricted tier is made of it",
            fix="boot with lsm=landlock,… (Linux 5.13 or newer), and allow its calls in the container's profile",
        )
    if os.geteuid() == 0 and uid is None:
        raise IsolationUnavailable(
            "root is the only user of this user namespace, and a restricted box must not be root",
            fix="run as an ordinary user, or map more users (/etc/subuid)",
        )
    if uid is None and abi < SCOPES_ABI:
        raise IsolationUnavailable(
            f"as an ordinary user the restricted tier needs Landlock {SCOPES_ABI} (Linux 6.12), this kernel has {abi}: "
            "a guest could signal your processes",
            fix="run as root, so that each box gets a user of its own, or update the kernel",
        )


def lacks(abi: int, uid: int | None) -> tuple[str, ...]:
    """What this kernel or user leaves uncovered beyond NOT_COVERED."""
    found: list[str] = []
    if uid is None:
        found.append(
            "no user of its own: boxes share yours; guests cannot change modes and times of files; without a cgroup "
            "processes are counted, not refused"
        )
    if abi < 2:
        found.append("Landlock 1: files cannot be moved between folders")
    if abi < SCOPES_ABI:
        found.append(
            f"Landlock {abi}: executions of one box can end each other, and their box (Linux 6.12 keeps them apart)"
        )
    return tuple(found)


def view(spec: Spec, base: str, agent: Path, uid: int | None, requirements: Path | None = None) -> View:
    python = plan.find_python(spec)
    executable, hidden = python.executable, python.hidden
    folders = [*python.folders]
    env: dict[str, str] = {}
    if uid is not None:
        for folder in folders:
            if is_reachable(folder):
                continue
            if spec.python is not None:
                raise unreachable(f"python {spec.python}", folder)
            staged = stage(folder)
            executable = executable.replace(folder, staged, 1)
            hidden = tuple(path for path in hidden if not path.startswith(f"{folder}/"))
            folders[folders.index(folder)] = staged
            env["LD_LIBRARY_PATH"] = f"{staged}/lib"
        for path in [str(agent), *(mount.source for mount in spec.mounts)]:
            if not is_reachable(path):
                raise unreachable("a box", path)
    entries = plan.package_entries(spec.packages)
    for entry in entries:
        if uid is not None and not is_reachable(str(entry)):
            raise unreachable("packages", str(entry))
    if requirements is not None and uid is not None and not is_reachable(str(requirements)):
        raise unreachable("requirements", str(requirements))
    shown = ["/usr", *(f"/{name}" for name in plan.SYSTEM_LINKS), *folders]
    rules = [rule for path in shown for rule in _readable(path, hidden)]
    rules += [(path, READ) for path in public_etc()]
    rules += [(str(path), READ) for path in (agent, *entries, *(os.path.abspath(m.source) for m in spec.mounts))]
    rules += [(str(requirements), READ)] if requirements is not None else []
    rules += [(path, READ_FILE | WRITE_FILE) for path in DEVICES]
    rules += [(f"/proc/{name}", READ_FILE | READ_DIR) for name in PROC]
    rules += [(f"{base}/site", READ)]
    return View(executable, tuple(dict.fromkeys(rules)), hidden, env, tuple(entries), str(requirements or ""))


def environment(spec: Spec, seen: View, base: str) -> dict[str, str]:
    python = plan.Python(seen.executable, ())
    env = plan.environment(spec, python, requirements=seen.requirements, site=f"{base}/site")
    env |= {"HOME": f"{base}/workspace", "TMPDIR": f"{base}/tmp", **seen.env}
    return env | dict(spec.env)


def _readable(path: str, hidden: Iterable[str]) -> list[tuple[str, int]]:
    """Rules that show a folder without those below it that are hidden: their names can be listed, and nothing read."""
    path = os.path.realpath(path)
    inside = [one for one in hidden if one == path or one.startswith(f"{path}/")]
    if path in inside or not os.path.exists(path):
        return []
    if not inside:
        return [(path, READ)]
    rules = [(path, READ_DIR)]
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if not entry.is_symlink():
            rules += _readable(entry.path, inside)
    return rules


@functools.cache
def public_etc() -> tuple[str, ...]:
    places = (os.path.realpath(place) for pattern in etc.SHOWN for place in glob.glob(f"/etc/{pattern}"))
    return tuple(place for place in dict.fromkeys(places) if etc.is_public(place))


def unreachable(what: str, path: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        f"{what}: {path} cannot be reached by a box's own user, which is not root",
        fix="let others enter the folders that lead to it (chmod o+x), or put it elsewhere",
    )


def is_reachable(path: str) -> bool:
    """Whether everybody may enter the folders that lead to a path, and read what is there."""
    path = os.path.realpath(path)
    try:
        if not os.stat(path).st_mode & stat.S_IROTH:
            return False
        while path != "/":
            path = os.path.dirname(path)
            if not os.stat(path).st_mode & stat.S_IXOTH:
                return False
    except OSError:
        return False
    return True


@functools.cache
def stage(folder: str) -> str:
    """Copy an interpreter that lies in root's home, where a box's own user cannot reach it, to a folder that all boxes
    share. Made once for each interpreter: the copies are links where that is possible. Packages are left out."""
    info = os.stat(folder)
    key = hashlib.sha256(f"{folder} {info.st_ino} {info.st_mtime_ns} {sys.version}".encode()).hexdigest()[:16]
    home = Path(temporary(), f"harena-python-{os.geteuid()}")
    home.mkdir(mode=0o755, exist_ok=True)
    owner = home.lstat()
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
        raise IsolationUnavailable(f"{home} belongs to somebody else", fix="remove it")
    home.chmod(0o755)
    target = home / key
    if not target.exists():
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=home))
        try:
            for part in ("bin", "lib"):
                source = Path(folder, part)
                if source.is_dir():
                    shutil.copytree(
                        source, partial / part, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT),
                        copy_function=_link,
                    )  # fmt: skip
            partial.chmod(0o755)
            partial.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return str(target)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def temporary() -> str:
    """A folder for temporary files that the users of boxes can enter."""
    for path in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if os.access(path, os.W_OK) and (os.geteuid() != 0 or _can_enter(path)):
            return path
    raise IsolationUnavailable(
        "no folder for temporary files that a box's own user can enter", fix="make /tmp one (chmod 1777)"
    )


def _can_enter(path: str) -> bool:
    path = os.path.realpath(path)
    return all(os.stat(one).st_mode & stat.S_IXOTH for one in (path, *map(str, Path(path).parents)))


def folder_of(box: str) -> str:
    return f"{os.path.realpath(temporary())}/{registry.BOX_FOLDER}{box}"


def make_folder(base: str, entries: Iterable[Path], uid: int | None) -> None:
    os.mkdir(base, 0o700)
    try:
        for name, mode in (("workspace", 0o755), ("tmp", 0o700), ("fresh", 0o700), ("site", 0o755)):
            os.mkdir(f"{base}/{name}")
            os.chmod(f"{base}/{name}", mode)
            if uid is not None:
                os.chown(f"{base}/{name}", uid, uid)
        for entry in entries:
            os.symlink(entry, f"{base}/site/{entry.name}")
            if uid is not None:
                os.chown(f"{base}/site/{entry.name}", uid, uid, follow_symlinks=False)
        if uid is not None:
            os.chown(base, uid, uid)
    except OSError as error:
        shutil.rmtree(base, ignore_errors=True)
        raise IsolationUnavailable(f"no folder could be made for a box: {error}") from None


def order(
    spec: Spec, seen: View, base: str, uid: int | None, abi: int, words: list[str], record: Path, files_filter: bytes
) -> dict[str, object]:
    """Order for guest/bare/custody.py. `words` are those of cgroups.words."""
    told: dict[str, list[str]] = {verb: [] for verb in ("cgroup", "home", "join", "back")}
    for verb, value in zip(words[::2], words[1::2], strict=True):
        told[verb].append(value)
    return {
        "uid": uid,
        "base": base,
        "abi": abi,
        "rules": seen.rules,
        "hidden": seen.hidden,
        "bytes": spec.workspace_mb * MB,
        "files_filter": files_filter.hex(),
        "record": str(record),
        **told,
    }
