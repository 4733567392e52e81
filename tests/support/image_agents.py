"""Agents that are images, in a store of their own. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harena.images import Image, ImageStore
from harena.images.build import build
from support.roots import busybox_entries, python_entries, write_tar

SHELL_AGENT = """#!/bin/sh
move=0
while read line; do
  case "$line" in
    *'"type": "init"'*) echo '{"ready": true}' ;;
    *'"type": "act"'*) echo '{"action": '$move'}'; move=$(((move + 1) % 3)) ;;
    *'"type": "end"'*) exit 0 ;;
  esac
done
"""
"""Plays rock-paper-scissors with nothing but a shell."""
PYTHON_AGENT = """
import random
class Agent:
    def __init__(self, player_id):
        self.player_id = player_id
    def act(self, observation):
        print("seat", self.player_id)
        return random.randrange(3)
"""


class ImageAgents:
    """Builds images of agents from files and lines of a Dockerfile, on `base:1` (a shell) or `python:1`."""

    def __init__(self, store: ImageStore, folder: Path) -> None:
        self.store, self._folder, self._made = store, folder, 0

    def __call__(self, lines: str, files: Mapping[str, str] | None = None, *, base: str = "base:1") -> str:
        """Returns what a match calls the agent."""
        return f"image:{self.build(lines, files, base=base).reference}"

    def build(self, lines: str, files: Mapping[str, str] | None = None, *, base: str = "base:1") -> Image:
        self._made += 1
        context = self._folder / str(self._made)
        context.mkdir()
        for name, text in (files or {}).items():
            (context / name).write_text(text)
            (context / name).chmod(0o755)
        copies = "".join(f"COPY {name} /agent/{name}\n" for name in files or {})
        (context / "Dockerfile").write_text(f"FROM {base}\n{copies}{lines}\n")
        return build(self.store, context, name=f"agent-{self._made}:1")

    def shell(self, script: str = SHELL_AGENT, more: str = "") -> str:
        return self(f'{more}\nENTRYPOINT ["/agent/run"]', {"run": script})

    def python(self, source: str = PYTHON_AGENT, more: str = "") -> str:
        return self(f"LABEL harena.agent=/agent/agent.py\n{more}", {"agent.py": source}, base="python:1")


@pytest.fixture(scope="module", name="images")
def image_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageAgents]:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", str(folder / "store"))
        store = ImageStore.default()
        store.import_file(write_tar(folder / "base.tar", busybox_entries()), name="base:1", is_root=True)
        store.import_file(write_tar(folder / "python.tar", python_entries()), name="python:1", is_root=True)
        yield ImageAgents(store, folder)
