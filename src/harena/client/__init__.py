"""The arena from outside: `ArenaClient` and `AsyncArenaClient`, with the same verbs, and the commands that use them.

`pip install 'harena[client]'` brings all it needs: httpx. Names are loaded on first use, so that the commands can say
what is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harena.client.aio import AsyncArenaClient as AsyncArenaClient
    from harena.client.blocking import ArenaClient as ArenaClient
    from harena.client.errors import ArenaError as ArenaError
    from harena.client.errors import BadAnswer as BadAnswer
    from harena.client.errors import Unreachable as Unreachable
    from harena.client.errors import WaitTimeout as WaitTimeout
    from harena.client.shapes import Board as Board
    from harena.client.shapes import Entry as Entry
    from harena.client.shapes import Environment as Environment
    from harena.client.shapes import Frame as Frame
    from harena.client.shapes import Match as Match
    from harena.client.shapes import Notice as Notice
    from harena.client.shapes import Season as Season
    from harena.client.shapes import Submission as Submission
    from harena.client.shapes import Tournament as Tournament

_MODULES = {
    "aio": "AsyncArenaClient",
    "blocking": "ArenaClient",
    "errors": "ArenaError BadAnswer Unreachable WaitTimeout",
    "shapes": "Board Entry Environment Frame Match Notice Season Submission Tournament",
}
_HOME = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ArenaClient",
    "ArenaError",
    "AsyncArenaClient",
    "BadAnswer",
    "Board",
    "Entry",
    "Environment",
    "Frame",
    "Match",
    "Notice",
    "Season",
    "Submission",
    "Tournament",
    "Unreachable",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
