"""What holds for every test: `root` tests skip for other users, and under HARENA_REQUIRE_ALL=1 a skip is a failure.

A skip whose reason starts with "host:", a thing that no package would bring, stays a skip.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

REQUIRE_ALL = os.environ.get("HARENA_REQUIRE_ALL") == "1"


def pytest_configure() -> None:
    # A shell lets what it starts in the background ignore Ctrl-C, and a child inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m serial…` and `-m soak…` only files with such tests are imported: that takes a tenth of the time."""
    mark = re.match(r"(serial|soak)\b(?!.*\bor\b)", config.option.markexpr)
    if mark and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return f"mark.{mark[1]}" not in collection_path.read_text() or None
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("host: not root")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report)
    return report


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not (REQUIRE_ALL and report.skipped and isinstance(report.longrepr, tuple)):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith("host:"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but HARENA_REQUIRE_ALL=1: {reason}"
