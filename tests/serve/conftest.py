"""A server of boxes that the tests of a module share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena.sessions.engines import engine
from harena.testing.boxserver import BoxServer, box_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    folder = tmp_path_factory.mktemp("server")
    with box_server(folder, "--max-memory", "1024") as started:
        yield started


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BoxServer]:
    """A server that gives an owner four boxes."""
    with box_server(tmp_path, "--max-boxes", "4") as started:
        yield started


FIRST, SECOND = "a" * 30, "b" * 30


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    """A server with two owners."""
    folder = tmp_path_factory.mktemp("sessions")
    file = folder / "tokens"
    file.write_text(f"first {FIRST}\nsecond {SECOND}\n")
    os.chmod(file, 0o600)
    with box_server(folder, "--max-boxes", "6") as server:
        yield server


@pytest.fixture(params=["local", "server"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Keyword arguments of the SDK."""
    monkeypatch.delenv("HARENA_SERVER", raising=False)
    if request.param == "local":
        yield {}
        engine._local().service.close()
        engine._local.cache_clear()
    else:
        server: BoxServer = request.getfixturevalue("owners")
        yield {"server": server.url, "token": FIRST}
