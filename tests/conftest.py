"""What holds for every test is in `harena.testing.plugin`."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from harena.testing.plugin import pytest_configure as pytest_configure
from harena.testing.plugin import pytest_ignore_collect as pytest_ignore_collect
from harena.testing.plugin import pytest_make_collect_report as pytest_make_collect_report
from harena.testing.plugin import pytest_runtest_makereport as pytest_runtest_makereport
from harena.testing.plugin import pytest_runtest_setup as pytest_runtest_setup

# Threads of one sum wait for each other. Beside other tests they wait for most of their time, and models here are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On a busy machine an example may take long, to make or to run, without anything being wrong.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


SERVICES = ("chromium", "postgres")
"""Fixtures that start a program which a bare Debian does not have."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and needs_services(item):
            item.add_marker("services")


def needs_services(test: pytest.Function) -> bool:
    database = hasattr(test, "callspec") and "postgresql" in test.callspec.params.values()
    marked = any(test.get_closest_marker(name) for name in ("docker", "registry"))
    return database or marked or not set(SERVICES).isdisjoint(test.fixturenames)
