"""Self-test of the isolation: starts a real box and a real pool and attacks them. A probe held if it ran, was denied,
and did not reach the host's targets, which were checked to be reachable before. A probe that could not run did not
hold.

The attacks are data (`probes`). `targets` has what they aim at on the host, and `ring` the boxes and the ways into
them. Nothing here leaves this machine: the network targets are listeners of the doctor itself, on loopback.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harena.errors import IsolationUnavailable
from harena.sandbox import backend as backends
from harena.sandbox.doctor.probes import ProbeResult
from harena.sandbox.doctor.ring import Ring
from harena.sandbox.doctor.targets import Host
from harena.sandbox.spec import Spec

WORKSPACE_MB = 16
IDS = {
    "full": "full: every user and group of an image exists",
    "single": "single: one user; changes of owners and users succeed without being made",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    ok: bool
    """True if every probe held."""
    enforcement: dict[str, str]
    """What enforces the isolation on this host."""
    notes: tuple[str, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    missing: str | None = None
    """What this host cannot enforce, if no box can be created."""
    fix: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "enforcement": self.enforcement,
            "notes": list(self.notes),
            "missing": self.missing,
            "fix": self.fix,
            "probes": [{"name": probe.name, "held": probe.held, "detail": probe.detail} for probe in self.probes],
        }


def run_doctor(
    backend: str = "local", *, image: str | None = None, progress: Callable[[int, int], object] | None = None
) -> Report:
    """Run all probes, which takes a few seconds. Missing isolation is reported, not raised. With `image`, the boxes are
    made from it; it needs sh and Python."""
    enforcement = {"backend": backend, "kernel": os.uname().release, "user": _user()}
    notes: tuple[str, ...] = ()
    try:
        found = backends.load(backend).capabilities()
        enforcement |= {
            "isolation": _tier(found),
            "launcher": found.launcher,
            "memory": found.memory,
            "processes": found.processes,
            "landlock": f"ABI {found.landlock}" if found.landlock else "not in this kernel",
        }
        if found.ids:
            enforcement["ids in images"] = IDS[found.ids]
        notes = found.notes
        if found.launcher.startswith("bubblewrap") and not notes:
            notes = ("this is the fallback launcher: with a C compiler, reinstalling Harena builds the native one",)
        spec = Spec(workspace_mb=WORKSPACE_MB, image=image)
        probes = tuple(_attack(backend, spec, found, progress))
    except IsolationUnavailable as error:
        return Report(ok=False, enforcement=enforcement, notes=notes, missing=error.missing, fix=error.fix)
    return Report(ok=all(probe.held for probe in probes), enforcement=enforcement, notes=notes, probes=probes)


def _tier(found: backends.Capabilities) -> str:
    """One line: which tier, and what it does not cover."""
    if not found.not_covered:
        return found.isolation
    return f"{found.isolation}; it does not cover: {'; '.join(found.not_covered)}"


def _user() -> str:
    return "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"


def _attack(
    backend: str, spec: Spec, found: backends.Capabilities, progress: Callable[[int, int], object] | None
) -> Iterator[ProbeResult]:
    with Host() as host, Ring(backend, spec, host, found) as ring:
        total = len(ring.steps)
        results: list[ProbeResult] = []
        for step in ring.steps:
            results.append(ring.take(step))
            if progress is not None:
                progress(len(results), total)
        groups = list(dict.fromkeys(_group(result) for result in results))
        for result in sorted(results, key=lambda result: groups.index(_group(result))):
            yield host.reviewed(result)


def _group(result: ProbeResult) -> str:
    return result.name.partition(".")[0]
