"""Boxes of MCP clients. Guarantees: a client reaches only its own boxes, never more than `max_boxes`; idle boxes close.

Knows nothing of MCP: `harena.adapters.mcp` offers these methods as tools.
"""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from harena.errors import SpecError
from harena.node.rules import image_matches
from harena.sandbox.aio import AsyncSandbox
from harena.sandbox.network import Network
from harena.sandbox.spec import KB, Clocks, Limits, Result, Spec

MAX_TEXT = 256 * KB
"""Maximum size of a file that is read; models cannot use more."""
MAX_LISTED = 1000
DEFAULT = "default"
"""The box that a client gets without asking for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    max_boxes: int = 8
    """Boxes of one client at once."""
    idle_s: float = 1800.0
    """A box closes itself after this time without a call."""
    wall_s: float = 60.0
    """Maximum of `timeout_s` of a call."""
    memory_mb: int = 512
    processes: int = 50
    workspace_mb: int = 256
    output_bytes: int = 64 * KB
    images: tuple[str, ...] = ()
    """Patterns of images that clients may choose. A star does not stand for a slash."""
    network: tuple[str, ...] = ()
    """What boxes may reach, such as "packages.example:443"."""
    packages: tuple[str, ...] = ()
    """Installed packages that boxes may import."""

    def spec(self, image: str | None) -> Spec:
        if image is not None and not any(image_matches(image, pattern) for pattern in self.images):
            raise SpecError(f"image {image!r:.80} is not allowed here; allowed: {', '.join(self.images) or 'none'}")
        return Spec(
            image=image,
            packages=() if image else self.packages,
            workspace_mb=self.workspace_mb,
            network=Network(allow=self.network) if self.network else None,
        )

    def limits(self, timeout_s: float | None = None) -> Limits:
        return Limits(
            wall_s=self.wall_s if timeout_s is None else min(timeout_s, self.wall_s),
            memory_mb=self.memory_mb,
            processes=self.processes,
            output_bytes=self.output_bytes,
        )


class ClientBoxes:
    def __init__(self, options: McpOptions) -> None:
        self.options = options
        self._boxes: defaultdict[str, dict[str, AsyncSandbox]] = defaultdict(dict)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def create(self, client: str, image: str | None = None, *, name: str | None = None) -> str:
        async with self._locks[client]:
            if name is not None and name in self._live(client):
                return name
            self._check_room(client, 1)
            box = await AsyncSandbox.create(
                self.options.spec(image), limits=self.options.limits(), clocks=Clocks(idle_s=self.options.idle_s)
            )
            self._boxes[client][name or box.id] = box
            return name or box.id

    async def find(self, client: str, box_id: str) -> AsyncSandbox:
        if box_id == DEFAULT:
            await self.create(client, name=DEFAULT)
        found = self._live(client).get(box_id)
        if found is None:
            raise SpecError(f"you have no box {box_id!r:.40}: it was closed, was idle too long, or never existed")
        return found

    async def fork(self, client: str, box_id: str, count: int) -> list[str]:
        box = await self.find(client, box_id)
        async with self._locks[client]:
            self._check_room(client, count)
            forks = await box.fork(count)
            self._boxes[client] |= {fork.id: fork for fork in forks}
            return [fork.id for fork in forks]

    async def close(self, client: str, box_id: str) -> None:
        box = await self.find(client, box_id)
        del self._boxes[client][box_id]
        await box.close()

    async def close_all(self) -> None:
        for boxes in self._boxes.values():
            for box in boxes.values():
                await box.close()
        self._boxes.clear()

    def names(self, client: str) -> list[str]:
        return list(self._live(client))

    def _live(self, client: str) -> dict[str, AsyncSandbox]:
        boxes = self._boxes[client]
        for box_id in [box_id for box_id, box in boxes.items() if not box.alive]:
            del boxes[box_id]
        return boxes

    def _check_room(self, client: str, count: int) -> None:
        have, most = len(self._live(client)), self.options.max_boxes
        if count < 1 or have + count > most:
            raise SpecError(f"you have {have} boxes and may have {most}: close some of them")


def as_answer(result: Result) -> dict[str, Any]:
    """What a model is told about an execution."""
    answer: dict[str, Any] = {
        "verdict": result.verdict.value,
        "exit_code": result.exit_code,
        "stdout": result.stdout.decode("utf-8", "replace"),
        "stderr": result.stderr.decode("utf-8", "replace"),
        "wall_s": round(result.usage.wall_s, 3),
    }
    return answer if result.ok else {**answer, "detail": result.detail}


def as_text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
