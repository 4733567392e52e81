"""Put agents you do not trust on the sand: run them, match them, rank them, train them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from harena.errors import (
    BackendUnavailable,
    BoxClosed,
    BoxError,
    BoxFileError,
    BoxFileNotFound,
    BoxFileTooLarge,
    BoxLost,
    HarenaError,
    IsolationUnavailable,
    QueueTimeout,
    Retry,
    SpecError,
    StartTimeout,
    WireError,
)
from harena.sandbox.files import Snapshot
from harena.sandbox.pool import Determinism, SandboxPool
from harena.sandbox.process import Process
from harena.sandbox.session import Sandbox
from harena.sandbox.spec import Clocks, FileInfo, Limits, Mount, Result, Spec, Usage, Verdict

__version__ = "0.1.0"

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxPool",
    "BackendUnavailable",
    "BoxClosed",
    "BoxError",
    "BoxFileError",
    "BoxFileNotFound",
    "BoxFileTooLarge",
    "BoxLost",
    "Clocks",
    "Determinism",
    "FileInfo",
    "HarenaError",
    "IsolationUnavailable",
    "Limits",
    "Mount",
    "Process",
    "QueueTimeout",
    "Result",
    "Retry",
    "Sandbox",
    "SandboxPool",
    "Snapshot",
    "Spec",
    "SpecError",
    "StartTimeout",
    "Usage",
    "Verdict",
    "WireError",
    "run_doctor",
]

if TYPE_CHECKING:
    from harena.sandbox.aio import AsyncProcess as AsyncProcess
    from harena.sandbox.aio import AsyncSandbox as AsyncSandbox
    from harena.sandbox.aio import AsyncSandboxPool as AsyncSandboxPool
    from harena.sandbox.doctor import run_doctor as run_doctor

# Loaded on first use: asyncio alone would double the time that importing Harena takes.
_LAZY = {
    "AsyncProcess": "harena.sandbox.aio",
    "AsyncSandbox": "harena.sandbox.aio",
    "AsyncSandboxPool": "harena.sandbox.aio",
    "run_doctor": "harena.sandbox.doctor",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
