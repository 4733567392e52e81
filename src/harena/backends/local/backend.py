"""Starts boxes with the native launcher and speaks with their init and zygote; where no compiler could build it,
bubblewrap starts them, and guest/ is init and zygote in Python. Decides nothing about what a box may see
(launch/plan.py) or do (policy/seccomp.py); holds what must be let go of when a box ends.

One file, however long: what a start opens step by step, a failed start and `close` let go of in reverse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import itertools
import os
import re
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Protocol

from harena.backends.local import guest, variables, wire
from harena.backends.local.box import Lineage, LocalBox
from harena.backends.local.channel import Channel
from harena.backends.local.launch import bubblewrap, cgroups, image, plan, registry, users
from harena.backends.local.policy import seccomp
from harena.backends.local.requirements.store import Held, PackageStore
from harena.errors import BoxLost, IsolationUnavailable, Retry, StartTimeout, Unsupported, WireError
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import WORKSPACE, Limits, Spec, default_isolation
from harena.terminal import safe

NATIVE = Path(__file__).parent / "native"
LAUNCHER = NATIVE / "harena-box"
LIBRARY = NATIVE / "zygote.so"
FORK_FLAGS = 0x78020000 | 0x8000 | 0x4000 | 0x100 | 17
"""clone() flags of a box's fork: user, pid, mount, net and ipc namespaces, PARENT, VFORK, VM, SIGCHLD (harena.h)."""
PROBE_S = 30.0
MIN_DESCRIPTORS = 128
"""Descriptors that init and zygote of a box need to start a few executions at once."""
IMAGE_PYTHON = re.compile(rb"([0-9]{1,3})\.([0-9]{1,3})\n(/[^\0\n]{1,4000})\n")
"""What the Python of an image says: its version and its path, which becomes a word of the box's configuration."""
AHEAD_OF_IMAGE = ("hashlib", "shutil")
"""Modules that the file server imports when it needs them: in an image it could not find them."""
COMPILER = "install a C compiler and run `make native` or reinstall harena"


class LocalBackend:
    def __init__(self) -> None:
        if default_isolation() == "full":
            self._bwrap  # noqa: B018  # says at once what is missing
        registry.sweep()

    def box_owners(self) -> tuple[list[int], int]:
        return registry.owners()

    @functools.cached_property
    def _bwrap(self) -> Path | None:
        return choose_launcher()

    def capabilities(self) -> Capabilities:
        """Return the capabilities of boxes whose spec names no isolation tier."""
        wanted = default_isolation()
        if self._is_restricted(wanted):
            from harena.backends.local import restricted

            return restricted.capabilities(self._why_not_full(wanted))
        place = cgroups.find()
        return Capabilities(
            launcher="native" if self._bwrap is None else bubblewrap.describe(self._bwrap),
            memory=place.describe() if place.version else "watched, and RLIMIT_DATA for Python programs",
            processes=place.describe() if place.version else "RLIMIT_NPROC in a user namespace for each execution",
            landlock=landlock_abi(),
            counts_memory=place.version != 0,
            forks=self._bwrap is None,
            network=self._bwrap is None,
            ids=image.kind_of_ids() if self._bwrap is None else "",
        )

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> LocalBox:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if 0 <= most < MIN_DESCRIPTORS:  # else there are enough, or no limit at all
            raise _few_descriptors(f"a process may open {most} files here, a box needs {MIN_DESCRIPTORS}")
        if spec.network is not None and self._bwrap is not None:
            raise Unsupported(f"boxes of bubblewrap have no network: {COMPILER}, or leave Spec.network out")
        if spec.gpus not in (0, ()) and (self._bwrap is not None or spec.image is not None):
            what = "boxes from images" if spec.image is not None else "boxes of bubblewrap"
            raise Unsupported(f"{what} have no GPUs: leave Spec.gpus out, or use a plain box of the native launcher")
        held = self._hold_requirements(spec)
        try:
            lineage = Lineage(self._enclose(spec, start_s, held))
        except BaseException as error:
            if held is not None:
                held.close()
            if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise _few_descriptors("this process has no descriptor left for a box") from None
        try:
            return LocalBox(lineage, spec=spec, limits=limits, network=spec.network)
        except BaseException:
            lineage.enclosure.close()
            raise

    def _hold_requirements(self, spec: Spec) -> Held | None:
        if not spec.requirements:
            return None
        from harena.backends.local.requirements import install

        return install.hold(spec)

    def _enclose(self, spec: Spec, start_s: float, held: Held | None) -> NamespaceEnclosure:
        """The enclosure closes what it holds."""
        if not self._is_restricted(spec.isolation):
            return NamespaceEnclosure(spec, start_s=start_s, bwrap=self._bwrap, held=held)
        from harena.backends.local.restricted import RestrictedEnclosure

        return RestrictedEnclosure(spec, start_s=start_s, held=held)

    def _is_restricted(self, isolation: str) -> bool:
        return isolation == "restricted" or (isolation == "best" and self._obstacle is not None)

    def _why_not_full(self, isolation: str) -> tuple[str, ...]:
        return (f"the full tier is not possible here: {self._obstacle}",) if isolation == "best" else ()

    @functools.cached_property
    def _obstacle(self) -> str | None:
        """Why this host cannot make a full box, found out by making one."""
        try:
            NamespaceEnclosure(Spec(isolation="full"), start_s=PROBE_S, bwrap=self._bwrap).close()
        except IsolationUnavailable as error:
            return error.missing
        return None

    def create_on(self, root: image.Root, spec: Spec, *, limits: Limits, start_s: float) -> LocalBox:
        """A box on layers that no image has yet, for a step of a build. /tmp and /workspace are folders of the root, so
        that changes in them are part of `LocalBox.changes`. The box closes the root."""
        lineage = Lineage(NamespaceEnclosure(spec, start_s=start_s, bwrap=self._bwrap, root=root))
        return LocalBox(lineage, spec=spec, limits=limits, network=spec.network)

    @property
    def package_sets(self) -> PackageStore:
        """Installed requirements of boxes."""
        return PackageStore(variables.packages_folder())

    @property
    def run_step(self) -> Callable[..., contextlib.AbstractContextManager[Any]]:
        """Runs a step of a build: see `building.run_step`."""
        from harena.backends.local import building

        return functools.partial(building.run_step, self)


def _few_descriptors(missing: str) -> IsolationUnavailable:
    return IsolationUnavailable(missing, fix="raise the limit: ulimit -n 1024, or LimitNOFILE= of the service")


def choose_launcher() -> Path | None:
    """Return None for the native launcher, which is the default, or the bwrap to use instead."""
    wanted = variables.launcher() or ("native" if LAUNCHER.exists() else "bubblewrap")
    if wanted not in {"native", "bubblewrap"}:
        raise IsolationUnavailable(f"HARENA_LAUNCHER={wanted}", fix="make it native or bubblewrap, or unset it")
    if wanted == "native":
        if not LAUNCHER.exists():
            raise IsolationUnavailable("the native launcher was not built", fix=COMPILER)
        return None
    bwrap = bubblewrap.find()
    if bwrap is None:
        native = "" if LAUNCHER.exists() else "the native launcher was not built, and "
        raise IsolationUnavailable(
            f"{native}bubblewrap is not installed", fix=f"{COMPILER}; or `pip install 'harena[bwrap]'`"
        )
    return bwrap


class Complaining(Protocol):
    def complaint(self) -> str:
        """What a launcher that ended said last."""
        ...


class NamespaceEnclosure:
    isolation = "full"
    start_file, site, requirements = plan.START, plan.SITE, plan.REQUIREMENTS
    """Where the box's Python finds the agent, the packages and the requirements of the spec."""

    def __init__(
        self,
        spec: Spec,
        *,
        start_s: float,
        bwrap: Path | None = None,
        root: image.Root | None = None,
        held: Held | None = None,
    ) -> None:
        self.id = secrets.token_hex(6)
        self.spec = spec
        self._start_s = start_s
        self._bwrap = bwrap
        self._held = held
        self._lock = threading.RLock()
        self._zygote: Channel | None = None
        self._closed = False
        self._has_python = False
        uid = users.choose()
        self.image: image.Root | None = None
        if spec.image is None and root is None:
            words, python = plan.plan(
                spec, agent=agent_folder(), native=None if bwrap else NATIVE, requirements=held.lib if held else None
            )
            self.env = plan.environment(spec, python)
            self.cwd = WORKSPACE
        else:
            if bwrap is not None:
                raise IsolationUnavailable("bubblewrap cannot make boxes from images", fix=COMPILER)
            self.image = root or image.resolve(spec)
            if spec.network is not None:
                self.image = dataclasses.replace(self.image, env={**self.image.env, **plan.PROXIES, **spec.env})
            words, python = plan.plan_image(self.image, spec, agent=agent_folder(), native=NATIVE, uid=uid)
            self.env, self.cwd = dict(self.image.env), self.image.cwd
        self.executable = python.executable
        self.ids = self.image.ids.kind if self.image else ""
        self._place = cgroups.find()
        self._cgroups: list[Path] = []
        self._keeper = -1
        launch: bubblewrap.Launch | None = None
        ours, theirs = socket.socketpair()
        try:
            plan.check(words)
            if uid is not None:
                words += ["uid", str(uid)]
            self._cgroups = cgroups.make(self._place, self.id, uid)
            words += cgroups.words(self._place, self._cgroups)
            words += ["record", str(registry.record(self.id, self._cgroups))]
            if bwrap is not None:
                launch = bubblewrap.Launch(bwrap, words, self.executable, theirs)
            self._keeper = _launch(words, theirs) if launch is None else launch.pid
        except BaseException:
            ours.close()
            self._clean_up()
            raise
        finally:
            theirs.close()
        try:
            self._own_inodes = await_hello(ours, start_s, launch)
            self.init = Channel(ours, f"box {self.id}", takes_fds=True)
            self._configure(self.init)
        except BaseException:
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGKILL)  # it may be what takes so long
            self._reap()
            self._clean_up()
            raise
        finally:
            if launch is not None:
                launch.close()

    @property
    def python(self) -> Channel:
        with self._lock:
            if self._zygote is None:
                self._zygote = self._start_zygote()
            return self._zygote

    @property
    def runner(self) -> Channel:
        """Channel to the process that runs Python of guests: the zygote, or in an image the init, which starts the
        image's own Python. That one is untrusted, and nothing forks it ahead of its confinement."""
        if self.image is None:
            return self.python
        with self._lock:
            if not self._has_python:
                command = [self._find_python(), "-B", "-X", "utf8", plan.START, "--image"]
                command += [*(f"+{path}" for path in self.spec.paths), *self.spec.preload]
                self._configure(self.init, command)
                self._has_python = True
            return self.init

    def loops(self) -> Sequence[Channel]:
        """Channels to the processes that may know views."""
        with self._lock:
            return [self.init] if self._zygote is None or self._zygote is self.init else [self.init, self._zygote]

    def _find_python(self) -> str:
        """Path of the Python in an image, as its PATH finds it."""
        minimum = ".".join(map(str, guest.MIN_PYTHON))
        found = ""
        for name in ("python3", "python"):
            source = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
            done = self._ask("-c", source, executable=name)
            said = IMAGE_PYTHON.fullmatch(done.stdout)
            if done.wstatus or said is None:
                continue
            version, path = (int(said[1]), int(said[2])), os.fsdecode(said[3])
            if version >= guest.MIN_PYTHON:
                return path
            found = found or f"its {safe(path)[:200]} is {version[0]}.{version[1]}"
        raise Unsupported(
            f"image {self.spec.image} has no Python {minimum} or newer that run, call and programs could use"
            f"{f': {found}' if found else ''}; exec, files, snapshots and forks work without"
        )

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._zygote is not None:
                self._zygote.close()
            self.init.close()
            self._reap()
            if self.image is not None:
                self.image.close()
            if self._held is not None:
                self._held.close()

    def _search_paths(self) -> list[str]:
        """Arguments for the warm Python: where it imports from besides its own folders."""
        return [
            *([f"^{self.requirements}"] if self.spec.requirements else []),
            *([f"+{self.site}"] if self.spec.packages else []),
            *(f"+{path}" for path in self.spec.paths),
        ]

    def _start_zygote(self) -> Channel:
        if self._bwrap is not None:
            self._start_template()
            return self.init
        ours, theirs = socket.socketpair()
        argv = [
            self.executable,
            "-I",
            "-B",
            "-X",
            "utf8",
            plan.START,
            f"{plan.AGENT}/zygote.so",
            _next_cpu(),
        ]
        if self.image is None:
            argv += [*self._search_paths(), *self.spec.preload]
        else:
            argv += AHEAD_OF_IMAGE
        spawn = wire.Spawn(
            kind=wire.Kind.TRUSTED,
            flags=wire.Flag(0),
            argv=tuple(map(os.fsencode, argv)),
            env=self._trusted_env(),
        )
        id = self.init.post(wire.Op.SPAWN, spawn.encode(), (theirs.fileno(),))
        theirs.close()
        channel = Channel(ours, f"zygote of box {self.id}")
        try:
            self._configure(channel)
        except BoxLost:
            done = self.init.wait(id, 5)
            channel.close()
            raise self._no_python(done) from None
        except BaseException:
            channel.close()
            raise
        return channel

    def _start_template(self, role: str = "--template") -> None:
        """Where guest/loop.py serves, one channel does for all: programs are forked from a warm Python beside it."""
        argv = [self.executable, "-I", "-B", "-X", "utf8", self.start_file, role]
        argv += [*self._search_paths(), *self.spec.preload]
        spawn = wire.Spawn(
            kind=wire.Kind.TRUSTED,
            flags=wire.Flag.NOTIFY,
            argv=tuple(map(os.fsencode, argv)),
            env=tuple(os.fsencode(f"{name}={value}") for name, value in self.env.items()),
        )
        answer = self.init.request(wire.Op.SPAWN, spawn.encode(), timeout_s=self._start_s)
        if answer.op != wire.Op.STARTED:
            raise self._no_python(answer)

    def _no_python(self, answer: wire.Frame) -> IsolationUnavailable:
        """Start Python again as a command, to include its own output in the error."""
        minimum = ".".join(map(str, guest.MIN_PYTHON))
        version = self._ask("-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout.decode("ascii", "replace")
        numbers = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", version.strip())
        if numbers and (int(numbers[1]), int(numbers[2])) < guest.MIN_PYTHON:
            return IsolationUnavailable(
                f"the box's Python, {self.executable}, is {version.strip()}",
                fix=f"choose one that is {minimum} or newer (Spec.python)",
            )
        arguments = [*self._search_paths(), *self.spec.preload]
        complaint = self._ask("-X", "utf8", self.start_file, "--check", *arguments).stderr
        lines = complaint.decode("utf-8", "replace").strip().splitlines()
        return IsolationUnavailable(
            f"the box's Python did not start ({self.executable}, preload {list(self.spec.preload)}): "
            + (lines[-1][-1000:] if lines else _why(answer)),
            fix=f"it must be Python {minimum} or newer and find all of preload in the box (Spec.packages, Spec.python)",
        )

    def _ask(self, *arguments: str, executable: str | None = None) -> wire.Done:
        spawn = wire.Spawn(
            kind=wire.Kind.EXEC,
            flags=wire.Flag.CAPTURE,
            argv=tuple(map(os.fsencode, (executable or self.executable, "-I", "-B", *arguments))),
            env=tuple(os.fsencode(f"{name}={value}") for name, value in self.env.items()),
            cwd=b"/",
            wall_ns=int(self._start_s * 1e9),
            memory=1 << 30,
            output=1 << 16,
            processes=50,
            nofile=256,
        )
        answer = self.init.request(wire.Op.SPAWN, spawn.encode(), timeout_s=self._start_s + 5, room=spawn.room)
        empty = wire.Done(0, -1, 0, 0, 0, 0, 0, 0, 0, b"", b"", b"")
        return wire.parse_done(answer.body, answer.earlier) if answer.op == wire.Op.DONE else empty

    def _configure(self, channel: Channel, python: Sequence[str] = ()) -> None:
        paths = b"".join(os.fsencode(path) + b"\0" for path in plan.writable_paths(self.spec))
        body = (
            _filters(
                forks=self._bwrap is None,
                counted=self._place.version != 0,
                own_inodes=self._own_inodes,
                allow=tuple(sorted(set(self.spec.allow))),
                ids=self.ids,
                set_id_bits=self.image is not None and not image.has_writable_mounts(self.spec),
                gpus=self.spec.gpus not in (0, ()),
            )
            + bytes([self._place.version])
            + paths
            + b"\0"
            + (image.settings(self.image, self.spec, python) if self.image else b"")
        )
        self._send_config(channel, body)

    def _send_config(self, channel: Channel, body: bytes) -> None:
        with contextlib.ExitStack() as stack:
            fds: list[int] = []
            for folder in self._cgroups:
                try:
                    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                except FileNotFoundError:  # removed by the keeper of a box that has ended
                    text = f"box {self.id} ended before it was configured"
                    raise BoxLost(text, retry=Retry.SAFE) from None
                stack.callback(os.close, fd)
                fds.append(fd)
            answer = channel.request(wire.Op.CONFIG, body, tuple(fds), timeout_s=self._start_s)
        if answer.op != wire.Op.PONG:
            raise IsolationUnavailable(f"box {self.id} refused its configuration: {wire.parse_error(answer.body)[1]}")

    def _trusted_env(self) -> tuple[bytes, ...]:
        """Environment of the warm Python. That of an image is untrusted: it would say what our own Python loads."""
        env = (
            self.env if self.image is None else {"PATH": image.PATH, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        )
        return tuple(os.fsencode(f"{name}={value}") for name, value in env.items())

    def _reap(self) -> None:
        """Wait for the keeper, which ends when the whole box has ended and its traces on the host are removed."""
        if self._keeper > 0:
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(self._keeper, 0)
                if os.WIFSIGNALED(status):  # it was killed, and could not do its work
                    time.sleep(0.05)
                    self._clean_up()
            self._keeper = -1

    def _clean_up(self) -> None:
        if self.image is not None:
            self.image.close()
        for folder in self._cgroups:
            cgroups.remove(folder)
        (registry.folder() / self.id).unlink(missing_ok=True)


def _launch(words: list[str], theirs: socket.socket) -> int:
    plan_fd = os.memfd_create("plan")
    try:
        os.write(plan_fd, b"".join(os.fsencode(word) + b"\0" for word in words))
        os.lseek(plan_fd, 0, os.SEEK_SET)
        # Out of the way of the numbers they will have in the launcher.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (plan_fd, theirs.fileno())]
        try:
            null = os.open(os.devnull, os.O_RDWR)
            actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
            actions += [(os.POSIX_SPAWN_DUP2, fd, 3 + i) for i, fd in enumerate(high)]
            try:
                return os.posix_spawn(LAUNCHER, ["harena-box", "3", "4"], {}, file_actions=actions)
            finally:
                os.close(null)
        finally:
            for fd in high:
                os.close(fd)
    finally:
        os.close(plan_fd)


def await_hello(sock: socket.socket, start_s: float, launch: Complaining | None) -> bool:
    """Read the launcher's first message: the box is ready, or which step this host does not allow. Returns whether all
    read-only files of the box have their own inodes."""
    reader = wire.Reader()
    deadline = time.monotonic() + start_s
    while True:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = sock.recv(4096)
        except TimeoutError:
            raise StartTimeout(f"the box was not ready within start_s={start_s:g}") from None
        if not data:
            complaint = "it ended without a word" if launch is None else launch.complaint()
            raise IsolationUnavailable(f"the launcher could not make the box: {complaint}", fix=_fix(complaint))
        for frame in reader.feed(data):
            if frame.op == wire.Op.ERROR:
                raise refused(*wire.parse_error(frame.body))
            if frame.op == wire.Op.PONG:
                return frame.body == b"\1"
            raise WireError("the launcher said something else than hello")


def refused(number: int, step: str) -> IsolationUnavailable:
    return IsolationUnavailable(f"this host does not let a box {step}: {os.strerror(number)}", fix=_fix(step))


def _fix(step: str) -> str:
    if "namespace" in step or "uid map" in step:
        return (
            "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
            "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces>0; "
            "in a container, run it with a seccomp profile that allows them (docs/isolation.md); "
            'or accept less: Spec(isolation="restricted") needs no namespaces'
        )
    if step.startswith(("execvp", "SyntaxError")):
        minimum = ".".join(map(str, guest.MIN_PYTHON))
        return (
            f"bubblewrap's boxes need a Python inside, {minimum} or newer, also in a rootfs: "
            f"put one there (Spec.python), or {COMPILER}"
        )
    if "proc" in step:
        return "a masked /proc forbids a fresh one: in a container use systempaths=unconfined (procMount: Unmasked)"
    return "run `harena doctor` for what this host can enforce"


def _why(frame: wire.Frame) -> str:
    if frame.op == wire.Op.DONE:
        done = wire.parse_done(frame.body)
        if done.exec_errno:
            return os.strerror(done.exec_errno)
        return f"it ended with status {done.wstatus}"
    return "it ended"


@functools.cache
def agent_folder() -> Path:
    """The folder that boxes run, with its modules compiled: parsing them takes a third of a zygote's start. A box with
    another version of Python parses them."""
    folder = Path(guest.__file__).parent
    for path in folder.rglob("*.py"):
        SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # leaves the compiled module beside the source
    return folder


_turns = itertools.count()


def _next_cpu() -> str:
    """Choose the next of the processors that this process may use, in turn."""
    cpus = sorted(os.sched_getaffinity(0))
    return str(cpus[next(_turns) % len(cpus)])


@functools.cache
def _filters(
    *, forks: bool, counted: bool, own_inodes: bool, allow: tuple[str, ...], ids: str, set_id_bits: bool, gpus: bool
) -> bytes:
    def assemble(profile: wire.Profile, fork_flags: int | None = None, allow: tuple[str, ...] = ()) -> bytes:
        return seccomp.assemble(
            profile,
            fork_flags=fork_flags,
            counted=counted,
            own_inodes=own_inodes,
            allow=allow,
            ids=ids,
            set_id_bits=set_id_bits,
            gpus=gpus,
        )

    filters = {
        wire.Profile.SESSION: assemble(wire.Profile.SESSION, allow=allow),
        wire.Profile.PROGRAM: assemble(wire.Profile.PROGRAM),
        wire.Profile.INTERPRETER: (
            assemble(wire.Profile.INTERPRETER, FORK_FLAGS) if forks else assemble(wire.Profile.SESSION)
        ),
        wire.Profile.TALK: assemble(wire.Profile.TALK),
    }
    return b"".join(wire.U32.pack(len(filters[profile])) + filters[profile] for profile in wire.Profile)


def landlock_abi() -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(444, None, 0, 1))
