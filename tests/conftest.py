"""What holds for every test: `root` tests skip for other users, and under HARENA_REQUIRE_ALL=1 a skip is a failure.

Two skips stay skips: one whose reason starts with "host:", a thing that no package would bring, and a `docker` test.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

REQUIRE_ALL = os.environ.get("HARENA_REQUIRE_ALL") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("host: not root")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail") and not item.get_closest_marker("docker"):
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
