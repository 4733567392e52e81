"""The arena from outside: `ArenaClient` and `AsyncArenaClient`, with the same verbs, and the commands that use them.

`pip install 'harena[client]'` brings all it needs: httpx. Names are loaded on first use, so that the commands can say
what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harena.lazy import load_on_use

if TYPE_CHECKING:
    from harena.client.aio import AsyncArenaClient as AsyncArenaClient
    from harena.client.blocking import ArenaClient as ArenaClient
    from harena.client.errors import ArenaError as ArenaError
    from harena.client.errors import BadAnswer as BadAnswer
    from harena.client.errors import Unreachable as Unreachable
    from harena.client.errors import WaitTimeout as WaitTimeout
    from harena.schema import Board as Board
    from harena.schema import BoardEntry as BoardEntry
    from harena.schema import Environment as Environment
    from harena.schema import EnvironmentDetails as EnvironmentDetails
    from harena.schema import Match as Match
    from harena.schema import MatchFrame as MatchFrame
    from harena.schema import Notice as Notice
    from harena.schema import Season as Season
    from harena.schema import Submission as Submission
    from harena.schema import Tournament as Tournament

__all__ = [
    "ArenaClient",
    "ArenaError",
    "AsyncArenaClient",
    "BadAnswer",
    "Board",
    "BoardEntry",
    "Environment",
    "EnvironmentDetails",
    "Match",
    "MatchFrame",
    "Notice",
    "Season",
    "Submission",
    "Tournament",
    "Unreachable",
    "WaitTimeout",
]

__getattr__, __dir__ = load_on_use(
    globals(),
    {
        "harena.client.aio": "AsyncArenaClient",
        "harena.client.blocking": "ArenaClient",
        "harena.client.errors": "ArenaError BadAnswer Unreachable WaitTimeout",
        "harena.schema": (
            "Board BoardEntry Environment EnvironmentDetails Match MatchFrame Notice Season Submission Tournament"
        ),
    },
)
