"""What a backend must do, and where backends are found by name. Whoever makes boxes implements this; nothing above
imports one."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Protocol

from harena.errors import BackendUnavailable
from harena.sandbox.channel import Channel
from harena.sandbox.spec import Spec

BACKENDS = {"local": "harena.backends.local:LocalBackend"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend found it can enforce on this host, and by what."""

    launcher: str
    memory: str
    processes: str
    landlock: int
    """The kernel's Landlock ABI; 0: none."""
    forks: bool = False
    """Live boxes can be forked."""
    notes: tuple[str, ...] = ()


class Box(Protocol):
    """One isolated place, as a backend hands it out."""

    id: str
    env: dict[str, str]
    """What guests start with."""

    @property
    def init(self) -> Channel:
        """Runs commands: wire.Op.SPAWN with Kind.EXEC."""
        ...

    @property
    def python(self) -> Channel:
        """Runs Python: Kind.PROGRAM and Kind.SERVER. Started on first use."""
        ...

    def close(self) -> None:
        """Ends everything in the box and returns when nothing of it is left. Idempotent."""
        ...


class Backend(Protocol):
    def capabilities(self) -> Capabilities:
        """Raises IsolationUnavailable when no box can be made here."""
        ...

    def create(self, spec: Spec, *, start_s: float) -> Box: ...


def load(name: str) -> Backend:
    """The backend of that name; BackendUnavailable says what to install."""
    if name not in BACKENDS:
        raise BackendUnavailable(f"no backend {name!r}; there is: {', '.join(sorted(BACKENDS))}")
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()
