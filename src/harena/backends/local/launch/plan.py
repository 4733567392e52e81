"""Decides what a box can see: turns a Spec into the plan that native/box.c carries out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harena.backends.local.launch import etc, gpus, image
from harena.errors import SpecError
from harena.sandbox.network import PROXY_PORT
from harena.sandbox.spec import MB, WORKSPACE, Mount, Spec

AGENT = "/.harena"
"""Where the box sees the folder guest and the native library."""
START = f"{AGENT}/guest/start.py"
"""What its Python executes."""
SITE = f"{AGENT}/site"
"""Where the packages named in a spec are visible."""
REQUIREMENTS = f"{AGENT}/requirements"
"""Where the installed requirements of a spec are visible."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SYSTEM_LINKS = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
MAX_BINDS, MAX_WORDS, MAX_BYTES = 1024, 8192 - 64, (1 << 20) - (1 << 16)
"""Capacity of native/box.c, minus the words that do not belong to the root (user, cgroups, record)."""
PROXIES = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), f"http://127.0.0.1:{PROXY_PORT}"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}
"""Environment variables of a box with a network. Programs that ignore them are served all the same."""
RESERVED = ("/proc", "/dev", "/sys", AGENT)
COVERED = (*RESERVED, "/tmp", WORKSPACE)
"""Paths where the box has its own files; a Python of the host at such a path is shown elsewhere."""


@dataclass(frozen=True, slots=True)
class Python:
    executable: str
    """Path in the box."""
    folders: tuple[str, ...]
    """Folders of the host that are visible at the same place, unless the box has something else there."""
    hidden: tuple[str, ...] = ()
    """Folders below those that are empty in the box."""


def plan(spec: Spec, *, agent: Path, native: Path | None, requirements: Path | None = None) -> tuple[list[str], Python]:
    """Return the plan words that build the box's root, and its Python. Raises SpecError for what cannot be shown."""
    python = find_python(spec)
    words: list[str] = ["host", spec.hostname]
    words += _rootfs(Path(spec.rootfs)) if spec.rootfs else _host_system()
    words += etc.identity(spec.hostname, network=spec.network is not None)
    if spec.network is not None:
        words += ["network", "on"]
    for folder in python.folders:
        words += ["bind", folder, _shown_at(folder), "ro"]
    python = dataclasses.replace(
        python, executable=_shown_at(python.executable), hidden=tuple(map(_shown_at, python.hidden))
    )
    for folder in python.hidden:
        words += ["tmpfs", folder, "size=4k,nr_inodes=2,mode=555", "ro", folder]
    words += ["bind", str(agent), f"{AGENT}/guest", "ro"]
    if native is not None:
        words += ["bind", str(native / "zygote.so"), f"{AGENT}/zygote.so", "ro"]
        words += ["bind", str(native / "harena-box"), f"{AGENT}/init", "ro"]
    for entry in package_entries(spec.packages):
        words += ["bind", str(entry), f"{SITE}/{entry.name}", "ro"]
    if requirements is not None:
        words += ["bind", str(requirements), REQUIREMENTS, "ro"]
    words += ["proc", "/proc", *_devices()]
    size = f"size={spec.workspace_mb * MB},nr_inodes={max(16384, spec.workspace_mb * 64)}"
    found = gpus.find(spec.gpus)
    words += found.words() if found else []
    words += ["tmpfs", "/dev/shm", f"{size},mode=1777", "tmpfs", "/tmp", f"{size},mode=1777", "ro", "/dev"]
    words += ["tmpfs", WORKSPACE, f"{size},mode=755"]
    for mount in spec.mounts:
        words += _mount(mount)
    return words, python


def plan_image(root: image.Root, spec: Spec, *, agent: Path, native: Path, uid: int | None) -> tuple[list[str], Python]:
    """Return the plan words of a box from an image, and the Python of its own root, which guests never see."""
    python = _own_python()
    words: list[str] = ["host", spec.hostname, "bind", "/usr", "/usr", "layer"]
    for name in SYSTEM_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["link", os.readlink(path), f"/{name}"]
        elif path.is_dir():
            words += ["bind", f"/{name}", f"/{name}", "layer"]
    for folder in python.folders:
        words += ["bind", folder, _shown_at(folder), "layer"]
    python = dataclasses.replace(python, executable=_shown_at(python.executable), hidden=())
    words += ["bind", str(agent), f"{AGENT}/guest", "layer"]
    words += ["bind", str(native / "zygote.so"), f"{AGENT}/zygote.so", "ro"]
    words += ["proc", "/proc", "dir", "/dev", "755", "bind", "/dev/null", "/dev/null", "dev"]
    words += ["bind", "/dev/urandom", "/dev/urandom", "dev"]
    if spec.network is not None:
        words += ["network", "on"]
    words += image.maps(root, uid=uid) + image.words(root, spec, uid=uid)
    top = image.ROOT
    words += ["tmpfs", f"{top}{AGENT}", "size=64k,mode=755", "bind", str(agent), f"{top}{AGENT}/guest", "ro"]
    words += ["bind", str(native / "zygote.so"), f"{top}{AGENT}/zygote.so", "ro"]
    words += ["bind", str(native / "harena-box"), f"{top}{AGENT}/init", "ro", "ro", f"{top}{AGENT}"]
    words += _devices(top)
    size = f"size={spec.workspace_mb * MB},nr_inodes={max(16384, spec.workspace_mb * 64)}"
    words += ["tmpfs", f"{top}/dev/shm", f"{size},mode=1777", "ro", f"{top}/dev"]
    if not root.is_build:
        words += ["tmpfs", f"{top}/tmp", f"{size},mode=1777"]
        words += ["tmpfs", f"{top}{WORKSPACE}", f"{size},mode=755,{image.owner_options(root)}"]
    for mount in spec.mounts:
        verb, source, target, mode = _mount(mount)
        words += [verb, source, f"{top}{target}", mode]
    return words, python


def _devices(top: str = "") -> list[str]:
    words = ["tmpfs", f"{top}/dev", "size=64k,mode=755"]
    for name in DEVICES:
        words += ["bind", f"/dev/{name}", f"{top}/dev/{name}", "dev"]
    words += ["dir", f"{top}/dev/pts", "755"]  # each execution has its own terminals there
    links = (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"))
    for name, target in (*links, ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):
        words += ["link", target, f"{top}/dev/{name}"]
    return words


def check(words: list[str]) -> None:
    """Refuse a plan that is too large for native/box.c: a truncated plan might lack what protects the host."""
    if any("\0" in word for word in words):
        raise SpecError("a path or name of the box holds a NUL byte")
    binds = words.count("bind")
    if binds > MAX_BINDS or len(words) > MAX_WORDS or sum(len(os.fsencode(word)) + 1 for word in words) > MAX_BYTES:
        raise SpecError(
            f"the box would show {binds} files and folders of the host, more than the launcher can hold "
            f"({MAX_BINDS}): mount a folder above them instead"
        )


def writable_paths(spec: Spec) -> list[str]:
    """Paths that Landlock leaves writable; the mounts restrict writes first."""
    # CUDA gives up when it cannot write names of its threads to /proc/self/task.
    proc = ["/proc"] if spec.gpus not in (0, ()) else []
    return [WORKSPACE, "/tmp", "/dev", *proc, *(mount.target for mount in spec.mounts if mount.writable)]


def environment(spec: Spec, python: Python, *, requirements: str = REQUIREMENTS, site: str = SITE) -> dict[str, str]:
    home = str(Path(python.executable).parent)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {
        "PATH": path if home == "/usr/bin" else f"{home}:{path}",
        "HOME": WORKSPACE,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "USER": "box",
    }
    places = [*([requirements] if spec.requirements else []), *([site] if spec.packages else [])]
    if places:
        env["PYTHONPATH"] = ":".join(places)
    if spec.requirements:
        env["PATH"] += f":{requirements}/bin"  # last: a package must not replace commands that every box has
    if spec.network is not None:
        env |= PROXIES
    if found := gpus.find(spec.gpus):
        env |= found.environment()
    return env | dict(spec.env)


def executable_in_box(spec: Spec) -> str:
    return _shown_at(find_python(spec).executable)


def _host_system() -> list[str]:
    words = ["bind", "/usr", "/usr", "ro"]
    for name in SYSTEM_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            words += ["link", os.readlink(path), f"/{name}"]
        elif path.is_dir():
            words += ["bind", f"/{name}", f"/{name}", "ro"]
    return words + etc.system()


def _rootfs(root: Path) -> list[str]:
    if not root.is_dir():
        raise SpecError(f"rootfs {root}: not a folder")
    words: list[str] = []
    for path in sorted(root.iterdir()):
        if path.name in {"proc", "dev", "sys", "tmp", "run", "workspace", "etc", ".harena"}:
            continue
        if path.is_symlink():
            words += ["link", os.readlink(path), f"/{path.name}"]
        elif path.is_dir():
            words += ["bind", str(path), f"/{path.name}", "ro"]
    etc = root / "etc"
    for path in sorted(etc.iterdir()) if etc.is_dir() else ():
        if path.name in {"passwd", "group", "hosts", "shadow", "gshadow", "resolv.conf", "mtab"}:
            continue
        if path.is_symlink():
            words += ["link", os.readlink(path), f"/etc/{path.name}"]
        elif path.is_dir() or path.is_file():
            words += ["bind", str(path), f"/etc/{path.name}", "ro"]
    return words


def _mount(mount: Mount) -> list[str]:
    target = "/" + os.path.normpath(mount.target).lstrip("/")
    if target in {"/", "/tmp", WORKSPACE} or _lies_in(target, RESERVED):
        raise SpecError(f"mount target {mount.target}: the box keeps this place for itself")
    source = os.path.abspath(mount.source)
    if not os.path.exists(source):
        raise SpecError(f"mount source {mount.source}: does not exist")
    return ["bind", source, target, "rw" if mount.writable else "ro"]


def _lies_in(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _shown_at(path: str) -> str:
    """Path in the box for a path of its Python."""
    return f"{AGENT}/python{path}" if _lies_in(path, COVERED) else path


def find_python(spec: Spec) -> Python:
    if spec.rootfs:
        return _python_in_rootfs(spec)
    if spec.python is None:
        return _own_python()
    return _other_python(Path(spec.python))


def _python_in_rootfs(spec: Spec) -> Python:
    wanted = spec.python or "/usr/bin/python3"
    if spec.packages:
        raise SpecError("packages: with a rootfs, install them in the rootfs")
    return Python(wanted, ())


def _own_python() -> Python:
    """The interpreter that runs Harena, with its standard library and without its packages."""
    executable = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    if not os.path.exists(executable):  # also where this user may not look
        executable = Path(os.path.realpath(sys.executable))
    hidden = {
        sysconfig.get_path(name, vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
        for name in ("purelib", "platlib")
    }
    if sys.base_prefix == "/usr":
        hidden |= {"/usr/lib/python3/dist-packages", "/usr/local/lib"}
    folders = () if sys.base_prefix == "/usr" else (sys.base_prefix,)
    return Python(str(executable), folders, outermost(path for path in hidden if os.path.isdir(path)))


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Leave out paths below another one: an empty folder cannot hold a mount point."""
    found: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{other}/") for other in found):
            found.append(path)
    return tuple(found)


def _other_python(path: Path) -> Python:
    """An interpreter or a virtual environment of the host, with all of its packages."""
    executable = path / "bin" / "python3" if path.is_dir() else path
    if not os.access(executable, os.X_OK):
        raise SpecError(f"python {path}: no interpreter there")
    folders: list[str] = []
    shown = executable.absolute()
    prefix = shown.parent.parent
    is_venv = (prefix / "pyvenv.cfg").is_file()
    if is_venv:
        folders.append(str(prefix))
    real = Path(os.path.realpath(executable))
    base = str(real.parent.parent)
    if not str(real).startswith("/usr/"):
        if is_venv and base != str(prefix) and _lies_in(base, COVERED):
            raise SpecError(
                f"python {path}: its base {base} lies where the box has its own files; make it from another Python"
            )
        folders.append(base)
        if not is_venv and not _lies_in(str(shown), ("/usr", base)):
            shown = real  # a link from elsewhere, which the box does not see
    return Python(str(shown), tuple(dict.fromkeys(folders)))


def package_entries(names: tuple[str, ...]) -> list[Path]:
    """Top-level entries of site-packages that belong to the named packages and their requirements."""
    entries: dict[str, Path] = {}
    todo, done = list(names), set[str]()
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in done:
            continue
        done.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise SpecError(f"packages: {name} is not installed beside Harena") from None
        for file in found.files or ():
            top = file.parts[0]
            if top not in {"..", "__pycache__"}:
                entries[top] = Path(str(found.locate_file(top)))
        todo += [match[0] for text in found.requires or () if (match := _required(text))]
    return [path for path in entries.values() if path.exists()]


def _required(text: str) -> re.Match[str] | None:
    """Name in a requirement that applies here; extras and other platforms are ignored."""
    requirement, _, marker = text.partition(";")
    if "extra" in marker or ("platform" in marker and "linux" not in marker.lower()) or "python_version <" in marker:
        return None
    return re.match(r"[A-Za-z0-9._-]+", requirement.strip())
