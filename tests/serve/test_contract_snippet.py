"""The snippet that users of warm pools have, with only its import line changed: in one process, and on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from harena.images import ImageStore
from harena.sessions.engines import engine
from harena.testing.boxserver import box_server
from support.roots import busybox_entries, write_tar

SNIPPET = """
from harena import SandboxSession, WarmPoolManager
warmpool_mgr = WarmPoolManager(namespace="default")
warmpool_mgr.create_warmpool(name="my-python-pool", image="python:3.11-slim", replicas=2)
warmpool_mgr.wait_for_warmpool_ready("my-python-pool")
with SandboxSession(pool_ref="my-python-pool", namespace="default") as session:
    result = session.execute([
        {"name": "hello", "type": "Command", "command": ["echo", "Hello, World!"]},
        {"name": "install", "type": "Command", "command": ["pip", "install", "requests"], "container": "executor"},
    ])
    print(result["status"]["stdout"])
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An image of that name, with a pip that needs no network."""
    monkeypatch.setenv("HARENA_IMAGES", str(tmp_path / "store"))
    entries = {**busybox_entries(), "bin/pip": b"#!/bin/sh\necho Successfully installed $2\n"}
    tar = write_tar(tmp_path / "root.tar", entries)
    return ImageStore.default().import_file(tar, name="python:3.11-slim", is_root=True)[0].reference


def test_in_one_process(image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARENA_SERVER", raising=False)
    try:
        exec(SNIPPET, {})
    finally:
        engine._local().service.close()
        engine._local.cache_clear()
    assert capsys.readouterr().out == "Hello, World!\nSuccessfully installed requests\n\n"


def test_on_a_server(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with box_server(tmp_path, "--allow-image", "python:3.*") as server:
        monkeypatch.setenv("HARENA_SERVER", server.url)
        monkeypatch.setenv("HARENA_TOKEN", server.token)
        exec(SNIPPET, {})
        assert capsys.readouterr().out == "Hello, World!\nSuccessfully installed requests\n\n"
