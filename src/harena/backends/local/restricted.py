"""Boxes of the restricted isolation tier: no namespaces, no mounts, no privileges. See docs/isolation.md.

The protocol is that of a full box, served by guest/bare/. Only `LocalBackend` uses this, only when a spec asks for
the tier by name.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from harena.backends.local import variables, wire
from harena.backends.local.backend import NamespaceEnclosure, agent_folder, await_hello, landlock_abi
from harena.backends.local.channel import Channel
from harena.backends.local.launch import bubblewrap, cgroups, registry, restricted, users
from harena.backends.local.policy import seccomp
from harena.backends.local.requirements.store import Held
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import WORKSPACE, Spec

TIER = "restricted"


def abi() -> int:
    """The Landlock version to use. HARENA_LANDLOCK lowers it, to see what an older kernel does."""
    found = landlock_abi()
    most = variables.landlock_at_most()
    return found if most is None else min(found, most)


def capabilities(notes: tuple[str, ...] = ()) -> Capabilities:
    uid, place, found = users.choose(), cgroups.find(), abi()
    restricted.check(found, uid)
    counted = place.version != 0
    return Capabilities(
        launcher="restricted (no namespaces)",
        memory=place.describe() if counted else "watched, and RLIMIT_DATA for Python programs",
        processes=place.describe() if counted else "watched, and RLIMIT_NPROC",
        landlock=found,
        counts_memory=counted,
        forks=False,
        isolation=TIER,
        not_covered=(*restricted.NOT_COVERED, *restricted.lacks(found, uid)),
        notes=notes,
    )


class RestrictedEnclosure(NamespaceEnclosure):
    """The enclosure of a box without namespaces. Its init is the child of guest/bare/custody.py."""

    def __init__(self, spec: Spec, *, start_s: float, held: Held | None = None) -> None:
        self.id = secrets.token_hex(6)
        self.spec = spec
        self.isolation = TIER
        self.image, self.ids, self.cwd = None, "", WORKSPACE
        self._start_s = start_s
        self._held = held
        self._lock = threading.RLock()
        self._zygote: Channel | None = None
        self._closed = False
        self._place = cgroups.find()
        self._counted = self._place.version != 0
        self._cgroups = []
        self._keeper = -1
        restricted.refuse(spec)
        self._uid = uid = users.choose()
        found = abi()
        restricted.check(found, uid)
        self._base = base = restricted.folder_of(self.id)
        self.start_file, self.site = str(agent_folder() / "start.py"), f"{base}/site"
        requirements = held.lib if held else None
        self.requirements = str(requirements or "")
        seen = restricted.view(spec, base, agent_folder(), uid, requirements)
        self.executable = seen.executable
        self.env = restricted.environment(spec, seen, base)
        restricted.make_folder(base, seen.entries, uid)
        launch: _Launch | None = None
        ours, theirs = socket.socketpair()
        try:
            self._cgroups = cgroups.make(self._place, self.id, uid)
            record = registry.record(self.id, [*self._cgroups, Path(base)])
            words = cgroups.words(self._place, self._cgroups)
            code = seccomp.assemble_without_namespaces(wire.Profile.PROGRAM, counted=self._counted, owns=True)
            launch = _Launch(restricted.order(spec, seen, base, uid, found, words, record, code), theirs)
            self._keeper = launch.pid
        except BaseException:
            ours.close()
            self._clean_up()
            raise
        finally:
            theirs.close()
        try:
            await_hello(ours, start_s, launch)
            self.init = Channel(ours, f"box {self.id}", takes_fds=True)
            self._configure(self.init)
        except BaseException:
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGKILL)
            self._reap()
            self._clean_up()
            raise
        finally:
            launch.close()

    def _start_zygote(self) -> Channel:
        self._start_template("--bare-template")
        return self.init

    def _configure(self, channel: Channel, python: Sequence[str] = ()) -> None:
        body = _filters(counted=self._counted, owns=self._uid is not None)
        self._send_config(channel, body + bytes([self._place.version]) + b"\0")

    def _clean_up(self) -> None:
        super()._clean_up()
        shutil.rmtree(self._base, ignore_errors=True)


class _Launch:
    """A keeper that is starting."""

    def __init__(self, order: dict[str, object], theirs: socket.socket) -> None:
        self._complaints = bubblewrap.memory("")
        told = bubblewrap.memory(json.dumps(order))
        try:
            argv = [sys.executable, "-I", "-S", "-B", str(agent_folder() / "start.py"), "--custody"]
            self.pid = bubblewrap.spawn(argv, [told, theirs.fileno()], self._complaints)
        except BaseException:
            os.close(self._complaints)
            raise
        finally:
            os.close(told)

    def complaint(self) -> str:
        os.lseek(self._complaints, 0, os.SEEK_SET)
        lines = os.read(self._complaints, 65536).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def close(self) -> None:
        os.close(self._complaints)


@functools.cache
def _filters(*, counted: bool, owns: bool) -> bytes:
    profiles = {profile: profile for profile in wire.Profile} | {wire.Profile.INTERPRETER: wire.Profile.SESSION}
    filters = [
        seccomp.assemble_without_namespaces(profiles[profile], counted=counted, owns=owns) for profile in wire.Profile
    ]
    return b"".join(wire.U32.pack(len(one)) + one for one in filters)
