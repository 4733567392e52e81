"""Put agents you do not trust on the sand: run them, match them, rank them, train them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harena.lazy import load_on_use as _load_on_use

__version__ = "0.1.0"

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxPool",
    "AsyncSandboxSession",
    "AsyncShell",
    "AsyncWarmPoolManager",
    "BackendUnavailable",
    "BoxClosed",
    "BoxError",
    "BoxFileError",
    "BoxFileNotFound",
    "BoxFileTooLarge",
    "BoxLost",
    "Clocks",
    "Denied",
    "Determinism",
    "FileInfo",
    "HarenaError",
    "IsolationUnavailable",
    "Limits",
    "Mount",
    "Network",
    "NetworkReport",
    "Process",
    "QueueTimeout",
    "Result",
    "Retry",
    "Sandbox",
    "SandboxPool",
    "SandboxSession",
    "Shell",
    "Snapshot",
    "Spec",
    "SpecError",
    "StartTimeout",
    "Usage",
    "Verdict",
    "WarmPoolManager",
    "WireError",
    "WrongProcess",
    "evaluate",
    "league",
    "parse_requirements",
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
    from harena.match.evaluate import evaluate as evaluate
    from harena.match.evaluate import league as league
    from harena.sandbox.aio import AsyncProcess as AsyncProcess
    from harena.sandbox.aio import AsyncSandbox as AsyncSandbox
    from harena.sandbox.aio import AsyncSandboxPool as AsyncSandboxPool
    from harena.sandbox.aio import AsyncShell as AsyncShell
    from harena.sandbox.box import Sandbox as Sandbox
    from harena.sandbox.doctor import run_doctor as run_doctor
    from harena.sandbox.files import Snapshot as Snapshot
    from harena.sandbox.network import Denied as Denied
    from harena.sandbox.network import Network as Network
    from harena.sandbox.network import NetworkReport as NetworkReport
    from harena.sandbox.pool import Determinism as Determinism
    from harena.sandbox.pool import SandboxPool as SandboxPool
    from harena.sandbox.process import Process as Process
    from harena.sandbox.requirements import parse_requirements as parse_requirements
    from harena.sandbox.shell import Shell as Shell
    from harena.sandbox.spec import Clocks as Clocks
    from harena.sandbox.spec import FileInfo as FileInfo
    from harena.sandbox.spec import Limits as Limits
    from harena.sandbox.spec import Mount as Mount
    from harena.sandbox.spec import Result as Result
    from harena.sandbox.spec import Spec as Spec
    from harena.sandbox.spec import Usage as Usage
    from harena.sandbox.spec import Verdict as Verdict
    from harena.sessions.aio import AsyncSandboxSession as AsyncSandboxSession
    from harena.sessions.aio import AsyncWarmPoolManager as AsyncWarmPoolManager
    from harena.sessions.sdk import SandboxSession as SandboxSession
    from harena.sessions.sdk import WarmPoolManager as WarmPoolManager

# `harena --help` needs none of these, and asyncio alone would double what the rest takes.
__getattr__, __dir__ = _load_on_use(
    globals(),
    {
        "harena.errors": "BackendUnavailable BoxClosed BoxError BoxFileError BoxFileNotFound BoxFileTooLarge BoxLost "
        "HarenaError IsolationUnavailable QueueTimeout Retry SpecError StartTimeout WireError WrongProcess",
        "harena.match.evaluate": "evaluate league",
        "harena.sandbox.aio": "AsyncProcess AsyncSandbox AsyncSandboxPool AsyncShell",
        "harena.sandbox.doctor": "run_doctor",
        "harena.sandbox.files": "Snapshot",
        "harena.sandbox.network": "Denied Network NetworkReport",
        "harena.sandbox.pool": "Determinism SandboxPool",
        "harena.sandbox.process": "Process",
        "harena.sandbox.requirements": "parse_requirements",
        "harena.sandbox.shell": "Shell",
        "harena.sandbox.box": "Sandbox",
        "harena.sessions.aio": "AsyncSandboxSession AsyncWarmPoolManager",
        "harena.sessions.sdk": "SandboxSession WarmPoolManager",
        "harena.sandbox.spec": "Clocks FileInfo Limits Mount Result Spec Usage Verdict",
    },
)
