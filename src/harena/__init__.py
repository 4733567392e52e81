"""Put agents you do not trust on the sand: run them, match them, rank them, train them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    "WrongProcess",
    "run_doctor",
]

if TYPE_CHECKING:
    from harena.errors import BackendUnavailable as BackendUnavailable
    from harena.errors import BoxClosed as BoxClosed
    from harena.errors import BoxError as BoxError
    from harena.errors import BoxFileError as BoxFileError
    from harena.errors import BoxFileNotFound as BoxFileNotFound
    from harena.errors import BoxFileTooLarge as BoxFileTooLarge
    from harena.errors import BoxLost as BoxLost
    from harena.errors import HarenaError as HarenaError
    from harena.errors import IsolationUnavailable as IsolationUnavailable
    from harena.errors import QueueTimeout as QueueTimeout
    from harena.errors import Retry as Retry
    from harena.errors import SpecError as SpecError
    from harena.errors import StartTimeout as StartTimeout
    from harena.errors import WireError as WireError
    from harena.errors import WrongProcess as WrongProcess
    from harena.sandbox.aio import AsyncProcess as AsyncProcess
    from harena.sandbox.aio import AsyncSandbox as AsyncSandbox
    from harena.sandbox.aio import AsyncSandboxPool as AsyncSandboxPool
    from harena.sandbox.box import Sandbox as Sandbox
    from harena.sandbox.doctor import run_doctor as run_doctor
    from harena.sandbox.files import Snapshot as Snapshot
    from harena.sandbox.pool import Determinism as Determinism
    from harena.sandbox.pool import SandboxPool as SandboxPool
    from harena.sandbox.process import Process as Process
    from harena.sandbox.spec import Clocks as Clocks
    from harena.sandbox.spec import FileInfo as FileInfo
    from harena.sandbox.spec import Limits as Limits
    from harena.sandbox.spec import Mount as Mount
    from harena.sandbox.spec import Result as Result
    from harena.sandbox.spec import Spec as Spec
    from harena.sandbox.spec import Usage as Usage
    from harena.sandbox.spec import Verdict as Verdict

# Each is loaded on first use: `harena --help` needs none of them, and asyncio alone would double what the rest takes.
_MODULES = {
    "errors": "BackendUnavailable BoxClosed BoxError BoxFileError BoxFileNotFound BoxFileTooLarge BoxLost HarenaError "
    "IsolationUnavailable QueueTimeout Retry SpecError StartTimeout WireError WrongProcess",
    "sandbox.aio": "AsyncProcess AsyncSandbox AsyncSandboxPool",
    "sandbox.doctor": "run_doctor",
    "sandbox.files": "Snapshot",
    "sandbox.pool": "Determinism SandboxPool",
    "sandbox.process": "Process",
    "sandbox.box": "Sandbox",
    "sandbox.spec": "Clocks FileInfo Limits Mount Result Spec Usage Verdict",
}
_HOME = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
