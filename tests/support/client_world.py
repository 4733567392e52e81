"""What the tests' arena plays, and who plays there."""

from __future__ import annotations

from dataclasses import dataclass

from harena.arena.arena import Arena

CARTPOLE, TICTACTOE = "CartPole-v1", "tictactoe-v1"

LEFT = "def act(observation):\n    return 0\n"
LEANING = "def act(observation):\n    return int(observation[2] + observation[3] > 0)\n"
FIRST_FREE = "def act(observation):\n    return next(cell for cell in range(9) if observation[cell] == 0)\n"
LAST_FREE = "def act(observation):\n    return max(cell for cell in range(9) if observation[cell] == 0)\n"
SLOW = "import time\n" + FIRST_FREE.replace(
    "    return",
    "    if sum(observation[cell] != 0 for cell in range(9)) in (2, 3):\n        time.sleep(1.2)\n    return",
)
"""Long enough at its second move for somebody to come and watch."""


@dataclass(frozen=True)
class Served:
    url: str
    arena: Arena
    admin: str
    """A token, as is the next."""
    alice: str
