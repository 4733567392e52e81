"""What a new arena shows until its host has content of their own: three environments, and agents of
different strength.

Loaded once, into an arena without environments; `harena up --no-demo` leaves the agents out. The agents in
the folders beside this file are also what environment pages give newcomers to copy.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from typing import Any

from harena.arena.arena import Arena
from harena.arena.db.models import Scope
from harena.arena.submissions.intake import Upload

OWNERS = ("demo", "demo-2", "demo-3", "demo-4", "demo-5")
"""One owner for each agent of an environment: agents of one owner do not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    env_id: str
    folder: str
    sample: str
    """The agent to copy."""
    agents: dict[str, str]
    """Algorithms, by file."""
    settings: dict[str, Any]


EXHIBITS = (
    Exhibit(
        env_id="connect_four-v1",
        folder="connect_four",
        sample="middle.py",
        agents={
            "playouts.py": "Monte Carlo",
            "guard.py": "Guard",
            "middle.py": "Middle",
            "builder.py": "Builder",
            "random.py": "Random",
        },
        settings={
            "title": "Connect four",
            "summary": "Four in a row, before the other has them.",
            "rules": (
                "Two players drop discs into seven columns of six squares, in turn. Who first has four in a row, "
                "across, down or diagonally, wins; a full board is a draw. A move into a full column, a crash "
                "or a move that takes more than 5 s of processor time loses the game.\n\n"
                "The observation is 42 numbers, row by row from the top: 1 is yours, -1 theirs, 0 empty. The action is "
                "a column, 0 to 6."
            ),
            "games_target": 40,
            "upkeep_s": 20.0,
        },
    ),
    Exhibit(
        env_id="pong-v1",
        folder="pong",
        sample="follower.py",
        agents={"aimer.py": "Aimer", "follower.py": "Follower", "lazy.py": "Lazy", "random.py": "Random"},
        settings={
            "title": "Pong",
            "summary": "Two paddles, one ball, first to 11 points.",
            "rules": (
                "Both players move at once. A hit turns the ball back a little faster, and where on the paddle it hits "
                "decides how steeply it leaves: who only follows the ball loses to who aims. The first to 11 points "
                "wins; after 1000 steps the score decides.\n\n"
                "The observation is ball x, ball y, ball speed x, ball speed y, left paddle y, right paddle y, left "
                "score, right score. The action is 0 up, 1 stay, 2 down."
            ),
            "games_target": 30,
            "upkeep_s": 20.0,
        },
    ),
    Exhibit(
        env_id="CartPole-v1",
        folder="cartpole",
        sample="balance.py",
        agents={
            "balance.py": "Balance",
            "damped.py": "Damped",
            "lean.py": "Lean",
            "random.py": "Random",
            "own_word.py": "Own word",
        },
        settings={
            "title": "CartPole",
            "summary": "Keep a pole upright on a cart; one point for each of at most 500 steps.",
            "rules": (
                "The platform plays 20 episodes with your agent on seeds that nobody knows before the season ends; the "
                "score is their mean. A script that prints a score of its own is shown on a board apart.\n\n"
                "The observation is position, speed, angle and turning speed. The action is 0 left, 1 right."
            ),
        },
    ),
)


def load(arena: Arena, *, agents: bool = True) -> bool:
    """Whether it was loaded: not into an arena that has environments. Without `agents`, the environments alone."""
    if arena.store.environments.all(enabled_only=False):
        return False
    # A name that has had a key is nobody's without one.
    for owner in OWNERS if agents else ():
        key, _ = arena.store.keys.create(owner, [Scope.READ], label="keeps the name")
        arena.store.keys.revoke(key.id)
    for exhibit in EXHIBITS:
        sample = _source(exhibit.folder, exhibit.sample).decode()
        arena.put_environment(exhibit.env_id, settings={**exhibit.settings, "sample_agent": sample})
        for owner, (file, algorithm) in zip(OWNERS, exhibit.agents.items() if agents else (), strict=False):
            upload = Upload(name=file, data=_source(exhibit.folder, file))
            arena.submissions.submit([upload], owner=owner, env_id=exhibit.env_id, algorithm=algorithm)
    return True


def _source(folder: str, file: str) -> bytes:
    return importlib.resources.files(__name__).joinpath(folder, file).read_bytes()
