"""The boxes and the pool that are attacked, and the steps of the attack."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harena.errors import BoxFileError, HarenaError, IsolationUnavailable
from harena.sandbox import backend as backends
from harena.sandbox.box import Sandbox
from harena.sandbox.doctor import probes
from harena.sandbox.doctor.probes import (
    EXEC,
    FORK,
    JUNK,
    LEAVE_BEHIND,
    LEFT_BY_FORK,
    LEFT_FOR_FORK,
    LOOK_AFTER_FORK,
    LOOK_IN_FORK,
    MAP,
    MEET,
    RLIMITS,
    ROOMY,
    RUN,
    TOOLS,
    VISIT,
    Control,
    Probe,
    ProbeResult,
    Trace,
)
from harena.sandbox.doctor.targets import Host
from harena.sandbox.pool import SandboxPool
from harena.sandbox.spec import Limits, Result, Spec
from harena.terminal import safe

NEED_NAMESPACES = frozenset(
    {
        "works.own_loopback",
        "network.meetings",
        "files.read_only_mounts",
        "processes.own",
        "privilege.mount_flags",
        "limits.inodes",
        "next.processes",
    }
)
"""Steps that look at namespaces and mounts of a box, which the restricted tier has none of."""
COUNTED = frozenset({"limits.processes", "limits.threads"})
"""Steps that expect the kernel to refuse one process too many. Where a box has neither a cgroup nor a user of its own,
processes are counted, and an execution with too many is ended."""
NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
BUDGET_S = 60
"""If a box hangs, every probe would wait for its wall clock. After this time the rest is not run and counts as
failed."""
DETAIL = 300
"""Maximum length of a probe's message, part of which the guest writes."""


class Ring:
    """The boxes and the pool, and the ways into them."""

    def __init__(self, backend: str, spec: Spec, host: Host, found: backends.Capabilities) -> None:
        self._backend = backend
        self._spec = spec
        self._host = host
        self._found = found
        self._target = {**host.target(), "landlock": found.landlock, "rlimits": RLIMITS}
        self._target["image"] = found.ids if spec.image else ""
        self._target["restricted"] = self._restricted = found.isolation == "restricted"
        self._target["shared_user"] = self._shared_user = self._restricted and os.geteuid() != 0
        if self._shared_user:
            self._target["rlimits"] = {name: value for name, value in RLIMITS.items() if name != "NPROC"}
        self._boxes: dict[bool, Sandbox] = {}
        self._forks: dict[bool, Sandbox] = {}
        self._deadline = time.monotonic() + BUDGET_S
        self._threads = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="harena-doctor")
        self.steps = self._plan()

    def __enter__(self) -> Ring:
        # One box, so that the next program is in the one where the last has been.
        self._pool = SandboxPool(self._spec, backend=self._backend, warm=1, max_live=1)
        return self

    def __exit__(self, *exc: object) -> None:
        for box in (*self._forks.values(), *self._boxes.values()):
            box.close()
        self._pool.close()
        self._threads.shutdown()

    def _plan(self) -> list[tuple[str, Callable[[], tuple[bool, str]]]]:
        steps: list[tuple[str, Callable[[], tuple[bool, str]]]] = []
        steps += [(control.name, functools.partial(self._control, control)) for control in probes.CONTROLS]
        steps += [(probe.name, functools.partial(self._probe, probe)) for probe in probes.PROBES]
        steps += [("files.symlinks", self._symlinks), ("inherited.box_channel", self._box_channel)]
        steps += [("inherited.init", self._init), ("processes.left_behind", self._left_behind)]
        steps += [("network.meetings", self._meeting)]
        steps += [(trace.name, functools.partial(self._trace, trace)) for trace in probes.TRACES]
        if self._found.forks:
            steps.append(("next.fork", self._forked))
        left_out = NEED_NAMESPACES if self._restricted else frozenset[str]()
        if self._shared_user and not self._found.counts_memory:
            left_out |= COUNTED
        return [step for step in steps if step[0] not in left_out]

    def _source(self, way: str, source: str) -> str:
        return f"{TOOLS}\nT = {self._target | {'way': way}!r}\n{source}"

    def _box(self, tight: bool = False) -> Sandbox:
        """Create a box. The interpreter has the limits of its box, so there is a separate box for bombs."""
        box = self._boxes.get(tight)
        if box is None or not box.alive:
            box = self._boxes[tight] = Sandbox(self._spec, backend=self._backend, limits=_limits(tight, 5))
        return box

    def _fork(self, tight: bool) -> Sandbox:
        fork = self._forks.get(tight)
        if fork is None or not fork.alive:
            fork = self._forks[tight] = self._box(tight).fork()[0]
        return fork

    def take(self, named_step: tuple[str, Callable[[], tuple[bool, str]]]) -> ProbeResult:
        name, step = named_step
        if time.monotonic() > self._deadline:
            return ProbeResult(name=name, held=False, detail=f"not run: those before it took {BUDGET_S} s")
        try:
            held, detail = step()
        except IsolationUnavailable:
            raise
        except HarenaError as error:
            held, detail = False, f"it could not run: {error}"
        return ProbeResult(name=name, held=held, detail=printable(detail))

    def _enter(
        self, way: str, source: str, *, tight: bool = False, wall_s: float = 5, more: Mapping[str, Any] | None = None
    ) -> Result:
        limits = dataclasses.replace(_limits(tight, wall_s), **more or {})
        if way == MAP:
            return self._pool.map([source], limits=limits)[0]
        if way == EXEC:
            return self._box(tight).exec(["python3", "-I", "-S", "-"], stdin=source.encode(), limits=limits)
        if way == FORK:
            return self._fork(tight).run(source, limits=limits)
        return self._box(tight).run(source, limits=limits)

    def _ways(self, probe: Probe) -> list[str]:
        return [way for way in probe.ways if way != FORK or self._found.forks]

    def _control(self, control: Control) -> tuple[bool, str]:
        for way in control.ways:
            result = self._enter(way, control.source)
            if not result.ok or result.stdout.strip() != control.answer.encode():
                return False, f"by {way}: {result.detail or _last(result.stdout)} {_last(result.stderr)}"
        return True, f"the box works, by {_listed(control.ways)}"

    def _probe(self, probe: Probe) -> tuple[bool, str]:
        tried, errors, verdicts = 0, set[str](), set[str]()
        ways = self._ways(probe)
        for way, result in zip(ways, self._enter_all(probe), strict=True):
            verdicts.add(result.verdict.value)
            if result.verdict not in probe.verdicts or b"ESCAPED" in result.stdout:
                return False, f"by {way}: {_said(result)}"
            if result.ok:
                word, count, *names = [*_last(result.stdout).split(), "", ""]
                if word != "denied" or not count.isdecimal() or count == "0":
                    return False, f"by {way}: {_said(result)}"
                tried += int(count)
                errors |= set(filter(None, names))
        if self._box(probe.bomb).exec(["echo", "ok"]).stdout != b"ok\n":
            return False, "the box does not work any more after it"
        if not tried:
            return True, f"ended ({_listed(sorted(verdicts))}) by {_listed(ways)}"
        return True, f"{tried} attempts in vain by {_listed(ways)}{_in_brackets(sorted(errors))}"

    def _enter_all(self, probe: Probe) -> list[Result]:
        """Run probes in parallel, since the ways into a box do not affect each other, but bombs one by one."""

        def enter(way: str) -> Result:
            source = self._source(way, f"{probe.source}\nfinish()\n")
            return self._enter(way, source, tight=probe.bomb, wall_s=probe.wall_s, more=probe.limits)

        ways = self._ways(probe)
        if probe.bomb:
            return [enter(way) for way in ways]
        self._box()  # made here, and not by two threads at once
        if FORK in ways:
            self._fork(False)
        return list(self._threads.map(enter, ways))

    def _symlinks(self) -> tuple[bool, str]:
        """Check that file operations of the host do not follow links that the guest made."""
        box, host = self._box(), self._host
        secret, folder = host.secrets[0], host.folder
        links = {"inner": "doctor-note", "out": str(secret), "folder": str(folder), "proc": f"/proc/self/root{secret}"}
        links["up"] = f"{'../' * 20}{str(secret).lstrip('/')}"
        box.write("links/doctor-note", b"hello")
        made = box.exec(
            ["sh", "-c", "cd links; while read -r name target; do ln -s $target $name; done"],
            stdin="".join(f"{name} {target}\n" for name, target in links.items()).encode(),
        )
        if not made.ok or box.read("links/inner") != b"hello":
            return False, f"the control failed: a link inside the workspace cannot be read {_said(made)}"
        refused = 0
        for name in links:
            with contextlib.suppress(BoxFileError):
                if name != "inner" and host.mark.encode() in box.read(f"links/{name}"):
                    return False, f"read() followed {name} -> {links[name]} to a file of the host"
            refused += 1
        with contextlib.suppress(BoxFileError):
            box.write("links/folder/planted", b"planted")
        with tempfile.TemporaryDirectory(prefix="harena-doctor-") as target:
            with contextlib.suppress(BoxFileError):
                box.download("links", target)
            for path in Path(target).rglob("*"):
                if path.is_symlink() and not str(path.resolve()).startswith(os.path.realpath(target)):
                    return False, f"download() made a link that leads out: {path.name}"
        if (folder / "planted").exists():
            return False, "write() followed a link to a folder of the host"
        return True, f"{refused + 1} attempts in vain by read, write and download"

    def _box_channel(self) -> tuple[bool, str]:
        """Check that a guest cannot get the box's channel to the host, with which it could forge verdicts of others."""
        with Sandbox(self._spec, backend=self._backend, limits=_limits(False, 5)) as box:
            with contextlib.suppress(HarenaError):
                box.run(JUNK)
            try:
                result = box.call("def f(): return 42", "f")
            except HarenaError as error:
                return False, f"what ran in the interpreter spoke for the box: {error}"
        return result.value == 42, "junk on every descriptor of the interpreter does not reach the box's own line"

    def _init(self) -> tuple[bool, str]:
        """Check from the host that the init of a box has no rights, although it is our own code."""
        self._box()
        inits = [pid for pid in _descendants(os.getpid()) if self._is_init(pid)]
        if not inits:
            return False, "no init of a box is among the children of this process"
        for pid in inits:
            for name in () if self._restricted else NAMESPACES:
                if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
                    return False, f"it shares the {name} namespace of the host"
            # With many ids it maps those of each execution, for which it keeps CAP_SETGID and CAP_SETUID.
            kept = 0xC0 if self._target["image"] == "full" else 0
            wants = {"CapEff": kept, "CapPrm": kept, "CapBnd": kept, "NoNewPrivs": 1}
            if self._shared_user:
                del wants["CapBnd"]  # nobody but root can lower it, and no_new_privs makes it useless
            for name, wanted in wants.items():
                if int(_status(pid, name), 16) != wanted:
                    return False, f"its {name} is {_status(pid, name)}"
            ids = [word for name in ("Uid", "Gid", "Groups") for word in _status(pid, name).split()]
            if os.geteuid() == 0 and ("0" in ids or len(set(ids)) > 1):  # one number, which is nobody's on the host
                return False, f"it is somebody on the host: {sorted(set(ids))}"
            if os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
                return False, "it is scheduled before others"
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                held = _open_files(pid)
            except PermissionError:
                if not self._restricted:
                    raise
                continue  # in a container root may not look into processes of other users
            if self._host.mark.encode() in environment:
                return False, "it has the host's environment"
            if str(self._host.secrets[0]) in held:
                return False, "it holds a file that the host had open"
        apart = "" if self._restricted else f"apart from the host in {len(NAMESPACES)} namespaces, "
        return True, f"{apart}without rights, variables and files of it"

    def _is_init(self, pid: int) -> bool:
        if not self._restricted:
            return _status(pid, "NSpid").split()[1:] == ["1"]
        parent = _status(pid, "PPid").strip()  # the keeper
        commands = [Path("/proc", one, "cmdline").read_bytes() for one in (str(pid), parent)]
        return all(command.endswith(b"--custody\0") for command in commands)

    def _left_behind(self) -> tuple[bool, str]:
        """Check that nothing an execution started outlives its result."""
        for way in (EXEC, MAP):
            result = self._enter(way, self._source(way, LEAVE_BEHIND), wall_s=2)
            if result.stdout != b"left\n" or not result.ok:
                return False, f"by {way}: {_said(result)}"
            end = time.monotonic() + 1
            while _processes_named(f"{self._host.mark}-left"):
                if time.monotonic() > end:
                    return False, f"by {way}: a process of it still runs"
        return True, "what a guest left running has ended with it"

    def _meeting(self) -> tuple[bool, str]:
        """Run two programs in the same box at the same time."""
        sources = [self._source(MAP, MEET), self._source(MAP, f"{VISIT}\nfinish()\n")]
        server, visitor = self._pool.map(sources, limits=_limits(False, 5))
        spaces = {result.stdout.split(b"\n")[0] for result in (server, visitor)}  # of System V and POSIX queues
        held = _last(server.stdout) == "alone" and visitor.ok and _last(visitor.stdout).startswith("denied ")
        held = held and len(spaces) == 2
        return held, "programs side by side do not meet" if held else f"{_said(server)}; {_said(visitor)}"

    def _forked(self) -> tuple[bool, str]:
        """Check that a fork of a live box has its own files, processes and sockets."""
        with Sandbox(self._spec, backend=self._backend, limits=_limits(False, 5)) as box:
            left = box.run(self._source(RUN, LEFT_FOR_FORK))
            if _last(left.stdout) != "left":
                return False, f"before a fork: {_said(left)}"
            with box.fork()[0] as fork:
                for place, source in ((fork, LOOK_IN_FORK), (fork, LEFT_BY_FORK), (box, LOOK_AFTER_FORK)):
                    result = place.run(self._source(RUN, source))
                    if not result.ok or not _last(result.stdout).startswith(("denied ", "left")):
                        return False, f"in the {'fork' if place is fork else 'parent'}: {_said(result)}"
        return True, "a fork and its parent find nothing of each other"

    def _trace(self, trace: Trace) -> tuple[bool, str]:
        left = self._enter(MAP, self._source(MAP, trace.leave))
        if _last(left.stdout) != "left":
            return False, f"the control failed: the first program could not leave it {_said(left)}"
        result = self._enter(MAP, self._source(MAP, f"{trace.look}\nfinish()\n"))
        if not result.ok or not _last(result.stdout).startswith("denied "):
            return False, f"the next program found it: {_said(result)}"
        return True, "the next program in the same box finds nothing of it"


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parent = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def _processes_named(name: str) -> list[str]:
    found: list[str] = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path("/proc", entry, "cmdline").read_bytes().startswith(name.encode()):
                found.append(entry)
    return found


def _status(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def _open_files(pid: int) -> set[str]:
    found: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was listed
            found.add(os.readlink(descriptor))
    return found


def _limits(tight: bool, wall_s: float) -> Limits:
    return Limits(**(probes.TIGHT if tight else ROOMY), wall_s=wall_s)


def _last(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _said(result: Result) -> str:
    escaped = [line for line in result.stdout.decode("utf-8", "replace").splitlines() if line.startswith("ESCAPED")]
    words = escaped[0] if escaped else _last(result.stderr) or _last(result.stdout)
    return f"{result.detail or result.verdict.value}: {words}" if words else result.detail or result.verdict.value


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _in_brackets(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def printable(text: str) -> str:
    """Text on one line without control characters, because guests write part of it and it goes to a terminal."""
    return safe(text[:DETAIL]).strip()
