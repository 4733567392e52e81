"""The names a user imports from harena. Adding one is a decision; taking one away breaks somebody."""

from __future__ import annotations

import subprocess
import sys

import harena

NAMES = [
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


def test_every_name_can_be_imported() -> None:
    for name in NAMES:
        assert getattr(harena, name).__module__.startswith("harena.")


def test_there_are_no_others() -> None:
    """Asked of a fresh interpreter: here, tests have imported more of the package."""
    source = (
        "import harena, types\nprint(*(n for n in dir(harena) if not isinstance(getattr(harena, n), types.ModuleType)))"
    )
    shown = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout.split()
    public = {name for name in shown if not name.startswith("_")} - {"annotations", "Any", "TYPE_CHECKING"}
    assert public <= set(NAMES)
